"""The documents keep their word: links lead somewhere, codes have a page, commands exist."""

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from retention_pipeline.cli.main import cli
from retention_pipeline.errors import Code

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file(page):
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


def test_the_runbook_has_an_entry_for_each_code():
    """O3."""
    runbook = (ROOT / "docs" / "operations.md").read_text()
    assert [code for code in Code if f"`{code}`" not in runbook] == []


def commands():
    for page in PAGES:
        for block in re.findall(r"```sh\n(.*?)```", page.read_text(), re.DOTALL):
            for line in block.splitlines():
                words = shlex.split(line, comments=True)
                if words and words[0].rsplit("/", 1)[-1] == "retention":
                    yield pytest.param(words[1:], id=f"{page.name}: {' '.join(words[1:])}")


@pytest.mark.parametrize("words", list(commands()))
def test_every_command_in_the_documents_is_one(words, tmp_path):
    """Its names and options are read; without an installation, all that it may lack is a setting."""
    environment = {"RETENTION_HOME": str(tmp_path)} | dict.fromkeys(
        ("RETENTION_WORKER_URL", "RETENTION_OPERATOR_URL", "RETENTION_OWNER_URL")
    )
    answer = CliRunner(env=environment).invoke(cli, words, standalone_mode=True)
    assert "RETENTION_SETTING_MISSING" in answer.output or answer.exit_code == 0, answer.output


def test_every_command_has_help_with_an_example():
    """C."""
    context = cli.make_context("retention", [], resilient_parsing=True)
    for name in cli.list_commands(context):
        answer = CliRunner().invoke(cli, [name, "--help"])
        assert answer.exit_code == 0, name
        assert "Example" in answer.output or "Commands:" in answer.output, name


@pytest.mark.parametrize(
    "target", ["help", "setup", "demo", "dev", "test", "quick", "bench", "faults", "browser", "clean"]
)
def test_make_has_each_target_that_the_documents_name(target):
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
