"""One instance that can't go stops nobody else, now or later; no bound is exceeded (SPEC W7, W10, F6, F7)."""

import pytest

from retention_pipeline.errors import Code
from retention_pipeline.model.outcome import Outcome
from retention_pipeline_tests.rows import new_id
from retention_pipeline_tests.seams import VERIFIED, acting

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


NOTES = "CREATE TABLE nucleus.notes AS SELECT id AS i FROM {0}; ALTER TABLE nucleus.notes ADD FOREIGN KEY (i) REFERENCES {0}"
UNDECLARED = {
    "cascade": NOTES.format(ROOT) + " ON DELETE CASCADE",
    "set null": NOTES.format(ROOT) + " ON DELETE SET NULL",
    "set default": NOTES.format(ROOT) + " ON DELETE SET DEFAULT",
    "deferred": NOTES.format(ROOT) + " ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED",
    "of a child": NOTES.format("nucleus.workflow_executions") + " ON DELETE CASCADE",
    "beside a join": NOTES.format(ROOT)
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
