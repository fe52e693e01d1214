"""Several archives come back by one call, each whole or not at all (SPEC A17, F19, F20)."""

import json
from datetime import timedelta

import pytest

from retention_pipeline_tests.acceptance.conftest import AURORA, BOREALIS


@pytest.fixture
def archived(installation):
    """Everything of a tenant that may go is gone; gives the rows as they were, and who went."""
    before = installation.picture()
    going = installation.due(AURORA)
    installation.done("reconcile", "--acknowledge", "--reason", "looked at")
    installation.done("reconcile", "--apply", "--reason", "r")
    assert not set(going) & set(installation.instances(AURORA))
    return before, going


def deletions(installation):
    with installation.database.superuser() as connection:
        found = connection.execute(
            "SELECT instance_id, source_deleted_at FROM retention.attempts WHERE state = 'source_deleted' ORDER BY 2, 1"
        )
        return found.fetchall()


def test_a_whole_tenant_comes_back_and_the_same_call_goes_on_where_it_stopped(installation, archived):
    before, going = archived
    words = ("restore", "--all", "--into-database")
    look = installation.done(*words)
    assert (look["outcome"], look["may_come_back"], look["refused"]) == ("preflight", len(going), [])
    assert not set(going) & set(installation.instances(AURORA))
    first = installation.done(*words, "--apply", "--reason", "the wrong period", "--limit", "3")
    assert (first["outcome"], first["restored"], first["left"]) == ("work_remains", 3, len(going) - 3)
    second = installation.done(*words, "--apply", "--reason", "the wrong period")
    assert first["rows"] + second["rows"] == look["rows"]
    assert (second["outcome"], second["restored"], second["left"]) == ("completed", len(going) - 3, 0)
    now, then = json.loads(installation.picture())[0], json.loads(before)[0]
    # Ephemeral payloads were never archived (A1): a marker stands in their place, and in no other table.
    assert [name for name, was in then.items() if now[name] != was] == ["nucleus.workflow_contexts"]
    assert installation.done(*words, "--apply", "--reason", "again")["archives"] == 0


def test_a_time_range_is_the_instances_that_went_within_it(installation, archived):
    """From its beginning on, up to but without its end, by one microsecond."""
    _, going = archived
    moments = [at for _, at in deletions(installation)]
    early, late = min(moments), max(moments)
    for since, until, number in (
        (early, None, len(going)),
        (late + timedelta(microseconds=1), None, 0),
        (None, early, 0),
        (early, late + timedelta(microseconds=1), len(going)),
        (early, late, sum(at < late for at in moments)),
    ):
        words = [
            *(("--deleted-since", since.isoformat()) if since else ()),
            *(("--deleted-until", until.isoformat()) if until else ()),
        ]
        assert installation.done("restore", *words, "--into-database")["archives"] == number


def test_one_that_cannot_come_back_stops_no_other(installation, archived):
    _, going = archived
    with installation.database.superuser() as connection:
        connection.execute("SET session_replication_role = replica")
        workflow = connection.execute("SELECT id, tenant_id FROM nucleus.workflows WHERE name <> '' LIMIT 1").fetchone()
        connection.execute(
            "INSERT INTO nucleus.workflow_instances (id, tenant_id, workflow_id, state) SELECT %s, id, %s, 'running'"
            " FROM nucleus.tenants WHERE alias = 'aurora'",
            [going[0], workflow[0]],
        )
    answer = installation.call("restore", "--all", "--into-database", "--apply", "--reason", "r")
    assert (answer.code, answer.json["outcome"], answer.json["restored"]) == (7, "partial", len(going) - 1)
    [refused] = answer.json["refused"]
    assert (refused["instance"], refused["code"]) == (going[0], "WORKFLOW_ARCHIVE_RESTORE_CONFLICT")
    assert "an instance with this id exists" in refused["obstacles"][0]


def test_several_go_into_files_of_their_own(installation, archived, tmp_path):
    _, going = archived
    folder = tmp_path / "cases"
    folder.mkdir()
    done = installation.done("restore", "--all", "--to", str(folder))
    assert done["restored"] == len(going) == len(list(folder.glob("*.json")))
    assert all((path.stat().st_mode & 0o777) == 0o600 for path in folder.iterdir())
    assert installation.done("restore", "--all", "--to", str(folder))["outcome"] == "completed"


def test_an_instance_is_found_by_its_own_id_and_by_nobody_elses(installation, archived):
    _, going = archived
    look = installation.done("restore", "--instance", going[0], "--into-database")
    assert (look["instance"], look["obstacles"]) == (going[0], [])
    answer = installation.call("restore", "--instance", going[0], "--into-database", tenant=BOREALIS)
    assert (answer.code, answer.error) == (3, "RETENTION_ARCHIVE_UNKNOWN")


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--all", "--instance", "x"),
        ("5a1e", "--all"),
        ("--deleted-since", "2027-01-01"),
        ("--all", "--to", "no/such/folder"),
    ],
)
def test_a_selector_is_never_guessed(installation, words):
    """F17."""
    answer = installation.call("restore", *words, *(() if "--to" in words else ("--into-database",)))
    assert (answer.code, answer.error) == (2, "RETENTION_USAGE")


def test_a_held_instance_comes_back_held(installation, archived):
    """F20."""
    _, going = archived
    installation.done("hold", going[0], "--reason", "a court asks", "--matter", "M-1")
    installation.done("restore", "--instance", going[0], "--into-database", "--apply", "--reason", "r")
    assert installation.done("hold", going[0], "--list")["matters"] == ["M-1"]
