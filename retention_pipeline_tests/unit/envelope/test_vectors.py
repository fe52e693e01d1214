"""Objects that were sealed long ago open for ever (A17)."""

import io
import json
from hashlib import sha256
from pathlib import Path

import pytest

from retention_pipeline.envelope.identity import DOMAIN, parse_ident
from retention_pipeline.envelope.open import open_envelope
from retention_pipeline.envelope.wraps import open_value

DOCUMENT = json.loads((Path(__file__).parents[2] / "vectors/workflow-archive.v1.json").read_text())
VECTORS = {vector["name"]: vector for vector in DOCUMENT["vectors"]}


@pytest.mark.parametrize("name", VECTORS)
def test_a_vector_opens_for_ever_a17(name):
    vector = VECTORS[name]
    body = bytes.fromhex(vector["object_hex"])
    spool = bytearray()
    opened = open_envelope(
        io.BytesIO(body),
        size=vector["object_len"],
        keys={vector["kek_id"]: bytes.fromhex(vector["kek"])}.__getitem__,
        sha256=bytes.fromhex(vector["object_sha256"]),
        expect=parse_ident(vector["ident"].encode()).identity,
        sink=spool.extend,
    )
    assert sha256(spool).hexdigest() == vector["manifest_sha256"]
    assert opened.key_id == vector["kek_id"]
    assert opened.plaintext_size == len(spool)


@pytest.mark.parametrize("name", VECTORS)
def test_a_vectors_data_key_is_the_one_its_slot_wraps(name):
    vector = VECTORS[name]
    body, ident = bytes.fromhex(vector["object_hex"]), vector["ident"]
    start = 8 + 2 + len(ident) + 2 + 1 + len(vector["kek_id"])
    parts = (DOMAIN, "dek", vector["kek_id"], ident)
    assert open_value(bytes.fromhex(vector["kek"]), parts, body[start : start + 104]).hex() == vector["dek"]
