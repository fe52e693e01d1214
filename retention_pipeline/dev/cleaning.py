"""Removes embedded servers' state, with what they keep outside of it."""

import shutil
import sys
from pathlib import Path

from retention_pipeline.dev import postgres, seaweed
from retention_pipeline.dev.state import RECORD, StateFolder
from retention_pipeline.errors import RetentionError


def clean(folder: Path) -> None:
    """Remove every embedded server's state in a folder and below; anything else there stays.

    A server that outlived its owner is ended first.

    Raises:
        Refused: `EMBEDDED_IN_USE` when a server's owner is alive.
    """
    for record in sorted(folder.resolve().rglob(RECORD)):
        state = StateFolder(record.parent, mode=record.parent.stat().st_mode & 0o777)
        state.claim()
        try:
            postgres.remove_leftovers(state)
            seaweed.remove_leftovers(state)
            shutil.rmtree(state.path)
        finally:
            state.release()


if __name__ == "__main__":
    try:
        for name in sys.argv[1:]:
            clean(Path(name))
    except RetentionError as error:
        sys.exit(str(error))
