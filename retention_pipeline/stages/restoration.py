"""Opens an archive again: verified first, then written to a file or put back into the database (SPEC A17)."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from retention_pipeline.errors import Code, Refused
from retention_pipeline.model.archive import Attempt, AttemptState, StoredObject
from retention_pipeline.model.ids import AttemptId, TenantId
from retention_pipeline.model.people import Approval, Job
from retention_pipeline.model.ports import ObjectStore
from retention_pipeline.model.work import Records
from retention_pipeline.stages.manifest import ReadManifest, read
from retention_pipeline.stages.new_file import new_file
from retention_pipeline.stages.verification import Keys, verify

READABLE = frozenset({AttemptState.STORED, AttemptState.VERIFIED, AttemptState.SOURCE_DELETED, AttemptState.SUPERSEDED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Obstacle:
    """Something that stands in the way of a restore, by table."""

    code: Code
    table: str
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What came back.

    Args:
        identical: whether every archived value was read again from the database and is the same.
        already: whether it had been restored before, and nothing was done now.
    """

    archive: AttemptId
    instance: str
    rows_by_table: dict[str, int]
    identical: bool
    already: bool


class Restorer(Protocol):
    """Puts a manifest's rows back; `postgres` implements it."""

    def obstacles(self, tenant: TenantId, manifest: ReadManifest) -> tuple[Obstacle, ...]:
        """Everything that stands in the way, without changing anything."""
        ...

    def restore(
        self, tenant: TenantId, archive: AttemptId, manifest: ReadManifest, *, approval: Approval, run: str
    ) -> Restored:
        """Insert all rows, read them again, compare, and commit only what is identical."""
        ...


def restorable(attempt: Attempt) -> StoredObject:
    """The object of an archive that can be opened, or `Refused(ARCHIVE_UNKNOWN)`."""
    if attempt.state not in READABLE or attempt.version is None:
        raise Refused(
            Code.ARCHIVE_UNKNOWN,
            f"This archive can't be opened: it is {attempt.state}.",
            remedy="`retention inspect` lists the tenant's archives.",
        )
    return attempt.stored(attempt.version)


def open_archive(store: ObjectStore, stored: StoredObject, keys: Keys) -> ReadManifest:
    """Verify an archive and read its manifest."""
    pieces = bytearray()
    verify(store, stored, keys, sink=pieces.extend)
    return read(bytes(pieces))


def to_file(store: ObjectStore, stored: StoredObject, keys: Keys, path: Path) -> None:
    """Write the manifest to a new file, private to its owner; it appears under its name only when it is proven whole.

    Raises:
        UsageFault: `USAGE`, when the file is there already.
        Unavailable: `STORE_FULL`, when it could not be written.
    """
    with new_file(path) as file:
        verify(store, stored, keys, sink=file.write)


def into_database(
    records: Records,
    restorer: Restorer,
    attempt: Attempt,
    manifest: ReadManifest,
    *,
    approval_id: str,
    run: str,
    obstacles: Callable[[], tuple[Obstacle, ...]] | None = None,
) -> Restored:
    """Put an instance back exactly as it was archived, under an approval for this very archive.

    Raises:
        Refused: `RESTORE_CONFLICT`, naming what stands in the way; `APPROVAL_INVALID`.
    """
    found = (obstacles or (lambda: restorer.obstacles(attempt.tenant, manifest)))()
    if found:
        raise Refused(
            Code.RESTORE_CONFLICT,
            " ".join(f"{o.table}: {o.sentence}" for o in found[:5]),
            remedy="Mend what it names, or restore to a file.",
        )
    approval = records.use_approval(attempt.tenant, approval_id, Job.RESTORE, run, attempt.id)
    return restorer.restore(attempt.tenant, attempt.id, manifest, approval=approval, run=run)
