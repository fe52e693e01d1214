"""Is one tenant's work getting on: attempts, leases, unsealed events, keys (SPEC O3)?"""

from collections.abc import Iterator
from typing import Final

from psycopg import sql

from retention_pipeline.errors import Code
from retention_pipeline.model.diagnosis import Ailment, Diagnosis, warning
from retention_pipeline.model.ids import TenantId
from retention_pipeline.postgres.session import Cursor, one, rows

STUCK_MINUTES: Final = 60
ABANDONED_HOURS: Final = 24
UNSEALED_MINUTES: Final = 30
UNCOPIED_MINUTES: Final = 60
UNFINISHED_MINUTES: Final = 60
"""After these, somebody should look; a run, a lease, a sealing, a copy and a destruction are far shorter."""

_STUCK = sql.SQL("""
SELECT count(*), max(clock_timestamp() - intended_at) FROM retention.attempts
WHERE tenant_id = %(tenant)s AND state = 'intended' AND leased_until < clock_timestamp()
  AND intended_at < clock_timestamp() - make_interval(mins => %(minutes)s)
""")
_ABANDONED = sql.SQL("""
SELECT job, extract(epoch FROM clock_timestamp() - expires_at) FROM retention.leases
WHERE tenant_id = %(tenant)s AND isfinite(expires_at)
  AND expires_at < clock_timestamp() - make_interval(hours => %(hours)s) ORDER BY expires_at
""")
_HAS_SEALS = sql.SQL("SELECT to_regprocedure('retention.audit_backlog()') IS NOT NULL")
_UNSEALED = sql.SQL("""
SELECT count(*), coalesce(sum(unsealed), 0) FROM retention.audit_backlog()
WHERE oldest_seconds > 60.0 * %(minutes)s AND (%(tenant)s::text IS NULL OR tenant_id = %(tenant)s)
""")
_KEYS = sql.SQL(
    "SELECT key_id FROM retention.tenant_keys WHERE tenant_id = %(tenant)s AND destroyed_at IS NULL ORDER BY generation"
)
_COPIES = sql.SQL("""
SELECT (SELECT count(*) FROM retention.key_copies_due AS d JOIN retention.tenant_keys AS k ON k.key_id = d.key_id
    WHERE d.tenant_id = %(tenant)s AND k.wrapped_at < clock_timestamp() - make_interval(mins => %(minutes)s)),
  (SELECT count(*) FROM retention.key_copies_stale AS s JOIN retention.key_copies AS c ON c.id = s.id
    JOIN retention.tenant_keys AS k ON k.key_id = c.key_id WHERE s.tenant_id = %(tenant)s AND s.left_behind_at IS NULL
    AND coalesce(k.destroyed_at, k.wrapped_at) < clock_timestamp() - make_interval(mins => %(minutes)s))
""")
_UNFINISHED = sql.SQL("""
SELECT EXISTS (SELECT FROM retention.key_destructions AS d JOIN retention.tenant_keys AS k
  ON k.tenant_id = d.tenant_id AND k.generation <= d.through_generation AND k.destroyed_at IS NULL
  WHERE d.tenant_id = %(tenant)s AND d.at < clock_timestamp() - make_interval(mins => %(minutes)s))
""")


def attempts(cursor: Cursor, tenant: TenantId) -> Iterator[Diagnosis]:
    """Attempts whose object may or may not be there, which no run has looked after for long."""
    cursor.execute(_STUCK, {"tenant": tenant, "minutes": STUCK_MINUTES})
    count, age = one(cursor)
    if count:
        hours = int(age.total_seconds() // 3600)
        sentence = f"{count} attempt(s) have been `intended` and in nobody's hands for up to {hours} hour(s)."
        remedy = "Run `retention reconcile --apply`: it looks what became of them; if they stay, look at the store."
        yield warning(Ailment.ATTEMPTS_STUCK, sentence, remedy)


def leases(cursor: Cursor, tenant: TenantId) -> Iterator[Diagnosis]:
    """Leases that a run never gave back, with no run since."""
    for job, seconds in rows(cursor, _ABANDONED, {"tenant": tenant, "hours": ABANDONED_HOURS}):
        sentence = f"The last run of {job} was killed, and none has followed for {int(seconds // 3600)} hours."
        yield warning(Ailment.LEASE_ABANDONED, sentence, f"Run {job} again, and see that its schedule is switched on.")


def unsealed(cursor: Cursor, tenant: TenantId | None) -> Iterator[Diagnosis]:
    """Audit events that should have been sealed by now, of one tenant or of all; as the worker."""
    cursor.execute(_HAS_SEALS)
    if not one(cursor)[0]:
        return
    cursor.execute(_UNSEALED, {"tenant": tenant, "minutes": UNSEALED_MINUTES})
    chains, events = one(cursor)
    if chains:
        sentence = f"{events} audit event(s) of {chains} chain(s) wait for their seal; the oldest longer than"
        remedy = "Run `retention audit seal`, and see that its schedule is switched on."
        yield warning(Code.AUDIT_SEALING_BEHIND, f"{sentence} {UNSEALED_MINUTES} minutes.", remedy)


def keys(cursor: Cursor, tenant: TenantId) -> Iterator[Diagnosis]:
    """Copies of wrapped keys beside the archives, and destructions that were begun; as the worker."""
    cursor.execute(_COPIES, {"tenant": tenant, "minutes": UNCOPIED_MINUTES})
    missing, left = one(cursor)
    if missing or left:
        sentence = f"{missing} wrapped key(s) lack a copy beside the archives, and {left} old copies were not removed."
        remedy = "Run `retention keys export`, and mend what it names."
        yield warning(Ailment.KEY_UNCOPIED, sentence, remedy)
    cursor.execute(_UNFINISHED, {"tenant": tenant, "minutes": UNFINISHED_MINUTES})
    if one(cursor)[0]:
        sentence = "The destruction of this tenant's keys was begun and is not finished; nothing new is archived."
        yield warning(Ailment.KEY_DESTRUCTION_UNFINISHED, sentence, "Run `retention keys destroy … --apply` again.")


def key_ids(cursor: Cursor, tenant: TenantId) -> tuple[str, ...]:
    """The ids of a tenant's keys, oldest first; never shown."""
    return tuple(row[0] for row in rows(cursor, _KEYS, {"tenant": tenant}))
