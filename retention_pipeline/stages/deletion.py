"""Deletes source rows whose archive is proven, by compare-and-swap (SPEC A7); takes `VerifiedObject` and nothing else."""

from collections.abc import Sequence
from datetime import datetime

from retention_pipeline.errors import Code
from retention_pipeline.model.archive import DeletionReceipt, Rejected, VerifiedObject
from retention_pipeline.model.ids import TenantId
from retention_pipeline.model.people import Approval
from retention_pipeline.model.work import Source

ONLY_SKIPPED = frozenset({Code.SOURCE_BUSY, Code.LEASE_LOST, Code.NOT_ELIGIBLE, Code.ALREADY_ARCHIVED})
"""A row that stays is not an error here: somebody works on it, or it is protected by now. It is an answer. Nor is one that
another worker archived and deleted meanwhile."""
SUPERSEDED = frozenset({Code.SOURCE_CHANGED, Code.ALREADY_ARCHIVED})
"""After these, the archive stays as evidence and nothing goes on with it."""


def delete(
    source: Source,
    tenant: TenantId,
    verified: Sequence[VerifiedObject],
    *,
    as_of: datetime,
    approval: Approval,
    run: str,
    held_too: bool = False,
) -> tuple[list[DeletionReceipt], list[Rejected]]:
    """Delete what is unchanged and still eligible; the rest stays, each with its code.

    Args:
        source: the platform's rows.
        tenant: whose.
        verified: the proof for each instance.
        as_of: the run's instant.
        approval: a person's yes; names the actor.
        run: the run's id.
        held_too: only on the explicit path: a hold is bound to the archive instead of blocking (W8, A9).
    """
    if not verified:
        return [], []
    return source.swap(tenant, verified, as_of=as_of, approval=approval, run=run, held_too=held_too)
