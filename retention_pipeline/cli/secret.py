"""`retention secret`: credentials of archive stores, read from standard input or a prompt alone (SPEC A13)."""

import json
import sys

import click

from retention_pipeline.cli.common import Call, pass_call, table
from retention_pipeline.governance.secret import MAX_BYTES, parse_credentials
from retention_pipeline.model.credentials import Credentials
from retention_pipeline.model.people import Permission
from retention_pipeline.postgres import credentials


@click.group()
def secret() -> None:
    """Credentials of archive stores, sealed."""


@secret.command()
@click.option("--id", "secret_id", metavar="ID", help="The secret that gets a new generation; else a new one is made.")
@pass_call
def put(call: Call, secret_id: str | None) -> None:
    """Store credentials: JSON from standard input, or typed at a prompt.

    A new generation takes the profile's readiness away, until it is tried again.

    \b
    Examples:
      retention --tenant acme secret put                            (asks, and shows nothing)
      retention --tenant acme secret put < credentials.json
      retention --tenant acme secret put --id 5d1e… < credentials.json
    credentials.json:
      {"access_key": "…", "secret_key": "…", "session_token": "… (optional)"}
    """
    call.require(Permission.PROFILE_MANAGE)
    given = _read()
    key = call.app.operator_keys().current(call.tenant.id)
    with call.app.operator().transaction(call.tenant.id) as cursor:
        made, generation = credentials.put(cursor, call.tenant.id, given, key, secret_id)
    call.emit({"tenant": call.tenant.alias, "secret_id": made, "generation": generation})


@secret.command("list")
@pass_call
def show(call: Call) -> None:
    """List the tenant's secrets: ids, ages and the profiles that use them, never what is in them.

    A secret that an older profile names is still needed to read the archives that were written under that profile.

    \b
    Example:
      retention --tenant acme secret list
    """
    call.require(Permission.PROFILE_MANAGE)
    with call.app.operator().transaction(call.tenant.id, read_only=True) as cursor:
        found = credentials.entries(cursor, call.tenant.id)
    told = [
        {
            "secret_id": e.id,
            "generation": e.generation,
            "stored_at": e.at,
            "days": e.days,
            "in_use": e.current and not e.revoked,
            "profiles": list(e.profiles),
            "revoked": e.revoked,
        }
        for e in found
    ]
    columns = ("secret id", "generation", "stored at", "days", "in use", "profile generations", "revoked")
    call.emit({"tenant": call.tenant.alias, "secrets": told}, table(columns, [list(entry.values()) for entry in told]))


@secret.command()
@click.argument("secret_id", metavar="ID")
@click.option("--reason", required=True, help="For the record.")
@pass_call
def revoke(call: Call, secret_id: str, reason: str) -> None:
    """End a secret for good. A profile that names it is no longer ready, and its archives can't be reached with it.

    \b
    Example:
      retention --tenant acme secret revoke 5d1e… --reason "The key was seen in a ticket"
    """
    call.require(Permission.PROFILE_MANAGE)
    with call.app.operator().transaction(call.tenant.id) as cursor:
        credentials.revoke(cursor, call.tenant.id, secret_id, reason)
    call.emit({"tenant": call.tenant.alias, "secret_id": credentials.canonical_id(secret_id), "revoked": True})


def _read() -> Credentials:
    if not sys.stdin.isatty():
        return parse_credentials(sys.stdin.buffer.read(MAX_BYTES + 1))
    asked = {
        "access_key": click.prompt("Access key", hide_input=True, err=True),
        "secret_key": click.prompt("Secret key", hide_input=True, err=True),
        "session_token": click.prompt(
            "Session token (empty for none)", hide_input=True, default="", show_default=False, err=True
        )
        or None,
    }
    return parse_credentials(json.dumps(asked).encode())
