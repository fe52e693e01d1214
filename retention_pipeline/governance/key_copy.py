"""What an object beside the archives says of a wrapped tenant key: enough to open them with the root key alone (SPEC A17)."""

import json
from typing import Final

from retention_pipeline.errors import Code, Integrity
from retention_pipeline.governance.audit import ANCHORS
from retention_pipeline.model.ids import TenantId
from retention_pipeline.model.ports import WrappedKey
from retention_pipeline.model.tenant_keys import KEY_COPIES, KeptKey

OUR_FOLDERS: Final = (ANCHORS, KEY_COPIES)
"""What lies below a profile's prefix and is no archive."""
MAX_COPY: Final = 64 << 10
"""Bytes."""

_FORMAT: Final = "nucleus/wrapped-key.v1"


def write_copy(kept: KeptKey) -> bytes:
    """The object's bytes; the same for the same wrapped key, so that a write whose answer was lost is known again."""
    document = {
        "format": _FORMAT,
        "tenant": kept.tenant,
        "generation": kept.generation,
        "key_id": kept.id,
        "root_key_id": kept.wrapped.root_key_id,
        "ciphertext": kept.wrapped.ciphertext.hex(),
    }
    return json.dumps(document, indent=1, sort_keys=True).encode()


def read_copy(data: bytes) -> KeptKey:
    """What `write_copy` wrote, or `Integrity(OBJECT_MALFORMED)`."""
    try:
        document = json.loads(data)
        known = document["format"] == _FORMAT
        kept = KeptKey(
            tenant=TenantId(str(document["tenant"])),
            id=str(document["key_id"]),
            generation=int(document["generation"]),
            revision=0,
            wrapped=WrappedKey(
                root_key_id=str(document["root_key_id"]), ciphertext=bytes.fromhex(document["ciphertext"])
            ),
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        raise _malformed() from None
    if not known:
        raise _malformed()
    return kept


def _malformed() -> Integrity:
    return Integrity(
        Code.OBJECT_MALFORMED,
        "An object beside the archives is no wrapped key.",
        remedy="Find out who wrote it; it is left as it is.",
    )
