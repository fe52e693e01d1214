"""What a step needs of the world, as protocols that `storage`, `keys` and `postgres` implement."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from retention_pipeline.errors import Code
from retention_pipeline.model.ids import ObjectKey, ObjectVersion, TenantId


class ByteStream(Protocol):
    """Bytes that arrive in order; `b""` means the end."""

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes, perhaps fewer."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredVersion:
    """One version of one object, as the provider lists it. The size is a claim, never a proof (A6)."""

    key: ObjectKey
    version: ObjectVersion
    size: int


class Deletion(StrEnum):
    """What deleting one object version came to."""

    DELETED = "deleted"
    GONE = "gone"
    LOCKED = "locked"


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectLock:
    """What a store says that it holds a version by: until an instant, or by the one legal hold that it has."""

    until: datetime | None
    held: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A fact about the world that an operator must act on."""

    code: Code
    message: str
    remedy: str


class ObjectReader(Protocol):
    """As much of a store as reading needs."""

    def read(self, key: ObjectKey, version: ObjectVersion) -> AbstractContextManager[ByteStream]:
        """Open exactly this version as a stream, or raise `Integrity(OBJECT_MISSING)`."""
        ...


class ObjectStore(Protocol):
    """A write-once store of one tenant's archive objects (SPEC A5, A6, A11, A15).

    Keys are relative to the profile's prefix. Every method raises `Unavailable`, `Refused` or `Integrity` of
    `retention_pipeline.errors` and nothing else; no error text names an endpoint, a bucket, a prefix, a path or a key.
    """

    def put_once(
        self, key: ObjectKey, body: bytes, *, sha256: bytes, lock_until: datetime | None = None
    ) -> ObjectVersion:
        """Create the object, durably, or raise `Refused(OBJECT_EXISTS)` if any object has that key already.

        When the answer to a write was lost, raises `Unavailable`: the caller asks `versions` what became of it.
        """
        ...

    def read(self, key: ObjectKey, version: ObjectVersion) -> AbstractContextManager[ByteStream]:
        """Open exactly this version as a stream, or raise `Integrity(OBJECT_MISSING)`."""
        ...

    def versions(self, key: ObjectKey) -> tuple[StoredVersion, ...]:
        """Every version under exactly this key, oldest first; empty when there is none."""
        ...

    def walk(self, below: str = "") -> Iterator[StoredVersion]:
        """Every version of every object under the prefix, a page at a time; or only of keys that begin with `below`, a folder
        such as `audit/`.
        """
        ...

    def delete(self, key: ObjectKey, version: ObjectVersion) -> Deletion:
        """Delete exactly this version; leaves no delete marker."""
        ...

    def locks(self) -> bool:
        """Whether the store can hold an object version against deletion until a date (object lock)."""
        ...

    def lock(self, key: ObjectKey, version: ObjectVersion, *, until: datetime) -> None:
        """Hold a version against deletion until an instant; never sooner than by its present lock (A11)."""
        ...

    def hold(self, key: ObjectKey, version: ObjectVersion, *, on: bool) -> None:
        """Set or lift the one legal hold of a version."""
        ...

    def lock_state(self, key: ObjectKey, version: ObjectVersion) -> ObjectLock:
        """What holds a version now."""
        ...

    def findings(self) -> tuple[Finding, ...]:
        """Every reason in the provider's own settings for which it can't be trusted to keep objects (A11)."""
        ...

    def close(self) -> None:
        """Release connections. Safe to call twice."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WrappedKey:
    """A tenant's key, encrypted under a root key."""

    root_key_id: str
    ciphertext: bytes


class KeyProvider(Protocol):
    """Holds root keys that never leave it, and wraps tenant keys under them (SPEC A18)."""

    def current(self) -> str:
        """The id of the root key that wraps new tenant keys."""
        ...

    def wrap(self, tenant: TenantId, generation: int, key: bytes) -> WrappedKey:
        """Encrypt a tenant key under the current root key, bound to tenant and generation."""
        ...

    def unwrap(self, tenant: TenantId, generation: int, wrapped: WrappedKey) -> bytes:
        """Give the tenant key back, or raise `Unavailable(KEY_UNAVAILABLE)` or `Integrity(OBJECT_UNAUTHENTIC)`."""
        ...

    def mac_key(self, purpose: str) -> bytes:
        """A 32-byte key for one named purpose, such as sealing audit blocks (SPEC G5); it survives rotation."""
        ...
