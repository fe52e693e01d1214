"""Sealing: limits are exact, memory is bounded (A3, A4)."""

import io
import os
import tracemalloc
from hashlib import sha256

import pytest

from retention_pipeline.envelope.digest import manifest_digest
from retention_pipeline.envelope.identity import Identity
from retention_pipeline.envelope.open import open_envelope
from retention_pipeline.envelope.seal import seal
from retention_pipeline.envelope.wire import MAX_OBJECT
from retention_pipeline.envelope.wraps import TenantKey
from retention_pipeline.errors import Code, Refused

MIB = 1 << 20


def unseal(sealed, key, **how):
    spool = bytearray()
    open_envelope(
        io.BytesIO(sealed.body), size=sealed.size, keys={key.id: key.secret}.__getitem__, sink=spool.extend, **how
    )
    return bytes(spool)


@pytest.mark.parametrize("size", [0, 1, 16383, 16384, 16385, 3 * MIB + 7])
@pytest.mark.parametrize("make", [os.urandom, bytes], ids=["random", "zeros"])
def test_what_goes_in_comes_out_a1(identity, key, size, make):
    manifest = make(size)
    sealed = seal(manifest, identity=identity, key=key)
    assert (
        unseal(sealed, key, expect=identity, sha256=sealed.sha256, manifest_digest=sealed.manifest_digest) == manifest
    )
    assert (sealed.size, sealed.plaintext_size) == (len(sealed.body), size)
    assert sealed.sha256 == sha256(sealed.body).digest()
    assert sealed.manifest_digest == manifest_digest(manifest, tenant_key=key.secret)


def test_a_manifest_in_pieces_is_the_same_manifest(identity, key):
    pieces = [b"", b"a", os.urandom(2 * MIB), b"", b"z" * 100]
    sealed = seal(iter(pieces), identity=identity, key=key)
    assert unseal(sealed, key) == b"".join(pieces)
    assert sealed.manifest_digest == manifest_digest(b"".join(pieces), tenant_key=key.secret)


def test_no_two_objects_share_a_data_key_a3(identity, key):
    one, two = (seal(b"same", identity=identity, key=key) for _ in range(2))
    assert one.body[-40:] != two.body[-40:]
    assert one.manifest_digest == two.manifest_digest


def test_the_digest_says_nothing_without_the_key_a18():
    assert manifest_digest(b"x", tenant_key=bytes(32)) != manifest_digest(b"x", tenant_key=b"1" * 32)
    assert manifest_digest(b"x", tenant_key=bytes(32)) != sha256(b"x").digest()


def test_exactly_the_limit_passes_and_one_byte_more_is_refused_a4(identity, key):
    manifest = os.urandom(MAX_OBJECT - 100_000)
    slack = MAX_OBJECT - seal(manifest, identity=identity, key=key).size
    while slack:  # tags and block headers take their part of what is added
        manifest += os.urandom(max(1, slack - slack // 900 - 1))
        slack = MAX_OBJECT - seal(manifest, identity=identity, key=key).size
        assert slack >= 0
    sealed = seal(manifest, identity=identity, key=key)
    assert sealed.size == 67_108_864
    assert open_envelope(io.BytesIO(sealed.body), size=sealed.size, keys={key.id: key.secret}.__getitem__)
    with pytest.raises(Refused) as refused:
        seal(manifest + b"!", identity=identity, key=key)
    assert refused.value.code is Code.OBJECT_LIMIT_EXCEEDED


@pytest.mark.parametrize("wrap", [lambda m: m, lambda m: iter([m[:7], m[7:]])], ids=["whole", "pieces"])
def test_the_plaintext_limit_is_exact_a4(identity, key, wrap):
    assert seal(wrap(b"x" * 1000), identity=identity, key=key, plaintext_limit=1000).plaintext_size == 1000
    with pytest.raises(Refused) as refused:
        seal(wrap(b"x" * 1001), identity=identity, key=key, plaintext_limit=1000)
    assert refused.value.code is Code.PLAINTEXT_LIMIT_EXCEEDED


def test_an_endless_manifest_is_refused_without_being_read_to_its_end_a4(identity, key):
    noise = os.urandom(MIB)

    def endless():
        while True:
            yield noise

    with pytest.raises(Refused):
        seal(endless(), identity=identity, key=key, object_limit=4 * MIB, plaintext_limit=8 * MIB)


def test_a_failure_inside_a_manifest_leaves_the_next_one_whole(identity, key):
    def broken():
        yield b"half a frame" * 1000
        raise RuntimeError

    with pytest.raises(RuntimeError):
        seal(broken(), identity=identity, key=key)
    assert unseal(seal(b"next", identity=identity, key=key), key) == b"next"


def test_sealing_holds_at_most_two_objects_beside_its_input(identity, key):
    manifest = os.urandom(24 * MIB)
    tracemalloc.start()
    try:
        sealed = seal(manifest, identity=identity, key=key)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2.1 * sealed.size


@pytest.mark.parametrize(
    "wrong", [{"tenant": ""}, {"instance": "\ud800"}, {"epoch": 0}, {"epoch": 2**53}, {"epoch": True}]
)
def test_ids_that_name_nothing_are_refused_a3(wrong):
    with pytest.raises(Refused) as refused:
        Identity(**{"tenant": "t", "instance": "i", "epoch": 1, "manifest": "m"} | wrong)
    assert refused.value.code is Code.IDENTITY_INVALID


def test_ids_that_are_too_long_are_refused_before_anything_is_written(key):
    with pytest.raises(Refused) as refused:
        seal(b"", identity=Identity(tenant="t", instance="i" * 5000, epoch=1, manifest="m"), key=key)
    assert refused.value.code is Code.IDENTITY_INVALID


def test_a_text_key_of_any_script_names_an_archive(key):
    identity = Identity(tenant="t", instance='Straße "7"\t\x01', epoch=1, manifest="m")
    assert unseal(seal(b"x", identity=identity, key=key), key, expect=identity) == b"x"


def test_a_key_is_never_shown_a16(identity, key):
    assert key.secret.hex() not in repr(key)
    assert repr(key.secret) not in repr(key)
    assert "body" not in repr(seal(b"x", identity=identity, key=key))


@pytest.mark.parametrize("wrong", [{"id": ""}, {"id": "k" * 256}, {"id": "ü"}, {"secret": b"short"}])
def test_an_unusable_key_is_refused(wrong):
    with pytest.raises(Refused) as refused:
        TenantKey(**{"id": "k", "secret": bytes(32)} | wrong)
    assert refused.value.code is Code.KEY_INVALID
