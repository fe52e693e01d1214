"""Archives requests on which nobody acts, each in a transaction of its own (SPEC J1, J2, J4, J5, J7): the verb `shelve`.

A page gives keys and versions and locks nothing. Each request is read again under its row lock before it changes: whoever changed it
meanwhile, or has it in hand, wins. What it leaves (activity, notification, receipt, place) is in the same transaction.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from psycopg import sql
from psycopg.rows import TupleRow

from retention_pipeline.catalog.sweep_model import Requests, ShelveDataset, Trace
from retention_pipeline.errors import Code, RetentionError
from retention_pipeline.model.ids import TenantId
from retention_pipeline.model.sweep import COUNTED, Batch, Place, SweepFound, TableFound, Turn, Verb
from retention_pipeline.postgres import deadline_rules, names
from retention_pipeline.postgres.session import Cursor, Session, one, rows
from retention_pipeline.postgres.shape import SourceShape, read_shape
from retention_pipeline.postgres.sweep_paging import Pages, by_index
from retention_pipeline.postgres.sweep_records import SweepRecords, look_at_each

RETRY_SECONDS: Final = 30.0
"""After so long a request that failed is tried again (J4)."""

ACTIVITY: Final = "join_request.archived"

_TAKE: Final = """
SELECT {company} FROM {table} AS r WHERE {this} AND r.{version}::text = %(version)s AND {mine} AND {waiting} AND {over} AND {candidate}
FOR UPDATE OF r SKIP LOCKED
"""
_ARCHIVE: Final = (
    "UPDATE {table} AS r SET {archived} = clock_timestamp(), {version} = r.{version} + 1 WHERE {this} AND {mine}"
)
_LOOK: Final = """
SELECT reason, count(*), extract(epoch FROM max(%(as_of)s::timestamptz - {idle} - at))::float8 FROM (
  SELECT r.{active_at} AS at, CASE WHEN NOT ({candidate}) THEN 'company_not_active_or_invite_of_another' END AS reason
  FROM {table} AS r WHERE {mine} AND {waiting} AND {over} AND r.{active_at} > '-infinity' ORDER BY r.{active_at} LIMIT {most}) AS counted
GROUP BY reason
"""
_INFLOW: Final = """
SELECT count(*) FROM (SELECT FROM {table} AS r WHERE {mine} AND {waiting} AND r.{active_at} > %(as_of)s::timestamptz - {idle}
  AND r.{active_at} <= %(as_of)s::timestamptz - {idle} + interval '24 hours' LIMIT {most}) AS counted
"""


@dataclass(slots=True, kw_only=True)
class PostgresShelve:
    """Shelves through one session, as the worker.

    Args:
        stopping: asked before each request: a stop finishes the one in hand (J7).
    """

    session: Session
    dataset: ShelveDataset
    stopping: Callable[[], bool] = lambda: False
    verb: Verb = Verb.SHELVED
    _records: SweepRecords = field(init=False)

    def __post_init__(self) -> None:
        self._records = SweepRecords(dataset=self.dataset.dataset)

    @property
    def tables(self) -> tuple[str, ...]:
        """The one table."""
        return (self.dataset.requests.name,)

    def look(self, tenant: TenantId, as_of: datetime) -> SweepFound:
        """Count what is due, and what keeps the rest; a table that can't be read is told, as every verb does (O1)."""
        found, unread = look_at_each(self.dataset.tables, lambda _: self._look(tenant, as_of))
        return SweepFound(tenant=tenant, as_of=as_of, tables=found, unread=unread)

    def place(self, tenant: TenantId, table: str) -> Place | None:
        """Where the last batch stopped."""
        with self.session.transaction(tenant, read_only=True) as cursor:
            return self._records.place(cursor, tenant, table)

    def batch(self, turn: Turn, after: Place | None, limit: int) -> Batch:
        """Go through the next page, a transaction for each request; a failure is the first of a page before it is raised."""
        page = self._page(turn, after, limit)
        done = looked = 0
        place = after
        for key, version, behind in page:
            if self.stopping():
                return Batch(done=done, passed=looked - done, place=place, last=False)
            try:
                done += self._shelve(turn, key, version, Place(behind))
            except RetentionError:
                if not looked:
                    raise
                return Batch(done=done, passed=looked - done, place=place, last=False)
            looked, place = looked + 1, Place(behind)
        return Batch(done=done, passed=looked - done, place=place, last=len(page) < limit)

    def rewind(self, tenant: TenantId, table: str) -> None:
        """The next batch begins at the beginning."""
        with self.session.transaction(tenant) as cursor:
            self._records.rewind(cursor, tenant, table)

    def pass_by(self, turn: Turn, after: Place | None, code: Code) -> Place | None:
        """Set the next request aside for half a minute, and go behind it."""
        page = self._page(turn, after, 1)
        if not page:
            return None
        key, _, behind = page[0]
        with self.session.transaction(turn.tenant) as cursor:
            cursor.execute(sql.SQL("SELECT ROW({})::text").format(self._typed(self._shape(cursor))), {"key": list(key)})
            row_key = one(cursor)[0]
            self._records.set_aside(cursor, turn, row_key, code, seconds=RETRY_SECONDS, cap=RETRY_SECONDS)
            self._records.save(cursor, turn.tenant, turn.table, Place(behind))
        return Place(behind)

    def _look(self, tenant: TenantId, as_of: datetime) -> TableFound:
        with self.session.transaction(tenant, read_only=True) as cursor:
            by_index(cursor)
            words, values = self._words(cursor), {"tenant": tenant, "as_of": as_of}
            found = {row[0]: row[1:] for row in rows(cursor, sql.SQL(_LOOK).format(**words), values)}
            cursor.execute(sql.SQL(_INFLOW).format(**words), values)
            inflow = one(cursor)[0]
        due, overdue = found.pop(None, (0, None))
        return TableFound(
            name=self.dataset.requests.name,
            due=due,
            overdue_seconds=overdue,
            kept={reason: number for reason, (number, _) in found.items()},
            inflow=inflow,
            more=due + sum(number for number, _ in found.values()) >= COUNTED,
        )

    def _page(self, turn: Turn, after: Place | None, limit: int) -> Sequence[TupleRow]:
        """Key, version and place of the next requests that are over and don't wait."""
        requests = self.dataset.requests
        with self.session.transaction(turn.tenant, read_only=True) as cursor:
            by_index(cursor)
            shape = self._shape(cursor)
            pages = Pages(
                table=requests.table,
                key=requests.key,
                tenant=requests.tenant,
                at=names.column("t", requests.active_at),
                shape=shape,
            )
            over = sql.SQL("t.{} <= %(as_of)s::timestamptz - {} AND {} AND NOT {}").format(
                sql.Identifier(requests.active_at),
                deadline_rules.idle(self.dataset),
                deadline_rules.waiting(self.dataset, alias="t"),
                self._records.waits("t", requests.key, requests.name),
            )
            version = sql.SQL(", {}::text AS version").format(names.column("t", requests.version))
            page = pages.page(over, after, lock=False, more=version)
            statement = sql.SQL("SELECT ARRAY[{}], p.version, {} FROM ({}) AS p ORDER BY p.at, {}").format(
                names.comma(sql.SQL("{}::text").format(names.column("p", column)) for column in requests.key),
                pages.place_of("p"),
                page,
                pages.keys("p"),
            )
            return rows(cursor, statement, {"tenant": turn.tenant, "as_of": turn.as_of, "limit": limit})

    def _shelve(self, turn: Turn, key: Sequence[str], version: str, behind: Place) -> int:
        """One request, read again under its lock; 0 where it stays."""
        with self.session.transaction(turn.tenant) as cursor:
            self._records.require_approved(cursor, turn)
            words = self._words(cursor)
            values = {"tenant": turn.tenant, "as_of": turn.as_of, "key": list(key), "version": version}
            taken = rows(cursor, sql.SQL(_TAKE).format(**words), values)
            if taken:
                cursor.execute(sql.SQL(_ARCHIVE).format(**words), values)
                for trace in (self.dataset.activity, self.dataset.notifications):
                    cursor.execute(self._trace(trace, cursor), {**values, "company": taken[0][0]})
                self._records.receipt(cursor, turn, self.verb, 1, {"request": "/".join(key)})
            self._records.save(cursor, turn.tenant, turn.table, behind)
        return len(taken)

    def _trace(self, trace: Trace, cursor: Cursor) -> sql.Composed:
        columns = [trace.tenant, trace.company, trace.subject, trace.what]
        values: list[sql.Composable] = [
            sql.SQL("%(tenant)s"),
            sql.SQL("%(company)s"),
            sql.SQL("(%(key)s::text[])[1]"),
            sql.Literal(ACTIVITY),
        ]
        if trace.actor is not None:
            columns.append(trace.actor)
            values.append(sql.Literal("retention"))
        shape = read_shape(cursor, [trace.table])
        typed = (
            sql.SQL("{}::{}").format(value, sql.SQL(shape.type_of(trace.table, column)))
            for column, value in zip(columns, values, strict=True)
        )
        return sql.SQL("INSERT INTO {} ({}) VALUES ({})").format(
            names.table(trace.table), names.comma(map(sql.Identifier, columns)), names.comma(typed)
        )

    def _shape(self, cursor: Cursor) -> SourceShape:
        return read_shape(cursor, [self.dataset.requests.table])

    def _typed(self, shape: SourceShape) -> sql.Composed:
        requests = self.dataset.requests
        return names.comma(
            sql.SQL("(%(key)s::text[])[{}]::{}").format(sql.Literal(i), sql.SQL(shape.type_of(requests.table, column)))
            for i, column in enumerate(requests.key, 1)
        )

    def _words(self, cursor: Cursor) -> dict[str, sql.Composable]:
        """The pieces of the statements over one request, of alias `r`."""
        requests: Requests = self.dataset.requests
        shape = self._shape(cursor)
        return {
            "table": names.table(requests.table),
            "company": sql.SQL("{}::text").format(names.column("r", requests.company)),
            "this": sql.SQL("({}) = ({})").format(
                names.comma(names.column("r", column) for column in requests.key), self._typed(shape)
            ),
            "mine": sql.SQL("{} = %(tenant)s::text::{}").format(
                names.column("r", requests.tenant), sql.SQL(shape.type_of(requests.table, requests.tenant))
            ),
            "version": sql.Identifier(requests.version),
            "archived": sql.Identifier(requests.archived_at),
            "active_at": sql.Identifier(requests.active_at),
            "waiting": deadline_rules.waiting(self.dataset),
            "candidate": deadline_rules.candidate(self.dataset),
            "idle": deadline_rules.idle(self.dataset),
            "over": sql.SQL("r.{} <= %(as_of)s::timestamptz - {}").format(
                sql.Identifier(requests.active_at), deadline_rules.idle(self.dataset)
            ),
            "most": sql.Literal(COUNTED),
        }
