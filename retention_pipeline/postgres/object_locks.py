"""The outbox of object locks, behind the port `LockReminders`: what is told is read when it is told, never carried along (SPEC A11).

Whoever writes a reminder waits for nobody: one is only ever added. Whoever tells the store has a lock of its own for the
archive, reads the newest reminder first and the records after it: what came later leaves a reminder that stays.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from psycopg import sql

from retention_pipeline.errors import Code
from retention_pipeline.model.ids import AttemptId, ObjectKey, ObjectVersion, TenantId
from retention_pipeline.model.object_locks import WantedLock
from retention_pipeline.postgres.session import Cursor, Session, one, rows

RETRY_MINUTES = 1
RETRY_CAP_MINUTES = 60

_WAITING = sql.SQL("""
SELECT attempt_id::text FROM retention.object_lock_tasks
WHERE tenant_id = %(tenant)s::text GROUP BY attempt_id HAVING min(not_before) <= clock_timestamp()
ORDER BY min(id) LIMIT %(limit)s::bigint
""")
_PENDING = sql.SQL(
    "SELECT count(DISTINCT attempt_id) FROM retention.object_lock_tasks WHERE tenant_id = %(tenant)s::text"
)
_TRY = sql.SQL("SELECT pg_try_advisory_xact_lock(retention.object_lock_lock(%(tenant)s::text, %(archive)s::uuid))")
_NEWEST = sql.SQL("""
SELECT max(id), bool_or(cause = 'hold') FROM retention.object_lock_tasks
WHERE tenant_id = %(tenant)s::text AND attempt_id = %(archive)s::uuid
""")
_WANTED = sql.SQL("""
SELECT a.profile_generation, a.object_key, a.object_version, CASE WHEN p.until > clock_timestamp() THEN p.until END,
  a.source_deleted_at IS NOT NULL AND a.archive_retention_days = 0 OR retention.is_held(a.tenant_id, a.instance_id)
FROM retention.attempts AS a
CROSS JOIN LATERAL (SELECT CASE WHEN a.archive_retention_days > 0
  THEN a.source_deleted_at + make_interval(hours => 24 * a.archive_retention_days) END AS until) AS p
WHERE a.tenant_id = %(tenant)s::text AND a.id = %(archive)s::uuid AND a.object_version IS NOT NULL
  AND a.object_deleted_at IS NULL AND a.expiring_at IS NULL
""")
_DONE = sql.SQL("""
DELETE FROM retention.object_lock_tasks
WHERE tenant_id = %(tenant)s::text AND attempt_id = %(archive)s::uuid AND id <= %(newest)s
""")
_FAILED = sql.SQL("""
UPDATE retention.object_lock_tasks SET failures = failures + 1, code = %(code)s::text, not_before = clock_timestamp()
  + make_interval(mins => least(%(cap)s::integer, %(minutes)s::integer * (2 ^ least(failures, 20))::integer))
WHERE tenant_id = %(tenant)s::text AND attempt_id = %(archive)s::uuid AND id <= %(newest)s
""")


@dataclass(slots=True, kw_only=True)
class PostgresTelling:
    """One archive's reminders, inside the transaction that holds its lock."""

    cursor: Cursor
    tenant: TenantId
    archive: AttemptId
    newest: int
    wanted: WantedLock | None

    def done(self) -> None:
        """The store took it: forget every reminder that was there before."""
        self.cursor.execute(_DONE, {"tenant": self.tenant, "archive": self.archive, "newest": self.newest})

    def failed(self, code: Code) -> None:
        """It did not: try again later, longer each time."""
        self.cursor.execute(
            _FAILED,
            {
                "tenant": self.tenant,
                "archive": self.archive,
                "newest": self.newest,
                "code": code,
                "minutes": RETRY_MINUTES,
                "cap": RETRY_CAP_MINUTES,
            },
        )


@dataclass(slots=True, kw_only=True)
class PostgresLockReminders:
    """Keeps the outbox through one session, as the worker."""

    session: Session

    def waiting(self, tenant: TenantId, limit: int) -> list[AttemptId]:
        """Archives that are to be told of now, the oldest reminder first."""
        with self.session.transaction(tenant, read_only=True) as cursor:
            return [AttemptId(row[0]) for row in rows(cursor, _WAITING, {"tenant": tenant, "limit": limit})]

    @contextmanager
    def telling(self, tenant: TenantId, archive: AttemptId) -> Iterator[PostgresTelling | None]:
        """Take one archive's reminders for as long as the store is told; None where there is nothing to take."""
        parameters = {"tenant": tenant, "archive": archive}
        with self.session.transaction(tenant) as cursor:
            cursor.execute(_TRY, parameters)
            if not one(cursor)[0]:
                yield None
                return
            cursor.execute(_NEWEST, parameters)
            newest, lift = one(cursor)
            if newest is None:
                yield None
                return
            yield PostgresTelling(
                cursor=cursor,
                tenant=tenant,
                archive=archive,
                newest=newest,
                wanted=_wanted(cursor, tenant, archive, lift=lift),
            )

    def pending(self, tenant: TenantId) -> int:
        """How many archives the store still has to be told of."""
        with self.session.transaction(tenant, read_only=True) as cursor:
            cursor.execute(_PENDING, {"tenant": tenant})
            return int(one(cursor)[0])


def _wanted(cursor: Cursor, tenant: TenantId, archive: AttemptId, *, lift: bool) -> WantedLock | None:
    found = rows(cursor, _WANTED, {"tenant": tenant, "archive": archive})
    if not found:
        return None
    generation, key, version, until, hold = found[0]
    return WantedLock(
        archive=archive,
        profile_generation=generation,
        key=ObjectKey(key),
        version=ObjectVersion(version),
        until=until,
        hold=hold,
        lift=lift and not hold,
    )
