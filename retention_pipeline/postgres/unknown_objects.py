"""The records of objects that no record names, behind the port `UnknownObjects` (SPEC A19, F15).

`begin` commits before the object is touched, and the database itself refuses one that is named, too young, or not approved.
"""

from dataclasses import dataclass
from typing import Any, Final

from psycopg import sql

from retention_pipeline.errors import Code, Refused
from retention_pipeline.model.ids import ObjectKey, ObjectVersion, TenantId
from retention_pipeline.model.people import Approval
from retention_pipeline.model.scrub import UNKNOWN_DAYS, UnknownInventory, UnknownObject
from retention_pipeline.postgres import oversight
from retention_pipeline.postgres.session import Cursor, Session, one, rows

_OLD: Final = "first_seen <= clock_timestamp() - make_interval(hours => 24 * %(days)s)"
_COUNT = sql.SQL(
    "SELECT count(*), count(*) FILTER (WHERE "
    + _OLD
    + ") FROM retention.unknown_objects WHERE tenant_id = %(tenant)s::text"
)
# An attempt that was given up, and whose object landed late, names it without its version: it was never the only copy.
_REMOVABLE = sql.SQL(
    """
SELECT u.id::text, u.profile_generation, u.object_key, u.object_version, EXISTS (SELECT FROM retention.attempts AS a
  WHERE a.tenant_id = u.tenant_id AND a.object_key = u.object_key)
FROM retention.unknown_objects AS u WHERE u.tenant_id = %(tenant)s::text AND u."""
    + _OLD
    + " ORDER BY u.code IS NOT NULL, u.first_seen, u.id LIMIT %(limit)s::bigint"
)
_BEGIN = sql.SQL("""
UPDATE retention.unknown_objects SET removing_at = clock_timestamp(), approval_id = %(approval)s::uuid, removal_run = %(run)s::text
WHERE tenant_id = %(tenant)s::text AND id = %(id)s::uuid
""")
_GONE = sql.SQL("DELETE FROM retention.unknown_objects WHERE tenant_id = %(tenant)s::text AND id = %(id)s::uuid")
_STAYS = sql.SQL("""
UPDATE retention.unknown_objects SET code = %(code)s::text WHERE tenant_id = %(tenant)s::text AND id = %(id)s::uuid
""")


@dataclass(slots=True, kw_only=True)
class PostgresUnknownObjects:
    """Keeps the records through one session, as the worker."""

    session: Session

    def inventory(self, tenant: TenantId) -> UnknownInventory:
        """Count them."""
        with self.session.transaction(tenant, read_only=True) as cursor:
            cursor.execute(_COUNT, {"tenant": tenant, "days": UNKNOWN_DAYS})
            every, removable = one(cursor)
        return UnknownInventory(all=every, removable=removable)

    def removable(self, tenant: TenantId, limit: int) -> list[UnknownObject]:
        """Those that were seen first a day ago or earlier, the oldest first, and last those that could not be removed before."""
        with self.session.transaction(tenant, read_only=True) as cursor:
            found = rows(cursor, _REMOVABLE, {"tenant": tenant, "days": UNKNOWN_DAYS, "limit": limit})
        return [
            UnknownObject(
                id=row[0],
                profile_generation=row[1],
                key=ObjectKey(row[2]),
                version=ObjectVersion(row[3]),
                was_tried=row[4],
            )
            for row in found
        ]

    def begin(self, tenant: TenantId, found: UnknownObject, *, approval: Approval, run: str) -> None:
        """Record that its deletion begins, audited; the database refuses one that a record names, or that is too young."""
        with self.session.transaction(tenant) as cursor:
            cursor.execute(_BEGIN, {**_named(tenant, found), "approval": approval.id, "run": run})
            if cursor.rowcount != 1:
                raise Refused(
                    Code.OBJECT_NAMED, "It is not on record any more.", remedy="Nothing was removed; scrub again."
                )
            _audit(cursor, tenant, found, "scrub.removing", "done", None, approval, run)

    def removed(self, tenant: TenantId, found: UnknownObject, *, approval: Approval, run: str) -> None:
        """It is gone: forget it, audited."""
        with self.session.transaction(tenant) as cursor:
            cursor.execute(_GONE, _named(tenant, found))
            _audit(cursor, tenant, found, "scrub.removed", "done", None, approval, run)

    def stays(self, tenant: TenantId, found: UnknownObject, code: Code, *, approval: Approval, run: str) -> None:
        """It could not be removed, audited."""
        with self.session.transaction(tenant) as cursor:
            cursor.execute(_STAYS, {**_named(tenant, found), "code": code})
            _audit(cursor, tenant, found, "scrub.kept", "refused", code, approval, run)


def _named(tenant: TenantId, found: UnknownObject) -> dict[str, Any]:
    return {"tenant": tenant, "id": found.id}


def _audit(  # noqa: PLR0917  one line of one event
    cursor: Cursor,
    tenant: TenantId,
    found: UnknownObject,
    kind: str,
    outcome: str,
    code: Code | None,
    approval: Approval,
    run: str,
) -> None:
    oversight.audit(
        cursor,
        tenant,
        actor=approval.actor,
        kind=kind,
        outcome=outcome,
        run=run,
        subjects=[(found.id, code)],
        details={"approval": approval.id},
    )
