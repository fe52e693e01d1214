"""Deletes rows that are older than their days, a page at a time (SPEC L2, L4, L5): the verb `purge` over one sweep.

A page is picked by index and locked, whatever becomes of its rows, so that no number of rows that stay is ever read for one that
goes. The condition is repeated where the rows are deleted (F6), and the row-level policy asks it again by the database's own clock.
"""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, LiteralString

from psycopg import sql

from retention_pipeline.catalog.sweep_model import PurgeDataset, PurgedTable
from retention_pipeline.errors import Code, RetentionError
from retention_pipeline.model.ids import TenantId
from retention_pipeline.model.sweep import COUNTED, Batch, Place, SweepFound, TableFound, Turn, Verb
from retention_pipeline.postgres import names
from retention_pipeline.postgres.session import Cursor, Session, one, rows
from retention_pipeline.postgres.shape import SourceShape, read_shape
from retention_pipeline.postgres.sweep_paging import Pages, by_index
from retention_pipeline.postgres.sweep_records import SweepRecords

_BATCH: Final = """
WITH page AS MATERIALIZED ({page}),
gone AS (
  DELETE FROM {table} AS t USING page AS p WHERE {same} AND {mine} AND {due} AND {free} RETURNING {at} AS at)
SELECT (SELECT count(*) FROM page), (SELECT count(*) FROM gone), (SELECT min(at)::text FROM gone),
  (SELECT max(at)::text FROM gone), {last}
"""
_DUE: Final = """
SELECT count(*), extract(epoch FROM {cut} - min(at))::float8 FROM (
  SELECT {at} AS at FROM {table} AS t WHERE {mine} AND {due} AND {at} > '-infinity'::timestamptz AND {free}
  ORDER BY {at} LIMIT {most}) AS counted
"""
_INFLOW: Final = """
SELECT count(*) FROM (SELECT FROM {table} AS t WHERE {mine} AND {at} >= {cut} AND {at} < {cut} + interval '24 hours'
  LIMIT {most}) AS counted
"""


@dataclass(slots=True, kw_only=True)
class PostgresPurge:
    """Purges through one session, as the worker."""

    session: Session
    dataset: PurgeDataset
    verb: Verb = Verb.PURGED
    _records: SweepRecords = field(init=False)

    def __post_init__(self) -> None:
        self._records = SweepRecords(dataset=self.dataset.dataset)

    @property
    def tables(self) -> tuple[str, ...]:
        """Children before their parents."""
        return tuple(table.name for table in reversed(self.dataset.tables))

    def look(self, tenant: TenantId, as_of: datetime) -> SweepFound:
        """Count what is due and what keeps the rest, each table in a transaction of its own (E5)."""
        found: list[TableFound] = []
        unread: dict[str, Code] = {}
        for table in self.dataset.tables:
            try:
                with self.session.transaction(tenant, read_only=True) as cursor:
                    by_index(cursor)
                    found.append(self._look(cursor, table, tenant, as_of))
            except RetentionError as error:
                if error.code is Code.DATABASE_UNAVAILABLE:
                    raise
                unread[table.name] = error.code
        return SweepFound(tenant=tenant, as_of=as_of, tables=tuple(found), unread=unread)

    def place(self, tenant: TenantId, table: str) -> Place | None:
        """Where the last batch of this table stopped."""
        with self.session.transaction(tenant, read_only=True) as cursor:
            return self._records.place(cursor, tenant, table)

    def batch(self, turn: Turn, after: Place | None, limit: int) -> Batch:
        """Delete what may go of the next rows that are over their time."""
        table = self._table(turn.table)
        with self.session.transaction(turn.tenant) as cursor:
            by_index(cursor)
            rule = _Rule(table=table, dataset=self.dataset, records=self._records, shape=self._shape(cursor))
            cursor.execute(rule.batch(after), {"tenant": turn.tenant, "as_of": turn.as_of, "limit": limit})
            seen, gone, oldest, newest, place = one(cursor)
            if gone:
                details = {"older_than_days": table.older_than_days, "oldest": oldest, "newest": newest}
                self._records.receipt(cursor, turn, self.verb, gone, details)
            if place is not None:
                self._records.save(cursor, turn.tenant, turn.table, Place(place))
        return Batch(done=gone, passed=seen - gone, place=None if place is None else Place(place), last=seen < limit)

    def rewind(self, tenant: TenantId, table: str) -> None:
        """The next batch begins at the beginning."""
        with self.session.transaction(tenant) as cursor:
            self._records.save(cursor, tenant, table, None)

    def pass_by(self, turn: Turn, after: Place | None, code: Code) -> Place | None:
        """Set the next row aside, and go behind it."""
        table = self._table(turn.table)
        with self.session.transaction(turn.tenant) as cursor:
            by_index(cursor)
            rule = _Rule(table=table, dataset=self.dataset, records=self._records, shape=self._shape(cursor))
            found = rows(cursor, rule.head(after), {"tenant": turn.tenant, "as_of": turn.as_of, "limit": 1})
            if not found:
                return None
            key, place = found[0]
            self._records.set_aside(cursor, turn, key, code)
            self._records.save(cursor, turn.tenant, turn.table, Place(place))
            return Place(place)

    def _table(self, name: str) -> PurgedTable:
        return next(table for table in self.dataset.tables if table.name == name)

    def _shape(self, cursor: Cursor) -> SourceShape:
        return read_shape(cursor, {table.table for table in self.dataset.tables})

    def _look(self, cursor: Cursor, table: PurgedTable, tenant: TenantId, as_of: datetime) -> TableFound:
        rule = _Rule(table=table, dataset=self.dataset, records=self._records, shape=self._shape(cursor))
        values = {"tenant": tenant, "as_of": as_of}
        cursor.execute(rule.due(), values)
        due, overdue = one(cursor)
        cursor.execute(rule.inflow(), values)
        return TableFound(name=table.name, due=due, overdue_seconds=overdue, inflow=one(cursor)[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rule:
    """The statements over one table. Parameters: `tenant`, `as_of`, and `limit` where there is a page."""

    table: PurgedTable
    dataset: PurgeDataset
    records: SweepRecords
    shape: SourceShape

    @property
    def pages(self) -> Pages:
        """Its pages, in the order of their age."""
        at = names.column("t", self.table.age)
        return Pages(table=self.table.table, key=self.table.key, tenant=self.table.tenant, at=at, shape=self.shape)

    @property
    def cut(self) -> sql.Composed:
        """Rows strictly older than this instant are due; a day is 24 hours, so that no time zone moves it (F13)."""
        return sql.SQL("(%(as_of)s::timestamptz - make_interval(hours => 24 * {}))").format(
            sql.Literal(self.table.older_than_days)
        )

    def is_over(self) -> sql.Composed:
        """The row is over its time."""
        return sql.SQL("{} < {}").format(names.column("t", self.table.age), self.cut)

    def free(self) -> sql.Composed:
        """Nothing keeps the row."""
        return names.conjunction([sql.SQL("NOT {}").format(self.records.waits("t", self.table.key, self.table.name))])

    def batch(self, after: Place | None) -> sql.Composed:
        """One page, and what goes of it."""
        return self._over(_BATCH, page=self.pages.page(self.is_over(), after), last=self.pages.last_place("page"))

    def head(self, after: Place | None) -> sql.Composed:
        """Key and place of the next row."""
        return sql.SQL("SELECT {}, {} FROM ({}) AS h").format(
            names.key_text("h", self.table.key),
            self.pages.place_of("h"),
            self.pages.page(self.is_over(), after, lock=False),
        )

    def due(self) -> sql.Composed:
        """How many may go, at most so many, and since when the oldest is over."""
        return self._over(_DUE)

    def inflow(self) -> sql.Composed:
        """How many fall due within the next day."""
        return self._over(_INFLOW)

    def _over(self, statement: LiteralString, **parts: sql.Composable) -> sql.Composed:
        pages = self.pages
        return sql.SQL(statement).format(
            table=names.table(self.table.table),
            same=pages.same("t", "p"),
            mine=pages.mine(),
            due=self.is_over(),
            free=self.free(),
            at=pages.at,
            cut=self.cut,
            most=sql.Literal(COUNTED),
            **parts,
        )
