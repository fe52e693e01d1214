"""`retention inventory`: what a tenant has, what may go, and what must stay (SPEC W5)."""

from datetime import datetime

import click
from rich.console import Group
from rich.text import Text

from retention_pipeline.cli.common import Call, instant, pass_call, table
from retention_pipeline.model.inventory import Inventory
from retention_pipeline.model.people import Permission


@click.command()
@click.option(
    "--as-of",
    type=instant,
    metavar="INSTANT",
    help="Look as of this instant (ISO 8601 with offset); the database's now by default.",
)
@pass_call
def inventory(call: Call, as_of: datetime | None) -> None:
    """Count a tenant's instances; nothing is changed.

    Each instance has one disposition, and they add up to the total. Blockers overlap, and don't add up.

    \b
    Examples:
      retention --tenant acme inventory
      retention --tenant acme --json inventory --as-of 2027-01-01T00:00:00Z
    """
    call.require(Permission.READ)
    found = call.app.inventory(call.tenant.id, as_of)
    call.emit(as_json(found), shown(found))


def as_json(found: Inventory) -> dict[str, object]:
    """The inventory for programs."""
    return {
        "tenant": found.tenant,
        "as_of": found.as_of,
        "total": found.total,
        "eligible": found.eligible,
        "due": found.due,
        "missing_terminal_epochs": found.missing_epochs,
        "cooling_off": found.cooling_off,
        "dispositions": found.dispositions,
        "blockers": found.blockers,
        "states": found.states,
    }


def notes(found: Inventory) -> list[Text]:
    """What a person must be told beside the numbers."""
    if not found.cooling_off:
        return []
    return [
        Text(
            f"{found.cooling_off} more would be due, but for a retention period that was shortened lately: they wait until"
            " the cooling-off time is over, or a preflight is acknowledged."
        )
    ]


def shown(found: Inventory) -> Group:
    """The inventory for people."""
    dispositions = sorted(found.dispositions.items(), key=lambda item: (item[0] != "eligible", item[0]))
    return Group(
        Text(f"As of {found.as_of.isoformat(sep=' ', timespec='seconds')}"),
        *notes(found),
        table(("disposition", "instances"), [*dispositions, ("total", found.total)]),
        Text(""),
        table(("blocker (these overlap)", "instances"), sorted(found.blockers.items())),
        Text(""),
        table(("state", "instances"), found.states.items()),
    )
