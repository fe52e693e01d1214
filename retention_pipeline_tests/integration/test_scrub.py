"""Stored archives are read again, and what is not what it must be is told once (SPEC A19, F1, F15)."""

from contextlib import contextmanager
from hashlib import sha256

import pytest

from retention_pipeline.errors import Code, Refused
from retention_pipeline.model.outcome import Outcome
from retention_pipeline.model.scrub import START, Verdict
from retention_pipeline_tests.fakes import MemoryStore
from retention_pipeline_tests.faulty import Around, CuttingReads, FlippingReads, flipped, lost, truncated
from retention_pipeline_tests.scrubbing import Keep


@pytest.fixture
def keep(shared):
    shared.store = MemoryStore()
    return Keep(bench=shared, platform=shared.platform())


def test_archives_that_are_as_they_were_are_no_finding(keep):
    """A19."""
    keep.archive(3)
    result = keep.scrub()
    assert (result.report.outcome, result.report.reason) == (Outcome.COMPLETED, "exhausted")
    assert result.tally.verdicts == {Verdict.INTACT: 3}
    assert (result.tally.listed, result.tally.listed_whole, result.tally.unknown) == (3, True, 0)
    assert (result.integrity.archives, result.integrity.covered, result.integrity.open) == (3, 3, 0)
    assert keep.events() == []


def drop(store, key):
    del store.kept[key]


def changed(alter):
    def change(store, key):
        store.kept[key][0].body = alter(store.kept[key][0].body)

    return change


def other_version(store, key):
    store.kept[key][0].version = "0" * 32


LIES = {
    "the object is gone": (drop, Verdict.MISSING, Code.OBJECT_MISSING),
    "half of it": (changed(truncated), Verdict.CHANGED, Code.OBJECT_TRUNCATED),
    "one byte more": (changed(lambda body: body + b"\0"), Verdict.CHANGED, Code.OBJECT_LENGTH_MISMATCH),
    "one bit off": (changed(flipped), Verdict.CHANGED, Code.OBJECT_UNAUTHENTIC),
    "nothing": (changed(lambda _: b""), Verdict.CHANGED, Code.OBJECT_TRUNCATED),
    "another version": (other_version, Verdict.MISSING, Code.OBJECT_MISSING),
    "other bytes": (changed(lambda body: bytes(len(body))), Verdict.CHANGED, Code.OBJECT_MALFORMED),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_store_that_does_not_keep_what_it_was_given_is_caught_and_told_once(keep, lie):
    """A19, F1: and the others are still proven."""
    change, verdict, code = LIES[lie]
    instance, *_ = keep.archive(3)
    key, _version = keep.place(instance)
    before = keep.bench.store.kept[key][0].body
    change(keep.bench.store, key)
    result = keep.scrub()
    assert (result.report.outcome, result.tally.findings) == (
        Outcome.FAILED,
        2 if lie == "another version" else 1,  # what lies in its place is nobody's
    )
    assert result.tally.verdicts == {verdict: 1, Verdict.INTACT: 2}
    assert result.integrity.findings == {verdict: 1}
    assert keep.bench.audit_kinds(keep.platform, instance)[-1] == f"scrub.{verdict} {code}"
    keep.scrub()
    assert keep.events(f"scrub.{verdict}") == [f"scrub.{verdict} {code}"]
    if verdict is not Verdict.MISSING:
        keep.bench.store.kept[key][0].body = before
        assert keep.scrub().report.outcome is Outcome.COMPLETED
        assert keep.events()[-1] == "scrub.intact"


def test_a_read_that_comes_one_bit_off_each_time_is_caught(keep):
    """F1: by what came, not by what the store says of it."""
    keep.archive(1)
    assert keep.scrub(store=FlippingReads(keep.bench.store)).tally.verdicts == {Verdict.CHANGED: 1}


class FlippingOnce(FlippingReads):
    """A network that was off once."""

    flipped = False

    @contextmanager
    def read(self, key, version):
        reads = super().read if not self.flipped else self.inner.read
        self.flipped = True
        with reads(key, version) as stream:
            yield stream


def test_one_bad_read_is_not_told(keep):
    """What fails is read again before anybody is told."""
    keep.archive(1)
    assert keep.scrub(store=FlippingOnce(keep.bench.store)).report.outcome is Outcome.COMPLETED
    assert keep.events() == []


def test_another_tenants_bytes_and_a_key_that_is_lost_are_told_apart_from_changed_bytes(keep):
    """A19: the bytes are those that were recorded, and still nobody can open them."""
    [instance] = keep.archive()
    keep.platform.run("UPDATE retention.attempts SET manifest_digest = sha256('x') WHERE instance_id = %s", instance)
    result = keep.scrub()
    assert result.tally.verdicts == {Verdict.UNREADABLE: 1}
    assert keep.events() == [f"scrub.unreadable {Code.MANIFEST_DIGEST_MISMATCH}"]


def test_a_store_that_does_not_answer_is_no_finding_and_no_success(keep):
    """O1: nothing is known of what could not be read."""
    keep.archive(2)
    result = keep.scrub(store=CuttingReads(keep.bench.store))
    assert (result.report.outcome, result.report.counts.failures) == (Outcome.PARTIAL, {Code.STORE_UNAVAILABLE: 2})
    assert (result.tally.findings, keep.events()) == (0, [])


def test_destroyed_keys_are_a_decision_and_no_finding(keep):
    """A18: the archives are counted, and not among what can be covered."""
    keep.archive()
    keep.platform.run(
        "UPDATE retention.tenant_keys SET ciphertext = NULL, destroyed_at = now() WHERE tenant_id = %s",
        keep.platform.tenant,
    )
    keep.bench.keys._known.clear()
    result = keep.scrub()
    assert (result.report.outcome, result.tally.verdicts) == (Outcome.COMPLETED, {Verdict.KEYS_DESTROYED: 1})
    assert (result.integrity.keys_destroyed, result.integrity.coverage) == (1, 1.0)


# -- locks ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def locking(shared):
    shared.store = MemoryStore(locks=True)
    keep = Keep(bench=shared, platform=shared.platform())
    keep.platform.run("UPDATE retention.readiness_events SET locks = true WHERE tenant_id = %s", keep.platform.tenant)
    return keep


def lock(keep, instance, **how):
    [kept] = keep.bench.store.kept[keep.place(instance)[0]]
    until = "SELECT source_deleted_at + make_interval(hours => 24 * 365) FROM retention.attempts WHERE instance_id = %s"
    kept.lock_until, kept.held = keep.platform.value(until, instance), False
    for name, value in how.items():
        setattr(kept, name, value)
    keep.platform.run("DELETE FROM retention.object_lock_tasks WHERE tenant_id = %s", keep.platform.tenant)


def test_an_archive_that_the_store_does_not_hold_as_it_should_is_told(locking):
    """A11, A19: the provider's lock beside what the records say."""
    instance, other = locking.archive(2)
    lock(locking, instance)
    lock(locking, other, lock_until=None)
    result = locking.scrub()
    assert result.tally.verdicts == {Verdict.INTACT: 1, Verdict.UNLOCKED: 1}
    assert result.integrity.covered == 2  # its bytes are proven nevertheless
    lock(locking, other)
    assert locking.scrub().report.outcome is Outcome.COMPLETED
    locking.platform.hold(instance)
    assert locking.scrub().tally.verdicts[Verdict.UNLOCKED] == 1
    lock(locking, instance, held=True)
    assert locking.scrub().report.outcome is Outcome.COMPLETED


def test_what_the_store_still_has_to_be_told_is_no_finding(locking):
    """A11: the outbox shows it already."""
    [instance] = locking.archive()
    lock(locking, instance, lock_until=None)
    locking.platform.run(
        "INSERT INTO retention.object_lock_tasks (tenant_id, attempt_id, cause) SELECT tenant_id, id, 'period'"
        " FROM retention.attempts WHERE instance_id = %s",
        instance,
    )
    assert locking.scrub().report.outcome is Outcome.COMPLETED


# -- both ways ------------------------------------------------------------------------------------------------------


def put(store, key, body=b"a stranger's"):
    return store.put_once(key, body, sha256=sha256(body).digest())


def test_what_no_record_names_is_told_once_and_stays(keep):
    """A19."""
    keep.archive(2)
    for name in ("00/stranger", "zz/stranger", "note"):
        put(keep.bench.store, name)
    result = keep.scrub()
    assert (result.report.outcome, result.tally.unknown, result.tally.new_unknown) == (Outcome.FAILED, 3, 3)
    assert (result.integrity.unknown, result.tally.verdicts) == (3, {Verdict.INTACT: 2})
    assert keep.scrub().tally.new_unknown == 0
    assert keep.events() == [f"scrub.unknown {Code.OBJECT_UNKNOWN}"] * 3
    assert len(keep.bench.store.kept) == 5
    del keep.bench.store.kept["note"]
    assert keep.scrub().integrity.unknown == 2


def test_the_products_own_objects_and_those_of_other_tenants_are_no_strangers(keep):
    """A19, F15: a bucket may be shared, and one prefix may lie in another."""
    keep.archive(1)
    neighbour = Keep(bench=keep.bench, platform=keep.bench.platform())
    [theirs] = neighbour.archive(1)
    key, _version = neighbour.place(theirs)
    [kept] = keep.bench.store.kept[key]
    keep.bench.store.kept[f"below/{key}"] = [kept]
    for name in ("audit/20260101", "keys/0011", "readiness/0011", "below/audit/20260101"):
        put(keep.bench.store, name)
    result = keep.scrub()
    assert (result.report.outcome, result.tally.unknown, result.tally.listed) == (Outcome.COMPLETED, 0, 7)


def test_an_object_in_flight_is_no_stranger_whoever_writes_it(keep):
    """F15: on record before it is written; and what its attempt came to is not our concern."""
    inner = keep.bench.store
    seen = []

    class Scrubbing(Around):
        def put_once(self, key, body, **how):
            version = self.inner.put_once(key, body, **how)
            seen.append(keep.scrub(store=inner))
            return version

    keep.platform.add()
    report = keep.bench.reconcile(keep.platform, world=keep.bench.with_store(Scrubbing(inner))).report
    assert (report.counts.deleted, [s.report.outcome for s in seen]) == (1, [Outcome.COMPLETED])
    assert (seen[0].tally.listed, seen[0].tally.unknown, seen[0].tally.archives) == (1, 0, 0)


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_pages_of_any_size_find_the_same(keep, monkeypatch, size):
    """What a page lacks is asked page by page: the first, the last, and one between."""
    monkeypatch.setattr("retention_pipeline.stages.store_list.PAGE", size)
    monkeypatch.setattr("retention_pipeline.stages.scrub.PAGE", size)
    instances = sorted(keep.archive(7), key=lambda instance: keep.place(instance)[0])
    for number in (0, 3, 6):
        del keep.bench.store.kept[keep.place(instances[number])[0]]
    put(keep.bench.store, "5/stranger")
    result = keep.scrub(slices=1)
    assert (result.tally.verdicts, result.tally.unknown) == ({Verdict.MISSING: 3, Verdict.INTACT: 4}, 1)


def test_a_missing_archive_is_found_by_the_list_in_every_run_whichever_slice_is_read(keep):
    [instance] = keep.archive()
    del keep.bench.store.kept[keep.place(instance)[0]]
    assert [keep.scrub(slices=30).tally.verdicts for _ in range(3)] == [{Verdict.MISSING: 1}] * 3
    assert keep.events() == [f"scrub.missing {Code.OBJECT_MISSING}"]


def test_an_archive_whose_end_began_is_not_missed(keep):
    """F15: it is the expiry's."""
    [instance] = keep.archive()
    keep.platform.run(
        "UPDATE retention.attempts SET state = 'expiring', expiring_at = now() WHERE instance_id = %s", instance
    )
    keep.bench.store.kept.clear()
    result = keep.scrub()
    assert (result.report.outcome, result.tally.archives) == (Outcome.COMPLETED, 0)


def new_generation(keep, number, configuration='{"prefix": "p"}'):
    keep.platform.run(
        "INSERT INTO retention.profiles (tenant_id, generation, provider, configuration, archive_retention_days)"
        " VALUES (%s, %s, 'filesystem', %s, 0)",
        keep.platform.tenant,
        number,
        configuration,
    )


def test_generations_that_name_one_place_are_listed_once_and_those_of_another_apart(keep):
    """A19: by the newest secret of each place, and only where there are objects, or will be."""
    keep.archive(1)
    new_generation(keep, 2)
    new_generation(keep, 3, '{"prefix": "never used"}')
    new_generation(keep, 4, '{"prefix": "q"}')
    places = [(place.newest, place.generations) for place in keep.records.places(keep.platform.tenant)]
    assert places == [(2, (1, 2)), (4, (4,))]
    put(keep.bench.store, "stranger")
    result = keep.scrub()  # both open the same store here
    assert (result.tally.listed, result.tally.verdicts) == (4, {Verdict.INTACT: 1})
    assert keep.scrub().tally.new_unknown == 0


def test_a_place_that_can_not_be_opened_hides_nothing_of_the_others(keep):
    """O1: partial, and not sound."""
    [instance] = keep.archive()
    new_generation(keep, 2, '{"prefix": "q"}')
    del keep.bench.store.kept[keep.place(instance)[0]]

    def stores(_tenant, generation):
        if generation == 2:
            raise Refused(Code.SECRET_REVOKED, "No.", remedy="Ask.")
        return keep.bench.store

    result = keep.scrub(stores=stores)
    assert (result.report.outcome, result.tally.verdicts) == (Outcome.FAILED, {Verdict.MISSING: 1})
    assert (result.report.counts.failures, result.tally.listed_whole) == ({Code.SECRET_REVOKED: 1}, False)


def test_a_store_that_is_not_mounted_is_told_once_and_not_for_ever(keep, monkeypatch):
    """A run ends when it found enough."""
    monkeypatch.setattr("retention_pipeline.stages.scrub.ENOUGH", 2)
    keep.archive(5)
    keep.bench.store.kept.clear()
    result = keep.scrub()
    assert (result.report.reason, result.tally.verdicts) == ("finding_bound", {Verdict.MISSING: 2})
    assert result.report.outcome is Outcome.FAILED


class DownFrom(Around):
    """Answers so many reads."""

    def __init__(self, inner, reads):
        super().__init__(inner)
        self.left = reads

    @contextmanager
    def read(self, key, version):
        self.left -= 1
        if self.left < 0:
            raise lost()
        with self.inner.read(key, version) as stream:
            yield stream


def point(keep):
    return keep.records.position(keep.platform.tenant)


def test_after_an_outage_the_next_run_goes_on_where_the_store_answered_last(keep):
    """O1: nothing of the slice is left out."""
    keep.archive(9)
    first = keep.scrub(slices=1, store=DownFrom(keep.bench.store, 2))
    assert (first.report.outcome, first.report.reason) == (Outcome.PARTIAL, Code.STORE_UNAVAILABLE)
    assert (first.tally.archives, first.report.counts.failures) == (2, {Code.STORE_UNAVAILABLE: 3})
    stopped = point(keep)
    assert stopped != START

    class Dead(Around):
        def walk(self, below=""):
            raise lost()

    dead = Dead(DownFrom(keep.bench.store, 0))
    assert keep.scrub(slices=2, store=dead).report.outcome is Outcome.FAILED
    assert point(keep) == stopped


def test_a_store_that_is_gone_for_good_keeps_no_other_from_its_turn(keep):
    """F7."""
    keep.archive(8)
    keep.platform.run(
        "UPDATE retention.attempts SET profile_generation = 2 WHERE tenant_id = %s AND get_byte(uuid_send(id), 0) %% 2 = 0",
        keep.platform.tenant,
    )
    new_generation(keep, 2, '{"prefix": "q"}')
    dead = keep.platform.value(
        "SELECT count(*) FROM retention.attempts WHERE tenant_id = %s AND profile_generation = 2", keep.platform.tenant
    )
    store = keep.bench.store
    result = keep.scrub(stores=lambda _, generation: store if generation == 1 else DownFrom(store, 0))
    assert result.tally.verdicts[Verdict.INTACT] == 8 - dead
    assert result.report.counts.failures.get(Code.STORE_UNAVAILABLE, 0) == dead
    assert point(keep) == START  # round once
