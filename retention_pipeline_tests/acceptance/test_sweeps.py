"""Sweeps as operators and schedules see them: at the command line and through Dagster (SPEC C, L1, L4, O1, D1-D3, G4)."""

from dataclasses import replace
from datetime import datetime, timedelta

import dagster as dg
import pytest

from retention_pipeline.definitions import defs
from retention_pipeline.defs.resources import ProductResource
from retention_pipeline.governance.approval import ApprovalRequest, Kind
from retention_pipeline.model.people import SweepJob
from retention_pipeline.passes import Passes
from retention_pipeline.postgres import approvals
from retention_pipeline_tests.acceptance.conftest import AURORA, BOREALIS, CASCADE

DATASET = "submission_ledgers"
JOB = SweepJob.of(DATASET)


def add(installation, tenant, days, number=1):
    installation.change(
        "INSERT INTO nucleus.platform_submission_ledger (tenant_id, idempotency_key, created_at)"
        " SELECT %s, gen_random_uuid()::text, now() - make_interval(hours => 24 * %s) FROM generate_series(1, %s)",
        tenant.id,
        days,
        number,
    )


def left(installation, tenant):
    [(number,)] = installation.rows(
        "SELECT count(*) FROM nucleus.platform_submission_ledger WHERE tenant_id = %s", tenant.id
    )
    return number


def standing(installation, *tenants):
    for tenant in tenants:
        with installation.app() as app, app.operator().transaction(tenant.id) as cursor:
            request = ApprovalRequest(
                job=JOB,
                kind=Kind.STANDING,
                subject=None,
                max_items=50_000,
                lasts=timedelta(days=30),
                reason="daily",
            )
            approvals.approve(cursor, tenant.id, request)


def test_a_sweep_is_looked_at_and_then_applied(installation):
    """C, O1."""
    add(installation, AURORA, 31, 3)
    add(installation, AURORA, 29)
    told = installation.done("sweep", DATASET)
    assert (told["outcome"], told["backlog"]) == ("preflight", 3)
    assert left(installation, AURORA) == 4
    told = installation.done("sweep", DATASET, "--apply", "--reason", "looked at")
    assert (told["outcome"], told["reason"], told["backlog"]) == ("completed", "exhausted", 0)
    assert told["tables"]["platform_ledger"]["done"] == 3
    assert (told["ceiling"], told["inflow"]) == (50_000, 1)  # the one of 29 days
    assert set(told["health"]["after"]) == {"nucleus.crm_submission_ledger", "nucleus.platform_submission_ledger"}
    assert left(installation, AURORA) == 1
    shown = installation.call("sweep", DATASET, as_json=False).out
    assert "nothing was changed" in shown
    assert "platform_ledger" in shown
    [(actor, kind, subject)] = installation.rows(
        "SELECT actor, kind, subject FROM retention.audit_events WHERE kind LIKE 'sweep.%'"
    )
    assert (actor, kind, subject) == ("admin", "sweep.purged", f"{DATASET}/platform_ledger")


def test_a_sweep_that_nobody_knows_is_refused_with_those_that_there_are(installation):
    """G6."""
    answer = installation.call("sweep", "ledgers")
    assert (answer.code, answer.error) == (2, "RETENTION_SWEEP_UNKNOWN")
    assert "submission_ledgers" in answer.out
    answer = installation.call("approve", "sweep:ledgers", "--reason", "r")
    assert (answer.code, answer.error) == (2, "RETENTION_SWEEP_UNKNOWN")


def test_an_instant_in_the_future_can_only_be_looked_at(installation):
    """F13: never delete everything now."""
    add(installation, AURORA, 1)
    future = ("--as-of", "2099-01-01T00:00:00Z")
    assert installation.done("sweep", DATASET, *future)["backlog"] == 1
    answer = installation.call("sweep", DATASET, *future, "--apply")
    assert (answer.code, answer.error) == (3, "RETENTION_AS_OF_IN_FUTURE")
    assert left(installation, AURORA) == 1


def test_everyone_is_those_who_have_work_each_in_turn(installation):
    """L1, L4: from where the last pass stopped."""
    for tenant in (AURORA, BOREALIS):
        add(installation, tenant, 31, 2)
    add(installation, CASCADE, 29)
    looked = installation.done("sweep", DATASET, "--everyone", tenant=None)
    assert (looked["outcome"], len(looked["tenants"])) == ("preflight", 2)
    told = installation.done("sweep", DATASET, "--everyone", "--apply", "--reason", "cron", tenant=None)
    assert (told["outcome"], told["not_reached"]) == ("completed", 0)
    assert [left(installation, tenant) for tenant in (AURORA, BOREALIS, CASCADE)] == [0, 0, 1]
    with installation.app() as app:
        last = max(AURORA.id, BOREALIS.id)
        assert Passes(app=app, name=DATASET).last() == last
        for tenant in (AURORA, BOREALIS, CASCADE):
            add(installation, tenant, 31)
        turn = Passes(app=app, name=DATASET).due()
    everybody = sorted([AURORA.id, BOREALIS.id, CASCADE.id])
    at = everybody.index(last) + 1
    assert list(turn) == everybody[at:] + everybody[:at]


def test_everyone_and_one_tenant_exclude_each_other(installation):
    """F17."""
    assert installation.call("sweep", DATASET, "--everyone").code == 2
    assert installation.call("sweep", DATASET, tenant=None).code == 2


@pytest.fixture
def run(office):
    def one(*tenants, partition=None, **config):
        how = {"partition_key": str(partition.id)} if partition else {}
        if tenants:
            config["tenants"] = [str(tenant.id) for tenant in tenants]
        return defs.resolve_job_def(f"sweep_{DATASET}").execute_in_process(
            instance=office.instance,
            run_config={"ops": {f"{DATASET}_pass": {"config": config}}},
            raise_on_error=False,
            **how,
        )

    return one


def test_launched_without_a_change_a_run_counts_and_marks_nothing(installation, office, run):
    """D3."""
    add(installation, AURORA, 31)
    assert run(partition=AURORA).success
    assert left(installation, AURORA) == 1
    assert office.marked(DATASET) == set()


def test_a_schedules_run_applies_where_somebody_said_yes_and_says_why_not_elsewhere(installation, office, run):
    """D3, G4: no gate of archives is asked of a sweep."""
    for tenant in (AURORA, BOREALIS):
        add(installation, tenant, 31)
    standing(installation, AURORA)
    result = run(AURORA, BOREALIS, apply=True, approval="standing")
    assert result.success
    assert (left(installation, AURORA), left(installation, BOREALIS)) == (0, 1)
    assert office.marked(DATASET) == {AURORA.id}
    assert "retention approve sweep:submission_ledgers --standing" in office.log(result)
    [event] = office.instance.fetch_materializations(dg.AssetKey(DATASET), limit=1).records
    metadata = event.asset_materialization.metadata
    assert (metadata["ended"].value, metadata["backlog"].value) == (1, 0)
    assert "platform ledger" in metadata["by_table"].value
    assert "dead rows after" in metadata["tables_before_and_after"].value


def test_one_tenants_failure_neither_stops_nor_marks_the_others_and_is_red(installation, office, run):
    """L4, O1, D2: a broken row of one tenant."""
    for tenant in (AURORA, BOREALIS):
        add(installation, tenant, 31)
    standing(installation, AURORA, BOREALIS)
    installation.change(
        "CREATE FUNCTION nucleus.bad() RETURNS trigger LANGUAGE plpgsql AS"
        f" $$ BEGIN IF OLD.tenant_id = '{AURORA.id}' THEN RAISE EXCEPTION 'no'; END IF; RETURN OLD; END $$"
    )
    installation.change(
        "CREATE TRIGGER bad BEFORE DELETE ON nucleus.platform_submission_ledger FOR EACH ROW EXECUTE FUNCTION nucleus.bad()"
    )
    result = run(AURORA, BOREALIS, apply=True, approval="standing")
    assert not result.success
    assert "1 of 2 tenants did not get their work done: partial (RETENTION_INTERNAL) 1" in office.why(result)
    assert (left(installation, AURORA), left(installation, BOREALIS)) == (1, 0)
    assert office.marked(DATASET) == {BOREALIS.id}


def test_the_schedule_asks_for_those_who_have_work_and_between_its_hours_for_those_who_catch_up(installation, office):
    """L1, D1: who has none costs no run."""
    add(installation, AURORA, 31, 30)
    standing(installation, AURORA)
    schedule = defs.get_repository_def().get_schedule_def(f"{DATASET}_schedule")

    def tick(hour):
        moment = datetime.fromisoformat(f"2026-06-01T{hour:02}:00:00+00:00")
        context = dg.build_schedule_context(
            instance=office.instance, scheduled_execution_time=moment, resources={"product": ProductResource()}
        )
        asked = schedule.evaluate_tick(context).run_requests
        return [key for request in asked for key in request.run_config["ops"][f"{DATASET}_pass"]["config"]["tenants"]]

    assert tick(4) == []
    assert tick(3) == [AURORA.id]
    with installation.app() as app:
        passes = Passes(app=app, name=DATASET)
        approval = app.records().standing_approval(AURORA.id, JOB)
        done = passes.over(
            AURORA.id,
            run="first",
            apply=True,
            approval=approval,
            bounds=replace(passes.bounds, batch=5, batches=2, behind_after=1e9),
        )
        assert done.result.report.outcome == "work_remains"
    assert tick(4) == [AURORA.id]
