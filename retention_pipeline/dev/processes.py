"""Facts about running processes, as the kernel tells them."""

import contextlib
import ipaddress
import os
import select
import signal
import sys
from pathlib import Path

_STATE, _START_TIME = 0, 19  # fields of /proc/PID/stat, counted after the name
_LISTENING = "0A"

STOP = ((signal.SIGINT, 10.0), (signal.SIGQUIT, 5.0), (signal.SIGKILL, 5.0))
"""How to end a server: signals, from the polite to the hard one, and the seconds that each is given."""


def identity(pid: int) -> str | None:
    """Name a process so that no other one, now or after a reboot, has the same name.

    Returns:
        The name, or None when there is no such process or it is dead and only waits to be collected.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()
    if fields[_STATE] in {"Z", "X"}:
        return None
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{pid}:{fields[_START_TIME]}:{boot}"


def is_alive(name: str) -> bool:
    """Whether the process that `identity` named so still runs."""
    pid = name.partition(":")[0]
    return pid.isdigit() and identity(int(pid)) == name


def end(name: str, signals: tuple[tuple[int, float], ...]) -> bool:
    """End a process, which need not be a child, by its identity.

    Args:
        name: its identity; any other process with the same number is left alone.
        signals: what to send, and how many seconds to wait after each.

    Returns:
        Whether it has ended.
    """
    pid = name.partition(":")[0]
    with contextlib.ExitStack() as stack:
        try:
            handle = os.pidfd_open(int(pid))
        except (ValueError, ProcessLookupError):
            return True
        stack.callback(os.close, handle)
        # The handle stays with its process, so what is checked here is what is signalled below.
        if not is_alive(name):
            return True
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        for number, seconds in signals:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, number)
            if poll.poll(seconds * 1000):
                return True
    return False


def listeners(pid: int) -> frozenset[tuple[str, int]]:
    """Where a process accepts TCP connections: address and port. Empty for a process that we may not look into."""
    sockets = set()
    with contextlib.suppress(FileNotFoundError, PermissionError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                sockets.add(str(link.readlink()))
    found = set()
    for table in ("tcp", "tcp6"):
        path = Path(f"/proc/{pid}/net/{table}")
        rows = path.read_text(encoding="ascii").splitlines()[1:] if path.exists() else []
        for fields in map(str.split, rows):
            address, port = fields[1].split(":")
            if fields[3] == _LISTENING and f"socket:[{fields[9]}]" in sockets:
                found.add((_address(address), int(port, 16)))
    return frozenset(found)


def _address(text: str) -> str:
    """Read an address as the kernel writes it: hexadecimal words, each in the machine's byte order."""
    words = (text[start : start + 8] for start in range(0, len(text), 8))
    packed = b"".join(int(word, 16).to_bytes(4, sys.byteorder) for word in words)
    return str(ipaddress.ip_address(packed))
