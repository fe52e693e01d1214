"""What `--apply` says on the spot: a person's yes to exactly this call, for one use and one hour (SPEC G4)."""

from datetime import timedelta
from typing import Final

from retention_pipeline.cli.common import Call
from retention_pipeline.governance.approval import ApprovalRequest, Kind
from retention_pipeline.model.ids import TenantId
from retention_pipeline.model.people import AnyJob
from retention_pipeline.postgres import approvals

LASTS: Final = timedelta(hours=1)
"""Longer than any single run takes."""


def approve_now(
    call: Call,
    job: AnyJob,
    *,
    subject: str | None = None,
    max_items: int = 1,
    reason: str | None,
    tenant: TenantId | None = None,
) -> str:
    """Approve, as the person who calls; gives the approval's id.

    Args:
        call: whose login, and for which tenant.
        job: what is approved.
        subject: the one instance, archive, dead letter or store, for the jobs that have one.
        max_items: how many the run may change.
        reason: for the record; the command's own name where none was given.
        tenant: for whom, where the call is for several.
    """
    request = ApprovalRequest(
        job=job,
        kind=Kind.SINGLE_USE,
        subject=subject,
        max_items=max_items,
        lasts=LASTS,
        reason=reason or f"{job} --apply",
    )
    whose = tenant or call.tenant.id
    with call.app.operator().transaction(whose) as cursor:
        return approvals.approve(cursor, whose, request).id
