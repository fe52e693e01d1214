"""Statements and reading for archive attempts: each transition names the fence, so that a worker that lost its lease changes nothing."""

from collections.abc import Sequence
from typing import Any

from psycopg import sql
from psycopg.types.json import Jsonb

from retention_pipeline.errors import Code, Refused
from retention_pipeline.model.archive import Attempt, AttemptState, Intention
from retention_pipeline.model.ids import AttemptId, InstanceId, ObjectKey, ObjectVersion, TenantId
from retention_pipeline.model.people import Approval
from retention_pipeline.model.profile import Profile
from retention_pipeline.postgres.session import Cursor, rows

LEASE_SECONDS = 600
"""How long an attempt stays with the worker that last moved it; longer than any single read or write of an object."""

_COLUMNS = """a.id::text, a.instance_id, a.epoch, a.state, a.fence, a.object_key, a.object_version, a.object_size, a.object_sha256,
  a.manifest_digest, a.key_id, a.profile_generation, a.archive_retention_days, a.rows_by_table,
  coalesce(a.verified_at > clock_timestamp() - interval '50 minutes', false), a.intended_at, a.tenant_id"""

_FREE = sql.SQL(
    "SELECT id FROM unnest(%(instances)s::text[]) AS n (id)"
    " WHERE pg_try_advisory_xact_lock(retention.instance_lock(%(tenant)s::text, id))"
)
"""Instances that nobody deletes, archives or holds right now: what follows sees all that was committed before."""

_INTEND = sql.SQL("""
INSERT INTO retention.attempts (id, tenant_id, instance_id, epoch, epoch_at, state, approval_id, job, run, holder, leased_until,
  profile_generation, archive_retention_days, key_id, object_key, object_size, object_sha256, plaintext_size,
  manifest_digest, manifest_format, fingerprint, shared_digest, rows_by_table)
SELECT n.id, %(tenant)s::text, n.instance, n.epoch, n.epoch_at::timestamptz, 'intended', %(approval)s::uuid, %(job)s::text,
  %(run)s::text, %(holder)s::text, clock_timestamp() + make_interval(secs => %(lease)s),
  %(profile)s::integer, %(days)s::integer, n.key_id, n.key, n.size, n.sha256, n.plaintext,
  n.digest, %(format)s::text, n.fingerprint, n.shared, n.tables
FROM unnest(%(ids)s::uuid[], %(instances)s::text[], %(epochs)s::integer[], %(epoch_ats)s::text[], %(key_ids)s::text[],
  %(keys)s::text[], %(sizes)s::bigint[], %(sha256s)s::bytea[], %(plaintexts)s::bigint[], %(digests)s::bytea[],
  %(fingerprints)s::bytea[], %(shareds)s::bytea[], %(tables)s::jsonb[], %(captureds)s::text[])
  AS n (id, instance, epoch, epoch_at, key_id, key, size, sha256, plaintext, digest, fingerprint, shared, tables, captured)
WHERE NOT EXISTS (SELECT FROM retention.receipts AS r WHERE r.tenant_id = %(tenant)s::text AND r.instance_id = n.instance
  AND r.epoch = n.epoch AND r.deleted_at > n.captured::timestamptz - make_interval(secs => %(lease)s))
ON CONFLICT (tenant_id, instance_id, epoch) WHERE state IN ('intended', 'stored', 'verified') DO NOTHING
RETURNING id::text
""")

_STORED = sql.SQL("""
UPDATE retention.attempts AS a SET state = 'stored', stored_at = clock_timestamp(), object_version = n.version,
  leased_until = clock_timestamp() + make_interval(secs => %(lease)s)
FROM unnest(%(ids)s::uuid[], %(fences)s::bigint[], %(versions)s::text[]) AS n (id, fence, version)
WHERE a.id = n.id AND a.fence = n.fence AND a.tenant_id = %(tenant)s::text AND a.state = 'intended' RETURNING a.id::text
""")

_VERIFIED = sql.SQL("""
UPDATE retention.attempts AS a SET state = 'verified', verified_at = clock_timestamp(),
  leased_until = clock_timestamp() + make_interval(secs => %(lease)s)
FROM unnest(%(ids)s::uuid[], %(fences)s::bigint[], %(versions)s::text[]) AS n (id, fence, version)
WHERE a.id = n.id AND a.fence = n.fence AND a.object_version = n.version AND a.tenant_id = %(tenant)s::text
  AND a.state IN ('stored', 'verified') RETURNING a.id::text
""")

_RETIRE = sql.SQL("""
UPDATE retention.attempts SET state = %(state)s::text, code = %(code)s::text, ended_at = clock_timestamp()
WHERE id = %(id)s::uuid AND fence = %(fence)s::bigint AND tenant_id = %(tenant)s::text
  AND state IN ('intended', 'stored', 'verified') RETURNING id::text
""")

_RELEASE = sql.SQL("""
UPDATE retention.attempts SET leased_until = '-infinity'
WHERE tenant_id = %(tenant)s::text AND holder = %(holder)s::text AND state IN ('intended', 'stored', 'verified')
""")

_CLAIM = sql.SQL(
    """
WITH picked AS MATERIALIZED (
  SELECT c.id FROM retention.attempts AS c
  WHERE c.tenant_id = %(tenant)s::text AND c.state = ANY(%(states)s::text[]) AND c.leased_until < clock_timestamp()
    AND (c.instance_id = %(instance)s::text OR %(instance)s::text IS NULL
      AND NOT EXISTS (SELECT FROM retention.set_asides AS s WHERE s.tenant_id = c.tenant_id AND s.instance_id = c.instance_id
        AND s.not_before > clock_timestamp()))
  ORDER BY c.intended_at, c.id LIMIT %(limit)s::bigint FOR UPDATE SKIP LOCKED)
UPDATE retention.attempts AS a SET holder = %(holder)s::text, fence = a.fence + 1,
  leased_until = clock_timestamp() + make_interval(secs => %(lease)s)
FROM picked WHERE a.id = picked.id AND a.state = ANY(%(states)s::text[]) AND a.leased_until < clock_timestamp()
RETURNING """
    + _COLUMNS
)

_BY_ID = sql.SQL(
    "SELECT " + _COLUMNS + " FROM retention.attempts AS a WHERE a.id = %(id)s::uuid AND a.tenant_id = %(tenant)s::text"
)

_ARCHIVES = sql.SQL(
    "SELECT "
    + _COLUMNS
    + " FROM retention.attempts AS a WHERE a.tenant_id = %(tenant)s::text AND a.object_version IS NOT NULL"
    + " ORDER BY a.intended_at DESC, a.id LIMIT %(limit)s::bigint"
)


def intend(
    cursor: Cursor,
    tenant: TenantId,
    intentions: Sequence[Intention],
    *,
    approval: Approval,
    run: str,
    holder: str,
    profile: Profile,
    manifest_format: str,
) -> set[AttemptId]:
    """Record what will be written before it is written (A5); an instance that another worker has, or took, is left to it.

    It was taken where its receipt is younger than our copy of it (or hardly older: a deletion is seen when it commits). A row
    that stands there long after its receipt was brought back, by a restore or by the platform, and is archived like any other.
    """
    free = {
        row[0]
        for row in rows(cursor, _FREE, {"tenant": tenant, "instances": [i.candidate.instance for i in intentions]})
    }
    intentions = [i for i in intentions if i.candidate.instance in free]
    columns: dict[str, list[Any]] = {
        "ids": [i.id for i in intentions],
        "instances": [i.candidate.instance for i in intentions],
        "epochs": [i.candidate.epoch for i in intentions],
        "epoch_ats": [i.candidate.epoch_at for i in intentions],
        "key_ids": [i.key_id for i in intentions],
        "keys": [i.key for i in intentions],
        "sizes": [i.size for i in intentions],
        "sha256s": [i.sha256 for i in intentions],
        "plaintexts": [i.plaintext_size for i in intentions],
        "digests": [i.manifest_digest for i in intentions],
        "fingerprints": [i.fingerprint for i in intentions],
        "shareds": [i.shared_digest for i in intentions],
        "tables": [Jsonb(i.rows_by_table) for i in intentions],
        "captureds": [i.captured_at for i in intentions],
    }
    accepted = rows(
        cursor,
        _INTEND,
        {
            **columns,
            "tenant": tenant,
            "approval": approval.id,
            "job": approval.job,
            "run": run,
            "holder": holder,
            "lease": LEASE_SECONDS,
            "profile": profile.generation,
            "days": profile.archive_retention_days,
            "format": manifest_format,
        },
    )
    return {AttemptId(row[0]) for row in accepted}


def _advance(
    cursor: Cursor, statement: sql.SQL, tenant: TenantId, moved: Sequence[tuple[AttemptId, int, ObjectVersion]]
) -> set[AttemptId]:
    done = rows(
        cursor,
        statement,
        {
            "tenant": tenant,
            "lease": LEASE_SECONDS,
            "ids": [m[0] for m in moved],
            "fences": [m[1] for m in moved],
            "versions": [m[2] for m in moved],
        },
    )
    return {AttemptId(row[0]) for row in done}


def mark_stored(
    cursor: Cursor, tenant: TenantId, written: Sequence[tuple[AttemptId, int, ObjectVersion]]
) -> set[AttemptId]:
    """Record the versions that the store gave; those that are still ours by their fence."""
    return _advance(cursor, _STORED, tenant, written)


def mark_verified(
    cursor: Cursor, tenant: TenantId, proven: Sequence[tuple[AttemptId, int, ObjectVersion]]
) -> set[AttemptId]:
    """Record that exactly these versions were read back and proven, by the database's clock."""
    return _advance(cursor, _VERIFIED, tenant, proven)


def retire(
    cursor: Cursor, tenant: TenantId, attempt: AttemptId, fence: int, *, state: AttemptState, code: Code
) -> None:
    """End an attempt off its path; its object, if there is one, stays as evidence and on record."""
    cursor.execute(_RETIRE, {"tenant": tenant, "id": attempt, "fence": fence, "state": state, "code": code})


def release(cursor: Cursor, tenant: TenantId, holder: str) -> None:
    """Let the next run go on with what this one leaves, at once."""
    cursor.execute(_RELEASE, {"tenant": tenant, "holder": holder})


def claim(
    cursor: Cursor,
    tenant: TenantId,
    *,
    holder: str,
    states: Sequence[AttemptState],
    limit: int,
    instance: InstanceId | None = None,
) -> list[Attempt]:
    """Take over attempts that nobody works on any more, never more than `limit` (F6); a back-off binds periodic runs alone."""
    found = rows(
        cursor,
        _CLAIM,
        {
            "tenant": tenant,
            "holder": holder,
            "lease": LEASE_SECONDS,
            "states": list(states),
            "limit": limit,
            "instance": instance,
        },
    )
    return [_attempt(row) for row in found]


def by_id(cursor: Cursor, tenant: TenantId, attempt: AttemptId) -> Attempt:
    """One attempt of this tenant; another tenant's id does not resolve."""
    found = rows(cursor, _BY_ID, {"tenant": tenant, "id": attempt})
    if not found:
        raise Refused(
            Code.ARCHIVE_UNKNOWN, "This tenant has no such archive.", remedy="`retention inspect` lists the archives."
        )
    return _attempt(found[0])


def archives(cursor: Cursor, tenant: TenantId, limit: int) -> list[Attempt]:
    """Attempts that have an object, the newest first."""
    return [_attempt(row) for row in rows(cursor, _ARCHIVES, {"tenant": tenant, "limit": limit})]


def _attempt(row: Sequence[Any]) -> Attempt:
    return Attempt(
        id=AttemptId(row[0]),
        tenant=TenantId(row[16]),
        instance=InstanceId(row[1]),
        epoch=row[2],
        state=AttemptState(row[3]),
        fence=row[4],
        key=ObjectKey(row[5]),
        version=ObjectVersion(row[6]) if row[6] is not None else None,
        size=row[7],
        sha256=bytes(row[8]),
        manifest_digest=bytes(row[9]),
        key_id=row[10],
        profile_generation=row[11],
        archive_retention_days=row[12],
        rows_by_table=row[13],
        verification_is_fresh=row[14],
        intended_at=row[15],
    )
