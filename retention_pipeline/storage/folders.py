"""Folders below a root, opened a component at a time so that no symlink leads out of it (SPEC A12)."""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from retention_pipeline.errors import Code, Refused, RetentionError, Unavailable
from retention_pipeline.storage.keys import unsafe

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_DENIED: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_UNSAFE: Final = frozenset({errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.EMLINK})


@contextmanager
def faults() -> Iterator[None]:
    """Convert the operating system's errors, which name paths, into ours, which don't (SPEC A16)."""
    try:
        yield
    except OSError as error:
        raise _fault(error.errno) from None


@contextmanager
def opened_root(root: Path) -> Iterator[int]:
    """The data root itself, which the server's operator vouches for."""
    try:
        handle = os.open(root, _FOLDER)
    except (FileNotFoundError, NotADirectoryError):
        raise Refused(
            Code.STORE_MISSING,
            "The data root is not there.",
            remedy="Mount or make it, for the user that runs the pipeline, with mode 0700.",
        ) from None
    try:
        yield handle
    finally:
        os.close(handle)


@contextmanager
def opened(parent: int, name: str) -> Iterator[int]:
    """One folder below another; `OSError` where it is missing, a symlink or a file."""
    handle = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=parent)
    try:
        yield handle
    finally:
        os.close(handle)


@contextmanager
def made(start: int, components: tuple[str, ...], *, sync: bool) -> Iterator[int]:
    """A folder below another, made where it is missing.

    Args:
        start: the open folder above.
        components: names to go down.
        sync: whether to make the way down durable, also where another writer has just made it.
    """
    with ExitStack() as stack:
        handle = start
        for component in components:
            if sync:
                _make(handle, component)
            try:
                below = stack.enter_context(opened(handle, component))
            except FileNotFoundError:
                _make(handle, component)
                below = stack.enter_context(opened(handle, component))
            handle = below
        yield handle


def _make(parent: int, name: str) -> None:
    with suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=parent)
    os.fsync(parent)


def opened_file(folder: int, name: str) -> int:
    """Open a regular file for reading, and nothing else that could stand in its place."""
    handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise unsafe()
    return handle


def remove(parent: int, name: str, folder: int) -> None:
    """Remove a folder of plain files."""
    for entry in os.listdir(folder):
        os.unlink(entry, dir_fd=folder)
    os.rmdir(name, dir_fd=parent)


def _fault(number: int | None) -> RetentionError:
    if number in _FULL:
        return Unavailable(
            Code.STORE_FULL,
            "The data root has no room left; nothing was kept.",
            remedy="Make room or raise the quota, then try again.",
        )
    if number in _DENIED:
        return Refused(
            Code.STORE_DENIED,
            "The data root denied access.",
            remedy="Give it to the user that runs the pipeline, with mode 0700, and mount it writable.",
        )
    if number in _UNSAFE:
        return unsafe()
    return Unavailable(
        Code.STORE_UNAVAILABLE,
        f"The data root failed (error {number}).",
        remedy="Check the disk and its mount, then try again.",
    )
