"""One instance on request: due, unblocked, and with its holds bound to the archive before the row goes (SPEC W8, A9, G4)."""

from dataclasses import replace

import pytest

from retention_pipeline.errors import Code, RetentionError
from retention_pipeline.model.outcome import Outcome
from retention_pipeline.stages.explicit import ExplicitArchive
from retention_pipeline_tests.rows import new_id
from retention_pipeline_tests.seams import EXPORTED, STORED, VERIFIED, acting
from retention_pipeline_tests.worlds import NOW


def bound(platform, instance):
    """The matters that are bound to the instance's archive."""
    found = platform.connection.execute(
        "SELECT h.matter FROM retention.hold_bindings AS b JOIN retention.hold_events AS h ON h.id = b.hold_event_id"
        " JOIN retention.attempts AS a ON a.id = b.attempt_id WHERE a.instance_id = %s AND a.state = 'source_deleted'"
        " ORDER BY 1",
        [instance],
    ).fetchall()
    return [row[0] for row in found]


def explicit(bench, platform, instance, *, world=None, approval=None, as_of=NOW):
    bench.runs += 1
    return ExplicitArchive(
        world=world or bench.world,
        tenant=platform.tenant,
        instance=instance,
        run=f"explicit-{bench.runs}",
        apply=True,
        approval=approval or bench.approve(platform, job="archive", subject=instance),
        as_of=as_of,
    )()


def refused(bench, platform, instance, code, **how):
    before = bench.rows(platform, instance)
    objects = len(bench.store.kept)
    with pytest.raises(RetentionError) as refusal:
        explicit(bench, platform, instance, **how)
    assert refusal.value.code is code
    assert bench.rows(platform, instance) == before
    assert (bench.states(platform), len(bench.store.kept)) == ({}, objects)


def test_without_apply_it_is_only_looked_at(shared):
    """W8."""
    platform = shared.platform()
    instance = platform.add()
    platform.hold(instance)
    before = shared.rows(platform, instance)
    result = shared.explicit(platform, instance, apply=False)
    assert (result.outcome, result.go, result.held) == (Outcome.PREFLIGHT, True, True)
    assert shared.rows(platform, instance) == before
    assert shared.states(platform) == {}


def test_a_due_instance_goes_on_request_and_no_other_does(shared):
    """W8: without any preflight of the tenant; a person named it."""
    platform = shared.platform(acknowledged=False)
    instance, other = platform.add(), platform.add()
    result = shared.explicit(platform, instance)
    assert (result.outcome, result.counts.deleted) == (Outcome.COMPLETED, 1)
    assert (platform.exists(instance), platform.exists(other)) == (False, True)


def test_every_active_hold_is_bound_before_the_row_goes_and_released_ones_are_not(shared):
    """A9."""
    platform = shared.platform()
    instance = platform.add()
    for matter in ("a", "b", "c"):
        platform.hold(instance, matter)
    platform.hold(instance, "b", "release")
    assert shared.explicit(platform, instance).outcome is Outcome.COMPLETED
    assert bound(platform, instance) == ["a", "c"]


@pytest.mark.parametrize("moment", [EXPORTED, STORED, VERIFIED])
def test_a_hold_that_comes_during_the_archive_is_bound_too(shared, moment):
    """A9, F5."""
    platform = shared.platform()
    instance = platform.add()
    world = acting(shared.world, moment, lambda: platform.hold(instance, "late"))
    assert explicit(shared, platform, instance, world=world).outcome is Outcome.COMPLETED
    assert bound(platform, instance) == ["late"]


def test_a_hold_that_is_released_during_the_archive_is_not_bound(shared):
    """A9."""
    platform = shared.platform()
    instance = platform.add()
    platform.hold(instance, "a")
    world = acting(shared.world, VERIFIED, lambda: platform.hold(instance, "a", "release"))
    assert explicit(shared, platform, instance, world=world).outcome is Outcome.COMPLETED
    assert bound(platform, instance) == []


NOT_DUE = {
    "not expired": {"ended": "2026-05-31Z"},
    "without an epoch": {"epochs": ()},
    "running": {"state": "running", "epochs": ()},
    "reopened": {"state": "running", "epochs": (("completed", "2026-01-01Z"),)},
    "ended at infinity": {"ended": "infinity"},
}


@pytest.mark.parametrize("kind", NOT_DUE)
def test_what_is_not_due_is_refused(shared, kind):
    """W8, W2."""
    platform = shared.platform()
    refused(shared, platform, platform.add(**NOT_DUE[kind]), Code.NOT_ELIGIBLE)


@pytest.mark.parametrize(("days", "own"), [(0, None), (None, None), (30, 0), (30, "NaN")])
def test_unlimited_retention_never_expires(bench, days, own):
    """W8: nor does a period that is none; a hold changes nothing about that."""
    platform = bench.platform(days=days)
    instance = platform.add()
    platform.run("ALTER TABLE nucleus.workflows DROP CONSTRAINT workflows_retention_days_whole")
    platform.run("UPDATE nucleus.workflows SET retention_days = %s", own)
    platform.hold(instance)
    refused(bench, platform, instance, Code.NOT_ELIGIBLE)


BLOCKED = {
    "recovery": lambda p, i: p.child("dead_letters", i, status="resolved"),
    "request": lambda p, i: p.child("transition_requests", i, status="running"),
    "execution": lambda p, i: p.child("executions", i, status="queued"),
    "trigger": lambda p, i: p.occurrence_target(i, "pending"),
    "artifact": lambda p, i: p.child("artifact_operations", i, kind="k", status="open"),
    "foreign row": lambda p, i: p.child("contexts", i, tenant=new_id(), name="foreign"),
}


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("blocker", BLOCKED)
def test_open_work_blocks_this_path_too(shared, blocker, held):
    """W8, A2: a hold beside it opens nothing."""
    platform = shared.platform()
    instance = platform.add()
    BLOCKED[blocker](platform, instance)
    if held:
        platform.hold(instance)
    refused(shared, platform, instance, Code.NOT_ELIGIBLE)


@pytest.mark.parametrize("blocker", BLOCKED)
def test_open_work_that_begins_during_the_archive_keeps_the_row(shared, blocker):
    """W8, A7."""
    platform = shared.platform()
    instance = platform.add()
    platform.hold(instance)
    changed = []

    def begin():
        BLOCKED[blocker](platform, instance)
        changed.append(shared.rows(platform, instance))

    result = explicit(shared, platform, instance, world=acting(shared.world, VERIFIED, begin))
    assert not result.outcome.green
    assert result.reason == (Code.FOREIGN_ROW if blocker == "foreign row" else Code.NOT_ELIGIBLE)
    assert shared.rows(platform, instance) == changed[0]
    assert bound(platform, instance) == []


def test_a_profile_that_is_not_ready_is_refused(shared):
    """W8."""
    platform = shared.platform(ready=False)
    refused(shared, platform, platform.add(), Code.PROFILE_NOT_READY)


def test_an_approval_for_another_instance_is_refused(shared):
    """G4."""
    platform = shared.platform()
    instance, other = platform.add(), platform.add()
    approval = shared.approve(platform, job="archive", subject=other)
    refused(shared, platform, instance, Code.APPROVAL_INVALID, approval=approval)


def test_an_approval_for_the_periodic_run_is_refused(shared):
    """G4."""
    platform = shared.platform()
    refused(shared, platform, platform.add(), Code.APPROVAL_INVALID, approval=shared.approve(platform))


def test_an_instant_in_the_future_can_only_be_looked_at(shared):
    """F13."""
    platform = shared.platform()
    refused(shared, platform, platform.add(), Code.AS_OF_IN_FUTURE, as_of=NOW.replace(year=NOW.year + 10))


def test_an_instance_of_another_tenant_is_unknown(shared):
    """G3."""
    platform, other = shared.platform(), shared.platform()
    refused(shared, platform, other.add(), Code.INSTANCE_UNKNOWN)


def test_a_second_archive_on_request_is_skipped_while_the_first_lasts(shared):
    """G7."""
    platform = shared.platform()
    instance = platform.add()
    platform.run(
        "INSERT INTO retention.leases (tenant_id, job, holder, fence, expires_at) VALUES (%s, 'archive', 'o', 1, 'infinity')",
        platform.tenant,
    )
    result = shared.explicit(platform, instance)
    assert (result.outcome, result.reason) == (Outcome.SKIPPED, Code.RUN_OVERLAPS)
    assert platform.exists(instance)


def test_a_refusal_in_the_middle_says_how_it_ended_and_lets_go_of_everything(bench):
    """O1, F19."""
    platform = bench.platform()
    instance = platform.add()
    add = "ALTER TABLE nucleus.workflow_contexts ADD COLUMN verdict text NOT NULL DEFAULT 'guilty'"
    result = explicit(bench, platform, instance, world=acting(bench.world, VERIFIED, lambda: platform.run(add)))
    assert (result.outcome, result.reason) == (Outcome.BLOCKED, Code.CATALOG_INVALID)
    assert platform.exists(instance)
    again = replace(bench)
    for _ in range(2):  # the old archive does not know the new column
        explicit(again, platform, instance)
    assert not platform.exists(instance)
