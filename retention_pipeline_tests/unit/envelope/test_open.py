"""Opening: every way in which an object can be wrong has its own name (A3, A6, F1)."""

import io
import os
import struct
import tracemalloc
from dataclasses import replace

import orjson
import pytest
from backports import zstd
from cryptography.cobblestone import Cobblestone256Encryptor
from hypothesis import given
from hypothesis import strategies as st

from retention_pipeline.envelope.identity import Identity
from retention_pipeline.envelope.open import open_envelope
from retention_pipeline.envelope.seal import seal
from retention_pipeline.envelope.wire import WRAP_SIZE, body_context, slot_parts
from retention_pipeline.envelope.wraps import TenantKey, seal_value
from retention_pipeline.errors import Code, Integrity, RetentionError, Unavailable

MIB = 1 << 20
IDENTITY = Identity(tenant="t-1", instance="i-1", epoch=2, manifest="nucleus/workflow-manifest.v1")
KEY = TenantKey(id="k/1", secret=bytes(range(32)))
MANIFEST = b'{"rows":[' + b"1," * 9000 + b"1]}"
SEALED = seal(MANIFEST, identity=IDENTITY, key=KEY)


def lookup(name):
    if name != KEY.id:
        raise Unavailable(Code.KEY_UNAVAILABLE, "No such key.", remedy="Restore it.")
    return KEY.secret


def opened(body, *, size=None, keys=lookup, **how):
    return open_envelope(io.BytesIO(body), size=len(body) if size is None else size, keys=keys, **how)


def code_of(body, **how):
    with pytest.raises(RetentionError) as raised:
        opened(body, **how)
    assert raised.value.__cause__ is None
    return raised.value.code


def forged(frame, *, plain, zlen=None, ident=None, key=KEY):
    """An object that the tenant's own key sealed, with any head and any frame."""
    fields = {
        "ctx": "nucleus/workflow-archive.v1",
        "suite": "cobblestone-256",
        "tenant": "t-1",
        "instance": "i-1",
        "epoch": 2,
        "manifest": "m",
        "zip": "zstd",
        "zlen": len(frame) if zlen is None else zlen,
        "plain": plain,
    }
    ident = ident or orjson.dumps(fields, option=orjson.OPT_SORT_KEYS)
    slot = bytes((len(key.id),)) + key.id.encode() + seal_value(key.secret, slot_parts(key.id, ident), b"d" * 32)
    encryptor = Cobblestone256Encryptor(b"d" * 32, body_context(ident))
    body = encryptor.update(frame) + encryptor.finalize()
    return b"NWARCH1\n" + struct.pack(">H", len(ident)) + ident + struct.pack(">H", len(slot)) + slot + body


class Dribble:
    """A stream that gives one byte less than it could, and some of it one at a time."""

    def __init__(self, body):
        self.rest = io.BytesIO(body)

    def read(self, size, /):
        return self.rest.read(max(1, min(size - 1, 777)))


def test_short_reads_change_nothing_a6():
    found = open_envelope(Dribble(SEALED.body), size=SEALED.size, keys=lookup, sha256=SEALED.sha256)
    assert (found.size, found.plaintext_size, found.identity) == (SEALED.size, len(MANIFEST), IDENTITY)
    assert found.manifest_digest == SEALED.manifest_digest


@pytest.mark.parametrize("length", [0, 1, 7, 9, 100, 300, SEALED.size - 1])
def test_an_object_that_ends_early_is_truncated_f1(length):
    assert code_of(SEALED.body[:length], size=SEALED.size) is Code.OBJECT_TRUNCATED


def test_one_byte_after_the_end_is_a_wrong_length_a6():
    assert code_of(SEALED.body + b"!", size=SEALED.size) is Code.OBJECT_LENGTH_MISMATCH


@pytest.mark.parametrize("size", [SEALED.size + 1, SEALED.size - 1, 0, (64 << 20) + 1])
def test_a_recorded_size_that_is_not_the_objects_own_is_a_wrong_length_a6(size):
    assert code_of(SEALED.body, size=size) in {Code.OBJECT_LENGTH_MISMATCH, Code.OBJECT_TRUNCATED}


def test_a_stream_that_gives_too_much_at_once_is_refused():
    class Flood:
        def read(self, size, /):
            return b"N" * (size + 1)

    with pytest.raises(Integrity):
        open_envelope(Flood(), size=SEALED.size, keys=lookup)


@given(st.integers(0, SEALED.size - 1), st.integers(0, 7))
def test_no_flipped_bit_goes_unnoticed_f1(position, bit):
    body = bytearray(SEALED.body)
    body[position] ^= 1 << bit
    with pytest.raises(Integrity):
        opened(bytes(body), sha256=SEALED.sha256, expect=IDENTITY)


def test_a_flipped_bit_in_the_key_s_name_is_damage_and_not_a_missing_key_f1():
    body = SEALED.body.replace(b"\x03k/1", b"\x03k/9")
    assert code_of(body, sha256=SEALED.sha256) is Code.OBJECT_DIGEST_MISMATCH
    assert code_of(body) is Code.KEY_UNAVAILABLE


def test_a_flipped_bit_in_the_body_is_unauthentic_a3():
    assert code_of(SEALED.body[:-1] + bytes((SEALED.body[-1] ^ 1,))) is Code.OBJECT_UNAUTHENTIC


def test_another_tenants_key_never_opens_it_a3():
    assert code_of(SEALED.body, keys=lambda _: b"x" * 32) is Code.OBJECT_UNAUTHENTIC


def test_a_missing_key_is_unavailable_and_not_a_broken_object_a18():
    def none(_name):
        raise Unavailable(Code.KEY_UNAVAILABLE, "No such key.", remedy="Restore it.")

    assert code_of(SEALED.body, keys=none, sha256=SEALED.sha256) is Code.KEY_UNAVAILABLE


@pytest.mark.parametrize("other", [{"tenant": "t-2"}, {"instance": "i-2"}, {"epoch": 3}, {"manifest": "m"}])
def test_an_archive_of_something_else_is_named_as_such_a3(other):
    assert code_of(SEALED.body, expect=replace(IDENTITY, **other)) is Code.IDENTITY_MISMATCH


@pytest.mark.parametrize("change", [(b"t-1", b"t-2"), (b"i-1", b"i-2"), (b'"epoch":2', b'"epoch":3')])
def test_a_relabelled_archive_never_opens_a3(change):
    assert code_of(SEALED.body.replace(*change)) is Code.OBJECT_UNAUTHENTIC


@pytest.mark.parametrize("part", ["body", "slot"])
def test_parts_of_two_archives_don_t_mix_a3(part):
    other = seal(MANIFEST, identity=IDENTITY, key=KEY).body
    cut = SEALED.body.index(b"k/1") + 3 + WRAP_SIZE
    mixed = SEALED.body[:cut] + other[cut:] if part == "body" else other[:cut] + SEALED.body[cut:]
    assert code_of(mixed) is Code.OBJECT_UNAUTHENTIC


def test_other_bytes_under_the_key_are_no_archive_f1():
    assert code_of(b"not an archive at all") is Code.OBJECT_MALFORMED


def test_the_stored_digest_decides_a6():
    assert code_of(SEALED.body, sha256=b"0" * 32) is Code.OBJECT_DIGEST_MISMATCH
    again = seal(MANIFEST, identity=IDENTITY, key=KEY)
    assert code_of(again.body, sha256=SEALED.sha256) is Code.OBJECT_DIGEST_MISMATCH


def test_the_manifests_digest_decides_a6():
    assert code_of(SEALED.body, manifest_digest=b"0" * 32) is Code.MANIFEST_DIGEST_MISMATCH


@pytest.mark.parametrize(
    "ident",
    [
        b"{}",
        b"[]",
        b"null",
        b"\xff",
        b"",
        b'{"ctx": "nucleus/workflow-archive.v1"}',
        b" " + SEALED.body[10 : 10 + struct.unpack(">H", SEALED.body[8:10])[0]],
        b"x" * 4097,
    ],
)
def test_an_ident_that_is_not_the_format_s_is_malformed(ident):
    body = b"NWARCH1\n" + struct.pack(">H", len(ident)) + ident + bytes(5000)
    assert code_of(body) is Code.OBJECT_MALFORMED


@pytest.mark.parametrize(
    "change",
    [
        {"zlen": True},
        {"zlen": -1},
        {"plain": 1.0},
        {"plain": 2**53},
        {"plain": (512 << 20) + 1},
        {"epoch": 0},
        {"tenant": ""},
        {"zip": "gzip"},
        {"suite": "none"},
        {"ctx": "other"},
        {"more": 1},
    ],
)
def test_every_field_of_ident_is_checked(change):
    fields = orjson.loads(SEALED.body[10 : 10 + struct.unpack(">H", SEALED.body[8:10])[0]]) | change
    ident = orjson.dumps(fields, option=orjson.OPT_SORT_KEYS)
    assert code_of(forged(zstd.compress(b""), plain=0, ident=ident)) is Code.OBJECT_MALFORMED


def test_a_frame_that_is_followed_by_another_is_malformed():
    frame = zstd.compress(b"one")
    assert code_of(forged(frame + frame, plain=3)) is Code.OBJECT_MALFORMED


def test_a_frame_with_bytes_far_behind_it_is_malformed():
    frame = zstd.compress(b"one") + os.urandom(MIB)
    assert code_of(forged(frame, plain=3)) is Code.OBJECT_MALFORMED


@pytest.mark.parametrize("frame", [b"", b"no frame", zstd.compress(os.urandom(1000))[:-9]])
def test_a_frame_that_is_none_or_half_is_malformed(frame):
    assert code_of(forged(frame, plain=1000)) is Code.OBJECT_MALFORMED


@pytest.mark.parametrize("plain", [999, 1001, 0])
def test_a_manifest_that_is_not_as_long_as_it_says_is_malformed(plain):
    assert code_of(forged(zstd.compress(b"x" * 1000), plain=plain)) is Code.OBJECT_MALFORMED


def test_a_bomb_is_refused_at_its_first_byte_too_many():
    got = []
    body = forged(zstd.compress(bytes(256 * MIB)), plain=1000)
    assert code_of(body, sink=got.append) is Code.OBJECT_MALFORMED
    assert sum(map(len, got)) <= 1000


def test_a_frame_that_wants_a_huge_window_is_refused():
    options = {zstd.CompressionParameter.window_log: 27, zstd.CompressionParameter.content_size_flag: 0}
    compressor = zstd.ZstdCompressor(options=options)
    frame = compressor.compress(os.urandom(9 * MIB)) + compressor.flush()
    assert code_of(forged(frame, plain=9 * MIB)) is Code.OBJECT_MALFORMED


@pytest.mark.parametrize("make", [os.urandom, bytes], ids=["random", "zeros"])
def test_opening_stays_below_16_mib_whatever_the_object_a6(make):
    sealed = seal(make(40 * MIB), identity=IDENTITY, key=KEY)
    stream = io.BytesIO(sealed.body)
    tracemalloc.start()
    try:
        open_envelope(stream, size=sealed.size, keys=lookup)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 16 * MIB


def test_no_error_shows_an_id_or_a_digest_a16():
    for how in ({"expect": replace(IDENTITY, tenant="t-2")}, {"sha256": b"0" * 32}, {"manifest_digest": b"0" * 32}):
        with pytest.raises(Integrity) as raised:
            opened(SEALED.body, **how)
        assert not any(part in str(raised.value) for part in ("t-1", "i-1", "k/1", SEALED.sha256.hex()))
