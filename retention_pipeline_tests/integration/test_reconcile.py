"""A run changes nothing without a person's yes, stops where it must, keeps its bounds, and says how it ended (W6, W7, W10, G4, G7, O1)."""

from dataclasses import replace
from itertools import count

import pytest

from retention_pipeline.errors import Code, RetentionError
from retention_pipeline.model.inventory import Inventory
from retention_pipeline.model.outcome import Outcome
from retention_pipeline.model.profile import Readiness
from retention_pipeline.model.work import Acknowledged
from retention_pipeline.stages.eligibility import stop_signals
from retention_pipeline.stages.reconcile import Bounds
from retention_pipeline.stages.world import Step
from retention_pipeline_tests.faulty import Around
from retention_pipeline_tests.seams import Seams
from retention_pipeline_tests.worlds import BRAKE, NOW

PATIENT = 10.0**9
MAY_CHANGE = {
    "preflights",
    "policy_observations",
    "eligible_sets",
    "eligible_items",
    "audit_events",
    "audit_unsealed",
    "run_outcomes",
}


def picture(bench, schema):
    """Every row of a schema with its version: equal, or something was written."""
    with bench.database.superuser() as connection:
        tables = connection.execute(
            "SELECT relname FROM pg_class WHERE relnamespace = %s::regnamespace AND relkind = 'r' ORDER BY 1", [schema]
        ).fetchall()
        return {
            table: connection.execute(
                f"SELECT coalesce(string_agg(t.xmin::text || t::text, ';' ORDER BY t::text), '') FROM {schema}.{table} AS t"
            ).fetchone()[0]
            for (table,) in tables
        }


def written(bench, call):
    """Which tables a call wrote to, of the source and of ours."""
    before = picture(bench, "nucleus"), picture(bench, "retention")
    answer = call()
    after = picture(bench, "nucleus"), picture(bench, "retention")
    assert before[0] == after[0]
    return answer, {table for table in before[1] if before[1][table] != after[1][table]}


# -- without a yes -----------------------------------------------------------------------------------------------------


def test_a_preflight_changes_nothing_in_source_or_store(bench):
    """W6: it records its own numbers and eligible set, and an audit event."""
    platform = bench.platform()
    instances = [platform.add() for _ in range(3)]
    platform.hold(instances[0])
    result, tables = written(bench, lambda: bench.reconcile(platform, apply=False))
    assert {"policy_observations", *tables} == MAY_CHANGE  # observed where they changed
    assert bench.store.kept == {}
    assert (result.report.outcome, result.report.reason) == (Outcome.PREFLIGHT, "preflight")
    assert (result.inventory.eligible, result.eligible.items, result.report.backlog) == (2, 2, 2)


def test_eligible_sets_of_long_ago_go_and_nothing_else_does(bench):
    """W6: a preflight an hour, for years, does not fill the database; every preflight's numbers stay."""
    platform = bench.platform()
    for _ in range(3):
        platform.add(contexts=0)
    for _ in range(8):
        bench.reconcile(platform, apply=False)
    ages = "UPDATE retention.eligible_sets SET at = at - make_interval(hours => %s) WHERE tenant_id = %s AND run <= %s"
    platform.run(ages, 24 * 7 + 1, platform.tenant, "run-7")
    sets, items, preflights = (
        f"SELECT count(*) FROM retention.{name} WHERE tenant_id = %s"
        for name in ("eligible_sets", "eligible_items", "preflights")
    )
    before = platform.value(preflights, platform.tenant)
    bench.reconcile(platform, apply=False)
    assert (platform.value(sets, platform.tenant), platform.value(items, platform.tenant)) == (4, 12)
    bench.reconcile(platform, apply=False)
    assert (platform.value(sets, platform.tenant), platform.value(items, platform.tenant)) == (3, 9)
    assert platform.value(preflights, platform.tenant) == before + 2


def test_an_apply_of_the_preflights_steps_alone_is_a_preflight(bench):
    """D1, W6."""
    platform = bench.platform()
    platform.add()
    steps = frozenset({Step.INVENTORY, Step.ELIGIBLE_SET})
    approval = bench.approve(platform)
    result, tables = written(bench, lambda: bench.reconcile(platform, steps=steps, approval=approval))
    assert (result.report.outcome, tables) == (Outcome.PREFLIGHT, MAY_CHANGE)


# -- stop signals ------------------------------------------------------------------------------------------------------


def blocked(bench, platform, code):
    approval = bench.approve(platform)
    result, tables = written(bench, lambda: bench.reconcile(platform, approval=approval))
    assert {"policy_observations", *tables} == MAY_CHANGE  # observed where they changed
    assert bench.store.kept == {}
    assert result.report.outcome is Outcome.BLOCKED
    assert (result.report.outcome.green, result.report.outcome.exit_code) == (False, 3)
    assert code in {signal.code for signal in result.signals}
    assert f"run.blocked {code}" in bench.audit_kinds(platform, result.preflight)


@pytest.mark.parametrize("codes", ["{}", "{WORKFLOW_ARCHIVE_STORE_DENIED}"])
def test_a_profile_that_is_not_ready_stops_the_run(bench, codes):
    """W10, A15: never probed, or probed and found wanting after it had been ready."""
    platform = bench.platform(ready=codes != "{}")
    platform.add()
    if codes != "{}":
        platform.run(
            "INSERT INTO retention.readiness_events (tenant_id, profile_generation, ready, codes) VALUES (%s, 1, false, %s)",
            platform.tenant,
            codes,
        )
    blocked(bench, platform, Code.PROFILE_NOT_READY)


def test_a_tenant_without_a_profile_is_blocked(bench):
    """W10."""
    platform = bench.platform()
    platform.run("DELETE FROM retention.readiness_events WHERE tenant_id = %s", platform.tenant)
    platform.run("DELETE FROM retention.profiles WHERE tenant_id = %s", platform.tenant)
    platform.add()
    blocked(bench, platform, Code.PROFILE_UNKNOWN)


def test_a_preflight_that_nobody_acknowledged_stops_the_first_run(bench):
    """G8."""
    platform = bench.platform(acknowledged=False)
    platform.add()
    blocked(bench, platform, Code.PREFLIGHT_UNACKNOWLEDGED)


def test_a_profile_of_another_tenant_stops_the_run(bench):
    """W10."""
    platform, other = bench.platform(), bench.platform()
    platform.add()
    mistaken = Around(bench.world.records)
    mistaken.profile = lambda _: bench.world.records.profile(other.tenant)
    result = bench.reconcile(platform, world=replace(bench.world, records=mistaken))
    assert (result.report.outcome, result.report.reason) == (Outcome.BLOCKED, Code.TENANT_MISMATCH)
    assert bench.store.kept == {}


def test_one_missing_epoch_more_than_was_acknowledged_stops_the_run(bench):
    """W10: exactly as many is fine."""
    platform = bench.platform(acknowledged=False)
    bench.acknowledge(platform, eligible=10, blocked=0, missing=2)
    platform.add()
    for _ in range(2):
        platform.add(epochs=())
    assert bench.reconcile(platform).report.outcome is Outcome.COMPLETED
    platform.add(epochs=())
    platform.add()
    bench.store.kept.clear()
    blocked(bench, platform, Code.MISSING_EPOCHS_UNACKNOWLEDGED)


def test_one_blocked_instance_more_than_was_acknowledged_stops_the_run_and_holds_do_not_count(bench):
    """W10: as many as were acknowledged, or 5 % of what is due, whichever is more."""
    platform = bench.platform(acknowledged=False)
    bench.acknowledge(platform, eligible=10, blocked=2, missing=0)
    for _ in range(2):
        platform.child("dead_letters", platform.add(), status="open")
    for _ in range(4):
        platform.hold(platform.add())
    platform.add()
    assert bench.reconcile(platform).report.outcome is Outcome.COMPLETED
    platform.child("executions", platform.add(), status="running")
    platform.add()
    bench.store.kept.clear()
    blocked(bench, platform, Code.BLOCKERS_UNACKNOWLEDGED)


def inventory(**numbers):
    given = {"total": 10_000, "due": 0, "blocked_due": 0, "eligible": 0, "missing_epoch": 0, **numbers}
    return Inventory(
        tenant="t",
        as_of=NOW,
        total=given["total"],
        states={},
        dispositions={"eligible": given["eligible"], "missing_epoch": given["missing_epoch"]},
        blockers={},
        due=given["due"],
        blocked_due=given["blocked_due"],
    )


@pytest.mark.parametrize(
    ("numbers", "code"),
    [
        ({}, None),
        ({"due": 100, "blocked_due": 5}, None),
        ({"due": 100, "blocked_due": 6}, Code.BLOCKERS_UNACKNOWLEDGED),
        ({"due": 99, "blocked_due": 5}, Code.BLOCKERS_UNACKNOWLEDGED),
        ({"due": 20, "blocked_due": 1}, None),
        ({"due": 19, "blocked_due": 1}, Code.BLOCKERS_UNACKNOWLEDGED),
        ({"missing_epoch": 1}, Code.MISSING_EPOCHS_UNACKNOWLEDGED),
        ({"total": 1_000, "eligible": 100}, None),
        ({"total": 1_000, "eligible": 101}, Code.BRAKE),
        ({"total": 50_000, "eligible": 5_000}, None),
        ({"total": 50_000, "eligible": 5_001}, Code.BRAKE),
    ],
)
def test_each_signal_has_an_exact_boundary(numbers, code):
    """W10, G8: nothing acknowledged but zeros."""
    zeros = Acknowledged(preflight="p", total=0, eligible=0, due=0, blocked_due=0, missing_epochs=0)
    signals = stop_signals(inventory(**numbers), Readiness(ready=True, codes=()), zeros, BRAKE)
    assert [signal.code for signal in signals] == ([code] if code else [])


# -- bounds ------------------------------------------------------------------------------------------------------------


def test_a_run_takes_no_more_than_its_batches_and_the_next_one_goes_on(bench):
    """W7."""
    platform = bench.platform()
    for _ in range(8):
        platform.add(contexts=1)
    bounds = Bounds(batches=2, batch=3, behind_after=PATIENT)
    first = bench.reconcile(platform, bounds=bounds).report
    assert (first.counts.deleted, first.backlog, first.outcome) == (6, 2, Outcome.WORK_REMAINS)
    assert (first.reason, first.outcome.exit_code, first.forecast_runs) == ("batch_bound", 0, 1)
    second = bench.reconcile(platform, bounds=bounds).report
    assert (second.counts.deleted, second.backlog, second.outcome, second.reason) == (
        2,
        0,
        Outcome.COMPLETED,
        "exhausted",
    )


def test_a_run_that_handles_exactly_its_bound_is_completed(bench):
    """W7, O1: no false word about a bound that kept nothing from being done."""
    platform = bench.platform()
    for _ in range(4):
        platform.add(contexts=1)
    report = bench.reconcile(platform, bounds=Bounds(batches=2, batch=2)).report
    assert (report.counts.deleted, report.outcome, report.reason) == (4, Outcome.COMPLETED, "exhausted")


def test_a_short_batch_does_not_use_up_a_whole_ones_budget(bench):
    """W7: what is counted is instances, whether they are begun or resumed."""
    platform = bench.platform()
    for _ in range(2):
        platform.add(contexts=1)
    bench.reconcile(platform, steps=frozenset({Step.ENCRYPTED_MANIFESTS}))
    for _ in range(2):
        platform.add(contexts=1)
    report = bench.reconcile(platform, bounds=Bounds(batches=1, batch=4)).report
    assert (report.counts.deleted, report.counts.archived, report.outcome) == (4, 2, Outcome.COMPLETED)


def test_a_run_takes_no_new_work_after_its_time(bench):
    """W7: the batch in hand is finished."""
    platform = bench.platform()
    for _ in range(6):
        platform.add(contexts=1)
    ticks = count(step=10)
    world = replace(bench.world, stopwatch=lambda: float(next(ticks)))
    bounds = Bounds(batch=2, seconds=100.0, behind_after=PATIENT)
    report = bench.reconcile(platform, bounds=bounds, world=world).report
    assert 0 < report.counts.deleted < 6
    assert (report.reason, report.outcome) == ("time_bound", Outcome.WORK_REMAINS)
    assert report.backlog == 6 - report.counts.deleted


def test_an_approval_bounds_how_many_may_go(bench):
    """G4."""
    platform = bench.platform()
    for _ in range(3):
        platform.add(contexts=1)
    approval = bench.approve(platform, items=2)
    report = bench.reconcile(platform, approval=approval, bounds=Bounds(behind_after=PATIENT)).report
    assert (report.counts.deleted, report.reason, report.backlog) == (2, "approval_bound", 1)
    assert report.outcome is Outcome.WORK_REMAINS


def test_steps_that_are_run_one_at_a_time_never_starve_what_stands_behind_their_own_work(bench):
    """D1, W7: what is stored is not sealed again and again while others wait."""
    platform = bench.platform()
    for _ in range(4):
        platform.add(contexts=1)
    bounds = Bounds(batches=1, batch=2)
    for step, states in (
        (Step.ENCRYPTED_MANIFESTS, {"stored": 2}),
        (Step.ENCRYPTED_MANIFESTS, {"stored": 4}),
        (Step.VERIFIED_OBJECTS, {"stored": 2, "verified": 2}),
        (Step.VERIFIED_OBJECTS, {"verified": 4}),
        (Step.DELETIONS, {"verified": 2, "source_deleted": 2}),
        (Step.DELETIONS, {"source_deleted": 4}),
    ):
        bench.reconcile(platform, steps=frozenset({step}), bounds=bounds)
        assert bench.states(platform) == states


# -- outcomes ----------------------------------------------------------------------------------------------------------


def test_work_that_grows_is_behind(bench):
    """O1: more became due since the last run than this one handled."""
    platform = bench.platform()
    bounds = Bounds(batches=1, batch=1, behind_after=PATIENT)
    for _ in range(3):
        platform.add(contexts=1)
    assert bench.reconcile(platform, bounds=bounds).report.outcome is Outcome.WORK_REMAINS  # 2 are left
    platform.add(contexts=1)
    assert bench.reconcile(platform, bounds=bounds).report.outcome is Outcome.WORK_REMAINS  # one came, one went
    for _ in range(2):
        platform.add(contexts=1)
    report = bench.reconcile(platform, bounds=bounds).report
    assert (report.outcome, report.backlog, report.outcome.exit_code) == (Outcome.BEHIND, 3, 6)
    bench.reconcile(platform, apply=False)  # a preflight in between is no pass
    assert bench.reconcile(platform, bounds=bounds).report.outcome is Outcome.WORK_REMAINS


def test_work_that_is_overdue_for_too_long_is_behind(bench):
    """O1: by one second."""
    platform = bench.platform()
    for _ in range(2):
        platform.add(ended="2026-05-01 12:00:00+00", contexts=1)  # due for a day
    at = Bounds(batches=1, batch=1, behind_after=24 * 3600.0)
    platform.add(ended="2026-05-01 12:00:00+00", contexts=1)
    assert bench.reconcile(platform, bounds=at).report.outcome is Outcome.WORK_REMAINS
    report = bench.reconcile(platform, bounds=replace(at, behind_after=24 * 3600.0 - 1)).report
    assert (report.outcome, report.oldest_overdue_seconds) == (Outcome.BEHIND, 24 * 3600.0)


def test_nothing_due_is_completed_and_every_outcome_is_recorded(bench):
    """O1."""
    platform = bench.platform()
    report = bench.reconcile(platform).report
    assert (report.outcome, report.reason, report.forecast_runs) == (Outcome.COMPLETED, "exhausted", 0)
    recorded = platform.connection.execute(
        "SELECT run, outcome FROM retention.run_outcomes WHERE tenant_id = %s", [platform.tenant]
    ).fetchall()
    assert recorded == [(report.run, "completed")]


@pytest.mark.parametrize(
    ("outcome", "green", "code"),
    [
        ("completed", True, 0),
        ("work_remains", True, 0),
        ("skipped", True, 0),
        ("preflight", True, 0),
        ("failed", False, 1),
        ("blocked", False, 3),
        ("behind", False, 6),
        ("partial", False, 7),
    ],
)
def test_only_four_outcomes_are_green(outcome, green, code):
    """O1."""
    assert (Outcome(outcome).green, Outcome(outcome).exit_code) == (green, code)


def test_a_statement_timeout_is_a_failure_and_never_green(bench):
    """F4: nothing is deleted, and the run says so, with an event of its own."""
    platform = bench.platform()
    for _ in range(5):
        platform.add(contexts=1)
    with bench.database.superuser() as owner:
        owner.execute(
            "CREATE FUNCTION nucleus.slow() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN PERFORM pg_sleep(2); RETURN OLD; END$$"
        )
        owner.execute(
            "CREATE TRIGGER slow BEFORE DELETE ON nucleus.workflow_instances FOR EACH ROW EXECUTE FUNCTION nucleus.slow()"
        )
    impatient = replace(bench, statement_ms=300)
    report = impatient.reconcile(platform).report
    assert (report.outcome, report.reason, report.counts.deleted) == (Outcome.FAILED, Code.DATABASE_TIMEOUT, 0)
    assert report.backlog == 5


# -- approvals ---------------------------------------------------------------------------------------------------------


def refused(bench, platform, approval):
    """The run is refused, changes nothing, and holds nothing."""
    with pytest.raises(RetentionError) as refusal:
        bench.reconcile(platform, approval=approval)
    assert refusal.value.code is Code.APPROVAL_INVALID
    assert bench.states(platform) == {}
    assert bench.store.kept == {}
    assert bench.reconcile(platform).report.outcome is Outcome.COMPLETED  # the lease is free again


def test_a_single_use_approval_is_good_for_one_run(bench):
    """G4."""
    platform = bench.platform()
    approval = bench.approve(platform)
    bench.reconcile(platform, approval=approval)
    platform.add()
    refused(bench, platform, approval)


def test_a_standing_approval_is_good_for_many_runs(bench):
    """G4."""
    platform = bench.platform()
    approval = bench.approve(platform, kind="standing")
    for _ in range(2):
        platform.add()
        assert bench.reconcile(platform, approval=approval).report.counts.deleted == 1
    assert bench.world.records.standing_approval(platform.tenant, "reconcile") == approval


def test_an_approval_that_expired_by_a_microsecond_is_refused(bench):
    """G4: bounded in time."""
    platform = bench.platform()
    platform.add()
    approval = bench.approve(platform, kind="standing")
    platform.run(
        "UPDATE retention.approvals SET at = now() - interval '1 day', expires_at = clock_timestamp() - interval '1 us'"
        " WHERE id = %s",
        approval,
    )
    assert bench.world.records.standing_approval(platform.tenant, "reconcile") is None
    refused(bench, platform, approval)


def test_an_approval_of_another_tenant_is_unknown(bench):
    """G4."""
    platform, other = bench.platform(), bench.platform()
    platform.add()
    refused(bench, platform, bench.approve(other))


def test_an_approval_for_another_job_is_refused(bench):
    """G4."""
    platform = bench.platform()
    instance = platform.add()
    refused(bench, platform, bench.approve(platform, job="archive", subject=instance, items=1))


@pytest.mark.parametrize("approval", ["0b0ae6d0-6a08-4b0e-9c53-6d1c6d0e9f11", "no id", "' OR true --"])
def test_an_approval_that_nobody_made_is_refused(bench, approval):
    """G4."""
    platform = bench.platform()
    platform.add()
    refused(bench, platform, approval)


def test_an_approval_ends_with_the_permission_of_who_made_it(bench):
    """G3, G4."""
    platform = bench.platform()
    platform.add()
    approval = bench.approve(platform, kind="standing")
    platform.run(
        "INSERT INTO retention.grant_events (tenant_id, principal, permission, action)"
        " VALUES ('*', 'postgres', 'workflow_retention:reconcile', 'remove')"
    )
    assert bench.world.records.standing_approval(platform.tenant, "reconcile") is None
    refused(bench, platform, approval)


def test_nothing_is_applied_without_an_approval(bench):
    """G4."""
    platform = bench.platform()
    platform.add()
    with pytest.raises(RetentionError) as refusal:
        bench.reconcile(platform, approval="")
    assert refusal.value.code in {Code.APPROVAL_REQUIRED, Code.APPROVAL_INVALID}
    assert bench.states(platform) == {}


# -- leases ------------------------------------------------------------------------------------------------------------


def lease(platform, until):
    platform.run(
        "INSERT INTO retention.leases (tenant_id, job, holder, fence, expires_at) VALUES (%s, 'reconcile', 'other', 7, %s)",
        platform.tenant,
        until,
    )


def test_a_second_run_is_skipped_while_the_first_one_lasts(bench):
    """G7: it says so, is green, uses no approval and changes nothing."""
    platform = bench.platform()
    platform.add()
    lease(platform, "infinity")
    approval = bench.approve(platform)
    result, tables = written(bench, lambda: bench.reconcile(platform, approval=approval))
    assert {"policy_observations", *tables} == MAY_CHANGE  # observed where they changed
    assert (result.report.outcome, result.report.reason) == (Outcome.SKIPPED, Code.RUN_OVERLAPS)
    assert result.report.outcome.exit_code == 0


def test_a_lease_that_has_ended_is_taken_over_with_a_new_fence(bench):
    """G7."""
    platform = bench.platform()
    platform.add()
    lease(platform, "-infinity")
    assert bench.reconcile(platform).report.outcome is Outcome.COMPLETED
    assert platform.value("SELECT fence FROM retention.leases WHERE tenant_id = %s", platform.tenant) == 8


def test_a_run_that_lost_its_lease_stops_and_the_next_one_goes_on(bench):
    """G7: the fence tells it."""
    platform = bench.platform()
    for _ in range(2):
        platform.add(contexts=1)

    def take():
        platform.run(
            "UPDATE retention.leases SET holder = 'other', fence = fence + 1 WHERE tenant_id = %s", platform.tenant
        )

    world = replace(bench.world, records=Seams(bench.world.records, after={"mark_stored": take}))
    report = bench.reconcile(platform, bounds=Bounds(batch=1), world=world).report
    assert (report.outcome, report.reason, report.counts.deleted) == (Outcome.FAILED, Code.LEASE_LOST, 1)
    bench.end_leases(platform)
    assert bench.reconcile(platform).report.outcome is Outcome.COMPLETED
    assert bench.states(platform) == {"source_deleted": 2}


def test_a_verification_that_is_too_old_is_made_again_before_the_deletion(bench):
    """A6, A7: also where the deletions are run alone."""
    platform = bench.platform()
    platform.add()
    bench.reconcile(platform, steps=frozenset({Step.ENCRYPTED_MANIFESTS, Step.VERIFIED_OBJECTS}))
    platform.run("UPDATE retention.attempts SET verified_at = verified_at - interval '2 hours'")
    again = []
    verified = replace(
        bench.world, records=Seams(bench.world.records, after={"mark_verified": lambda: again.append(1)})
    )
    bench.reconcile(platform, steps=frozenset({Step.DELETIONS}), world=verified)
    assert (bench.states(platform), again) == ({"source_deleted": 1}, [1])


def test_a_refusal_in_the_middle_of_a_run_is_recorded_as_its_end(bench):
    """O1, F19: a column that is added meanwhile."""
    platform = bench.platform()
    instance = platform.add()

    def add():
        platform.run("ALTER TABLE nucleus.workflow_contexts ADD COLUMN verdict text NOT NULL DEFAULT 'guilty'")

    world = replace(bench.world, source=Seams(bench.world.source, before={"swap": add}))
    report = bench.reconcile(platform, world=world).report
    assert (report.outcome, report.reason) == (Outcome.BLOCKED, Code.CATALOG_INVALID)
    assert platform.exists(instance)
    assert platform.value("SELECT outcome FROM retention.run_outcomes ORDER BY id DESC LIMIT 1") == "blocked"
