"""Keys are rotated, copied and lost without an archive being lost (SPEC A17, A18; F15)."""

import json
import threading
from contextlib import contextmanager
from functools import partial

import psycopg
import pytest

from retention_pipeline.keys.local import LocalKeyring
from retention_pipeline.model.tenant_keys import KEY_COPIES
from retention_pipeline.stages.key_copies import copy_keys
from retention_pipeline_tests import key_service
from retention_pipeline_tests.keyrooms import SECRET, keydesk, open_room, room
from retention_pipeline_tests.seams import Seams

__all__ = ["keydesk", "room"]


def rotate_root(desk, *more, **how):
    return desk.done("keys", "rotate", "root", "--reason", "yearly", *more, tenant=None, **how)


def rotate_root_code(desk):
    return desk.call("keys", "rotate", "root", "--reason", "r", tenant=None).code


def prune(desk, *more):
    told = desk.done("keys", "prune-roots", "--reason", "old", *more, tenant=None)
    return told["unneeded"], told["pruned"]


@contextmanager
def without_store(desk):
    """The store does not answer."""
    root = desk.home / "archives"
    root.rename(desk.home / "away")
    try:
        yield
    finally:
        (desk.home / "away").rename(root)


def test_a_new_generation_is_for_new_archives_and_secrets_and_the_older_ones_stay_readable(room):
    old = room.archive()[0]
    secret = room.done("secret", "put", text=SECRET)["secret_id"]
    told = room.done("keys", "rotate", "tenant", "--reason", "yearly")
    assert (told["generation"], told["copies_beside_archives"]) == (2, {"written": 1, "removed": 0, "failures": {}})
    new = room.archive()[0]
    room.done("secret", "put", text=SECRET)
    assert [room.code(archive) for archive in (old, new)] == [None, None]
    shown = [
        [entry[name] for name in ("generation", "state", "root", "archives", "secrets", "copies_beside_archives")]
        for entry in room.done("keys", "list")["keys"]
    ]
    assert shown == [[1, "older", "current", 1, 1, 1], [2, "current", "current", 1, 1, 1]]
    with room.app() as app, app.worker().transaction(room.tenant, read_only=True) as cursor:
        from retention_pipeline.postgres import credentials

        sealed = credentials.newest(cursor, room.tenant, secret)
        assert sealed.open(app.tenant_keys().find(room.tenant, sealed.key_id)).access_key == "AKIAEXAMPLE"


def test_a_new_root_wraps_every_key_of_every_tenant_anew(room, keydesk):
    other = open_room(keydesk)
    archives = {one: one.archive()[0] for one in (room, other)}
    room.done("keys", "rotate", "tenant", "--reason", "yearly")
    before = {one: one.wrapped() for one in archives}
    objects = {one: one.copies() for one in archives}
    told = rotate_root(keydesk)
    assert told["root_added"]
    assert (told["keys_wrapped_anew"] >= 3, told["failures"]) == (True, {})
    for one, archive in archives.items():
        assert one.code(archive) is None
        for (_, was_under, was, _), (_, under, now, revision) in zip(before[one], one.wrapped(), strict=True):
            assert (under == LocalKeyring(keydesk.keyring).current() != was_under, now != was, revision) == (
                True,
                True,
                2,
            )
        # Beside the archives lie the new copies alone.
        assert [(c["generation"], c["root_key_id"], bytes.fromhex(c["ciphertext"])) for c in one.copies()] == [
            (generation, root, ciphertext) for generation, root, ciphertext, _ in one.wrapped()
        ]
        assert not {c["ciphertext"] for c in objects[one]} & {c["ciphertext"] for c in one.copies()}
    assert rotate_root(keydesk)["root_added"]  # nothing is left of the last one


def test_a_keyring_from_before_the_rotation_or_none_is_told_by_name(room, keydesk):
    archive = room.archive()[0]
    before = keydesk.keyring.read_bytes()
    rotate_root(keydesk)
    after = keydesk.keyring.read_bytes()
    keydesk.keyring.write_bytes(before)
    assert room.code(archive) == "RETENTION_KEY_UNAVAILABLE"
    assert room.done("keys", "list")["keys"][0]["root"] == "older"
    keydesk.keyring.unlink()
    assert room.code(archive) == "RETENTION_KEYRING_MISSING"
    assert room.done("keys", "list")["keys"][0]["root"] is None
    keydesk.keyring.write_bytes(after)
    keydesk.keyring.chmod(0o600)
    assert room.code(archive) is None


def test_a_root_is_added_first_handed_out_and_only_then_used(room, keydesk):
    """On several machines, and before the keyring is backed up."""
    archive = room.archive()[0]
    before = room.wrapped()
    assert rotate_root(keydesk, "--add-only")["root_added"]
    assert room.wrapped() == before
    assert rotate_root(keydesk, "--add-only")["root_added"] is False
    assert rotate_root(keydesk)["root_added"] is False
    assert room.wrapped() != before
    assert room.code(archive) is None


def test_one_tenant_whose_key_does_not_open_stops_no_other(room, keydesk):
    archive = room.archive()[0]
    bad = open_room(keydesk)
    bad.archive()
    [(_, _, good, _)] = bad.wrapped()
    bad.platform.run("UPDATE retention.tenant_keys SET ciphertext = '\\x00' WHERE tenant_id = %s", bad.tenant)
    answer = keydesk.call("keys", "rotate", "root", "--reason", "r", tenant=None)
    assert (answer.code, answer.json["failures"]) == (7, {"WORKFLOW_ARCHIVE_OBJECT_UNAUTHENTIC": 1})
    assert room.wrapped()[0][1] == LocalKeyring(keydesk.keyring).current()
    assert room.code(archive) is None
    bad.platform.run("UPDATE retention.tenant_keys SET ciphertext = %s WHERE tenant_id = %s", good, bad.tenant)
    told = rotate_root(keydesk)
    assert (told["root_added"], told["keys_wrapped_anew"]) == (False, 1)


def test_roots_go_when_no_key_and_no_copy_needs_them(room, keydesk):
    archive = room.archive()[0]
    prune(keydesk, "--apply")
    with without_store(keydesk):
        answer = keydesk.call("keys", "rotate", "root", "--reason", "r", tenant=None)
        assert answer.code == 7  # the copies beside the archives are still of the older root
    assert answer.json["copies_beside_archives"]["failures"]
    assert prune(keydesk, "--apply") == (0, 0)
    for one in keydesk.platform.connection.execute("SELECT alias FROM nucleus.tenants").fetchall():
        keydesk.call("keys", "export", tenant=one[0])
    assert prune(keydesk) == (1, 0)
    assert prune(keydesk, "--apply") == (1, 1)
    assert prune(keydesk, "--apply") == (0, 0)
    assert len(json.loads(keydesk.keyring.read_text())["roots"]) == 1
    assert room.code(archive) is None
    [last] = keydesk.audit("root.pruned")[-1:]
    assert (last["tenant_id"], last["actor"], last["details"]) == ("*", "admin", {"count": 1})


def test_every_archive_is_readable_at_every_moment_of_rotations(room, keydesk):
    """F15: two rotations of the root at once, and of the tenant's key, while somebody reads all the time."""
    archives = room.archive(2)
    stop, failures, reads = threading.Event(), [], []

    def read():
        while not stop.is_set():
            try:
                with room.app() as app:  # nothing in memory
                    reads.append([room.read(app, archive) for archive in archives])
            except Exception as error:  # noqa: BLE001
                failures.append(error)

    def rotate(how):
        try:
            for _ in range(2):
                with room.app() as app:
                    how(app)
        except Exception as error:  # noqa: BLE001
            failures.append(error)

    def new_root(app):
        app.keyring().add_root()
        allow = partial(app.key_desk().allow_rotation, reason="r", correlation="c")
        done = rewrap_all(app.rewrapping(), app.key_provider(), allow)
        assert not done.failures
        app.copy_keys(room.tenant)

    def new_key(app):
        rotate_tenant(app.key_desk(), app.key_provider(), room.tenant, reason="r", correlation="c")

    from retention_pipeline.stages.key_rotation import rewrap_all, rotate_tenant

    threads = [threading.Thread(target=rotate, args=(how,)) for how in (new_root, new_root, new_key, new_key)]
    reader = threading.Thread(target=read)
    for thread in (reader, *threads):
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    reader.join()
    assert failures == []
    assert len(reads) > 1
    assert [generation for generation, *_ in room.wrapped()] == [1, 2, 3, 4, 5]
    rotate_root(keydesk)
    assert {root for _, root, *_ in room.wrapped()} == {LocalKeyring(keydesk.keyring).current()}
    assert len(room.copies()) == 5
    # Each time that a key was wrapped anew is on record, once.
    wraps = [e for e in keydesk.audit("key.rewrapped") if e["tenant_id"] == room.tenant]
    assert len(wraps) == sum(revision - 1 for *_, revision in room.wrapped())


def test_a_wrapped_key_of_another_tenant_does_not_open_in_its_place(room, keydesk):
    """A3: not even when somebody swaps rows in the database."""
    archive = room.archive()[0]
    other = open_room(keydesk)
    other.archive()
    [(_, root, mine, _)], [(_, _, theirs, _)] = room.wrapped(), other.wrapped()
    change = "UPDATE retention.tenant_keys SET ciphertext = %s WHERE tenant_id = %s"
    room.platform.run(change, theirs, room.tenant)
    assert room.code(archive) == "WORKFLOW_ARCHIVE_OBJECT_UNAUTHENTIC"
    room.platform.run(change, mine, room.tenant)
    assert (room.code(archive), room.wrapped()[0][1]) == (None, root)


# -- copies beside the archives ------------------------------------------------------------------------------------------


def test_a_run_leaves_its_key_beside_the_archives_and_opens_no_store_for_it_again(room, monkeypatch):
    room.archive()
    [copy] = room.copies()
    [(generation, root, ciphertext, _)] = room.wrapped()
    assert copy == {
        "format": "nucleus/wrapped-key.v1",
        "tenant": room.tenant,
        "generation": generation,
        "key_id": room.platform.value("SELECT key_id FROM retention.tenant_keys WHERE tenant_id = %s", room.tenant),
        "root_key_id": root,
        "ciphertext": ciphertext.hex(),
    }
    with room.app() as app:
        monkeypatch.setattr(app, "store", None)
        assert app.copy_keys(room.tenant).written == 0
        assert room.tenant not in app.key_copies().tenants()
    assert room.done("keys", "export") == {"tenant": room.alias, "written": 0, "removed": 0, "failures": {}}


def test_a_store_that_did_not_take_the_copy_gets_it_with_the_sealing_of_the_audit_record(room, keydesk):
    """F4: until then the sealing is not green."""
    room.archive()
    with without_store(keydesk):
        answer = room.call("keys", "rotate", "tenant", "--reason", "r")
        assert (answer.code, answer.json["generation"]) == (7, 2)
        sealed = room.call("audit", "seal")
        assert sealed.code != 0
    room.done("audit", "seal")
    assert [copy["generation"] for copy in room.copies()] == [1, 2]


def test_a_copy_that_was_overtaken_while_it_was_written_does_not_stay(room, keydesk):
    """What the key no longer is lies nowhere, whoever was slow."""
    room.archive()
    room.done("keys", "rotate", "tenant", "--reason", "r")
    room.platform.run("UPDATE retention.key_copies SET ended_at = now() WHERE tenant_id = %s", room.tenant)
    with room.store() as store:
        for found in tuple(store.walk(KEY_COPIES)):
            store.delete(found.key, found.version)

        def overtake():
            if len(list(store.walk(KEY_COPIES))) == 1:
                rotate_root(keydesk)

        with room.app() as app:
            slow = Seams(store, after={"put_once": overtake}, before={"close": lambda: None})
            copy_keys(app.key_copies(), lambda *_: slow, room.tenant)
    room.done("keys", "export")
    assert [(c["generation"], bytes.fromhex(c["ciphertext"])) for c in room.copies()] == [
        (generation, wrapped) for generation, _, wrapped, _ in room.wrapped()
    ]


def test_the_copies_follow_to_a_new_store_and_stay_in_the_old_one(room):
    """Beside each store's archives lies what opens them."""
    room.archive()
    room.done("profile", "set", "--provider", "filesystem", "--archive-retention-days", "365", "--config", "prefix=new")
    room.done("profile", "readiness")
    room.done("keys", "rotate", "tenant", "--reason", "r")
    found = room.platform.connection.execute(
        "SELECT c.profile_generation, k.generation FROM retention.key_copies AS c JOIN retention.tenant_keys AS k USING (key_id)"
        " WHERE c.tenant_id = %s AND c.ended_at IS NULL ORDER BY 1, 2",
        [room.tenant],
    ).fetchall()
    assert found == [(1, 1), (2, 1), (2, 2)]


def test_an_older_store_that_is_gone_for_good_is_told_by_the_doctor_and_not_every_five_minutes(room, keydesk):
    """F4 without crying wolf: the sealing of the audit record stays green."""
    room.archive()
    room.done("profile", "set", "--provider", "filesystem", "--archive-retention-days", "365", "--config", "prefix=new")
    room.done("profile", "readiness")
    old = next(
        (keydesk.home / "archives" / room.tenant).glob("*/keys"), keydesk.home / "archives" / room.tenant / "keys"
    )
    old.rename(old.with_name("away"))
    old.write_text("no folder")
    assert rotate_root_code(keydesk) == 7
    assert room.done("audit", "seal")["failures"] == {}
    room.platform.run("UPDATE retention.tenant_keys SET wrapped_at = now() - interval '2 h'")
    assert ailments(room) == {"KEY_UNCOPIED"}
    old.unlink()
    old.with_name("away").rename(old)
    room.done("keys", "export")
    assert ailments(room) == set()


def test_nothing_of_keys_is_shown(room, keydesk):
    """A16: generations and counts alone."""
    room.archive()
    calls = [("keys", "list"), ("keys", "export"), ("keys", "rotate", "tenant", "--reason", "r")]
    calls += [("keys", "destroy", "--reason", "r")]
    told = "".join(a.out + a.err for a in (room.call(*c, as_json=j) for c in calls for j in (True, False)))
    told += str(rotate_root(keydesk)) + str(keydesk.audit("key.rewrapped") + keydesk.audit("key.rotated"))
    kept = room.platform.connection.execute(
        "SELECT k.key_id, k.root_key_id, encode(k.ciphertext, 'hex'), c.object_key, c.object_version"
        " FROM retention.tenant_keys AS k JOIN retention.key_copies AS c USING (key_id)"
    ).fetchall()
    assert kept
    assert not [value for row in kept for value in row if value and value in told]


def ailments(room):
    found = {entry["code"].removeprefix("RETENTION_DOCTOR_") for entry in room.call("doctor").json["findings"]}
    return {code for code in found if "KEY" in code}


def test_the_doctor_sees_a_key_without_its_copy_and_a_destruction_without_its_end(room, keydesk):
    """O3: after an hour; until then runs and the sealing try again."""
    room.archive()
    with without_store(keydesk):
        room.call("keys", "rotate", "tenant", "--reason", "r")
    assert ailments(room) == set()
    age = "UPDATE retention.tenant_keys SET wrapped_at = now() - interval '2 h' WHERE tenant_id = %s"
    room.platform.run(age, room.tenant)
    assert ailments(room) == {"KEY_UNCOPIED"}
    room.done("keys", "export")
    assert ailments(room) == set()
    with without_store(keydesk):
        words = ("--reason", "r", "--confirm", room.alias, "--archives-too", "--apply")
        assert room.call("keys", "destroy", *words).error == "RETENTION_KEY_COPIES_LEFT"
    room.platform.run(
        "UPDATE retention.key_destructions SET at = now() - interval '2 h' WHERE tenant_id = %s", room.tenant
    )
    assert ailments(room) == {"KEY_UNCOPIED", "KEY_DESTRUCTION_UNFINISHED"}
    room.done("keys", "destroy", *words)
    assert ailments(room) == set()


# -- the database asks for the permission itself ---------------------------------------------------------------------------

ACTS = {
    "allow": "SELECT retention.allow_root_rotation('r', 'r', 'c')",
    "add": "SELECT retention.add_key(2, 'k', 'r', '\\x00', 'r', 'c')",
    "begin": "SELECT retention.begin_key_destruction(true, 'r', 'c')",
    "finish": "SELECT retention.finish_key_destruction(true, 'c')",
    "usage": "SELECT * FROM retention.key_usage()",
    "stakes": "SELECT * FROM retention.key_stakes()",
    "roots": "SELECT * FROM retention.roots_in_use()",
    "note": "SELECT retention.note_roots('root.added', 1, 'r', 'c')",
    "update": "UPDATE retention.tenant_keys SET ciphertext = NULL",
    "delete": "DELETE FROM retention.tenant_keys",
}


@pytest.mark.parametrize("login", ["clerk", "worker"])
@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)
def test_whoever_may_not_manage_keys_does_nothing_by_plain_sql(keydesk, login, act):
    """G3: the worker's own login neither."""
    with psycopg.connect(keydesk.database.url(login), autocommit=True) as connection:
        connection.execute("SELECT set_config('retention.tenant_id', %s, false)", [keydesk.platform.tenant])
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute(act)


REWRAP = "SELECT retention.rewrap_key(1, 1, 'local-rubbish', '\\x00')"


def test_who_may_say_yes_does_not_put_a_wrapped_key_there_and_who_puts_it_does_nothing_without_the_yes(room, keydesk):
    """G4, G1: by rubbish in the place of a wrapped key, a hold would be passed by."""
    [archive] = room.archive()
    for login, state in (("admin", "42501"), ("clerk", "42501"), ("worker", "RT010")):
        with psycopg.connect(keydesk.database.url(login), autocommit=True) as connection:
            connection.execute("SELECT set_config('retention.tenant_id', %s, false)", [room.tenant])
            with pytest.raises(psycopg.Error) as refused:
                connection.execute(REWRAP)
        assert refused.value.sqlstate == state
    assert room.code(archive) is None
    rotate_root(keydesk)
    [event] = [e for e in keydesk.audit("key.rewrapped") if e["tenant_id"] == room.tenant]
    assert (event["actor"], event["session_role"], event["reason"]) == ("admin", "worker", "yearly")


def test_the_worker_makes_a_first_key_and_no_other(keydesk):
    with psycopg.connect(keydesk.database.worker_url, autocommit=True) as connection:
        connection.execute("SELECT set_config('retention.tenant_id', %s, false)", [keydesk.platform.tenant])
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute(
                "INSERT INTO retention.tenant_keys (tenant_id, generation, key_id, root_key_id, ciphertext)"
                " VALUES (%s, 2, 'k', 'r', '')",
                [keydesk.platform.tenant],
            )


# -- AWS KMS in the place of the file --------------------------------------------------------------------------------------


def test_an_installation_moves_to_the_key_service_and_asks_it_once_for_each_key(keydesk, tmp_path):
    """A18, A14: through the allowlist, never per object; and back again."""
    with key_service.running() as service:
        credentials = tmp_path / "kms.json"
        credentials.write_text(json.dumps({"access_key": key_service.ACCESS, "secret_key": key_service.SECRET}))
        credentials.chmod(0o600)
        kms = {
            "RETENTION_KEY_PROVIDER": "aws-kms",
            "RETENTION_KMS_KEY_ID": service.make(),
            "RETENTION_KMS_REGION": key_service.REGION,
            "RETENTION_KMS_ENDPOINT": service.endpoint,
            "RETENTION_KMS_CREDENTIALS": str(credentials),
        }
        room = open_room(keydesk)
        before = room.archive(3)
        room.environment = kms
        answer = keydesk.call("keys", "rotate", "root", "--reason", "to KMS", tenant=None, **kms)
        assert answer.json["failures"] == {"RETENTION_EGRESS_NOT_APPROVED": answer.json["failures"].popitem()[1]}
        assert service.calls == []
        allow = ("egress", "allow", service.endpoint, "--network", "127.0.0.1/32", "--reason", "KMS")
        keydesk.done(*allow, tenant=None)
        told = rotate_root(keydesk, **kms)
        assert (told["root_added"], told["failures"]) == (False, {})
        assert room.wrapped()[0][1] == "aws-kms:" + kms["RETENTION_KMS_KEY_ID"]
        after = room.archive(3)
        service.calls.clear()
        with room.app() as app:
            for archive in (*before, *after) * 2:
                assert room.read(app, archive)
        assert [(name, bound["tenant"]) for name, bound in service.calls] == [("Decrypt", room.tenant)]
        service.disabled.add(kms["RETENTION_KMS_KEY_ID"])
        assert room.code(before[0]) == "RETENTION_KEY_UNAVAILABLE"
        service.disabled.clear()
        assert room.call("audit", "seal").code == 0  # with the key of the file, as before
        back = {**kms, "RETENTION_KEY_PROVIDER": "keyring"}
        rotate_root(keydesk, **back)
        room.environment = {}
        assert [room.code(archive) for archive in (*before, *after)] == [None] * 6
