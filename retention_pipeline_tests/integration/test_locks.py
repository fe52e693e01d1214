"""A deletion waits for nobody long, and nobody fails for its sake (SPEC A7, W7, F3, F7)."""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from retention_pipeline.errors import Code
from retention_pipeline.model.outcome import Outcome
from retention_pipeline.postgres.swap import Swap
from retention_pipeline_tests.seams import VERIFIED, Seams, acting

EDIT = "UPDATE nucleus.workflows SET retention_days = 9999 WHERE id = %s"


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_a_workflow_that_is_just_being_edited_keeps_its_own_instances_alone(shared, end):
    """F7, F13: those of other workflows go; its own go later, or stay, as the edit says."""
    platform = shared.platform()
    edited = platform.add_workflow()
    waiting = [platform.add(contexts=0, workflow=edited) for _ in range(4)]
    free = [platform.add(contexts=0) for _ in range(6)]
    before = {i: shared.rows(platform, i) for i in waiting}
    with shared.database.superuser() as editor:

        def edit():
            editor.execute("BEGIN")
            editor.execute(EDIT, [edited])

        report = shared.reconcile(platform, world=acting(shared.world, VERIFIED, edit)).report
        editor.execute(end)
    assert (report.counts.deleted, report.counts.skipped, report.counts.failures) == (6, 4, {})
    assert report.seconds["delete"] < 3
    assert not any(platform.exists(i) for i in free)
    assert {i: shared.rows(platform, i) for i in waiting} == before
    assert shared.reconcile(platform).report.counts.deleted == (4 if end == "ROLLBACK" else 0)


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_an_instance_on_which_a_hold_is_just_being_placed_is_left_to_it(shared, end):
    """F5, G1: without waiting; the others go."""
    platform = shared.platform()
    held, free = platform.add(), platform.add()
    before = shared.rows(platform, held)
    with shared.database.superuser() as clerk:

        def hold():
            clerk.execute("BEGIN")
            clerk.execute(
                "INSERT INTO retention.hold_events (tenant_id, instance_id, matter, action, reason, correlation)"
                " VALUES (%s, %s, 'm', 'hold', 'a court asks', 'c')",
                [platform.tenant, held],
            )

        report = shared.reconcile(platform, world=acting(shared.world, VERIFIED, hold)).report
        clerk.execute(end)
    assert (report.counts.deleted, report.counts.skipped, report.counts.failures) == (1, 1, {})
    assert report.seconds["delete"] < 1
    assert not platform.exists(free)
    assert shared.rows(platform, held) == before
    shared.reconcile(platform)
    assert platform.exists(held) == (end == "COMMIT")


def test_the_platforms_own_transaction_is_never_the_one_that_fails(shared):
    """It works on a child, and then on the root that the deletion has: the deletion gives way before a deadlock is looked for."""
    platform = shared.platform()
    instance = platform.add()
    with shared.database.superuser() as writer, ThreadPoolExecutor(1) as pool:
        answers = []

        def begin():
            writer.execute("SELECT set_config('nucleus.tenant_id', %s, false)", [platform.tenant])
            writer.execute("BEGIN")
            writer.execute("UPDATE nucleus.workflow_executions SET log = 'y' WHERE instance_id = %s", [instance])
            answers.append(pool.submit(then_the_root))

        def then_the_root():
            with shared.database.superuser() as watcher:
                blocked = "SELECT count(*) FROM pg_stat_activity WHERE %s = ANY(pg_blocking_pids(pid))"
                for _ in range(400):
                    if watcher.execute(blocked, [writer.info.backend_pid]).fetchone() != (0,):
                        break
                    time.sleep(0.005)
            writer.execute("UPDATE nucleus.workflow_instances SET title = 'y' WHERE id = %s", [instance])
            writer.execute("COMMIT")
            return "done"

        report = shared.reconcile(platform, world=acting(shared.world, VERIFIED, begin)).report
        assert answers[0].result() == "done"
    assert (report.counts.deleted, report.counts.skipped, report.counts.failures) == (0, 1, {})
    assert platform.value("SELECT title FROM nucleus.workflow_instances WHERE id = %s", instance) == "y"
    for _ in range(2):  # superseded first, then archived anew
        shared.reconcile(platform)
        shared.forget_back_offs(platform)
    assert not platform.exists(instance)


def test_a_tenant_whose_own_period_is_just_being_changed_loses_nothing_and_the_run_says_so(shared):
    """F4, F13: nothing is green about a run that could not delete at all."""
    platform = shared.platform()
    instances = [platform.add(contexts=0) for _ in range(10)]
    with shared.database.superuser() as editor:

        def edit():
            editor.execute("BEGIN")
            editor.execute("UPDATE nucleus.tenants SET default_retention_days = 0 WHERE id = %s", [platform.tenant])

        report = shared.reconcile(platform, world=acting(shared.world, VERIFIED, edit)).report
        editor.execute("COMMIT")
    assert (report.outcome, report.reason) == (Outcome.FAILED, Code.DATABASE_TIMEOUT)
    assert report.seconds["delete"] < 10
    shared.forget_back_offs(platform)
    assert shared.reconcile(platform).report.counts.deleted == 0
    assert all(platform.exists(i) for i in instances)


def test_a_table_that_changes_while_the_swap_takes_its_locks_stops_it(bench, monkeypatch):
    """F19: the shape is looked at again when nobody can change it any more."""
    platform = bench.platform()
    instance = platform.add()
    lock = Swap._lock

    def altered(self, cursor, by_id, rejected):
        if not changed:
            changed.append(True)
            platform.run("ALTER TABLE nucleus.workflow_contexts ADD COLUMN verdict text NOT NULL DEFAULT 'guilty'")
        return lock(self, cursor, by_id, rejected)

    changed = []
    monkeypatch.setattr(Swap, "_lock", altered)
    report = bench.reconcile(platform).report
    assert (report.outcome, report.reason) == (Outcome.BLOCKED, Code.CATALOG_INVALID)
    assert platform.exists(instance)


def test_no_snapshot_is_held_while_objects_are_written_or_read(shared):
    """F14: a long upload must not keep the platform's dead rows alive."""
    platform = shared.platform()
    platform.add()
    seen = []

    def look():
        seen.append(
            platform.value(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND usename = 'worker'"
                " AND (backend_xmin IS NOT NULL OR state LIKE 'idle in transaction%%')"
            )
        )

    store = Seams(shared.store, before={"put_once": look, "read": look})
    shared.reconcile(platform, world=replace(shared.with_store(store)))
    assert seen == [0, 0]


def brought_back(bench, platform):
    """An instance that was archived and deleted an hour ago, and that the platform has put back from a backup of its own."""
    instance = platform.add(contexts=0)
    tables = ("workflow_instances WHERE id", "workflow_terminal_epochs WHERE instance_id")
    kept = [
        platform.value(f"SELECT t::text FROM nucleus.{t.replace(' WHERE', ' AS t WHERE')} = %s", instance)
        for t in tables
    ]
    bench.reconcile(platform)
    assert not platform.exists(instance)
    for table, row in zip(tables, kept, strict=True):
        name = table.split()[0]
        platform.run(f"INSERT INTO nucleus.{name} SELECT (%s::nucleus.{name}).*", row)
    platform.run(
        "UPDATE retention.receipts SET deleted_at = deleted_at - interval '1 hour' WHERE tenant_id = %s",
        platform.tenant,
    )
    return instance


def test_a_row_that_the_platform_brought_back_is_archived_like_any_other(shared):
    """F7: its old receipt must not keep it, and so itself, at the head of every run."""
    platform = shared.platform()
    instance = brought_back(shared, platform)
    report = shared.reconcile(platform).report
    assert (report.outcome, report.counts.deleted) == (Outcome.COMPLETED, 1)
    assert not platform.exists(instance)
    assert shared.states(platform) == {"source_deleted": 2}


def test_a_row_that_was_brought_back_and_deleted_by_a_stranger_is_told(shared):
    """W11: an old receipt explains no new deletion."""
    platform = shared.platform()
    instance = brought_back(shared, platform)

    def delete():
        platform.run("DELETE FROM nucleus.workflow_terminal_epochs WHERE instance_id = %s", instance)
        platform.run("DELETE FROM nucleus.workflow_instances WHERE id = %s", instance)

    report = shared.reconcile(platform, world=acting(shared.world, VERIFIED, delete)).report
    assert (report.outcome, report.counts.failures) == (Outcome.PARTIAL, {Code.FOREIGN_DELETER: 1})
    assert f"instance.set_aside {Code.FOREIGN_DELETER}" in shared.audit_kinds(platform, instance)
