"""Killed at every seam of a pass: what ended is on record once, and the next pass ends exactly the rest (SPEC E5, L2, L4, J5, J7)."""

import multiprocessing
import signal
from dataclasses import dataclass, field

import pytest

from retention_pipeline.model.outcome import Outcome
from retention_pipeline_tests.faults import sweep_crash_runner
from retention_pipeline_tests.joining import Club
from retention_pipeline_tests.payloads import add_row, ephemeral
from retention_pipeline_tests.rows import Platform
from retention_pipeline_tests.sweeping import Broom, broom, ledger_row

__all__ = ["broom"]

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload([sweep_crash_runner.__name__])
DUE, BATCH = 11, 3
SHORT = ("after batch", "inside a transaction, before its commit", "before rewind")
"""What every run of the tests tries; `make faults` tries all."""


@dataclass
class Ledger:
    """Purge: rows that are gone have ended."""

    platform: Platform
    dataset: str = "submission_ledgers"
    tables: int = 2
    stay: set = field(default_factory=set)

    def fill(self):
        for n in range(DUE):
            ledger_row(self.platform, "crm_submission_ledger", f"2026-01-01 00:00:{n:02}+00")
        self.stay = {ledger_row(self.platform, "crm_submission_ledger", "2026-05-31 00:00:00+00")}

    def ended(self):
        there = self.platform.connection.execute(
            "SELECT idempotency_key FROM nucleus.crm_submission_ledger WHERE tenant_id = %s", [self.platform.tenant]
        ).fetchall()
        assert self.stay <= {row[0] for row in there}
        return DUE + 1 - len(there)

    def right(self):
        """Nothing beside the rows can be wrong."""

    def close(self):
        """Nothing is open."""


@dataclass
class Payloads:
    """Clear: rows whose payload is gone, its mirror with it, and that say since when."""

    platform: Platform
    dataset: str = "ephemeral_payloads"
    tables: int = 2

    def fill(self):
        instance = self.platform.add(state="running", epochs=())
        for n in range(DUE):
            add_row(self.platform, "central_tasks", ephemeral(f"2026-01-01T00:00:{n:02}Z"), instance=instance)
        add_row(self.platform, "central_tasks", ephemeral("2126-01-01T00:00:00Z"), instance=instance)

    def ended(self):
        return self.platform.value(
            "SELECT count(*) FROM nucleus.workflow_central_tasks WHERE tenant_id = %s AND payload IS NULL",
            self.platform.tenant,
        )

    def right(self):
        """A row is cleared whole or not at all (E2)."""
        assert not self.platform.value(
            "SELECT count(*) FROM nucleus.workflow_central_tasks WHERE tenant_id = %s"
            " AND ((payload IS NULL) <> (data = '{}') OR (payload IS NULL) <> (payload_expired_at IS NOT NULL))",
            self.platform.tenant,
        )

    def close(self):
        """Nothing is open."""


@dataclass
class Requests:
    """Shelve: requests that are archived, each told once."""

    platform: Platform
    dataset: str = "join_requests"
    tables: int = 1
    asked: list = field(default_factory=list)
    club: Club = None

    def fill(self):
        self.club = Club(platform=self.platform)
        self.asked = [self.club.ask(f"2026-01-01 00:00:{n:02}+00") for n in range(DUE)]
        self.club.ask("2026-05-31Z")

    def ended(self):
        archived = self.club.archived()
        assert archived <= set(self.asked)
        return len(archived)

    def right(self):
        """J5: the activity record and the notification come with the change, and no delivery to an agent."""
        archived = self.club.archived()
        for request in self.asked:
            assert self.club.told(request) == ((1, 1, 0) if request in archived else (0, 0, 0))

    def close(self):
        self.club.close()


def crash(broom: Broom, system, seam: str, nth: int) -> int | None:
    told = {
        "seam": seam,
        "nth": nth,
        "dataset": system.dataset,
        "batch": BATCH,
        "worker": broom.bench.database.worker_url,
        "keyring": str(broom.bench.keyring),
        "tenant": system.platform.tenant,
        "approval": broom.approve(system.platform, system.dataset),
    }
    process = PROCESSES.Process(target=sweep_crash_runner.run, args=(told,))
    process.start()
    process.join(60)
    return process.exitcode


def recorded(platform):
    return int(
        platform.value(
            "SELECT coalesce(sum(items), 0) FROM retention.sweep_receipts WHERE tenant_id = %s", platform.tenant
        )
    )


@pytest.fixture(params=[Ledger, Payloads, Requests])
def system(request, broom):
    made = request.param(broom.platform())
    made.fill()
    yield made
    made.close()


@pytest.mark.parametrize(
    "seam",
    [s if s in SHORT else pytest.param(s, marks=pytest.mark.slow) for s in sweep_crash_runner.SEAMS],
)
def test_a_pass_that_is_killed_ended_what_it_says_and_the_next_ends_the_rest(broom, system, seam):
    """The kill comes in the middle of the work, or when it is done and the place goes back to the beginning."""
    done = "rewind" in seam
    assert crash(broom, system, seam, system.tables if done else 4 if system.tables > 1 else 2) == -signal.SIGKILL
    ended = system.ended()
    assert ended == recorded(system.platform)
    assert ended == DUE if done else 0 < ended < DUE
    system.right()
    broom.bench.end_leases(system.platform)
    again = broom.sweep(system.platform, system.dataset, batch=BATCH)
    assert (again.report.outcome, again.report.counts.failures) == (Outcome.COMPLETED, {})
    assert sum(table.done for table in again.tables.values()) == DUE - ended
    assert (system.ended(), recorded(system.platform)) == (DUE, DUE)
    system.right()
    places = system.platform.connection.execute(
        "SELECT place FROM retention.sweep_positions WHERE tenant_id = %s", [system.platform.tenant]
    ).fetchall()
    assert {place for (place,) in places} == {None}
