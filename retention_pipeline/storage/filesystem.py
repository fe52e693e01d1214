"""An archive store below a folder that the server controls (SPEC A5, A6, A12).

    <root>/<prefix>/<key's folders>/<key's last component>@/<generation>

- An object is a folder whose name ends in `@`, with one file in it, whose random name is the object's version.
- It is written apart, synced, and moved into place as a whole: `rename` moves a folder onto a missing or an empty one
  only, so a key is taken once, and a crash leaves nothing under it.
- Paths are opened a component at a time below the root, and a symlink at any of them is refused.
- Files have mode 0600, folders 0700.
"""

import errno
import fcntl
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from datetime import datetime
from hashlib import sha256 as new_sha256
from pathlib import Path
from typing import Final

from retention_pipeline.errors import Code, Integrity, Refused
from retention_pipeline.model.ids import ObjectKey, ObjectVersion
from retention_pipeline.model.ports import ByteStream, Deletion, Finding, ObjectLock, StoredVersion
from retention_pipeline.storage import folders
from retention_pipeline.storage.keys import checked_folder, checked_key, checked_prefix

_MARK: Final = "@"
_INCOMING: Final = ".incoming"
_STRANGER: Final = ""
"""In the place of a version, for a plain file that somebody else left here; it can be read and deleted, never written."""
_TAKEN: Final = frozenset({errno.ENOTEMPTY, errno.EEXIST})


class FilesystemStore:
    """Implements `ObjectStore`.

    Args:
        root: the data root; it must exist. Its own path may lead over symlinks, nothing below it may.
        prefix: the profile's folder below it.
    """

    def __init__(self, root: Path, prefix: str) -> None:
        self._root = root
        bare = checked_prefix(prefix)
        self._prefix = tuple(bare.split("/")) if bare else ()
        self._reaped = False
        self._durable: set[tuple[str, ...]] = set()  # folders whose way down was synced

    def __repr__(self) -> str:
        return "FilesystemStore()"

    def put_once(
        self, key: ObjectKey, body: bytes, *, sha256: bytes, lock_until: datetime | None = None
    ) -> ObjectVersion:
        """Create the object, synced, or raise `Refused(OBJECT_EXISTS)`; there is no object lock to ask for."""
        place = _place(key)
        if lock_until is not None:
            raise _no_lock()
        if new_sha256(body).digest() != sha256:
            raise Integrity(
                Code.OBJECT_DIGEST_MISMATCH,
                "The object is not what its digest says; nothing was written.",
                remedy="Try again; if it repeats, test this machine's memory.",
            )
        generation = secrets.token_hex(16)
        sync = place[:-1] not in self._durable
        with folders.faults(), ExitStack() as stack:
            root = stack.enter_context(self._opened_root())
            base = stack.enter_context(folders.made(root, self._prefix, sync=sync))
            parent = stack.enter_context(folders.made(base, place[:-1], sync=sync))
            incoming = stack.enter_context(folders.made(base, (_INCOMING,), sync=False))
            self._reap_once(incoming)
            with _written(incoming, generation, body):
                try:
                    os.rename(generation, place[-1], src_dir_fd=incoming, dst_dir_fd=parent)
                except OSError as error:
                    if error.errno in _TAKEN:
                        raise _exists() from None
                    raise
            os.fsync(parent)
        self._durable.add(place[:-1])
        return ObjectVersion(generation)

    @contextmanager
    def read(self, key: ObjectKey, version: ObjectVersion) -> Iterator[ByteStream]:
        """Open exactly this version as a stream."""
        with folders.faults():
            try:
                *way, name = _file(key, version)
                with self._opened(*way) as folder:
                    handle = folders.opened_file(folder, name)
            except FileNotFoundError:
                raise _missing() from None
        try:
            yield _File(handle)
        finally:
            os.close(handle)

    def versions(self, key: ObjectKey) -> tuple[StoredVersion, ...]:
        """The version under exactly this key; a key never has two."""
        place = _place(key)
        with folders.faults():
            try:
                with self._opened(*place) as folder:
                    return tuple(_stored(folder, key))
            except FileNotFoundError:
                return ()

    def walk(self, below: str = "") -> Iterator[StoredVersion]:
        """Every object under the prefix, or under a folder of it, in the order of their keys' folders."""
        start = checked_folder(below)
        with folders.faults():
            try:
                with self._opened(*start.split("/")[:-1]) as base:
                    yield from _walk(base, start)
            except FileNotFoundError:
                return

    def delete(self, key: ObjectKey, version: ObjectVersion) -> Deletion:
        """Delete exactly this version, and let its key go."""
        place = _place(key)
        with folders.faults(), ExitStack() as stack:
            try:
                parent = stack.enter_context(self._opened(*place[:-1]))
                if version == _STRANGER:
                    os.unlink(key.split("/")[-1], dir_fd=parent)
                    os.fsync(parent)
                    return Deletion.DELETED
                folder = stack.enter_context(folders.opened(parent, place[-1]))
                os.unlink(_generation(version), dir_fd=folder)
            except FileNotFoundError:
                return Deletion.GONE
            os.fsync(folder)
            with suppress(OSError):  # an empty folder is as good as none
                os.rmdir(place[-1], dir_fd=parent)
            os.fsync(parent)
        return Deletion.DELETED

    def locks(self) -> bool:
        """A file system has no object lock."""
        return False

    def lock(self, key: ObjectKey, version: ObjectVersion, *, until: datetime) -> None:
        """A file system has no object lock."""
        del key, version, until
        raise _no_lock()

    def hold(self, key: ObjectKey, version: ObjectVersion, *, on: bool) -> None:
        """A file system has no legal hold; our own records hold."""
        del key, version, on
        raise _no_lock()

    def lock_state(self, key: ObjectKey, version: ObjectVersion) -> ObjectLock:
        """Nothing holds a file."""
        del key, version
        return ObjectLock(until=None, held=False)

    def findings(self) -> tuple[Finding, ...]:
        """A data root that others may change is a reason not to trust it."""
        with folders.faults(), self._opened_root() as root:
            mode = os.fstat(root).st_mode
        if mode & (stat.S_IWGRP | stat.S_IWOTH):
            return (
                Finding(
                    code=Code.STORE_PATH_UNSAFE,
                    message="Other users of this machine may write to the data root.",
                    remedy="Give the data root to the user that runs the pipeline, with mode 0700.",
                ),
            )
        return ()

    def close(self) -> None:
        """Nothing stays open between calls."""

    def _opened_root(self) -> AbstractContextManager[int]:
        return folders.opened_root(self._root)

    @contextmanager
    def _opened(self, *components: str) -> Iterator[int]:
        with ExitStack() as stack:
            handle = stack.enter_context(self._opened_root())
            for component in (*self._prefix, *components):
                handle = stack.enter_context(folders.opened(handle, component))
            yield handle

    def _reap_once(self, incoming: int) -> None:
        """Remove what writers that died have left; one that lives holds a lock on its folder."""
        if self._reaped:
            return
        self._reaped = True
        for name in os.listdir(incoming):
            with suppress(OSError), folders.opened(incoming, name) as folder:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                folders.remove(incoming, name, folder)


class _File:
    """An object's bytes; the disk's failures leave as ours."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def read(self, size: int, /) -> bytes:
        with folders.faults():
            return os.read(self._handle, size)


@contextmanager
def _written(incoming: int, generation: str, body: bytes) -> Iterator[None]:
    """A synced object beside its place, for the caller to move; whatever was not moved is removed."""
    os.mkdir(generation, 0o700, dir_fd=incoming)
    with folders.opened(incoming, generation) as folder:
        fcntl.flock(folder, fcntl.LOCK_EX)
        try:
            handle = os.open(
                generation, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder
            )
            with os.fdopen(handle, "wb", buffering=0) as file:
                view = memoryview(body)
                while view:
                    view = view[file.write(view) :]
                os.fsync(handle)
            os.fsync(folder)
            yield
        except BaseException:
            with suppress(OSError):
                folders.remove(incoming, generation, folder)
            raise


def _no_lock() -> Refused:
    return Refused(Code.USAGE, "This store has no object lock.", remedy="Ask `locks` before asking for one.")


def _place(key: str) -> tuple[str, ...]:
    *parents, last = checked_key(key).split("/")
    return (*parents, last + _MARK)


def _file(key: str, version: str) -> tuple[str, ...]:
    """The way to an object's one file."""
    return tuple(checked_key(key).split("/")) if version == _STRANGER else (*_place(key), _generation(version))


def _generation(version: str) -> str:
    """A version that this store never made is one that it does not have."""
    if len(version) != 32 or not set(version) <= set("0123456789abcdef"):
        raise FileNotFoundError(errno.ENOENT, "")
    return version


def _stored(folder: int, key: str) -> Iterator[StoredVersion]:
    for name in sorted(os.listdir(folder)):
        with suppress(FileNotFoundError):  # deleted since
            yield _entry(folder, name, key, name)


def _walk(folder: int, path: str) -> Iterator[StoredVersion]:
    for name in sorted(os.listdir(folder)):
        if name == _INCOMING:
            continue
        with suppress(FileNotFoundError):
            if not stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                yield _entry(folder, name, path + name, _STRANGER)
                continue
            with folders.opened(folder, name) as below:
                if name.endswith(_MARK):
                    yield from _stored(below, path + name.removesuffix(_MARK))
                else:
                    yield from _walk(below, f"{path}{name}/")


def _entry(folder: int, name: str, key: str, version: str) -> StoredVersion:
    size = os.stat(name, dir_fd=folder, follow_symlinks=False).st_size
    return StoredVersion(key=ObjectKey(key), version=ObjectVersion(version), size=size)


def _exists() -> Refused:
    return Refused(
        Code.OBJECT_EXISTS,
        "An object has that key already; it was left as it is.",
        remedy="Read it back: it may be one's own, from a write whose answer was lost.",
    )


def _missing() -> Integrity:
    return Integrity(
        Code.OBJECT_MISSING,
        "The store has no such object version.",
        remedy="Keep the source; find out who removed it.",
    )
