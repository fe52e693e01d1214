"""The statements of a purge over one table: which rows are over, what keeps them, and what goes (SPEC L2, L5, W4, F6)."""

from dataclasses import dataclass
from typing import Final, LiteralString

from psycopg import sql

from retention_pipeline.catalog.sweep_model import PurgeDataset, PurgedTable
from retention_pipeline.model.sweep import COUNTED, NOTICED, Place
from retention_pipeline.postgres import names
from retention_pipeline.postgres.facts import active_hold
from retention_pipeline.postgres.shape import SourceShape
from retention_pipeline.postgres.sweep_paging import Pages
from retention_pipeline.postgres.sweep_records import SweepRecords

_BATCH: Final = """
WITH page AS MATERIALIZED ({page}),
gone AS (
  DELETE FROM {table} AS t USING page AS p WHERE {same} AND {mine} AND {over} AND {free} RETURNING {at} AS at)
SELECT (SELECT count(*) FROM page), (SELECT count(*) FROM gone), (SELECT min(at)::text FROM gone),
  (SELECT max(at)::text FROM gone), {last}
"""
_PAGE: Final = "SELECT jsonb_build_array({key_texts}), {place}, {instance} FROM ({page}) AS t ORDER BY t.at, {keys}"
_DELETE: Final = """
WITH page AS MATERIALIZED (SELECT {typed} FROM jsonb_array_elements(%(page)s::jsonb) AS p (k)),
gone AS (
  DELETE FROM {table} AS t USING page AS p WHERE {same} AND {mine} AND {over} AND {free} RETURNING {at} AS at)
SELECT (SELECT count(*) FROM gone), (SELECT min(at)::text FROM gone), (SELECT max(at)::text FROM gone)
"""
_LOOK: Final = """
SELECT reason, count(*), extract(epoch FROM {cut} - min(at))::float8 FROM (
  SELECT {at} AS at, {reason} AS reason FROM {table} AS t WHERE {mine} AND {over} AND {finite}{present}
  ORDER BY {at} LIMIT {most}) AS counted GROUP BY reason
"""
_EACH: Final = """
SELECT extract(epoch FROM {cut} - {at})::float8, {reason}, {instance} FROM {table} AS t
WHERE {mine} AND {over} AND {finite}{present} ORDER BY {at} LIMIT {most}
"""
_INFLOW: Final = """
SELECT count(*) FROM (SELECT FROM {table} AS t WHERE {mine} AND {at} >= {cut} AND {at} < {cut} + interval '24 hours'{present}
  LIMIT {most}) AS counted
"""
_COOLING: Final = """
SELECT count(*) FROM (SELECT FROM {table} AS t WHERE {mine} AND {at} >= {cut} AND {at} < {said}{present} LIMIT {most}) AS counted
"""
_ODD: Final = """
SELECT (SELECT count(*) FROM (SELECT FROM {table} AS t WHERE {mine} AND {at} = '-infinity' LIMIT {noticed}) AS a),
  (SELECT count(*) FROM (SELECT FROM {table} AS t WHERE {mine} AND {at} IS NULL AND {closed} LIMIT {noticed}) AS b)
"""

EACH: Final = 10_000
"""How many rows that are over a look takes one by one, where it must ask about their instances."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgeRule:
    """The statements over one table. Parameters: `tenant`, `as_of`, and `limit` where there is a page.

    Args:
        days: how long rows stay at present.
    """

    table: PurgedTable
    dataset: PurgeDataset
    records: SweepRecords
    shape: SourceShape
    days: int

    @property
    def pages(self) -> Pages:
        """Its pages, in the order of their age."""
        return Pages(
            table=self.table.table,
            key=self.table.key,
            tenant=self.table.tenant,
            at=names.column("t", self.table.age),
            shape=self.shape,
        )

    @property
    def counted(self) -> int:
        """How many rows that are over a look counts at most."""
        return EACH if self.dataset.history else COUNTED

    @property
    def reaches_instances(self) -> bool:
        """Whether a hold on an instance can keep its rows."""
        return self._instance_column() is not None

    def batch(self, after: Place | None) -> sql.Composed:
        """One page, and what goes of it: where no instance has a say."""
        return self._over(_BATCH, page=self._page(after), last=self.pages.last_place("page"))

    def page(self, after: Place | None) -> sql.Composed:
        """The next rows, locked: key, place and instance of each."""
        page = self.pages.page(self._due(), after, more=sql.SQL(", {} AS instance").format(self.instance()))
        return sql.SQL(_PAGE).format(
            key_texts=names.comma(sql.SQL("{}::text").format(names.column("t", c)) for c in self.table.key),
            place=self.pages.place_of("t"),
            instance=names.column("t", "instance"),
            page=page,
            keys=self.pages.keys(),
        )

    def delete(self) -> sql.Composed:
        """What goes of the rows in the parameter `page`, a JSON array of keys."""
        typed = names.comma(
            sql.SQL("(p.k ->> {})::{} AS {}").format(
                sql.Literal(i), sql.SQL(self.shape.type_of(self.table.table, column)), sql.Identifier(column)
            )
            for i, column in enumerate(self.table.key)
        )
        return self._over(_DELETE, typed=typed)

    def head(self, after: Place | None) -> sql.Composed:
        """Key and place of the next row, as a batch of one row would have it: nobody else has it in hand."""
        return sql.SQL("SELECT {}, {} FROM ({}) AS h").format(
            names.key_text("h", self.table.key),
            self.pages.place_of("h"),
            self._page(after),
        )

    def look(self) -> sql.Composed:
        """How many rows are over, by what keeps them (NULL: nothing), and since when the oldest of each is."""
        return self._over(_LOOK, reason=self._reason())

    def each(self) -> sql.Composed:
        """Each row that is over: since when, what keeps it, and its instance."""
        return self._over(_EACH, reason=self._reason(), instance=self.instance())

    def inflow(self) -> sql.Composed:
        """How many fall due within the next day."""
        return self._over(_INFLOW)

    def cooling(self) -> sql.Composed:
        """How many would be over by the days that the catalog says, and are not by those that apply."""
        return self._over(_COOLING, said=self._cut(self.table.older_than_days))

    def odd(self) -> sql.Composed:
        """How many have an instant before all others, or are closed and have none."""
        return self._over(_ODD, closed=self._closed("t", self.table))

    def instance(self) -> sql.Composed:
        """The instance of a row of alias `t`, as text; NULL where it reaches none."""
        found = self._instance_column()
        if found is None:
            return sql.SQL("NULL::text").format()
        table, column = found
        if table is self.table:
            return sql.SQL("{}::text").format(names.column("t", column))
        return sql.SQL("(SELECT {}::text FROM {} AS o WHERE {})").format(
            names.column("o", column), names.table(table.table), self._tie("t", self.table, "o")
        )

    def _instance_column(self) -> tuple[PurgedTable, str] | None:
        """Its own column, or its parent's."""
        if self.table.instance is not None:
            return self.table, self.table.instance
        parent = self._parent()
        return (parent, parent.instance) if parent is not None and parent.instance is not None else None

    def _parent(self) -> PurgedTable | None:
        return next((table for table in self.dataset.tables if table.name == self.table.parent), None)

    def _children(self) -> list[PurgedTable]:
        return [table for table in self.dataset.tables if table.parent == self.table.name]

    def _cut(self, days: int) -> sql.Composed:
        """Rows strictly older than this instant are over; a day is 24 hours, so that no time zone moves it (F13)."""
        return sql.SQL("(%(as_of)s::timestamptz - make_interval(hours => 24 * {}))").format(sql.Literal(days))

    def _is_over(self) -> sql.Composed:
        return sql.SQL("{} < {}").format(names.column("t", self.table.age), self._cut(self.days))

    def _present(self) -> sql.Composed:
        """What an index of its own has, where only some rows are meant."""
        if self.table.present is None:
            return sql.SQL("").format()
        return sql.SQL(" AND {} IS NOT NULL").format(names.column("t", self.table.present))

    def _due(self) -> sql.Composed:
        return sql.SQL("{}{}").format(self._is_over(), self._present())

    def _page(self, after: Place | None) -> sql.Composed:
        return self.pages.page(self._due(), after)

    def _closed(self, alias: str, table: PurgedTable) -> sql.Composed:
        """Whatever is not known to be closed is open."""
        if table.status is None:
            return sql.SQL("true").format()
        status = names.column(alias, table.status)
        return sql.SQL("coalesce({}::text = ANY({}), false)").format(status, sql.Literal(list(table.closed)))

    def _tie(self, child_alias: str, child: PurgedTable, parent_alias: str) -> sql.Composed:
        return names.conjunction(
            sql.SQL("{} = {}").format(names.column(child_alias, own), names.column(parent_alias, theirs))
            for own, theirs in child.join.items()
        )

    def _keeps(self) -> list[tuple[str, sql.Composed]]:
        """What keeps a row that is over, in the order in which it is told. Another tenant's child is refused by its foreign key."""
        keeps = []
        if self.table.status is not None:
            keeps.append(("open", sql.SQL("NOT {}").format(self._closed("t", self.table))))
        parent = self._parent()
        if parent is not None and parent.status is not None:
            still = sql.SQL("NOT EXISTS (SELECT FROM {} AS o WHERE {} AND {})").format(
                names.table(parent.table), self._tie("t", self.table, "o"), self._closed("o", parent)
            )
            keeps.append(("parent_open", still))
        for child in self._children():
            left = sql.SQL("EXISTS (SELECT FROM {} AS c WHERE {})").format(
                names.table(child.table), self._tie("c", child, "t")
            )
            keeps.append(("children_left", left))
        if self.reaches_instances:
            keeps.append(("legal_hold", active_hold(self.instance())))
        return keeps

    def _reason(self) -> sql.Composed:
        """What keeps a row of alias `t`; NULL where nothing does."""
        keeps = self._keeps()
        if not keeps:
            return sql.SQL("NULL::text").format()
        whens = (sql.SQL("WHEN {} THEN {}").format(rule, sql.Literal(name)) for name, rule in keeps)
        return sql.SQL("CASE {} END").format(sql.SQL(" ").join(whens))

    def _free(self) -> sql.Composed:
        """Nothing keeps a row of alias `t`."""
        waits = self.records.waits("t", self.table.key, self.table.name)
        return names.conjunction(sql.SQL("NOT {}").format(rule) for rule in [waits, *(r for _, r in self._keeps())])

    def _over(self, statement: LiteralString, **parts: sql.Composable) -> sql.Composed:
        pages = self.pages
        shared = {
            "table": names.table(self.table.table),
            "same": pages.same("t", "p"),
            "mine": pages.mine(),
            "over": self._is_over(),
            "finite": sql.SQL("{} > '-infinity'::timestamptz").format(pages.at),
            "present": self._present(),
            "free": self._free(),
            "at": pages.at,
            "cut": self._cut(self.days),
            "noticed": sql.Literal(NOTICED),
            "most": sql.Literal(self.counted),
        }
        return sql.SQL(statement).format(**shared, **parts)
