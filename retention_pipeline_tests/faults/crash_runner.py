"""A reconcile in a process of its own, which is killed with -9 at one seam of the chain; told what to do by one JSON argument."""

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from retention_pipeline.catalog.loader import load
from retention_pipeline.keys.local import LocalKeyring
from retention_pipeline.postgres.records import PostgresRecords
from retention_pipeline.postgres.session import Session
from retention_pipeline.postgres.source import PostgresSource
from retention_pipeline.postgres.swap import Swap
from retention_pipeline.postgres.tenant_keys import TenantKeys
from retention_pipeline.stages.chain import World
from retention_pipeline.stages.reconcile import Reconciliation
from retention_pipeline.storage import filesystem
from retention_pipeline.storage.filesystem import FilesystemStore
from retention_pipeline_tests.faulty import Around

SEAMS = (
    "before export",
    "before intend",
    "after intend",
    "before put_once",
    "inside put_once",  # the bytes are written and synced, and not yet under their key
    "after put_once",
    "after put_once 3",
    "before mark_stored",
    "after mark_stored",
    "before read 2",
    "before mark_verified",
    "after mark_verified",
    "before swap",
    "inside swap",  # everything is done but the commit
    "after swap",
    "before finish",
    "before drop_lease",
)


@dataclass(kw_only=True)
class Death:
    """Comes at the n-th time that a seam is passed: `after put_once 3`."""

    seam: str
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        words = self.seam.split()
        self.when, self.call = words[0], words[1]
        self.left = int(words[2]) if len(words) > 2 else 1

    def at(self, when: str, call: str) -> None:
        if (when, call) != (self.when, self.call):
            return
        with self.lock:
            self.left -= 1
            if not self.left:
                os.kill(os.getpid(), signal.SIGKILL)


class Mortal(Around):
    """Passes every call on, and may die before or after it."""

    def __init__(self, inner, death: Death):
        super().__init__(inner)
        self.death = death

    def __getattr__(self, name):
        found = getattr(self.inner, name)
        if not callable(found):
            return found

        def call(*arguments, **named):
            self.death.at("before", name)
            answer = found(*arguments, **named)
            self.death.at("after", name)
            return answer

        return call


def dying_before(function: Callable, death: Death, call: str) -> Callable:
    def mortal(*arguments, **named):
        death.at("inside", call)
        return function(*arguments, **named)

    return mortal


def dying_after(function: Callable, death: Death, call: str) -> Callable:
    def mortal(*arguments, **named):
        answer = function(*arguments, **named)
        death.at("inside", call)
        return answer

    return mortal


def run(told: dict) -> None:
    death = Death(seam=told["seam"])
    Swap._record = dying_after(Swap._record, death, "swap")
    filesystem.os.rename = dying_before(os.rename, death, "put_once")
    catalog = load()
    sessions = [Session(url=told["url"], source_setting="nucleus.tenant_id") for _ in range(3)]
    store = Mortal(FilesystemStore(Path(told["root"]), "archives"), death)
    world = World(
        source=Mortal(PostgresSource(session=sessions[0], catalog=catalog), death),
        records=Mortal(PostgresRecords(session=sessions[1], catalog=catalog), death),
        keys=TenantKeys(session=sessions[2], provider=LocalKeyring(Path(told["keyring"]))),
        stores=lambda _tenant, _generation: store,
    )
    Reconciliation(world=world, tenant=told["tenant"], run=told["run"], apply=True, approval=told["approval"])()


if __name__ == "__main__":
    run(json.loads(sys.argv[1]))
    sys.exit("it survived")
