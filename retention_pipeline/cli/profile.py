"""`retention profile`: where a tenant's archives go, and whether that place was proven."""

import json
from typing import Any

import click

from retention_pipeline.app import PROFILE_GRAMMAR
from retention_pipeline.cli.common import Call, pass_call
from retention_pipeline.errors import Code, Refused
from retention_pipeline.governance.profile import parse_profile
from retention_pipeline.model.people import Permission
from retention_pipeline.model.profile import Provider, Readiness
from retention_pipeline.postgres import profiles


@click.group()
def profile() -> None:
    """The archive profile of a tenant."""


@profile.command("set")
@click.option(
    "--provider", required=True, type=click.Choice([kind.value for kind in Provider]), help="Which kind of store."
)
@click.option(
    "--config", "words", multiple=True, metavar="NAME=VALUE", help="A place; again for each, or all as one JSON object."
)
@click.option("--secret-id", metavar="ID", help="The secret of an s3-compatible store, from `retention secret put`.")
@click.option("--archive-retention-days", required=True, type=int, help="0 keeps without limit; else at least 365.")
@pass_call
def put(call: Call, provider: str, words: tuple[str, ...], secret_id: str | None, archive_retention_days: int) -> None:
    """Set the archive profile; a change is a new generation, which must be proven anew.

    filesystem knows `prefix`, below a data root that the server controls; s3-compatible knows `endpoint`, `bucket`,
    `region`, `prefix`, and `lock_mode` (governance or compliance) for a bucket with object lock. Credentials have no place
    here. Archives that exist stay where they are.

    \b
    Examples:
      retention --tenant acme profile set --provider filesystem --archive-retention-days 3650
      retention --tenant acme profile set --provider s3-compatible --secret-id 5d1e… --archive-retention-days 0 \\
        --config endpoint=https://s3.example.org --config bucket=archives --config region=eu-1 --config prefix=acme
    """
    call.require(Permission.PROFILE_MANAGE)
    draft = parse_profile(
        provider,
        _configuration(words),
        secret_id=secret_id,
        archive_retention_days=archive_retention_days,
        grammar=PROFILE_GRAMMAR,
    )
    with call.app.operator().transaction(call.tenant.id) as cursor:
        generation = profiles.put(cursor, call.tenant.id, draft)
    call.emit(
        {
            "tenant": call.tenant.alias,
            "generation": generation,
            "provider": draft.provider,
            "archive_retention_days": draft.archive_retention_days,
            "ready": False,
            "codes": [Code.READINESS_UNPROVEN],
        }
    )


@profile.command()
@pass_call
def show(call: Call) -> None:
    """Show generation, retention and readiness; never a place.

    \b
    Example:
      retention --tenant acme profile show
    """
    call.require(Permission.READ, Permission.PROFILE_MANAGE)
    with call.app.operator().transaction(call.tenant.id, read_only=True) as cursor:
        status = profiles.status(cursor)
    if status is None:
        raise profiles.unknown()
    call.emit(
        {
            "tenant": call.tenant.alias,
            "generation": status.generation,
            "provider": status.provider,
            "archive_retention_days": status.archive_retention_days,
            **_told(status.readiness),
            "checked_at": status.checked_at,
        }
    )


@profile.command()
@pass_call
def readiness(call: Call) -> int:
    """Try the store for real: write once, read back, be refused a second write; ends with 3 where it is not ready.

    Runs as the worker, whose login this machine must have (RETENTION_WORKER_URL).

    \b
    Example:
      retention --tenant acme profile readiness
    """
    call.require(Permission.PROFILE_MANAGE)
    tried = call.app.check_readiness(call.tenant.id, run=call.correlation)
    call.emit({"tenant": call.tenant.alias, **_told(tried), "correlation": call.correlation})
    return 0 if tried.ready else Refused.exit_code


def _told(readiness: Readiness) -> dict[str, Any]:
    return {"ready": readiness.ready, "codes": list(readiness.codes), "object_lock": readiness.locks}


def _configuration(words: tuple[str, ...]) -> dict[str, Any]:
    """The places, from words or from one JSON object; faults don't repeat them."""
    if len(words) == 1 and words[0].lstrip().startswith("{"):
        try:
            read = json.loads(words[0])
        except (ValueError, RecursionError):
            raise _unreadable() from None
        return dict(read)
    found: dict[str, Any] = {}
    for word in words:
        name, separator, value = word.partition("=")
        if not separator or name in found:
            raise _unreadable()
        found[name] = value
    return found


def _unreadable() -> Refused:
    return Refused(
        Code.PROFILE_INVALID,
        "The configuration can't be read.",
        remedy="Give each place once as --config NAME=VALUE, or all of them as one JSON object.",
    )
