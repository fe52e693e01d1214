"""What sweeps keep of themselves: places, receipts, rows that were set aside, and whose turn it is."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from psycopg import sql
from psycopg.types.json import Jsonb

from retention_pipeline.catalog.sweep_model import SweptTable
from retention_pipeline.errors import Code, Refused, RetentionError, UsageFault
from retention_pipeline.model.ids import TenantId
from retention_pipeline.model.sweep import Place, TableFound, Turn, Verb
from retention_pipeline.postgres.session import Cursor, Session, one, rows

_Table = TypeVar("_Table", bound=SweptTable)

BACKOFF_SECONDS = 300
BACKOFF_CAP_SECONDS = 24 * 3600

_PLACE = sql.SQL("""
SELECT place::text FROM retention.sweep_positions
WHERE tenant_id = %(tenant)s AND dataset = %(dataset)s AND table_name = %(table)s
""")
_SAVE = sql.SQL("""
INSERT INTO retention.sweep_positions AS p (tenant_id, dataset, table_name, place)
VALUES (%(tenant)s, %(dataset)s, %(table)s, %(place)s::jsonb)
ON CONFLICT (tenant_id, dataset, table_name) DO UPDATE SET place = EXCLUDED.place, at = clock_timestamp()
""")
_RECEIPT = sql.SQL("""
INSERT INTO retention.sweep_receipts (tenant_id, dataset, table_name, verb, run, approval_id, items, details)
VALUES (%(tenant)s, %(dataset)s, %(table)s, %(verb)s, %(run)s, %(approval)s::uuid, %(items)s, %(details)s)
""")
_SWEEPING = sql.SQL("SELECT retention.sweeping(%(job)s)")
_SET_ASIDE = sql.SQL("""
INSERT INTO retention.sweep_set_asides AS s (tenant_id, dataset, table_name, row_key, code, not_before)
VALUES (%(tenant)s, %(dataset)s, %(table)s, %(key)s, %(code)s, clock_timestamp() + make_interval(secs => %(seconds)s))
ON CONFLICT (tenant_id, dataset, table_name, row_key) DO UPDATE SET code = EXCLUDED.code, failures = s.failures + 1,
  at = clock_timestamp(), not_before = clock_timestamp()
    + make_interval(secs => least(%(cap)s, %(seconds)s * 2.0 ^ least(s.failures, 20)))
""")
_FORGET = sql.SQL("""
DELETE FROM retention.sweep_set_asides WHERE tenant_id = %(tenant)s AND dataset = %(dataset)s AND table_name = %(table)s
  AND not_before <= clock_timestamp()
""")
_LAST_TENANT = sql.SQL("SELECT last_tenant FROM retention.sweep_rounds WHERE dataset = %(dataset)s")
_ROUND = sql.SQL("""
INSERT INTO retention.sweep_rounds (dataset, last_tenant) VALUES (%(dataset)s, %(tenant)s)
ON CONFLICT (dataset) DO UPDATE SET last_tenant = EXCLUDED.last_tenant, at = clock_timestamp()
""")


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRecords:
    """The records of one sweep, in the transaction of what they record."""

    dataset: str

    def place(self, cursor: Cursor, tenant: TenantId, table: str) -> Place | None:
        """Where the last batch of a table stopped."""
        found = rows(cursor, _PLACE, self._of(tenant, table))
        return Place(found[0][0]) if found and found[0][0] is not None else None

    def save(self, cursor: Cursor, tenant: TenantId, table: str, place: Place | None) -> None:
        """The next batch begins behind this place; None is the beginning."""
        cursor.execute(_SAVE, {**self._of(tenant, table), "place": place})

    def receipt(self, cursor: Cursor, turn: Turn, verb: Verb, items: int, details: dict[str, Any]) -> None:
        """What this transaction did; the database adds the audit event, or refuses where no approval covers it (G4, G5)."""
        values = {**self._of(turn.tenant, turn.table), "verb": verb, "run": turn.run, "approval": turn.approval.id}
        cursor.execute(_RECEIPT, {**values, "items": items, "details": Jsonb(details)})

    def require_approved(self, cursor: Cursor, turn: Turn) -> None:
        """The run's approval is good still. Else the row-level policies hide every row, and a pass over nothing would look done (G4, O1).

        Raises:
            Refused: `APPROVAL_INVALID`.
        """
        cursor.execute(_SWEEPING, {"job": turn.approval.job})
        if not one(cursor)[0]:
            raise Refused(
                Code.APPROVAL_INVALID,
                "The run's approval ended, or its actor lost the permission, while it was under way.",
                remedy="Make a new one: `retention approve`, or `--apply` at the command line.",
            )

    def set_aside(
        self,
        cursor: Cursor,
        turn: Turn,
        key: str,
        code: Code,
        *,
        seconds: float = BACKOFF_SECONDS,
        cap: float = BACKOFF_CAP_SECONDS,
    ) -> None:
        """One row failed alone: it waits, longer each time up to a cap."""
        values = {**self._of(turn.tenant, turn.table), "key": key, "code": code, "seconds": seconds, "cap": cap}
        cursor.execute(_SET_ASIDE, values)

    def rewind(self, cursor: Cursor, tenant: TenantId, table: str) -> None:
        """The table was gone through to its end: what had failed once and waits no longer went through, or is not due any more."""
        self.save(cursor, tenant, table, None)
        cursor.execute(_FORGET, self._of(tenant, table))

    def waits(self, alias: str, key: tuple[str, ...], table: str) -> sql.Composed:
        """The condition that a row of a table was set aside and waits still. Parameter: `tenant`."""
        return sql.SQL(
            "EXISTS (SELECT FROM retention.sweep_set_asides AS s WHERE s.tenant_id = %(tenant)s::text AND s.dataset = {}"
            " AND s.table_name = {} AND s.row_key = ROW({})::text AND s.not_before > clock_timestamp())"
        ).format(
            sql.Literal(self.dataset),
            sql.Literal(table),
            sql.SQL(", ").join(sql.Identifier(alias, column) for column in key),
        )

    def _of(self, tenant: TenantId, table: str) -> dict[str, Any]:
        return {"tenant": tenant, "dataset": self.dataset, "table": table}


def look_at_each(
    tables: Iterable[_Table], look: Callable[[_Table], TableFound]
) -> tuple[tuple[TableFound, ...], dict[str, Code]]:
    """Look at tables one by one, so that one that can't be read hides no other (E5); those are given with why.

    Raises:
        RetentionError: where it is no table's doing.
    """
    found: list[TableFound] = []
    unread: dict[str, Code] = {}
    for table in tables:
        try:
            found.append(look(table))
        except UsageFault:
            raise
        except RetentionError as error:
            if error.code is Code.DATABASE_UNAVAILABLE:
                raise
            unread[table.name] = error.code
    return tuple(found), unread


def last_tenant(session: Session, dataset: str) -> TenantId | None:
    """Whom a pass over all tenants handled last (L1)."""
    with session.transaction(None, read_only=True) as cursor:
        found = rows(cursor, _LAST_TENANT, {"dataset": dataset})
    return TenantId(found[0][0]) if found else None


def handled(session: Session, dataset: str, tenant: TenantId) -> None:
    """The next pass begins behind this tenant."""
    with session.transaction(None) as cursor:
        cursor.execute(_ROUND, {"dataset": dataset, "tenant": tenant})
