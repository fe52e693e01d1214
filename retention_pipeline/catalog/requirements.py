"""What the checks of all files ask of a table and its columns, each told in the same words."""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from retention_pipeline.catalog.comparison import Ground, column_list, names, quoted
from retention_pipeline.catalog.document import EntryPath
from retention_pipeline.catalog.fault import Fault, FaultCode
from retention_pipeline.catalog.schema import Column, ForeignKey, TableFacts, TableKind

INTEGERS: Final = frozenset({"smallint", "integer", "bigint"})
TEXTS: Final = frozenset({"text", "character varying"})
JSON: Final = frozenset({"json", "jsonb"})
INSTANT: Final = frozenset({"timestamp with time zone"})
OR_CORRECT: Final = "or correct this line."
_TRUTHS = ("true", "false")


def whole_table(seen: Ground, path: EntryPath, table: str) -> Iterator[Fault]:
    """It is an ordinary or a partitioned table, without heirs."""
    found = seen.facts.tables.get(table)
    if found is None:
        sentence = f"The database has no table {table}."
        yield seen.error(FaultCode.CATALOG_TABLE_MISSING, path, sentence, f"Create it, {OR_CORRECT}")
    elif found.kind not in {TableKind.ORDINARY, TableKind.PARTITIONED}:
        sentence = f"{table} is a {found.kind}; rows are locked, compared and deleted in tables alone."
        yield seen.error(FaultCode.CATALOG_TABLE_KIND, path, sentence, "Name the whole table behind it.")
    elif found.heirs:
        sentence = f"{', '.join(found.heirs)} inherit from {table}: its keys and policies do not reach their rows."
        remedy = "Make them partitions of it, or end the inheritance (ALTER TABLE ... NO INHERIT)."
        yield seen.error(FaultCode.CATALOG_TABLE_KIND, path, sentence, remedy)


def has_columns(seen: Ground, named: Iterator[tuple[EntryPath, str, str]]) -> Iterator[Fault]:
    """Each column exists in its table, as far as the table does; a missing one is told once."""
    told: set[tuple[str, str]] = set()
    for path, table, column in named:
        if table in seen.facts.tables and not seen.facts.column(table, column) and (table, column) not in told:
            told.add((table, column))
            sentence = f"{table} has no column {column}."
            yield seen.error(FaultCode.CATALOG_COLUMN_MISSING, path, sentence, f"Add it, {OR_CORRECT}")


def of_type(seen: Ground, path: EntryPath, table: str, column: str, wanted: frozenset[str]) -> Iterator[Fault]:
    """The column, where it is there, has one of these types."""
    found = seen.facts.column(table, column)
    if found and found.base not in wanted:
        sentence = f"{table}.{column} is of type {found.type}; it must be {' or '.join(sorted(wanted))}."
        yield seen.error(FaultCode.CATALOG_COLUMN_TYPE, path, sentence, f"Change its type, {OR_CORRECT}")


def fitting(seen: Ground, path: EntryPath, child: tuple[str, str], parent: tuple[str, str]) -> Iterator[Fault]:
    """The child's column holds every value of the parent's."""
    own, theirs = seen.facts.column(*child), seen.facts.column(*parent)
    if own and theirs and not _fits(own, theirs):
        sentence = f"{'.'.join(child)} is of type {own.type}, but {'.'.join(parent)} of {theirs.type}."
        yield seen.error(FaultCode.CATALOG_COLUMN_TYPE, path, sentence, f"Give both the same type, {OR_CORRECT}")


def knowing(seen: Ground, path: EntryPath, column: tuple[str, str], values: Sequence[str]) -> Iterator[Fault]:
    """Where the column has a closed list of values, these are among them."""
    found = seen.facts.column(*column)
    if not found:
        return
    known = _TRUTHS if found.base == "boolean" else found.labels
    for i, value in enumerate(values):
        if known and value not in known:
            sentence = f"{'.'.join(column)} is never {value!r}: its type {found.type} knows {', '.join(known)}."
            yield seen.error(FaultCode.CATALOG_VALUE_UNKNOWN, (*path, i), sentence, "Correct the value on this line.")


def tenant_given(seen: Ground, path: EntryPath, column: tuple[str, str], effect: str) -> Iterator[Fault]:
    """A tenant's column is never NULL."""
    found = seen.facts.column(*column)
    if found and not found.not_null:
        sentence = f"{'.'.join(column)} may be NULL: a row without a tenant {effect}."
        remedy = "Give each row its tenant, then ALTER TABLE ... ALTER COLUMN ... SET NOT NULL."
        yield seen.warning(FaultCode.CATALOG_TENANT_NULLABLE, path, sentence, remedy)


def unique(seen: Ground, path: EntryPath, table: str, columns: tuple[str, ...]) -> Iterator[Fault]:
    """What the product takes for one row is one row."""
    if seen.have(table, columns) and not seen.facts.tables[table].is_unique(columns):
        sentence = f"Nothing in {table} makes {names(columns)} unique and present: two rows could be taken for one."
        remedy = f"Add a primary key, or a unique constraint over NOT NULL columns, {OR_CORRECT}"
        yield seen.error(FaultCode.CATALOG_KEY_NOT_UNIQUE, path, sentence, remedy)


def unindexed(seen: Ground, path: EntryPath, table: str, columns: tuple[str, ...], *, warns: bool = False) -> Fault:
    """No index serves a search by these columns; the remedy is the exact statement (F14)."""
    found = seen.facts.tables[table]
    report = seen.warning if warns else seen.error
    sentence = f"No index of {table} begins with {names(columns)}: each search by it reads the whole table."
    return report(
        FaultCode.CATALOG_INDEX_MISSING,
        path,
        sentence + _unusable(found, columns),
        _index_statement(table, columns, found.kind),
    )


def walled(seen: Ground, path: EntryPath, table: str) -> Iterator[Fault]:
    """Row-level security is enabled and forced: a second wall, behind the statements' own conditions."""
    found = seen.facts.tables.get(table)
    if found is None or (found.row_security and found.row_security_forced):
        return
    if found.row_security:
        what, verb = "is not forced: it does not bind the table's owner, who sees every tenant's rows", "FORCE"
    else:
        what, verb = "is off: only the product's own conditions keep a tenant's run to its rows", "ENABLE"
    sentence = f"Row-level security on {table} {what}."
    remedy = f"ALTER TABLE ... {verb} ROW LEVEL SECURITY; nothing, if the database has a single tenant."
    yield seen.warning(FaultCode.CATALOG_ROW_SECURITY_WEAK, path, sentence, remedy)


def sighted(seen: Ground, path: EntryPath, table: str, needed: Iterable[tuple[str, str]]) -> Iterator[Fault]:
    """Where row-level security is enabled, a policy of the platform's lets these roles use these commands."""
    found = seen.facts.tables.get(table)
    if found is None or not found.row_security:
        return
    for role, command in needed:
        if not any(policy.admits(role, command) for policy in found.policies):
            sentence = f"No policy of {table} lets {role} {command}: it would find no row, and report success."
            remedy = f"CREATE POLICY ... FOR {command} TO {role} USING (the tenant is the one that is set)."
            yield seen.error(FaultCode.CATALOG_ROW_SECURITY_BLIND, path, sentence, remedy)


def said(key: ForeignKey) -> str:
    """A foreign key, as a sentence begins."""
    return f"{key.table} {names(key.columns)} refers to {key.parent} with ON DELETE {key.on_delete} ({key.name})"


def _fits(child: Column, parent: Column) -> bool:
    """Whether a value of the parent is the same value as the child's type.

    An id is compared after a cast to the child's type, and a cast may cut a text or round a number to another's id.
    """
    if child.base in TEXTS and parent.base in TEXTS:
        return _length(child) >= _length(parent)
    return child.base == parent.base and (child.type == parent.type or "(" not in child.type)


def _length(column: Column) -> float:
    found = re.search(r"\((\d+)\)", column.type)
    return int(found[1]) if found else math.inf


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
