"""`retention doctor`: what is wrong with the installation, or with one tenant's part, and what to do (SPEC O3)."""

from contextlib import closing

import click
from rich.console import Group
from rich.text import Text

from retention_pipeline.cli.common import Call, pass_call
from retention_pipeline.doctor import Doctor
from retention_pipeline.errors import Refused, Unavailable
from retention_pipeline.model.diagnosis import Check, Diagnosis, Severity, examine, untried
from retention_pipeline.model.people import Permission


@click.command()
@click.option("--all", "everything", is_flag=True, help="Also what is well.")
@pass_call
def doctor(call: Call, everything: bool) -> int:
    """Examine the installation, or one tenant's part.

    With --tenant the archive store too: one probe object is written, and taken away again; nothing else changes.
    Ends with 3 where something has to be mended. Every code has a page in docs/operations.md.

    \b
    Examples:
      retention doctor
      retention doctor --all
      retention --tenant acme doctor --json
    """
    with closing(Doctor(app=call.app)) as rounds:
        checks, found = list(rounds.installation()), []
        if call.alias is not None:
            try:
                checks += _of_tenant(call, rounds)
            except Unavailable as failed:
                found.append(untried("The tenant's part", failed))
        found += examine(checks)
    counted = {severity: sum(d.severity is severity for d in found) for severity in Severity}
    shown = [d for d in found if everything or d.severity is not Severity.OK]
    summary = (
        f"{counted[Severity.ERROR]} error(s), {counted[Severity.WARNING]} warning(s), {counted[Severity.OK]} well."
    )
    call.emit(
        {
            "tenant": call.alias,
            "errors": counted[Severity.ERROR],
            "warnings": counted[Severity.WARNING],
            "findings": [_told(d) for d in shown],
        },
        Group(*map(_shown, shown), summary),
    )
    return Refused.exit_code if counted[Severity.ERROR] else 0


def _of_tenant(call: Call, rounds: Doctor) -> list[Check]:
    """The worker's own machine may look without a person's login: it reads all of this anyway."""
    if call.app.settings.operator_url is not None:
        call.require(Permission.READ)
    return list(rounds.tenant(call.tenant.id))


def _told(found: Diagnosis) -> dict[str, str]:
    return {
        "code": found.code,
        "severity": found.severity,
        "message": found.sentence,
        "remedy": found.remedy,
    }


def _shown(found: Diagnosis) -> Text:
    line = f"{found.severity}: {found.code}: {found.sentence}"
    return Text(f"{line}\n  {found.remedy}" if found.remedy else line)
