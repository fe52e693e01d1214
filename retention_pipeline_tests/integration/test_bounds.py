"""One instance that can't go stops nobody else, now or later; no bound is exceeded (SPEC W7, W10, F6, F7)."""

from dataclasses import replace

import pytest

from retention_pipeline.app import App
from retention_pipeline.catalog.loader import load
from retention_pipeline.errors import Code, Refused
from retention_pipeline.model.outcome import Outcome
from retention_pipeline.postgres.session import Limits
from retention_pipeline.postgres.source import PostgresSource
from retention_pipeline.settings import Settings
from retention_pipeline_tests.rows import new_id
from retention_pipeline_tests.seams import VERIFIED, acting
from retention_pipeline_tests.worlds import NOW

ROOT = "nucleus.workflow_instances"


def refers(action):
    """A table that the catalog does not name, and a row in it."""

    def poison(bench, platform, instance):
        table = f"nucleus.unnamed_{new_id()[:8]}"
        with bench.database.superuser() as owner:
            owner.execute(f"CREATE TABLE {table} (instance_id uuid REFERENCES {ROOT} {action})")
            owner.execute(f"INSERT INTO {table} VALUES ('{instance}')")
        return f"DROP TABLE {table}"

    return poison


def refused_by_a_trigger(bench, platform, instance):
    name = f"nucleus.refuse_{new_id()[:8]}"
    with bench.database.superuser() as owner:
        owner.execute(
            f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS"
            f" $$BEGIN IF OLD.id = '{instance}' THEN RAISE 'not this one'; END IF; RETURN OLD; END$$"
        )
        owner.execute(f"CREATE TRIGGER refuse BEFORE DELETE ON {ROOT} FOR EACH ROW EXECUTE FUNCTION {name}()")
    return f"DROP FUNCTION {name} CASCADE"


def kept_by_a_trigger(bench, platform, instance):
    """A trigger that lets the statement succeed without the row."""
    name = f"nucleus.keep_{new_id()[:8]}"
    with bench.database.superuser() as owner:
        owner.execute(
            f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS"
            f" $$BEGIN IF OLD.id = '{instance}' THEN RETURN NULL; END IF; RETURN OLD; END$$"
        )
        owner.execute(f"CREATE TRIGGER keep BEFORE DELETE ON {ROOT} FOR EACH ROW EXECUTE FUNCTION {name}()")
    return f"DROP FUNCTION {name} CASCADE"


POISON = {
    "restrict": (refers("ON DELETE RESTRICT"), Code.UNNAMED_REFERENCE),
    "no action": (refers(""), Code.UNNAMED_REFERENCE),
    "deferred": (refers("DEFERRABLE INITIALLY DEFERRED"), Code.UNNAMED_REFERENCE),
    "refused by a trigger": (refused_by_a_trigger, Code.DATABASE_REFUSED),
    "kept by a trigger": (kept_by_a_trigger, Code.SOURCE_CHANGED),
}


@pytest.mark.parametrize("kind", POISON)
def test_one_instance_that_the_database_refuses_stops_none_of_the_others(bench, kind):
    """F7: 19 go, one is reported, and it does not stand at the head of the next run."""
    platform = bench.platform()
    instances = [platform.add(contexts=1) for _ in range(20)]
    poisoned = min(instances)
    poison, code = POISON[kind]
    undo = []

    def act():
        undo.append(poison(bench, platform, poisoned))

    result = bench.reconcile(platform, world=acting(bench.world, VERIFIED, act))
    assert (result.report.counts.deleted, result.report.counts.failures) == (19, {code: 1})
    assert result.report.outcome is Outcome.PARTIAL
    assert [i for i in instances if platform.exists(i)] == [poisoned]
    assert f"instance.set_aside {code}" in bench.audit_kinds(platform, poisoned)
    late = platform.add(ended="2026-02-01Z")
    following = bench.reconcile(platform)
    assert (following.report.counts.deleted, following.report.counts.failures) == (1, {})
    assert not platform.exists(late)
    with bench.database.superuser() as owner:
        owner.execute(undo[0])
    bench.forget_back_offs(platform)
    assert bench.reconcile(platform).report.outcome is Outcome.COMPLETED
    assert not platform.exists(poisoned)


COPY = "CREATE TABLE nucleus.notes AS SELECT id AS i FROM {0}"
NOTES = COPY + "; ALTER TABLE nucleus.notes ADD FOREIGN KEY (i) REFERENCES {0}"
UNDECLARED = {
    "cascade": NOTES.format(ROOT) + " ON DELETE CASCADE",
    "set null": NOTES.format(ROOT) + " ON DELETE SET NULL",
    "set default": NOTES.format(ROOT) + " ON DELETE SET DEFAULT",
    "deferred": NOTES.format(ROOT) + " ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED",
    "of a child": NOTES.format("nucleus.workflow_executions") + " ON DELETE CASCADE",
    "beside a join": COPY.format(ROOT)
    + f"; ALTER TABLE nucleus.workflow_stores ADD own uuid REFERENCES {ROOT} ON DELETE CASCADE",
}


@pytest.mark.parametrize("statement", UNDECLARED)
def test_nothing_vanishes_or_changes_by_a_foreign_key_that_appeared_during_the_run(bench, statement):
    """F18: the swap itself looks once more, and deletes nothing."""
    platform = bench.platform()
    instances = [platform.add() for _ in range(3)]

    def act():
        with bench.database.superuser() as owner:
            owner.execute(UNDECLARED[statement])

    result = bench.reconcile(platform, world=acting(bench.world, VERIFIED, act))
    assert (result.report.outcome, result.report.reason) == (Outcome.BLOCKED, Code.CATALOG_INVALID)
    assert result.report.counts.deleted == 0
    assert all(platform.exists(i) for i in instances)
    assert platform.value("SELECT count(i) FROM nucleus.notes") == 3


def locked(statement):
    """Somebody's transaction that does not end."""

    def poison(bench, platform, instance):
        other = bench.closing.enter_context(bench.database.superuser())
        other.execute("SET session_replication_role = replica")
        other.execute("BEGIN")
        other.execute(statement, [instance])
        return other

    return poison


LOCKED = {
    "root": (locked("UPDATE nucleus.workflow_instances SET title = 'x' WHERE id = %s"), 0.5),
    "child": (locked("UPDATE nucleus.workflow_contexts SET name = 'x' WHERE instance_id = %s"), 8),
    "child with children": (locked("UPDATE nucleus.workflow_executions SET log = 'x' WHERE instance_id = %s"), 8),
}


@pytest.mark.parametrize("kind", LOCKED)
def test_one_instance_that_somebody_works_on_makes_none_of_the_others_wait_for_ever(bench, kind):
    """W7, F7: skipped, not failed; whoever holds it lets go some day."""
    platform = bench.platform()
    instances = [platform.add() for _ in range(20)]
    busy = max(instances)
    poison, patience = LOCKED[kind]
    others = []
    result = bench.reconcile(
        platform,
        world=acting(bench.world, VERIFIED, lambda: others.append(poison(bench, platform, busy))),
    )
    assert [i for i in instances if platform.exists(i)] == [busy]
    assert (result.report.counts.deleted, result.report.counts.skipped) == (19, 1)
    assert result.report.counts.failures == {}
    assert result.report.seconds["delete"] < patience
    others[0].execute("ROLLBACK")
    assert bench.reconcile(platform).report.outcome is Outcome.COMPLETED
    assert not platform.exists(busy)


def test_what_is_protected_among_many_stays_alone_and_is_told(bench):
    """F7: a hold, an instant of `infinity`, a row of another tenant, a period that is none."""
    platform = bench.platform()
    instances = [platform.add(contexts=1) for _ in range(20)]
    held = platform.add()
    platform.hold(held)
    endless = platform.add(ended="infinity")
    foreign = platform.add()
    platform.child("contexts", foreign, tenant=new_id(), name="c")
    unlimited = platform.add(workflow=platform.add_workflow(days=0))
    result = bench.reconcile(platform)
    assert result.report.counts.deleted == 20
    assert not any(platform.exists(i) for i in instances)
    assert all(platform.exists(i) for i in (held, endless, foreign, unlimited))
    assert result.inventory.dispositions == {
        "eligible": 20,
        "legal_hold": 1,
        "missing_epoch": 1,
        "foreign_rows": 1,
        "unlimited_retention": 1,
    }
    assert bench.states(platform) == {"source_deleted": 20}


def slowed(bench, instances, seconds):
    """A trigger of the platform's that takes its time over some instances."""
    with bench.database.superuser() as owner:
        owner.execute(
            "CREATE FUNCTION nucleus.slow() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN IF OLD.id::text = ANY("
            f"'{{{','.join(instances)}}}') THEN PERFORM pg_sleep({seconds}); END IF; RETURN OLD; END$$"
        )
        owner.execute(f"CREATE TRIGGER slow BEFORE DELETE ON {ROOT} FOR EACH ROW EXECUTE FUNCTION nucleus.slow()")


def hasty(bench, milliseconds):
    """The same world, whose deletions may take only so long."""
    session = bench.session()
    session.limits = Limits(statement=milliseconds)
    return replace(bench.world, source=PostgresSource(session=session, catalog=load()))


def test_one_instance_whose_deletion_takes_too_long_waits_and_the_others_go(bench):
    """F7: it was the first of all, and is not the first of the next run."""
    platform = bench.platform()
    instances = [platform.add() for _ in range(12)]
    slowed(bench, [min(instances)], 5)
    world = hasty(bench, 400)
    result = bench.reconcile(platform, world=world)
    assert (result.report.counts.deleted, result.report.outcome) == (11, Outcome.PARTIAL)
    assert result.report.counts.failures == {Code.DATABASE_TIMEOUT: 1}
    assert [i for i in instances if platform.exists(i)] == [min(instances)]
    assert bench.reconcile(platform, world=world).report.counts.failures == {}


def test_a_database_that_is_too_slow_for_all_of_them_ends_the_run_as_failed(bench):
    """F4, F7: after three single tries, not after all; and what was tried stands back the next time."""
    platform = bench.platform()
    instances = [platform.add() for _ in range(12)]
    slowed(bench, instances, 5)
    world = hasty(bench, 400)
    result = bench.reconcile(platform, world=world)
    assert (result.report.outcome, result.report.reason) == (Outcome.FAILED, Code.DATABASE_TIMEOUT)
    assert result.report.counts.failures == {Code.DATABASE_TIMEOUT: 3}
    assert (result.report.counts.deleted, result.report.backlog) == (0, 12)
    with bench.database.superuser() as owner:
        owner.execute(f"DROP TRIGGER slow ON {ROOT}")
    after = bench.reconcile(platform, world=world)
    assert after.report.counts.deleted == 9
    bench.forget_back_offs(platform)
    assert bench.reconcile(platform, world=world).report.outcome is Outcome.COMPLETED


@pytest.mark.parametrize("action", ["CASCADE", "SET NULL", "RESTRICT"])
def test_nothing_is_applied_while_the_catalog_does_not_fit_the_database(bench, tmp_path, action):
    """F18, K2: the catalog is checked before each run; a preflight still tells what is due."""
    platform = bench.platform()
    instance = platform.add()
    with bench.database.superuser() as owner:
        owner.execute(f"CREATE TABLE nucleus.notes (i uuid REFERENCES {ROOT} ON DELETE {action})")
    settings = Settings(home=tmp_path, keyring=bench.keyring, data_root=tmp_path, worker_url=bench.database.worker_url)
    with App(settings) as app:
        approval = bench.approve(platform)
        with pytest.raises(Refused, match="notes") as refusal:
            app.reconcile(platform.tenant, run="r", apply=True, approval=approval, as_of=NOW)
        assert refusal.value.code is Code.CATALOG_INVALID
        with pytest.raises(Refused, match="notes"):
            app.archive_one(platform.tenant, instance, run="r", apply=True, approval=approval, as_of=NOW)
        assert app.reconcile(platform.tenant, run="r", as_of=NOW).inventory.eligible == 1
        assert not app.gates(platform.tenant).schema
    assert platform.exists(instance)
    assert bench.states(platform) == {}
