"""`retention catalog`: the rules, checked against the database that they describe."""

import click
from rich.console import Group
from rich.text import Text

from retention_pipeline.catalog.check import Fault, Severity
from retention_pipeline.catalog.check import check as compare
from retention_pipeline.cli.common import Call, pass_call
from retention_pipeline.errors import Refused
from retention_pipeline.postgres.introspection import read_facts
from retention_pipeline.postgres.session import Session


@click.group()
def catalog() -> None:
    """The catalog: where the data lies."""


@catalog.command()
@pass_call
def check(call: Call) -> int:
    """Compare the catalog with the database; every fault has a code, its line, and what to do.

    Reads the database's own catalog, and none of its rows. Ends with 3 where a fault keeps the product from running.

    \b
    Examples:
      retention catalog check
      retention catalog check --json
    """
    rules = call.app.catalog
    with _session(call).transaction(None, read_only=True) as cursor:
        faults = compare(rules, read_facts(cursor, rules))
    errors = sum(fault.severity is Severity.ERROR for fault in faults)
    call.emit(
        {"catalog": rules.digest, "errors": errors, "faults": [_told(fault) for fault in faults]},
        Group(*map(_shown, faults), f"{errors} error(s), {len(faults) - errors} warning(s)."),
    )
    return Refused.exit_code if errors else 0


def _session(call: Call) -> Session:
    """Whoever can log in here: every login may read what is asked."""
    settings = call.app.settings
    if settings.operator_url:
        return call.app.operator()
    return call.app.worker()


def _told(fault: Fault) -> dict[str, str | int | None]:
    return {
        "code": fault.code,
        "severity": fault.severity,
        "file": fault.file,
        "line": fault.line,
        "message": fault.sentence,
        "remedy": fault.remedy,
    }


def _shown(fault: Fault) -> Text:
    return Text(f"{fault.where}: {fault.severity}: {fault.code}: {fault.sentence}\n  {fault.remedy}")
