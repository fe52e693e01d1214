"""One run for a process of its own, which dies at the seam that it was told."""

import itertools
import os
import signal
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from retention_pipeline.postgres.expiry import PostgresEnding, PostgresExpiries
from retention_pipeline.postgres.swap import Swap
from retention_pipeline.stages.expiry import Expiry
from retention_pipeline.stages.reconcile import Bounds, Reconciliation
from retention_pipeline.storage.filesystem import FilesystemStore
from retention_pipeline_tests.expiring import AT
from retention_pipeline_tests.seams import Seams
from retention_pipeline_tests.worlds import NOW, Bench

RECORDS = ("intend", "mark_stored", "mark_verified", "drop_lease")
CALLS = (*RECORDS, "swap", "put_once", "read")
SEAMS = (
    *(f"{side} {call}" for call in CALLS for side in ("before", "after")),
    "between the object's bytes and its name",
    "inside the swap, after the deletion",
    "inside the swap, before the commit",
)

EXPIRY_CALLS = ("due", "mark", "drop_lease", "versions", "delete")
EXPIRY_SEAMS = (
    *(f"{side} {call}" for call in EXPIRY_CALLS for side in ("before", "after")),
    "inside the burial, before the commit",
)


class Mortal:
    """Dies at the n-th time."""

    def __init__(self, nth: int) -> None:
        self.nth, self.counted = nth, itertools.count(1)

    def __call__(self) -> None:
        if next(self.counted) == self.nth:
            os.kill(os.getpid(), signal.SIGKILL)


class Login:
    """As much of a database as a worker knows."""

    def __init__(self, worker_url: str) -> None:
        self.worker_url = worker_url


def armed(bench: Bench, seam: str, die: Mortal):
    """The bench's world, with one deadly place."""
    side, _, call = seam.partition(" ")
    seams = {side: {call: die}} if call in CALLS else {}
    if seam.startswith("between"):
        rename = os.rename

        def deadly(*arguments, **named):
            die()
            return rename(*arguments, **named)

        os.rename = deadly
    if seam.startswith("inside"):
        name = "_require_declared_references" if seam.endswith("deletion") else "_record"
        inner = getattr(Swap, name)

        def deadly_swap(self, *arguments):
            inner(self, *arguments)
            die()

        setattr(Swap, name, deadly_swap)
    store = Seams(bench.store, **seams)
    return replace(
        bench.world,
        records=Seams(bench.world.records, **seams),
        source=Seams(bench.world.source, **seams),
        stores=lambda _tenant, _generation: store,
    )


def run(told: dict) -> None:
    with ExitStack() as closing:
        bench = Bench(
            database=Login(told["worker"]),
            keyring=Path(told["keyring"]),
            store=FilesystemStore(Path(told["root"]), told["tenant"]),
            closing=closing,
        )
        Reconciliation(
            world=armed(bench, told["seam"], Mortal(told["nth"])),
            tenant=told["tenant"],
            run="crash",
            apply=True,
            approval=told["approval"],
            bounds=Bounds(batch=told["batch"]),
            as_of=NOW,
        )()


def run_expiry(told: dict) -> None:
    """The end of archives, in a process that dies at the seam that it was told."""
    with ExitStack() as closing:
        bench = Bench(
            database=Login(told["worker"]),
            keyring=Path(told["keyring"]),
            store=FilesystemStore(Path(told["root"]), told["tenant"]),
            closing=closing,
        )
        die = Mortal(told["nth"])
        side, _, call = told["seam"].partition(" ")
        seams = {side: {call: die}} if call in EXPIRY_CALLS else {}
        if not seams:
            inner = PostgresEnding.bury

            def deadly_burial(self, **how):
                buried = inner(self, **how)
                die()
                return buried

            PostgresEnding.bury = deadly_burial
        store = Seams(bench.store, **seams)
        world = replace(
            bench.world,
            records=Seams(bench.world.records, **seams),
            stores=lambda _tenant, _generation: store,
        )
        Expiry(
            world=world,
            archives=Seams(PostgresExpiries(session=bench.session()), **seams),
            tenant=told["tenant"],
            run="crash",
            apply=True,
            approval=told["approval"],
            as_of=AT,
        )()
