r"""How audit events are sealed: keyed hashes over an encoding that nothing else encodes to (SPEC G5).

    PART  := "-" for none, else the number of characters, ":", the characters
    LEAF  := HMAC-SHA256(key, PART("nucleus/audit-leaf.v1") PART(column)...)[:16], every column of the event as text
    BLOCK := HMAC-SHA256(key, PARTs of "nucleus/audit-block.v1", tenant, block, previous MAC, sealed at, count, ids, leaves)
    HEAD  := HMAC-SHA256(key, PARTs of "nucleus/audit-head.v1", tenant, block, MAC of the block, sealed at)

- A format's name stands first, so that a hash of one kind is never one of another.
- The key is `mac_key("audit")` of the keyring: whoever has all of the database, and this file, can make none of them.
- An anchor names its own object key: a copy of an old one under a newer name is no anchor.
"""

import hmac
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from retention_pipeline.errors import Code, Integrity, RetentionError
from retention_pipeline.model.audit import COLUMNS, Anchor, Event, Head, Seal
from retention_pipeline.model.ids import ObjectKey, TenantId

BLOCK_EVENTS: Final = 1000
LEAF_SIZE: Final = 16
ANCHORS: Final = "audit/"
"""What every anchor's key begins with, below the profile's prefix; no archive's does."""
MAX_ANCHOR: Final = 4096
"""Bytes."""

_LEAF: Final = "nucleus/audit-leaf.v1"
_BLOCK: Final = "nucleus/audit-block.v1"
_HEAD: Final = "nucleus/audit-head.v1"
_ANCHOR: Final = "nucleus/audit-anchor.v1"


def encoded(parts: Iterable[str | None]) -> bytes:
    """Parts with their lengths in front: no two lists of parts give the same bytes."""
    return "".join(["-" if part is None else f"{len(part)}:{part}" for part in parts]).encode()


def leaf(key: bytes, event: Event) -> bytes:
    """The keyed hash of one event."""
    assert len(event) == len(COLUMNS)
    return hmac.digest(key, encoded((_LEAF, *event)), "sha256")[:LEAF_SIZE]


def block_mac(key: bytes, seal: Seal) -> bytes:
    """The MAC that a block must have."""
    parts = (
        _BLOCK,
        seal.tenant,
        str(seal.block),
        seal.previous.hex(),
        seal.sealed_at,
        str(len(seal.event_ids)),
        *map(str, seal.event_ids),
        seal.leaves.hex(),
    )
    return hmac.digest(key, encoded(parts), "sha256")


def sealed(key: bytes, tenant: TenantId, after: Head | None, sealed_at: str, events: Sequence[Event]) -> Seal:
    """The block that follows a head."""
    draft = Seal(
        tenant=tenant,
        block=after.block + 1 if after else 1,
        previous=after.mac if after else b"",
        sealed_at=sealed_at,
        event_ids=tuple(int(str(event[0])) for event in events),
        leaves=b"".join(leaf(key, event) for event in events),
        mac=b"",
    )
    return Seal(
        tenant=draft.tenant,
        block=draft.block,
        previous=draft.previous,
        sealed_at=draft.sealed_at,
        event_ids=draft.event_ids,
        leaves=draft.leaves,
        mac=block_mac(key, draft),
    )


def genuine(mac: bytes, expected: bytes) -> bool:
    """Whether two hashes are the same, in the same time whatever they are."""
    return hmac.compare_digest(mac, expected)


# -- heads outside the database ----------------------------------------------------------------------------------------


def write_head(key: bytes, head: Head) -> dict[str, Any]:
    """A head as JSON knows it, signed."""
    return {
        "tenant": head.tenant,
        "block": head.block,
        "mac": head.mac.hex(),
        "sealed_at": head.sealed_at,
        "signature": _signature(key, head).hex(),
    }


def read_head(key: bytes, document: Mapping[str, Any]) -> Head:
    """A head that was written with this key, or `Integrity(AUDIT_HEAD_INVALID)`."""
    try:
        head = Head(
            tenant=TenantId(document["tenant"]),
            block=document["block"],
            mac=bytes.fromhex(document["mac"]),
            sealed_at=document["sealed_at"],
        )
        good = genuine(bytes.fromhex(document["signature"]), _signature(key, head))
    except (KeyError, TypeError, ValueError):
        good = False
    if not good:
        raise invalid()
    return head


def write_anchor(key: bytes, anchor: Anchor, name: ObjectKey) -> bytes:
    """The object that keeps two heads in an archive store."""
    document = {
        "format": _ANCHOR,
        "at": anchor.at,
        "head": write_head(key, anchor.head),
        "installation": write_head(key, anchor.installation) if anchor.installation else None,
    }
    body = json.dumps(document, sort_keys=True)
    mac = hmac.digest(key, encoded((_ANCHOR, name, body)), "sha256")
    return json.dumps({"anchor": body, "mac": mac.hex()}).encode()


def read_anchor(key: bytes, data: bytes, name: ObjectKey) -> Anchor:
    """An anchor that was written under this name with this key, or `Integrity(AUDIT_HEAD_INVALID)`."""
    try:
        outer = json.loads(data)
        expected = hmac.digest(key, encoded((_ANCHOR, name, outer["anchor"])), "sha256")
        if not genuine(bytes.fromhex(outer["mac"]), expected):
            raise invalid()
        document = json.loads(outer["anchor"])
        installation = document["installation"]
        return Anchor(
            head=read_head(key, document["head"]),
            installation=read_head(key, installation) if installation else None,
            at=document["at"],
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise invalid() from None


def invalid() -> RetentionError:
    """A head that nobody with the key has written."""
    return Integrity(
        Code.AUDIT_HEAD_INVALID,
        "A head of the audit record that is kept outside the database is not authentic.",
        remedy="Keep it, and find out who changed it; or the keyring is another one than it was written with.",
    )


def _signature(key: bytes, head: Head) -> bytes:
    return hmac.digest(key, encoded((_HEAD, head.tenant, str(head.block), head.mac.hex(), head.sealed_at)), "sha256")
