"""Is a store ready to be trusted with archives? Only what was tried counts (SPEC A15).

- An object that nobody needs is written once and read back unchanged.
- A second write of its name must be refused, and must leave the first one as it was.
- It is deleted again, by its versions.
- The provider's own settings must not be able to end an object (SPEC A11).
"""

import hmac
import secrets
from hashlib import sha256
from typing import Final

from retention_pipeline.errors import Code, RetentionError
from retention_pipeline.model.ids import ObjectKey, ObjectVersion
from retention_pipeline.model.ports import Finding, ObjectStore

_SIZE: Final = 4096
_PLACE: Final = "readiness"


def probe(store: ObjectStore) -> tuple[Finding, ...]:
    """Try a store, and list every reason for which it is not ready; none means ready.

    Raises:
        RetentionError: the store could not be tried at all, such as `STORE_UNAVAILABLE` or `STORE_DENIED`.
    """
    key, body = ObjectKey(f"{_PLACE}/{secrets.token_hex(16)}"), secrets.token_bytes(_SIZE)
    version = store.put_once(key, body, sha256=sha256(body).digest())
    try:
        tried = (*_second_write(store, key), *_read_back(store, key, version, body))
    finally:
        cleared = _clear(store, key)
    return (*tried, *cleared, *store.findings())


def _second_write(store: ObjectStore, key: ObjectKey) -> tuple[Finding, ...]:
    other = secrets.token_bytes(_SIZE)
    try:
        store.put_once(key, other, sha256=sha256(other).digest())
    except RetentionError as error:
        if error.code is Code.OBJECT_EXISTS:
            return ()
        return (_unproven("A second write of one name", error),)
    return (
        Finding(
            code=Code.READINESS_NO_CONDITIONAL_CREATE,
            message="The store let a second write replace an object.",
            remedy="Use a store that honours conditional writes (If-None-Match).",
        ),
    )


def _read_back(store: ObjectStore, key: ObjectKey, version: ObjectVersion, body: bytes) -> tuple[Finding, ...]:
    try:
        found = _read(store, key, version)
    except RetentionError as error:
        return (_unproven("Reading an object back", error),)
    if hmac.compare_digest(found, body):
        return ()
    return (
        Finding(
            code=Code.READINESS_PROBE_CHANGED,
            message="An object came back changed.",
            remedy="Don't use this store; look at the network between, and at the store's own checks.",
        ),
    )


def _read(store: ObjectStore, key: ObjectKey, version: ObjectVersion) -> bytes:
    found = bytearray()
    with store.read(key, version) as stream:
        while len(found) <= _SIZE and (piece := stream.read(_SIZE + 1)):
            found += piece
    return bytes(found)


def _clear(store: ObjectStore, key: ObjectKey) -> tuple[Finding, ...]:
    try:
        for found in store.versions(key):
            store.delete(key, found.version)
        left = len(store.versions(key))
    except RetentionError as error:
        return (_unproven("Listing and deleting an object version", error),)
    if not left:
        return ()
    return (
        Finding(
            code=Code.OBJECT_LOCKED,
            message=f"{left} version(s) of the probe could not be deleted.",
            remedy="Remove the default retention from the bucket; archives are locked one by one.",
        ),
    )


def _unproven(what: str, error: RetentionError) -> Finding:
    return Finding(
        code=Code.READINESS_UNREADABLE, message=f"{what} could not be tried ({error.code}).", remedy=error.remedy
    )
