"""`retention join`: what a person does with one join request (SPEC J6)."""

from collections.abc import Callable

import click

from retention_pipeline.cli.approving import approve_now
from retention_pipeline.cli.common import Call, pass_call
from retention_pipeline.errors import Refused
from retention_pipeline.model.outcome import Outcome
from retention_pipeline.model.people import Job, Permission
from retention_pipeline.postgres import join_acts
from retention_pipeline.postgres.join_acts import Act


@click.group()
def join() -> None:
    """Requests to join a company that wait for somebody."""


_WORDS = {
    Act.KEEP: "Keep a request, so that it is never archived for want of activity; a preflight without --apply.",
    Act.UNKEEP: "Keep a request no longer: its days count again from now; a preflight without --apply.",
    Act.ARCHIVE: "Archive a request now, neither approved nor rejected; a preflight without --apply.",
    Act.REVIVE: "Bring an archived request back into the attention feed, for as many days again; a preflight without --apply.",
}


def _command(act: Act) -> Callable[..., None]:
    def run(call: Call, identifier: str, reason: str, apply: bool) -> None:
        _do(call, act, identifier, reason, apply=apply)

    run.__doc__ = f"""{_WORDS[act]}

    \b
    Examples:
      retention --tenant acme join {act} 0b7c… --reason "asked for by the company"
      retention --tenant acme join {act} 0b7c… --reason "asked for by the company" --apply
    """
    return run


for _act in Act:
    _run = pass_call(_command(_act))
    _run = click.option("--apply", is_flag=True, help="Really do it; makes a single-use approval.")(_run)
    _run = click.option("--reason", required=True, help="Why, for the record.")(_run)
    join.command(name=_act.value)(click.argument("identifier", metavar="ID")(_run))


def _do(call: Call, act: Act, identifier: str, reason: str, *, apply: bool) -> None:
    call.require(Permission.RECONCILE)
    tenant, worker = call.tenant.id, call.app.worker() if apply else None
    with call.app.operator().transaction(tenant) as cursor:
        known = join_acts.find(cursor, call.app.catalog, identifier)
    approval = approve_now(call, Job.JOIN_REQUEST, subject=known.id, reason=reason) if apply else ""
    told = {"tenant": call.tenant.alias, "request": known.id}
    if worker is None:
        refusal = known.refusal(act)
        call.emit(
            {
                **told,
                "outcome": Outcome.PREFLIGHT,
                "status": known.status,
                "kept_at": known.kept_at,
                "archived_at": known.archived_at,
                "due_at": known.due_at,
                f"would_{act}": refusal is None and not known.done(act),
                "code": refusal.code if refusal else None,
            }
        )
        return
    with worker.transaction(tenant) as cursor:
        done = join_acts.do(cursor, known, act, approval=approval, correlation=call.correlation)
    if isinstance(done, Refused):
        raise done
    call.emit({**told, "outcome": Outcome.COMPLETED, "already": done, "correlation": call.correlation})
