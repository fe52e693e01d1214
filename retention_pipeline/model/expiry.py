"""The end of an archive's life, as values: what is due, what keeps it, whose deletion has begun, the tombstone (SPEC A10)."""

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from retention_pipeline.errors import Code
from retention_pipeline.model.archive import AttemptState
from retention_pipeline.model.ids import AttemptId, InstanceId, ObjectKey, ObjectVersion, TenantId
from retention_pipeline.model.people import Approval

OFF_PATH_DAYS = 30
"""How long the object of a superseded, conflicting or abandoned attempt stays: it was never the only copy of anything."""


class Stay(StrEnum):
    """Why an archive stays; one exclusive answer for each, so that they add up."""

    UNLIMITED = "unlimited_retention"
    NOT_YET_DUE = "not_yet_due"
    LEGAL_HOLD = "legal_hold"
    RESTORED = "restored_lately"
    WAITING = "waiting"


@dataclass(frozen=True, slots=True, kw_only=True)
class DueInventory:
    """A tenant's archives whose source is gone, and what may go of them now.

    Args:
        archives: all of them that have an object.
        stays: why those stay that do.
        due: those that may go now.
        leftovers: objects of attempts off the path that may go now.
        leftovers_held: those whose period is over, and that a hold keeps.
        leftovers_waiting: those that were tried, and wait.
        lock_tasks: archives whose lock or hold the provider still has to be told.
        overdue_seconds: how long the oldest has been due that no hold, restore or missing limit keeps.
        waiting_for: why those wait that were tried, by code.
    """

    tenant: TenantId
    as_of: datetime
    archives: int
    stays: dict[str, int]
    due: int
    leftovers: int
    leftovers_held: int
    leftovers_waiting: int
    lock_tasks: int
    overdue_seconds: float | None
    waiting_for: dict[str, int]

    @property
    def free(self) -> int:
        """How many objects may go now."""
        return self.due + self.leftovers

    @property
    def backlog(self) -> int:
        """What is over and is kept by nobody's decision."""
        return self.free + self.stays.get(Stay.WAITING, 0) + self.leftovers_waiting


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiryAcknowledged:
    """How many due archives a person accepted last (G8)."""

    archives: int
    due: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveLife:
    """One archive for people: until when it stays, and what keeps it.

    Args:
        expires_at: when its period is over; None where it has no limit, or has not begun.
    """

    archive: AttemptId
    instance: InstanceId
    epoch: int
    state: AttemptState
    bytes: int
    expires_at: datetime | None
    kept_by: tuple[str, ...]
    lock_pending: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DueArchive:
    """An archive whose period is over and that nothing keeps, as far as was seen.

    Args:
        state: where the attempt stood when it was selected.
        begun: whether an earlier run has begun its deletion.
    """

    archive: AttemptId
    tenant: TenantId
    instance: InstanceId
    state: AttemptState
    key: ObjectKey = field(repr=False)
    version: ObjectVersion = field(repr=False)
    profile_generation: int
    begun: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiringArchive:
    """A due archive whose end is on record: from here on a hold is told that it comes too late. Only `mark` makes one."""

    due: DueArchive


@dataclass(frozen=True, slots=True, kw_only=True)
class Tombstone:
    """What stays of an archive object."""

    archive: AttemptId
    instance: InstanceId
    leftover: bool


class Ending(Protocol):
    """One archive, alone in our hands while its object goes: no hold, reader or other worker comes between."""

    @property
    def kept_by(self) -> Code | None:
        """What keeps it after all, read just now."""
        ...

    def bury(self, *, vanished: bool) -> Tombstone:
        """The object is gone: leave the tombstone, audited. `vanished`: somebody else removed it."""
        ...

    def keep(self, code: Code, *, until: datetime | None = None) -> None:
        """The object is there still: the archive lives on, a hold may come again, and it waits."""
        ...


class Expiries(Protocol):
    """The records of archives' ends, of one tenant at a time."""

    def inventory(self, tenant: TenantId, as_of: datetime) -> DueInventory:
        """Count, and change nothing."""
        ...

    def acknowledged(self, tenant: TenantId) -> ExpiryAcknowledged:
        """What a person accepted last; nothing where nobody ever did."""
        ...

    def due(self, tenant: TenantId, as_of: datetime, limit: int) -> list[DueArchive]:
        """What may go now, those first whose deletion has begun, then the oldest due."""
        ...

    def note_held(self, tenant: TenantId, as_of: datetime, *, approval: Approval, run: str, limit: int) -> int:
        """Audit, once for each, that a hold keeps archives whose period is over."""
        ...

    def mark(self, archive: DueArchive, *, as_of: datetime, approval: Approval, run: str) -> "ExpiringArchive | Code":
        """Record that its deletion begins, if it still may go; else the code of what keeps it."""
        ...

    def ending(
        self, archive: ExpiringArchive, *, as_of: datetime, approval: Approval, run: str
    ) -> AbstractContextManager[Ending | None]:
        """Take the archive for the time of its deletion; None where another worker has it or had it."""
        ...

    def wait(self, archive: DueArchive, code: Code, *, run: str, actor: str) -> None:
        """It could not be ended: it waits, longer each time, audited."""
        ...
