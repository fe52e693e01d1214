"""The stand-alone decoder in the documents opens an archive with nothing but object, wrapped key and keyring (A17)."""

import re
from pathlib import Path

from retention_pipeline.model.archive import AttemptState
from retention_pipeline.stages.world import EVERY_STEP, Step

PAGE = Path(__file__).resolve().parents[2] / "docs" / "archive-format.md"


def decoder():
    source = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[1]
    names = {"__name__": "decoder"}
    exec(compile(source, "archive-format.md", "exec"), names)
    return names["decode"]


def test_the_decoder_of_the_documents_opens_an_archive(bench):
    platform = bench.platform()
    instance = platform.add()
    bench.reconcile(platform, steps=EVERY_STEP - {Step.DELETIONS})
    attempt = bench.world.records.claim(
        platform.tenant, holder="test", states=[AttemptState.VERIFIED], limit=1, instance=instance
    )[0]
    wrapped, root, generation = platform.connection.execute(
        "SELECT ciphertext, root_key_id, generation FROM retention.tenant_keys WHERE key_id = %s", [attempt.key_id]
    ).fetchone()
    with bench.store.read(attempt.key, attempt.version) as stream:
        data = stream.read(attempt.size)
    manifest = decoder()(data, bytes(wrapped), bench.keyring.read_bytes(), root, generation)
    assert f'"instance":"{instance}"'.encode() in manifest
    assert b'"section":"context"' in manifest
