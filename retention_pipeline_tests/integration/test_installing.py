"""The way in: migrate, keyring, catalog check, and calls that can't succeed (SPEC C)."""

import json
import stat

import pytest
from click.testing import CliRunner

from retention_pipeline.app import App
from retention_pipeline.cli.main import cli
from retention_pipeline.settings import Settings, write_file


def test_migrating_again_changes_nothing(desk):
    assert desk.done("migrate", tenant=None, RETENTION_OWNER_URL=desk.database.owner_url)["version"]
    assert desk.call("grant", "list").code == 0


def test_the_first_administrator_is_made_once(desk):
    answer = desk.call("migrate", "--bootstrap-admin", "clerk", RETENTION_OWNER_URL=desk.database.owner_url)
    assert (answer.code, answer.error) == (3, "RETENTION_PERMISSION_DENIED")
    assert desk.call("grant", "list", login="clerk").error == "RETENTION_PERMISSION_DENIED"


def test_a_keyring_is_made_once_for_its_owner_alone(desk):
    assert desk.call("keyring", "create").error == "RETENTION_KEYRING_EXISTS"
    made = desk.home / "new" / "keyring.json"
    desk.done("keyring", "create", tenant=None, RETENTION_KEYRING=str(made))
    assert stat.S_IMODE(made.stat().st_mode) == 0o600
    assert stat.S_IMODE(made.parent.stat().st_mode) == 0o700


def test_the_shipped_catalog_fits(desk):
    found = desk.done("catalog", "check", tenant=None)
    assert found["errors"] == 0


def test_a_fault_of_the_catalog_is_told_with_its_line_and_blocks(desk):
    desk.platform.run("ALTER TABLE nucleus.workflow_contexts RENAME COLUMN data TO other")
    answer = desk.call("catalog", "check")
    assert answer.code == 3
    [fault] = [f for f in answer.json["faults"] if f["code"] == "RETENTION_CATALOG_COLUMN_MISSING"]
    assert fault["line"] > 1
    people = desk.call("catalog", "check", as_json=False)
    assert f"line {fault['line']}: error: RETENTION_CATALOG_COLUMN_MISSING" in people.out


def test_a_catalog_that_can_not_be_read_is_a_usage_fault(desk, tmp_path):
    path = tmp_path / "catalog.yaml"
    path.write_text("version: 2\n")
    answer = desk.call("catalog", "check", RETENTION_CATALOG=str(path))
    assert (answer.code, answer.error) == (2, "RETENTION_CATALOG_INVALID")


def test_the_superuser_is_refused(desk):
    answer = desk.call("grant", "list", RETENTION_OPERATOR_URL=desk.database.superuser_url)
    assert (answer.code, answer.error) == (3, "RETENTION_ROLE_UNSAFE")


def test_a_wrong_password_is_told_without_it(desk):
    url = desk.database.operator_url.replace("@", "-wrong@", 1)
    answer = desk.call("grant", "list", RETENTION_OPERATOR_URL=url)
    assert (answer.code, answer.error) in {(3, "RETENTION_DATABASE_REFUSED"), (5, "RETENTION_DATABASE_UNAVAILABLE")}
    assert "wrong" not in answer.out


def test_an_unknown_tenant_is_refused_and_an_empty_one_too(desk):
    assert desk.call("grant", "list", tenant="nobody").error == "RETENTION_TENANT_UNKNOWN"
    for words in (("--tenant", "", "grant", "list"), ("grant", "list")):
        result = CliRunner().invoke(cli, ["--json", *words], env=desk.environment("admin"))
        assert result.exit_code == 2
        assert json.loads(result.stdout)["error"]["code"] == "RETENTION_USAGE"


def test_a_second_terminal_just_works(desk):
    write_file(desk.home, desk.environment("admin"))
    result = CliRunner().invoke(cli, ["--tenant", desk.alias, "grant", "list"], env={"RETENTION_HOME": str(desk.home)})
    assert result.exit_code == 0
    assert "admin" in result.stdout


def test_readiness_needs_the_workers_login_here(desk):
    desk.done("profile", "set", "--provider", "filesystem", "--archive-retention-days", "0")
    answer = desk.call("profile", "readiness", RETENTION_WORKER_URL=None)
    assert (answer.code, answer.error) == (2, "RETENTION_SETTING_MISSING")


def test_composing_opens_nothing(desk):
    with App(
        Settings.load({"RETENTION_HOME": str(desk.home), "RETENTION_WORKER_URL": "postgresql://x@127.0.0.1:1/x"})
    ) as app:
        assert app.transport()
        assert app.tenant_keys()
        assert app.catalog


@pytest.mark.parametrize("words", [("grant", "list"), ("secret", "list"), ("egress", "show"), ("profile", "show")])
def test_people_read_lines_and_tables(desk, words):
    desk.done("profile", "set", "--provider", "filesystem", "--archive-retention-days", "0")
    desk.done("secret", "put", text='{"access_key": "a", "secret_key": "b"}')
    desk.done("egress", "allow", "https://s3.example.org", "--reason", "r")
    answer = desk.call(*words, as_json=False)
    assert answer.code == 0
    assert not answer.out.startswith("{")
    assert max(map(len, answer.out.splitlines())) <= 160
