"""Every call ends the same way, whatever was typed or happened (SPEC O1, G6)."""

import json

import click
import pytest
from click.testing import CliRunner

from retention_pipeline.cli import main
from retention_pipeline.errors import Code, Integrity, Refused, Unavailable


def call(*words, program=main.cli):
    return CliRunner().invoke(program, list(words), env={"RETENTION_HOME": "/nowhere"}, prog_name="retention")


def program(error):
    @click.group(cls=main.Program)
    @click.option("--json", is_flag=True)
    @click.option("--tenant")
    def group(json, tenant):
        pass

    @group.command()
    @click.option("--reason")
    def fail(reason):
        raise error

    return group


@pytest.mark.parametrize(
    ("error", "code", "exit_code"),
    [
        (Refused(Code.BRAKE, "No.", remedy="Ask."), "RETENTION_BRAKE", 3),
        (Integrity(Code.OBJECT_MISSING, "Gone.", remedy="Look."), "WORKFLOW_ARCHIVE_OBJECT_MISSING", 4),
        (Unavailable(Code.STORE_FULL, "Full.", remedy="Room."), "WORKFLOW_ARCHIVE_STORE_FULL", 5),
        (ValueError("a row: hidden"), "RETENTION_INTERNAL", 1),
        (click.Abort(), "RETENTION_INTERRUPTED", 1),
    ],
)
def test_a_fault_has_a_code_a_sentence_a_remedy_and_an_exit_code(error, code, exit_code):
    told = call("fail", program=program(error))
    assert told.exit_code == exit_code
    assert told.stdout == ""
    assert told.stderr.startswith(f"{code}: ")
    assert told.stderr.count("\n") == 1
    asked = call("fail", "--json", program=program(error))
    assert asked.exit_code == exit_code
    assert asked.stderr == ""
    assert json.loads(asked.stdout)["error"].keys() == {"code", "message", "remedy"}
    assert "hidden" not in told.output + asked.output


@pytest.mark.parametrize(
    "words",
    [
        ("hidden",),
        ("secret", "hidden"),
        ("secret", "put", "hidden"),
        ("secret", "put", "--secret-key=hidden"),
        ("hold",),
        ("hold", "x", "--matter"),
        ("profile", "set", "--provider", "hidden", "--archive-retention-days", "0"),
        ("profile", "set", "--provider", "filesystem", "--archive-retention-days", "hidden"),
        ("grant", "add", "bob", "hidden"),
        ("approve", "reconcile", "--reason", "r", "--expires-in", "hidden"),
        ("--hidden",),
    ],
)
def test_a_wrong_call_is_refused_without_repeating_it(words):
    answer = call("--json", *words)
    assert answer.exit_code == 2
    assert json.loads(answer.stdout)["error"]["code"] == "RETENTION_USAGE"
    assert "hidden" not in answer.output.replace("--hidden", "")


@pytest.mark.parametrize("name", main.COMMANDS)
def test_every_command_has_help_with_an_example(name):
    answer = call(name, "--help")
    assert answer.exit_code == 0
    for words, found in leaves(main.cli.get_command(click.Context(main.cli), name), (name,)):
        text = call(*words, "--help").stdout
        assert "Example" in text, words
        assert all(parameter.help for parameter in found.params if isinstance(parameter, click.Option)), words


def leaves(command, words):
    """Every command below a group, however deep, with the words that call it."""
    if not isinstance(command, click.Group):
        yield words, command
        return
    for name, found in command.commands.items():
        yield from leaves(found, (*words, name))


def test_the_help_tells_the_exit_codes():
    text = call("--help").stdout
    assert all(f"  {code}  " in text for code in range(8))


def test_without_a_command_the_help_is_shown():
    answer = call()
    assert answer.exit_code == 2
    assert "Commands:" in answer.stderr


def test_the_programs_options_may_stand_anywhere():
    assert main._hoisted(["hold", "x", "--tenant", "acme", "--json"]) == ["--tenant", "acme", "--json", "hold", "x"]
    assert main._hoisted(["hold", "--tenant=acme"]) == ["--tenant=acme", "hold"]
    assert main._hoisted(["hold", "--", "--json"]) == ["hold", "--", "--json"]
    assert main._hoisted(["hold", "--tenant"]) == ["hold", "--tenant"]


def test_a_command_that_needs_a_tenant_says_so():
    answer = call("hold", "x", "--reason", "r", "--json")
    assert json.loads(answer.stdout)["error"]["code"] in {"RETENTION_SETTING_MISSING", "RETENTION_USAGE"}
