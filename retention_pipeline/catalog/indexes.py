"""Rule of the check: does an index serve each search that the product makes, or makes the database make (F14)?"""

from collections.abc import Iterator

from retention_pipeline.catalog import requirements as req
from retention_pipeline.catalog.comparison import Comparison
from retention_pipeline.catalog.consistency import related, tables
from retention_pipeline.catalog.document import EntryPath
from retention_pipeline.catalog.fault import Fault
from retention_pipeline.catalog.links import is_declared
from retention_pipeline.catalog.model import Evidence


def links_are_indexed(seen: Comparison) -> Iterator[Fault]:
    """Each column by which rows are looked for has an index: without one, each deletion scans the child (F14)."""
    told: set[tuple[str, frozenset[str]]] = set()
    for path, table, columns, tenant, warns in _searched(seen):
        once = (table, frozenset(columns))
        if not seen.have(table, columns) or once in told or seen.facts.tables[table].is_found_apart(columns, tenant):
            continue
        told.add(once)
        yield req.unindexed(seen, path, table, columns, warns=warns)


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
