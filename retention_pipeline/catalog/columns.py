"""Rules of the check: are the tables, columns, types and keys there that the catalog names?"""

import math
import re
from collections.abc import Iterator, Sequence

from retention_pipeline.catalog.comparison import Comparison, names
from retention_pipeline.catalog.consistency import policy_of, related, tables
from retention_pipeline.catalog.document import EntryPath
from retention_pipeline.catalog.fault import Fault, FaultCode
from retention_pipeline.catalog.model import Evidence, InstanceDataset, Related, Shared
from retention_pipeline.catalog.schema import Column, TableKind

_INTEGERS = {"smallint", "integer", "bigint"}
_TEXTS = {"text", "character varying"}
_DAYS = _INTEGERS | _TEXTS | {"numeric"}
_INSTANT = "timestamp with time zone"
_TRUTHS = ("true", "false")
_OR_CORRECT = "or correct this line."


def tables_are_there(seen: Comparison) -> Iterator[Fault]:
    """Each table is an ordinary or a partitioned one, without heirs."""
    for path, table, _ in tables(seen.dataset):
        where = (*path, "table")
        found = seen.facts.tables.get(table)
        if found is None:
            sentence = f"The database has no table {table}."
            yield seen.error(FaultCode.CATALOG_TABLE_MISSING, where, sentence, f"Create it, {_OR_CORRECT}")
        elif found.kind not in {TableKind.ORDINARY, TableKind.PARTITIONED}:
            sentence = f"{table} is a {found.kind}; rows are locked, compared and deleted in tables alone."
            yield seen.error(FaultCode.CATALOG_TABLE_KIND, where, sentence, "Name the whole table behind it.")
        elif found.heirs:
            sentence = f"{', '.join(found.heirs)} inherit from {table}: its keys and policies do not reach their rows."
            remedy = "Make them partitions of it, or end the inheritance (ALTER TABLE ... NO INHERIT)."
            yield seen.error(FaultCode.CATALOG_TABLE_KIND, where, sentence, remedy)


def columns_are_there(seen: Comparison) -> Iterator[Fault]:
    """Each column that the catalog names exists in its table."""
    told: set[tuple[str, str]] = set()
    for path, table, column in _named_columns(seen):
        if table in seen.facts.tables and not seen.facts.column(table, column) and (table, column) not in told:
            told.add((table, column))
            sentence = f"{table} has no column {column}."
            yield seen.error(FaultCode.CATALOG_COLUMN_MISSING, path, sentence, f"Add it, {_OR_CORRECT}")


def _named_columns(seen: Comparison) -> Iterator[tuple[EntryPath, str, str]]:
    dataset = seen.dataset
    tenants, root, epochs = dataset.tenants, dataset.root, dataset.epochs
    for key, optional in (("key", tenants.key), ("alias", tenants.alias), ("retention_days", tenants.retention_days)):
        if optional:
            yield ("tenants", key), tenants.table, optional
    for key, column in (("key", root.key), ("tenant", root.tenant), ("state", root.state)):
        yield ("root", key), root.table, column
    for path, table in related(dataset):
        yield from _columns_of(seen, path, table)
    for key, column in (("ordinal", epochs.ordinal), ("state", epochs.state), ("at", epochs.at)):
        yield ("epochs", key), dataset.epoch_table.table, column
    for i, blocker in enumerate(dataset.blockers):
        if blocker.column:
            yield ("blockers", i, "column"), dataset.by_name[blocker.evidence].table, blocker.column
    yield from _columns_of_acts(dataset)


def _columns_of_acts(dataset: InstanceDataset) -> Iterator[tuple[EntryPath, str, str]]:
    if recovery := dataset.recovery:
        table = dataset.by_name[recovery.evidence].table
        for key, column in (
            ("key", recovery.key),
            ("fence", recovery.fence),
            ("status", recovery.status),
            ("closed_at", recovery.closed_at),
        ):
            yield ("recovery", key), table, column
    if stores := dataset.stores:
        for key, column in (("key", stores.key), ("tenant", stores.tenant), ("detached_at", stores.detached_at)):
            yield ("stores", key), stores.table, column
        yield ("stores", "store"), dataset.by_name[stores.bindings].table, stores.store


def _columns_of(seen: Comparison, path: EntryPath, table: Related) -> Iterator[tuple[EntryPath, str, str]]:
    yield from (((*path, "key", i), table.table, column) for i, column in enumerate(table.key))
    yield (*path, "tenant"), table.table, table.tenant
    for own, theirs in table.join.items():
        yield (*path, "join", own), table.table, own
        yield (*path, "join", own), seen.parent_table(table), theirs
    if isinstance(table, Shared) and table.retention_days:
        yield (*path, "retention_days"), table.table, table.retention_days
    if isinstance(table, Evidence) and table.ephemeral:
        yield (*path, "ephemeral", "payload"), table.table, table.ephemeral.payload
        for i, column in enumerate(table.ephemeral.mirrors):
            yield (*path, "ephemeral", "mirrors", i), table.table, column


def types_fit(seen: Comparison) -> Iterator[Fault]:
    """Each column has a type that the product can compare, count or clear."""
    dataset = seen.dataset
    epochs, epoch_table = dataset.epochs, dataset.epoch_table.table
    yield from _must_be(seen, ("epochs", "at"), epoch_table, epochs.at, {_INSTANT})
    yield from _must_be(seen, ("epochs", "ordinal"), epoch_table, epochs.ordinal, _INTEGERS)
    if dataset.tenants.retention_days:
        path: EntryPath = ("tenants", "retention_days")
        yield from _must_be(seen, path, dataset.tenants.table, dataset.tenants.retention_days, _DAYS)
    for path, table in related(dataset):
        if isinstance(table, Shared) and table.retention_days:
            yield from _must_be(seen, (*path, "retention_days"), table.table, table.retention_days, _DAYS)
        if isinstance(table, Evidence) and table.ephemeral:
            where = (*path, "ephemeral", "payload")
            yield from _must_be(seen, where, table.table, table.ephemeral.payload, {"json", "jsonb"})
        for own, theirs in table.join.items():
            parent = (seen.parent_table(table), theirs)
            yield from _must_fit(seen, (*path, "join", own), (table.table, own), parent)
    yield from _types_of_acts(seen)


def no_copy_of_a_payload(seen: Comparison) -> Iterator[Fault]:
    """A generated column that is computed from an ephemeral payload would be archived in clear, unless it is a mirror (A1, F12)."""
    for path, table in related(seen.dataset):
        if not isinstance(table, Evidence) or table.ephemeral is None:
            continue
        kept_out = {table.ephemeral.payload, *table.ephemeral.mirrors}
        found = seen.facts.tables.get(table.table)
        for column in found.columns.values() if found else ():
            copied = sorted(kept_out.intersection(column.made_of))
            if copied and column.name not in kept_out:
                yield seen.error(
                    FaultCode.CATALOG_EPHEMERAL_COPIED,
                    (*path, "ephemeral"),
                    f"{table.table}.{column.name} is generated from {' and '.join(copied)}: its value would be archived.",
                    f"Name {column.name} among the mirrors, or drop it.",
                )


def _types_of_acts(seen: Comparison) -> Iterator[Fault]:
    """What a recovery and a detachment write, the database's clock and the next fence, has a place to go."""
    if recovery := seen.dataset.recovery:
        table = seen.dataset.by_name[recovery.evidence].table
        yield from _must_be(seen, ("recovery", "fence"), table, recovery.fence, _INTEGERS)
        yield from _must_be(seen, ("recovery", "closed_at"), table, recovery.closed_at, {_INSTANT})
    if stores := seen.dataset.stores:
        yield from _must_be(seen, ("stores", "detached_at"), stores.table, stores.detached_at, {_INSTANT})
        child = (seen.dataset.by_name[stores.bindings].table, stores.store)
        yield from _must_fit(seen, ("stores", "store"), child, (stores.table, stores.key))


def _must_be(seen: Comparison, path: EntryPath, table: str, column: str, wanted: set[str]) -> Iterator[Fault]:
    found = seen.facts.column(table, column)
    if found and found.base not in wanted:
        sentence = f"{table}.{column} is of type {found.type}; it must be {' or '.join(sorted(wanted))}."
        yield seen.error(FaultCode.CATALOG_COLUMN_TYPE, path, sentence, f"Change its type, {_OR_CORRECT}")


def _must_fit(seen: Comparison, path: EntryPath, child: tuple[str, str], parent: tuple[str, str]) -> Iterator[Fault]:
    own, theirs = seen.facts.column(*child), seen.facts.column(*parent)
    if own and theirs and not _fits(own, theirs):
        sentence = f"{'.'.join(child)} is of type {own.type}, but {'.'.join(parent)} of {theirs.type}."
        yield seen.error(FaultCode.CATALOG_COLUMN_TYPE, path, sentence, f"Give both the same type, {_OR_CORRECT}")


def _fits(child: Column, parent: Column) -> bool:
    """Whether a value of the parent is the same value as the child's type.

    An id is compared after a cast to the child's type, and a cast may cut a text or round a number to another's id.
    """
    if child.base in _TEXTS and parent.base in _TEXTS:
        return _length(child) >= _length(parent)
    return child.base == parent.base and (child.type == parent.type or "(" not in child.type)


def _length(column: Column) -> float:
    found = re.search(r"\((\d+)\)", column.type)
    return int(found[1]) if found else math.inf


def tenants_fit(seen: Comparison) -> Iterator[Fault]:
    """Each table's tenant is of the type of the tenants' key, and never absent."""
    tenants = seen.dataset.tenants
    for path, table, column in tables(seen.dataset):
        if path == ("tenants",):
            continue
        where = (*path, "tenant")
        yield from _must_fit(seen, where, (table, column), (tenants.table, tenants.key))
        found = seen.facts.column(table, column)
        if found and not found.not_null:
            effect = "is in no tenant's inventory" if path == ("root",) else "is a foreign row, and blocks its instance"
            sentence = f"{table}.{column} may be NULL: a row without a tenant {effect}."
            remedy = "Give each row its tenant, then ALTER TABLE ... ALTER COLUMN ... SET NOT NULL."
            yield seen.warning(FaultCode.CATALOG_TENANT_NULLABLE, where, sentence, remedy)


def values_are_known(seen: Comparison) -> Iterator[Fault]:
    """Where a column has a closed list of values, the catalog's values are among them."""
    dataset = seen.dataset
    states = dataset.root.terminal_states
    path: EntryPath = ("root", "terminal_states")
    yield from _must_know(seen, path, (dataset.root.table, dataset.root.state), states)
    yield from _must_know(seen, path, (dataset.epoch_table.table, dataset.epochs.state), states)
    for i, blocker in enumerate(dataset.blockers):
        if blocker.column:
            column = (dataset.by_name[blocker.evidence].table, blocker.column)
            yield from _must_know(seen, ("blockers", i, "closed"), column, blocker.closed)
    if recovery := dataset.recovery:
        column = (dataset.by_name[recovery.evidence].table, recovery.status)
        yield from _must_know(seen, ("recovery", "open"), column, recovery.open)
        yield from _must_know(seen, ("recovery", "cancelled"), column, (recovery.cancelled,))


def _must_know(seen: Comparison, path: EntryPath, column: tuple[str, str], values: Sequence[str]) -> Iterator[Fault]:
    found = seen.facts.column(*column)
    if not found:
        return
    known = _TRUTHS if found.base == "boolean" else found.labels
    for i, value in enumerate(values):
        if known and value not in known:
            sentence = f"{'.'.join(column)} is never {value!r}: its type {found.type} knows {', '.join(known)}."
            yield seen.error(FaultCode.CATALOG_VALUE_UNKNOWN, (*path, i), sentence, "Correct the value on this line.")


def keys_are_unique(seen: Comparison) -> Iterator[Fault]:
    """What the product takes for one row is one row."""
    for path, table, columns in _unique_columns(seen.dataset):
        if seen.have(table, columns) and not seen.facts.tables[table].is_unique(columns):
            sentence = f"Nothing in {table} makes {names(columns)} unique and present: two rows could be taken for one."
            remedy = f"Add a primary key, or a unique constraint over NOT NULL columns, {_OR_CORRECT}"
            yield seen.error(FaultCode.CATALOG_KEY_NOT_UNIQUE, path, sentence, remedy)


def _unique_columns(dataset: InstanceDataset) -> Iterator[tuple[EntryPath, str, tuple[str, ...]]]:
    tenants, root, epochs = dataset.tenants, dataset.root, dataset.epoch_table
    yield ("tenants", "key"), tenants.table, (tenants.key,)
    yield ("tenants", "alias"), tenants.table, (tenants.alias,)
    yield ("root", "key"), root.table, (root.key,)
    for path, table in related(dataset):
        yield (*path, "key"), table.table, table.key
    if dataset.stores:
        yield ("stores", "key"), dataset.stores.table, (dataset.stores.key,)
    # Two epochs with one number, or two policies of one instance: which one counts would be chance.
    yield ("epochs", "ordinal"), epochs.table, (*epochs.join, dataset.epochs.ordinal)
    path, policy = policy_of(dataset)
    yield (*path, "join"), policy.table, tuple(policy.join)
