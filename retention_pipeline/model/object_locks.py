"""What a store that can lock is to be told of an archive, as values (SPEC A11)."""

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from retention_pipeline.errors import Code
from retention_pipeline.model.ids import AttemptId, ObjectKey, ObjectVersion, TenantId

FIRST_LOCK_DAYS = 30
"""How long a new object is locked, before its source is gone: what a failed deletion leaves can be removed after that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedLock:
    """How the store shall hold one archive's object, as the records say at this moment.

    Args:
        until: the end of the captured period; None where that is over, unlimited or has not begun.
        hold: whether a matter or unlimited retention keeps it.
        lift: whether it may be that a hold was told before, which no longer stands.
    """

    archive: AttemptId
    profile_generation: int
    key: ObjectKey = field(repr=False)
    version: ObjectVersion = field(repr=False)
    until: datetime | None
    hold: bool
    lift: bool


class Telling(Protocol):
    """One archive's reminders, in our hands alone while the store is told."""

    @property
    def wanted(self) -> WantedLock | None:
        """What to tell; None where the object is gone or going."""
        ...

    def done(self) -> None:
        """The store took it: forget every reminder that was there before."""
        ...

    def failed(self, code: Code) -> None:
        """It did not: try again later, longer each time."""
        ...


class LockReminders(Protocol):
    """The outbox: written in the transaction of a deletion or of a hold, emptied when the store took it."""

    def waiting(self, tenant: TenantId, limit: int) -> list[AttemptId]:
        """Archives that are to be told of now, the oldest reminder first."""
        ...

    def telling(self, tenant: TenantId, archive: AttemptId) -> AbstractContextManager[Telling | None]:
        """Take one archive's reminders; None where another worker has them."""
        ...

    def pending(self, tenant: TenantId) -> int:
        """How many archives the store still has to be told of."""
        ...
