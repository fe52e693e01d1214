"""A person's yes to a change, and to the numbers of a preflight: rows that only the login itself can add (SPEC G4, W10)."""

import uuid

from psycopg import errors, sql

from retention_pipeline.errors import Code, Refused
from retention_pipeline.governance.approval import ApprovalRequest
from retention_pipeline.model.ids import TenantId
from retention_pipeline.model.people import Approval
from retention_pipeline.model.work import Acknowledged
from retention_pipeline.postgres.session import Cursor, one, rows

_NOW = sql.SQL("SELECT clock_timestamp() + make_interval(secs => %(seconds)s), session_user")
_APPROVE = sql.SQL("""
INSERT INTO retention.approvals (id, tenant_id, job, subject, kind, max_items, expires_at, reason)
VALUES (%(id)s::uuid, %(tenant)s, %(job)s, %(subject)s, %(kind)s, %(max_items)s, %(expires_at)s, %(reason)s)
""")
_PREFLIGHT = """
SELECT id::text, total, eligible, due, blocked_due, missing_epochs, cooling_off FROM retention.preflights
WHERE tenant_id = %(tenant)s """
_PREFLIGHT_BY_ID = sql.SQL(_PREFLIGHT + "AND id = %(id)s::uuid")
_LATEST_PREFLIGHT = sql.SQL(_PREFLIGHT + "ORDER BY at DESC LIMIT 1")
_ACKNOWLEDGE = sql.SQL("""
INSERT INTO retention.acknowledgements (tenant_id, preflight_id, reason)
VALUES (%(tenant)s, %(preflight)s::uuid, %(reason)s)
""")


def approve(cursor: Cursor, tenant: TenantId, request: ApprovalRequest) -> Approval:
    """Say yes, as an operator: the database takes the login's name, not one that somebody typed."""
    cursor.execute(_NOW, {"seconds": request.lasts.total_seconds()})
    expires_at, actor = one(cursor)
    approval = Approval(
        id=str(uuid.uuid4()),
        tenant=tenant,
        job=request.job,
        actor=actor,
        max_items=request.max_items,
        expires_at=expires_at,
    )
    values = {"id": approval.id, "tenant": tenant, "job": request.job, "subject": request.subject}
    bounds = {"kind": request.kind, "max_items": request.max_items, "expires_at": expires_at}
    cursor.execute(_APPROVE, {**values, **bounds, "reason": request.reason})
    return approval


def acknowledge(cursor: Cursor, tenant: TenantId, reason: str, preflight: str | None = None) -> Acknowledged:
    """Accept a preflight's numbers, as an operator who may read and reconcile.

    Args:
        cursor: of the operator's transaction.
        tenant: whose preflight.
        reason: for the record.
        preflight: its id; None means the latest one.

    Raises:
        Refused: `PREFLIGHT_UNKNOWN`.
    """
    statement = _LATEST_PREFLIGHT if preflight is None else _PREFLIGHT_BY_ID
    try:
        found = rows(cursor, statement, {"tenant": tenant, "id": preflight})
    except errors.InvalidTextRepresentation:
        found = []
    if not found:
        raise Refused(
            Code.PREFLIGHT_UNKNOWN,
            "This tenant has no such preflight.",
            remedy="Run `retention reconcile` without --apply, and acknowledge what it counts.",
        )
    identifier, total, eligible, due, blocked_due, missing_epochs, cooling_off = found[0]
    cursor.execute(_ACKNOWLEDGE, {"tenant": tenant, "preflight": identifier, "reason": reason})
    return Acknowledged(
        preflight=identifier,
        total=total,
        eligible=eligible,
        due=due,
        blocked_due=blocked_due,
        missing_epochs=missing_epochs,
        cooling_off=cooling_off,
    )
