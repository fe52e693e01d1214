"""The one place that reads a clock; everything else is given an instant."""

import time
from datetime import UTC, datetime
from typing import Protocol


class Stopwatch(Protocol):
    """Seconds since an arbitrary moment; only differences mean anything."""

    def __call__(self) -> float:
        """The reading."""
        ...


def monotonic() -> float:
    """Seconds on a clock that never jumps; for budgets and durations."""
    return time.monotonic()


def utc_now() -> datetime:
    """This machine's idea of now, in UTC. For people and file names; rules are decided with the database's clock."""
    return datetime.now(UTC)  # noqa: TID251  this is the one place


def sleep(seconds: float) -> None:
    """Wait for `seconds`."""
    time.sleep(seconds)
