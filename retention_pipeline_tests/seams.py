"""Lets a test act between two steps of a run, and share one database among the tests of a module."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace

import pytest

from retention_pipeline.dev.postgres import EmbeddedPostgres
from retention_pipeline.stages.world import World
from retention_pipeline_tests.databases import Database, cloned
from retention_pipeline_tests.faulty import Around
from retention_pipeline_tests.worlds import Bench

EXPORTED = "after the export, before anything is on record"
STORED = "after the object is stored"
VERIFIED = "after the archive is verified, just before the swap"
MOMENTS = (EXPORTED, STORED, VERIFIED)


class Seams(Around):
    """Passes every call on; `before` and `after` are told of those that they name, each time."""

    def __init__(self, inner, before=None, after=None):
        super().__init__(inner)
        self.before, self.after = before or {}, after or {}

    def __getattr__(self, name):
        call = getattr(self.inner, name)
        first, last = self.before.get(name), self.after.get(name)
        if first is None and last is None:
            return call

        def around(*arguments, **named):
            if first is not None:
                first()
            answer = call(*arguments, **named)
            if last is not None:
                last()
            return answer

        return around


def acting(world: World, moment: str, act: Callable[[], object]) -> World:
    """The same world, in which somebody else does something at one moment of the run, once."""
    done = []

    def once() -> None:
        if not done:
            done.append(True)
            act()

    if moment == EXPORTED:
        return replace(world, records=Seams(world.records, before={"intend": once}))
    if moment == STORED:
        return replace(world, records=Seams(world.records, after={"mark_stored": once}))
    return replace(world, source=Seams(world.source, before={"swap": once}))


@pytest.fixture(scope="module")
def module_database(pg: EmbeddedPostgres, template: str) -> Iterator[Database]:
    with cloned(pg, template) as database:
        yield database


@pytest.fixture(scope="module")
def shared(module_database: Database, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """A bench for tests that touch nothing but their own tenant."""
    with ExitStack() as closing:
        yield Bench(database=module_database, keyring=tmp_path_factory.mktemp("keys") / "keyring.json", closing=closing)
