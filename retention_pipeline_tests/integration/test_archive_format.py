"""The stand-alone decoder in the documents opens an archive with nothing but object, wrapped key and keyring (A17)."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from retention_pipeline.keys.local import LocalKeyring
from retention_pipeline.model.ids import ObjectKey
from retention_pipeline.model.tenant_keys import KEY_COPIES
from retention_pipeline_tests.keyrooms import keydesk, room

__all__ = ["keydesk", "room"]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "archive-format.md"


@pytest.fixture
def files(room, keydesk, tmp_path):
    """What is left of an installation: one archive, what lies beside it, and the keyring."""
    [archive] = room.archive()
    key, version = room.platform.connection.execute(
        "SELECT object_key, object_version FROM retention.attempts WHERE id = %s", [archive]
    ).fetchone()
    with room.store() as store:
        [copy] = store.walk(KEY_COPIES)
        for name, found in (("object", (ObjectKey(key), version)), ("wrapped", (copy.key, copy.version))):
            with store.read(*found) as stream:
                (tmp_path / name).write_bytes(stream.read(1 << 26))
    (tmp_path / "keyring").write_bytes(keydesk.keyring.read_bytes())
    source = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[1]
    (tmp_path / "decode.py").write_text(source)
    return tmp_path


def decode(files):
    """In a process that does not find this product."""
    command = [sys.executable, "-P", "decode.py", "object", "wrapped", "keyring"]
    return subprocess.run(command, cwd=files, capture_output=True, check=False, timeout=60)


def test_the_decoder_of_the_documents_opens_an_archive(room, files):
    answer = decode(files)
    assert (answer.returncode, answer.stderr) == (0, b"")
    manifest = json.loads(answer.stdout)
    assert (manifest["tenant"], manifest["format"]) == (room.tenant, "nucleus/workflow-manifest.v1")
    assert {"context", "instance"} <= {table["section"] for table in manifest["tables"]}
    assert room.archives
    assert "retention_pipeline" not in (files / "decode.py").read_text()


def test_it_opens_nothing_that_was_changed_or_belongs_elsewhere(files, keydesk):
    whole = {name: (files / name).read_bytes() for name in ("object", "wrapped", "keyring")}
    other = LocalKeyring.create(files / "other")
    copy = json.loads(whole["wrapped"])
    middle = len(whole["object"]) // 2
    flipped = bytearray(whole["object"])
    flipped[middle] ^= 1
    for name, data in (
        ("object", bytes(flipped)),
        ("object", whole["object"][:-1]),
        ("wrapped", json.dumps({**copy, "generation": 2}).encode()),
        ("wrapped", json.dumps({**copy, "tenant": "t-2"}).encode()),
        ("keyring", (files / "other").read_bytes()),
    ):
        (files / name).write_bytes(data)
        answer = decode(files)
        assert answer.returncode != 0
        assert answer.stdout == b""
        (files / name).write_bytes(whole[name])
    assert other.current()
    assert decode(files).returncode == 0
