"""A new file, private to its owner, that appears under its name only when it is whole."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from retention_pipeline.errors import Code, RetentionError, Unavailable, UsageFault


@contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write to; whatever fails, nothing stays of it.

    Raises:
        UsageFault: `USAGE`, when the file is there already.
        Unavailable: `STORE_FULL`, when it could not be written.
    """
    if path.exists():
        raise _exists()
    spool = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with os.fdopen(os.open(spool, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.link(spool, path)
    except FileExistsError:
        raise _exists() from None
    except OSError as error:
        raise Unavailable(
            Code.STORE_FULL,
            f"The file could not be written (errno {error.errno}).",
            remedy="Check the folder, its rights and its space.",
        ) from None
    finally:
        spool.unlink(missing_ok=True)


def _exists() -> RetentionError:
    return UsageFault(Code.USAGE, "The file exists; it is not overwritten.", remedy="Choose another name.")
