"""Starts a process that can't outlive the one that owns it."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from retention_pipeline import clock
from retention_pipeline.dev import processes
from retention_pipeline.dev.state import StateFolder
from retention_pipeline.errors import Code, Unavailable

_SHIM = Path(__file__).with_name("shim.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What to run, and how to stop it.

    Args:
        command: program and arguments.
        folder: its working directory.
        log: where its output goes.
        uid: the user and group to run as; None for the owner's own.
        environment: all of it; nothing is inherited.
        family: whether processes that it started end with it; then the exit code is lost.
        litter: files outside the state folder that it makes, and leaves when it is killed.
    """

    command: tuple[str, ...]
    folder: Path
    log: Path
    uid: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    litter: tuple[str, ...] = ()
    family: bool = False


class Supervised:
    """A running process, and the shim between it and this one.

    Args:
        order: what to run.
        folder: the claimed state folder; the shim holds its lock from here on, beside the owner.

    Raises:
        Unavailable: `EMBEDDED_FAILED` when the program can't be run.
    """

    def __init__(self, order: Order, folder: StateFolder) -> None:
        self._log = order.log
        order.log.touch(0o600)
        with order.log.open("ab") as log:
            self._shim = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_SHIM)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd="/",
                pass_fds=(folder.lock,),
                start_new_session=True,  # Ctrl-C at a terminal is for the owner, which then stops the server
            )
        self.pid = 0
        try:
            self.pid = self._send(order)
            folder.record(self.pid)
        except BaseException:
            self.stop()
            raise

    def _send(self, order: Order) -> int:
        assert self._shim.stdin is not None
        assert self._shim.stdout is not None
        text = {
            "owner": os.getpid(),
            "command": order.command,
            "folder": str(order.folder),
            "log": str(order.log),
            "stop": processes.STOP,
            "uid": order.uid,
            "environment": dict(order.environment),
            "litter": order.litter,
            "family": order.family,
        }
        self._shim.stdin.write(json.dumps(text).encode() + b"\n")
        self._shim.stdin.flush()
        answer = json.loads(self._shim.stdout.readline() or b"{}")
        if "pid" not in answer:
            raise self.failure(f"can't be run: {answer.get('error', 'its supervisor ended')}")
        return int(answer["pid"])

    @property
    def running(self) -> bool:
        """Whether the process has not ended."""
        return self._shim.poll() is None

    def wait(self, seconds: float) -> int:
        """Wait for the process to end by itself.

        Returns:
            Its exit code.

        Raises:
            Unavailable: `EMBEDDED_FAILED` when it takes longer than `seconds`.
        """
        try:
            return self._shim.wait(seconds)
        except subprocess.TimeoutExpired:
            raise self.failure(f"takes longer than {seconds:.0f} seconds") from None

    def until(self, ready: Callable[[], bool], seconds: float) -> bool:
        """Wait until the process is ready.

        Returns:
            False when it ended instead.

        Raises:
            Unavailable: `EMBEDDED_FAILED` when it takes longer than `seconds`.
        """
        end = clock.monotonic() + seconds
        while self.running:
            if ready():
                return True
            if clock.monotonic() > end:
                raise self.failure(f"is not ready after {seconds:.0f} seconds")
            clock.sleep(0.01)
        return False

    def stop(self) -> None:
        """End the process and wait until it is gone. Safe to call twice."""
        assert self._shim.stdin is not None
        assert self._shim.stdout is not None
        if not self._shim.stdin.closed:
            # A byte, not only the end of the pipe: forked processes may hold a copy of it.
            with contextlib.suppress(BrokenPipeError):
                self._shim.stdin.write(b"\n")
                self._shim.stdin.flush()
            with contextlib.suppress(BrokenPipeError):
                self._shim.stdin.close()
        self._shim.stdout.close()
        self._shim.wait()

    def output(self) -> str:
        """What the process wrote so far."""
        return self._log.read_text(encoding="utf-8", errors="replace") if self._log.exists() else ""

    def failure(self, what: str) -> Unavailable:
        """An error about this process; the end of its log is a note on it, not part of its text."""
        error = Unavailable(
            Code.EMBEDDED_FAILED, f"The embedded server {what}.", remedy="Read the log in its state folder."
        )
        error.add_note(self.output()[-2000:])
        return error
