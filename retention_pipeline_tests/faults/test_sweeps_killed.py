"""Workers killed by others: while the server is at their statement, again and again, between tenants (SPEC E5, L1, L4, J5, J7, G1, G7)."""

import random
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from retention_pipeline.errors import Code, Refused
from retention_pipeline.model.outcome import Outcome
from retention_pipeline.passes import Passes
from retention_pipeline_tests.acceptance.conftest import Installation
from retention_pipeline_tests.faults import sweep_crash_runner
from retention_pipeline_tests.faults.test_sweep_crashes import BATCH, DUE, PROCESSES, Requests, crash, recorded, system
from retention_pipeline_tests.rows import Platform, new_id
from retention_pipeline_tests.sweeping import broom

__all__ = ["broom", "system"]

LATCH = 4711
"""An advisory lock: a row's trigger waits for it, so that the server is at that row as long as a test has it."""

FIFTH = {
    "submission_ledgers": ("DELETE", "crm_submission_ledger", "OLD.created_at = '2026-01-01 00:00:04+00'"),
    "ephemeral_payloads": (
        "UPDATE",
        "workflow_central_tasks",
        "OLD.payload ->> 'expiresAt' = '2026-01-01T00:00:04Z'",
    ),
    "join_requests": ("UPDATE", "join_requests", "OLD.updated_at = '2026-01-01 00:00:04+00'"),
}
"""How each sweep ends a row, and which one is the fifth of a system's rows."""

WAIT = f"PERFORM pg_advisory_xact_lock_shared({LATCH});"


@contextmanager
def triggered(platform, dataset, body, when=None):
    """A trigger of the platform's own, at the fifth row or at those that `when` names."""
    deed, table, fifth = FIFTH[dataset]
    platform.run(
        "CREATE OR REPLACE FUNCTION nucleus.at_a_row() RETURNS trigger LANGUAGE plpgsql AS"
        f" $$ BEGIN IF {when or fifth} THEN {body} END IF; RETURN {'OLD' if deed == 'DELETE' else 'NEW'}; END $$"
    )
    platform.run(
        f"CREATE TRIGGER at_a_row BEFORE {deed} ON nucleus.{table} FOR EACH ROW EXECUTE FUNCTION nucleus.at_a_row()"
    )
    try:
        yield
    finally:
        platform.run(f"DROP TRIGGER at_a_row ON nucleus.{table}")


def until(true):
    for _ in range(2000):
        if true():
            return
        time.sleep(0.01)
    pytest.fail("It did not happen within 20 seconds.")


def backends(platform, where="true"):
    """The server's processes that work for the worker's login."""
    found = platform.connection.execute(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND usename = 'worker' AND " + where
    ).fetchall()
    return {row[0] for row in found}


@contextmanager
def latched(platform):
    """The server waits at a row; gives a function that waits until it does."""
    with platform.database.superuser() as holder:
        holder.execute("SELECT pg_advisory_lock(%s)", [LATCH])
        yield lambda: until(lambda: backends(platform, "wait_event_type = 'Lock' AND wait_event = 'advisory'"))


def begin(broom, system, batch=BATCH):
    """A pass in a process of its own, which nothing in it will kill."""
    told = {
        "seam": "before nothing",
        "nth": 0,
        "dataset": system.dataset,
        "batch": batch,
        "worker": broom.bench.database.worker_url,
        "keyring": str(broom.bench.keyring),
        "tenant": system.platform.tenant,
        "approval": broom.approve(system.platform, system.dataset),
    }
    process = PROCESSES.Process(target=sweep_crash_runner.run, args=(told,))
    process.start()
    return process


def rest(broom, system, already):
    """The next pass ends exactly what is left; what is on record is what ended, once each."""
    broom.bench.end_leases(system.platform)
    again = broom.sweep(system.platform, system.dataset, batch=BATCH)
    assert (again.report.outcome, again.report.counts.failures) == (Outcome.COMPLETED, {})
    assert sum(table.done for table in again.tables.values()) == DUE - already
    assert (system.ended(), recorded(system.platform), audited(system.platform)) == (DUE, DUE, DUE)
    system.right()
    assert places(system.platform) == {None}


def audited(platform):
    """Rows that the audit record tells of."""
    return platform.value(
        "SELECT coalesce(sum((details ->> 'items')::int), 0)::int FROM retention.audit_events"
        " WHERE tenant_id = %s AND kind LIKE 'sweep.%%'",
        platform.tenant,
    )


def places(platform):
    found = platform.connection.execute(
        "SELECT place::text FROM retention.sweep_positions WHERE tenant_id = %s", [platform.tenant]
    ).fetchall()
    return {row[0] for row in found}


def aside(platform):
    found = platform.connection.execute(
        "SELECT failures FROM retention.sweep_set_asides WHERE tenant_id = %s", [platform.tenant]
    ).fetchall()
    return [row[0] for row in found]


def test_the_next_pass_need_not_wait_for_the_statement_that_the_dead_one_left_behind(broom, system):
    """E5, L4, J5: the server is at a row still, and has it locked. What is free goes; what the dead one had in hand goes later, once."""
    platform, already = system.platform, backends(system.platform)
    with triggered(platform, system.dataset, WAIT), latched(platform) as arrived:
        process = begin(broom, system)
        arrived()
        process.kill()
        process.join(60)
        committed = system.ended()
        assert 0 < committed < DUE
        assert committed == recorded(platform)
        broom.bench.end_leases(platform)
        meanwhile = broom.sweep(platform, system.dataset, batch=BATCH)
        locked = meanwhile.report.backlog
        assert locked == (1 if system.dataset == "join_requests" else BATCH)
        assert meanwhile.report.outcome is not Outcome.COMPLETED
        assert meanwhile.report.counts.failures == {}
        assert system.ended() == recorded(platform) == DUE - locked
    until(lambda: backends(platform) - already <= backends(platform, "state = 'idle'"))
    assert system.ended() == recorded(platform) == DUE - locked  # nobody was there to say commit
    rest(broom, system, already=DUE - locked)


@pytest.mark.parametrize("kills", [2, pytest.param(8, marks=pytest.mark.slow)])
def test_killed_in_the_same_batch_again_and_again_it_loses_nothing_and_blames_no_row(broom, system, kills):
    """L4, F7: a row that was in hand when a worker died has not failed."""
    before = row_pictures(system)
    for _ in range(kills):
        assert crash(broom, system, "inside a transaction, after its receipt", 1) == -signal.SIGKILL
        broom.bench.end_leases(system.platform)
        assert row_pictures(system) == before
        assert (recorded(system.platform), audited(system.platform), aside(system.platform)) == (0, 0, [])
        assert places(system.platform) <= {None}
    rest(broom, system, already=0)


def test_killed_after_every_batch_each_pass_goes_on_from_the_place_of_the_last(broom, system):
    """E4, L1, J7: none begins at the beginning, and none leaves a row out."""
    batches = system.tables  # one for each table: the rows are in one of them
    for done in range(BATCH, DUE, BATCH):
        assert crash(broom, system, "after batch", batches) == -signal.SIGKILL
        assert system.ended() == recorded(system.platform) == audited(system.platform) == done
        system.right()
        broom.bench.end_leases(system.platform)
    rest(broom, system, already=DUE - DUE % BATCH)


def row_pictures(system):
    """The rows of a system, to the byte."""
    _, table, _ = FIFTH[system.dataset]
    return system.platform.connection.execute(
        f"SELECT t::text FROM nucleus.{table} AS t WHERE tenant_id = %s ORDER BY 1", [system.platform.tenant]
    ).fetchall()


def test_the_dead_ones_lease_and_approval_let_nobody_in(broom, system):
    """G7, G4: until the lease is over a pass is skipped and says why; an approval for one run was for that one."""
    assert crash(broom, system, "after batch", system.tables) == -signal.SIGKILL
    ended = system.ended()
    used = "SELECT approval_id::text FROM retention.approval_uses WHERE tenant_id = %s"
    approval = system.platform.value(used, system.platform.tenant)
    skipped = broom.sweep(system.platform, system.dataset)
    assert (skipped.report.outcome, skipped.report.reason) == (Outcome.SKIPPED, Code.RUN_OVERLAPS)
    broom.bench.end_leases(system.platform)
    with pytest.raises(Refused, match="RETENTION_APPROVAL_INVALID"):
        broom.sweep(system.platform, system.dataset, approval=approval)
    assert system.ended() == recorded(system.platform) == ended
    rest(broom, system, already=ended)


@pytest.mark.parametrize("seam", ["before pass_by", "inside a transaction, before its commit", "after pass_by"])
def test_killed_while_it_sets_a_row_aside_the_row_is_set_aside_once(broom, system, seam):
    """F7, J4: it waits in the next pass if that is on record, and is found again if it is not."""
    body = "RAISE EXCEPTION 'no';"
    inside = 5 if isinstance(system, Requests) else 4  # of the places that are saved, this one with the row set aside
    with triggered(system.platform, system.dataset, body):
        assert crash(broom, system, seam, inside if seam.startswith("inside") else 1) == -signal.SIGKILL
        known = seam.startswith("after")
        assert aside(system.platform) == ([1] if known else [])
        assert system.ended() == recorded(system.platform) == 4
        broom.bench.end_leases(system.platform)
        again = broom.sweep(system.platform, system.dataset, batch=BATCH).report
    assert again.counts.failures == ({} if known else {Code.INTERNAL: 1})
    assert (again.backlog, aside(system.platform)) == (1, [1])
    assert system.ended() == recorded(system.platform) == audited(system.platform) == DUE - 1
    system.right()
    system.platform.run(
        "UPDATE retention.sweep_set_asides SET not_before = now() WHERE tenant_id = %s", system.platform.tenant
    )
    rest(broom, system, already=DUE - 1)
    assert aside(system.platform) == []


@pytest.mark.parametrize("rounds", [2, pytest.param(25, marks=pytest.mark.slow)])
def test_killed_at_any_instant_what_ended_is_what_is_on_record(broom, system, rounds):
    """E5, L2, J5: nobody chose the instant."""
    platform, already = system.platform, backends(system.platform)
    with triggered(platform, system.dataset, "PERFORM pg_sleep(0.01);", when="true"):
        for _ in range(rounds):
            process = begin(broom, system, batch=1)
            until(lambda: backends(platform) - already)
            time.sleep(random.uniform(0, 0.3))
            process.kill()
            process.join(60)
            until(lambda: backends(platform) <= already)
            assert system.ended() == recorded(platform) == audited(platform)
            system.right()
            assert aside(platform) == []
            broom.bench.end_leases(platform)
    rest(broom, system, already=system.ended())


@dataclass
class Evidence:
    """Purge where instances have a say: jobs that are over go after the last of their evidence."""

    platform: Platform
    dataset: str = "job_evidence"
    instance: str = ""
    jobs: list = field(default_factory=list)

    def fill(self):
        self.instance = self.platform.add(state="running", epochs=())
        self.jobs = [new_id() for _ in range(DUE)]
        for n, job in enumerate(self.jobs):
            self.platform.run(
                "INSERT INTO nucleus.jobs (id, tenant_id, instance_id, kind, status, created_at, finished_at)"
                " VALUES (%s, %s, %s, 'k', 'succeeded', '2025-12-01Z', %s)",
                job,
                self.platform.tenant,
                self.instance,
                f"2026-01-01 00:00:{n:02}+00",
            )
            self.platform.run(
                "INSERT INTO nucleus.job_outcome_evidence (id, tenant_id, job_id, outcome, recorded_at)"
                " VALUES (%s, %s, %s, 'o', '2026-01-01Z')",
                new_id(),
                self.platform.tenant,
                job,
            )

    def left(self):
        """Jobs, and rows of evidence."""
        return tuple(
            self.platform.value(f"SELECT count(*) FROM nucleus.{table} WHERE tenant_id = %s", self.platform.tenant)
            for table in ("jobs", "job_outcome_evidence")
        )


@pytest.fixture
def evidence(broom):
    made = Evidence(broom.platform())
    made.fill()
    return made


SEAMS = [
    ("after batch", 3),
    ("inside a transaction, after its receipt", 5),
    ("inside a transaction, before its commit", 6),
    ("after rewind", 1),
]


@pytest.mark.parametrize(("seam", "nth"), SEAMS)
def test_evidence_and_jobs_of_a_killed_pass_go_in_the_next_and_are_on_record_once(broom, evidence, seam, nth):
    """L5, L4: at no instant does a job go before its evidence."""
    assert crash(broom, evidence, seam, nth) == -signal.SIGKILL
    jobs, outcomes = evidence.left()
    assert 0 < jobs + outcomes < 2 * DUE
    assert jobs >= outcomes
    assert recorded(evidence.platform) == 2 * DUE - jobs - outcomes
    broom.bench.end_leases(evidence.platform)
    again = broom.sweep(evidence.platform, evidence.dataset, batch=BATCH).report
    assert (again.outcome, again.counts.purged) == (Outcome.COMPLETED, jobs + outcomes)
    assert evidence.left() == (0, 0)
    assert recorded(evidence.platform) == audited(evidence.platform) == 2 * DUE
    assert places(evidence.platform) == {None}


def test_a_hold_that_comes_after_the_kill_keeps_all_that_had_not_ended(broom, evidence):
    """G1, F5: the dead one's choice binds nobody."""
    assert crash(broom, evidence, "inside a transaction, before its commit", 3) == -signal.SIGKILL
    evidence.platform.hold(evidence.instance)
    before = evidence.left()
    broom.bench.end_leases(evidence.platform)
    again = broom.sweep(evidence.platform, evidence.dataset, batch=BATCH)
    assert (again.report.counts.purged, evidence.left()) == (0, before)
    assert sum(sum(table.kept.values()) for table in again.left.tables) == sum(before)


def test_a_pass_over_everyone_that_is_killed_goes_on_with_the_tenant_that_it_had_in_hand(database, tmp_path):
    """L1, L4: the program itself, by cron; those before are done, those behind untouched, and their turn comes first."""
    (tmp_path / "home").mkdir()
    installation = Installation(database=database, home=tmp_path / "home")
    installation.settle()
    tenants = sorted((Platform(database=database) for _ in range(4)), key=lambda platform: platform.tenant)
    for platform in tenants:
        add_old(platform, 3)
    first, _, third, _ = tenants
    with (
        triggered(third, "submission_ledgers", WAIT, when=f"OLD.tenant_id = '{third.tenant}'"),
        latched(third) as arrived,
    ):
        program = subprocess.Popen(
            [sys.executable, "-m", "retention_pipeline", *everyone()],
            env={"RETENTION_HOME": str(installation.home)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        arrived()
        program.kill()
        program.wait(60)
    until(lambda: not backends(third))
    assert [left_of(platform) for platform in tenants] == [0, 0, 3, 3]
    add_old(first, 1)
    with installation.app() as app:
        passes = Passes(app=app, name="submission_ledgers")
        assert passes.last() == tenants[1].tenant
        assert passes.due() == (third.tenant, tenants[3].tenant, first.tenant)
    third.run("UPDATE retention.leases SET expires_at = '-infinity' WHERE tenant_id = %s", third.tenant)
    told = installation.done(*everyone(), tenant=None)
    assert (told["outcome"], told["not_reached"]) == ("completed", 0)
    receipts = third.connection.execute("SELECT tenant_id, items FROM retention.sweep_receipts ORDER BY id").fetchall()
    assert receipts == [
        *((platform.tenant, 3) for platform in tenants),
        (first.tenant, 1),
    ]
    assert [left_of(platform) for platform in tenants] == [0, 0, 0, 0]


def everyone():
    return ("sweep", "submission_ledgers", "--everyone", "--apply", "--reason", "nightly, by cron")


def add_old(platform, rows):
    platform.run(
        "INSERT INTO nucleus.crm_submission_ledger (id, tenant_id, idempotency_key, created_at)"
        " SELECT gen_random_uuid(), %s, gen_random_uuid()::text, now() - interval '31 days' FROM generate_series(1, %s)",
        platform.tenant,
        rows,
    )


def left_of(platform):
    return platform.value("SELECT count(*) FROM nucleus.crm_submission_ledger WHERE tenant_id = %s", platform.tenant)
