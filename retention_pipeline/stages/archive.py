"""Seals manifests and writes them, each once, after its attempt is on record (SPEC A3-A5).

When a write's answer is lost, nobody knows whether it landed: the key's versions are listed, and the one whose bytes are the
intended ones is adopted. The key is random and recorded beforehand, so other bytes under it are a conflict, never ours.
"""

import hashlib
import secrets
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from retention_pipeline.clock import sleep
from retention_pipeline.envelope.identity import Identity
from retention_pipeline.envelope.seal import seal
from retention_pipeline.envelope.wire import MAX_OBJECT, MAX_PLAINTEXT
from retention_pipeline.envelope.wraps import TenantKey
from retention_pipeline.errors import Code, Integrity, RetentionError, Unavailable
from retention_pipeline.model.archive import MANIFEST_FORMAT, Intention, Manifest
from retention_pipeline.model.ids import AttemptId, ObjectKey, ObjectVersion
from retention_pipeline.model.ports import ObjectStore

TRIES = 3
PAUSE_SECONDS = 0.5
CHUNK = 256 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedArchive:
    """An envelope, and the attempt that will record it before it is written."""

    intention: Intention
    body: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one archive may weigh, in bytes; configurable downward only (A4)."""

    plaintext: int = MAX_PLAINTEXT
    envelope: int = MAX_OBJECT


def encrypt(manifest: Manifest, key: TenantKey, limits: Limits) -> SealedArchive:
    """Seal one manifest under a fresh data key; over a limit it is refused, before anything is written."""
    export = manifest.export
    identity = Identity(
        tenant=export.tenant,
        instance=export.candidate.instance,
        epoch=export.candidate.epoch,
        manifest=MANIFEST_FORMAT,
    )
    sealed = seal(
        manifest.body, identity=identity, key=key, plaintext_limit=limits.plaintext, object_limit=limits.envelope
    )
    name = secrets.token_hex(16)
    intention = Intention(
        id=AttemptId(str(uuid.uuid4())),
        candidate=export.candidate,
        key=ObjectKey(f"{name[:2]}/{name}"),
        size=sealed.size,
        sha256=sealed.sha256,
        plaintext_size=sealed.plaintext_size,
        manifest_digest=sealed.manifest_digest,
        key_id=key.id,
        fingerprint=export.fingerprint,
        shared_digest=export.shared_digest,
        rows_by_table=export.rows_by_table(),
        captured_at=export.captured_at,
    )
    return SealedArchive(intention=intention, body=sealed.body)


def write(
    store: ObjectStore,
    archive: SealedArchive,
    *,
    lock_until: datetime | None = None,
    pause: Callable[[float], None] = sleep,
) -> ObjectVersion:
    """Write the object once; after a lost answer, find out what became of it before anything else.

    Args:
        store: where to.
        archive: what.
        lock_until: how long a store that can lock shall hold it, whatever becomes of its source (A11).
        pause: how to wait between tries.

    Raises:
        Integrity: `OBJECT_CONFLICT`, when other bytes lie under the key.
        Unavailable: when the store gave no answer that settles it; the next run asks again.
    """
    intention = archive.intention
    for attempt in range(1, TRIES + 1):
        try:
            return store.put_once(intention.key, archive.body, sha256=intention.sha256, lock_until=lock_until)
        except RetentionError as error:
            lost = isinstance(error, Unavailable) or error.code is Code.OBJECT_EXISTS
            if not lost:
                raise
            landed = _after_a_lost_answer(store, intention)
            if landed is not None:
                return landed
            if attempt == TRIES:
                raise
            pause(PAUSE_SECONDS * attempt)
    raise AssertionError("the loop returns or raises")


def _after_a_lost_answer(store: ObjectStore, intention: Intention) -> ObjectVersion | None:
    try:
        return landed(store, intention.key, size=intention.size, sha256=intention.sha256)
    except Unavailable:
        return None  # still no answer: the write is tried again, and write-once makes that safe


def landed(store: ObjectStore, key: ObjectKey, *, size: int, sha256: bytes) -> ObjectVersion | None:
    """The version under the key that holds exactly the intended bytes, or None where nothing is there.

    Raises:
        Integrity: `OBJECT_CONFLICT`, when only other bytes are there.
    """
    versions = store.versions(key)
    for stored in versions:
        if _digest(store, key, stored.version, size) == sha256:
            return stored.version
    if versions:
        raise Integrity(
            Code.OBJECT_CONFLICT,
            "Other bytes lie under the archive's key; the source stays.",
            remedy="The next run writes under a new key. Find out who writes to the archive store.",
        )
    return None


def _digest(store: ObjectStore, key: ObjectKey, version: ObjectVersion, size: int) -> bytes:
    digest, seen = hashlib.sha256(), 0
    with store.read(key, version) as stream:
        while seen <= size and (chunk := stream.read(CHUNK)):
            digest.update(chunk)
            seen += len(chunk)
    return digest.digest() if seen == size else b""
