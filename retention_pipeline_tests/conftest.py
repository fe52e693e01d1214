"""Servers that the tests share, each started when the first test asks for it."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from retention_pipeline.dev import processes
from retention_pipeline.dev.cleaning import clean
from retention_pipeline.dev.postgres import EmbeddedPostgres
from retention_pipeline.dev.seaweed import EmbeddedS3
from retention_pipeline.errors import RetentionError

_STATES = Path(__file__).resolve().parents[1] / ".retention" / "test"


_LONGEST = ("test_demo.py", "test_permission_matrix.py", "test_crashes.py", "test_sweep_crashes.py", "test_scale.py")
"""Files that take a minute or two, the longest first."""


def _session(pid: int) -> str | None:
    """A folder's name that says which process it belongs to; short, since sockets lie below it."""
    identity = processes.identity(pid)
    return identity and "-".join(identity.split(":")[:2])


def _remove(folder: Path) -> None:
    clean(folder)
    shutil.rmtree(folder, ignore_errors=True)


def pytest_sessionstart() -> None:
    """Remove what test runs left that were killed."""
    for folder in _STATES.glob("*-*"):
        pid = folder.name.partition("-")[0]
        if pid.isdigit() and _session(int(pid)) != folder.name:
            try:
                _remove(folder)
            except (RetentionError, OSError):
                continue  # another run is at it


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest files: each goes to one process as a whole, and the last one to begin decides when all of it ends."""
    ranks = {name: rank for rank, name in enumerate(_LONGEST)}
    items.sort(key=lambda item: ranks.get(item.path.name, len(ranks)))


@pytest.fixture(scope="session")
def states() -> Iterator[Path]:
    """A folder for the state of this run's servers, which an ordinary user can pass through."""
    folder = _STATES / str(_session(os.getpid()))
    folder.mkdir(parents=True, exist_ok=True)
    yield folder
    _remove(folder)


@pytest.fixture(scope="session")
def pg_bin() -> Path | None:
    """Other PostgreSQL programs than the packaged ones, by the variable PG_BIN."""
    chosen = os.environ.get("PG_BIN")  # noqa: TID251  the test run's own switch
    return Path(chosen) if chosen else None


@pytest.fixture(scope="session")
def pg(states: Path, pg_bin: Path | None) -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(states / "postgres", bin_dir=pg_bin, durable=False) as server:
        yield server


@pytest.fixture(scope="session")
def s3(states: Path) -> Iterator[EmbeddedS3]:
    with EmbeddedS3(states / "s3") as server:
        yield server
