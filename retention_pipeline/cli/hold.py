"""`retention hold`: legal holds on instances and on their archives (SPEC G1)."""

import click

from retention_pipeline.cli.common import Call, pass_call
from retention_pipeline.errors import Code, RetentionError, UsageFault
from retention_pipeline.model.people import Permission
from retention_pipeline.postgres import holds

FEW = 20
"""Archives that the store is told of at once; a run tells it of more."""


@click.command()
@click.argument("instance", metavar="ID")
@click.option("--reason", help="Why; must be given to hold and to release.")
@click.option("--matter", default=holds.GENERAL, show_default=True, help="What the hold is for; one hold for each.")
@click.option("--release", is_flag=True, help="End the hold of this matter.")
@click.option("--list", "show", is_flag=True, help="Show the holds that stand, and change nothing.")
@pass_call
def hold(call: Call, instance: str, reason: str | None, matter: str, release: bool, show: bool) -> None:
    """Hold an instance and its archive.

    Neither goes while any hold stands. A hold that comes too late, when the archive's deletion has begun, is refused.

    \b
    Examples:
      retention --tenant acme hold 0b7c… --matter M-17 --reason "Litigation with X"
      retention --tenant acme hold 0b7c… --matter M-17 --reason "Settled" --release
      retention --tenant acme hold 0b7c… --list
    """
    call.require(Permission.LEGAL_HOLD)
    tenant = call.tenant.id
    with call.app.operator().transaction(tenant) as cursor:
        known = holds.resolve(cursor, instance)
        if show:
            standing = holds.active(cursor, tenant, known)
        else:
            change = holds.release if release else holds.place
            standing = change(cursor, tenant, known, matter=matter, reason=_given(reason), correlation=call.correlation)
    pending = None if show else _tell_the_store(call)
    call.emit(
        {
            "tenant": call.tenant.alias,
            "instance": known,
            "held": bool(standing),
            "matters": [hold.matter for hold in standing],
            "correlation": call.correlation,
            **({} if pending is None else {"locks_to_tell": pending}),
        }
    )


def _tell_the_store(call: Call) -> int | None:
    """Pass the hold on to a store that can lock, where this machine has the worker's login; else the next run does (A11).

    The hold stands already: whatever fails here keeps its reminder, and fails nothing.
    """
    if call.app.settings.worker_url is None:
        return None
    try:
        return call.app.settle_locks(call.tenant.id, limit=FEW).pending
    except RetentionError:
        return None


def _given(reason: str | None) -> str:
    if reason is None or not reason.strip():
        raise UsageFault(Code.USAGE, "A hold needs a reason.", remedy="Give one with --reason.")
    return reason
