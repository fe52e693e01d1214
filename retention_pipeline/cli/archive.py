"""`retention archive ID`: the explicit archive of one instance, a preflight unless told otherwise (SPEC W8)."""

import click

from retention_pipeline.cli.approving import approve_now
from retention_pipeline.cli.common import Call, pass_call
from retention_pipeline.errors import Code, Refused, UsageFault
from retention_pipeline.model.ids import InstanceId
from retention_pipeline.model.people import Job, Permission
from retention_pipeline.postgres import holds


@click.command()
@click.argument("instance", metavar="ID")
@click.option("--apply", is_flag=True, help="Archive, verify and delete this instance; makes a single-use approval.")
@click.option("--reason", help="Why, for the record.")
@pass_call
def archive(call: Call, instance: str, apply: bool, reason: str | None) -> None:
    """Archive one instance now; a preflight without --apply.

    Its period must be over. A legal hold does not stop it: the hold is bound to the archive.

    \b
    Examples:
      retention --tenant acme archive 0b7c…
      retention --tenant acme archive 0b7c… --apply --reason "the customer left"
    """
    call.require(Permission.ARCHIVE)
    tenant = call.tenant.id
    with call.app.operator().transaction(tenant) as cursor:
        known: InstanceId = holds.resolve(cursor, instance)
    approval = approve_now(call, Job.ARCHIVE, subject=known, reason=reason) if apply else None
    try:
        result = call.app.archive_one(tenant, known, run=call.correlation, apply=apply, approval=approval)
    except UsageFault as error:
        if error.code is not Code.INSTANCE_UNKNOWN:
            raise
        raise Refused(
            Code.INSTANCE_UNKNOWN,
            "This instance is archived already, and gone from the source.",
            remedy="`retention inspect` lists its archive.",
        ) from None
    call.emit(
        {
            "tenant": call.tenant.alias,
            "instance": known,
            "outcome": result.outcome,
            "reason": result.reason,
            "may_go": result.go,
            "disposition": result.decision.disposition,
            "blockers": list(result.decision.blockers),
            "hold_is_bound": result.held,
            "profile_ready": result.ready,
            "archived": result.counts.archived,
            "verified": result.counts.verified,
            "deleted": result.counts.deleted,
            "run": call.correlation,
        }
    )
    call.finish(result.outcome)
