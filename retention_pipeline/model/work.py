"""What the stages need of the database, as protocols that `postgres` implements."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from retention_pipeline.errors import Code
from retention_pipeline.model.archive import (
    Attempt,
    AttemptState,
    Candidate,
    DeletionReceipt,
    Export,
    Intention,
    Rejected,
    VerifiedObject,
)
from retention_pipeline.model.decision import Facts
from retention_pipeline.model.ids import AttemptId, InstanceId, ObjectVersion, TenantId
from retention_pipeline.model.inventory import Inventory
from retention_pipeline.model.outcome import RunReport
from retention_pipeline.model.people import AnyJob, Approval
from retention_pipeline.model.profile import Profile, Readiness

Moved = tuple[AttemptId, int, ObjectVersion]
"""An attempt, the fence under which it is ours, and the object version that it is about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EligibleSet:
    """Instances that may go now, in the order in which they fell due, within the bounds of one run.

    Args:
        remaining: eligible instances beyond the bounds.
    """

    id: str
    tenant: TenantId
    items: int
    remaining: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """Due instances that nothing protects."""

    instances: int
    oldest_overdue_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledged:
    """The counts of a preflight that a person accepted (W10, G8)."""

    preflight: str
    total: int
    eligible: int
    due: int
    blocked_due: int
    missing_epochs: int
    cooling_off: int = 0

    @property
    def expected(self) -> int:
        """How many eligible instances were foreseen: those of a shortened period become eligible by its acknowledgement."""
        return self.eligible + self.cooling_off


class Source(Protocol):
    """The platform's own rows, of one tenant at a time."""

    def now(self, tenant: TenantId) -> datetime:
        """The database's clock."""
        ...

    def inventory(self, tenant: TenantId, as_of: datetime) -> Inventory:
        """Count everything and change nothing (W5)."""
        ...

    def backlog(self, tenant: TenantId, as_of: datetime) -> Backlog:
        """What is due and free to go."""
        ...

    def facts(self, tenant: TenantId, instance: InstanceId, as_of: datetime) -> tuple[Facts, Candidate | None]:
        """One instance's facts, and its candidate where it has an epoch; refuses an unknown id."""
        ...

    def vanished(self, tenant: TenantId, attempt: Attempt) -> bool:
        """Whether the instance of an attempt is gone, and no receipt says why (W11)."""
        ...

    def export(
        self, tenant: TenantId, candidates: Sequence[Candidate], as_of: datetime, *, held_too: bool
    ) -> AbstractContextManager[Iterator[Export | Rejected]]:
        """Read candidates whole, in one snapshot."""
        ...

    def swap(
        self,
        tenant: TenantId,
        verified: Sequence[VerifiedObject],
        *,
        as_of: datetime,
        approval: Approval,
        run: str,
        held_too: bool,
    ) -> tuple[list[DeletionReceipt], list[Rejected]]:
        """Delete what is unchanged and still eligible, in one transaction with its receipts (A7)."""
        ...


class Records(Protocol):
    """The product's own records, of one tenant at a time."""

    def take_lease(self, tenant: TenantId, job: AnyJob, holder: str) -> int | None:
        """The fencing token, or None while another run has the job (G7)."""
        ...

    def keep_lease(self, tenant: TenantId, job: AnyJob, holder: str, fence: int) -> None:
        """Extend the lease, or raise `Unavailable(LEASE_LOST)`."""
        ...

    def drop_lease(self, tenant: TenantId, job: AnyJob, holder: str, fence: int) -> None:
        """End the lease, and let go of every attempt of this holder."""
        ...

    def use_approval(self, tenant: TenantId, approval_id: str, job: AnyJob, run: str, subject: str | None) -> Approval:
        """Take an approval for this run, or raise `Refused(APPROVAL_INVALID)` (G4)."""
        ...

    def standing_approval(self, tenant: TenantId, job: AnyJob) -> str | None:
        """The newest standing approval that is good now."""
        ...

    def profile(self, tenant: TenantId) -> tuple[Profile, Readiness]:
        """The newest archive profile and whether it is ready, or raise `Refused(PROFILE_UNKNOWN)`."""
        ...

    def acknowledged(self, tenant: TenantId) -> Acknowledged | None:
        """The preflight that was acknowledged last."""
        ...

    def record_preflight(self, inventory: Inventory, run: str) -> str:
        """Keep a preflight's numbers; gives its id."""
        ...

    def select(self, tenant: TenantId, preflight: str, as_of: datetime, run: str, limit: int) -> EligibleSet:
        """Materialize the eligible set, without what is set aside or in another worker's hands."""
        ...

    def candidates(self, eligible: EligibleSet, after: int, limit: int) -> list[tuple[int, Candidate]]:
        """The next candidates of the set, with their positions."""
        ...

    def intend(
        self,
        tenant: TenantId,
        intentions: Sequence[Intention],
        *,
        approval: Approval,
        run: str,
        holder: str,
        profile: Profile,
    ) -> set[AttemptId]:
        """Record attempts before their objects are written (A5); gives those that are ours."""
        ...

    def mark_stored(self, tenant: TenantId, written: Sequence[Moved]) -> set[AttemptId]:
        """Record what was written; gives those that are still ours."""
        ...

    def mark_verified(self, tenant: TenantId, proven: Sequence[Moved]) -> set[AttemptId]:
        """Record what was proven; gives those that are still ours."""
        ...

    def claim(
        self, tenant: TenantId, *, holder: str, states: Sequence[AttemptState], limit: int, instance: InstanceId | None
    ) -> list[Attempt]:
        """Take over attempts that nobody works on any more."""
        ...

    def attempt(self, tenant: TenantId, attempt: AttemptId) -> Attempt:
        """One attempt, or raise `Refused(ARCHIVE_UNKNOWN)`."""
        ...

    def retire(
        self,
        tenant: TenantId,
        attempt: AttemptId,
        fence: int,
        instance: InstanceId,
        *,
        state: AttemptState,
        code: Code,
        run: str,
        actor: str,
    ) -> None:
        """End an attempt off its path, audited."""
        ...

    def reject(self, tenant: TenantId, rejected: Iterable[Rejected], *, run: str, actor: str) -> None:
        """Set instances aside with a back-off, audited."""
        ...

    def audit(
        self, tenant: TenantId, *, actor: str, kind: str, outcome: str, run: str, subject: str, code: Code | None
    ) -> None:
        """Append one event."""
        ...

    def previous_backlog(self, tenant: TenantId, job: AnyJob) -> int | None:
        """The backlog that the last run of this job left."""
        ...

    def finish(self, report: RunReport, started: datetime) -> None:
        """Keep how the run ended."""
        ...
