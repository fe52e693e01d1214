"""What a bucket with object lock is told of archives, and when it lets them go (SPEC A10, A11, G1, F8)."""

from dataclasses import replace
from datetime import timedelta
from functools import partial

import pytest

from retention_pipeline import clock
from retention_pipeline.errors import Code, Unavailable
from retention_pipeline.model.outcome import Outcome
from retention_pipeline.model.ports import Deletion
from retention_pipeline.postgres.object_locks import PostgresLockReminders
from retention_pipeline.stages import object_locks
from retention_pipeline_tests.conformance.conftest import make_store, transport
from retention_pipeline_tests.expiring import AT, Vault
from retention_pipeline_tests.fakes import MemoryStore
from retention_pipeline_tests.faulty import Around

__all__ = ["make_store", "transport"]  # fixtures


class Locked(Vault):
    """Archives in a store that can lock."""

    def __post_init__(self):
        super().__post_init__()
        self.reminders = PostgresLockReminders(session=self.bench.session())
        self.platform.run(
            "UPDATE retention.readiness_events SET locks = true WHERE tenant_id = %s", self.platform.tenant
        )
        self.bench.world = replace(self.bench.world, settle=self.settle)

    def settle(self, _tenant=None, store=None):
        stores = lambda _tenant, _generation: store or self.bench.store  # noqa: E731
        return object_locks.settle(self.reminders, stores, self.platform.tenant)

    def due_later(self):
        """An archive whose period has just begun, and its instance."""
        instance = self.platform.add(contexts=1)
        self.instances.append(instance)
        assert self.bench.reconcile(self.platform).report.outcome is Outcome.COMPLETED
        return self.of(instance), instance

    def lock_of(self, archive):
        return self.bench.store.lock_state(*self.place(archive))

    def place(self, archive):
        return self.platform.connection.execute(
            "SELECT object_key, object_version FROM retention.attempts WHERE id = %s", [archive]
        ).fetchone()

    def reminders_of(self, archive):
        return self.platform.value("SELECT count(*) FROM retention.object_lock_tasks WHERE attempt_id = %s", archive)

    def ends(self, archive):
        return self.platform.value(
            "SELECT date_trunc('second', source_deleted_at + make_interval(hours => 24 * archive_retention_days))"
            " FROM retention.attempts WHERE id = %s",
            archive,
        )


@pytest.fixture(params=["memory", "s3"])
def locked(request, shared):
    """The bench on a store with object lock: in memory, and on a real server."""
    before = shared.world
    if request.param == "memory":
        shared.store = MemoryStore(locks=True)
    else:
        bucket = request.getfixturevalue("make_bucket")(lock=True)
        shared.store = request.getfixturevalue("make_store")(bucket)
    yield Locked(bench=shared, platform=shared.platform())
    shared.world = before


def test_the_captured_period_is_locked_right_after_the_deletion_and_not_before(locked):
    """A11: until then a short lock stands, so that nothing is undeletable for years that nobody needs."""
    locked.bench.world = replace(locked.bench.world, settle=lambda _: object_locks.Settled())
    archive, _ = locked.due_later()
    short = locked.lock_of(archive).until - clock.utc_now()
    assert timedelta(days=29) < short < timedelta(days=31)
    assert locked.reminders_of(archive) == 1
    assert locked.settle().told == 1
    assert locked.lock_of(archive).until.replace(microsecond=0) == locked.ends(archive)
    assert not locked.lock_of(archive).held
    assert (locked.reminders_of(archive), locked.settle().told) == (0, 0)
    assert locked.bench.store.delete(*locked.place(archive)) is Deletion.LOCKED


def test_a_hold_on_an_archive_is_told_and_goes_with_the_last_matter(locked):
    """A11, G1: one bit for all matters."""
    archive, instance = locked.due_later()
    for matter, action, held in [
        ("a", "hold", True),
        ("b", "hold", True),
        ("a", "release", True),
        ("b", "release", False),
    ]:
        locked.hold(instance, action, matter)
        assert locked.settle().pending == 0
        assert locked.lock_of(archive).held is held, (matter, action)


def test_a_held_instance_that_is_archived_on_request_has_its_archive_held(locked):
    """A9, W8: the hold was there before the archive."""
    instance = locked.platform.add(contexts=1)
    locked.hold(instance)
    assert locked.bench.explicit(locked.platform, instance).outcome is Outcome.COMPLETED
    archive = locked.of(instance)
    assert locked.lock_of(archive).held
    assert locked.reminders_of(archive) == 0


def test_an_unlimited_archive_is_held_for_good(locked):
    """A11: and a released matter does not lift it."""
    locked.platform.run(
        "INSERT INTO retention.profiles (tenant_id, generation, provider, configuration, archive_retention_days)"
        " VALUES (%s, 2, 'filesystem', '{\"prefix\": \"p\"}', 0)",
        locked.platform.tenant,
    )
    locked.platform.run(
        "INSERT INTO retention.readiness_events (tenant_id, profile_generation, ready, codes, locks) VALUES (%s, 2, true, '{}', true)",
        locked.platform.tenant,
    )
    archive, instance = locked.due_later()
    assert locked.lock_of(archive).held
    locked.hold(instance)
    locked.hold(instance, "release")
    locked.settle()
    assert locked.lock_of(archive).held


def test_a_locked_archive_is_blocked_until_then_and_goes_by_its_version(locked):
    """F8: nobody bypasses a lock, and no delete marker stays."""
    archive, instance = locked.due_later()
    locked.over(archive, by=timedelta(0))  # our own period is over, the provider's lock is not
    assert locked.expire().report.counts.expired == 0
    assert (locked.state(archive), locked.has_object(archive)) == ("source_deleted", True)
    locked.hold(instance)  # and so a hold is not too late
    assert locked.settle().pending == 0
    assert locked.lock_of(archive).held


@pytest.mark.parametrize("locked", ["memory"], indirect=True)  # a real bucket's short lock lasts 30 days
def test_a_released_hold_lets_the_run_end_the_archive_at_once(locked):
    """A10, A11: reminders are told before the deletions."""
    locked.bench.world = replace(locked.bench.world, settle=lambda _: object_locks.Settled())
    archive, instance = locked.due_later()
    for kept in locked.bench.store.kept.values():
        kept[0].lock_until = AT
    locked.over(archive, by=timedelta(0))
    locked.hold(instance)
    locked.settle()
    locked.hold(instance, "release")
    assert locked.lock_of(archive).held
    locked.bench.world = replace(locked.bench.world, settle=locked.settle)
    assert locked.expire().report.counts.expired == 1


class Refusing(Around):
    def lock(self, key, version, *, until):
        raise Unavailable(Code.STORE_UNAVAILABLE, "No answer.", remedy="Again.")


def test_a_lock_that_does_not_take_fails_no_deletion_and_shows_and_is_tried_again(locked):
    """A11: retried until it took."""
    locked.bench.world = replace(locked.bench.world, settle=partial(locked.settle, store=Refusing(locked.bench.store)))
    instance = locked.platform.add(contexts=1)
    report = locked.bench.reconcile(locked.platform).report
    assert (report.outcome, report.counts.deleted, report.counts.locks_pending) == (Outcome.COMPLETED, 1, 1)
    archive = locked.of(instance)
    told = locked.platform.connection.execute(
        "SELECT failures, code, not_before > now() FROM retention.object_lock_tasks WHERE attempt_id = %s", [archive]
    ).fetchall()
    assert told == [(1, Code.STORE_UNAVAILABLE, True)]
    assert locked.expire(apply=False).found.lock_tasks == 1
    assert locked.settle().told == 0  # it waits
    locked.platform.run("UPDATE retention.object_lock_tasks SET not_before = now() WHERE attempt_id = %s", archive)
    assert locked.settle().told == 1
    assert locked.lock_of(archive).until.replace(microsecond=0) == locked.ends(archive)


def test_a_hold_that_comes_while_the_store_is_told_leaves_a_reminder_of_its_own(locked):
    """A11: what is told is read when it is told; nothing that came later is forgotten."""
    archive, instance = locked.due_later()
    locked.hold(instance)

    class Meanwhile(Around):
        def hold(self, key, version, *, on):
            locked.hold(instance, "release")
            self.inner.hold(key, version, on=on)

    assert locked.settle(store=Meanwhile(locked.bench.store)).pending == 1
    assert locked.lock_of(archive).held
    assert locked.settle().pending == 0
    assert not locked.lock_of(archive).held


def test_a_longer_lock_of_somebody_elses_is_left_as_it_is(locked):
    """A11: a period is only ever made longer."""
    locked.bench.world = replace(locked.bench.world, settle=lambda _: object_locks.Settled())
    archive, _ = locked.due_later()
    longer = clock.utc_now().replace(microsecond=0) + timedelta(days=4000)
    locked.bench.store.lock(*locked.place(archive), until=longer)
    assert locked.settle().failures == {}
    assert locked.lock_of(archive).until == longer or isinstance(locked.bench.store, MemoryStore)
