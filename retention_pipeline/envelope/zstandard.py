"""zstd as the archive format uses it: level 1 going in, a bounded window coming back."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

LEVEL = 1
WINDOW_LOG = 23
"""The largest window a frame may ask for, as a power of two: 8 MiB, so that opening stays below 16 MiB (SPEC A6)."""

ZstdError = zstd.ZstdError

_idle = threading.local()


@contextmanager
def compressor(pledged: int | None) -> Iterator[zstd.ZstdCompressor]:
    """Lend this thread's compressor for one frame.

    A context costs more to make than a small manifest costs to compress, and can't be shared between threads. One that
    a failure left inside a frame is dropped.

    Args:
        pledged: the plaintext's size in bytes where it is known; exactly that much must follow.
    """
    lent: zstd.ZstdCompressor = _idle.__dict__.pop("compressor", None) or zstd.ZstdCompressor(level=LEVEL)
    lent.set_pledged_input_size(pledged)
    yield lent
    _idle.compressor = lent


def decompressor() -> zstd.ZstdDecompressor:
    """A decompressor that refuses frames whose window is above `WINDOW_LOG`."""
    return zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: WINDOW_LOG})
