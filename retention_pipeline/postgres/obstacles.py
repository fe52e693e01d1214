"""What stands in the way of a restore: read from the database, before anything is changed (SPEC A17, F19)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from psycopg import sql

from retention_pipeline.catalog.model import InstanceDataset
from retention_pipeline.errors import Code
from retention_pipeline.model.archive import TableRows
from retention_pipeline.model.ids import TenantId
from retention_pipeline.postgres import names
from retention_pipeline.postgres.content import ContentStatements, Place, places
from retention_pipeline.postgres.session import Cursor, rows
from retention_pipeline.postgres.shape import SourceShape
from retention_pipeline.stages.manifest import ReadManifest
from retention_pipeline.stages.restoration import Obstacle

_REFERENCES = sql.SQL("""
SELECT n.nspname || '.' || r.relname, m.nspname || '.' || p.relname,
  ARRAY(SELECT a.attname::text FROM unnest(c.conkey) WITH ORDINALITY AS k (num, place)
    JOIN pg_attribute AS a ON a.attrelid = c.conrelid AND a.attnum = k.num ORDER BY k.place),
  ARRAY(SELECT a.attname::text FROM unnest(c.confkey) WITH ORDINALITY AS k (num, place)
    JOIN pg_attribute AS a ON a.attrelid = c.confrelid AND a.attnum = k.num ORDER BY k.place),
  ARRAY(SELECT format_type(a.atttypid, NULL) FROM unnest(c.confkey) WITH ORDINALITY AS k (num, place)
    JOIN pg_attribute AS a ON a.attrelid = c.confrelid AND a.attnum = k.num ORDER BY k.place)
FROM pg_constraint AS c
JOIN pg_class AS r ON r.oid = c.conrelid JOIN pg_namespace AS n ON n.oid = r.relnamespace
JOIN pg_class AS p ON p.oid = c.confrelid JOIN pg_namespace AS m ON m.oid = p.relnamespace
WHERE c.contype = 'f' AND c.conparentid = 0 AND n.nspname || '.' || r.relname = ANY(%(own)s)
  AND NOT m.nspname || '.' || p.relname = ANY(%(own)s) AND has_table_privilege(p.oid, 'SELECT')
ORDER BY 1, 2
""")
"""Foreign keys from an instance's own tables to rows that stay when it goes, of tables that this login may read."""


def own_tables(dataset: InstanceDataset, manifest: ReadManifest) -> Iterator[tuple[Place, TableRows]]:
    """The instance's own tables, parents before children; shared rows stayed where they were."""
    archived = {table.name: table for table in manifest.tables}
    for place in places(dataset):
        if not place.shared and place.name in archived:
            yield place, archived[place.name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Obstacles:
    """Looks for them, for one dataset of one shape."""

    dataset: InstanceDataset
    shape: SourceShape

    def find(self, cursor: Cursor, tenant: TenantId, manifest: ReadManifest) -> Iterator[Obstacle]:
        """Each thing in the way, by table: an unnamed table, the id itself, a column, a row that is referred to."""
        known = {place.name for place in places(self.dataset)}
        for table in manifest.tables:
            if table.name not in known:
                yield _obstacle(table.table, "the catalog no longer names this table.")
        content = ContentStatements(dataset=self.dataset, shape=self.shape)
        if rows(cursor, content.present(), {"tenant": tenant, "ids": [manifest.instance]}):
            yield _obstacle(self.dataset.root.table, "an instance with this id exists.")
        own = [table for _, table in own_tables(self.dataset, manifest)]
        for table in own:
            yield from self._columns(table)
        yield from self._references(cursor, own)

    def _columns(self, table: TableRows) -> Iterator[Obstacle]:
        now = {column.name: column for column in self.shape.columns(table.table)}
        for column in table.columns:
            if column.name not in now:
                yield _obstacle(table.table, f"the column {column.name} is gone.")
            elif now[column.name].type != column.type:
                yield _obstacle(
                    table.table, f"the column {column.name} is {now[column.name].type}, and was {column.type}."
                )

    def _references(self, cursor: Cursor, own: Sequence[TableRows]) -> Iterator[Obstacle]:
        """Rows that stayed with others when the instance went, and went themselves since."""
        by_table = {table.table: table for table in own}
        for child, parent, mine, theirs, types in rows(cursor, _REFERENCES, {"own": list(by_table)}):
            table = by_table[child]
            position = {column.name: n for n, column in enumerate(table.columns)}
            if not all(column in position for column in mine):
                continue
            wanted = {tuple(row[position[column]] for column in mine) for row in table.rows}
            whole = [key for key in wanted if None not in key]
            missing = _missing(cursor, parent, dict(zip(theirs, types, strict=True)), whole) if whole else 0
            if missing:
                yield _obstacle(child, f"{missing} row(s) of {parent} that it refers to are gone.")


def _missing(cursor: Cursor, parent: str, columns: dict[str, str], keys: Sequence[tuple[str | None, ...]]) -> int:
    """How many of the keys, as text, the parent does not have; its columns are given with their types."""
    marks = names.comma(sql.SQL("%s::text[]") for _ in columns)
    aliases = [f"k{n}" for n, _ in enumerate(columns)]
    statement = sql.SQL(
        "SELECT count(*) FROM unnest({marks}) AS wanted ({aliases})"
        " WHERE NOT EXISTS (SELECT FROM {parent} AS p WHERE {ties})"
    ).format(
        marks=marks,
        aliases=names.comma(sql.Identifier(alias) for alias in aliases),
        parent=names.table(parent),
        ties=names.conjunction(
            sql.SQL("{} = {}::{}").format(names.column("p", column), names.column("wanted", alias), sql.SQL(kind))
            for (column, kind), alias in zip(columns.items(), aliases, strict=True)
        ),
    )
    cursor.execute(statement, [list(values) for values in zip(*keys, strict=True)])
    found = cursor.fetchone()
    return int(found[0]) if found else 0


def _obstacle(table: str, sentence: str) -> Obstacle:
    return Obstacle(code=Code.RESTORE_CONFLICT, table=table, sentence=sentence)
