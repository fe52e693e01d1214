"""Names anchors, and finds the newest one of a store (SPEC G5)."""

import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from heapq import nlargest
from typing import Final

from retention_pipeline.errors import Integrity
from retention_pipeline.governance.audit import ANCHORS, MAX_ANCHOR, invalid, read_anchor
from retention_pipeline.model.audit import Anchor
from retention_pipeline.model.ids import ObjectKey, ObjectVersion
from retention_pipeline.model.ports import ObjectStore

_LOOKED_AT: Final = 20
"""Anchors that are not authentic before one gives up looking for a good one."""


def anchor_name(anchor: Anchor) -> ObjectKey:
    """By time, not by block: after a restore of the database, a shorter chain has the newer anchor."""
    digits = "".join(character for character in anchor.at.partition("+")[0] if character.isdigit())
    return ObjectKey(f"{ANCHORS}{digits.ljust(20, '0')}-{secrets.token_hex(8)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundAnchor:
    """The newest anchor of a store that is authentic.

    Args:
        false: newer objects beside it that are not.
    """

    anchor: Anchor | None = None
    name: str = ""
    false: int = 0


def newest_anchor(store: ObjectStore, key: bytes) -> FoundAnchor:
    """Look for it by walking the store: no table is believed."""
    false = 0
    newest: Iterable[tuple[str, str]] = nlargest(_LOOKED_AT, ((v.key, v.version) for v in store.walk(ANCHORS)))
    for name, version in newest:
        try:
            return FoundAnchor(anchor=_read_anchor(store, key, name, version), name=name, false=false)
        except Integrity:
            false += 1
    return FoundAnchor(false=false)


def _read_anchor(store: ObjectStore, key: bytes, name: str, version: str) -> Anchor:
    data = b""
    with store.read(ObjectKey(name), ObjectVersion(version)) as stream:
        while len(data) <= MAX_ANCHOR and (more := stream.read(MAX_ANCHOR + 1)):
            data += more
    if len(data) > MAX_ANCHOR:
        raise invalid()
    return read_anchor(key, data, ObjectKey(name))
