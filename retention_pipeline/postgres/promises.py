"""Reads what standing approvals promise, over all tenants, by a definer function that gives ids, codes and instants (SPEC O2)."""

from datetime import datetime

from psycopg import sql

from retention_pipeline.model.ids import TenantId
from retention_pipeline.model.promises import Promise
from retention_pipeline.postgres.session import Session, one, rows

_NOW = sql.SQL("SELECT coalesce(%(as_of)s::timestamptz, clock_timestamp())")
_PROMISES = sql.SQL(
    "SELECT tenant_id, job, promised_at, until, did_at, tried_at, outcome, reason FROM retention.promised_runs(%(as_of)s)"
)


def promised(session: Session, as_of: datetime | None = None) -> tuple[datetime, tuple[Promise, ...]]:
    """Every promise that lasts, or that ended lately; with the instant as of which it was asked, the database's now by default."""
    with session.transaction(None, read_only=True) as cursor:
        cursor.execute(_NOW, {"as_of": as_of})
        now = one(cursor)[0]
        found = rows(cursor, _PROMISES, {"as_of": now})
    return now, tuple(
        Promise(
            tenant=TenantId(tenant),
            job=job,
            since=since,
            until=until,
            did_at=did_at,
            tried_at=tried_at,
            outcome=outcome,
            reason=reason,
        )
        for tenant, job, since, until, did_at, tried_at, outcome, reason in found
    )
