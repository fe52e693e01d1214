"""How sure one may be of a tenant's archives, in one statement that a reader may ask, too (SPEC A19)."""

from psycopg import sql

from retention_pipeline.model.ids import TenantId
from retention_pipeline.model.scrub import Integrity, Verdict
from retention_pipeline.postgres.archive_lives import LIFE, at
from retention_pipeline.postgres.session import Cursor, one, rows

DAYS = 35
"""An archive that was proven within these counts as covered: a slice of thirty a day, and some days to spare."""

_NOW = sql.SQL("SELECT clock_timestamp()")
_NUMBERS = sql.SQL(
    "WITH life AS MATERIALIZED ("
    + LIFE
    + """ AND a.state IN ('source_deleted', 'superseded') AND a.verified_at IS NOT NULL)
SELECT count(*), coalesce(sum(l.object_size), 0)::bigint,
  count(*) FILTER (WHERE NOT gone.keys AND p.proven_at > %(as_of)s::timestamptz - make_interval(hours => 24 * %(days)s)),
  min(p.proven_at) FILTER (WHERE NOT gone.keys),
  min(l.due_at) FILTER (WHERE l.on_path), count(*) FILTER (WHERE l.held), count(*) FILTER (WHERE l.unlimited),
  count(*) FILTER (WHERE gone.keys)
FROM life AS l
JOIN retention.attempts AS a ON a.id = l.id
LEFT JOIN retention.scrub_results AS s ON s.attempt_id = l.id
CROSS JOIN LATERAL (SELECT greatest(s.proven_at, a.verified_at) AS proven_at) AS p
CROSS JOIN LATERAL (SELECT coalesce(s.verdict = %(destroyed)s::text, false) AS keys) AS gone"""
)
_FINDINGS = sql.SQL("""
SELECT s.verdict, count(*) FROM retention.scrub_results AS s
JOIN retention.attempts AS a ON a.id = s.attempt_id AND a.object_deleted_at IS NULL AND a.expiring_at IS NULL
WHERE s.tenant_id = %(tenant)s::text AND s.verdict NOT IN ('intact', 'keys_destroyed') GROUP BY 1 ORDER BY 1
""")
_UNKNOWN = sql.SQL("SELECT count(*) FROM retention.unknown_objects WHERE tenant_id = %(tenant)s::text")


def report(cursor: Cursor, tenant: TenantId) -> Integrity:
    """Count, and change nothing; for the worker, and for whoever may read."""
    cursor.execute(_NOW)
    wanted = {**at(tenant, one(cursor)[0]), "days": DAYS, "destroyed": Verdict.KEYS_DESTROYED}
    cursor.execute(_NUMBERS, wanted)
    archives, size, covered, oldest, expiry, held, unlimited, destroyed = one(cursor)
    findings = {str(row[0]): int(row[1]) for row in rows(cursor, _FINDINGS, wanted)}
    cursor.execute(_UNKNOWN, wanted)
    return Integrity(
        archives=archives,
        bytes=size,
        covered=covered,
        days=DAYS,
        oldest_proof=oldest,
        next_expiry=expiry,
        held=held,
        unlimited=unlimited,
        findings=findings,
        unknown=int(one(cursor)[0]),
        keys_destroyed=destroyed,
    )
