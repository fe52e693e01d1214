"""`retention integrity`: how sure one may be of a tenant's archives (SPEC A19)."""

from typing import Any

import click

from retention_pipeline.cli.common import Call, pass_call, table
from retention_pipeline.model.people import Permission
from retention_pipeline.model.scrub import Integrity


@click.command()
@pass_call
def integrity(call: Call) -> None:
    """Show what is known of a tenant's archives, and proven.

    Reads records alone, no archive: `retention scrub` reads archives. Ends with 0 whatever stands open.

    \b
    Examples:
      retention --tenant acme integrity
      retention --tenant acme --json integrity
    """
    call.require(Permission.READ)
    found = call.app.integrity(call.tenant.id)
    told = as_json(found)
    numbers = [(name.replace("_", " "), told[name]) for name in told if name != "findings"]
    numbers += [(f"open: {name}", number) for name, number in found.findings.items()]
    shown = table(("", ""), numbers)
    shown.show_header = False
    call.emit({"tenant": call.tenant.id, **told}, shown)


def as_json(found: Integrity) -> dict[str, Any]:
    """The report for programs."""
    return {
        "archives": found.archives,
        "bytes": found.bytes,
        "proven_lately": found.covered,
        "within_days": found.days,
        "coverage_percent": round(100 * found.coverage, 1),
        "oldest_proof": found.oldest_proof,
        "next_expiry": found.next_expiry,
        "held": found.held,
        "unlimited": found.unlimited,
        "keys_destroyed": found.keys_destroyed,
        "unknown_objects": found.unknown,
        "findings": found.findings,
        "findings_open": found.open,
    }
