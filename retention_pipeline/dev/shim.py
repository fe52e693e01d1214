"""Runs one server for an owner and stops it when the owner is gone, by whatever way of ending.

It is started as a program, from the standard library alone, so that it is small and runs at once. Its standard input is
a pipe from the owner: one line of JSON is the order; any byte after that, or the end of the pipe, means stop. The pipe
alone is not enough, since processes that the owner forks hold it open, so the owner's process is watched as well. If
even this program is killed, the kernel sends the server its first stop signal.
"""

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import Any

_PR_SET_PDEATHSIG = 1


class _AskedToStop(Exception):
    """SIGTERM came in."""


def _ask_to_stop(_number: int, _frame: FrameType | None) -> None:
    raise _AskedToStop


def _spawn(order: dict[str, Any]) -> subprocess.Popen[bytes]:
    me = os.getpid()
    kernel = ctypes.CDLL(None)
    first_signal = order["stop"][0][0]

    def die_with_me() -> None:
        # Runs after the change of user, which would clear it.
        kernel.prctl(_PR_SET_PDEATHSIG, first_signal, 0, 0, 0)
        if os.getppid() != me:
            os._exit(1)

    log = os.open(order["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    uid = order["uid"]
    try:
        return subprocess.Popen(
            order["command"],
            cwd=order["folder"],
            env=order["environment"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            user=uid,
            group=uid,
            extra_groups=None if uid is None else [],
            umask=0o077,
            preexec_fn=die_with_me,  # noqa: PLW1509  this program has one thread
        )
    finally:
        os.close(log)


def _wait(owner: int, server: subprocess.Popen[bytes]) -> None:
    """Return once the server ended, the owner asked for it, or the owner is gone."""
    poll = select.poll()
    poll.register(0, select.POLLIN | select.POLLHUP)
    poll.register(os.pidfd_open(server.pid), select.POLLIN)
    with contextlib.suppress(_AskedToStop, ProcessLookupError):
        poll.register(os.pidfd_open(owner), select.POLLIN)
        # A reused number would be another process: only our parent is the owner.
        if os.getppid() == owner:
            poll.poll()


def _stop(server: subprocess.Popen[bytes], signals: list[tuple[int, float]]) -> None:
    for number, seconds in signals:
        if server.poll() is not None:
            return
        server.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(seconds)
    server.kill()


def main() -> int:
    """Carry out the order that arrives on standard input.

    Returns:
        The server's exit code, or 128 plus the signal that ended it.
    """
    order = json.loads(sys.stdin.readline())
    try:
        server = _spawn(order)
    except (OSError, subprocess.SubprocessError) as error:
        print(json.dumps({"error": str(error)}), flush=True)
        return 127
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _ask_to_stop)
    print(json.dumps({"pid": server.pid}), flush=True)
    _wait(order["owner"], server)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _stop(server, order["stop"])
    code = server.wait()
    for path in order["litter"]:
        Path(path).unlink(missing_ok=True)
    if order["family"]:
        # What it started and left behind is in this group, and so is this program: the last thing that it does.
        os.killpg(os.getpgrp(), signal.SIGKILL)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
