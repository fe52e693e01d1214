"""A store that lies never costs a row: it stays whole, the run says so, and a good store finishes the work later (SPEC A5, A6, A8, F1)."""

from contextlib import contextmanager
from dataclasses import replace

import pytest

from retention_pipeline.errors import Code, Refused, RetentionError
from retention_pipeline.model.outcome import Outcome
from retention_pipeline.stages import verification
from retention_pipeline_tests.fakes import MemoryStore
from retention_pipeline_tests.faulty import (
    Altering,
    Around,
    CuttingReads,
    Dropping,
    FlippingReads,
    LosingAnswers,
    Occupied,
    Overwriting,
    flipped,
    lost,
    truncated,
)


class Down(Around):
    """Answers nothing."""

    def put_once(self, key, body, *, sha256, lock_until=None):
        raise lost()

    def versions(self, key):
        raise lost()


class Denying(Around):
    """Refuses every write."""

    def put_once(self, key, body, *, sha256, lock_until=None):
        raise Refused(Code.STORE_DENIED, "No.", remedy="Ask.")


class FailingOne(Around):
    """Fails every write of the n-th key that it sees."""

    def __init__(self, inner, number, error):
        super().__init__(inner)
        self.number, self.error, self.keys = number, error, []

    def put_once(self, key, body, *, sha256, lock_until=None):
        if key not in self.keys:
            self.keys.append(key)
        if self.keys.index(key) == self.number:
            raise self.error
        return self.inner.put_once(key, body, sha256=sha256, lock_until=lock_until)


class Crossing(Around):
    """Serves one object under every other key."""

    def __init__(self, inner, key, version):
        super().__init__(inner)
        self.served = key, version

    @contextmanager
    def read(self, key, version):
        with self.inner.read(*self.served) as stream:
            yield stream


def lengthened(body):
    return body + b"\0"


def renamed(body):
    """The clear text names another tenant, in as many bytes."""
    start = body.index(b'"tenant":"') + len(b'"tenant":"')
    return body[:start] + (b"0" if body[start : start + 1] != b"0" else b"1") + body[start + 1 :]


LIES = {
    "says it stored, and did not": (Dropping, Code.OBJECT_MISSING),
    "stores half": (lambda s: Altering(s, truncated), Code.OBJECT_TRUNCATED),
    "stores one byte more": (lambda s: Altering(s, lengthened), Code.OBJECT_LENGTH_MISMATCH),
    "stores one bit off": (lambda s: Altering(s, flipped), Code.OBJECT_UNAUTHENTIC),
    "stores nothing": (lambda s: Altering(s, lambda _: b""), Code.OBJECT_TRUNCATED),
    "stores something else": (lambda s: Altering(s, lambda body: bytes(len(body))), Code.OBJECT_MALFORMED),
    "stores it in another tenant's name": (lambda s: Altering(s, renamed), Code.IDENTITY_MISMATCH),
    "has other bytes under the key": (Occupied, Code.OBJECT_CONFLICT),
    "reads one bit off": (FlippingReads, Code.OBJECT_MALFORMED),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_store_that_lies_costs_no_row_and_a_good_one_finishes_the_work(shared, lie):
    """A5, A6, A8, F1."""
    faulty, code = LIES[lie]
    platform = shared.platform()
    instances = [platform.add() for _ in range(3)]
    before = [shared.rows(platform, i) for i in instances]
    inner = MemoryStore()

    report = shared.reconcile(platform, world=shared.with_store(faulty(inner))).report

    assert [shared.rows(platform, i) for i in instances] == before
    assert (report.outcome, report.outcome.green, report.outcome.exit_code) == (Outcome.PARTIAL, False, 7)
    assert report.counts.failures == {code: 3}
    assert (report.counts.deleted, report.backlog) == (0, 3)
    assert shared.states(platform) == {"conflict": 3}
    for instance in instances:
        assert shared.audit_kinds(platform, instance)[-2:] == [f"archive.conflict {code}", f"instance.set_aside {code}"]

    # Set aside: the very next run leaves them alone, and does not look done.
    waiting = shared.reconcile(platform, world=shared.with_store(MemoryStore())).report
    assert (waiting.counts.selected, waiting.counts.deleted, waiting.backlog) == (0, 0, 3)
    assert waiting.outcome in {Outcome.WORK_REMAINS, Outcome.BEHIND}

    shared.forget_back_offs(platform)
    store = MemoryStore()
    report = shared.reconcile(platform, world=shared.with_store(store)).report
    assert (report.outcome, report.counts.deleted, len(store.kept)) == (Outcome.COMPLETED, 3, 3)
    assert not any(platform.exists(i) for i in instances)
    assert shared.states(platform) == {"conflict": 3, "source_deleted": 3}


def test_a_lost_answer_is_settled_by_what_lies_there(shared):
    """A5: adopted, and never written a second time."""
    platform = shared.platform()
    instances = [platform.add() for _ in range(3)]
    store = MemoryStore()
    report = shared.reconcile(platform, world=shared.with_store(LosingAnswers(store))).report
    assert (report.outcome, report.counts.deleted, report.backlog) == (Outcome.COMPLETED, 3, 0)
    assert [len(kept) for kept in store.kept.values()] == [1, 1, 1]
    assert shared.states(platform) == {"source_deleted": 3}
    assert not any(platform.exists(i) for i in instances)


class Silent(Around):
    """Stores, and answers nothing from then on."""

    def put_once(self, key, body, *, sha256, lock_until=None):
        if not self.inner.versions(key):
            self.inner.put_once(key, body, sha256=sha256)
        raise lost()

    def versions(self, key):
        raise lost()


@pytest.mark.parametrize("faulty", [Silent, Down])
def test_a_store_that_is_down_fails_the_run_and_the_next_one_goes_on(shared, faulty):
    """A8, A5: whether the objects landed or not."""
    platform = shared.platform()
    instances = [platform.add() for _ in range(3)]
    before = [shared.rows(platform, i) for i in instances]
    store = MemoryStore()
    report = shared.reconcile(platform, world=shared.with_store(faulty(store))).report
    assert (report.outcome, report.reason, report.outcome.exit_code) == (Outcome.FAILED, Code.STORE_UNAVAILABLE, 1)
    assert [shared.rows(platform, i) for i in instances] == before
    assert shared.states(platform) == {"intended": 3}

    # Still down: nothing is lost, and nothing is given up.
    again = shared.reconcile(platform, world=shared.with_store(faulty(store))).report
    assert again.outcome is Outcome.FAILED
    assert [shared.rows(platform, i) for i in instances] == before

    report = shared.reconcile(platform, world=shared.with_store(store)).report
    assert (report.outcome, report.counts.deleted) == (Outcome.COMPLETED, 3)
    assert sorted(len(kept) for kept in store.kept.values()) == [1, 1, 1]
    assert report.counts.adopted == (3 if faulty is Silent else 0)


def test_a_connection_that_breaks_while_reading_fails_the_run_and_nothing_is_written_twice(shared):
    """A6, A8: not knowing is not a proof, and not a fault of the object either."""
    platform = shared.platform()
    instances = [platform.add() for _ in range(3)]
    before = [shared.rows(platform, i) for i in instances]
    store = MemoryStore()
    report = shared.reconcile(platform, world=shared.with_store(CuttingReads(store))).report
    assert (report.outcome, report.reason) == (Outcome.FAILED, Code.STORE_UNAVAILABLE)
    assert [shared.rows(platform, i) for i in instances] == before
    assert shared.states(platform) == {"stored": 3}
    report = shared.reconcile(platform, world=shared.with_store(store)).report
    assert (report.outcome, report.counts.deleted, len(store.kept)) == (Outcome.COMPLETED, 3, 3)


def test_a_store_that_denies_blocks_the_run(shared):
    """A8, O1."""
    platform = shared.platform()
    instances = [platform.add() for _ in range(3)]
    before = [shared.rows(platform, i) for i in instances]
    report = shared.reconcile(platform, world=shared.with_store(Denying(MemoryStore()))).report
    assert (report.outcome, report.reason, report.outcome.exit_code) == (Outcome.BLOCKED, Code.STORE_DENIED, 3)
    assert [shared.rows(platform, i) for i in instances] == before
    assert shared.reconcile(platform, world=shared.with_store(MemoryStore())).report.outcome is Outcome.COMPLETED


@pytest.mark.parametrize("number", [0, 2, 4])
@pytest.mark.parametrize(
    "error", [lost(), Refused(Code.STORE_DENIED, "No.", remedy="Ask.")], ids=["unavailable", "denied"]
)
def test_one_write_that_fails_among_many_sets_that_one_aside(shared, number, error):
    """W10, A8: wherever it stands."""
    platform = shared.platform()
    instances = [platform.add() for _ in range(5)]
    before = {i: shared.rows(platform, i) for i in instances}
    store = MemoryStore()
    report = shared.reconcile(platform, world=shared.with_store(FailingOne(store, number, error))).report
    left = [i for i in instances if platform.exists(i)]
    assert (report.outcome, report.counts.failures, report.counts.deleted) == (Outcome.PARTIAL, {error.code: 1}, 4)
    assert [before[i] for i in left] == [shared.rows(platform, i) for i in left]
    assert len(left) == 1
    assert f"instance.set_aside {error.code}" in shared.audit_kinds(platform, left[0])
    shared.forget_back_offs(platform)
    report = shared.reconcile(platform, world=shared.with_store(store)).report
    assert (report.outcome, report.counts.deleted, len(store.kept)) == (Outcome.COMPLETED, 1, 5)


@pytest.mark.parametrize("of_another", ["instance", "tenant"])
def test_another_object_under_the_key_proves_nothing(shared, of_another):
    """A3, A6: neither of another instance nor of another tenant, though both are sound archives."""
    platform = shared.platform()
    theirs = shared.platform() if of_another == "tenant" else platform
    store = MemoryStore()
    theirs.add()
    shared.reconcile(theirs, world=shared.with_store(store))
    key, (other,) = next(iter(store.kept.items()))

    instance = platform.add()
    before = shared.rows(platform, instance)
    report = shared.reconcile(platform, world=shared.with_store(Crossing(store, key, other.version))).report
    assert shared.rows(platform, instance) == before
    assert (report.outcome, report.counts.failures) == (Outcome.PARTIAL, {Code.IDENTITY_MISMATCH: 1})
    assert f"archive.conflict {Code.IDENTITY_MISMATCH}" in shared.audit_kinds(platform, instance)


@pytest.mark.parametrize("field", ["tenant", "instance", "epoch", "sha256", "manifest_digest", "size"])
def test_a_record_that_is_off_in_one_field_is_not_proven_by_the_object(shared, field):
    """A6: the length, the digest, the identity and the manifest's digest are each compared."""
    platform = shared.platform()
    instance = platform.add()
    store = MemoryStore()
    shared.reconcile(platform, world=shared.with_store(store))
    attempt = shared.world.records.archives(platform.tenant, limit=1)[0]
    stored = attempt.stored(attempt.version)
    assert stored.instance == instance
    keys = shared.world.keys

    def prove(record):
        return verification.verify(store, record, lambda key_id: keys.find(platform.tenant, key_id))

    assert prove(stored).stored == stored
    value = getattr(stored, field)
    other = value + 1 if isinstance(value, int) else value[::-1]
    with pytest.raises(RetentionError) as caught:
        prove(replace(stored, **{field: other}))
    assert (
        caught.value.code
        in {
            "tenant": {Code.IDENTITY_MISMATCH},
            "instance": {Code.IDENTITY_MISMATCH},
            "epoch": {Code.IDENTITY_MISMATCH},
            "sha256": {Code.OBJECT_DIGEST_MISMATCH},
            "manifest_digest": {Code.MANIFEST_DIGEST_MISMATCH},
            "size": {Code.OBJECT_LENGTH_MISMATCH},
        }[field]
    )


class ReplacingAfterwards(Overwriting):
    """A store without conditional writes, in which somebody writes the same key again before it is read."""

    def __init__(self, inner, body):
        super().__init__(inner)
        self.body = body

    def put_once(self, key, body, *, sha256, lock_until=None):
        version = super().put_once(key, body, sha256=sha256)
        (kept,) = self.inner.kept[key]
        kept.body = self.body(body)
        return version


def test_a_store_that_overwrites_is_found_out_when_something_was_overwritten(shared):
    """A5, A6: the same version serves other bytes, of the same length even."""
    platform = shared.platform()
    instance = platform.add()
    before = shared.rows(platform, instance)
    store = ReplacingAfterwards(MemoryStore(), flipped)
    report = shared.reconcile(platform, world=shared.with_store(store)).report
    assert (report.outcome, report.counts.deleted) == (Outcome.PARTIAL, 0)
    assert shared.rows(platform, instance) == before
    shared.forget_back_offs(platform)
    assert shared.reconcile(platform, world=shared.with_store(Overwriting(MemoryStore()))).report.counts.deleted == 1


@pytest.mark.parametrize("lie", [Dropping, FlippingReads, Occupied])
def test_the_explicit_path_believes_a_store_no_more(shared, lie):
    """W8, A6."""
    platform = shared.platform()
    instance = platform.add()
    before = shared.rows(platform, instance)
    shared.store = lie(MemoryStore())
    result = shared.explicit(platform, instance)
    assert (result.outcome, result.outcome.exit_code, result.counts.deleted) == (Outcome.PARTIAL, 7, 0)
    assert result.reason == next(iter(result.counts.failures))
    assert shared.rows(platform, instance) == before
    shared.store = MemoryStore()
    result = shared.explicit(platform, instance)
    assert (result.outcome, platform.exists(instance)) == (Outcome.COMPLETED, False)
