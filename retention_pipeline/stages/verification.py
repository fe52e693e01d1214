"""Reads an object back and proves it. The only maker of `VerifiedObject`: nothing is deleted without one (SPEC A6).

- Exactly the recorded version is read, as one bounded stream.
- Length, SHA-256, identity, decryption to the end, decompression and the manifest's keyed digest must all hold.
- Nothing that the provider says of the object is believed: not its length, not its ETag, not its metadata.
"""

from collections.abc import Callable

from retention_pipeline.envelope.identity import Identity
from retention_pipeline.envelope.open import open_envelope
from retention_pipeline.model.archive import MANIFEST_FORMAT, Attempt, AttemptState, StoredObject, VerifiedObject
from retention_pipeline.model.ports import ObjectReader

Keys = Callable[[str], bytes]
Sink = Callable[[bytes], object]


def verify(store: ObjectReader, stored: StoredObject, keys: Keys, *, sink: Sink | None = None) -> VerifiedObject:
    """Prove that this very version opens as this very instance's archive.

    Args:
        store: where it lies.
        stored: what was recorded before and after it was written.
        keys: gives a tenant key by its id.
        sink: takes the manifest's bytes as they come; they are proven whole only when this returns.

    Raises:
        Integrity: with the code of what did not hold.
        Unavailable: the store or the key did not answer; nothing is known.
    """
    with store.read(stored.key, stored.version) as stream:
        open_envelope(
            stream,
            size=stored.size,
            keys=keys,
            expect=Identity(
                tenant=stored.tenant, instance=stored.instance, epoch=stored.epoch, manifest=MANIFEST_FORMAT
            ),
            sha256=stored.sha256,
            manifest_digest=stored.manifest_digest,
            sink=sink,
        )
    return VerifiedObject(stored=stored)


def recall(attempt: Attempt) -> VerifiedObject | None:
    """A verification that the database recorded less than an hour ago, of the same version; else it is done again."""
    if attempt.state is AttemptState.VERIFIED and attempt.verification_is_fresh and attempt.version is not None:
        return VerifiedObject(stored=attempt.stored(attempt.version))
    return None
