"""The records of archives' ends, behind the port `Expiries`: a mark under the lock that a hold takes, an end under the
archive's own (SPEC A10, F5, F20).

- `mark` commits before the object is touched: a crash leaves an archive whose deletion has begun, never one that is forgotten.
- `ending` holds both locks through the store's DELETE: a hold waits for it, and is told how it ended.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from psycopg import sql

from retention_pipeline.errors import Code, Integrity
from retention_pipeline.model.archive import AttemptState
from retention_pipeline.model.expiry import (
    DueArchive,
    DueInventory,
    ExpiringArchive,
    ExpiryAcknowledged,
    Tombstone,
)
from retention_pipeline.model.ids import AttemptId, InstanceId, ObjectKey, ObjectVersion, TenantId
from retention_pipeline.model.people import Approval
from retention_pipeline.postgres import archive_lives, oversight
from retention_pipeline.postgres.archive_lives import FREE, LIFE, OVER, at
from retention_pipeline.postgres.session import Cursor, Session, one, rows

BACKOFF_MINUTES = 5
BACKOFF_CAP_MINUTES = 24 * 60
_NO_BACK_OFF = frozenset({Code.ARCHIVE_HELD, Code.ARCHIVE_IN_USE})
"""A decision or a reader keeps these; they may go as soon as that ends."""

_DUE = sql.SQL(
    "SELECT id::text, instance_id, state, object_key, object_version, profile_generation, begun FROM ("
    + LIFE
    + OVER
    + f") AS life WHERE {FREE} ORDER BY begun DESC, due_at, id LIMIT %(limit)s::bigint"
)
_TRY_HOLDS_LOCK = sql.SQL(
    "SELECT pg_try_advisory_xact_lock(retention.instance_lock(%(tenant)s::text, %(instance)s::text))"
)
_HOLDS_LOCK = sql.SQL("SELECT pg_advisory_xact_lock(retention.instance_lock(%(tenant)s::text, %(instance)s::text))")
_ALONE = sql.SQL("SELECT pg_try_advisory_xact_lock(retention.archive_lock(%(tenant)s::text, %(archive)s::uuid))")
_NOW = sql.SQL(
    "SELECT state, begun, held, restored, coalesce(due_at <= %(as_of)s::timestamptz, false) FROM ("
    + LIFE
    + " AND a.id = %(archive)s::uuid) AS life"
)
_MARK = sql.SQL("""
UPDATE retention.attempts SET expiring_at = clock_timestamp(), expiry_approval_id = %(approval)s::uuid,
  expiry_run = %(run)s::text, state = CASE state WHEN 'source_deleted' THEN 'expiring' ELSE state END
WHERE tenant_id = %(tenant)s::text AND id = %(archive)s::uuid AND state = %(state)s::text AND expiring_at IS NULL
""")
_KEEP = sql.SQL("""
UPDATE retention.attempts SET expiring_at = NULL, state = CASE state WHEN 'expiring' THEN 'source_deleted' ELSE state END
WHERE tenant_id = %(tenant)s::text AND id = %(archive)s::uuid AND expiring_at IS NOT NULL AND object_deleted_at IS NULL
""")
_BIND_HOLDS = sql.SQL("""
INSERT INTO retention.hold_bindings (attempt_id, hold_event_id, tenant_id)
SELECT %(archive)s::uuid, latest.id, %(tenant)s::text FROM (
  SELECT DISTINCT ON (matter) id, action FROM retention.hold_events
  WHERE tenant_id = %(tenant)s::text AND instance_id = %(instance)s::text ORDER BY matter, id DESC) AS latest
WHERE latest.action = 'hold' ON CONFLICT DO NOTHING
""")
_BURY = sql.SQL("""
UPDATE retention.attempts SET object_deleted_at = clock_timestamp(), code = coalesce(%(code)s::text, code),
  state = CASE state WHEN 'expiring' THEN 'tombstone' ELSE state END, ended_at = coalesce(ended_at, clock_timestamp())
WHERE tenant_id = %(tenant)s::text AND id = %(archive)s::uuid AND expiring_at IS NOT NULL AND object_deleted_at IS NULL
""")
_WAIT = sql.SQL("""
INSERT INTO retention.expiry_waits AS w (attempt_id, tenant_id, code, not_before)
SELECT n.id, %(tenant)s::text, %(code)s::text, CASE WHEN %(minutes)s::integer = 0 THEN '-infinity'::timestamptz
  ELSE coalesce(least(%(until)s::timestamptz, clock_timestamp() + make_interval(hours => 24 * 30)),
    clock_timestamp() + make_interval(mins => %(minutes)s::integer)) END
FROM unnest(%(archives)s::uuid[]) AS n (id)
ON CONFLICT (attempt_id) DO UPDATE SET code = EXCLUDED.code, failures = w.failures + 1, at = clock_timestamp(),
  not_before = CASE WHEN %(minutes)s::integer = 0 THEN '-infinity'::timestamptz
    ELSE coalesce(least(%(until)s::timestamptz, clock_timestamp() + make_interval(hours => 24 * 30)),
      clock_timestamp() + make_interval(mins => least(%(cap)s::integer, %(minutes)s::integer * (2 ^ least(w.failures, 20))::integer)))
    END
""")
_FORGET_WAIT = sql.SQL(
    "DELETE FROM retention.expiry_waits WHERE tenant_id = %(tenant)s::text AND attempt_id = %(archive)s::uuid"
)
_NEWLY_HELD = sql.SQL(
    "SELECT id::text, instance_id FROM ("
    + LIFE
    + OVER
    + ") AS life WHERE due_at <= %(as_of)s::timestamptz AND held AND NOT begun AND waits_for IS DISTINCT FROM %(code)s::text"
    + " ORDER BY due_at, id LIMIT %(limit)s::bigint"
)


@dataclass(slots=True, kw_only=True)
class PostgresEnding:
    """One archive in our hands, inside the transaction that holds its locks."""

    cursor: Cursor
    archive: DueArchive
    approval: Approval
    run: str
    kept_by: Code | None

    def bury(self, *, vanished: bool) -> Tombstone:
        """The object is gone: leave the tombstone and its audit event in this transaction."""
        code = Code.OBJECT_MISSING if vanished else None
        parameters = {**_named(self.archive), "code": code}
        self.cursor.execute(_BURY, parameters)
        if self.cursor.rowcount != 1:
            raise Integrity(
                Code.LEASE_LOST,
                "The archive changed hands while its object went.",
                remedy="Run again; it is recorded then.",
            )
        self.cursor.execute(_FORGET_WAIT, parameters)
        leftover = self.archive.state not in {AttemptState.SOURCE_DELETED, AttemptState.EXPIRING}
        self._audit(
            "archive.object_removed" if leftover else "archive.expired", "vanished" if vanished else "done", code
        )
        return Tombstone(archive=self.archive.archive, instance=self.archive.instance, leftover=leftover)

    def keep(self, code: Code, *, until: datetime | None = None) -> None:
        """The object is there still: the archive lives on, with every hold that came meanwhile bound to it."""
        self.cursor.execute(_KEEP, _named(self.archive))
        self.cursor.execute(_BIND_HOLDS, _named(self.archive))
        _wait(self.cursor, self.archive.tenant, [self.archive.archive], code, until)
        self._audit("archive.kept", "refused", code)

    def _audit(self, kind: str, outcome: str, code: Code | None) -> None:
        oversight.audit(
            self.cursor,
            self.archive.tenant,
            actor=self.approval.actor,
            kind=kind,
            outcome=outcome,
            run=self.run,
            subjects=[(self.archive.instance, code)],
            details={"archive": self.archive.archive, "approval": self.approval.id},
        )


@dataclass(slots=True, kw_only=True)
class PostgresExpiries:
    """Keeps the records of archives' ends through one session, as the worker."""

    session: Session

    def inventory(self, tenant: TenantId, as_of: datetime) -> DueInventory:
        """Count, in one snapshot, and change nothing."""
        with self.session.transaction(tenant, snapshot=True, read_only=True) as cursor:
            return archive_lives.inventory(cursor, tenant, as_of)

    def acknowledged(self, tenant: TenantId) -> ExpiryAcknowledged:
        """What a person accepted last; nothing where nobody ever did."""
        with self.session.transaction(tenant, read_only=True) as cursor:
            return archive_lives.acknowledged(cursor, tenant)

    def due(self, tenant: TenantId, as_of: datetime, limit: int) -> list[DueArchive]:
        """What may go now, those first whose deletion has begun, then the oldest due."""
        with self.session.transaction(tenant, read_only=True) as cursor:
            found = rows(cursor, _DUE, {**at(tenant, as_of), "limit": limit})
        return [
            DueArchive(
                archive=AttemptId(row[0]),
                tenant=tenant,
                instance=InstanceId(row[1]),
                state=AttemptState(row[2]),
                key=ObjectKey(row[3]),
                version=ObjectVersion(row[4]),
                profile_generation=row[5],
                begun=row[6],
            )
            for row in found
        ]

    def note_held(self, tenant: TenantId, as_of: datetime, *, approval: Approval, run: str, limit: int) -> int:
        """Audit, once for each, that a hold keeps archives whose period is over (F5)."""
        with self.session.transaction(tenant) as cursor:
            code = Code.ARCHIVE_HELD
            found = rows(cursor, _NEWLY_HELD, {**at(tenant, as_of), "code": code, "limit": limit})
            if not found:
                return 0
            _wait(cursor, tenant, [AttemptId(row[0]) for row in found], code)
            oversight.audit(
                cursor,
                tenant,
                actor=approval.actor,
                kind="archive.kept",
                outcome="refused",
                run=run,
                subjects=[(row[1], code) for row in found],
                details={"approval": approval.id},
            )
        return len(found)

    def mark(self, archive: DueArchive, *, as_of: datetime, approval: Approval, run: str) -> ExpiringArchive | Code:
        """Record that its deletion begins, under the lock that a hold takes; a reader keeps it, too."""
        if archive.begun:
            return ExpiringArchive(due=archive)
        with self.session.transaction(archive.tenant) as cursor:
            parameters = {**at(archive.tenant, as_of), **_named(archive)}
            if not _tried(cursor, _TRY_HOLDS_LOCK, parameters) or not _tried(cursor, _ALONE, parameters):
                return Code.ARCHIVE_IN_USE
            found = rows(cursor, _NOW, parameters)
            if not found or found[0][0] != archive.state or found[0][1] or not found[0][4]:
                return Code.ARCHIVE_IN_USE  # another worker was here
            kept_by = Code.ARCHIVE_HELD if found[0][2] else Code.ARCHIVE_IN_USE if found[0][3] else None
            if kept_by is not None:
                _wait(cursor, archive.tenant, [archive.archive], kept_by)
            else:
                cursor.execute(_MARK, {**parameters, "approval": approval.id, "run": run})
            oversight.audit(
                cursor,
                archive.tenant,
                actor=approval.actor,
                kind="archive.kept" if kept_by else "archive.expiring",
                outcome="refused" if kept_by else "done",
                run=run,
                subjects=[(archive.instance, kept_by)],
                details={"archive": archive.archive, "approval": approval.id},
            )
        return kept_by or ExpiringArchive(due=archive)

    @contextmanager
    def ending(
        self, archive: ExpiringArchive, *, as_of: datetime, approval: Approval, run: str
    ) -> Iterator[PostgresEnding | None]:
        """Take the archive, with its locks, for the time of its deletion; None where another worker has it or had it."""
        due = archive.due
        with self.session.transaction(due.tenant) as cursor:
            parameters = {**at(due.tenant, as_of), **_named(due)}
            cursor.execute(_HOLDS_LOCK, parameters)
            if not _tried(cursor, _ALONE, parameters):
                yield None
                return
            found = rows(cursor, _NOW, parameters)
            if not found or not found[0][1]:
                yield None
                return
            kept_by = Code.ARCHIVE_HELD if found[0][2] else None
            yield PostgresEnding(cursor=cursor, archive=due, approval=approval, run=run, kept_by=kept_by)

    def wait(self, archive: DueArchive, code: Code, *, run: str, actor: str) -> None:
        """It could not be ended: it waits, longer each time, audited."""
        with self.session.transaction(archive.tenant) as cursor:
            _wait(cursor, archive.tenant, [archive.archive], code)
            oversight.audit(
                cursor,
                archive.tenant,
                actor=actor,
                kind="archive.set_aside",
                outcome="refused",
                run=run,
                subjects=[(archive.instance, code)],
                details={"archive": archive.archive},
            )


def _named(archive: DueArchive) -> dict[str, Any]:
    return {
        "tenant": archive.tenant,
        "archive": archive.archive,
        "instance": archive.instance,
        "state": archive.state,
    }


def _tried(cursor: Cursor, lock: sql.SQL, parameters: dict[str, Any]) -> bool:
    cursor.execute(lock, parameters)
    return bool(one(cursor)[0])


def _wait(
    cursor: Cursor, tenant: TenantId, archives: list[AttemptId], code: Code, until: datetime | None = None
) -> None:
    cursor.execute(
        _WAIT,
        {
            "tenant": tenant,
            "archives": archives,
            "code": code,
            "until": until,
            "minutes": 0 if code in _NO_BACK_OFF else BACKOFF_MINUTES,
            "cap": BACKOFF_CAP_MINUTES,
        },
    )
