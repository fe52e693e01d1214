"""Stored archives read again, as values: which, what was found, and what a store has that no record names (SPEC A19)."""

from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final, Protocol

from retention_pipeline.errors import Code
from retention_pipeline.model.archive import StoredObject
from retention_pipeline.model.ids import AttemptId, ObjectKey, ObjectVersion, TenantId
from retention_pipeline.model.outcome import RunReport
from retention_pipeline.model.people import Approval
from retention_pipeline.model.ports import StoredVersion

SCRUB: Final = "scrub"
"""The lease: two scrubs of one tenant, or a scrub and a removal, never overlap (G7)."""
CIRCLE: Final = 1 << 32
"""Archives stand on a circle of so many points, by a hash of their ids."""
SLICES: Final = 30
"""By default a run reads a slice of this many: a daily one reads everything once a month."""
UNKNOWN_DAYS: Final = 1
"""How long an object must have been seen unknown before it may be removed on request; the database says the same."""


class Verdict(StrEnum):
    """What reading one archive again found."""

    INTACT = "intact"
    MISSING = "missing"
    CHANGED = "changed"
    UNREADABLE = "unreadable"
    UNLOCKED = "unlocked"
    KEYS_DESTROYED = "keys_destroyed"

    @property
    def is_finding(self) -> bool:
        """Whether something is not what it must be; destroyed keys are a decision that somebody made (A18)."""
        return self not in {Verdict.INTACT, Verdict.KEYS_DESTROYED}


FINDINGS: Final = tuple(verdict for verdict in Verdict if verdict.is_finding)


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """A place on the circle; what stands at it was read."""

    point: int
    archive: AttemptId


BEFORE_ALL: Final = AttemptId("00000000-0000-0000-0000-000000000000")
START: Final = Position(point=0, archive=BEFORE_ALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """One of `of` equal parts of the circle, counted from 1."""

    number: int
    of: int

    @property
    def first(self) -> Position:
        """Where it begins."""
        return Position(point=-(-(self.number - 1) * CIRCLE // self.of), archive=BEFORE_ALL)

    @property
    def end(self) -> int:
        """The point at which the next one begins."""
        return -(-self.number * CIRCLE // self.of)

    @property
    def next(self) -> Position:
        """Where reading goes on when all of it was read."""
        return START if self.number == self.of else Position(point=self.end, archive=BEFORE_ALL)

    @classmethod
    def at(cls, position: Position, of: int) -> "Slice":
        """The slice that a position lies in."""
        return cls(number=position.point * of // CIRCLE + 1, of=of)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredArchive:
    """An archive that must be there, and how the store must hold it.

    Args:
        stored: what was recorded of it.
        until: the end of its captured period, where the store must lock it and was told.
        hold: whether the store must hold it for a matter, or because it is kept without limit.
    """

    stored: StoredObject
    until: datetime | None = None
    hold: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What reading one archive found.

    Args:
        proven: whether it was read to its end and is the archive that was recorded.
    """

    verdict: Verdict
    code: Code | None = None
    proven: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A store, as one or several generations of a profile name it."""

    newest: int
    generations: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A page of a store's list beside the records.

    Args:
        unknown: what no record of any tenant names.
        new: how many of them were never seen before.
        absent: archives that belong into the page and are not in it.
        through: the last archive's key in the page; None where it has none.
    """

    unknown: int
    new: int
    absent: tuple[AttemptId, ...]
    through: ObjectKey | None = field(repr=False)


@dataclass(slots=True, kw_only=True)
class Tally:
    """What a run has seen so far."""

    verdicts: Counter[Verdict] = field(default_factory=Counter)
    bytes: int = 0
    listed: int = 0
    listed_whole: bool = False
    unknown: int = 0
    new_unknown: int = 0

    @property
    def archives(self) -> int:
        """How many archives were looked at."""
        return self.verdicts.total()

    @property
    def findings(self) -> int:
        """What is not what it must be."""
        return sum(self.verdicts[verdict] for verdict in FINDINGS) + self.unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Integrity:
    """How sure one may be of a tenant's archives.

    Args:
        covered: archives that were proven within `days`, by a scrub or when they were written.
        oldest_proof: of all archives that can be read; None where there are none.
        next_expiry: the end of the period that is over first.
        findings: archives that are not what they must be, by verdict, as they were seen last.
        unknown: objects that no record names, as they were seen last.
        keys_destroyed: archives that nobody can read any more, by decision.
    """

    archives: int
    bytes: int
    covered: int
    days: int
    oldest_proof: datetime | None
    next_expiry: datetime | None
    held: int
    unlimited: int
    findings: dict[str, int]
    unknown: int
    keys_destroyed: int

    @property
    def coverage(self) -> float:
        """The part of the archives that was proven of late, from 0 to 1."""
        readable = self.archives - self.keys_destroyed
        return self.covered / readable if readable else 1.0

    @property
    def open(self) -> int:
        """Findings that stand."""
        return sum(self.findings.values()) + self.unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubResult:
    """A run's report, what it saw, and how sure one may be now."""

    report: RunReport
    tally: Tally
    part: Slice
    integrity: Integrity


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownObject:
    """An object version that no record names.

    Args:
        id: what people and events call it.
        was_tried: whether an attempt has its key, though not its version.
    """

    id: str
    profile_generation: int
    key: ObjectKey = field(repr=False)
    version: ObjectVersion = field(repr=False)
    was_tried: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownInventory:
    """Objects that no record names.

    Args:
        all: how many are on record.
        removable: those that were first seen a day ago or earlier.
    """

    all: int
    removable: int


class ScrubRecords(Protocol):
    """The records of scrubbing, as the worker."""

    def now(self, tenant: TenantId) -> datetime:
        """The database's clock."""
        ...

    def take_lease(self, tenant: TenantId, holder: str) -> int | None:
        """The fencing token, or None while another run scrubs this tenant (G7)."""
        ...

    def keep_lease(self, tenant: TenantId, holder: str, fence: int) -> None:
        """Extend the lease, or raise `Unavailable(LEASE_LOST)`."""
        ...

    def drop_lease(self, tenant: TenantId, holder: str, fence: int) -> None:
        """End the lease."""
        ...

    def position(self, tenant: TenantId) -> Position:
        """Where the last run stopped."""
        ...

    def move(self, tenant: TenantId, position: Position) -> None:
        """The next run begins here."""
        ...

    def next(self, tenant: TenantId, after: Position, end: int, limit: int) -> list[Position]:
        """The archives that stand behind a position and before the end of its slice, in order."""
        ...

    def reading(self, tenant: TenantId, archive: AttemptId) -> AbstractContextManager[StoredArchive | None]:
        """Take an archive among its readers, so that its object does not go; None where it is ending, or its end began."""
        ...

    def found(
        self, tenant: TenantId, archive: StoredArchive, reading: Reading, *, run: str, position: Position | None
    ) -> bool:
        """Record what was found, audited where it is another finding than last time; gives whether it is."""
        ...

    def places(self, tenant: TenantId) -> list[Place]:
        """Every store in which the tenant has objects, and the newest."""
        ...

    def compare(
        self, tenant: TenantId, place: Place, page: Sequence[StoredVersion], after: ObjectKey | None, *, run: str
    ) -> Compared:
        """Set a page of a store's list beside the records, both ways, and keep what no record names, audited once."""
        ...

    def behind(
        self, tenant: TenantId, place: Place, after: ObjectKey | None, limit: int
    ) -> list[tuple[AttemptId, ObjectKey]]:
        """Archives whose keys come after the last one that a store listed, in order."""
        ...

    def forget_gone(self, tenant: TenantId, place: Place, *, run: str) -> None:
        """Unknown objects that the run did not see are not there any more."""
        ...

    def finish(self, report: RunReport, tally: Tally, part: Slice, *, started: datetime, finished: bool) -> None:
        """Keep how the run ended."""
        ...

    def integrity(self, tenant: TenantId) -> Integrity:
        """How sure one may be of the archives."""
        ...


class UnknownObjects(Protocol):
    """The records of objects that no record names."""

    def inventory(self, tenant: TenantId) -> UnknownInventory:
        """Count them."""
        ...

    def removable(self, tenant: TenantId, limit: int) -> list[UnknownObject]:
        """Those that were seen first a day ago or earlier, the oldest first."""
        ...

    def begin(self, tenant: TenantId, found: UnknownObject, *, approval: Approval, run: str) -> None:
        """Record that its deletion begins; the database refuses one that a record names, or that is too young."""
        ...

    def removed(self, tenant: TenantId, found: UnknownObject, *, approval: Approval, run: str) -> None:
        """It is gone: forget it, audited."""
        ...

    def stays(self, tenant: TenantId, found: UnknownObject, code: Code, *, approval: Approval, run: str) -> None:
        """It could not be removed, audited."""
        ...
