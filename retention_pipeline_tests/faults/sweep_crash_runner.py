"""A pass of a sweep in a process of its own, which dies at the seam that it was told."""

from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

from retention_pipeline.postgres.sweep_records import SweepRecords
from retention_pipeline_tests.faults.crash_runner import Login, Mortal
from retention_pipeline_tests.seams import Seams
from retention_pipeline_tests.sweeping import Broom
from retention_pipeline_tests.worlds import Bench

SEAMS = (
    "before batch",
    "after batch",
    "inside a transaction, before its receipt",
    "inside a transaction, after its receipt",
    "inside a transaction, before its commit",
    "before rewind",
    "after rewind",
)


def arm(seam: str, die: Mortal) -> dict:
    """Hooks around the verb's calls; a seam inside a transaction is in the records that every verb writes there."""
    side, _, call = seam.partition(" ")
    if side in {"before", "after"}:
        return {side: {call: die}}
    name = "save" if seam.endswith("commit") else "receipt"
    inner = getattr(SweepRecords, name)

    def deadly(self, *arguments):
        if seam.endswith("before its receipt"):
            die()
        inner(self, *arguments)
        if not seam.endswith("before its receipt"):
            die()

    setattr(SweepRecords, name, deadly)
    return {}


def run(told: dict) -> None:
    with ExitStack() as closing:
        broom = Broom(bench=Bench(database=Login(told["worker"]), keyring=Path(told["keyring"]), closing=closing))
        closing.callback(broom.close)
        hooks = arm(told["seam"], Mortal(told["nth"]))
        broom.sweep(
            SimpleNamespace(tenant=told["tenant"]),
            told["dataset"],
            approval=told["approval"],
            sweeper=Seams(broom.sweeper(told["dataset"]), **hooks),
            batch=told["batch"],
        )
