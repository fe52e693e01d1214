"""Destroys a tenant's keys: what they sealed is unreadable for good, tombstones and records stay (SPEC A18).

1. Begin, committed, under the lock that a hold takes: nothing is sealed under these keys any more.
2. Remove the copies beside the archives: the keys are needed for that, because they open the store's credentials.
3. Destroy every wrapped copy in the database, in one transaction with the audit event.

Killed anywhere, run again goes on where it was; there is no way back from the first step.
"""

from dataclasses import dataclass
from typing import Protocol

from retention_pipeline.errors import Code, Refused
from retention_pipeline.model.ids import TenantId
from retention_pipeline.model.tenant_keys import KeyCopies
from retention_pipeline.stages.key_copies import CopyReport, OpenStore, remove_all


class DestructionDesk(Protocol):
    """What the database does of it, and what it refuses."""

    def begin_destruction(self, tenant: TenantId, *, archives_too: bool, reason: str, correlation: str) -> int | None:
        """The point of no return; gives the last generation that goes, None where there is none."""
        ...

    def finish_destruction(self, tenant: TenantId, *, without_store: bool, correlation: str) -> int:
        """Destroy the keys whose destruction was begun; gives how many."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Destroyed:
    """What it came to.

    Args:
        generations: that were destroyed now.
        copies: the objects beside the archives that went, and what kept others from going.
    """

    generations: int
    copies: CopyReport


def destroy(
    desk: DestructionDesk,
    copies: KeyCopies,
    stores: OpenStore,
    tenant: TenantId,
    *,
    archives_too: bool,
    without_store: bool,
    reason: str,
    correlation: str,
) -> Destroyed:
    """Destroy all of a tenant's keys, or finish what was begun.

    Args:
        desk: what the database does.
        copies: the record of copies.
        stores: opens the store of one generation of the tenant's profile.
        tenant: whose keys.
        archives_too: whether archives may become unreadable whose own period is not over.
        without_store: whether to go on where a store with copies does not answer: it is gone, or somebody else empties it.
        reason: for the record.
        correlation: ties the events to a call.

    Raises:
        Refused: `KEY_HELD`, `KEY_IN_USE`, `KEY_ARCHIVES_KEPT`, with nothing done; `KEY_COPIES_LEFT`, to be run again.
    """
    last = desk.begin_destruction(tenant, archives_too=archives_too, reason=reason, correlation=correlation)
    if last is None:
        return Destroyed(generations=0, copies=CopyReport())
    report = remove_all(copies, stores, tenant, last)
    if report.failures and not without_store:
        told = ", ".join(sorted(report.failures))
        raise Refused(
            Code.KEY_COPIES_LEFT,
            f"Copies of the keys are left beside the archives ({told}).",
            remedy="Run it again when the store answers; where there is no store any more, say --without-store.",
        )
    gone = desk.finish_destruction(tenant, without_store=without_store, correlation=correlation)
    return Destroyed(generations=gone, copies=report)
