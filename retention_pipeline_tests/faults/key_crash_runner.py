"""The life of keys in a process of its own, which dies at the seam that it was told."""

import os
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from retention_pipeline.keys import local
from retention_pipeline.keys.local import LocalKeyring
from retention_pipeline.postgres.key_copies import PostgresKeyCopies
from retention_pipeline.postgres.key_desk import PostgresKeyDesk, PostgresRewrapping
from retention_pipeline.postgres.session import Session
from retention_pipeline.stages.key_copies import copy_keys
from retention_pipeline.stages.key_destruction import destroy
from retention_pipeline.stages.key_rotation import rewrap_all
from retention_pipeline.storage.filesystem import FilesystemStore
from retention_pipeline_tests.faults.crash_runner import Mortal
from retention_pipeline_tests.seams import Seams

WRITES = ("intend", "put_once", "written")
REMOVALS = ("delete", "ended")
ROTATION_SEAMS = (
    "before keyring",
    "after keyring",
    *(f"{side} {call}" for call in ("rewrap", *WRITES, *REMOVALS) for side in ("before", "after")),
)
DESTRUCTION_SEAMS = tuple(
    f"{side} {call}" for call in ("begin_destruction", *REMOVALS, "finish_destruction") for side in ("before", "after")
)


def parts(stack: ExitStack, told: dict, seams: dict):
    """The desk, the record of copies, and the stores: each with its deadly place."""

    def session(url):
        made = Session(url=url)
        stack.callback(made.close)
        return made

    store = Seams(FilesystemStore(Path(told["root"]), told["tenant"]), **seams)
    desk = Seams(PostgresKeyDesk(session=session(told["operator"])), **seams)
    copies = Seams(PostgresKeyCopies(session=session(told["worker"])), **seams)
    return desk, copies, lambda _tenant, _generation: store


def armed(told: dict) -> dict:
    die = Mortal(told["nth"])
    side, _, call = told["seam"].partition(" ")
    if call != "keyring":
        return {side: {call: die}}
    rename = os.rename

    def deadly(*arguments, **named):
        if side == "before":
            die()
        rename(*arguments, **named)
        die()

    local.os.rename = deadly
    return {}


def rotate(told: dict) -> None:
    """What `keys rotate root` does."""
    seams = armed(told)
    keyring = LocalKeyring(Path(told["keyring"]))
    with ExitStack() as stack:
        desk, copies, stores = parts(stack, told, seams)
        rewrapping = Seams(PostgresRewrapping(session=copies.session), **seams)
        if not rewrapping.under_other_roots(keyring.current()):
            keyring.add_root()
        rewrap_all(rewrapping, keyring, partial(desk.allow_rotation, reason="r", correlation="c"))
        copy_keys(copies, stores, told["tenant"])


def copy(told: dict) -> None:
    """What each run does at its end."""
    with ExitStack() as stack:
        _, copies, stores = parts(stack, told, armed(told))
        copy_keys(copies, stores, told["tenant"])


def end(told: dict) -> int:
    """What `keys destroy` does."""
    with ExitStack() as stack:
        desk, copies, stores = parts(stack, told, armed(told))
        how = {"archives_too": True, "without_store": False, "reason": "r", "correlation": "c"}
        return destroy(desk, copies, stores, told["tenant"], **how).generations
