"""Killed at every seam: the row is there, or an archive that opens, its record and its receipt are (SPEC A5, A8, F2)."""

import json
import multiprocessing
import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import pytest

from retention_pipeline.errors import Code, Unavailable
from retention_pipeline.model.outcome import Outcome
from retention_pipeline.postgres.swap import Swap
from retention_pipeline.stages import verification
from retention_pipeline.storage.filesystem import FilesystemStore
from retention_pipeline_tests.faults import crash_runner
from retention_pipeline_tests.rows import Platform
from retention_pipeline_tests.seams import Seams
from retention_pipeline_tests.worlds import Bench

INSTANCES = 5
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload([crash_runner.__name__])
SUMMARY = Path(__file__).resolve().parents[2] / ".retention" / "faults.json"


@dataclass
class Tally:
    """How many crashes were tried, and what they cost."""

    tried: int = 0
    survived: int = 0
    lost: list[str] = field(default_factory=list)
    orphans: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def tally() -> Iterator[Tally]:
    counted = Tally()
    yield counted
    SUMMARY.parent.mkdir(exist_ok=True)
    SUMMARY.write_text(
        json.dumps(
            {
                "tried": counted.tried,
                "survived": counted.survived,
                "lost": len(counted.lost),
                "orphans": len(counted.orphans),
            },
            indent=2,
        ),
        encoding="utf-8",
    )


@dataclass(frozen=True, kw_only=True)
class Site:
    """Where a crash happens, and what is looked at afterwards."""

    bench: Bench
    platform: Platform
    store: FilesystemStore
    root: Path
    instances: tuple[str, ...]
    tally: Tally

    def crash(self, seam: str, nth: int) -> int | None:
        """Run in a process of its own, and give how that one ended."""
        told = {
            "seam": seam,
            "nth": nth,
            "batch": 3,
            "worker": self.bench.database.worker_url,
            "keyring": str(self.bench.keyring),
            "root": str(self.root),
            "tenant": self.platform.tenant,
            "approval": self.bench.approve(self.platform),
        }
        process = PROCESSES.Process(target=crash_runner.run, args=(told,))
        process.start()
        process.join(60)
        return process.exitcode

    def nothing_is_lost(self) -> None:
        """At each instant: the row, or a receipt with an archive that opens; and no object that nobody knows of."""
        deleted = self.column("SELECT attempt_id::text FROM retention.receipts WHERE tenant_id = %s")
        proven = {self.opened(attempt) for attempt in deleted}
        lost = [i for i in self.instances if self.platform.exists(i) == (i in proven)]
        known = set(self.column("SELECT object_key FROM retention.attempts WHERE tenant_id = %s"))
        orphans = [found.key for found in self.store.walk() if found.key not in known]
        self.tally.lost += lost
        self.tally.orphans += orphans
        assert (lost, orphans) == ([], [])

    def opened(self, attempt: str) -> str:
        """The instance of an archive that was read back and proven just now."""
        found = self.bench.world.records.attempt(self.platform.tenant, attempt)
        assert found.state == "source_deleted"
        keys = partial(self.bench.keys.find, self.platform.tenant)
        return verification.verify(self.store, found.stored(found.version), keys).stored.instance

    def a_later_run_ends_it(self) -> None:
        self.bench.end_leases(self.platform)
        result = self.bench.reconcile(self.platform, world=self.bench.with_store(self.store))
        assert result.report.outcome is Outcome.COMPLETED
        self.nothing_is_lost()
        assert not any(self.platform.exists(i) for i in self.instances)
        receipts = self.column("SELECT instance_id FROM retention.receipts WHERE tenant_id = %s")
        events = self.column(
            "SELECT subject FROM retention.audit_events WHERE tenant_id = %s AND kind = 'instance.deleted'"
        )
        assert Counter(receipts) == Counter(events) == dict.fromkeys(self.instances, 1)
        assert set(self.bench.states(self.platform)) <= {"source_deleted", "abandoned"}
        self.tally.survived += 1

    def column(self, statement: str) -> list:
        return [row[0] for row in self.platform.connection.execute(statement, [self.platform.tenant]).fetchall()]


@pytest.fixture
def site(shared: Bench, tmp_path: Path, tally: Tally) -> Site:
    platform = shared.platform()
    root = tmp_path / "archives"
    root.mkdir(mode=0o700)
    tally.tried += 1
    return Site(
        bench=shared,
        platform=platform,
        store=FilesystemStore(root, platform.tenant),
        root=root,
        instances=tuple(platform.add(contexts=1) for _ in range(INSTANCES)),
        tally=tally,
    )


# By turns in the first batch of three, and in the second, when others are gone already.
CRASHES = [(seam, 1 if "drop_lease" in seam else 1 + number % 2) for number, seam in enumerate(crash_runner.SEAMS)]


@pytest.mark.parametrize(("seam", "nth"), CRASHES)
def test_a_process_that_is_killed_loses_nothing_and_leaves_nothing_unknown(site, seam, nth):
    """F2, A5, A8."""
    assert site.crash(seam, nth) == -signal.SIGKILL
    site.nothing_is_lost()
    site.a_later_run_ends_it()


def run(site, world):
    return site.bench.reconcile(site.platform, world=replace(world, stores=lambda _tenant, _generation: site.store))


@pytest.mark.parametrize("place", ["_still_eligible", "_require_declared_references", "_record"])
def test_a_backend_that_ends_in_the_middle_of_the_swap_undoes_all_of_it(site, place, monkeypatch):
    """F2, A8: the run is failed, not green, and the same archives are used by the next one."""
    inner = getattr(Swap, place)

    def ended(self, cursor, *arguments):
        answer = inner(self, cursor, *arguments)
        with site.bench.database.superuser() as admin:
            admin.execute("SELECT pg_terminate_backend(%s, 5000)", [cursor.connection.info.backend_pid])
        return answer

    monkeypatch.setattr(Swap, place, ended)
    result = run(site, site.bench.world)
    assert (result.report.outcome, result.report.reason) == (Outcome.FAILED, Code.DATABASE_UNAVAILABLE)
    assert all(site.platform.exists(i) for i in site.instances)
    assert site.bench.states(site.platform) == {"verified": INSTANCES}
    site.nothing_is_lost()
    monkeypatch.undo()
    site.a_later_run_ends_it()
    assert site.bench.states(site.platform) == {"source_deleted": INSTANCES}


@pytest.mark.parametrize("call", ["intend", "mark_stored", "mark_verified", "swap"])
def test_a_commit_whose_answer_is_lost_counts_once(site, call):
    """F2: it landed, and this run never hears of it."""

    def lose():
        raise Unavailable(Code.DATABASE_UNAVAILABLE, "The answer was lost.", remedy="Run again.")

    lossy = {"after": {call: lose}}
    world = replace(
        site.bench.world,
        records=Seams(site.bench.world.records, **lossy),
        source=Seams(site.bench.world.source, **lossy),
    )
    assert run(site, world).report.outcome is Outcome.FAILED
    site.nothing_is_lost()
    left = {site.platform.exists(i) for i in site.instances}
    assert left == {call != "swap"}
    site.a_later_run_ends_it()
