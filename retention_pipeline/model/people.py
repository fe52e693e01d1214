"""Who acts, with which permission, under which approval."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Self

from retention_pipeline.model.ids import TenantId


class Permission(StrEnum):
    """What a principal may do for a tenant (G3); `EGRESS` is installation-wide."""

    READ = "workflow_retention:read"
    RECONCILE = "workflow_retention:reconcile"
    ARCHIVE = "workflow_retention:archive"
    PROFILE_MANAGE = "workflow_retention:profile_manage"
    LEGAL_HOLD = "workflow_retention:legal_hold"
    RECOVERY_CANCEL = "workflow_recovery:cancel"
    RESTORE = "workflow_retention:restore"
    KEY_MANAGE = "workflow_retention:key_manage"
    GRANT = "workflow_retention:grant"
    EGRESS = "workflow_retention:egress"


class Job(StrEnum):
    """Work that changes data and so needs an approval (G4)."""

    RECONCILE = "reconcile"
    ARCHIVE = "archive"
    RESTORE = "restore"
    EXPIRE = "expire"
    RECOVERY_CANCEL = "recovery_cancel"
    STORE_DETACH = "store_detach"
    SCRUB_REMOVE = "scrub_remove"
    JOIN_REQUEST = "join_request"

    @property
    def permission(self) -> Permission:
        """Who may approve it."""
        return {
            Job.RECONCILE: Permission.RECONCILE,
            Job.ARCHIVE: Permission.ARCHIVE,
            Job.RESTORE: Permission.RESTORE,
            Job.EXPIRE: Permission.ARCHIVE,
            Job.RECOVERY_CANCEL: Permission.RECOVERY_CANCEL,
            Job.STORE_DETACH: Permission.ARCHIVE,
            Job.SCRUB_REMOVE: Permission.ARCHIVE,
            Job.JOIN_REQUEST: Permission.RECONCILE,
        }[self]


class SweepJob(str):
    """The work of one sweep, named after its dataset: `sweep:submission_ledgers`. A catalog may name any."""

    __slots__ = ()

    @classmethod
    def of(cls, dataset: str) -> Self:
        """The job of a dataset."""
        return cls(f"sweep:{dataset}")

    @property
    def dataset(self) -> str:
        """Whose job it is."""
        return self.removeprefix("sweep:")

    @property
    def permission(self) -> Permission:
        """Who may approve it."""
        return Permission.RECONCILE


AnyJob = Job | SweepJob


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """One customer of the platform."""

    id: TenantId
    alias: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantCount:
    """How much one tenant has."""

    tenant: TenantId
    alias: str
    instances: int
    ended: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    """A person's yes to a change, bounded in tenant, job, count and time. It names the actor of all that follows."""

    id: str
    tenant: TenantId
    job: AnyJob
    actor: str
    max_items: int
    expires_at: datetime
