"""The command line as operators use it: every answer, every refusal, and what bad weather does (SPEC W5-W8, A17, G3, O1, C)."""

import json
import stat
import subprocess
import sys
import time
import uuid
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

import retention_pipeline.catalog
from retention_pipeline import clock
from retention_pipeline.app import App
from retention_pipeline.dev.state import free_port, is_free
from retention_pipeline_tests import faulty
from retention_pipeline_tests.acceptance.conftest import AURORA, BOREALIS

DISPOSITIONS = {"eligible", "missing_epoch", "not_terminal", "not_yet_due", "unlimited_retention"}


def one_line(answer):
    """An error for people: one line, a code, and nothing of Python."""
    assert answer.out == ""
    [line] = answer.err.splitlines()
    assert line.startswith(("RETENTION_", "WORKFLOW_ARCHIVE_"))
    assert "Traceback" not in line
    return line


# -- inventory


def test_dispositions_add_up_to_the_total(installation):
    told = installation.done("inventory")
    assert set(told["dispositions"]) >= DISPOSITIONS
    assert sum(told["dispositions"].values()) == told["total"] == AURORA.instances == sum(told["states"].values())
    assert told["eligible"] == told["dispositions"]["eligible"] > 0
    assert told["missing_terminal_epochs"] == told["dispositions"]["missing_epoch"]


def test_an_inventory_changes_nothing(installation):
    before = installation.picture()
    installation.done("inventory")
    assert installation.picture() == before
    assert installation.rows("SELECT count(*) FROM retention.preflights") == [(0,)]


def test_people_read_the_same_numbers_as_a_table(installation):
    told = installation.done("inventory")
    shown = installation.call("inventory", as_json=False).out
    for name, number in {**told["dispositions"], "total": told["total"], **told["states"]}.items():
        assert any(line.split() == [name, str(number)] for line in shown.splitlines()), name


def test_an_inventory_looks_as_of_an_instant(installation):
    now = installation.done("inventory")
    later = installation.done("inventory", "--as-of", (clock.utc_now() + timedelta(days=400)).isoformat())
    earlier = installation.done("inventory", "--as-of", (clock.utc_now() - timedelta(days=400)).isoformat())
    assert earlier["eligible"] < now["eligible"] < later["eligible"]
    assert later["dispositions"]["not_yet_due"] < now["dispositions"]["not_yet_due"]
    assert later["as_of"] > now["as_of"]


@pytest.mark.parametrize("text", ["2027-01-01", "2027-01-01T00:00:00", "yesterday", ""])
def test_an_instant_without_an_offset_is_none(installation, text):
    assert one_line(installation.call("inventory", "--as-of", text, as_json=False)).startswith("RETENTION_USAGE: ")
    assert installation.call("inventory", "--as-of", text).code == 2


# -- reconcile


def test_without_apply_nothing_changes_and_what_would_stop_it_is_said_with_a_way_on(installation):
    before = installation.picture()
    told = installation.done("reconcile")
    assert (told["outcome"], told["deleted"], told["acknowledged"]) == ("preflight", 0, False)
    [signal] = told["stop_signals"]
    assert signal["code"] == "RETENTION_PREFLIGHT_UNACKNOWLEDGED"
    assert "--acknowledge" in signal["remedy"]
    assert installation.picture() == before
    assert installation.states(AURORA) == {}


def test_an_apply_before_anybody_acknowledged_is_blocked(installation):
    before = installation.picture()
    answer = installation.call("reconcile", "--apply", "--reason", "too early")
    assert (answer.code, answer.json["outcome"]) == (3, "blocked")
    assert answer.json["reason"] == "RETENTION_PREFLIGHT_UNACKNOWLEDGED"
    assert installation.picture() == before


def test_what_was_acknowledged_is_the_preflight_that_is_named(installation):
    told = installation.done("reconcile", "--acknowledge", "--reason", "looked at")
    assert told["acknowledged"] is True
    kept = installation.rows("SELECT preflight_id::text, reason, actor FROM retention.acknowledgements")
    assert kept == [(told["acknowledged_preflight"], "looked at", "admin")]
    shown = installation.call("reconcile", "--acknowledge", "--reason", "again", as_json=False).out
    [last] = installation.rows("SELECT preflight_id::text FROM retention.acknowledgements ORDER BY id DESC LIMIT 1")
    assert f"Preflight {last[0]} was acknowledged." in shown


@pytest.mark.parametrize("reason", [(), ("--reason", ""), ("--reason", "  ")])
def test_an_acknowledgement_without_a_reason_is_refused(installation, reason):
    assert installation.call("reconcile", "--acknowledge", *reason).code == 2
    assert installation.rows("SELECT count(*) FROM retention.preflights") == [(0,)]


def test_an_apply_archives_proves_and_deletes_all_that_may_go(installation):
    installation.acknowledge(AURORA)
    due = set(installation.due(AURORA))
    told = installation.done("reconcile", "--apply", "--reason", "monthly")
    assert (told["outcome"], told["reason"], told["backlog"]) == ("completed", "exhausted", 0)
    assert told["archived"] == told["verified"] == told["deleted"] == len(due)
    assert not due & installation.instances(AURORA)
    assert installation.states(AURORA) == {"source_deleted": len(due)}


def test_a_bound_below_what_is_long_overdue_ends_behind(installation):
    installation.acknowledge(AURORA)
    answer = installation.call("reconcile", "--apply", "--reason", "r", "--batches", "1", "--batch", "2")
    assert (answer.code, answer.json["outcome"], answer.json["deleted"]) == (6, "behind", 2)
    assert answer.json["forecast_runs"] >= 1


@pytest.fixture
def store(monkeypatch):
    """Puts a store that lies in the place of each that is opened."""
    whole = App.store

    def put(wrap):
        monkeypatch.setattr(App, "store", lambda app, tenant, generation: wrap(whole(app, tenant, generation)))

    yield put
    monkeypatch.setattr(App, "store", whole)


def test_archives_that_fail_their_proof_keep_their_rows_and_the_run_is_partial(installation, store):
    installation.acknowledge(AURORA)
    before = installation.instances(AURORA)
    store(lambda inner: faulty.Altering(inner, faulty.truncated))
    answer = installation.call("reconcile", "--apply", "--reason", "r")
    assert (answer.code, answer.json["outcome"], answer.json["deleted"]) == (7, "partial", 0)
    assert all(code.startswith("WORKFLOW_ARCHIVE_OBJECT_") for code in answer.json["failures"])
    assert sum(answer.json["failures"].values()) == answer.json["eligible"]
    assert installation.instances(AURORA) == before


class Down(faulty.Around):
    """Answers nothing that would write."""

    def put_once(self, key, body, *, sha256, lock_until=None):
        raise faulty.lost()


def test_a_store_that_fails_ends_failed_and_the_next_run_does_the_work(installation, store):
    installation.acknowledge(AURORA)
    due = set(installation.due(AURORA))
    store(Down)
    answer = installation.call("reconcile", "--apply", "--reason", "r")
    assert (answer.code, answer.json["outcome"], answer.json["deleted"]) == (1, "failed", 0)
    assert answer.json["reason"] == "WORKFLOW_ARCHIVE_STORE_UNAVAILABLE"
    assert due <= installation.instances(AURORA)
    store(lambda inner: inner)
    assert installation.done("reconcile", "--apply", "--reason", "again")["deleted"] == len(due)
    assert not due & installation.instances(AURORA)


def test_a_store_whose_answers_are_lost_is_asked_what_landed(installation, store):
    installation.acknowledge(AURORA)
    due = len(installation.due(AURORA))
    store(faulty.LosingAnswers)
    assert installation.done("reconcile", "--apply", "--reason", "r")["deleted"] == due
    assert installation.states(AURORA) == {"source_deleted": due}


# -- archive


def test_one_instance_is_looked_at_first_and_archived_on_request(installation):
    instance = installation.due(AURORA)[0]
    told = installation.done("archive", instance)
    assert (told["outcome"], told["may_go"], told["deleted"]) == ("preflight", True, 0)
    assert instance in installation.instances(AURORA)
    told = installation.done("archive", instance.upper(), "--apply", "--reason", "asked for")
    assert (told["outcome"], told["archived"], told["verified"], told["deleted"]) == ("completed", 1, 1, 1)
    assert instance not in installation.instances(AURORA)


def test_an_archived_instance_is_answered_as_such(installation):
    instance = installation.due(AURORA)[0]
    installation.archive(AURORA, instance)
    for words in (("archive", instance), ("archive", instance, "--apply")):
        answer = installation.call(*words)
        assert (answer.code, answer.error) == (3, "RETENTION_INSTANCE_UNKNOWN")
        assert "archived already" in answer.json["error"]["message"]


def test_an_instance_that_never_expires_is_refused(installation):
    told = installation.rows(
        "SELECT i.id::text FROM nucleus.workflow_instances AS i JOIN nucleus.workflows AS w ON w.id = i.workflow_id"
        " WHERE i.tenant_id = %s AND w.retention_days = 0 AND i.state <> 'running' LIMIT 1",
        AURORA.id,
    )
    [(instance,)] = told
    assert installation.done("archive", instance)["may_go"] is False
    answer = installation.call("archive", instance, "--apply", "--reason", "r")
    assert (answer.code, answer.error) == (3, "WORKFLOW_ARCHIVE_NOT_ELIGIBLE")
    assert instance in installation.instances(AURORA)


def test_a_hold_is_bound_to_the_archive_before_the_row_goes(installation):
    instance = installation.due(AURORA)[0]
    installation.done("hold", instance, "--reason", "a court asks", "--matter", "M-1")
    assert installation.done("archive", instance)["hold_is_bound"] is True
    installation.done("archive", instance, "--apply", "--reason", "r")
    bound = installation.rows(
        "SELECT h.matter, a.instance_id FROM retention.hold_bindings AS b"
        " JOIN retention.hold_events AS h ON h.id = b.hold_event_id JOIN retention.attempts AS a ON a.id = b.attempt_id"
    )
    assert bound == [("M-1", instance)]


def test_another_tenants_instance_is_unknown(installation):
    answer = installation.call("archive", installation.due(BOREALIS)[0], "--apply")
    assert answer.error == "RETENTION_INSTANCE_UNKNOWN"


# -- inspect


def test_archives_are_listed_with_whole_ids_in_a_narrow_terminal(installation):
    instance = installation.due(AURORA)[0]
    archive = installation.archive(AURORA, instance)
    [entry] = installation.done("inspect")["archives"]
    assert (entry["archive"], entry["instance"], entry["state"]) == (archive, instance, "source_deleted")
    shown = installation.call("inspect", as_json=False, columns=80).out
    assert archive in shown
    assert instance in shown
    assert installation.call("inspect", tenant=BOREALIS, as_json=False).out == "No archives.\n"


def test_one_archive_is_opened_proven_and_counted(installation):
    instance = installation.due(AURORA)[0]
    told = installation.done("inspect", installation.archive(AURORA, instance))
    assert (told["instance"], told["proven"], told["rows"]["root"]) == (instance, True, 1)


@pytest.mark.parametrize("command", [("inspect",), ("restore", "--into-database")])
@pytest.mark.parametrize("which", ["no-id", str(uuid.UUID(int=7)), "another tenant's"])
def test_an_archive_that_is_not_the_tenants_is_unknown(installation, command, which):
    if which == "another tenant's":
        which = installation.archive(BOREALIS, installation.due(BOREALIS)[0])
    answer = installation.call(command[0], which, *command[1:])
    assert (answer.code, answer.error) == (
        3,
        "RETENTION_ARCHIVE_UNKNOWN",
    )


# -- restore


@pytest.fixture
def archived(installation):
    """An archive's id, its instance, and the rows that were deleted."""
    instance = installation.due(AURORA)[0]
    before = installation.picture()
    return installation.archive(AURORA, instance), instance, before


def test_a_restored_file_is_its_owners_alone_and_nothing_is_overwritten(installation, archived, tmp_path):
    archive, instance, _ = archived
    target = tmp_path / "case.json"
    installation.done("restore", archive, "--to", str(target))
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert instance in target.read_text()
    written = target.read_bytes()
    answer = installation.call("restore", archive, "--to", str(target))
    assert (answer.code, answer.error) == (2, "RETENTION_USAGE")
    assert target.read_bytes() == written
    assert list(tmp_path.glob(".*")) == []


def test_a_restore_that_fails_leaves_no_file(installation, archived, tmp_path, store):
    store(faulty.FlippingReads)
    folder = tmp_path / "cases"
    folder.mkdir()
    answer = installation.call("restore", archived[0], "--to", str(folder / "case.json"))
    assert answer.code == 4
    assert answer.error.startswith("WORKFLOW_ARCHIVE_OBJECT_")
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    "words", [(), ("--to", "x", "--into-database"), ("--to", "no/such/folder/x"), ("--to", "x", "--apply")]
)
def test_where_to_must_be_said_once_and_be_there(installation, archived, words):
    answer = installation.call("restore", archived[0], *words)
    assert (answer.code, answer.error) == (2, "RETENTION_USAGE")


def test_an_instance_comes_back_exactly_as_it_was_and_only_once(installation, archived):
    archive, instance, before = archived
    look = installation.done("restore", archive, "--into-database")
    assert (look["outcome"], look["obstacles"], look["already_there"]) == ("preflight", [], False)
    assert instance not in installation.instances(AURORA)
    done = installation.done("restore", archive, "--into-database", "--apply", "--reason", "the customer asks")
    assert (done["identical"], done["already_there"]) == (True, False)
    assert json.loads(installation.picture())[0] == json.loads(before)[0]
    look = installation.done("restore", archive, "--into-database")
    assert (look["obstacles"], look["already_there"]) == ([], True)
    again = installation.done("restore", archive, "--into-database", "--apply", "--reason", "again")
    assert (again["identical"], again["already_there"]) == (True, True)
    assert json.loads(installation.picture())[0] == json.loads(before)[0]
    assert instance not in installation.due(AURORA)  # a period of grace


def test_what_stands_in_the_way_of_a_restore_is_named(installation, archived):
    archive, instance, _ = archived
    installation.change("ALTER TABLE nucleus.workflow_instances DROP COLUMN title")
    look = installation.done("restore", archive, "--into-database")
    assert look["obstacles"] == ["nucleus.workflow_instances: the column title is gone."]
    answer = installation.call("restore", archive, "--into-database", "--apply", "--reason", "r")
    assert (answer.code, answer.error) == (3, "WORKFLOW_ARCHIVE_RESTORE_CONFLICT")
    assert instance not in installation.instances(AURORA)


# -- who may not


@pytest.mark.parametrize(
    ("words", "permission"),
    [
        (("inventory",), "workflow_retention:read"),
        (("inspect",), "workflow_retention:read"),
        (("reconcile",), "workflow_retention:reconcile"),
        (("reconcile", "--apply", "--reason", "r"), "workflow_retention:reconcile"),
        (("archive", str(uuid.UUID(int=1)), "--apply"), "workflow_retention:archive"),
        (("restore", str(uuid.UUID(int=1)), "--into-database", "--apply"), "workflow_retention:restore"),
    ],
)
def test_a_login_without_the_permission_is_denied_and_the_denial_is_on_record(installation, words, permission):
    before = installation.picture()
    answer = installation.call(*words, login="clerk")
    assert (answer.code, answer.error) == (3, "RETENTION_PERMISSION_DENIED")
    assert installation.picture() == before
    [(actor, tenant, event)] = installation.rows(
        "SELECT actor, tenant_id, to_jsonb(e)::text FROM retention.audit_events AS e WHERE outcome = 'denied'"
    )
    assert (actor, tenant) == ("clerk", AURORA.id)
    assert permission in event
    assert words[0] in event


@pytest.mark.parametrize("tenant", ["nobody", "", "AURORA", "aurora ", "%", "*", None])
def test_a_tenant_that_is_none_is_refused(installation, tenant):
    """F17: a selector is never guessed."""
    answer = installation.call("inventory", tenant=tenant)
    assert answer.code == 2
    assert answer.error in {"RETENTION_TENANT_UNKNOWN", "RETENTION_USAGE"}


# -- bad weather


def test_a_catalog_that_is_malformed_is_named_by_its_line(installation, tmp_path):
    shipped = next(Path(retention_pipeline.catalog.__path__[0]).rglob("*.yaml")).read_text()
    mine = tmp_path / "catalog.yaml"
    lines = shipped.splitlines()
    number = next(n for n, line in enumerate(lines, 1) if line.strip() and not line.lstrip().startswith("#"))
    mine.write_text("\n".join([*lines[: number - 1], "nonsense: [", *lines[number:]]))
    answer = installation.call("inventory", as_json=False, RETENTION_CATALOG=str(mine))
    assert answer.code == 2
    line = one_line(answer)
    assert line.startswith("RETENTION_CATALOG_INVALID: ")
    assert "line " in line


@pytest.mark.parametrize("text", ["", "- a list", "version: 999\n", "\x00", "{" * 10_000])
def test_no_catalog_crashes_the_program(installation, tmp_path, text):
    mine = tmp_path / "catalog.yaml"
    mine.write_text(text)
    answer = installation.call("inventory", as_json=False, RETENTION_CATALOG=str(mine))
    assert one_line(answer).startswith("RETENTION_CATALOG_INVALID: ")


def test_a_catalog_that_is_not_there_is_said(installation, tmp_path):
    answer = installation.call("inventory", as_json=False, RETENTION_CATALOG=str(tmp_path / "gone.yaml"))
    assert one_line(answer).startswith("RETENTION_CATALOG_INVALID: ")


def test_a_database_that_does_not_answer_is_unavailable(installation):
    gone = f"postgresql://admin:x@127.0.0.1:{free_port()}/gone"
    answer = installation.call("inventory", as_json=False, RETENTION_OPERATOR_URL=gone)
    assert answer.code == 5
    assert one_line(answer).startswith("RETENTION_DATABASE_UNAVAILABLE: ")


@pytest.mark.parametrize("setting", ["RETENTION_OPERATOR_URL", "RETENTION_WORKER_URL"])
def test_a_wrong_password_is_said_as_such(installation, setting):
    wrong = installation.variables[setting].replace("throw-away", "another")
    answer = installation.call("reconcile", as_json=False, **{setting: wrong})
    assert answer.code == 3
    assert one_line(answer) == (
        "RETENTION_DATABASE_REFUSED: The database refused the login. Check the login's URL and password."
    )


def test_a_wrong_credential_of_the_store_is_said_and_nothing_is_lost(installation, s3, make_bucket):
    answer = installation.use_bucket(AURORA, s3, make_bucket(), secret_key="wrong")
    assert (answer.code, answer.json["codes"]) == (3, ["WORKFLOW_ARCHIVE_STORE_DENIED"])
    installation.acknowledge(AURORA)
    before = installation.picture()
    answer = installation.call("reconcile", "--apply", "--reason", "r")
    assert (answer.code, answer.json["reason"]) == (3, "WORKFLOW_ARCHIVE_PROFILE_NOT_READY")
    assert "STORE_DENIED" in answer.json["stop_signals"][0]["sentence"]
    assert installation.picture() == before


def as_a_process(installation, words, *, blocks):
    """A call whose files can't grow beyond some KiB, as on a disk that is full; compiled modules are files too."""
    return subprocess.run(
        ["bash", "-c", f'ulimit -f {blocks}; exec "$@"', "-", sys.executable, "-B", "-m", "retention_pipeline", *words],
        env={"RETENTION_HOME": str(installation.home), "PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_full_disk_ends_failed_and_loses_nothing(installation):
    installation.acknowledge(AURORA)
    due = set(installation.due(AURORA))
    words = ("--tenant", "aurora", "--json", "reconcile", "--apply", "--reason", "r")
    done = as_a_process(installation, words, blocks=1)
    told = json.loads(done.stdout)
    assert (done.returncode, told["outcome"], told["reason"]) == (1, "failed", "WORKFLOW_ARCHIVE_STORE_FULL")
    assert due <= installation.instances(AURORA)
    assert installation.done("reconcile", "--apply", "--reason", "there is room again")["deleted"] == len(due)


def test_a_full_disk_leaves_no_half_of_a_restored_file(installation, archived, tmp_path):
    folder = tmp_path / "cases"
    folder.mkdir()
    words = ("--tenant", "aurora", "restore", archived[0], "--to", str(folder / "case.json"))
    done = as_a_process(installation, words, blocks=1)
    assert done.returncode == 5
    assert done.stderr.startswith("WORKFLOW_ARCHIVE_STORE_FULL: ")
    assert list(folder.iterdir()) == []


@contextmanager
def rclone(folder):
    """An S3 server that knows no conditional create: a second write replaces the first."""
    port = free_port()
    (folder / "bucket").mkdir(parents=True)
    program = Path(sys.executable).with_name("rclone")
    command = [program, "serve", "s3", "--auth-key", "key,secret", "--addr", f"127.0.0.1:{port}", folder]
    with subprocess.Popen(
        [str(word) for word in command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={"HOME": str(folder)}
    ) as server:
        try:
            for _ in range(100):
                if not is_free(port):
                    break
                time.sleep(0.1)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()


def test_a_bucket_that_ignores_conditional_create_is_never_ready(installation, tmp_path):
    with rclone(tmp_path / "served") as endpoint:
        installation.done("egress", "allow", endpoint, "--network", "127.0.0.1/32", "--reason", "r", tenant=None)
        secret = installation.done("secret", "put", text='{"access_key": "key", "secret_key": "secret"}')["secret_id"]
        places = {"endpoint": endpoint, "bucket": "bucket", "region": "us-east-1", "prefix": "a"}
        installation.done(
            "profile", "set", "--provider", "s3-compatible", "--archive-retention-days", "0",
            "--secret-id", secret, "--config", json.dumps(places),
        )  # fmt: skip
        answer = installation.call("profile", "readiness")
    assert answer.code == 3
    assert "WORKFLOW_ARCHIVE_READINESS_NO_CONDITIONAL_CREATE" in answer.json["codes"]
    installation.acknowledge(AURORA)
    assert (
        installation.call("reconcile", "--apply", "--reason", "r").json["reason"]
        == "WORKFLOW_ARCHIVE_PROFILE_NOT_READY"
    )


# -- help


@pytest.mark.parametrize("command", ["", "inventory", "reconcile", "archive", "inspect", "restore", "demo", "dev"])
def test_help_fits_a_terminal_and_has_examples(installation, command):
    shown = installation.call(*command.split(), "--help", tenant=None, as_json=False, columns=80).out
    assert "Example" in shown
    for line in shown.splitlines():
        assert line.startswith("Usage:") or not line.endswith("..."), line
        assert len(line) <= 80 or line.lstrip().startswith("retention "), line
