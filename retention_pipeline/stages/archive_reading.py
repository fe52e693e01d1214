"""Reads one stored archive again and says what it is by now (SPEC A19).

- The same proof as before a deletion; what fails it is read a second time before anybody is told.
- Other bytes are told apart from bytes that can't be opened: after a failure the rest is read for its length and digest.
- A store or a key service that does not answer says nothing of the archive.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from hashlib import sha256
from typing import Final

from retention_pipeline.errors import Code, Integrity, RetentionError
from retention_pipeline.model.archive import StoredObject
from retention_pipeline.model.ids import ObjectKey, ObjectVersion
from retention_pipeline.model.ports import ByteStream, ObjectStore
from retention_pipeline.model.scrub import Reading, StoredArchive, Verdict
from retention_pipeline.stages.verification import verify

Keys = Callable[[str], bytes]

_PIECE: Final = 1 << 20
_WHOLE_SECONDS: Final = timedelta(seconds=1)
"""Stores keep a lock's end in whole seconds."""


def examine(store: ObjectStore, archive: StoredArchive, keys: Keys) -> Reading:
    """Read it, prove it, and look at its lock.

    Raises:
        RetentionError: nothing is known of the archive, such as `STORE_UNAVAILABLE`.
    """
    reading = _read(store, archive.stored, keys)
    if reading.verdict.is_finding:
        reading = _read(store, archive.stored, keys)
    if reading.verdict is Verdict.INTACT and not _is_locked(store, archive):
        return Reading(verdict=Verdict.UNLOCKED, code=Code.OBJECT_UNLOCKED, proven=True)
    return reading


def is_listed(store: ObjectStore, stored: StoredObject) -> bool:
    """Whether the store lists the recorded version."""
    return any(found.version == stored.version for found in store.versions(stored.key))


def _read(store: ObjectStore, stored: StoredObject, keys: Keys) -> Reading:
    watched = _Watched(store, stored)
    try:
        verify(watched, stored, keys)
    except Integrity as error:
        if error.code is Code.OBJECT_MISSING:
            return Reading(verdict=Verdict.MISSING, code=error.code)
        return Reading(verdict=Verdict.UNREADABLE if watched.same else Verdict.CHANGED, code=error.code)
    except RetentionError as error:
        if error.code is Code.KEY_DESTROYED:
            return Reading(verdict=Verdict.KEYS_DESTROYED, code=error.code)
        if error.code is Code.KEY_UNAVAILABLE:
            return Reading(verdict=Verdict.UNREADABLE, code=error.code)
        raise
    return Reading(verdict=Verdict.INTACT, proven=True)


def _is_locked(store: ObjectStore, archive: StoredArchive) -> bool:
    if archive.until is None and not archive.hold:
        return True
    state = store.lock_state(archive.stored.key, archive.stored.version)
    if archive.hold and not state.held:
        return False
    return archive.until is None or (state.until is not None and state.until >= archive.until - _WHOLE_SECONDS)


class _Watched:
    """Reads one object, and notes whether its bytes are those that were recorded."""

    def __init__(self, store: ObjectStore, stored: StoredObject) -> None:
        self._store, self._stored = store, stored
        self.same = False

    @contextmanager
    def read(self, key: ObjectKey, version: ObjectVersion) -> Iterator[ByteStream]:
        """Pass the bytes on; after a failure, read the rest as far as the recorded length and one byte more."""
        with self._store.read(key, version) as stream:
            counted = _Counted(stream)
            try:
                yield counted
            except Integrity:
                while counted.size <= self._stored.size and counted.read(_PIECE):
                    pass
                self.same = (counted.size, counted.digest.digest()) == (self._stored.size, self._stored.sha256)
                raise


class _Counted:
    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self.size, self.digest = 0, sha256()

    def read(self, size: int, /) -> bytes:
        """Pass the bytes on, counted."""
        data = self._stream.read(size)
        self.size += len(data)
        self.digest.update(data)
        return data
