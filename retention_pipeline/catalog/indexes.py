"""Rule of the check: does an index serve each search that the product makes, or makes the database make (F14)?"""

from collections.abc import Iterator

from retention_pipeline.catalog.comparison import Comparison, column_list, names, quoted
from retention_pipeline.catalog.consistency import related, tables
from retention_pipeline.catalog.document import EntryPath
from retention_pipeline.catalog.fault import Fault, FaultCode
from retention_pipeline.catalog.links import is_declared
from retention_pipeline.catalog.model import Evidence
from retention_pipeline.catalog.schema import TableFacts, TableKind


def links_are_indexed(seen: Comparison) -> Iterator[Fault]:
    """Each column by which rows are looked for has an index: without one, each deletion scans the child (F14)."""
    told: set[tuple[str, frozenset[str]]] = set()
    for path, table, columns, tenant, warns in _searched(seen):
        once = (table, frozenset(columns))
        if not seen.have(table, columns) or once in told or _is_indexed(seen.facts.tables[table], columns, tenant):
            continue
        told.add(once)
        report = seen.warning if warns else seen.error
        sentence = f"No index of {table} begins with {names(columns)}: each search by it reads the whole table."
        yield report(
            FaultCode.CATALOG_INDEX_MISSING,
            path,
            sentence + _unusable(seen.facts.tables[table], columns),
            _index_statement(table, columns, seen.facts.tables[table].kind),
        )


def _searched(seen: Comparison) -> Iterator[tuple[EntryPath, str, tuple[str, ...], str, bool]]:
    """Path, table, columns, tenant column, and whether a person is only warned: no deletion waits for that search."""
    for path, child in related(seen.dataset):
        yield (*path, "join"), child.table, tuple(child.join), child.tenant, not isinstance(child, Evidence)
    named = {table: (path, tenant) for path, table, tenant in tables(seen.dataset)}
    for key in seen.facts.foreign_keys:
        if key.parent in seen.deleted() and key.belongs_to in named:
            path, tenant = named[key.belongs_to]
            if not any(is_declared(seen, key, child) for child in seen.dataset.by_name.values()):
                yield (*path, "table"), key.belongs_to, key.columns, tenant, False
    if stores := seen.dataset.stores:
        bindings = seen.dataset.by_name[stores.bindings]
        yield ("stores", "store"), bindings.table, (stores.store,), "", True
    root = seen.dataset.root
    yield ("root", "tenant"), root.table, (root.tenant,), "", True


def _is_indexed(table: TableFacts, columns: tuple[str, ...], tenant: str) -> bool:
    """By all the columns, or by all but the tenant, which picks out too little to matter."""
    fewer = [column for column in columns if column != tenant]
    return table.is_found_by(columns) or bool(fewer and table.is_found_by(fewer))


def _unusable(table: TableFacts, columns: tuple[str, ...]) -> str:
    found = [i.name for i in table.indexes if not i.usable and set(i.columns[: len(columns)]) == set(columns)]
    return (
        f" The index {found[0]} does not serve: it is invalid, of another kind or of some rows alone." if found else ""
    )


def _index_statement(table: str, columns: tuple[str, ...], kind: TableKind) -> str:
    if kind is TableKind.PARTITIONED:
        return (
            f"CREATE INDEX ON ONLY {quoted(table)} {column_list(columns)}; then CREATE INDEX CONCURRENTLY on each"
            " partition, and ALTER INDEX ... ATTACH PARTITION for each."
        )
    return f"CREATE INDEX CONCURRENTLY ON {quoted(table)} {column_list(columns)};"
