"""Make an archive object of a manifest: compress, then encrypt, within bounds of size and memory (SPEC A3, A4).

- IDENT carries the compressed size and is bound to the body, so compression ends before encryption begins.
- Compressed pieces are let go of as they are encrypted: beside the input, at most two objects' worth of memory is held.
"""

import os
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from io import BytesIO

from cryptography.cobblestone import Cobblestone256Encryptor

from retention_pipeline.envelope.digest import manifest_mac
from retention_pipeline.envelope.identity import Ident, Identity
from retention_pipeline.envelope.wire import (
    MAGIC,
    MAX_OBJECT,
    MAX_PLAINTEXT,
    body_context,
    body_size,
    framed,
    slot_parts,
)
from retention_pipeline.envelope.wraps import KEY_SIZE, TenantKey, seal_value
from retention_pipeline.envelope.zstandard import compressor
from retention_pipeline.errors import Code, Refused

_STEP = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Sealed:
    """An archive object that is ready to be stored.

    Args:
        body: the whole object.
        sha256: the object's digest, 32 bytes.
        size: the object's size in bytes.
        manifest_digest: the manifest's keyed digest, 32 bytes.
        plaintext_size: the manifest's size in bytes.
    """

    body: bytes = field(repr=False)
    sha256: bytes = field(repr=False)
    size: int
    manifest_digest: bytes = field(repr=False)
    plaintext_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Compressed:
    pieces: deque[bytes]
    size: int
    plaintext_size: int
    manifest_digest: bytes


def seal(
    manifest: bytes | Iterable[bytes],
    *,
    identity: Identity,
    key: TenantKey,
    plaintext_limit: int = MAX_PLAINTEXT,
    object_limit: int = MAX_OBJECT,
) -> Sealed:
    """Seal one manifest for one instance's epoch under a fresh data key.

    Args:
        manifest: the bytes, whole or in pieces.
        identity: whose archive it is.
        key: the tenant's current key; it wraps the data key.
        plaintext_limit: bytes a manifest may have.
        object_limit: bytes an object may have; exactly that many pass.

    Raises:
        Refused: `PLAINTEXT_LIMIT_EXCEEDED` or `OBJECT_LIMIT_EXCEEDED`, as soon as it is certain (SPEC A4).
    """
    compressed = _compress(manifest, key, plaintext_limit, object_limit)
    ident = Ident(identity=identity, zlen=compressed.size, plain=compressed.plaintext_size).encode()
    data_key = os.urandom(KEY_SIZE)
    wrapped = seal_value(key.secret, slot_parts(key.id, ident), data_key)
    slot = bytes((len(key.id),)) + key.id.encode("ascii") + wrapped
    head = MAGIC + framed(ident) + framed(slot)
    size = len(head) + body_size(compressed.size)
    if size > object_limit:
        raise _object_limit(object_limit)
    body = _encrypt(head, size, compressed.pieces, data_key, ident)
    return Sealed(
        body=body,
        sha256=sha256(body).digest(),
        size=size,
        manifest_digest=compressed.manifest_digest,
        plaintext_size=compressed.plaintext_size,
    )


def _compress(
    manifest: bytes | Iterable[bytes], key: TenantKey, plaintext_limit: int, object_limit: int
) -> _Compressed:
    pledged = len(manifest) if isinstance(manifest, bytes) else None
    if pledged is not None and pledged > plaintext_limit:
        raise _plaintext_limit(plaintext_limit)
    mac, pieces, size, plain = manifest_mac(key.secret), deque[bytes](), 0, 0
    with compressor(pledged) as context:
        for step in _steps(manifest):
            plain += len(step)
            if plain > plaintext_limit:
                raise _plaintext_limit(plaintext_limit)
            mac.update(step)
            if piece := context.compress(step):
                pieces.append(piece)
                size += len(piece)
            if size > object_limit:
                raise _object_limit(object_limit)
        pieces.append(context.flush())
        size += len(pieces[-1])
    return _Compressed(pieces=pieces, size=size, plaintext_size=plain, manifest_digest=mac.digest())


def _steps(manifest: bytes | Iterable[bytes]) -> Iterator[bytes | memoryview]:
    for piece in (manifest,) if isinstance(manifest, bytes) else manifest:
        if len(piece) <= _STEP:
            yield piece
            continue
        view = memoryview(piece)
        for start in range(0, len(view), _STEP):
            yield view[start : start + _STEP]


def _encrypt(head: bytes, size: int, pieces: deque[bytes], data_key: bytes, ident: bytes) -> bytes:
    """Fill one buffer in place; `BytesIO` gives its bytes away without a copy."""
    out = BytesIO(bytes(size))
    encryptor = Cobblestone256Encryptor(data_key, body_context(ident))
    with out.getbuffer() as view:
        end = len(head)
        view[:end] = head
        while pieces:
            end += encryptor.update_into(pieces.popleft(), view[end:])
        view[end:] = encryptor.finalize()
    return out.getvalue()


def _object_limit(limit: int) -> Refused:
    return Refused(
        Code.OBJECT_LIMIT_EXCEEDED,
        f"The sealed archive would be larger than {limit} bytes; nothing was written and the source stays.",
        remedy="Reduce the instance's evidence, or keep it without limit.",
    )


def _plaintext_limit(limit: int) -> Refused:
    return Refused(
        Code.PLAINTEXT_LIMIT_EXCEEDED,
        f"The manifest is larger than {limit} bytes; nothing was written and the source stays.",
        remedy="Reduce the instance's evidence, or keep it without limit.",
    )
