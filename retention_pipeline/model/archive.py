"""The life of an archive, as values: candidate, export, manifest, stored object, verified object, deletion receipt."""

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from retention_pipeline.errors import Code
from retention_pipeline.model.ids import AttemptId, InstanceId, ObjectKey, ObjectVersion, TenantId

MANIFEST_FORMAT = "nucleus/workflow-manifest.v1"


class AttemptState(StrEnum):
    """Where an attempt stands (DESIGN section 4). The first six are its path, the rest is off the path."""

    INTENDED = "intended"
    STORED = "stored"
    VERIFIED = "verified"
    SOURCE_DELETED = "source_deleted"
    EXPIRING = "expiring"
    TOMBSTONE = "tombstone"
    SUPERSEDED = "superseded"
    CONFLICT = "conflict"
    ABANDONED = "abandoned"


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """An instance of an eligible set, with the epoch that made it due."""

    instance: InstanceId
    epoch: int
    epoch_at: str  # as PostgreSQL prints it: no instant goes through Python for a comparison


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnShape:
    """A column as the archive records it."""

    name: str
    type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRows:
    """A table's rows of one instance: text as PostgreSQL prints it, or None, ordered by primary key."""

    name: str
    section: str
    table: str
    columns: tuple[ColumnShape, ...]
    rows: tuple[tuple[str | None, ...], ...] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """Everything of one instance, read in one snapshot, with the fingerprint of what was read (A7).

    Args:
        fingerprint: SHA-256 over table, key and `xmin` of the root and every evidence row.
        shared_digest: SHA-256 over the content of the shared rows, which have no fingerprint: others may touch them.
    """

    tenant: TenantId
    candidate: Candidate
    captured_at: str
    server_version: str
    catalog_digest: str
    tables: tuple[TableRows, ...]
    fingerprint: bytes = field(repr=False)
    shared_digest: bytes = field(repr=False)

    def rows_by_table(self) -> dict[str, int]:
        """How many rows each table gave, by its name in the catalog."""
        return {table.name: len(table.rows) for table in self.tables}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """An instance that did not make it through a step; the others go on without it (W10)."""

    instance: InstanceId
    code: Code
    attempt: AttemptId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The archive's plaintext: canonical JSON, exact."""

    export: Export
    body: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredObject:
    """An object that a store said it wrote. A claim: it proves nothing (A6)."""

    attempt: AttemptId
    tenant: TenantId
    instance: InstanceId
    epoch: int
    fence: int
    key: ObjectKey = field(repr=False)
    version: ObjectVersion = field(repr=False)
    size: int
    sha256: bytes = field(repr=False)
    manifest_digest: bytes = field(repr=False)
    key_id: str = field(repr=False)
    profile_generation: int
    archive_retention_days: int
    rows_by_table: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedObject:
    """An object that was read back, opened and proven. Only `stages.verification` makes one."""

    stored: StoredObject


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionReceipt:
    """What stays of a source row."""

    attempt: AttemptId
    instance: InstanceId
    epoch: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """An attempt as the database records it."""

    id: AttemptId
    tenant: TenantId
    instance: InstanceId
    epoch: int
    state: AttemptState
    fence: int
    key: ObjectKey = field(repr=False)
    version: ObjectVersion | None = field(repr=False)
    size: int
    sha256: bytes = field(repr=False)
    manifest_digest: bytes = field(repr=False)
    key_id: str = field(repr=False)
    profile_generation: int
    archive_retention_days: int
    rows_by_table: dict[str, int]
    verification_is_fresh: bool
    intended_at: datetime

    def stored(self, version: ObjectVersion) -> StoredObject:
        """The object that this attempt recorded, under the version that the store gave it."""
        return StoredObject(
            attempt=self.id,
            tenant=self.tenant,
            instance=self.instance,
            epoch=self.epoch,
            fence=self.fence,
            key=self.key,
            version=version,
            size=self.size,
            sha256=self.sha256,
            manifest_digest=self.manifest_digest,
            key_id=self.key_id,
            profile_generation=self.profile_generation,
            archive_retention_days=self.archive_retention_days,
            rows_by_table=self.rows_by_table,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Intention:
    """An attempt that is about to be recorded: what will be written, and where, before it is written (A5)."""

    id: AttemptId
    candidate: Candidate
    key: ObjectKey = field(repr=False)
    size: int
    sha256: bytes = field(repr=False)
    plaintext_size: int
    manifest_digest: bytes = field(repr=False)
    key_id: str = field(repr=False)
    fingerprint: bytes = field(repr=False)
    shared_digest: bytes = field(repr=False)
    rows_by_table: dict[str, int]
    captured_at: str  # as PostgreSQL prints it
