"""`retention store detach`: let a data store go to which no instance is bound (SPEC W9)."""

import click

from retention_pipeline.cli.approving import approve_now
from retention_pipeline.cli.common import Call, pass_call
from retention_pipeline.model.outcome import Outcome
from retention_pipeline.model.people import Job, Permission
from retention_pipeline.postgres import stores


@click.group()
def store() -> None:
    """Data stores of the platform, to which instances are bound."""


@store.command()
@click.argument("identifier", metavar="ID")
@click.option("--reason", required=True, help="Why, for the record.")
@click.option("--apply", is_flag=True, help="Really detach it; makes a single-use approval.")
@pass_call
def detach(call: Call, identifier: str, reason: str, apply: bool) -> None:
    """Detach a data store; a preflight without --apply.

    Refused while an instance is bound to it, and nothing is archived for its sake. One that is detached already stays so.

    \b
    Examples:
      retention --tenant acme store detach 0b7c… --reason "moved to the new store"
      retention --tenant acme store detach 0b7c… --reason "moved to the new store" --apply
    """
    call.require(Permission.ARCHIVE)
    tenant, dataset = call.tenant.id, call.app.catalog.instances
    worker = call.app.worker() if apply else None
    with call.app.operator().transaction(tenant) as cursor:
        known = stores.find(cursor, dataset, identifier)
    approval = approve_now(call, Job.STORE_DETACH, subject=known.id, reason=reason) if apply else ""
    told = {"tenant": call.tenant.alias, "store": known.id}
    if worker is None:
        refusal = known.refusal
        call.emit(
            {
                **told,
                "outcome": Outcome.PREFLIGHT,
                "bound": known.bound,
                "detached_at": known.detached_at,
                "would_detach": refusal is None and known.detached_at is None,
                "code": refusal.code if refusal else None,
            }
        )
        return
    with worker.transaction(tenant) as cursor:
        done = stores.detach(cursor, known.id, approval=approval, correlation=call.correlation)
    if done.refusal:
        raise done.refusal
    call.emit(
        {
            **told,
            "outcome": Outcome.COMPLETED,
            "detached_at": done.at,
            "already_detached": done.already,
            "correlation": call.correlation,
        }
    )
