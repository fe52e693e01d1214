"""Opens everything on one laptop and stops it together: servers, Dagster's web server, and its daemon."""

import http.client
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType

from rich.console import Console

from retention_pipeline import clock
from retention_pipeline.dev import dagster_processes, demo, stack
from retention_pipeline.dev.stack import Stack
from retention_pipeline.dev.state import StateFolder, is_free
from retention_pipeline.dev.supervisor import Order, Supervised
from retention_pipeline.errors import Code, Refused, Unavailable

READY_SECONDS = 120.0
_LOOK_SECONDS = 0.5


def run(home: Path, console: Console, *, port: int, read_only: bool) -> None:
    """Serve until Ctrl-C or a termination signal.

    Args:
        home: the product's home.
        console: where a person looks.
        port: the web server's, on the loopback address.
        read_only: whether the UI refuses every launch and change.

    Raises:
        Refused: `EMBEDDED_IN_USE`, when the port is taken.
        Unavailable: `EMBEDDED_FAILED`, when a part does not start, or ends by itself.
    """
    if not is_free(port):
        raise Refused(Code.EMBEDDED_IN_USE, f"Port {port} is taken.", remedy="Choose another with --port.")
    with _until_told(), stack.running(home) as servers, ExitStack() as parts:
        if servers.fresh:
            console.print("Nothing is here yet; writing sample data. For a whole history, run `retention demo` first.")
            with stack.open_app(servers) as app:
                demo.prepare(servers, app, console)
        dagster_processes.register_tenants(servers)
        web = parts.enter_context(_part(servers, "dagster-web", _web(servers, port, read_only=read_only)))
        daemon = parts.enter_context(_part(servers, "dagster-daemon", _daemon(servers)))
        if not web.until(lambda: _answers(port), READY_SECONDS):
            raise web.failure("ended at once")
        console.print(f"\nThe UI is at [bold]http://127.0.0.1:{port}[/bold]{' (read-only)' if read_only else ''}")
        console.print(
            "In another terminal, in this folder, `retention` finds this installation. Ctrl-C stops all of it."
        )
        while web.running and daemon.running:
            clock.sleep(_LOOK_SECONDS)
        raise Unavailable(
            Code.EMBEDDED_FAILED, "A part of Dagster ended by itself.", remedy="Read the logs in the state folders."
        )


@contextmanager
def _until_told() -> Iterator[None]:
    """Both signals end the work in order; neither is an error."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    earlier = signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)  # a shell that starts us in the background leaves it ignored
    try:
        yield
    except KeyboardInterrupt:
        return
    finally:
        signal.signal(signal.SIGTERM, earlier)


@contextmanager
def _part(servers: Stack, name: str, command: tuple[str, ...]) -> Iterator[Supervised]:
    folder = StateFolder(servers.home / name)
    folder.claim()
    try:
        order = Order(
            command=command,
            folder=servers.home,
            log=folder.path / f"{name}.log",
            environment=dagster_processes.environment(servers),
            family=True,  # Dagster starts code servers of its own, which outlive it when it is killed
        )
        part = Supervised(order, folder)
        try:
            yield part
        finally:
            part.stop()
    finally:
        folder.release()


def _web(servers: Stack, port: int, *, read_only: bool) -> tuple[str, ...]:
    command = ("-m", "dagster_webserver", "-h", "127.0.0.1", "-p", str(port), "-w", _workspace(servers))
    return (sys.executable, *command, *(("--read-only",) if read_only else ()))


def _daemon(servers: Stack) -> tuple[str, ...]:
    return (sys.executable, "-m", "dagster._daemon", "run", "-w", _workspace(servers))


def _workspace(servers: Stack) -> str:
    target = dagster_processes.home(servers) / "workspace.yaml"
    target.write_bytes(dagster_processes.project_file("workspace.yaml"))
    return str(target)


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", "/server_info")
        return connection.getresponse().status == http.HTTPStatus.OK
    except OSError:
        return False
    finally:
        connection.close()
