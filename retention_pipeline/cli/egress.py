"""`retention egress`: where the installation may connect to (SPEC A14)."""

from typing import Any

import click

from retention_pipeline.cli.common import Call, pass_call, table
from retention_pipeline.egress.policy import EgressPolicy
from retention_pipeline.errors import Code, UsageFault
from retention_pipeline.model.people import Permission
from retention_pipeline.postgres import egress_settings

_reason = click.option("--reason", required=True, help="For the record.")


@click.group()
def egress() -> None:
    """Where the installation may connect to.

    Nowhere, unless somebody approved it.
    """


@egress.command()
@pass_call
def show(call: Call) -> None:
    """List the approved destinations.

    \b
    Example:
      retention egress show
    """
    call.require_everywhere(Permission.EGRESS)
    with call.app.operator().transaction(None, read_only=True) as cursor:
        _emit(call, egress_settings.policy(cursor))


@egress.command()
@click.argument("destination")
@click.option("--network", "networks", multiple=True, metavar="CIDR", help="Where its addresses must lie; repeatable.")
@_reason
@pass_call
def allow(call: Call, destination: str, networks: tuple[str, ...], reason: str) -> None:
    """Approve a destination, or replace its approval: https://host[:port].

    Its addresses must be public ones; an internal address needs --network.

    \b
    Examples:
      retention egress allow https://s3.example.org --reason "Archive store, CHG-12"
      retention egress allow https://minio.corp:9000 --network 10.1.0.0/16 --reason "In house"
    """
    call.require_everywhere(Permission.EGRESS)
    with call.app.operator().transaction(None) as cursor:
        policy = egress_settings.allow(cursor, destination, networks, reason)
    _emit(call, policy)


@egress.command()
@click.argument("destination", required=False)
@click.option("--all", "everything", is_flag=True, help="Take every approval away, also where the settings are broken.")
@_reason
@pass_call
def remove(call: Call, destination: str | None, everything: bool, reason: str) -> None:
    """Take an approval away; what is open is not reused.

    \b
    Examples:
      retention egress remove https://s3.example.org --reason "Moved"
      retention egress remove --all --reason "Incident 7"
    """
    if everything == (destination is not None):
        raise UsageFault(
            Code.USAGE, "Name one destination, or all of them.", remedy="See `retention egress remove --help`."
        )
    call.require_everywhere(Permission.EGRESS)
    with call.app.operator().transaction(None) as cursor:
        if destination is None:
            egress_settings.close(cursor, reason)
            policy = egress_settings.policy(cursor)
        else:
            policy = egress_settings.remove(cursor, destination, reason)
    _emit(call, policy)


def _emit(call: Call, policy: EgressPolicy) -> None:
    told: list[dict[str, Any]] = [
        {"destination": str(destination), "networks": [str(network) for network in networks]}
        for destination, networks in policy.approved.items()
    ]
    shown = table(("destination", "networks"), [(e["destination"], e["networks"] or "public") for e in told])
    note = "Nothing is approved." if policy.valid else "The settings don't parse, so everything is closed."
    call.emit({"valid": policy.valid, "destinations": told}, shown if told else note)
