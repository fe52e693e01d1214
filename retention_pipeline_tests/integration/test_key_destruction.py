"""A tenant's keys are destroyed: looked at first, refused where it must be, finished when it was begun, and for good (SPEC A18, G1)."""

import json
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256

import pytest

from retention_pipeline.errors import Code, RetentionError
from retention_pipeline.governance.key_copy import write_copy
from retention_pipeline.governance.key_destruction import obstacles
from retention_pipeline.model.ids import ObjectKey, TenantId
from retention_pipeline.model.outcome import Outcome
from retention_pipeline.model.ports import WrappedKey
from retention_pipeline.model.tenant_keys import KeptKey, Stakes
from retention_pipeline.postgres import tenant_keys
from retention_pipeline.postgres.key_desk import PostgresKeyDesk
from retention_pipeline.postgres.session import Session
from retention_pipeline_tests.keyrooms import SECRET, keydesk, open_room, room
from retention_pipeline_tests.rows import new_id
from retention_pipeline_tests.seams import EXPORTED, acting

__all__ = ["keydesk", "room"]


def destroy(room, *more, **how):
    words = ("keys", "destroy", "--reason", "contract ended", "--confirm", room.alias, "--archives-too", "--apply")
    return room.call(*words, *more, **how)


def preflight(room, *more):
    return room.done("keys", "destroy", "--reason", "contract ended", *more)


@contextmanager
def without_store(desk):
    root = desk.home / "archives"
    root.rename(desk.home / "away")
    try:
        yield
    finally:
        (desk.home / "away").rename(root)


STAKES = Stakes(
    generations=1, in_flight=0, holds=0, kept=0, archives={}, secrets=0, copies=0, begun_at=None, destroyed=0
)


def test_every_reason_to_keep_them_is_told():
    found = obstacles(replace(STAKES, in_flight=1, holds=1, kept=1), archives_too=False)
    assert found == (Code.KEY_HELD, Code.KEY_IN_USE, Code.KEY_ARCHIVES_KEPT)
    assert obstacles(replace(STAKES, kept=1), archives_too=True) == ()


def test_it_is_looked_at_first_and_nothing_changes(room):
    room.archive(2)
    room.done("secret", "put", text=SECRET)
    before = room.wrapped()
    told = preflight(room)
    assert (told["outcome"], told["would_destroy"], told["codes"]) == (
        "preflight",
        False,
        ["RETENTION_KEY_ARCHIVES_KEPT"],
    )
    assert (told["archives_that_become_unreadable"], told["within_their_period"]) == ({"source_deleted": 2}, 2)
    assert (told["secrets_that_become_unreadable"], told["copies_beside_archives"]) == (1, 1)
    assert preflight(room, "--archives-too")["would_destroy"]
    assert room.wrapped() == before


@pytest.mark.parametrize("confirm", [(), ("--confirm", "another")])
def test_the_alias_is_typed_once_more(room, confirm):
    answer = room.call("keys", "destroy", "--reason", "r", "--archives-too", "--apply", *confirm)
    assert (answer.code, answer.error) == (2, "RETENTION_USAGE")


def test_nobody_reads_it_any_more_and_the_records_stay(room, keydesk):
    """A18: in no process, also one that had the key in memory; beside the archives neither."""
    [archive] = room.archive()
    room.done("secret", "put", text=SECRET)
    with room.app() as app:
        now = [0.0]
        app.tenant_keys().stopwatch = lambda: now[0]
        assert room.read(app, archive)
        told = destroy(room)
        assert (told.code, told.json["generations_destroyed"], told.json["copies_removed"]["removed"]) == (0, 1, 1)
        now[0] = tenant_keys.TRUSTED_SECONDS + 1
        with pytest.raises(RetentionError, match="RETENTION_KEY_DESTROYED"):
            room.read(app, archive)
    assert room.code(archive) == "RETENTION_KEY_DESTROYED"
    assert (room.copies(), room.wrapped()[0][2]) == ([], None)
    with room.store() as store:
        assert len(list(store.walk())) == 1  # the archive itself, which says nothing
    [shown] = room.done("inspect")["archives"]
    assert (shown["archive"], shown["state"]) == (archive, "source_deleted")
    assert [e["kind"] for kind in ("key.destruction_begun", "key.destroyed") for e in keydesk.audit(kind)[-1:]] == [
        "key.destruction_begun",
        "key.destroyed",
    ]
    [event] = keydesk.audit("key.destroyed")[-1:]
    assert (event["actor"], event["reason"]) == ("admin", "contract ended")
    assert event["details"] == {"generations": 1, "copies_left": 0}
    # Nothing new is sealed, until somebody wants that.
    instance = room.platform.add()
    report = room.run().report
    assert (report.outcome, report.reason) == (Outcome.BLOCKED, "RETENTION_KEY_DESTROYED")
    assert room.platform.exists(instance)
    assert room.call("secret", "put", text=SECRET).error == "RETENTION_KEY_DESTROYED"
    assert destroy(room).json["generations_destroyed"] == 0  # twice is once
    assert room.done("keys", "rotate", "tenant", "--reason", "a new contract")["generation"] == 2
    assert room.run().report.outcome is Outcome.COMPLETED
    assert [entry["state"] for entry in room.done("keys", "list")["keys"]] == ["destroyed", "current"]
    assert room.call("doctor").json["findings"] == [] or "KEY" not in str(room.call("doctor").json["findings"])


def test_a_hold_of_the_tenant_forbids_it_and_one_after_it_comes_too_late(room):
    """G1: of whichever instance; and never "OK" for what can't be read any more."""
    [archive] = room.archive()
    gone = str(room.platform.value("SELECT instance_id FROM retention.attempts WHERE id = %s", archive))
    there = room.platform.add(ended="2026-11-30 00:00:00+00")
    room.done("hold", there, "--reason", "a court asks")
    assert preflight(room, "--archives-too")["codes"] == ["RETENTION_KEY_HELD"]
    answer = destroy(room)
    assert (answer.code, answer.error) == (3, "RETENTION_KEY_HELD")
    assert room.code(archive) is None
    room.done("hold", there, "--release", "--reason", "settled")
    assert destroy(room).code == 0
    assert room.call("hold", gone, "--reason", "too late").error == "RETENTION_HOLD_TOO_LATE"
    room.done("hold", there, "--reason", "its rows are there")


def test_archives_in_flight_forbid_it(room):
    room.archive()
    room.platform.run("UPDATE retention.attempts SET state = 'verified' WHERE tenant_id = %s", room.tenant)
    assert preflight(room)["codes"] == ["RETENTION_KEY_IN_USE"]
    assert destroy(room).error == "RETENTION_KEY_IN_USE"
    assert room.wrapped()[0][2] is not None


def test_archives_within_their_period_are_destroyed_only_by_name(room):
    [archive] = room.archive()
    words = ("keys", "destroy", "--reason", "r", "--confirm", room.alias, "--apply")
    assert room.call(*words).error == "RETENTION_KEY_ARCHIVES_KEPT"
    room.platform.run(
        "UPDATE retention.attempts SET source_deleted_at = now() - interval '366 days' WHERE id = %s", archive
    )
    assert room.call(*words).code == 0  # its period is over


def test_a_store_that_does_not_answer_leaves_it_unfinished_and_the_next_call_finishes_it(room, keydesk):
    [archive] = room.archive()
    gone = str(room.platform.value("SELECT instance_id FROM retention.attempts WHERE id = %s", archive))
    with without_store(keydesk):
        answer = destroy(room)
        assert (answer.code, answer.error) == (3, "RETENTION_KEY_COPIES_LEFT")
    assert room.wrapped()[0][2] is not None
    # There is no way back from here.
    assert room.call("hold", gone, "--reason", "too late").error == "RETENTION_HOLD_TOO_LATE"
    assert room.call("keys", "rotate", "tenant", "--reason", "r").error == "RETENTION_KEY_DESTROYED"
    assert room.done("keys", "list")["keys"][0]["state"] == "being destroyed"
    room.platform.add()
    assert room.run().report.reason == "RETENTION_KEY_DESTROYED"
    assert preflight(room)["would_destroy"]
    answer = destroy(room)
    assert (answer.code, answer.json["generations_destroyed"]) == (0, 1)
    assert (room.copies(), room.code(archive)) == ([], "RETENTION_KEY_DESTROYED")


def test_where_the_store_is_gone_for_good_it_is_finished_by_name_and_says_what_it_left(room, keydesk):
    [archive] = room.archive()
    with without_store(keydesk):
        answer = destroy(room, "--without-store")
        assert (answer.code, answer.json["generations_destroyed"]) == (0, 1)
        assert answer.json["copies_removed"]["failures"]
        with room.app() as app:
            assert room.tenant not in app.key_copies().tenants()  # nobody waits for what was left
    assert room.code(archive) == "RETENTION_KEY_DESTROYED"
    assert keydesk.audit("key.destroyed")[-1]["details"]["copies_left"] == 1
    assert len(room.copies()) == 1
    room.done("keys", "export")  # the store is back after all
    assert room.copies() == []


def test_copies_that_no_record_knows_go_too_and_those_of_others_stay(room):
    """A database that was restored from its backup has forgotten some; a bucket may be shared."""
    room.archive()
    with room.store() as store:
        for tenant, generation in ((room.tenant, 1), (TenantId(new_id()), 1)):
            kept = KeptKey(
                tenant=tenant,
                id="k",
                generation=generation,
                revision=1,
                wrapped=WrappedKey(root_key_id="local-1", ciphertext=b"wrapped"),
            )
            body = write_copy(kept)
            store.put_once(ObjectKey(f"keys/{new_id()}"), body, sha256=sha256(body).digest())
        store.put_once(ObjectKey("keys/none"), b"no key", sha256=sha256(b"no key").digest())
    assert destroy(room).json["copies_removed"]["removed"] == 2
    with room.store() as store:
        left = [entry.key for entry in store.walk("keys/")]
    assert len(left) == 2
    assert "keys/none" in left


def test_a_run_that_sealed_under_a_key_just_before_it_goes_stores_and_deletes_nothing(shared):
    """A8: the key is in its memory still; the database is not fooled."""
    platform = shared.platform()
    shared.reconcile(platform)
    first = platform.add()
    shared.reconcile(platform)
    instance = platform.add()
    before, objects = shared.rows(platform, instance), len(shared.store.kept)
    session = Session(url=shared.database.operator_url)
    desk = PostgresKeyDesk(session=session)

    def gone():
        with_all = {"archives_too": True, "reason": "r", "correlation": "c"}
        assert desk.begin_destruction(platform.tenant, **with_all) == 1
        assert desk.finish_destruction(platform.tenant, without_store=True, correlation="c") == 1

    report = shared.reconcile(platform, world=acting(shared.world, EXPORTED, gone)).report
    session.close()
    assert (report.outcome, report.reason) == (Outcome.BLOCKED, Code.KEY_DESTROYED)
    assert shared.rows(platform, instance) == before
    assert len(shared.store.kept) == objects
    assert not platform.exists(first)


def test_two_at_once_do_it_once(room, keydesk):
    import threading

    room.archive()
    codes = []

    def act():
        with room.app() as app:
            from retention_pipeline.stages.key_destruction import destroy as destroy_keys

            how = {"archives_too": True, "without_store": False, "reason": "r", "correlation": "c"}
            codes.append(destroy_keys(app.key_desk(), app.key_copies(), app.store, room.tenant, **how).generations)

    threads = [threading.Thread(target=act) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(codes) == [0, 1]
    assert len([e for e in keydesk.audit("key.destroyed") if e["tenant_id"] == room.tenant]) == 1


def test_another_tenants_keys_stand(room, keydesk):
    other = open_room(keydesk)
    [theirs] = other.archive()
    room.archive()
    destroy(room)
    assert other.code(theirs) is None
    assert json.loads(keydesk.keyring.read_text())["roots"]
