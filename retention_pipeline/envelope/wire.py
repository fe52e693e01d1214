r"""The framing of an archive object, shared by sealing and opening.

    OBJECT := "NWARCH1\n" | u16 | IDENT | u16 | SLOT | BODY
    SLOT   := u8 length | key id | Cobblestone-256(tenant key, [domain, "dek", key id, IDENT], data key)
    BODY   := Cobblestone-256(data key, [domain, "body", IDENT], zstd(manifest))

- Lengths are big-endian. All of them follow from IDENT and the key id, so an object's size is known from its head.
"""

import struct
from typing import Final

from retention_pipeline.envelope.identity import DOMAIN, MAX_IDENT
from retention_pipeline.envelope.wraps import KEY_SIZE, Part, context

MAGIC: Final = b"NWARCH1\n"
MAX_OBJECT: Final = 64 << 20
"""Bytes; one more is refused (SPEC A4)."""
MAX_PLAINTEXT: Final = 512 << 20
"""Bytes (SPEC A4)."""
MAX_SLOT: Final = MAX_IDENT

_PREFIX: Final = 56  # a nonce of 24 bytes, a commitment of 32
_CHUNK: Final = 16 << 10
_TAG: Final = 16
WRAP_SIZE: Final = _PREFIX + KEY_SIZE + _TAG


def body_size(zlen: int) -> int:
    """Bytes of BODY for `zlen` bytes of compressed manifest; the last chunk may be empty."""
    return _PREFIX + zlen + _TAG * (zlen // _CHUNK + 1)


def framed(part: bytes) -> bytes:
    """A part with its length in front."""
    return struct.pack(">H", len(part)) + part


def frame_size(head: bytes) -> int:
    """The length that `framed` wrote."""
    return int(struct.unpack(">H", head)[0])


def slot_parts(key_id: str, ident: bytes) -> tuple[Part, ...]:
    """What binds the wrapped data key to its tenant key and its object."""
    return DOMAIN, "dek", key_id, ident.decode()


def body_context(ident: bytes) -> bytes:
    """What binds the body to its object; the slot is left out, so that it can be replaced."""
    return context(DOMAIN, "body", ident.decode())
