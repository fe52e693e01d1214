"""Leases, approvals, preflights, set-asides, audit events and outcomes: the records around the work."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from psycopg import errors, sql
from psycopg.types.json import Jsonb

from retention_pipeline.errors import Code, Refused
from retention_pipeline.model.archive import Rejected
from retention_pipeline.model.ids import InstanceId, TenantId
from retention_pipeline.model.inventory import Inventory
from retention_pipeline.model.outcome import RunReport
from retention_pipeline.model.people import AnyJob, Approval
from retention_pipeline.model.work import Acknowledged
from retention_pipeline.postgres.session import Cursor, one, rows

BACKOFF_MINUTES = 5
BACKOFF_CAP_MINUTES = 24 * 60

_TAKE_LEASE = sql.SQL("""
INSERT INTO retention.leases AS l (tenant_id, job, holder, fence, expires_at)
VALUES (%(tenant)s, %(job)s, %(holder)s, 1, clock_timestamp() + make_interval(secs => %(seconds)s))
ON CONFLICT (tenant_id, job) DO UPDATE
SET holder = EXCLUDED.holder, fence = l.fence + 1, expires_at = EXCLUDED.expires_at
WHERE l.expires_at < clock_timestamp()
RETURNING fence
""")
_KEEP_LEASE = sql.SQL("""
UPDATE retention.leases SET expires_at = clock_timestamp() + make_interval(secs => %(seconds)s)
WHERE tenant_id = %(tenant)s AND job = %(job)s AND holder = %(holder)s AND fence = %(fence)s
""")
_DROP_LEASE = sql.SQL("""
UPDATE retention.leases SET expires_at = '-infinity'
WHERE tenant_id = %(tenant)s AND job = %(job)s AND holder = %(holder)s AND fence = %(fence)s
""")


def take_lease(cursor: Cursor, tenant: TenantId, job: str, holder: str, seconds: float) -> int | None:
    """The fencing token of a fresh lease, or None while another holder's lasts (G7)."""
    found = rows(cursor, _TAKE_LEASE, {"tenant": tenant, "job": job, "holder": holder, "seconds": seconds})
    return int(found[0][0]) if found else None


def keep_lease(cursor: Cursor, tenant: TenantId, job: str, holder: str, fence: int, seconds: float) -> bool:
    """Extend our lease; False when somebody else has it."""
    cursor.execute(_KEEP_LEASE, {"tenant": tenant, "job": job, "holder": holder, "fence": fence, "seconds": seconds})
    return cursor.rowcount == 1


def drop_lease(cursor: Cursor, tenant: TenantId, job: str, holder: str, fence: int) -> None:
    """End our lease now."""
    cursor.execute(_DROP_LEASE, {"tenant": tenant, "job": job, "holder": holder, "fence": fence})


_APPROVAL = """
SELECT a.id::text, a.actor, a.max_items, a.expires_at, a.kind = 'single_use', a.job, a.subject,
  a.expires_at > clock_timestamp(),
  retention.principal_permitted(a.actor, retention.approval_permission(a.job))
FROM retention.approvals AS a WHERE a.tenant_id = %(tenant)s AND """
_APPROVAL_BY_ID = sql.SQL(_APPROVAL + "a.id = %(id)s::uuid")
_STANDING_APPROVAL = sql.SQL(
    _APPROVAL
    + "a.job = %(job)s AND a.kind = 'standing' AND a.expires_at > clock_timestamp()"
    + " AND retention.principal_permitted(a.actor, retention.approval_permission(a.job)) ORDER BY a.at DESC LIMIT 1"
)
_USE_APPROVAL = sql.SQL("""
INSERT INTO retention.approval_uses (approval_id, run, tenant_id, single_use)
VALUES (%(id)s::uuid, %(run)s, %(tenant)s, %(single)s) ON CONFLICT (approval_id, run) DO NOTHING
""")


def use_approval(
    cursor: Cursor, tenant: TenantId, approval_id: str, job: AnyJob, run: str, subject: str | None
) -> Approval:
    """Take an approval for one run (G4): the same tenant, job and subject, not expired, and not used by another run.

    Raises:
        Refused: `APPROVAL_INVALID`, saying which of these it is.
    """
    try:
        found = rows(cursor, _APPROVAL_BY_ID, {"tenant": tenant, "id": approval_id})
    except errors.InvalidTextRepresentation:
        found = []
    if not found:
        raise _invalid("This tenant has no such approval.")
    _, actor, max_items, expires_at, single, approved_job, approved_subject, lasts, permitted = found[0]
    if approved_job != job:
        raise _invalid(f"The approval is for {approved_job}, not for {job}.")
    if approved_subject is not None and approved_subject != subject:
        raise _invalid("The approval is for another instance or archive.")
    if not lasts:
        raise _invalid("The approval has expired.")
    if not permitted:
        raise _invalid("Who approved no longer has the permission.")
    try:
        cursor.execute(_USE_APPROVAL, {"id": approval_id, "run": run, "tenant": tenant, "single": single})
    except errors.UniqueViolation:
        raise _invalid("The approval was used by another run.") from None
    return Approval(id=approval_id, tenant=tenant, job=job, actor=actor, max_items=max_items, expires_at=expires_at)


def standing_approval(cursor: Cursor, tenant: TenantId, job: AnyJob) -> str | None:
    """The id of the newest standing approval that is good now."""
    found = rows(cursor, _STANDING_APPROVAL, {"tenant": tenant, "job": job})
    return str(found[0][0]) if found else None


def _invalid(what: str) -> Refused:
    return Refused(
        Code.APPROVAL_INVALID, what, remedy="Make a new one: `retention approve`, or `--apply` at the command line."
    )


_PREFLIGHT = sql.SQL("""
INSERT INTO retention.preflights
  (tenant_id, as_of, run, total, eligible, due, blocked_due, missing_epochs, cooling_off, dispositions)
VALUES (%(tenant)s, %(as_of)s, %(run)s, %(total)s, %(eligible)s, %(due)s, %(blocked_due)s, %(missing_epochs)s,
  %(cooling_off)s, %(dispositions)s)
RETURNING id::text
""")
_ACKNOWLEDGED = sql.SQL("""
SELECT p.id::text, p.total, p.eligible, p.due, p.blocked_due, p.missing_epochs, p.cooling_off
FROM retention.acknowledgements AS a JOIN retention.preflights AS p ON p.id = a.preflight_id AND p.tenant_id = a.tenant_id
WHERE a.tenant_id = %(tenant)s ORDER BY a.id DESC LIMIT 1
""")


def record_preflight(cursor: Cursor, inventory: Inventory, run: str) -> str:
    """Keep a preflight's numbers, so that a person can acknowledge exactly them."""
    cursor.execute(
        _PREFLIGHT,
        {
            "tenant": inventory.tenant,
            "as_of": inventory.as_of,
            "run": run,
            "total": inventory.total,
            "eligible": inventory.eligible,
            "due": inventory.due,
            "blocked_due": inventory.blocked_due,
            "missing_epochs": inventory.missing_epochs,
            "cooling_off": inventory.cooling_off,
            "dispositions": Jsonb(inventory.dispositions),
        },
    )
    return str(one(cursor)[0])


def acknowledged(cursor: Cursor, tenant: TenantId) -> Acknowledged | None:
    """The preflight that was acknowledged last, or None."""
    found = rows(cursor, _ACKNOWLEDGED, {"tenant": tenant})
    if not found:
        return None
    preflight, total, eligible, due, blocked_due, missing, cooling_off = found[0]
    return Acknowledged(
        preflight=preflight,
        total=total,
        eligible=eligible,
        due=due,
        blocked_due=blocked_due,
        missing_epochs=missing,
        cooling_off=cooling_off,
    )


_SET_ASIDE = sql.SQL("""
INSERT INTO retention.set_asides AS s (tenant_id, instance_id, code, not_before)
SELECT %(tenant)s::text, n.instance, n.code, clock_timestamp() + make_interval(mins => %(minutes)s)
FROM unnest(%(instances)s::text[], %(codes)s::text[]) AS n (instance, code)
ON CONFLICT (tenant_id, instance_id) DO UPDATE SET code = EXCLUDED.code, failures = s.failures + 1, at = clock_timestamp(),
  not_before = clock_timestamp()
    + make_interval(mins => least(%(cap)s, %(minutes)s * (2 ^ least(s.failures, 20))::integer))
""")
_CLEAR = sql.SQL(
    "DELETE FROM retention.set_asides WHERE tenant_id = %(tenant)s::text AND instance_id = ANY(%(instances)s::text[])"
)


def set_aside(cursor: Cursor, tenant: TenantId, rejected: Sequence[Rejected]) -> None:
    """Keep instances that failed away from the head of the next run, longer each time (W10, F7)."""
    one_each = {r.instance: r for r in rejected}
    cursor.execute(
        _SET_ASIDE,
        {
            "tenant": tenant,
            "instances": list(one_each),
            "codes": [r.code for r in one_each.values()],
            "minutes": BACKOFF_MINUTES,
            "cap": BACKOFF_CAP_MINUTES,
        },
    )


def clear_set_aside(cursor: Cursor, tenant: TenantId, instances: Sequence[InstanceId]) -> None:
    """Forget the failures of instances that went through."""
    cursor.execute(_CLEAR, {"tenant": tenant, "instances": list(instances)})


_AUDIT = sql.SQL("""
INSERT INTO retention.audit_events (tenant_id, actor, kind, subject, outcome, code, run, details)
SELECT %(tenant)s::text, %(actor)s::text, %(kind)s::text, n.subject, %(outcome)s::text, n.code, %(run)s::text, %(details)s::jsonb
FROM unnest(%(subjects)s::text[], %(codes)s::text[]) AS n (subject, code)
""")


def audit(
    cursor: Cursor,
    tenant: TenantId,
    *,
    actor: str,
    kind: str,
    outcome: str,
    run: str,
    subjects: Sequence[tuple[str, str | None]],
    details: dict[str, Any] | None = None,
) -> None:
    """Append one event for each subject and its code, in the transaction of what it records (G5)."""
    cursor.execute(
        _AUDIT,
        {
            "tenant": tenant,
            "actor": actor,
            "kind": kind,
            "outcome": outcome,
            "run": run,
            "subjects": [s for s, _ in subjects],
            "codes": [c for _, c in subjects],
            "details": Jsonb(details or {}),
        },
    )


_OUTCOME = sql.SQL("""
INSERT INTO retention.run_outcomes (tenant_id, job, run, outcome, reason, counts, started_at)
VALUES (%(tenant)s, %(job)s, %(run)s, %(outcome)s, %(reason)s, %(counts)s, %(started)s)
""")


def record_outcome(cursor: Cursor, report: RunReport, started: datetime) -> None:
    """Keep how a run ended, so that the next one knows whether the backlog grows (O1)."""
    counts = {
        "selected": report.counts.selected,
        "archived": report.counts.archived,
        "verified": report.counts.verified,
        "deleted": report.counts.deleted,
        "expired": report.counts.expired,
        "removed": report.counts.removed,
        "cleared": report.counts.cleared,
        "purged": report.counts.purged,
        "shelved": report.counts.shelved,
        "failures": report.counts.failures,
        "backlog": report.backlog,
    }
    cursor.execute(
        _OUTCOME,
        {
            "tenant": report.tenant,
            "job": report.job,
            "run": report.run,
            "outcome": report.outcome,
            "reason": report.reason,
            "counts": Jsonb(counts),
            "started": started,
        },
    )


_CANARY_PROVEN = sql.SQL("""
SELECT EXISTS (SELECT FROM retention.canary_events WHERE tenant_id = %(tenant)s AND identical)
""")


def canary_proven(cursor: Cursor, tenant: TenantId) -> bool:
    """Whether an instance of this tenant was archived, restored and compared identical (D3)."""
    cursor.execute(_CANARY_PROVEN, {"tenant": tenant})
    return bool(one(cursor)[0])
