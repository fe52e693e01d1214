"""`retention late`, and the asset that is red with it: a schedule that should run and did not (SPEC O2, O1, G3)."""

import pytest

from retention_pipeline.definitions import defs
from retention_pipeline.model.people import Job, SweepJob
from retention_pipeline.punctuality import Punctuality
from retention_pipeline_tests.acceptance.conftest import AURORA, BOREALIS
from retention_pipeline_tests.joining import Club
from retention_pipeline_tests.rows import Platform
from retention_pipeline_tests.sweeping import ledger_row

LEDGERS = SweepJob.of("submission_ledgers")


@pytest.fixture
def platform(installation):
    made = object.__new__(Platform)
    made.database, made.tenant = installation.database, AURORA.id
    made.connection = installation.database.superuser()
    made.connection.execute("SET session_replication_role = replica")
    yield made
    made.connection.close()


def promised(platform, job, *, hours, tenant=AURORA, lasts="90 days"):
    platform.run(
        "INSERT INTO retention.approvals (tenant_id, job, kind, max_items, at, expires_at, reason, actor)"
        " VALUES (%s, %s, 'standing', 100, now() - %s * interval '1 hour', now() - %s * interval '1 hour' + %s::interval, 'r', 'a')",
        tenant.id,
        str(job),
        hours,
        hours,
        lasts,
    )


def ended(platform, job, outcome, *, hours):
    platform.run(
        "INSERT INTO retention.run_outcomes (tenant_id, job, run, outcome, reason, counts, started_at, at)"
        " VALUES (%s, %s, 'r', %s, 'x', '{}', now() - %s * interval '1 hour', now() - %s * interval '1 hour')",
        platform.tenant,
        str(job),
        outcome,
        hours,
        hours,
    )


def told(installation):
    with installation.app() as app:
        return [(b.promise.tenant, b.promise.job, str(b.trouble)) for b in Punctuality(app=app).broken()]


def test_without_a_promise_nothing_is_late(installation):
    assert told(installation) == []


def test_a_sweep_is_late_where_rows_were_due_long_enough_and_are_there_still(installation, platform):
    """O2: neither where nothing is due nor where it fell due a moment ago."""
    promised(platform, LEDGERS, hours=40)
    promised(platform, LEDGERS, hours=40, tenant=BOREALIS)
    assert told(installation) == []
    platform.run("DELETE FROM nucleus.crm_submission_ledger WHERE tenant_id = %s", AURORA.id)
    key = ledger_row(platform, "crm_submission_ledger", "2026-01-01Z")
    assert told(installation) == [(AURORA.id, LEDGERS, "not_run")]
    ended(platform, LEDGERS, "preflight", hours=1)
    assert told(installation) == [(AURORA.id, LEDGERS, "not_done")]
    ended(platform, LEDGERS, "work_remains", hours=1)
    assert told(installation) == []
    platform.run("DELETE FROM retention.run_outcomes WHERE outcome = 'work_remains'")
    platform.run(
        "UPDATE nucleus.crm_submission_ledger SET created_at = now() - interval '30 days 1 hour' WHERE idempotency_key = %s",
        key,
    )
    assert told(installation) == []


def test_requests_that_stay_make_nothing_late_between_two_days(installation, platform):
    """O2: a paused company's requests are over their time, and have no deadline: only the daily schedule comes by."""
    sweep = SweepJob.of("join_requests")
    club = Club(platform=platform)
    try:
        club.ask("2026-01-01Z")
        club.company_is("paused")
    finally:
        club.close()
    promised(platform, sweep, hours=40)
    ended(platform, sweep, "completed", hours=25)
    assert told(installation) == []
    platform.run("UPDATE retention.run_outcomes SET at = at - interval '2 hours'")
    assert told(installation) == [(AURORA.id, sweep, "not_run")]


def test_the_nightly_run_is_late_after_a_night_without_one(installation, platform):
    promised(platform, Job.RECONCILE, hours=25)
    assert told(installation) == []
    promised(platform, Job.RECONCILE, hours=27)
    assert told(installation) == [(AURORA.id, "reconcile", "not_run")]
    ended(platform, Job.RECONCILE, "completed", hours=2)
    assert told(installation) == []


def test_an_approval_that_ended_is_told_for_a_month(installation, platform):
    promised(platform, LEDGERS, hours=24 * 40, lasts="11 days")
    assert told(installation) == [(AURORA.id, LEDGERS, "lapsed")]
    platform.run("UPDATE retention.approvals SET expires_at = now() - interval '30 days 1 second'")
    assert told(installation) == []


def test_the_command_ends_with_6_and_names_tenant_and_job(installation, platform):
    """O1."""
    quiet = installation.call("late", tenant=None, as_json=False)
    assert (quiet.code, quiet.out) == (0, "Every promised run did its work in time.\n")
    promised(platform, Job.RECONCILE, hours=27)
    answer = installation.call("late", tenant=None)
    assert answer.code == 6
    assert answer.json["late"] == 1
    [broken] = answer.json["promises"]
    assert (broken["alias"], broken["job"], broken["trouble"]) == ("aurora", "reconcile", "not_run")
    shown = installation.call("late", tenant=None, as_json=False).out
    assert "no run since then" in shown
    assert "aurora" in shown
    assert installation.call("late", "--as-of", "2020-01-01T00:00:00Z", tenant=None).code == 0


def test_the_asset_is_red_until_the_run_came(installation, office, platform):
    """D5: ids, codes and numbers."""
    promised(platform, Job.RECONCILE, hours=27)
    job = defs.resolve_job_def("watch_promises")
    result = job.execute_in_process(instance=office.instance, raise_on_error=False)
    assert not result.success
    assert "Promised runs are late: reconcile: not_run 1." in office.why(result)
    ended(platform, Job.RECONCILE, "completed", hours=1)
    assert job.execute_in_process(instance=office.instance, raise_on_error=False).success
