"""Heads outside the database: in a file of this machine, and anchored in the archive stores (SPEC G5, A5, A16)."""

import json
import shutil
import stat
import threading

import pytest

from retention_pipeline import audit
from retention_pipeline.errors import Code, Unavailable
from retention_pipeline.governance.audit import encoded
from retention_pipeline.keys.local import LocalKeyring
from retention_pipeline.model.audit import INSTALLATION, Head
from retention_pipeline.storage.heads import HeadFile
from retention_pipeline_tests.conformance.conftest import make_store, transport
from retention_pipeline_tests.integration.test_audit_record import cut
from retention_pipeline_tests.ledgers import Ledger, ledger

__all__ = ["ledger", "make_store", "transport"]


def heads(ledger):
    return ledger.home / "audit-heads.json"


def anchored(ledger):
    """The anchors' folders, oldest first."""
    return sorted(ledger.anchors.iterdir()) if ledger.anchors.exists() else []


def age(ledger, hours: int) -> None:
    """Time passes for the note of the last anchor."""
    ledger.bend(
        "UPDATE retention.audit_anchors SET at = at - make_interval(hours => %s) WHERE tenant_id = %s",
        hours,
        ledger.tenant,
    )


# -- this machine's file -----------------------------------------------------------------------------------------------


def test_the_file_of_heads_is_private_and_whole(ledger):
    ledger.sealed(1, 1)
    assert stat.S_IMODE(heads(ledger).stat().st_mode) == 0o600
    [entry] = json.loads(heads(ledger).read_text())["heads"]
    assert (entry["tenant"], entry["block"]) == (ledger.tenant, 2)
    assert [path.name for path in ledger.home.iterdir() if path.name.startswith(".")] == []


def test_a_later_head_is_never_replaced_by_an_earlier_one(ledger):
    """Two sealers of one machine end in whatever order."""
    ledger.sealed(1, 1)
    file = HeadFile(ledger.home, LocalKeyring(ledger.home / "keyring.json").mac_key("audit"))
    later = file.read()[ledger.tenant]
    file.keep(Head(tenant=ledger.tenant, block=1, mac=bytes(32), sealed_at="then"))
    file.keep(Head(tenant=ledger.tenant, block=2, mac=bytes(32), sealed_at="then"))
    assert file.read()[ledger.tenant] == later


def test_heads_that_are_kept_at_the_same_time_are_all_kept(ledger):
    """Of one machine, by many processes."""
    key = LocalKeyring(ledger.home / "keyring.json").mac_key("audit")
    kept = [Head(tenant=f"t{n}", block=1, mac=bytes(32), sealed_at="now") for n in range(24)]
    threads = [threading.Thread(target=lambda h=head: HeadFile(ledger.home, key).keep(h)) for head in kept]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(HeadFile(ledger.home, key).read()) == {head.tenant for head in kept}


def test_each_chain_has_its_own_head_in_it(ledger):
    other = type(ledger)(database=ledger.database, home=ledger.home)
    ledger.sealed(1, 1)
    other.sealed(1)
    assert {e["tenant"]: e["block"] for e in json.loads(heads(ledger).read_text())["heads"]} == {
        ledger.tenant: 2,
        other.tenant: 1,
    }


@pytest.mark.parametrize(
    "bent",
    [
        lambda text: text.replace('"block": 2', '"block": 1'),
        lambda text: text.replace('"signature": "', '"signature": "00'),
        lambda text: text.replace("audit-heads.v1", "audit-heads.v2"),
        lambda text: text[:-10],
        lambda _: "[]",
        lambda _: "",
    ],
)
def test_a_file_that_somebody_changed_is_refused_and_not_overwritten(ledger, bent):
    """Sealing goes on, and is not green."""
    ledger.sealed(1, 1)
    changed = bent(heads(ledger).read_text())
    heads(ledger).write_text(changed)
    assert ledger.found() == [("HEAD_INVALID", None, None)]
    ledger.write(1)
    report = ledger.seal()
    assert (report.events, report.broken, dict(report.failures)) == (1, True, {"RETENTION_AUDIT_HEAD_INVALID": 1})
    assert heads(ledger).read_text() == changed


def test_a_home_that_cannot_be_written_fails_by_name_and_the_block_stands(ledger, monkeypatch):
    ledger.write(1)

    def full(*_, **__):
        raise OSError(28, "no space")

    monkeypatch.setattr("retention_pipeline.storage.heads.os.rename", full)
    report = ledger.seal()
    assert (report.events, dict(report.failures)) == (1, {"RETENTION_AUDIT_HEAD_UNWRITABLE": 1})
    monkeypatch.undo()
    assert ledger.found() == []


def test_without_the_keyring_nothing_is_sealed_or_verified(ledger):
    ledger.write(1)
    (ledger.home / "keyring.json").rename(ledger.home / "elsewhere.json")
    for call in (ledger.seal, ledger.verify):
        with pytest.raises(Unavailable) as raised:
            call()
        assert raised.value.code is Code.KEYRING_MISSING


def test_another_keyring_says_that_every_block_is_changed(ledger):
    [(event,)] = ledger.sealed(1)
    heads(ledger).unlink()
    (ledger.home / "keyring.json").unlink()
    LocalKeyring.create(ledger.home / "keyring.json")
    assert ledger.found() == [("BLOCK_CHANGED", 1, None), ("EVENT_CHANGED", 1, event)]


def test_the_chain_survives_a_rotation_of_the_root_key(ledger):
    ledger.sealed(1)
    LocalKeyring(ledger.home / "keyring.json").add_root()
    ledger.sealed(1)
    assert ledger.found() == []


# -- anchors -----------------------------------------------------------------------------------------------------------


def test_a_head_is_anchored_when_it_moved_and_the_last_anchor_is_a_day_old(ledger):
    ledger.ready_store()
    ledger.write(1)
    assert (ledger.seal().anchors, ledger.seal().anchors) == (1, 0)
    ledger.write(1)
    assert ledger.seal().anchors == 0  # moved, but only just anchored
    age(ledger, 23)
    assert ledger.seal().anchors == 0
    age(ledger, 2)
    assert (ledger.seal().anchors, ledger.seal().anchors) == (1, 0)
    age(ledger, 48)
    assert ledger.seal().anchors == 0  # old, but nothing moved
    assert ledger.seal(anchor_now=True).anchors == 1
    assert len(anchored(ledger)) == 3
    seen = ledger.verify()
    assert (seen.result.findings, seen.unread, seen.read, seen.anchor.head.block) == ([], [], 1, 2)


def test_an_anchor_is_on_record_before_it_is_written(ledger, monkeypatch):
    """A5: no crash leaves an object that nobody knows of."""
    ledger.ready_store()
    ledger.write(1)
    monkeypatch.setattr("retention_pipeline.storage.filesystem.FilesystemStore.put_once", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        ledger.seal()
    assert ledger.platform.value(
        "SELECT array_agg(object_version) FROM retention.audit_anchors WHERE tenant_id = %s", ledger.tenant
    ) == [None]
    monkeypatch.undo()
    assert (ledger.seal().anchors, ledger.found()) == (1, [])


def test_a_cut_tail_is_found_by_the_anchor_where_no_machine_kept_a_head(ledger):
    ledger.ready_store()
    ledger.sealed(1, 1)
    ledger.seal(anchor_now=True)
    cut(ledger, 2)
    heads(ledger).unlink()
    assert ledger.found() == [("CHAIN_SHORTER", 2, None)]
    ledger.write(1)
    ledger.seal()
    assert ledger.found() == [("HEAD_DIFFERS", 2, None)]


def test_the_evidence_of_an_anchor_is_not_covered_by_a_newer_one(ledger):
    """No anchor is written that does not contain the last one."""
    ledger.ready_store()
    ledger.sealed(1, 1)
    ledger.seal(anchor_now=True)
    cut(ledger, 2)
    heads(ledger).unlink()
    ledger.write(2)
    before = anchored(ledger)
    report = ledger.seal(anchor_now=True)
    assert (report.events, report.anchors, report.broken) == (2, 0, True)
    assert dict(report.failures) == {"RETENTION_AUDIT_HEAD_DIFFERS": 1}
    assert anchored(ledger) == before
    assert ledger.seal(restored="the disk died").anchors == 1
    assert (ledger.found(), len(anchored(ledger))) == ([], len(before) + 1)


def test_a_removed_anchor_is_missed(ledger):
    ledger.ready_store()
    ledger.sealed(1)
    ledger.write(1)
    ledger.seal(anchor_now=True)
    shutil.rmtree(anchored(ledger)[-1])
    assert ledger.found() == [("ANCHOR_MISSING", None, None)]
    shutil.rmtree(ledger.anchors)
    assert ledger.found() == [("ANCHOR_MISSING", None, None)]


def test_an_old_anchor_under_a_newer_name_is_none(ledger):
    """An anchor names itself: a copy hides no later one."""
    ledger.ready_store()
    ledger.sealed(1)
    ledger.seal(anchor_now=True)
    [old, *_] = anchored(ledger)
    ledger.sealed(1)
    ledger.seal(anchor_now=True)
    shutil.copytree(old, old.with_name("99991231235959000000-0000000000000000@"))
    cut(ledger, 2)
    heads(ledger).unlink()
    assert ledger.found() == [("CHAIN_SHORTER", 2, None), ("HEAD_INVALID", None, None)]


@pytest.mark.parametrize("body", [b"", b"{}", b"[1]", b"null", b"\xff", b'{"anchor": "{}", "mac": "00"}', b"x" * 9999])
def test_an_object_that_is_no_anchor_is_found_and_hides_nothing(ledger, body):
    ledger.ready_store()
    ledger.sealed(1)
    ledger.seal(anchor_now=True)
    false = ledger.anchors / "99991231235959000000-0000000000000000@"
    false.mkdir()
    (false / ("0" * 32)).write_bytes(body)
    seen = ledger.verify()
    assert [f.code for f in seen.result.findings] == [Code.AUDIT_HEAD_INVALID]
    assert seen.anchor.head.block == 1


def test_a_store_that_does_not_answer_is_a_named_failure_and_the_block_stands(ledger):
    ledger.ready_store()
    ledger.write(1)
    (ledger.home / "archives").rename(ledger.home / "gone")
    report = ledger.seal()
    assert (report.events, report.anchors, dict(report.failures)) == (1, 0, {"WORKFLOW_ARCHIVE_STORE_MISSING": 1})
    seen = ledger.verify()
    assert (seen.result.sound, seen.read, seen.unread) == (True, 0, ["WORKFLOW_ARCHIVE_STORE_MISSING"])
    (ledger.home / "gone").rename(ledger.home / "archives")
    assert (ledger.seal().anchors, ledger.verify().unread) == (1, [])


def test_a_store_that_is_no_longer_proven_is_a_named_failure(ledger):
    ledger.ready_store()
    ledger.write(1)
    ledger.bend(
        "INSERT INTO retention.readiness_events (tenant_id, profile_generation, ready, codes) VALUES (%s, 1, false, '{}')",
        ledger.tenant,
    )
    assert dict(ledger.seal().failures) == {"WORKFLOW_ARCHIVE_PROFILE_NOT_READY": 1}


def test_a_tenant_without_a_store_has_no_anchor_and_no_failure(ledger):
    ledger.write(1)
    assert not ledger.seal(anchor_now=True).failures
    seen = ledger.verify()
    assert (seen.anchor, seen.read, seen.unread) == (None, 0, [])


def test_an_anchor_of_an_older_profile_still_counts(ledger):
    ledger.ready_store()
    ledger.sealed(1, 1)
    ledger.seal(anchor_now=True)
    ledger.bend(
        "INSERT INTO retention.profiles (tenant_id, generation, provider, configuration, archive_retention_days)"
        " VALUES (%s, 2, 'filesystem', '{\"prefix\": \"q\"}', 365)",
        ledger.tenant,
    )
    assert ledger.found() == []
    cut(ledger, 2)
    heads(ledger).unlink()
    assert ledger.found() == [("CHAIN_SHORTER", 2, None)]


def test_an_anchor_says_nothing_of_the_tenant(ledger):
    """A16: ids, numbers and keyed hashes."""
    ledger.ready_store()
    ledger.sealed(1)
    [folder, *_] = anchored(ledger)
    [file] = folder.iterdir()
    anchor = json.loads(json.loads(file.read_bytes())["anchor"])
    assert set(anchor) == {"format", "at", "head", "installation"}
    assert set(anchor["head"]) == {"tenant", "block", "mac", "sealed_at", "signature"}


def test_in_a_bucket_a_deletion_without_a_version_hides_no_anchor(ledger, make_bucket, make_store, admin, monkeypatch):
    """It leaves a marker only; and a second write under the anchor's name is refused (A5)."""
    bucket = make_bucket()
    store = make_store(bucket, prefix="p")
    monkeypatch.setattr(ledger.app, "store", lambda *_: store)
    ledger.ready_store()
    ledger.sealed(1)
    ledger.sealed(1)
    assert ledger.seal(anchor_now=True).anchors == 1
    names = sorted(entry["Key"] for entry in admin.list_objects_v2(Bucket=bucket)["Contents"])
    assert len(names) == 2
    assert all(name.startswith("p/audit/") for name in names)
    admin.delete_object(Bucket=bucket, Key=names[-1])
    cut(ledger, 2)
    heads(ledger).unlink()
    seen = ledger.verify()
    assert [(f.code, f.block) for f in seen.result.findings] == [(Code.AUDIT_CHAIN_SHORTER, 2)]
    assert seen.anchor.head.block == 2


# -- the installation's own chain --------------------------------------------------------------------------------------


def test_the_installations_own_events_have_a_chain_that_rides_with_each_anchor(database, tmp_path):
    ledger = Ledger(database=database, home=tmp_path / "home")
    ledger.ready_store()
    ledger.write(1)
    assert audit.seal(ledger.app).tenants >= 1
    own = audit.verify_chain(ledger.app, INSTALLATION)
    assert (own.result.sound, own.result.waiting.events, own.kept, own.read) == (True, 0, own.result.blocks, 1)
    assert own.result.sealed >= 10  # the first administrator's permissions
    assert own.anchor.installation.block <= own.result.blocks
    ledger.bend("DELETE FROM retention.audit_seals WHERE tenant_id = '*'")
    heads(ledger).unlink()
    found = audit.verify_chain(ledger.app, INSTALLATION).result.counts
    assert found["RETENTION_AUDIT_CHAIN_SHORTER"] == 1
    assert found["RETENTION_AUDIT_EVENT_INSERTED"] == own.result.sealed


# -- the encoding ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("a", "bc"), ("ab", "c")),
        ((None,), ("",)),
        ((None,), ("-",)),
        (("1:a",), ("a", "1:a")),
        (("ü",), ("u\u0308",)),
        (("", "x"), ("x", "")),
    ],
)
def test_no_two_lists_of_parts_have_the_same_bytes(one, other):
    assert encoded(one) != encoded(other)
