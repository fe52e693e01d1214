"""SIGINT and SIGTERM as a wish: what is in hand is finished, and nothing else begun (SPEC E5, J7)."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Stop:
    """Whether somebody asked for a stop."""

    asked = False

    def __call__(self) -> bool:
        """Whether to stop."""
        return self.asked

    def ask(self, signal_number: int, frame: FrameType | None) -> None:  # noqa: ARG002  a handler's own signature
        """A second signal is not caught: it ends the program as ever, and the transaction in hand is rolled back."""
        self.asked = True
        signal.signal(signal_number, signal.default_int_handler)


@contextmanager
def stoppable() -> Iterator[Stop]:
    """SIGINT and SIGTERM ask for a stop as long as this lasts."""
    stop = Stop()
    before = {number: signal.signal(number, stop.ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
