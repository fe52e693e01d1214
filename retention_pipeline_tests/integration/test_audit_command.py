"""`retention audit` as people use it: seal, show, verify, export, and a file that proves itself elsewhere (SPEC G5, G3, A16, O1)."""

import json
import re
import shutil
import stat
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

from retention_pipeline.keys.local import LocalKeyring
from retention_pipeline_tests.databases import Database
from retention_pipeline_tests.desks import Desk
from retention_pipeline_tests.ledgers import WRITE
from retention_pipeline_tests.rows import Platform

NO_DATABASE = {"RETENTION_WORKER_URL": None, "RETENTION_OPERATOR_URL": None}


@pytest.fixture
def desk(desk):
    """With a few events of its tenant."""
    (desk.home / "archives").chmod(0o700)
    write(desk, 3)
    return desk


def write(desk, events):
    with psycopg.connect(desk.database.worker_url) as connection:
        connection.execute("SELECT set_config('retention.tenant_id', %s, false)", [desk.platform.tenant])
        return [row[0] for row in connection.execute(WRITE, [events]).fetchall()]


def proven_store(desk):
    desk.done("profile", "set", "--provider", "filesystem", "--archive-retention-days", "0")
    assert desk.done("profile", "readiness")["ready"]


# -- seal and verify ---------------------------------------------------------------------------------------------------


def test_what_is_sealed_is_proven_and_what_waits_is_counted(desk):
    sealed = desk.done("audit", "seal")
    assert (sealed["events"], sealed["left"], sealed["failures"]) == (3, 0, {})
    write(desk, 2)
    told = desk.done("audit", "verify")
    assert (told["sound"], told["blocks"], told["sealed"], told["unsealed"]) == (True, 1, 3, 2)
    assert 0 <= told["oldest_unsealed_seconds"] < 60
    assert (told["findings"], told["warnings"], told["kept_block"], told["anchored_at"]) == ([], [], 1, None)


def test_without_a_tenant_it_is_everybodys_sealing_and_the_installations_own_record(desk):
    sealed = desk.done("audit", "seal", tenant=None)
    assert sealed["tenants"] == 2
    told = desk.done("audit", "verify", tenant=None)
    assert (told["chain"], told["unsealed"]) == ("*", 0)
    assert told["sealed"] == sealed["events"] - 3
    shown = desk.done("audit", "show", "--kind", "grant.add", tenant=None)["events"]
    assert {event["tenant_id"] for event in shown} == {"*"}


def test_a_finding_ends_with_4_and_is_named_for_programs_and_for_people(desk):
    desk.done("audit", "seal")
    event = write(desk, 2)[0]
    desk.done("audit", "seal")
    desk.platform.run("UPDATE retention.audit_events SET actor = 'nobody' WHERE id = %s", event)
    answer = desk.call("audit", "verify")
    assert answer.code == 4
    assert answer.json["findings"] == [
        {"code": "RETENTION_AUDIT_EVENT_CHANGED", "block": 2, "through": None, "event": event}
    ]
    shown = desk.call("audit", "verify", as_json=False)
    assert shown.code == 4
    assert [line.split() for line in shown.out.splitlines() if "EVENT_CHANGED" in line] == [
        ["RETENTION_AUDIT_EVENT_CHANGED", "2", "-", str(event)]
    ]


def test_anchors_are_made_and_looked_at(desk):
    proven_store(desk)
    assert desk.done("audit", "seal", "--anchor")["anchors"] == 1
    assert desk.done("audit", "verify")["anchored_at"]
    (desk.home / "archives").rename(desk.home / "away")
    answer = desk.call("audit", "verify")
    assert answer.code == 5
    assert answer.json["warnings"] == [
        {
            "code": "RETENTION_AUDIT_ANCHOR_UNREAD",
            "block": None,
            "through": None,
            "event": None,
            "why": "WORKFLOW_ARCHIVE_STORE_MISSING",
        }
    ]
    assert desk.call("audit", "verify", "--without-anchors").code == 0
    write(desk, 1)
    answer = desk.call("audit", "seal", "--anchor")
    assert (answer.code, answer.json["events"]) == (7, 1)
    assert answer.json["failures"] == {"WORKFLOW_ARCHIVE_STORE_MISSING": 1}


def test_after_a_restore_a_reason_is_needed(desk):
    assert desk.call("audit", "seal", "--after-restore").error == "RETENTION_USAGE"
    assert desk.call("audit", "seal", "--reason", "r").error == "RETENTION_USAGE"
    assert desk.call("audit", "seal", "--after-restore", "--reason", " ").error == "RETENTION_USAGE"
    desk.done("audit", "seal", "--after-restore", "--reason", "INC-4711")
    [event] = desk.audit("audit.restored")
    assert (event["reason"], event["tenant_id"]) == ("INC-4711", desk.platform.tenant)


def test_without_the_keyring_it_says_so(desk):
    desk.keyring.unlink()
    assert desk.call("audit", "seal").error == "RETENTION_KEYRING_MISSING"
    assert desk.call("audit", "verify").error == "RETENTION_KEYRING_MISSING"
    assert desk.call("audit", "show").code == 0


# -- who may -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tenant", ["", None])
@pytest.mark.parametrize("words", [("show",), ("verify",), ("export", "--to", "f.jsonl")], ids=lambda w: w[0])
def test_a_clerk_is_denied_and_the_denial_is_recorded(away, words, tenant):
    """G3."""
    answer = away.call("audit", *words, login="clerk", tenant=tenant)
    assert (answer.code, answer.error) == (3, "RETENTION_PERMISSION_DENIED")
    event = away.audit("denied")[-1]
    assert (event["subject"], event["details"]["permission"]) == (f"audit {words[0]}", "workflow_retention:read")
    assert event["tenant_id"] == ("*" if tenant is None else away.platform.tenant)


def test_who_reads_one_tenant_reads_no_other_and_not_the_installations_own(desk):
    desk.done("audit", "seal", tenant=None)
    desk.done("grant", "add", "clerk", "read")
    assert desk.done("audit", "verify", login="clerk")["sealed"] == 3
    assert desk.call("audit", "verify", login="clerk", tenant=None).error == "RETENTION_PERMISSION_DENIED"
    other = type(desk.platform)(database=desk.database)
    alias = other.value("SELECT alias FROM nucleus.tenants WHERE id = %s", other.tenant)
    assert desk.call("audit", "show", login="clerk", tenant=alias).error == "RETENTION_PERMISSION_DENIED"


# -- show --------------------------------------------------------------------------------------------------------------


def test_events_are_listed_the_newest_last_and_filtered(desk):
    everything = desk.done("audit", "show")["events"]
    assert [event["subject"] for event in everything] == ["s1", "s2", "s3"]
    assert everything[0]["details"] == '{"n": 1}'
    assert [e["subject"] for e in desk.done("audit", "show", "--limit", "2")["events"]] == ["s2", "s3"]
    assert [e["subject"] for e in desk.done("audit", "show", "--subject", "s2")["events"]] == ["s2"]
    for words, found in (
        (("--kind", "instance.deleted", "--run", "run", "--correlation", "cc"), 3),
        (("--kind", "hold.hold"), 0),
        (("--run", "another"), 0),
        (("--correlation", "another"), 0),
        (("--since", "2020-01-01T00:00:00Z"), 3),
        (("--since", "2999-01-01T00:00:00Z"), 0),
    ):
        assert len(desk.done("audit", "show", *words)["events"]) == found, words
    lines = desk.call("audit", "show", as_json=False).out.splitlines()
    assert [line.split()[-5] for line in lines[1:]] == ["s1", "s2", "s3"]


# -- files -------------------------------------------------------------------------------------------------------------


def export(desk, path):
    """A file with two blocks of three and two events, and one that waits."""
    desk.done("audit", "seal")
    write(desk, 2)
    desk.done("audit", "seal")
    write(desk, 1)
    told = desk.done("audit", "export", "--to", str(path))
    assert (told["blocks"], told["events"], told["unsealed"]) == (2, 5, 1)
    return path


@pytest.fixture(scope="module")
def filed(module_database, tmp_path_factory):
    """A desk, and what was exported at it; once for all tests that only read it."""
    home = tmp_path_factory.mktemp("desk") / "home"
    (home / "archives").mkdir(parents=True)
    LocalKeyring.create(home / "keyring.json")
    with ExitStack() as closing:
        database = Database(server=module_database.server, name=module_database.name, closing=closing)
        platform = Platform(database=database)
        alias = str(platform.value("SELECT alias FROM nucleus.tenants WHERE id = %s", platform.tenant))
        desk = Desk(database=database, home=home, platform=platform, alias=alias)
        write(desk, 3)
        yield desk, export(desk, home / "chain.jsonl")


@pytest.fixture
def away(filed):
    """The desk of the file."""
    return filed[0]


@pytest.fixture
def exported(filed, tmp_path):
    """A copy of the file, to be bent."""
    return Path(shutil.copy(filed[1], tmp_path / "chain.jsonl"))


def verify_file(desk, path, **environment):
    return desk.call("audit", "verify", "--file", str(path), tenant=None, **{**NO_DATABASE, **environment})


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def rewrite(path, lines):
    """With an end that fits: the tamperer knows the format."""
    body = [line for line in lines if "end" not in line]
    end = {
        "blocks": sum("block" in line for line in body),
        "events": sum("event" in line for line in body),
        "unsealed": sum("unsealed" in line for line in body),
    }
    path.write_text("".join(json.dumps(line) + "\n" for line in [*body, {"end": end}]))


def test_an_exported_chain_is_proven_without_a_database(away, exported):
    assert stat.S_IMODE(exported.stat().st_mode) == 0o600
    answer = verify_file(away, exported)
    assert answer.code == 0, answer.out
    told = answer.json
    assert (told["chain"], told["sound"], told["sealed"], told["unsealed"], told["kept_block"]) == (
        away.platform.tenant,
        True,
        5,
        1,
        2,
    )


def test_a_file_that_is_older_than_the_head_is_still_sound(desk, tmp_path):
    exported = export(desk, tmp_path / "chain.jsonl")
    write(desk, 1)
    desk.done("audit", "seal")
    assert verify_file(desk, exported).json["sound"]


def test_an_existing_file_is_not_overwritten_and_nothing_stays_of_a_failed_one(away, exported, monkeypatch):
    before = exported.read_bytes()
    assert away.call("audit", "export", "--to", str(exported)).error == "RETENTION_USAGE"
    assert exported.read_bytes() == before
    new = exported.with_name("new.jsonl")

    def full(*_):
        raise OSError(28, "no space")

    monkeypatch.setattr("retention_pipeline.stages.new_file.os.fsync", full)
    assert away.call("audit", "export", "--to", str(new)).error == "WORKFLOW_ARCHIVE_STORE_FULL"
    assert sorted(path.name for path in exported.parent.iterdir() if "jsonl" in path.name) == [exported.name]
    nowhere = away.call("audit", "export", "--to", str(exported.parent / "no" / "f"))
    assert nowhere.error == "RETENTION_USAGE"


def changed_event(lines):
    lines[2]["event"][3] = "nobody"


def removed_event(lines):
    del lines[2]


def removed_block(lines):
    del lines[1:5]


def swapped_events(lines):
    lines[2]["event"][0], lines[3]["event"][0] = lines[3]["event"][0], lines[2]["event"][0]


def another_chain(lines):
    lines[0]["chain"] = "another"


def foreign_events(lines):
    lines[1]["event_ids"] = lines[1]["event_ids"][::-1]


def no_last_block(lines):
    del lines[5:8]


BENT = {
    changed_event: {"EVENT_CHANGED"},
    removed_event: {"EVENT_REMOVED"},
    removed_block: {"BLOCK_MISSING"},
    swapped_events: {"EVENT_CHANGED"},
    another_chain: {"BLOCK_CHANGED"},
    foreign_events: {"BLOCK_CHANGED", "EVENT_CHANGED"},
}


@pytest.mark.parametrize("bend", BENT, ids=lambda bend: bend.__name__)
def test_a_file_that_somebody_changed_is_found(away, exported, bend):
    lines = lines_of(exported)
    bend(lines)
    rewrite(exported, lines)
    answer = verify_file(away, exported)
    assert answer.code == 4
    assert {code.removeprefix("RETENTION_AUDIT_") for code in answer.json["counts"]} == BENT[bend]


def test_what_a_file_proves_ends_with_its_last_block(away, exported):
    """A tail that was cut with the end made anew is only noticed by whoever knows a later head; the docs say so."""
    lines = lines_of(exported)
    no_last_block(lines)
    rewrite(exported, lines)
    told = verify_file(away, exported).json
    assert (told["sound"], told["blocks"], told["kept_block"]) == (True, 1, 2)


@pytest.mark.parametrize(
    ("bend", "code"),
    [
        (lambda data: data[: data.rindex(b'{"end"')], "RETENTION_AUDIT_FILE_INCOMPLETE"),
        (lambda data: data + b'{"unsealed": []}\n', "RETENTION_AUDIT_FILE_INCOMPLETE"),
        (lambda data: data[:-200], "RETENTION_AUDIT_FILE_MALFORMED"),
        (lambda _: b"", "RETENTION_AUDIT_FILE_MALFORMED"),
        (lambda _: b"[]\n", "RETENTION_AUDIT_FILE_MALFORMED"),
        (lambda _: b"\xff\n", "RETENTION_AUDIT_FILE_MALFORMED"),
        (lambda _: b"[" * 100_000, "RETENTION_AUDIT_FILE_MALFORMED"),
        (lambda data: data.replace(b'"previous"', b'"p"'), "RETENTION_AUDIT_FILE_MALFORMED"),
        (lambda data: data.replace(b'"event": ["', b'"event": ["x'), "RETENTION_AUDIT_FILE_MALFORMED"),
        (lambda data: data.replace(b'{"event": [', b'{"event": [null, '), "RETENTION_AUDIT_FILE_MALFORMED"),
        (lambda data: data.replace(b'"block": 1', b'"block": "1"'), "RETENTION_AUDIT_FILE_MALFORMED"),
    ],
)
def test_a_file_that_is_cut_or_none_is_told(away, exported, bend, code):
    exported.write_bytes(bend(exported.read_bytes()))
    answer = verify_file(away, exported)
    assert answer.code == 4
    assert code in answer.out


def test_a_file_that_is_not_there_is_a_wrong_call(away, tmp_path):
    assert verify_file(away, tmp_path / "none").error == "RETENTION_USAGE"
    assert away.call("audit", "verify", "--file", "f").error == "RETENTION_USAGE"  # with --tenant


# -- discretion --------------------------------------------------------------------------------------------------------


def test_no_answer_shows_a_place_a_key_or_a_digest(desk, tmp_path):
    """A16."""
    desk.done("audit", "seal")
    proven_store(desk)
    desk.platform.run("UPDATE retention.audit_events SET actor = 'nobody' WHERE kind = 'instance.deleted'")
    answers = [
        desk.call("audit", *words, as_json=as_json)
        for words in (("seal", "--anchor"), ("verify",), ("show",), ("export", "--to", str(tmp_path / "x")))
        for as_json in (True, False)
    ]
    text = "".join(answer.out + answer.err for answer in answers)
    assert not re.search(r"[0-9a-f]{32,}", text.replace("-", " "))
    assert str(desk.home) not in text
    assert "audit/" not in text
