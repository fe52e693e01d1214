"""The pages of a swept table: the next rows by instant and key, never more than asked for, never one that is locked (SPEC E4, L2, F6)."""

import json
from dataclasses import dataclass

from psycopg import sql

from retention_pipeline.model.sweep import Place
from retention_pipeline.postgres import names
from retention_pipeline.postgres.session import Cursor
from retention_pipeline.postgres.shape import SourceShape

_BY_INDEX = sql.SQL(
    "SELECT set_config('enable_seqscan', 'off', true), set_config('enable_hashjoin', 'off', true),"
    " set_config('enable_mergejoin', 'off', true)"
)


def by_index(cursor: Cursor) -> None:
    """For this transaction: a page is a few rows of perhaps millions, whatever the statistics say, or where there are none (F6, F14)."""
    cursor.execute(_BY_INDEX)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pages:
    """Pages over one table, in the order of an instant and the key; an index on (tenant, instant, key) serves them.

    Args:
        at: the instant by which rows fall due: a column, or an expression over alias `t` that an index has.
        key: the primary key's columns.
    """

    table: str
    key: tuple[str, ...]
    tenant: str
    at: sql.Composable
    shape: SourceShape

    def mine(self) -> sql.Composed:
        """The rows of the tenant of the transaction. Parameter: `tenant`."""
        kind = sql.SQL(self.shape.type_of(self.table, self.tenant))
        return sql.SQL("{} = %(tenant)s::text::{}").format(names.column("t", self.tenant), kind)

    def keys(self, alias: str = "t") -> sql.Composed:
        """The key's columns."""
        return names.comma(names.column(alias, column) for column in self.key)

    def same(self, left: str, right: str) -> sql.Composed:
        """Two aliases stand for the same row."""
        return names.conjunction(
            sql.SQL("{} = {}").format(names.column(left, column), names.column(right, column)) for column in self.key
        )

    def behind(self, place: Place | None) -> sql.Composed:
        """Rows behind a place. An instant that is `-infinity` is none, and stands before every page."""
        if place is None:
            return sql.SQL("{} > '-infinity'::timestamptz").format(self.at)
        read = json.loads(place)
        values = [sql.SQL("{}::timestamptz").format(sql.Literal(read["at"]))]
        values += [
            sql.SQL("{}::{}").format(sql.Literal(text), sql.SQL(self.shape.type_of(self.table, column)))
            for column, text in zip(self.key, read["key"], strict=True)
        ]
        return sql.SQL("({}, {}) > ({})").format(self.at, self.keys(), names.comma(values))

    def page(
        self, due: sql.Composable, place: Place | None, *, lock: bool = True, more: sql.Composable | None = None
    ) -> sql.Composed:
        """The next rows that are due: their keys and `at`, locked, those skipped that somebody else has. Parameters: `tenant`, `limit`.

        Args:
            due: the condition.
            place: behind which row it begins.
            lock: whether the rows are locked.
            more: further columns, each with a comma before it.
        """
        return sql.SQL(
            "SELECT {keys}, {at} AS at{more} FROM {table} AS t WHERE {mine} AND {due} AND {behind}"
            " ORDER BY {at}, {keys} LIMIT %(limit)s::bigint{lock}"
        ).format(
            keys=self.keys(),
            at=self.at,
            more=more or sql.SQL(""),
            table=names.table(self.table),
            mine=self.mine(),
            due=due,
            behind=self.behind(place),
            lock=sql.SQL(" FOR UPDATE OF t SKIP LOCKED" if lock else ""),
        )

    def place_of(self, alias: str) -> sql.Composed:
        """A row of a page as a place."""
        parts = names.comma(sql.SQL("{}::text").format(names.column(alias, column)) for column in self.key)
        return sql.SQL("jsonb_build_object('at', {}::text, 'key', jsonb_build_array({}))::text").format(
            names.column(alias, "at"), parts
        )

    def last_place(self, page: str) -> sql.Composed:
        """The place of a page's last row, NULL where it has none."""
        order = names.comma(sql.SQL("{} DESC").format(names.column("l", column)) for column in ("at", *self.key))
        return sql.SQL("(SELECT {} FROM {} AS l ORDER BY {} LIMIT 1)").format(
            self.place_of("l"), sql.Identifier(page), order
        )
