"""Does the file of a sweep fit a database? The rules that `check` applies to each of them (SPEC K2, F14, F18).

What a foreign key to a row that a purge deletes may do with the rows that refer to it: refuse. Any other action destroys or changes
rows that no rule names, another tenant's among them, which row-level security hides from the purge. An instance's deletion may
meet a CASCADE, since it proves over all tenants that nothing refers to what goes; a purge proves nothing of the kind.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from retention_pipeline.catalog import consistency, sweep_needs
from retention_pipeline.catalog import requirements as req
from retention_pipeline.catalog.comparison import Ground
from retention_pipeline.catalog.document import EntryPath
from retention_pipeline.catalog.fault import Fault, FaultCode
from retention_pipeline.catalog.loader import Catalog, SweepRules
from retention_pipeline.catalog.safeguards import MIGRATE, OPERATOR, WORKER
from retention_pipeline.catalog.schema import DatabaseFacts, ForeignKey
from retention_pipeline.catalog.sweep_model import PurgeDataset, PurgedTable, ShelveDataset, SweepDataset
from retention_pipeline.catalog.sweep_needs import NeededColumn, NeededTable


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepComparison(Ground):
    """What every rule over a sweep's file looks at.

    Args:
        catalog: the instances' rules; what their check tells of a table is not told again.
    """

    rules: SweepRules
    catalog: Catalog

    def line(self, *path: str | int) -> int:
        """The line of an entry of the sweep's file."""
        return self.rules.line(*path)

    @property
    def dataset(self) -> SweepDataset:
        """The sweep's rules."""
        return self.rules.dataset

    @property
    def purged(self) -> tuple[tuple[EntryPath, PurgedTable], ...]:
        """Tables whose rows it deletes, with their entries."""
        if not isinstance(self.dataset, PurgeDataset):
            return ()
        return tuple((("tables", i), table) for i, table in enumerate(self.dataset.tables))

    def of_instances(self) -> frozenset[str]:
        """Tables that the instances' file names."""
        return frozenset(table for _, table, _ in consistency.tables(self.catalog.instances))

    def each(self) -> Iterator[NeededTable]:
        """Its tables, each once."""
        yield from {needed.table: needed for needed in reversed(list(sweep_needs.tables(self.dataset)))}.values()

    def own(self) -> Iterator[NeededTable]:
        """Tables that the instances' file does not name."""
        named = self.of_instances()
        yield from (needed for needed in self.each() if needed.table not in named)


def check_sweep(catalog: Catalog, rules: SweepRules, facts: DatabaseFacts, whole: DatabaseFacts) -> Iterator[Fault]:
    """Every fault of one sweep's file.

    Args:
        catalog: with the instances' rules.
        rules: the sweep's.
        facts: without the names that stand for no table.
        whole: with them.
    """
    seen = SweepComparison(catalog=catalog, rules=rules, facts=facts, file=rules.file)
    yield from _tables_are_there(SweepComparison(catalog=catalog, rules=rules, facts=whole, file=rules.file))
    for rule in _RULES:
        yield from rule(seen)


def _tables_are_there(seen: SweepComparison) -> Iterator[Fault]:
    for needed in seen.own():
        yield from req.whole_table(seen, (*needed.path, "table"), needed.table)


def _columns_are_there(seen: SweepComparison) -> Iterator[Fault]:
    yield from req.has_columns(seen, ((c.path, c.table, c.column) for c in _columns(seen)))


def _types_fit(seen: SweepComparison) -> Iterator[Fault]:
    tenants = seen.catalog.instances.tenants
    for needed in seen.own():
        path, tenant = (*needed.path, "tenant"), (needed.table, needed.tenant)
        yield from req.fitting(seen, path, tenant, (tenants.table, tenants.key))
        yield from req.tenant_given(seen, path, tenant, "is in no tenant's sweep")
    for column in _columns(seen):
        if column.types:
            yield from req.of_type(seen, column.path, column.table, column.column, column.types)
        if column.like:
            yield from req.fitting(seen, column.path, (column.table, column.column), column.like)
        yield from req.knowing(seen, column.path, (column.table, column.column), column.values)
        if column.emptied:
            yield from _takes_null(seen, column)


def _takes_null(seen: SweepComparison, column: NeededColumn) -> Iterator[Fault]:
    found = seen.facts.column(column.table, column.column)
    if found and (found.generated or found.not_null):
        what = "is generated" if found.generated else "is NOT NULL"
        sentence = f"{column.table}.{column.column} {what}; the sweep writes it, and empty means NULL."
        remedy = f"Let it be a column of its own that takes NULL, {req.OR_CORRECT}"
        yield seen.error(FaultCode.CATALOG_COLUMN_TYPE, column.path, sentence, remedy)


def _keys_are_unique(seen: SweepComparison) -> Iterator[Fault]:
    for needed in seen.own():
        if needed.keys:
            yield from req.unique(seen, (*needed.path, "key"), needed.table, needed.keys)


def _pages_are_indexed(seen: SweepComparison) -> Iterator[Fault]:
    """What a purge pages through is in the order of an index; without one, each batch reads the whole table (F14)."""
    told: set[tuple[str, str]] = set()
    for path, table in seen.purged:
        columns = (table.tenant, table.age, *(column for column in table.key if column != table.age))
        if (table.table, table.age) in told or not seen.have(table.table, columns):
            continue
        told.add((table.table, table.age))
        if not seen.facts.tables[table.table].is_paged_by(table.tenant, table.age):
            yield req.unindexed(seen, (*path, "age"), table.table, columns)


def _links_are_indexed(seen: SweepComparison) -> Iterator[Fault]:
    """Rows that refer to one that goes, and requests of a company or an invite that is written, are found by an index."""
    for path, table, columns in _links(seen):
        ready = seen.have(table, (*columns,)) and table in seen.facts.tables
        if ready and not seen.facts.tables[table].is_found_by(columns):
            yield req.unindexed(seen, path, table, columns)


def _links(seen: SweepComparison) -> Iterator[tuple[EntryPath, str, tuple[str, ...]]]:
    instances = seen.of_instances()
    for path, table in seen.purged:
        if table.join and table.table not in instances:
            yield (*path, "join"), table.table, tuple(table.join)
    if isinstance(seen.dataset, ShelveDataset):
        requests = seen.dataset.requests
        yield ("requests", "company"), requests.table, (requests.company,)
        yield ("requests", "invite"), requests.table, (requests.invite,)


def _links_refuse(seen: SweepComparison) -> Iterator[Fault]:
    purged = {table.table: path for path, table in reversed(seen.purged)}
    deleted = {seen.catalog.instances.root.table, *(table.table for table in seen.catalog.instances.evidence)}
    named = {
        *seen.of_instances(),
        *(table.table for rules in seen.catalog.sweeps for table in sweep_needs.tables(rules.dataset)),
    }
    for key in seen.facts.foreign_keys:
        if key.parent not in purged or (key.parent in deleted and key.belongs_to not in seen.of_instances()):
            continue  # the instances' check tells of it
        path = (*purged[key.parent], "table")
        if not key.on_delete.refuses:
            sentence = f"{req.said(key)}: a purge would destroy or change rows that no rule names."
            remedy = "Make the foreign key again with ON DELETE NO ACTION, or leave the table out of this file."
            yield seen.error(FaultCode.CATALOG_FOREIGN_KEY_ACTION, path, sentence, remedy)
        elif not _goes_before(seen, key):
            sentence = f"{req.said(key)}: a row stays as long as one refers to it, and each pass tells it as a failure."
            code = (
                FaultCode.CATALOG_FOREIGN_KEY_UNNAMED
                if key.belongs_to not in named
                else FaultCode.CATALOG_FOREIGN_KEY_ACTION
            )
            remedy = f"Name {key.belongs_to} below it with `parent` and `join`; nothing, if such rows are few and meant to stay."
            yield seen.warning(code, path, sentence, remedy)


def _goes_before(seen: SweepComparison, key: ForeignKey) -> bool:
    """Whether the row that refers is a child by the file's own words, so that its parent waits for it."""
    parents = {table.name for _, table in seen.purged if table.table == key.parent}
    return any(table.table == key.belongs_to and table.parent in parents for _, table in seen.purged)


def _row_security(seen: SweepComparison) -> Iterator[Fault]:
    for needed in seen.own():
        yield from req.walled(seen, (*needed.path, "table"), needed.table)
    if seen.facts.installed is None:
        return  # without our roles, no policy can name them
    for needed in seen.each():
        told = {"SELECT", "DELETE"} if needed.table in seen.of_instances() else set()
        roles = [(WORKER, command) for command in sorted(needed.commands - told)]
        if not told:
            roles.append((OPERATOR, "SELECT"))
        yield from req.sighted(seen, (*needed.path, "table"), needed.table, roles)


def _is_installed(seen: SweepComparison) -> Iterator[Fault]:
    if seen.facts.installed is None:
        return  # told once, of all files
    parts: dict[str, list[str]] = {}
    for table, what in seen.facts.missing_parts:
        parts.setdefault(table, []).append(what)
    for needed in seen.each():
        found = seen.facts.tables.get(needed.table)
        if found is None:
            continue
        lacking = [f"the policy {name}" for name in sorted(needed.policies - found.worker_policies)]
        if missing := sorted(needed.commands - found.worker_privileges):
            lacking.append(f"the worker's {' and '.join(missing)}")
        lacking += parts.get(needed.table, [])
        if lacking:
            sentence = f"{needed.table} lacks {', '.join(lacking)}."
            yield seen.error(FaultCode.CATALOG_NOT_INSTALLED, (*needed.path, "table"), sentence, MIGRATE)


def _columns(seen: SweepComparison) -> Iterator[NeededColumn]:
    root = seen.catalog.instances.root
    return sweep_needs.columns(seen.dataset, (root.table, root.key))


_RULES: tuple[Callable[[SweepComparison], Iterator[Fault]], ...] = (
    _columns_are_there,
    _types_fit,
    _keys_are_unique,
    _pages_are_indexed,
    _links_are_indexed,
    _links_refuse,
    _row_security,
    _is_installed,
)
