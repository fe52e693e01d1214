"""Jobs that ended, and the evidence of their outcomes, go after 90 days; held evidence and jobs that still run never (SPEC L5, G1)."""

import threading
import time

import psycopg
import pytest

from retention_pipeline.model.outcome import Outcome
from retention_pipeline_tests.databases import template
from retention_pipeline_tests.rows import new_id
from retention_pipeline_tests.sweeping import broom, ledger_row, module_database, shared

__all__ = ["broom", "module_database", "shared", "template"]

SWEEP = "job_evidence"
EXACTLY = "2026-03-03 12:00:00+00"
JUST_OLDER = "2026-03-03 11:59:59.999999+00"
OLD = "2026-01-01 00:00:00+00"
ASLEEP = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'"


def job(platform, finished, *, status="succeeded", instance=None):
    key = new_id()
    platform.run(
        "INSERT INTO nucleus.jobs (id, tenant_id, instance_id, kind, status, created_at, finished_at)"
        " VALUES (%s, %s, %s, 'k', %s, '2025-12-01Z', %s)",
        key,
        platform.tenant,
        instance,
        status,
        finished,
    )
    return key


def outcome(platform, of, recorded=OLD, tenant=None):
    key = new_id()
    platform.run(
        "INSERT INTO nucleus.job_outcome_evidence (id, tenant_id, job_id, outcome, recorded_at) VALUES (%s, %s, %s, 'o', %s)",
        key,
        tenant or platform.tenant,
        of,
        recorded,
    )
    return key


def left(platform):
    found = platform.connection.execute(
        "SELECT id::text FROM nucleus.jobs WHERE tenant_id = %(t)s UNION ALL"
        " SELECT id::text FROM nucleus.job_outcome_evidence WHERE tenant_id = %(t)s",
        {"t": platform.tenant},
    ).fetchall()
    return {row[0] for row in found}


def kept(result):
    return {table.name: table.kept for table in result.found.tables if table.kept}


def test_the_job_exactly_90_days_old_stays_and_one_microsecond_older_goes(broom):
    """L5."""
    platform = broom.platform()
    stays, _ = job(platform, EXACTLY), job(platform, JUST_OLDER)
    assert broom.sweep(platform, SWEEP).report.counts.purged == 1
    assert left(platform) == {stays}


def test_evidence_exactly_90_days_old_stays_with_its_job_and_one_microsecond_older_goes(broom):
    """L5: a job goes after the last of its evidence."""
    platform = broom.platform()
    old = job(platform, OLD)
    stays, _ = outcome(platform, old, EXACTLY), outcome(platform, old, JUST_OLDER)
    result = broom.sweep(platform, SWEEP)
    assert left(platform) == {old, stays}
    assert result.report.outcome is Outcome.COMPLETED
    assert kept(broom.sweep(platform, SWEEP)) == {"jobs": {"children_left": 1}}


def test_a_job_and_all_of_its_old_evidence_go_in_one_pass(broom):
    platform = broom.platform()
    for _ in range(30):
        for _ in range(2):
            outcome(platform, job(platform, OLD))
    result = broom.sweep(platform, SWEEP, batch=7)
    assert (result.report.outcome, result.report.counts.purged) == (Outcome.COMPLETED, 120)
    assert left(platform) == set()


@pytest.mark.parametrize("status", ["queued", "running"])
def test_a_job_that_still_runs_stays_with_all_of_its_evidence_however_old(broom, status):
    """L5."""
    platform = broom.platform()
    running = job(platform, None, status=status)
    odd = job(platform, OLD, status=status)  # it says that it finished, and it says that it runs
    rows = {running, odd, outcome(platform, running), outcome(platform, odd)}
    result = broom.sweep(platform, SWEEP)
    assert left(platform) == rows
    assert kept(result) == {"job_outcomes": {"parent_open": 2}, "jobs": {"open": 1}}
    assert (result.report.outcome, result.report.backlog) == (Outcome.COMPLETED, 0)


def test_instants_that_are_none_keep_their_rows_and_are_told(broom):
    """F13."""
    platform = broom.platform()
    rows = {job(platform, "-infinity"), job(platform, "infinity"), job(platform, None)}
    result = broom.sweep(platform, SWEEP)
    assert left(platform) == rows
    [jobs] = [table for table in result.found.tables if table.name == "jobs"]
    assert jobs.findings == {"instant_is_minus_infinity": 1, "closed_without_an_instant": 1}


def test_held_evidence_stays_until_the_last_matter_is_released(broom):
    """L5, G1, F5."""
    platform = broom.platform()
    instance = platform.add(state="running", epochs=())
    held, free = job(platform, OLD, instance=instance), job(platform, OLD)
    rows = {held, outcome(platform, held)}
    outcome(platform, free)
    platform.hold(instance, "m1")
    platform.hold(instance, "m2")
    result = broom.sweep(platform, SWEEP)
    assert left(platform) == rows
    assert kept(result)["job_outcomes"] == {"legal_hold": 1}
    platform.hold(instance, "m1", "release")
    broom.sweep(platform, SWEEP)
    assert left(platform) == rows
    platform.hold(instance, "m2", "release")
    broom.sweep(platform, SWEEP)
    assert left(platform) == set()


def test_the_workers_login_alone_ends_nothing_that_a_hold_keeps(broom):
    """G1, G4: by plain SQL, while an approved pass is under way; its evidence neither."""
    platform = broom.platform()
    instance = platform.add(state="running", epochs=())
    held, free = job(platform, OLD, instance=instance), job(platform, OLD)
    evidence, loose = outcome(platform, held), outcome(platform, free)
    platform.hold(instance, "m1")
    platform.run(
        "INSERT INTO retention.approval_uses (approval_id, run, tenant_id, single_use) VALUES (%s, 'r', %s, true)",
        broom.approve(platform, SWEEP),
        platform.tenant,
    )
    with psycopg.connect(broom.bench.database.worker_url, autocommit=True) as worker:
        for setting in ("retention.tenant_id", "nucleus.tenant_id"):
            worker.execute("SELECT set_config(%s, %s, false)", [setting, platform.tenant])
        for table in ("job_outcome_evidence", "jobs"):
            assert worker.execute(f"DELETE FROM nucleus.{table}").rowcount == 1
    assert left(platform) == {held, evidence}
    assert {free, loose}.isdisjoint(left(platform))


def holding(database, platform, instance):
    """A hold that is being placed, and has not committed."""
    connection = psycopg.connect(database.superuser_url)
    connection.execute(
        "INSERT INTO retention.hold_events (tenant_id, instance_id, matter, action, reason, correlation)"
        " VALUES (%s, %s, 'm', 'hold', 'a court asks', 'c')",
        [platform.tenant, instance],
    )
    return connection


def test_a_hold_that_is_being_placed_wins(broom):
    """F5: its instance's rows are passed by until it has committed, and then are held."""
    platform = broom.platform()
    instance = platform.add(state="running", epochs=())
    held, free = job(platform, OLD, instance=instance), job(platform, OLD)
    with holding(broom.bench.database, platform, instance) as placing:
        result = broom.sweep(platform, SWEEP)
        assert (left(platform), result.report.counts.purged) == ({held}, 1)
        placing.commit()
    broom.sweep(platform, SWEEP)
    assert left(platform) == {held} != {free}


def test_a_hold_waits_for_a_purge_that_has_begun(broom):
    """F5, G1: the other order; whoever places it is answered after the rows are gone."""
    platform = broom.platform()
    instance = platform.add(state="running", epochs=())
    job(platform, OLD, instance=instance)
    seen = []

    def place():
        with psycopg.connect(broom.bench.database.superuser_url, autocommit=True) as watching:
            while not watching.execute(ASLEEP).fetchone():  # the purge is inside its DELETE
                time.sleep(0.01)
        with holding(broom.bench.database, platform, instance) as connection:
            connection.commit()
        seen.append(left(platform))

    platform.run(
        "CREATE OR REPLACE FUNCTION nucleus.slow() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN PERFORM pg_sleep(0.6); RETURN OLD; END $$"
    )
    platform.run("CREATE TRIGGER slow BEFORE DELETE ON nucleus.jobs FOR EACH ROW EXECUTE FUNCTION nucleus.slow()")
    try:
        holder = threading.Thread(target=place, daemon=True)
        holder.start()
        broom.sweep(platform, SWEEP)
        holder.join(timeout=60)
    finally:
        platform.run("DROP TRIGGER slow ON nucleus.jobs")
    assert seen == [set()]  # the hold was answered after the rows were gone


def test_another_tenants_evidence_keeps_its_job_and_the_others_go(broom):
    """F7, F18: a row that row-level security hides; its foreign key refuses, and the job is set aside."""
    platform, other = broom.platform(), broom.platform()
    bad = job(platform, OLD)
    foreign = outcome(other, bad, tenant=other.tenant)
    for _ in range(40):
        job(platform, OLD)
    result = broom.sweep(platform, SWEEP)
    assert left(platform) == {bad}
    assert left(other) == {foreign}
    assert (result.report.outcome, result.report.counts.failures) == (
        Outcome.PARTIAL,
        {"RETENTION_DATABASE_REFUSED": 1},
    )
    assert broom.sweep(platform, SWEEP).report.counts.failures == {}  # it waits


def test_a_purge_of_ledgers_never_touches_job_evidence(broom):
    """L5."""
    platform = broom.platform()
    rows = {job(platform, OLD), job(platform, None, status="running")}
    ledger_row(platform, "crm_submission_ledger", OLD)
    assert broom.sweep(platform, "submission_ledgers").report.counts.purged == 1
    assert left(platform) == rows
