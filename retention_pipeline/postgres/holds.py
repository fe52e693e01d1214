"""Legal holds on instances and on their archives: events that are only ever added (SPEC G1)."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from psycopg import errors, sql

from retention_pipeline.errors import Code, Refused
from retention_pipeline.model.ids import InstanceId, TenantId
from retention_pipeline.postgres.session import Cursor, one, rows

GENERAL: Final = "general"
"""The matter of a hold that names none."""

_RESOLVE = sql.SQL("SELECT retention.resolve_instance(%(wanted)s)")
_LOCK = sql.SQL("SELECT pg_advisory_xact_lock(retention.instance_lock(%(tenant)s, %(instance)s))")
_ADD = sql.SQL("""
INSERT INTO retention.hold_events (tenant_id, instance_id, matter, action, reason, correlation)
VALUES (%(tenant)s, %(instance)s, %(matter)s, %(action)s, %(reason)s, %(correlation)s)
""")
_ACTIVE = sql.SQL("""
SELECT matter, reason, actor, at FROM (
  SELECT DISTINCT ON (matter) matter, reason, actor, at, action
  FROM retention.hold_events WHERE tenant_id = %(tenant)s AND instance_id = %(instance)s ORDER BY matter, id DESC
) AS latest WHERE action = 'hold' ORDER BY matter
""")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """A hold that stands."""

    instance: InstanceId
    matter: str
    reason: str
    actor: str
    at: datetime


def resolve(cursor: Cursor, wanted: str) -> InstanceId:
    """An instance of this tenant, there or archived, in the database's own spelling.

    A hold on a misspelt id would protect nothing, and nobody would know.

    Raises:
        Refused: `INSTANCE_UNKNOWN`.
    """
    try:
        cursor.execute(_RESOLVE, {"wanted": wanted})
    except errors.DataError:
        raise _unknown_instance() from None
    found = one(cursor)[0]
    if found is None:
        raise _unknown_instance()
    return InstanceId(found)


def place(
    cursor: Cursor, tenant: TenantId, instance: InstanceId, *, matter: str, reason: str, correlation: str
) -> tuple[Hold, ...]:
    """Hold an instance, or its archive where the row is gone, as an operator; gives every hold that stands then.

    Raises:
        Refused: `HOLD_TOO_LATE`, when the archive's deletion has begun.
    """
    _add(cursor, tenant, instance, action="hold", matter=matter, reason=reason, correlation=correlation)
    return active(cursor, tenant, instance)


def release(
    cursor: Cursor, tenant: TenantId, instance: InstanceId, *, matter: str, reason: str, correlation: str
) -> tuple[Hold, ...]:
    """End the hold of one matter, as an operator; gives every hold that still stands.

    Raises:
        Refused: `HOLD_UNKNOWN`, when no hold of this matter stands.
    """
    cursor.execute(_LOCK, {"tenant": tenant, "instance": instance})
    if all(hold.matter != matter for hold in active(cursor, tenant, instance)):
        raise Refused(
            Code.HOLD_UNKNOWN,
            "No hold of this matter stands on the instance; nothing was changed.",
            remedy="Name the matter that the hold was placed for.",
        )
    _add(cursor, tenant, instance, action="release", matter=matter, reason=reason, correlation=correlation)
    return active(cursor, tenant, instance)


def active(cursor: Cursor, tenant: TenantId, instance: InstanceId) -> tuple[Hold, ...]:
    """The holds that stand on an instance, by matter."""
    found = rows(cursor, _ACTIVE, {"tenant": tenant, "instance": instance})
    return tuple(
        Hold(instance=instance, matter=matter, reason=reason, actor=actor, at=at) for matter, reason, actor, at in found
    )


def _add(cursor: Cursor, tenant: TenantId, instance: InstanceId, **event: str) -> None:
    cursor.execute(_ADD, {"tenant": tenant, "instance": instance, **event})


def _unknown_instance() -> Refused:
    return Refused(
        Code.INSTANCE_UNKNOWN,
        "This tenant has no such instance, neither here nor archived.",
        remedy="Check the instance's id and the tenant.",
    )
