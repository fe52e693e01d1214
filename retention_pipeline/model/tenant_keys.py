"""The life of a tenant's keys, as values, and what its steps need of the database (SPEC A18)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Protocol

from retention_pipeline.model.ids import ObjectKey, ObjectVersion, TenantId
from retention_pipeline.model.ports import WrappedKey

KEY_COPIES: Final = "keys/"
"""What the name of every wrapped key beside the archives begins with, below the profile's prefix; no archive's does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptKey:
    """One generation of a tenant's key, as the database keeps it.

    Args:
        revision: how often it was wrapped.
    """

    tenant: TenantId
    id: str = field(repr=False)
    generation: int
    revision: int
    wrapped: WrappedKey = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyUse:
    """What may be shown of one generation, and how much depends on it.

    Args:
        root: which root wraps it.
        copies: stores that have a copy of it as it is now.
        doomed: whether its destruction has begun.
    """

    generation: int
    made_at: datetime
    days: int
    root: str = field(repr=False)
    destroyed_at: datetime | None
    doomed: bool
    archives: int
    in_flight: int
    secrets: int
    copies: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stakes:
    """What a destruction of all of a tenant's keys would take, and what stands in its way.

    Args:
        generations: that are not destroyed yet.
        kept: archives whose own period is not over.
        archives: that become unreadable, by state.
        secrets: that become unreadable.
        copies: objects beside the archives that hold a wrapped key.
        begun_at: when it was begun, if it was and is not finished.
        destroyed: generations that are gone already.
    """

    generations: int
    in_flight: int
    holds: int
    kept: int
    archives: Mapping[str, int]
    secrets: int
    copies: int
    begun_at: datetime | None
    destroyed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyCopy:
    """One object beside the archives that holds a wrapped key, or is about to.

    Args:
        version: None before the answer to its write is on record.
    """

    id: int
    profile_generation: int
    key: ObjectKey = field(repr=False)
    version: ObjectVersion | None = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class DueCopy:
    """A key that lacks a copy in one store."""

    profile_generation: int
    kept: KeptKey


class KeyCopies(Protocol):
    """The record of copies beside the archives, of one tenant at a time."""

    def due(self, tenant: TenantId) -> Sequence[DueCopy]:
        """Keys that lack a copy as they are now."""
        ...

    def intend(self, due: DueCopy, name: ObjectKey) -> KeyCopy:
        """Record a copy before it is written (A5); gives the one that was recorded before, where there is one."""
        ...

    def written(self, tenant: TenantId, copy: KeyCopy, version: ObjectVersion) -> bool:
        """Record the version; False where the copy is no longer wanted."""
        ...

    def stale(self, tenant: TenantId) -> Sequence[KeyCopy]:
        """Copies of what the key no longer is."""
        ...

    def ended(self, tenant: TenantId, copies: Sequence[int]) -> None:
        """Record that they are gone."""
        ...

    def stores(self, tenant: TenantId) -> Mapping[int, int]:
        """Every generation of the profile that was ever proven, with the copies that are on record there."""
        ...


class Rewrapping(Protocol):
    """What wraps keys anew, as the worker, where a manager of keys allowed it."""

    def keys(self, tenant: TenantId) -> Sequence[KeptKey]:
        """Every key that is not destroyed, the oldest first."""
        ...

    def rewrap(self, kept: KeptKey, wrapped: WrappedKey) -> bool:
        """Replace the wrapped key in one transaction; False where another rotation was first."""
        ...

    def under_other_roots(self, root: str) -> Sequence[TenantId]:
        """Tenants with a key that another root wraps."""
        ...


class KeyDesk(Protocol):
    """What a manager of keys asks of the database, and has it do, in its audit's sight."""

    def newest_generation(self, tenant: TenantId) -> int:
        """The newest generation, destroyed ones included; 0 where there is none."""
        ...

    def add(
        self, tenant: TenantId, generation: int, wrapped: WrappedKey, *, key_id: str, reason: str, correlation: str
    ) -> bool:
        """Make a new generation; False where another rotation was first."""
        ...
