"""What every archive store promises, tried on each of them (A5, A6, A10, A15)."""

import os
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from hashlib import sha256

import pytest

from retention_pipeline import clock
from retention_pipeline.errors import Code, Integrity, Refused, RetentionError
from retention_pipeline.model.ports import Deletion, ObjectLock
from retention_pipeline.storage.readiness import probe
from retention_pipeline_tests import faulty

KEY = "2024/0a1b"
BODY = os.urandom(70_000)


def put(store, key=KEY, body=BODY, **how):
    return store.put_once(key, body, sha256=sha256(body).digest(), **how)


def get(store, key, version, step=9_999):
    found = bytearray()
    with store.read(key, version) as stream:
        while piece := stream.read(step):
            found += piece
    return bytes(found)


def code_of(call, *args, **how):
    with pytest.raises(RetentionError) as raised:
        call(*args, **how)
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__ or raised.value.__context__ is None
    return raised.value.code


@pytest.mark.parametrize("body", [b"", b"x", BODY, os.urandom(5 << 20)], ids=["empty", "one", "some", "large"])
def test_what_was_written_is_read_back_a6(store, body):
    version = put(store, body=body)
    assert get(store, KEY, version) == body


def test_a_key_is_taken_once_a5(store):
    version = put(store)
    for other in (b"other", BODY):
        assert code_of(put, store, body=other) is Code.OBJECT_EXISTS
    assert [found.version for found in store.versions(KEY)] == [version]
    assert get(store, KEY, version) == BODY


def test_of_many_writers_at_once_one_wins_a5(store):
    refusals = []

    def attempt(number):
        try:
            return put(store, body=b"%d" % number), number
        except RetentionError as error:
            refusals.append(error.code)
            return None

    with ThreadPoolExecutor(8) as pool:
        won = [result for result in pool.map(attempt, range(8)) if result]
    assert set(refusals) <= {Code.OBJECT_EXISTS, Code.STORE_CONTENDED}
    ((version, number),) = won
    assert get(store, KEY, version) == b"%d" % number
    assert len(store.versions(KEY)) == 1


def test_a_body_that_is_not_what_its_digest_says_is_refused_and_leaves_nothing_a5(store):
    assert code_of(store.put_once, KEY, BODY, sha256=sha256(b"other").digest()) is Code.OBJECT_DIGEST_MISMATCH
    assert store.versions(KEY) == ()
    assert list(store.walk()) == []


def test_versions_are_those_of_exactly_this_key(store):
    versions = {key: put(store, key, key.encode()) for key in ("a", "a.b", "ab", "a/b", "a-")}
    for key, version in versions.items():
        (found,) = store.versions(key)
        assert (found.key, found.version, found.size) == (key, version, len(key))
    assert store.versions("b") == ()


def test_a_walk_finds_every_object_once_a19(store):
    written = {(key, put(store, key)) for key in ("a", "b/c", "b/d/e", "z")}
    assert sorted((found.key, found.version) for found in store.walk()) == sorted(written)


def test_a_walk_below_a_folder_finds_what_is_in_it_alone_g5(store):
    written = {(key, put(store, key)) for key in ("b/c", "b/d/e")}
    for other in ("a", "b.c", "bb/c", "z/b/c"):
        put(store, other)
    assert sorted((found.key, found.version) for found in store.walk("b/")) == sorted(written)
    assert list(store.walk("c/")) == []
    for outside in ("b", "../", "/", "a/../"):
        assert code_of(lambda: list(store.walk(outside))) is Code.STORE_PATH_UNSAFE  # noqa: B023


def test_a_walk_of_an_empty_store_is_empty(store):
    assert list(store.walk()) == []


def test_a_version_that_is_not_there_is_missing_a19(store):
    version = put(store)
    for key, other in ((KEY, "0" * 32), (KEY, "unheard-of"), ("elsewhere", version), ("2024", version)):
        with pytest.raises(Integrity) as raised, store.read(key, other):
            pass
        assert raised.value.code is Code.OBJECT_MISSING


def test_exactly_one_version_is_deleted_and_nothing_marks_its_place_a10(store):
    version, other = put(store), put(store, "2024/other")
    assert store.delete(KEY, version) is Deletion.DELETED
    assert store.versions(KEY) == ()
    assert [found.version for found in store.walk()] == [other]
    assert get(store, "2024/other", other) == BODY


def test_a_version_that_is_gone_is_said_to_be_gone_f8(store):
    version = put(store)
    assert store.delete(KEY, "0" * 32) is Deletion.GONE
    assert store.delete(KEY, version) is Deletion.DELETED
    assert store.delete(KEY, version) is Deletion.GONE
    assert store.delete("never/was", version) is Deletion.GONE


def test_a_key_can_be_taken_again_by_another_version_once_it_is_free_a10(store):
    first = put(store)
    store.delete(KEY, first)
    second = put(store, body=b"second")
    assert first != second
    assert get(store, KEY, second) == b"second"
    assert store.delete(KEY, first) is Deletion.GONE


@pytest.mark.parametrize(
    "key",
    [
        "",
        ".",
        "..",
        "../x",
        "a/../b",
        "a/./b",
        "/a",
        "a/",
        "a//b",
        "a b",
        "a\\b",
        "a\0b",
        ".hidden",
        "a/.incoming",
        "ü",
        "a@",
    ],
)
def test_a_key_that_could_lead_elsewhere_is_refused_a12(store, key):
    for call in (lambda: put(store, key), lambda: store.versions(key), lambda: store.delete(key, "0" * 32)):
        assert code_of(call) is Code.STORE_PATH_UNSAFE
    with pytest.raises(Refused), store.read(key, "0" * 32):
        pass


def test_a_reader_may_stop_half_way(store):
    version = put(store)
    with store.read(KEY, version) as stream:
        assert stream.read(10)
    assert get(store, KEY, version) == BODY


def test_a_readers_own_error_passes_unchanged(store):
    version = put(store)
    with pytest.raises(FileNotFoundError, match="mine"), store.read(KEY, version):
        raise FileNotFoundError("mine")


def test_no_store_shows_where_it_is_a16(store, tmp_path):
    put(store)
    for call in (lambda: put(store), lambda: put(store, "../x")):
        with pytest.raises(RetentionError) as raised:
            call()
        assert not any(part in str(raised.value) for part in (KEY, str(tmp_path), "127.0.0.1", "bucket-"))
    assert str(tmp_path) not in repr(store)


def test_a_lock_is_refused_where_there_is_none(store):
    assert not store.locks()
    with pytest.raises(RetentionError):
        put(store, lock_until=clock.utc_now() + timedelta(days=1))
    assert store.versions(KEY) == ()


def test_a_locked_version_is_locked_f8(locking_store):
    assert locking_store.locks()
    version = put(locking_store, lock_until=clock.utc_now() + timedelta(days=1))
    assert locking_store.delete(KEY, version) is Deletion.LOCKED
    assert get(locking_store, KEY, version) == BODY


def test_a_lock_can_be_made_longer_a11(locking_store):
    version = put(locking_store)
    locking_store.lock(KEY, version, until=clock.utc_now() + timedelta(days=400))
    assert locking_store.delete(KEY, version) is Deletion.LOCKED


def test_a_store_says_what_holds_a_version_a11(locking_store, store):
    until = clock.utc_now().replace(microsecond=0) + timedelta(days=400)
    version = put(locking_store)
    assert locking_store.lock_state(KEY, version) == ObjectLock(until=None, held=False)
    locking_store.lock(KEY, version, until=until)
    locking_store.hold(KEY, version, on=True)
    assert locking_store.lock_state(KEY, version) == ObjectLock(until=until, held=True)
    assert store.lock_state(KEY, put(store)) == ObjectLock(until=None, held=False)


def test_a_hold_keeps_a_version_until_it_is_lifted_a11(locking_store):
    version = put(locking_store)
    locking_store.hold(KEY, version, on=True)
    assert locking_store.delete(KEY, version) is Deletion.LOCKED
    locking_store.hold(KEY, version, on=False)
    assert locking_store.delete(KEY, version) is Deletion.DELETED


def test_a_good_store_is_ready_and_keeps_nothing_of_the_probe_a15(store):
    assert probe(store) == ()
    assert list(store.walk()) == []


@pytest.mark.parametrize(
    ("lie", "code"),
    [
        (faulty.Overwriting, Code.READINESS_NO_CONDITIONAL_CREATE),
        (faulty.FlippingReads, Code.READINESS_PROBE_CHANGED),
        (faulty.CuttingReads, Code.READINESS_UNREADABLE),
        (lambda inner: faulty.Altering(inner, faulty.truncated), Code.READINESS_PROBE_CHANGED),
        (lambda inner: faulty.Altering(inner, faulty.flipped), Code.READINESS_PROBE_CHANGED),
        (faulty.Dropping, Code.READINESS_NO_CONDITIONAL_CREATE),
    ],
    ids=["overwrites", "flips reads", "cuts reads", "truncates", "flips", "drops"],
)
def test_a_store_that_lies_is_not_ready_a15(store, lie, code):
    assert code in {finding.code for finding in probe(lie(store))}


def test_what_a_lost_answer_left_can_be_found_and_read_f2(store):
    assert code_of(put, faulty.LosingAnswers(store)) is Code.STORE_UNAVAILABLE
    (found,) = store.versions(KEY)
    assert get(store, KEY, found.version) == BODY
    assert code_of(put, store) is Code.OBJECT_EXISTS
