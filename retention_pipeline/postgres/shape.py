"""What the source's tables look like right now: columns and types, read from PostgreSQL's own catalog."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from psycopg import sql

from retention_pipeline.catalog.model import InstanceDataset
from retention_pipeline.errors import Code, Refused
from retention_pipeline.model.archive import ColumnShape
from retention_pipeline.postgres.session import Cursor, rows


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceColumn:
    """One column of a source table."""

    name: str
    type: str
    generated: bool
    identity: bool

    def recorded(self) -> ColumnShape:
        """How the archive records it."""
        return ColumnShape(name=self.name, type=self.type)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceShape:
    """All the tables that a dataset names."""

    tables: dict[str, tuple[SourceColumn, ...]]

    def columns(self, table: str) -> tuple[SourceColumn, ...]:
        """The table's columns, in their order; refuses a table that is not there."""
        found = self.tables.get(table)
        if not found:
            raise Refused(
                Code.CATALOG_INVALID,
                f"The table {table} is not in the database, or this login may not see it.",
                remedy="Run `retention catalog check`.",
            )
        return found

    def type_of(self, table: str, column: str) -> str:
        """A column's type with its modifiers, as PostgreSQL names it."""
        for candidate in self.columns(table):
            if candidate.name == column:
                return candidate.type
        raise Refused(Code.CATALOG_INVALID, f"{table} has no column {column}.", remedy="Run `retention catalog check`.")

    def digest(self) -> str:
        """Changes whenever a column is added, dropped, renamed or changed (F19)."""
        return hashlib.sha256(repr(sorted(self.tables.items())).encode()).hexdigest()


def tables_of(dataset: InstanceDataset) -> tuple[str, ...]:
    """Every table of an archive, the tenants' among them, once."""
    names = [dataset.tenants.table, dataset.root.table, *(t.table for t in dataset.by_name.values())]
    return tuple(dict.fromkeys(names))


def named_tables(dataset: InstanceDataset) -> tuple[str, ...]:
    """Every table that the dataset names, once: those of an archive, and the stores', whose rows are in none."""
    stores = [dataset.stores.table] if dataset.stores else []
    return tuple(dict.fromkeys([*tables_of(dataset), *stores]))


_COLUMNS = sql.SQL("""
SELECT n.nspname || '.' || c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attgenerated <> '',
       a.attidentity <> ''
FROM pg_class AS c
JOIN pg_namespace AS n ON n.oid = c.relnamespace
JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE (n.nspname || '.' || c.relname) = ANY(%(tables)s) AND n.nspname = ANY(%(schemas)s) AND c.relkind IN ('r', 'p')
ORDER BY 1, a.attnum
""")


def read_shape(cursor: Cursor, tables: Iterable[str]) -> SourceShape:
    """Read the shape as this transaction sees it."""
    wanted = list(tables)
    found: dict[str, list[SourceColumn]] = {}
    schemas = sorted({name.split(".", 1)[0] for name in wanted})
    for table, name, kind, generated, identity in rows(cursor, _COLUMNS, {"tables": wanted, "schemas": schemas}):
        column = SourceColumn(name=name, type=kind, generated=generated, identity=identity)
        found.setdefault(table, []).append(column)
    return SourceShape(tables={table: tuple(columns) for table, columns in found.items()})
