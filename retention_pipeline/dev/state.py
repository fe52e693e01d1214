"""One embedded server's state folder: who may use it, who runs in it, and what it keeps between starts."""

import contextlib
import fcntl
import json
import os
import secrets
import socket
from pathlib import Path

from retention_pipeline import clock
from retention_pipeline.dev import processes
from retention_pipeline.errors import Code, Refused

# Below the range from which the kernel takes ports for outgoing connections, so that none of those is in the way.
_FIRST_PORT, _LAST_PORT = 12_000, 21_999
_LOCK = "lock"
RECORD = "running.json"
_PATIENCE = 30.0  # seconds in which the server of an owner that died has to be gone


class StateFolder:
    """A folder that one owner at a time holds.

    The lock passes to the process that watches the server, so it is held until the server is gone, and not a moment
    longer, whatever becomes of the owner.

    Args:
        path: the folder; made when it is missing.
        mode: its permissions.
    """

    def __init__(self, path: Path, *, mode: int = 0o700) -> None:
        self.path = path
        self._mode = mode
        self._lock: int | None = None

    @property
    def lock(self) -> int:
        """The descriptor that holds the lock."""
        assert self._lock is not None, "the folder is not claimed"
        return self._lock

    def claim(self) -> None:
        """Take the folder, and end a server that outlived an earlier owner.

        Raises:
            Refused: `EMBEDDED_IN_USE` when another owner is alive.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        self.path.chmod(self._mode)
        lock = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._wait_for(lock)
            self._evict()
            self.keep(RECORD, json.dumps({"owner": processes.identity(os.getpid())}))
        except BaseException:
            os.close(lock)
            raise
        self._lock = lock

    def release(self) -> None:
        """Give the folder up. Safe to call twice."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def record(self, server: int) -> None:
        """Note which process is the server, for the owner after a hard death."""
        owner, name = processes.identity(os.getpid()), processes.identity(server)
        self.keep(RECORD, json.dumps({"owner": owner, "server": name}))

    def keep(self, name: str, text: str) -> Path:
        """Write a file that only the owner's user can read, whole or not at all."""
        path, draft = self.path / name, self.path / f"{name}.new"
        draft.unlink(missing_ok=True)
        draft.touch(0o600, exist_ok=False)
        draft.write_text(text, encoding="utf-8")
        return draft.replace(path)

    def kept(self, name: str) -> str | None:
        """What `keep` wrote, or None."""
        path = self.path / name
        return path.read_text(encoding="utf-8") if path.exists() else None

    def secret(self, name: str) -> str:
        """A random secret that stays the same from start to start."""
        known = self.kept(name)
        if known:
            return known
        fresh = secrets.token_urlsafe(30)
        self.keep(name, fresh)
        return fresh

    def rotate(self, log: str) -> Path:
        """Put the log of the last start aside, and say where the next one goes."""
        path = self.path / log
        if path.exists():
            path.replace(self.path / f"{log}.old")
        return path

    def _wait_for(self, lock: int) -> None:
        end = clock.monotonic() + _PATIENCE
        while True:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            if clock.monotonic() > end or processes.is_alive(self._recorded("owner")):
                raise Refused(
                    Code.EMBEDDED_IN_USE,
                    "Another process runs an embedded server in this state folder.",
                    remedy="Stop that process, or use another folder.",
                )
            clock.sleep(0.05)

    def _evict(self) -> None:
        server = self._recorded("server")
        if server and not processes.end(server, processes.STOP):
            raise Refused(
                Code.EMBEDDED_IN_USE,
                f"Process {server.partition(':')[0]}, the server of an earlier owner, does not end.",
                remedy="End it, then start again.",
            )

    def _recorded(self, who: str) -> str:
        try:
            return str(json.loads(self.kept(RECORD) or "{}").get(who) or "")
        except ValueError:
            return ""


def is_free(port: int) -> bool:
    """Whether a server could listen on this port of the loopback address now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def free_port() -> int:
    """A port at random on which nothing listens; another may still be faster, so callers try again."""
    while True:
        port = _FIRST_PORT + secrets.randbelow(_LAST_PORT - _FIRST_PORT + 1)
        if is_free(port):
            return port
