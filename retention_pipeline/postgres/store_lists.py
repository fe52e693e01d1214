"""A store's list beside the records, a page at a time and both ways; neither list is ever held whole (SPEC A19, F15)."""

from collections.abc import Sequence
from typing import Any, Final

from psycopg import sql

from retention_pipeline.errors import Code
from retention_pipeline.model.ids import AttemptId, ObjectKey, TenantId
from retention_pipeline.model.ports import StoredVersion
from retention_pipeline.model.scrub import Compared, Place
from retention_pipeline.postgres import oversight
from retention_pipeline.postgres.session import Cursor, one, rows

KEEP_UNKNOWN: Final = 10_000
"""How many unknown objects of a tenant are kept on record; a bucket that is shared with others may have any number."""
_LONGEST: Final = 2_000
"""Bytes of a key with its version that are kept on record; an index takes no more."""

STANDING: Final = """a.tenant_id = %(tenant)s::text AND a.verified_at IS NOT NULL AND a.object_deleted_at IS NULL
  AND a.state IN ('source_deleted', 'superseded') AND a.expiring_at IS NULL AND a.object_version IS NOT NULL"""
"""Archives that must be there: proven once, not in flight, and their end has not begun."""

# A place is what a profile says of it; generations that differ in their period alone are one place, opened by the newest secret.
_PLACES = sql.SQL("""
SELECT max(p.generation), array_agg(p.generation ORDER BY p.generation) FROM retention.profiles AS p
WHERE p.tenant_id = %(tenant)s::text GROUP BY p.provider, p.configuration
HAVING bool_or(p.generation = (SELECT max(q.generation) FROM retention.profiles AS q WHERE q.tenant_id = %(tenant)s::text)
  OR EXISTS (SELECT FROM retention.attempts AS a WHERE a.tenant_id = p.tenant_id AND a.profile_generation = p.generation
    AND a.object_version IS NOT NULL AND a.object_deleted_at IS NULL))
ORDER BY 1
""")
_LISTED = "unnest(%(keys)s::text[], %(versions)s::text[], %(sizes)s::bigint[]) AS n (key, version, size)"
_UNKNOWN = sql.SQL("SELECT key, version, size FROM " + _LISTED + " WHERE NOT retention.is_named(key, version)")
_SEEN = sql.SQL(
    """
UPDATE retention.unknown_objects AS u SET last_run = %(run)s::text, object_size = n.size
FROM """
    + _LISTED
    + """
WHERE u.tenant_id = %(tenant)s::text AND u.profile_generation = ANY(%(generations)s::integer[])
  AND u.object_key = n.key AND u.object_version = n.version
"""
)
_NEW = sql.SQL(
    """
INSERT INTO retention.unknown_objects (tenant_id, profile_generation, object_key, object_version, object_size, last_run)
SELECT %(tenant)s::text, %(newest)s::integer, n.key, n.version, n.size, %(run)s::text FROM """
    + _LISTED
    + """
WHERE NOT EXISTS (SELECT FROM retention.unknown_objects AS u WHERE u.tenant_id = %(tenant)s::text
    AND u.profile_generation = ANY(%(generations)s::integer[]) AND u.object_key = n.key AND u.object_version = n.version)
LIMIT greatest(0, %(keep)s::bigint - (SELECT count(*) FROM retention.unknown_objects WHERE tenant_id = %(tenant)s::text))
ON CONFLICT DO NOTHING RETURNING id::text
"""
)
_THROUGH = sql.SQL(
    """
SELECT max(a.object_key COLLATE "C") FROM """
    + _LISTED
    + """ JOIN retention.attempts AS a ON a.object_key = n.key
WHERE a.tenant_id = %(tenant)s::text AND a.profile_generation = ANY(%(generations)s::integer[])
"""
)
_ABSENT = (
    "SELECT a.id::text, a.object_key FROM retention.attempts AS a WHERE "
    + STANDING
    + """ AND a.profile_generation = ANY(%(generations)s::integer[])
  AND (%(after)s::text IS NULL OR a.object_key COLLATE "C" > %(after)s::text COLLATE "C")"""
)
_BETWEEN = sql.SQL(
    _ABSENT
    + """ AND a.object_key COLLATE "C" <= %(through)s::text COLLATE "C"
  AND (a.object_key, a.object_version) NOT IN (SELECT n.key, n.version FROM """
    + _LISTED
    + ') ORDER BY a.object_key COLLATE "C"'
)
_BEHIND = sql.SQL(_ABSENT + ' ORDER BY a.object_key COLLATE "C" LIMIT %(limit)s::bigint')
_FORGET_GONE = sql.SQL("""
DELETE FROM retention.unknown_objects WHERE tenant_id = %(tenant)s::text
  AND profile_generation = ANY(%(generations)s::integer[]) AND last_run <> %(run)s::text
""")


def places(cursor: Cursor, tenant: TenantId) -> list[Place]:
    """Every store in which the tenant has objects, and the newest."""
    return [Place(newest=row[0], generations=tuple(row[1])) for row in rows(cursor, _PLACES, {"tenant": tenant})]


def compare(
    cursor: Cursor, tenant: TenantId, place: Place, page: Sequence[StoredVersion], after: ObjectKey | None, *, run: str
) -> Compared:
    """What no record names is kept, audited once; what belongs into the page and is not in it is only named."""
    readable = [stored for stored in page if _can_be_kept(stored)]
    at = {"tenant": tenant, "generations": list(place.generations), "newest": place.newest, "run": run}
    listed = {**at, **_columns([(s.key, s.version, s.size) for s in readable]), "after": after}
    unknown = rows(cursor, _UNKNOWN, listed)
    new = _keep(cursor, tenant, {**at, **_columns(unknown)}, run) if unknown else 0
    cursor.execute(_THROUGH, listed)
    through = one(cursor)[0]
    absent = rows(cursor, _BETWEEN, {**listed, "through": through}) if through else []
    return Compared(
        unknown=len(unknown) + len(page) - len(readable),
        new=new,
        absent=tuple(AttemptId(row[0]) for row in absent),
        through=through,
    )


def behind(
    cursor: Cursor, tenant: TenantId, place: Place, after: ObjectKey | None, limit: int
) -> list[tuple[AttemptId, ObjectKey]]:
    """Archives whose keys come after the last one that a store listed."""
    wanted = {"tenant": tenant, "generations": list(place.generations), "after": after, "limit": limit}
    return [(AttemptId(row[0]), ObjectKey(row[1])) for row in rows(cursor, _BEHIND, wanted)]


def forget_gone(cursor: Cursor, tenant: TenantId, place: Place, *, run: str) -> None:
    """Unknown objects that the run did not see are not there any more."""
    cursor.execute(_FORGET_GONE, {"tenant": tenant, "generations": list(place.generations), "run": run})


def _keep(cursor: Cursor, tenant: TenantId, unknown: dict[str, Any], run: str) -> int:
    cursor.execute(_SEEN, unknown)
    new = rows(cursor, _NEW, {**unknown, "keep": KEEP_UNKNOWN})
    if new:
        oversight.audit(
            cursor,
            tenant,
            actor="worker",
            kind="scrub.unknown",
            outcome="integrity",
            run=run,
            subjects=[(row[0], Code.OBJECT_UNKNOWN) for row in new],
        )
    return len(new)


def _columns(listed: Sequence[Sequence[Any]]) -> dict[str, Any]:
    return {
        "keys": [entry[0] for entry in listed],
        "versions": [entry[1] for entry in listed],
        "sizes": [entry[2] for entry in listed],
    }


def _can_be_kept(stored: StoredVersion) -> bool:
    """Whether a table takes a stranger's name; whatever we named ourselves it takes."""
    name = stored.key + stored.version
    try:
        return len(name.encode()) <= _LONGEST and "\0" not in name
    except UnicodeEncodeError:  # a file's name may be any bytes
        return False
