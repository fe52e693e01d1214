"""Prove an archive object in one bounded pass (SPEC A6).

In this order, and the first that fails is the answer:

1. the magic, and an IDENT that re-encodes to itself;
2. the identity, where one is expected;
3. the lengths: those in the head add up to the recorded size;
4. the slot: a known tenant key, and a data key that it opens;
5. the body, decrypted to its end, decompressed within the declared size;
6. nothing after the end;
7. the plaintext's length, the SHA-256 of the stored bytes, the manifest's keyed digest.

- A stream that ends early is truncated, wherever it ends. Short reads are normal.
- What reaches the sink is authentic, but whole only when `open_envelope` returns: spool, then commit.
"""

import hmac
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256 as new_sha256

from cryptography.cobblestone import Cobblestone256Decryptor
from cryptography.exceptions import InvalidTag

from retention_pipeline.envelope.digest import manifest_mac
from retention_pipeline.envelope.identity import MAX_IDENT, Ident, Identity, parse_ident
from retention_pipeline.envelope.wire import (
    MAGIC,
    MAX_OBJECT,
    MAX_PLAINTEXT,
    MAX_SLOT,
    WRAP_SIZE,
    body_context,
    body_size,
    frame_size,
    slot_parts,
)
from retention_pipeline.envelope.wraps import open_value
from retention_pipeline.envelope.zstandard import ZstdError, decompressor
from retention_pipeline.errors import Code, Integrity, RetentionError
from retention_pipeline.model.ports import ByteStream

_STEP = 256 << 10
_CHUNK_ROOM = 16 << 10

Keys = Callable[[str], bytes]
"""From a tenant key's id to its secret; raises `Unavailable(KEY_UNAVAILABLE)` where there is none."""

Sink = Callable[[bytes], object]
"""Takes the manifest's bytes in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """What was proven about an object.

    Args:
        identity: whose archive it is.
        key_id: the tenant key that opened it.
        size: bytes that were stored.
        sha256: their digest.
        plaintext_size: bytes of the manifest.
        manifest_digest: its keyed digest.
    """

    identity: Identity
    key_id: str = field(repr=False)
    size: int
    sha256: bytes = field(repr=False)
    plaintext_size: int
    manifest_digest: bytes = field(repr=False)


def open_envelope(
    stream: ByteStream,
    *,
    size: int,
    keys: Keys,
    expect: Identity | None = None,
    sha256: bytes | None = None,
    manifest_digest: bytes | None = None,
    sink: Sink | None = None,
) -> Opened:
    """Read an object to its end and prove it, in less than 16 MiB of memory whatever it holds.

    Args:
        stream: the stored bytes, as the provider sends them.
        size: bytes that were recorded when it was sealed; never the provider's own claim.
        keys: looks a tenant key up by its id.
        expect: the identity it must have.
        sha256: the digest its stored bytes must have.
        manifest_digest: the keyed digest its manifest must have.
        sink: receives the manifest.

    Raises:
        Integrity: with a code of its own for each way in which an object can be wrong.
        Unavailable: whatever `keys` and `stream` raise.
    """
    if size > MAX_OBJECT:
        raise _wrong(Code.OBJECT_LENGTH_MISMATCH, "The recorded size is above the format's limit.")
    reader = _Reader(stream)
    ident, encoded = _read_ident(reader, expect)
    key_id, wrapped = _read_slot(reader)
    if reader.seen + body_size(ident.zlen) != size:
        raise _wrong(Code.OBJECT_LENGTH_MISMATCH, "The object's own lengths don't add up to the recorded size.")
    tenant_key = _tenant_key(keys, key_id, reader, size, sha256)
    data_key = open_value(tenant_key, slot_parts(key_id, encoded), wrapped)
    plaintext = _Plaintext(ident.plain, manifest_mac(tenant_key), sink)
    _decrypt(reader, size, Cobblestone256Decryptor(data_key, body_context(encoded)), plaintext)
    reader.end()
    plaintext.end()
    opened = Opened(
        identity=ident.identity,
        key_id=key_id,
        size=size,
        sha256=reader.digest.digest(),
        plaintext_size=ident.plain,
        manifest_digest=plaintext.mac.digest(),
    )
    _check_stored(opened.sha256, sha256)
    if manifest_digest is not None and not hmac.compare_digest(opened.manifest_digest, manifest_digest):
        raise _wrong(Code.MANIFEST_DIGEST_MISMATCH, "The manifest is not the one that was sealed.")
    return opened


class _Reader:
    """Exact reads over a stream that may be short, each byte counted and hashed once."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self.digest = new_sha256()
        self.seen = 0

    def some(self, most: int) -> bytes:
        data = self._stream.read(most)
        if not data:
            raise _wrong(Code.OBJECT_TRUNCATED, "The object ends early.")
        if len(data) > most:
            raise _wrong(Code.OBJECT_LENGTH_MISMATCH, "The stream gave more than was asked for.")
        self.seen += len(data)
        self.digest.update(data)
        return data

    def exactly(self, size: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            parts += self.some(size - len(parts))
        return bytes(parts)

    def end(self) -> None:
        if self._stream.read(1):
            raise _wrong(Code.OBJECT_LENGTH_MISMATCH, "There are bytes after the object's end.")


class _Plaintext:
    """Decompresses within the declared size: a bomb is refused at its first byte too many."""

    def __init__(self, size: int, mac: hmac.HMAC, sink: Sink | None) -> None:
        self.mac = mac
        self._left = size
        self._sink = sink
        self._zstd = decompressor()

    def feed(self, data: bytes | memoryview) -> None:
        if not data:
            return
        if self._whole():
            raise _after_end()
        self._take(self._zstd.decompress(data, max_length=self._room()))
        while not self._whole() and not self._zstd.needs_input:
            self._take(self._zstd.decompress(b"", max_length=self._room()))
        if self._zstd.unused_data:
            raise _after_end()

    def _whole(self) -> bool:
        return self._zstd.eof

    def _room(self) -> int:
        return min(_STEP, self._left + 1)

    def _take(self, piece: bytes) -> None:
        self._left -= len(piece)
        if self._left < 0:
            raise _wrong(Code.OBJECT_MALFORMED, "The manifest is longer than it says.")
        self.mac.update(piece)
        if self._sink is not None and piece:
            self._sink(piece)

    def end(self) -> None:
        if not self._whole() or self._left:
            raise _wrong(Code.OBJECT_MALFORMED, "The manifest is shorter than it says.")


def _read_ident(reader: _Reader, expect: Identity | None) -> tuple[Ident, bytes]:
    if reader.exactly(len(MAGIC)) != MAGIC:
        raise _wrong(Code.OBJECT_MALFORMED, "The object is not an archive.")
    length = frame_size(reader.exactly(2))
    if length > MAX_IDENT:
        raise _wrong(Code.OBJECT_MALFORMED, "The object's head is too long.")
    encoded = reader.exactly(length)
    ident = parse_ident(encoded)
    if ident.plain > MAX_PLAINTEXT:
        raise _wrong(Code.OBJECT_MALFORMED, "The manifest is longer than the format allows.")
    if expect is not None and ident.identity != expect:
        raise _wrong(Code.IDENTITY_MISMATCH, "The object is an archive of something else.")
    return ident, encoded


def _read_slot(reader: _Reader) -> tuple[str, bytes]:
    length = frame_size(reader.exactly(2))
    if length > MAX_SLOT:
        raise _wrong(Code.OBJECT_MALFORMED, "The object's key slot is too long.")
    slot = reader.exactly(length)
    name = slot[1 : 1 + slot[0]] if slot else b""
    if not name or not name.isascii() or len(slot) != 1 + slot[0] + WRAP_SIZE:
        raise _wrong(Code.OBJECT_MALFORMED, "The object's key slot is not written as the format says.")
    return name.decode("ascii"), slot[1 + slot[0] :]


def _tenant_key(keys: Keys, key_id: str, reader: _Reader, size: int, sha256: bytes | None) -> bytes:
    """Look the key up; one flipped bit in its name is a damaged object, not a missing key (F1)."""
    try:
        return keys(key_id)
    except RetentionError:
        if sha256 is not None:
            while reader.seen < size:
                reader.some(min(_STEP, size - reader.seen))
            _check_stored(reader.digest.digest(), sha256)
        raise


def _check_stored(found: bytes, expected: bytes | None) -> None:
    if expected is not None and not hmac.compare_digest(found, expected):
        raise _wrong(Code.OBJECT_DIGEST_MISMATCH, "The stored bytes are not those that were written.")


def _decrypt(reader: _Reader, size: int, decryptor: Cobblestone256Decryptor, plaintext: _Plaintext) -> None:
    buffer = memoryview(bytearray(min(_STEP, size) + _CHUNK_ROOM))
    try:
        while reader.seen < size:
            data = reader.some(min(_STEP, size - reader.seen))
            plaintext.feed(buffer[: decryptor.update_into(data, buffer)])
        plaintext.feed(decryptor.finalize())
    except InvalidTag:
        raise _wrong(Code.OBJECT_UNAUTHENTIC, "The object was changed after it was sealed.") from None
    except ZstdError:
        raise _wrong(Code.OBJECT_MALFORMED, "The manifest can't be decompressed.") from None


def _after_end() -> Integrity:
    return _wrong(Code.OBJECT_MALFORMED, "There is data after the compressed manifest.")


def _wrong(code: Code, message: str) -> Integrity:
    return Integrity(code, message, remedy="Keep the object and the source; archive the instance again.")
