"""Until when archives stay and what keeps them, as one statement that every other question is asked of (SPEC A10, G1).

Instants are compared by the database, and days are counted as 24 hours: no time zone moves a boundary.
"""

from datetime import datetime
from typing import Any

from psycopg import sql

from retention_pipeline.model.archive import AttemptState
from retention_pipeline.model.expiry import OFF_PATH_DAYS, ArchiveLife, DueInventory, ExpiryAcknowledged, Stay
from retention_pipeline.model.ids import AttemptId, InstanceId, TenantId
from retention_pipeline.postgres.session import Cursor, one, rows

FIRST_DUE_DAYS = 365
"""No archive is due before (A10): lets an index find the few that may be."""

LIFE = """
SELECT a.id, a.instance_id, a.epoch, a.state, a.object_key, a.object_version, a.object_size, a.profile_generation, a.intended_at,
  a.archive_retention_days, a.expiring_at IS NOT NULL AS begun, p.on_path, p.due_at,
  a.state = 'source_deleted' AND a.archive_retention_days = 0 AS unlimited,
  EXISTS (SELECT FROM retention.hold_events AS h WHERE h.tenant_id = a.tenant_id AND h.instance_id = a.instance_id
    AND h.action = 'hold' AND NOT EXISTS (SELECT FROM retention.hold_events AS r WHERE r.tenant_id = h.tenant_id
      AND r.instance_id = h.instance_id AND r.matter = h.matter AND r.id > h.id AND r.action = 'release')) AS held,
  EXISTS (SELECT FROM retention.restorations AS r WHERE r.tenant_id = a.tenant_id AND r.instance_id = a.instance_id
    AND r.grace_until > %(as_of)s::timestamptz) AS restored,
  w.code AS waits_for, coalesce(w.not_before > clock_timestamp(), false) AS waits
FROM retention.attempts AS a
CROSS JOIN LATERAL (SELECT a.state IN ('source_deleted', 'expiring') AS on_path,
  CASE WHEN a.state IN ('source_deleted', 'expiring') AND a.archive_retention_days > 0
      THEN a.source_deleted_at + make_interval(hours => 24 * a.archive_retention_days)
    WHEN a.state IN ('superseded', 'conflict', 'abandoned') THEN a.ended_at + make_interval(hours => 24 * %(off_path)s)
  END AS due_at) AS p
LEFT JOIN retention.expiry_waits AS w ON w.attempt_id = a.id AND w.tenant_id = a.tenant_id
WHERE a.tenant_id = %(tenant)s::text AND a.object_version IS NOT NULL AND a.object_deleted_at IS NULL"""
_ENDABLE = " AND a.state IN ('source_deleted', 'expiring', 'superseded', 'conflict', 'abandoned')"
OVER = """ AND (a.state = 'expiring'
    OR a.state = 'source_deleted' AND a.archive_retention_days > 0
      AND a.source_deleted_at <= %(as_of)s::timestamptz - make_interval(hours => 24 * %(first)s)
    OR a.state IN ('superseded', 'conflict', 'abandoned')
      AND a.ended_at <= %(as_of)s::timestamptz - make_interval(hours => 24 * %(off_path)s))"""
FREE = "due_at <= %(as_of)s::timestamptz AND NOT waits AND (begun OR NOT held AND NOT restored)"
"""Whose deletion has begun goes on: its object may be gone already."""

_INVENTORY = sql.SQL(
    "WITH life AS MATERIALIZED ("
    + LIFE
    + _ENDABLE
    + ") SELECT CASE"
    + " WHEN NOT on_path THEN CASE WHEN due_at IS NULL OR due_at > %(as_of)s::timestamptz THEN 'leftover'"
    + f"   WHEN {FREE} THEN 'leftover_due' WHEN waits THEN 'leftover_waits'"
    + "   WHEN held THEN 'leftover_held' ELSE 'leftover' END"
    + f" WHEN unlimited THEN '{Stay.UNLIMITED}'"
    + f" WHEN due_at IS NULL OR due_at > %(as_of)s::timestamptz THEN '{Stay.NOT_YET_DUE}'"
    + f" WHEN {FREE} THEN 'due'"
    + f" WHEN held AND NOT begun THEN '{Stay.LEGAL_HOLD}' WHEN restored AND NOT begun THEN '{Stay.RESTORED}'"
    + f" ELSE '{Stay.WAITING}' END AS stay,"
    + " CASE WHEN waits THEN waits_for END AS waits_for, count(*), min(due_at)"
    + " FROM life GROUP BY 1, 2"
)
_AGE = sql.SQL("SELECT extract(epoch FROM %(as_of)s::timestamptz - %(since)s::timestamptz)::float8")
_LOCK_TASKS = sql.SQL(
    "SELECT count(DISTINCT attempt_id) FROM retention.object_lock_tasks WHERE tenant_id = %(tenant)s::text"
)
_LIVES = sql.SQL(
    "SELECT id::text, instance_id, epoch, state, object_size, CASE WHEN on_path THEN due_at END, unlimited, held, restored,"
    " CASE WHEN waits THEN waits_for END,"
    " EXISTS (SELECT FROM retention.object_lock_tasks AS t WHERE t.attempt_id = life.id)"
    " FROM ("
    + LIFE.replace(" AND a.object_deleted_at IS NULL", "")
    + ") AS life ORDER BY intended_at DESC, id LIMIT %(limit)s::bigint"
)
_ACKNOWLEDGED = sql.SQL(
    "SELECT archives, due FROM retention.expiry_acknowledgements WHERE tenant_id = %(tenant)s::text ORDER BY id DESC LIMIT 1"
)
_ACKNOWLEDGE = sql.SQL("""
INSERT INTO retention.expiry_acknowledgements (tenant_id, archives, due, reason)
VALUES (%(tenant)s, %(archives)s, %(due)s, %(reason)s)
""")
_AMONG_READERS = sql.SQL(
    "SELECT pg_advisory_xact_lock_shared(retention.archive_lock(%(tenant)s::text, %(archive)s::uuid))"
)


def at(tenant: TenantId, as_of: datetime) -> dict[str, Any]:
    """The parameters of every statement here."""
    return {"tenant": tenant, "as_of": as_of, "off_path": OFF_PATH_DAYS, "first": FIRST_DUE_DAYS}


def inventory(cursor: Cursor, tenant: TenantId, as_of: datetime) -> DueInventory:
    """Count a tenant's archives by what keeps them, and change nothing."""
    found = rows(cursor, _INVENTORY, at(tenant, as_of))
    cursor.execute(_LOCK_TASKS, {"tenant": tenant})
    tasks = int(one(cursor)[0])
    since = [row[3] for row in found if row[0] in {"due", "leftover_due", "leftover_waits", Stay.WAITING}]
    age = None
    if since:
        cursor.execute(_AGE, {"as_of": as_of, "since": min(since)})
        age = max(0.0, float(one(cursor)[0]))
    counts: dict[str, int] = {}
    waiting: dict[str, int] = {}
    for stay, code, number, _ in found:
        counts[stay] = counts.get(stay, 0) + number
        if stay in {Stay.WAITING, "leftover_waits"} and code is not None:
            waiting[code] = waiting.get(code, 0) + number
    stays = {str(name): counts[name] for name in Stay if name in counts}
    return DueInventory(
        tenant=tenant,
        as_of=as_of,
        archives=counts.get("due", 0) + sum(stays.values()),
        stays=stays,
        due=counts.get("due", 0),
        leftovers=counts.get("leftover_due", 0),
        leftovers_held=counts.get("leftover_held", 0),
        leftovers_waiting=counts.get("leftover_waits", 0),
        lock_tasks=tasks,
        overdue_seconds=age,
        waiting_for=waiting,
    )


def acknowledged(cursor: Cursor, tenant: TenantId) -> ExpiryAcknowledged:
    """What a person accepted last; nothing where nobody ever did."""
    found = rows(cursor, _ACKNOWLEDGED, {"tenant": tenant})
    return ExpiryAcknowledged(archives=found[0][0] if found else 0, due=found[0][1] if found else 0)


def acknowledge(cursor: Cursor, tenant: TenantId, found: DueInventory, reason: str) -> None:
    """Accept how many archives are due, as an operator."""
    cursor.execute(_ACKNOWLEDGE, {"tenant": tenant, "archives": found.archives, "due": found.free, "reason": reason})


def share(cursor: Cursor, tenant: TenantId, archive: AttemptId) -> None:
    """Be among an archive's readers until the transaction ends: its object does not go before (F20)."""
    cursor.execute(_AMONG_READERS, {"tenant": tenant, "archive": archive})


def lives(cursor: Cursor, tenant: TenantId, as_of: datetime, limit: int) -> list[ArchiveLife]:
    """A tenant's archives, the newest first: until when each stays, and what keeps it."""
    return [
        ArchiveLife(
            archive=AttemptId(row[0]),
            instance=InstanceId(row[1]),
            epoch=row[2],
            state=AttemptState(row[3]),
            bytes=row[4],
            expires_at=row[5],
            kept_by=tuple(
                name
                for name, applies in (
                    (Stay.UNLIMITED, row[6]),
                    (Stay.LEGAL_HOLD, row[7]),
                    (Stay.RESTORED, row[8]),
                    (row[9], row[9] is not None),
                )
                if applies and row[3] != AttemptState.TOMBSTONE
            ),
            lock_pending=row[10],
        )
        for row in rows(cursor, _LIVES, {**at(tenant, as_of), "limit": limit})
    ]
