"""Empties payloads at their own expiry, a page at a time (SPEC E1, E2, E4-E7): the verb `clear` over one sweep.

A definer function finds the page, since row-level security lets no index serve an expression; the worker locks its rows and decides again
on each. A row that was rewritten meanwhile has another expiry, or none, and stays as it is.
"""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from psycopg import sql

from retention_pipeline.catalog.sweep_model import ClearDataset, ClearedTable
from retention_pipeline.errors import Code
from retention_pipeline.model.ids import TenantId
from retention_pipeline.model.sweep import COUNTED, Batch, Place, SweepFound, TableFound, Turn, Verb
from retention_pipeline.postgres import names, payload_rules
from retention_pipeline.postgres.session import Cursor, Session, one, rows
from retention_pipeline.postgres.shape import SourceShape, read_shape
from retention_pipeline.postgres.sweep_paging import by_index
from retention_pipeline.postgres.sweep_records import SweepRecords, look_at_each

_FOUND: Final = (
    "SELECT row_key, expires_at FROM {function}(%(as_of)s::timestamptz, {after}, {behind}, %(limit)s::bigint)"
)
_BATCH: Final = """
WITH found AS MATERIALIZED ({found}),
page AS MATERIALIZED (SELECT {keys} FROM found AS f JOIN {table} AS t ON {named} WHERE {mine} AND {over} FOR UPDATE OF t SKIP LOCKED),
cleared AS (
  UPDATE {table} AS t SET {payload} = NULL, {mirrors}{marker} = retention.payload_expiry(t.{payload})
  FROM page AS p WHERE {same} AND {mine} AND {over} AND {free} RETURNING t.{marker} AS at)
SELECT (SELECT count(*) FROM found), (SELECT count(*) FROM cleared), (SELECT min(at)::text FROM cleared),
  (SELECT max(at)::text FROM cleared), (SELECT {place} FROM found AS f ORDER BY f.expires_at DESC, {parts_desc} LIMIT 1)
"""
_PLACE: Final = "jsonb_build_object('at', f.expires_at::text, 'key', to_jsonb(f.row_key))::text"


@dataclass(slots=True, kw_only=True)
class PostgresClear:
    """Clears through one session, as the worker.

    Args:
        allowed: whether the installation lets every tenant have such payloads (E7).
    """

    session: Session
    dataset: ClearDataset
    allowed: bool = False
    verb: Verb = Verb.CLEARED
    _records: SweepRecords = field(init=False)

    def __post_init__(self) -> None:
        self._records = SweepRecords(dataset=self.dataset.dataset)

    @property
    def tables(self) -> tuple[str, ...]:
        """In the order of the catalog."""
        return tuple(table.name for table in self.dataset.tables)

    def look(self, tenant: TenantId, as_of: datetime) -> SweepFound:
        """Count what has expired and what looks wrong, each table in a transaction of its own (E5)."""

        def look(table: ClearedTable) -> TableFound:
            with self.session.transaction(tenant, read_only=True) as cursor:
                by_index(cursor)
                return self._look(cursor, table, as_of)

        found, unread = look_at_each(self.dataset.tables, look)
        return SweepFound(tenant=tenant, as_of=as_of, tables=found, unread=unread)

    def place(self, tenant: TenantId, table: str) -> Place | None:
        """Where the last batch of this table stopped."""
        with self.session.transaction(tenant, read_only=True) as cursor:
            return self._records.place(cursor, tenant, table)

    def batch(self, turn: Turn, after: Place | None, limit: int) -> Batch:
        """Empty the next payloads that have expired, with their mirrors, and leave the marker."""
        table = self._table(turn.table)
        with self.session.transaction(turn.tenant) as cursor:
            by_index(cursor)
            self._records.require_approved(cursor, turn)
            statement = self._statement(table, read_shape(cursor, [table.table]), after)
            cursor.execute(statement, _values(turn, limit))
            found, cleared, oldest, newest, place = one(cursor)
            if cleared:
                self._records.receipt(cursor, turn, self.verb, cleared, {"oldest": oldest, "newest": newest})
            if place is not None:
                self._records.save(cursor, turn.tenant, turn.table, Place(place))
        return Batch(
            done=cleared,
            passed=found - cleared,
            place=None if place is None else Place(place),
            last=found < limit,
        )

    def rewind(self, tenant: TenantId, table: str) -> None:
        """The next batch begins at the beginning."""
        with self.session.transaction(tenant) as cursor:
            self._records.rewind(cursor, tenant, table)

    def pass_by(self, turn: Turn, after: Place | None, code: Code) -> Place | None:
        """Set the next row aside, and go behind it."""
        table = self._table(turn.table)
        with self.session.transaction(turn.tenant) as cursor:
            by_index(cursor)
            shape = read_shape(cursor, [table.table])
            head = sql.SQL("SELECT ROW({})::text, {} FROM ({}) AS f").format(
                names.comma(_typed(table, shape)), sql.SQL(_PLACE), self._found(table, after)
            )
            found = rows(cursor, head, _values(turn, 1))
            if not found:
                return None
            key, place = found[0]
            self._records.set_aside(cursor, turn, key, code)
            self._records.save(cursor, turn.tenant, turn.table, Place(place))
            return Place(place)

    def _table(self, name: str) -> ClearedTable:
        return next(table for table in self.dataset.tables if table.name == name)

    def _look(self, cursor: Cursor, table: ClearedTable, as_of: datetime) -> TableFound:
        function = payload_rules.function_name("look", self.dataset.dataset, table.name)
        statement = sql.SQL("SELECT * FROM retention.{}(%(as_of)s::timestamptz)").format(sql.Identifier(function))
        cursor.execute(statement, {"as_of": as_of})
        due, overdue, inflow, short_lived, flaws, allowed = one(cursor)
        findings = dict(flaws)
        if short_lived and not (allowed or self.allowed):
            findings["not_allowed"] = short_lived
        return TableFound(
            name=table.name, due=due, overdue_seconds=overdue, inflow=inflow, findings=findings, more=due >= COUNTED
        )

    def _found(self, table: ClearedTable, after: Place | None) -> sql.Composed:
        """The page: keys and instants, in their order."""
        place = None if after is None else sql.Literal(after)
        return sql.SQL(_FOUND).format(
            function=sql.Identifier("retention", payload_rules.function_name("page", self.dataset.dataset, table.name)),
            after=sql.SQL("NULL") if place is None else sql.SQL("({}::jsonb ->> 'at')::timestamptz").format(place),
            behind=sql.SQL("NULL")
            if place is None
            else sql.SQL("ARRAY(SELECT jsonb_array_elements_text({}::jsonb -> 'key'))").format(place),
        )

    def _statement(self, table: ClearedTable, shape: SourceShape, after: Place | None) -> sql.Composed:
        typed = _typed(table, shape)
        payload, tenant = names.column("t", table.payload), names.column("t", table.tenant)
        free = [sql.SQL("NOT {}").format(self._records.waits("t", table.key, table.name))]
        if self.dataset.holds_extend and table.instance is not None:
            free.append(sql.SQL("NOT {}").format(payload_rules.held(names.column("t", table.instance))))
        return sql.SQL(_BATCH).format(
            found=self._found(table, after),
            keys=names.comma(names.column("t", column) for column in table.key),
            table=names.table(table.table),
            named=names.conjunction(
                sql.SQL("{} = {}").format(names.column("t", column), value)
                for column, value in zip(table.key, typed, strict=True)
            ),
            mine=sql.SQL("{} = %(tenant)s::text::{}").format(tenant, sql.SQL(shape.type_of(table.table, table.tenant))),
            over=sql.SQL("retention.payload_expiry({}) < %(as_of)s::timestamptz").format(payload),
            payload=sql.Identifier(table.payload),
            mirrors=sql.SQL("").join(sql.SQL("{} = '{{}}', ").format(sql.Identifier(name)) for name in table.mirrors),
            marker=sql.Identifier(table.marker),
            same=names.conjunction(
                sql.SQL("{} = {}").format(names.column("t", column), names.column("p", column)) for column in table.key
            ),
            free=names.conjunction(free),
            place=sql.SQL(_PLACE),
            parts_desc=names.comma(sql.SQL("{} DESC").format(value) for value in typed),
        )


def _typed(table: ClearedTable, shape: SourceShape) -> list[sql.Composed]:
    """The parts of a found row's key, in their columns' types."""
    return [
        sql.SQL("f.row_key[{}]::{}").format(sql.Literal(i), sql.SQL(shape.type_of(table.table, column)))
        for i, column in enumerate(table.key, 1)
    ]


def _values(turn: Turn, limit: int) -> dict[str, Any]:
    return {"tenant": turn.tenant, "as_of": turn.as_of, "limit": limit}
