"""Which archives a restore is about: one instance's, or those whose sources went within a time (SPEC A17)."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from psycopg import errors, sql

from retention_pipeline.errors import Code, Refused
from retention_pipeline.model.ids import AttemptId, InstanceId, TenantId
from retention_pipeline.postgres.session import Cursor, rows

_CHOOSE = sql.SQL("""
SELECT id::text, instance_id, deleted_at, count(*) OVER () FROM (
  SELECT DISTINCT ON (a.instance_id) a.id, a.instance_id, a.source_deleted_at AS deleted_at
  FROM retention.attempts AS a
  WHERE a.tenant_id = %(tenant)s AND a.state = 'source_deleted' AND a.expiring_at IS NULL
    AND (%(instance)s::text IS NULL OR a.instance_id = %(instance)s::text)
  ORDER BY a.instance_id, a.source_deleted_at DESC, a.id) AS newest
WHERE (%(since)s::timestamptz IS NULL OR deleted_at >= %(since)s::timestamptz)
  AND (%(until)s::timestamptz IS NULL OR deleted_at < %(until)s::timestamptz)
  AND id <> ALL(%(without)s::uuid[])
ORDER BY deleted_at, id LIMIT %(limit)s
""")
_RESTORED = sql.SQL("""
SELECT DISTINCT r.attempt_id::text FROM retention.restorations AS r
JOIN retention.attempts AS a ON a.id = r.attempt_id AND a.tenant_id = r.tenant_id
WHERE r.tenant_id = %(tenant)s AND r.at >= a.source_deleted_at AND a.state = 'source_deleted'
""")


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What is asked for; a choice of nothing is everything of the tenant.

    Args:
        instance: only this one's newest archive.
        since: whose source went at this instant or later.
        until: whose source went before this instant.
    """

    instance: str | None = None
    since: datetime | None = None
    until: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """An archive of the choice: of each instance the newest."""

    archive: AttemptId
    instance: InstanceId


def choose(
    cursor: Cursor, tenant: TenantId, choice: Choice, *, limit: int, without: Sequence[AttemptId] = ()
) -> tuple[list[Chosen], int]:
    """The oldest deletions first; gives at most `limit`, and how many there are in all.

    Raises:
        Refused: `ARCHIVE_UNKNOWN`, when one instance is asked for and has no archive whose source is gone.
    """
    parameters = {
        "tenant": tenant,
        "instance": choice.instance,
        "since": choice.since,
        "until": choice.until,
        "without": list(without),
        "limit": limit,
    }
    try:
        found = rows(cursor, _CHOOSE, parameters)
    except errors.DataError:
        found = []
    if not found and choice.instance is not None:
        raise Refused(
            Code.ARCHIVE_UNKNOWN,
            "No archive of this instance stands whose source is gone.",
            remedy="`retention inspect` lists the tenant's archives.",
        )
    return [Chosen(archive=AttemptId(row[0]), instance=InstanceId(row[1])) for row in found], found[0][
        3
    ] if found else 0


def restored(cursor: Cursor, tenant: TenantId) -> list[AttemptId]:
    """Archives that were restored since their source went: a choice of several leaves them out."""
    return [AttemptId(row[0]) for row in rows(cursor, _RESTORED, {"tenant": tenant})]
