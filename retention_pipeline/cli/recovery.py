"""`retention recovery cancel`: close a dead letter that must not be replayed (SPEC G2)."""

import click

from retention_pipeline.cli.approving import approve_now
from retention_pipeline.cli.common import Call, pass_call
from retention_pipeline.model.outcome import Outcome
from retention_pipeline.model.people import Job, Permission
from retention_pipeline.postgres import recovery as letters


@click.group()
def recovery() -> None:
    """Dead letters: what failed, and waits for a person."""


@recovery.command()
@click.argument("letter", metavar="ID")
@click.option("--expected-fence", type=int, required=True, help="The fence that you saw; another one is refused.")
@click.option("--reason", required=True, help="Why, for the record.")
@click.option("--apply", is_flag=True, help="Really close it; makes a single-use approval.")
@pass_call
def cancel(call: Call, letter: str, expected_fence: int, reason: str, apply: bool) -> None:
    """Close a dead letter that must not be replayed; a preflight without --apply.

    Whoever still holds its old fence is refused from then on. It protects its instance until its own horizon is over.

    \b
    Examples:
      retention --tenant acme recovery cancel 0b7c… --expected-fence 3 --reason "paid by hand"
      retention --tenant acme recovery cancel 0b7c… --expected-fence 3 --reason "paid by hand" --apply
    """
    call.require(Permission.RECOVERY_CANCEL)
    tenant, dataset = call.tenant.id, call.app.catalog.instances
    worker = call.app.worker() if apply else None
    with call.app.operator().transaction(tenant) as cursor:
        known = letters.find(cursor, dataset, letter)
    approval = approve_now(call, Job.RECOVERY_CANCEL, subject=known.id, reason=reason) if apply else ""
    told = {"tenant": call.tenant.alias, "dead_letter": known.id}
    if worker is None:
        refusal = known.refusal(expected_fence)
        call.emit(
            {
                **told,
                "outcome": Outcome.PREFLIGHT,
                "status": known.status,
                "fence": known.fence,
                "would_close": refusal is None,
                "code": refusal.code if refusal else None,
            }
        )
        return
    with worker.transaction(tenant) as cursor:
        done = letters.cancel(
            cursor, known.id, expected_fence=expected_fence, approval=approval, correlation=call.correlation
        )
    if done.refusal:
        raise done.refusal
    call.emit(
        {
            **told,
            "outcome": Outcome.COMPLETED,
            "status": done.status,
            "fence": done.fence,
            "protects_its_instance": True,
            "correlation": call.correlation,
        }
    )
