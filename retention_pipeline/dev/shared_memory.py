"""Releases the one System V segment that PostgreSQL leaves behind when it is killed."""

import ctypes
import os
from pathlib import Path

from retention_pipeline.dev import processes

_REMOVE = 0  # IPC_RMID
_TABLE = Path("/proc/sysvipc/shm")


def release(pid_file: Path) -> None:
    """Remove the segment that a server's file names, if that server ended without doing so itself.

    The server uses a few bytes of such memory to tell whether another one runs on the same data. After a clean end
    neither file nor segment is there.
    """
    server = _read(pid_file)
    if server is None or _runs_here(server[0], pid_file.parent):
        return
    _, key, segment = server
    if _is_abandoned(key, segment):
        ctypes.CDLL(None).shmctl(segment, _REMOVE, None)


def forget_reused_pid(pid_file: Path) -> None:
    """Remove a dead server's file when its process number belongs to something else by now.

    PostgreSQL would take that process for the old server, and refuse to start.
    """
    server = _read(pid_file)
    if server is None or processes.identity(server[0]) is None or _runs_here(server[0], pid_file.parent):
        return
    release(pid_file)
    pid_file.unlink()


def _read(pid_file: Path) -> tuple[int, int, int] | None:
    """The server's process, and the key and number of its segment."""
    try:
        lines = pid_file.read_text(encoding="utf-8").splitlines()
        key, segment = lines[6].split()
        return int(lines[0]), int(key), int(segment)
    except (FileNotFoundError, NotADirectoryError, IndexError, ValueError):
        return None


def _runs_here(pid: int, data: Path) -> bool:
    """Whether a process works in this data folder, as every PostgreSQL server does in its own."""
    try:
        return Path(os.readlink(f"/proc/{pid}/cwd")) == data.resolve()  # noqa: PTH115  must not follow further
    except PermissionError:
        return True  # not ours to look into, so not ours to judge
    except OSError:
        return False


def _is_abandoned(key: int, segment: int) -> bool:
    """Whether the kernel knows this segment under this key, and no process uses it."""
    header, *rows = (row.split() for row in _TABLE.read_text(encoding="ascii").splitlines())
    for row in rows:
        facts = dict(zip(header, row, strict=True))
        if (int(facts["key"]), int(facts["shmid"])) == (key, segment):
            return int(facts["nattch"]) == 0
    return False
