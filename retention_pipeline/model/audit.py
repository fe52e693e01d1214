"""The sealed record of audit events: its nouns, and what sealing and verifying need of the world (SPEC G5)."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from retention_pipeline.errors import Code
from retention_pipeline.model.ids import ObjectKey, ObjectVersion, TenantId

INSTALLATION: Final = TenantId("*")
"""The chain of events that are no tenant's: grants for all, egress, the first administrator."""

Event = tuple[str | None, ...]
"""One audit event: every column as PostgreSQL prints it under the pinned settings, in the order of `COLUMNS`."""

COLUMNS: Final = (
    "id",
    "tenant_id",
    "at",
    "actor",
    "session_role",
    "kind",
    "subject",
    "outcome",
    "code",
    "reason",
    "correlation",
    "run",
    "details",
)
AT: Final = COLUMNS.index("at")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal:
    """One block of a chain.

    Args:
        previous: the MAC of the block before; empty in the first.
        sealed_at: the database's clock, as it prints it.
        leaves: a keyed hash of 16 bytes for each event, in the order of `event_ids`.
    """

    tenant: TenantId
    block: int
    previous: bytes = field(repr=False)
    sealed_at: str
    event_ids: tuple[int, ...]
    leaves: bytes = field(repr=False)
    mac: bytes = field(repr=False)

    @property
    def head(self) -> "Head":
        """What is kept of it outside the database."""
        return Head(tenant=self.tenant, block=self.block, mac=self.mac, sealed_at=self.sealed_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """A chain's last block, at one time."""

    tenant: TenantId
    block: int
    mac: bytes = field(repr=False)
    sealed_at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """Two heads as they were kept in a tenant's archive store.

    Args:
        installation: the head of the installation's own chain, if it had one.
        at: when, by the database's clock, as it prints it.
    """

    head: Head
    installation: Head | None
    at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFinding:
    """Something of the record that is not what it must be.

    Args:
        block: the block that shows it.
        through: the last block of a gap.
        event: the event that it is about.
    """

    code: Code
    block: int | None = None
    through: int | None = None
    event: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Events that no block has yet: what a tamperer could still change unseen."""

    events: int
    oldest_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """A tenant whose events wait for a seal."""

    tenant: TenantId
    events: int
    oldest_seconds: float | None


class SealingRecords(Protocol):
    """The chains in the database, as the worker."""

    def backlog(self) -> list[Backlog]:
        """Who has events that wait, the longest waiting first."""
        ...

    def seal_next(self, tenant: TenantId, key: bytes, after: int) -> tuple[Seal, int] | None:
        """Seal the next block in one transaction, and say how many of its events are older than they can be.

        None when nothing waits, or another sealer has this chain.
        """
        ...

    def head(self, tenant: TenantId) -> Head | None:
        """The last block."""
        ...

    def block_mac(self, tenant: TenantId, block: int) -> bytes | None:
        """The MAC of one block."""
        ...

    def now(self) -> str:
        """The database's clock, as it prints it."""
        ...

    def anchors_due(self, age_seconds: float, *, unmoved: bool) -> list[TenantId]:
        """Whose head moved since an anchor that is older than this."""
        ...

    def note_anchor(
        self, tenant: TenantId, block: int, generation: int, key: ObjectKey, version: ObjectVersion | None
    ) -> None:
        """Record an anchor before it is written, and again when it was."""
        ...

    def note_restored(self, tenant: TenantId, reason: str) -> None:
        """Record that a person vouches for a shorter chain: the database was restored."""
        ...


class Heads(Protocol):
    """Heads that this machine keeps outside the database."""

    def read(self) -> Mapping[TenantId, Head]:
        """All of them, or `Integrity(AUDIT_HEAD_INVALID)`."""
        ...

    def keep(self, head: Head) -> None:
        """Keep a head, durably; never in the place of a later one."""
        ...

    def forget(self, tenant: TenantId) -> None:
        """Let a chain's head go; a person asked for it."""
        ...


class AuditLog(Protocol):
    """One chain to be read, wherever it is."""

    def blocks(self) -> Iterable[tuple[Seal, Mapping[int, Event]]]:
        """Every block in order, with those of its events that are there."""
        ...

    def waiting(self) -> Waiting:
        """What no block has yet."""
        ...

    def suspicious(self) -> Iterator[AuditFinding]:
        """What is wrong with events that no block has."""
        ...
