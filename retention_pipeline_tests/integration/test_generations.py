"""An archive that can't be reached waits alone: neither it nor an older profile's store stops new work (SPEC W10, A8, F7)."""

from contextlib import contextmanager
from dataclasses import replace

import pytest

from retention_pipeline.errors import Code, Refused, Unavailable
from retention_pipeline.model.outcome import Outcome
from retention_pipeline.stages.world import Step
from retention_pipeline_tests.fakes import MemoryStore
from retention_pipeline_tests.faulty import Around
from retention_pipeline_tests.seams import Seams

SEALED = frozenset({Step.ENCRYPTED_MANIFESTS})
PROVEN = frozenset({Step.ENCRYPTED_MANIFESTS, Step.VERIFIED_OBJECTS})


def left_behind(bench, platform, state, instances=1):
    """Instances whose attempt an earlier run left in a state, under the profile of then."""
    found = [platform.add(contexts=0) for _ in range(instances)]
    world = bench.world
    if state == "intended":

        def crash():
            raise KeyboardInterrupt

        world = replace(world, records=Seams(world.records, before={"mark_stored": crash}))
        with pytest.raises(KeyboardInterrupt):
            bench.reconcile(platform, world=world, steps=SEALED)
    else:
        bench.reconcile(platform, world=world, steps=SEALED if state == "stored" else PROVEN)
    assert bench.states(platform) == {state: instances}
    # A verification that is older than an hour has to be made again.
    platform.run(
        "UPDATE retention.attempts SET verified_at = verified_at - interval '2 hours' WHERE state = 'verified'"
    )
    return found


def new_profile(platform):
    platform.run(
        "INSERT INTO retention.profiles (tenant_id, generation, provider, configuration, archive_retention_days)"
        " VALUES (%s, 2, 'filesystem', '{\"prefix\": \"q\"}', 365)",
        platform.tenant,
    )
    platform.run(
        "INSERT INTO retention.readiness_events (tenant_id, profile_generation, ready, codes) VALUES (%s, 2, true, '{}')",
        platform.tenant,
    )


class Silent(Around):
    """A store that no longer answers."""

    def versions(self, key):
        raise Unavailable(Code.STORE_UNAVAILABLE, "No answer.", remedy="Try again.")

    def read(self, key, version):
        raise Unavailable(Code.STORE_UNAVAILABLE, "No answer.", remedy="Try again.")


def revoked(_):
    raise Refused(Code.SECRET_REVOKED, "Revoked.", remedy="Give another.")


@pytest.mark.parametrize("state", ["intended", "stored", "verified"])
@pytest.mark.parametrize(("closed", "code"), [(revoked, Code.SECRET_REVOKED), (Silent, Code.STORE_UNAVAILABLE)])
def test_an_older_profiles_store_that_is_gone_stops_no_new_work(shared, state, closed, code):
    """F7: its instances stay whole and wait, and go once it answers again."""
    platform = shared.platform()
    old = MemoryStore()
    shared.store = old
    waiting = left_behind(shared, platform, state, instances=4)
    before = {instance: shared.rows(platform, instance) for instance in waiting}
    new_profile(platform)
    new = MemoryStore()

    def stores(_, generation):
        return new if generation == 2 else closed(old)

    fresh = [platform.add(contexts=0) for _ in range(2)]
    world = replace(shared.world, stores=stores)
    report = shared.reconcile(platform, world=world).report
    assert (report.outcome, report.counts.failures, report.counts.deleted) == (Outcome.PARTIAL, {code: 4}, 2)
    assert not any(platform.exists(instance) for instance in fresh)
    assert {instance: shared.rows(platform, instance) for instance in waiting} == before

    shared.forget_back_offs(platform)
    both = replace(shared.world, stores=lambda _, generation: new if generation == 2 else old)
    report = shared.reconcile(platform, world=both).report
    assert (report.outcome, report.counts.archived) == (Outcome.COMPLETED, 0)
    assert len(old.kept) == 4


class OneBadSector(Around):
    """Answers for all keys but one."""

    def __init__(self, inner, key):
        super().__init__(inner)
        self.key = key

    def versions(self, key):
        return self.inner.versions(self._whole(key))

    @contextmanager
    def read(self, key, version):
        with self.inner.read(self._whole(key), version) as stream:
            yield stream

    def _whole(self, key):
        if key == self.key:
            raise Unavailable(Code.STORE_UNAVAILABLE, "errno 5", remedy="Look at the disk.")
        return key


def test_one_object_that_the_store_cannot_give_is_not_at_the_head_of_every_run(shared):
    """F7: the store answers for a key that nobody has, so the fault is the object's own."""
    shared.store = MemoryStore()
    platform = shared.platform()
    (waiting,) = left_behind(shared, platform, "intended")
    (key,) = shared.store.kept
    before = shared.rows(platform, waiting)
    fresh = platform.add(contexts=0)
    report = shared.reconcile(platform, world=shared.with_store(OneBadSector(shared.store, key))).report
    assert (report.outcome, report.counts.failures, report.counts.deleted) == (
        Outcome.PARTIAL,
        {Code.STORE_UNAVAILABLE: 1},
        1,
    )
    assert not platform.exists(fresh)
    assert shared.rows(platform, waiting) == before
    shared.forget_back_offs(platform)
    report = shared.reconcile(platform).report
    assert (report.outcome, report.counts.adopted) == (Outcome.COMPLETED, 1)


def test_a_store_that_answers_nothing_fails_the_run_and_sets_nobody_aside(shared):
    """A8: the instances are not at fault."""
    shared.store = MemoryStore()
    platform = shared.platform()
    left_behind(shared, platform, "intended", instances=3)
    report = shared.reconcile(platform, world=shared.with_store(Silent(shared.store))).report
    assert (report.outcome, report.reason) == (Outcome.FAILED, Code.STORE_UNAVAILABLE)
    assert platform.value("SELECT count(*) FROM retention.set_asides WHERE tenant_id = %s", platform.tenant) == 0
    assert shared.reconcile(platform).report.outcome is Outcome.COMPLETED
