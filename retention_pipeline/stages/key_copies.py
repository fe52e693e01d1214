"""Keeps a copy of each wrapped tenant key beside the archives, so that losing the database does not lose them (SPEC A17).

- A copy is on record before it is written, and written once under a random name; never under object lock.
- The copy of what a key no longer is goes only when the new one is there, and all copies go when the key is destroyed.
- Nothing is opened where nothing changed. Killed anywhere, the next pass goes on.
"""

import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Self

from retention_pipeline.errors import Code, Integrity, Refused, RetentionError
from retention_pipeline.governance.key_copy import MAX_COPY, read_copy, write_copy
from retention_pipeline.model.ids import ObjectKey, ObjectVersion, TenantId
from retention_pipeline.model.ports import Deletion, ObjectStore
from retention_pipeline.model.tenant_keys import KEY_COPIES, DueCopy, KeyCopies, KeyCopy

OpenStore = Callable[[TenantId, int], ObjectStore]


@dataclass(slots=True, kw_only=True)
class CopyReport:
    """What one pass came to.

    Args:
        failures: what did not get done, by code; the next pass tries it again.
        stores: the profile's generations whose stores it was.
    """

    written: int = 0
    removed: int = 0
    failures: dict[str, int] = field(default_factory=dict)
    stores: set[int] = field(default_factory=set)

    def fail(self, code: Code, generation: int) -> None:
        """Count a failure."""
        self.failures[str(code)] = self.failures.get(str(code), 0) + 1
        self.stores.add(generation)


def copy_keys(copies: KeyCopies, stores: OpenStore, tenant: TenantId) -> CopyReport:
    """Write the copies that are missing, then remove those of what keys no longer are."""
    report = CopyReport()
    with _Opened(stores, tenant) as opened:
        for due in copies.due(tenant):
            try:
                report.written += _write(copies, opened(due.profile_generation), tenant, due)
            except RetentionError as error:
                report.fail(error.code, due.profile_generation)
        for stale in copies.stale(tenant):
            try:
                remove(opened(stale.profile_generation), stale)
                copies.ended(tenant, [stale.id])
                report.removed += 1
            except RetentionError as error:
                report.fail(error.code, stale.profile_generation)
    return report


def remove_all(copies: KeyCopies, stores: OpenStore, tenant: TenantId, through_generation: int) -> CopyReport:
    """Remove every copy of a tenant's doomed keys: those on record, and whatever else a store has of them.

    A database that was restored, or a writer that was killed, leaves copies that no record knows: each store is walked.
    """
    report = copy_keys(copies, stores, tenant)
    with _Opened(stores, tenant) as opened:
        for generation, recorded in copies.stores(tenant).items():
            try:
                store = opened(generation)
                for key, version in _doomed(store, tenant, through_generation):
                    _gone(store.delete(key, version))
                    report.removed += 1
            except RetentionError as error:
                if recorded or error.code is Code.OBJECT_LOCKED:
                    report.fail(error.code, generation)
    return report


def remove(store: ObjectStore, copy: KeyCopy) -> None:
    """Delete one copy; where its version is not on record, every version under its random name.

    Raises:
        Refused: `OBJECT_LOCKED`, where the bucket locks whatever is written.
    """
    known = [copy.version] if copy.version else [found.version for found in store.versions(copy.key)]
    for version in known:
        _gone(store.delete(copy.key, version))


def _write(copies: KeyCopies, store: ObjectStore, tenant: TenantId, due: DueCopy) -> bool:
    copy = copies.intend(due, ObjectKey(f"{KEY_COPIES}{secrets.token_hex(16)}"))
    body = write_copy(due.kept)
    try:
        version = store.put_once(copy.key, body, sha256=sha256(body).digest())
    except Refused as error:
        if error.code is not Code.OBJECT_EXISTS:
            raise
        version = _adopted(store, copy.key, body)  # an earlier pass's, or another's of this moment
    if _bytes(store, copy.key, version) != body:
        raise _differs()
    if copies.written(tenant, copy, version):
        return True
    _gone(store.delete(copy.key, version))  # wrapped anew, or destroyed, meanwhile
    return False


def _adopted(store: ObjectStore, key: ObjectKey, body: bytes) -> ObjectVersion:
    for found in store.versions(key):
        if _bytes(store, key, found.version) == body:
            return found.version
    raise _differs()


def _doomed(store: ObjectStore, tenant: TenantId, through: int) -> Iterator[tuple[ObjectKey, ObjectVersion]]:
    for found in tuple(store.walk(KEY_COPIES)):
        try:
            kept = read_copy(_bytes(store, found.key, found.version))
        except Integrity:
            continue  # nobody's key, or gone already
        if kept.tenant == tenant and kept.generation <= through:
            yield found.key, found.version


def _bytes(store: ObjectStore, key: ObjectKey, version: ObjectVersion) -> bytes:
    data = b""
    with store.read(key, version) as stream:
        while len(data) <= MAX_COPY and (more := stream.read(MAX_COPY + 1)):
            data += more
    return data


def _gone(deletion: Deletion) -> None:
    if deletion is Deletion.LOCKED:
        raise Refused(
            Code.OBJECT_LOCKED,
            "The store holds a wrapped key against deletion.",
            remedy="Take the bucket's default retention away: it lets no key be destroyed before its end.",
        )


def _differs() -> Integrity:
    return Integrity(
        Code.OBJECT_DIGEST_MISMATCH,
        "A wrapped key beside the archives is not what was written.",
        remedy="Look who else writes there; the next pass tries it again.",
    )


class _Opened:
    """A tenant's stores, each opened once, closed together; one that could not be opened is not asked again."""

    def __init__(self, stores: OpenStore, tenant: TenantId) -> None:
        self._stores, self._tenant = stores, tenant
        self._known: dict[int, ObjectStore | RetentionError] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def __call__(self, generation: int) -> ObjectStore:
        if generation not in self._known:
            try:
                self._known[generation] = self._stack.enter_context(closing(self._stores(self._tenant, generation)))
            except RetentionError as error:
                self._known[generation] = error
        found = self._known[generation]
        if isinstance(found, RetentionError):
            raise found from None
        return found
