"""Only the unchanged and still eligible instance goes, whenever it is touched (SPEC A7, W10, F3)."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from retention_pipeline.errors import Code
from retention_pipeline.model.outcome import Outcome
from retention_pipeline_tests.rows import new_id
from retention_pipeline_tests.seams import MOMENTS, VERIFIED, acting

MICROSECONDS = "2026-01-01 09:30:00.345001+00"


def subject(bench):
    """A tenant and one due instance with a row in every kind of table."""
    platform = bench.platform()
    instance = platform.add(ended=MICROSECONDS)
    target = platform.occurrence_target(instance, "completed")
    platform.run(
        "INSERT INTO nucleus.workflow_trigger_deliveries (id, tenant_id, target_id, status, at)"
        " VALUES (gen_random_uuid(), %s, %s, 'delivered', %s)",
        platform.tenant,
        target,
        MICROSECONDS,
    )
    return platform, instance


def reopen(platform, instance):
    platform.run("UPDATE nucleus.workflow_instances SET state = 'running' WHERE id = %s", instance)
    platform.run("UPDATE nucleus.workflow_instances SET state = 'completed' WHERE id = %s", instance)
    platform.run(
        "INSERT INTO nucleus.workflow_terminal_epochs VALUES (%s, 2, %s, 'completed', '2026-02-01Z')",
        instance,
        platform.tenant,
    )


CHANGES = {
    "root column": lambda p, i: p.run("UPDATE nucleus.workflow_instances SET title = 'another' WHERE id = %s", i),
    "root column, same value": lambda p, i: p.run(
        "UPDATE nucleus.workflow_instances SET title = title WHERE id = %s", i
    ),
    "child by a microsecond": lambda p, i: p.run(
        "UPDATE nucleus.workflow_contexts SET created_at = created_at + interval '1 microsecond'"
        " WHERE instance_id = %s AND name = 'c0'",
        i,
    ),
    "child added": lambda p, i: p.child("contexts", i, name="late"),
    "first child of a table": lambda p, i: p.child("artifact_operations", i, kind="k", status="done"),
    "child dropped": lambda p, i: p.run(
        "DELETE FROM nucleus.workflow_contexts WHERE instance_id = %s AND name = 'c0'", i
    ),
    "grandchild": lambda p, i: p.run(
        "UPDATE nucleus.workflow_action_checkpoints SET attachment = '\\x00' FROM nucleus.workflow_executions AS e"
        " WHERE e.id = execution_id AND e.instance_id = %s",
        i,
    ),
    "grandchild added": lambda p, i: p.run(
        "INSERT INTO nucleus.workflow_action_checkpoints (tenant_id, execution_id, step)"
        " SELECT tenant_id, id, 'late' FROM nucleus.workflow_executions WHERE instance_id = %s",
        i,
    ),
    "definition": lambda p, _: p.run(
        "UPDATE nucleus.workflows SET definition = '{\"steps\": [1, 2]}' WHERE id = %s", p.workflow
    ),
    "occurrence": lambda p, _: p.run(
        "UPDATE nucleus.workflow_trigger_occurrences SET event = '{\"a\": 1}' WHERE tenant_id = %s", p.tenant
    ),
    "reopened": reopen,
}


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_instance_stays_and_the_next_run_archives_it_anew(shared, change, moment):
    """A7, F3."""
    platform, instance = subject(shared)
    changed = []

    def act():
        CHANGES[change](platform, instance)
        changed.append(shared.rows(platform, instance))

    result = shared.reconcile(platform, world=acting(shared.world, moment, act))
    assert result.report.counts.deleted == 0
    assert result.report.outcome is Outcome.PARTIAL
    assert result.report.counts.failures == {Code.SOURCE_CHANGED: 1}
    assert shared.rows(platform, instance) == changed[0]
    assert shared.states(platform) == {"superseded": 1}
    assert shared.audit_kinds(platform, instance) == [
        f"archive.superseded {Code.SOURCE_CHANGED}",
        f"instance.set_aside {Code.SOURCE_CHANGED}",
    ]
    waiting = shared.reconcile(platform)  # the back-off: nothing is uploaded again at once
    assert waiting.report.counts.archived == 0
    shared.forget_back_offs(platform)
    again = shared.reconcile(platform)
    assert again.report.outcome is Outcome.COMPLETED
    assert not platform.exists(instance)
    assert shared.states(platform) == {"superseded": 1, "source_deleted": 1}


PROTECTIONS = {
    "hold": (
        lambda p, i, _: p.hold(i),
        lambda p, i, _: p.hold(i, action="release"),
        Code.NOT_ELIGIBLE,
    ),
    "policy set to 0": (
        lambda p, *_: p.run("UPDATE nucleus.workflows SET retention_days = 0 WHERE id = %s", p.workflow),
        lambda p, *_: p.run("UPDATE nucleus.workflows SET retention_days = NULL WHERE id = %s", p.workflow),
        Code.NOT_ELIGIBLE,
    ),
    "tenant's default set to 0": (
        lambda p, *_: p.run("UPDATE nucleus.tenants SET default_retention_days = 0 WHERE id = %s", p.tenant),
        lambda p, *_: p.run("UPDATE nucleus.tenants SET default_retention_days = 30 WHERE id = %s", p.tenant),
        Code.NOT_ELIGIBLE,
    ),
    "foreign child": (
        lambda p, i, other: p.child("contexts", i, tenant=other, name="foreign"),
        lambda p, _, other: p.run("DELETE FROM nucleus.workflow_contexts WHERE tenant_id = %s", other),
        Code.FOREIGN_ROW,
    ),
    "foreign grandchild": (
        lambda p, i, other: p.run(
            "INSERT INTO nucleus.workflow_action_checkpoints (tenant_id, execution_id, step)"
            " SELECT %s, id, 'foreign' FROM nucleus.workflow_executions WHERE instance_id = %s",
            other,
            i,
        ),
        lambda p, _, other: p.run("DELETE FROM nucleus.workflow_action_checkpoints WHERE tenant_id = %s", other),
        Code.FOREIGN_ROW,
    ),
}


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("protection", PROTECTIONS)
def test_what_is_protected_meanwhile_stays_and_goes_with_the_same_archive_later(shared, protection, moment):
    """A7, A2, F5: the archive that was proven is used; nothing is uploaded again."""
    platform, instance = subject(shared)
    protect, undo, code = PROTECTIONS[protection]
    other = new_id()
    seen = []

    def act():
        protect(platform, instance, other)
        seen.append(shared.rows(platform, instance))

    result = shared.reconcile(platform, world=acting(shared.world, moment, act))
    assert result.report.counts.deleted == 0
    assert result.report.counts.superseded == 0
    failed = {code: 1} if code is Code.FOREIGN_ROW else {}
    assert result.report.counts.failures == failed
    assert shared.rows(platform, instance) == seen[0]
    assert shared.states(platform) == {"verified": 1}
    assert shared.audit_kinds(platform, instance) == [f"instance.set_aside {code}"]
    undo(platform, instance, other)
    shared.forget_back_offs(platform)
    again = shared.reconcile(platform)
    assert (again.report.outcome, again.report.counts.archived) == (Outcome.COMPLETED, 0)
    assert not platform.exists(instance)
    assert shared.states(platform) == {"source_deleted": 1}


def test_an_instance_that_runs_again_stays_and_its_old_archive_is_superseded_by_its_next_end(shared):
    """W2, A7."""
    platform, instance = subject(shared)
    run = "UPDATE nucleus.workflow_instances SET state = 'running' WHERE id = %s"
    result = shared.reconcile(platform, world=acting(shared.world, VERIFIED, lambda: platform.run(run, instance)))
    assert (result.report.counts.deleted, shared.states(platform)) == (0, {"verified": 1})
    shared.forget_back_offs(platform)
    assert shared.reconcile(platform).report.counts.deleted == 0
    assert platform.exists(instance)
    reopen(platform, instance)
    shared.forget_back_offs(platform)
    assert shared.reconcile(platform).report.counts.failures == {Code.SOURCE_CHANGED: 1}
    shared.forget_back_offs(platform)
    assert shared.reconcile(platform).report.outcome is Outcome.COMPLETED
    assert shared.states(platform) == {"superseded": 1, "source_deleted": 1}


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_row_that_was_locked_and_not_changed_goes(shared, moment):
    """F3: locks, other people's foreign keys and maintenance are no changes."""
    platform, instance = subject(shared)

    def touch():
        for lock in ("FOR KEY SHARE", "FOR UPDATE"):
            for table in ("workflow_instances WHERE id", "workflow_contexts WHERE instance_id"):
                platform.run(f"SELECT FROM nucleus.{table} = %s {lock}", instance)
        platform.run("UPDATE nucleus.workflows SET definition = definition WHERE id = %s", platform.workflow)
        platform.run("VACUUM FREEZE nucleus.workflow_instances, nucleus.workflow_contexts")

    result = shared.reconcile(platform, world=acting(shared.world, moment, touch))
    assert (result.report.outcome, result.report.counts.superseded) == (Outcome.COMPLETED, 0)
    assert not platform.exists(instance)


UNCOMMITTED = {
    "child": "UPDATE nucleus.workflow_contexts SET payload = '2' WHERE instance_id = %s AND name = 'c0'",
    "parent of others": "UPDATE nucleus.workflow_executions SET log = 'y' WHERE instance_id = %s",
    "grandchild": (
        "UPDATE nucleus.workflow_action_checkpoints SET step = 'y' FROM nucleus.workflow_executions AS e"
        " WHERE e.id = execution_id AND e.instance_id = %s"
    ),
    "grandchild added": (
        "INSERT INTO nucleus.workflow_action_checkpoints (tenant_id, execution_id, step)"
        " SELECT tenant_id, id, 'late' FROM nucleus.workflow_executions WHERE instance_id = %s"
    ),
    "grandchild dropped": (
        "DELETE FROM nucleus.workflow_action_checkpoints USING nucleus.workflow_executions AS e"
        " WHERE e.id = execution_id AND e.instance_id = %s"
    ),
}


@pytest.mark.parametrize("statement", UNCOMMITTED)
def test_a_change_that_commits_while_the_swap_waits_for_it_is_noticed(shared, statement):
    """A7: it is in no fingerprint that anybody could read beforehand."""
    platform, instance = subject(shared)
    with shared.database.superuser() as writer, ThreadPoolExecutor(1) as pool:
        committed = []

        def begin():
            writer.execute("SET session_replication_role = 'origin'")
            writer.execute("BEGIN")
            writer.execute("SELECT set_config('nucleus.tenant_id', %s, true)", [platform.tenant])
            writer.execute(UNCOMMITTED[statement], [instance])
            committed.append(pool.submit(commit_when_awaited, shared, writer))

        result = shared.reconcile(platform, world=acting(shared.world, VERIFIED, begin))
        assert committed[0].result() == "awaited"
    assert result.report.counts.failures == {Code.SOURCE_CHANGED: 1}
    assert shared.states(platform) == {"superseded": 1}
    assert platform.exists(instance)
    shared.forget_back_offs(platform)
    assert shared.reconcile(platform).report.outcome is Outcome.COMPLETED
    assert not platform.exists(instance)


def commit_when_awaited(bench, writer):
    """Commit as soon as another session of this database waits for this one."""
    blocked = "SELECT count(*) FROM pg_stat_activity WHERE %s = ANY(pg_blocking_pids(pid))"
    said = "never awaited"
    with bench.database.superuser() as watcher:
        for _ in range(400):
            if watcher.execute(blocked, [writer.info.backend_pid]).fetchone() != (0,):
                said = "awaited"
                break
            time.sleep(0.005)
    writer.execute("COMMIT")
    return said


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE nucleus.workflow_instances SET title = title WHERE id = %s",
        "SELECT FROM nucleus.workflow_instances WHERE id = %s FOR KEY SHARE",
        (
            "INSERT INTO nucleus.workflow_contexts (id, tenant_id, instance_id, name)"
            " SELECT gen_random_uuid(), tenant_id, id, 'late' FROM nucleus.workflow_instances WHERE id = %s"
        ),
    ],
    ids=["changed", "referred to", "child on its way"],
)
def test_an_instance_in_somebody_elses_hands_is_skipped_and_goes_later(shared, statement):
    """W7: no failure, no back-off, and no waiting."""
    platform, instance = subject(shared)
    free = platform.add()
    with shared.database.superuser() as other:

        def take():
            other.execute("SELECT set_config('nucleus.tenant_id', %s, false)", [platform.tenant])
            other.execute("BEGIN")
            other.execute(statement, [instance])

        result = shared.reconcile(platform, world=acting(shared.world, VERIFIED, take))
        assert (result.report.counts.deleted, result.report.counts.skipped) == (1, 1)
        assert result.report.counts.failures == {}
        assert (platform.exists(instance), platform.exists(free)) == (True, False)
        assert shared.states(platform) == {"source_deleted": 1, "verified": 1}
        other.execute("ROLLBACK")
    again = shared.reconcile(platform)
    assert (again.report.counts.deleted, again.report.counts.archived) == (1, 0)
    assert not platform.exists(instance)
