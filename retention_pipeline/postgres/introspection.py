"""Reads what a database says of itself, for `catalog check`: from pg_catalog alone, which every login may read."""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Any

from retention_pipeline.catalog.loader import Catalog
from retention_pipeline.catalog.schema import (
    Column,
    DatabaseFacts,
    ForeignKey,
    Index,
    OnDelete,
    Policy,
    TableFacts,
    TableKind,
)
from retention_pipeline.errors import Refused
from retention_pipeline.postgres import deadline_rules, install, sweep_indexes, system_catalog
from retention_pipeline.postgres.session import Cursor, rows
from retention_pipeline.postgres.shape import read_shape


def read_facts(cursor: Cursor, catalog: Catalog) -> DatabaseFacts:
    """Read the facts about a catalog's tables, and about every table that refers to one of them.

    Args:
        cursor: of a transaction of `Session`, whose settings decide how a type is printed.
        catalog: the rules that name the tables.
    """
    wanted = {"tables": list(install.all_tables(catalog))}
    columns = _by_table(rows(cursor, system_catalog.COLUMNS, wanted))
    indexes = _by_table(rows(cursor, system_catalog.INDEXES, wanted))
    policies = _by_table(rows(cursor, system_catalog.POLICIES, wanted))
    tables = {
        row[0]: _table(row[1:], columns[row[0]], indexes[row[0]], policies[row[0]])
        for row in rows(cursor, system_catalog.TABLES, wanted)
    }
    notes: dict[str, str | None] = dict(rows(cursor, system_catalog.FUNCTIONS))
    expected, functions = _expected(cursor, catalog)
    return DatabaseFacts(
        tables=tables,
        foreign_keys=read_foreign_keys(cursor, install.all_tables(catalog)),
        installed=notes.get("tenant_directory"),
        expected=expected,
        missing_functions=tuple(sorted(functions - set(notes))),
        missing_parts=tuple(_missing_parts(cursor, catalog)),
    )


def _missing_parts(cursor: Cursor, catalog: Catalog) -> Iterator[tuple[str, str]]:
    """Indexes and triggers that the sweeps have on the platform's tables, and that are not there or not in force."""
    for index in sweep_indexes.wanted(catalog):
        if not sweep_indexes.standing(cursor, index):
            yield index.table, f"the index {index.name}"
    triggers = set(rows(cursor, system_catalog.TRIGGERS, {"tables": list(install.all_tables(catalog))}))
    for trigger in deadline_rules.triggers(catalog):
        if (trigger.table, trigger.name) not in triggers:
            yield trigger.table, f"the trigger {trigger.name}"


def read_foreign_keys(cursor: Cursor, tables: Sequence[str]) -> tuple[ForeignKey, ...]:
    """Every foreign key to one of these tables, from whatever table."""
    wanted = {"tables": list(tables)}
    return tuple(_foreign_key(row) for row in rows(cursor, system_catalog.FOREIGN_KEYS, wanted))


def _expected(cursor: Cursor, catalog: Catalog) -> tuple[str | None, set[str]]:
    """What this catalog would leave here, its note and its functions; nothing, where a table or column is missing."""
    shape = read_shape(cursor, install.all_tables(catalog))
    try:
        made = "\n".join(statement.as_string(None) for statement in install.statements(catalog, shape))
        note = install.installed_digest(catalog, shape)
    except Refused:
        return None, set()
    return note, set(re.findall(r'CREATE FUNCTION retention\."(\w+)"', made))


def _by_table(found: Sequence[Sequence[Any]]) -> dict[str, list[Sequence[Any]]]:
    tables: dict[str, list[Sequence[Any]]] = defaultdict(list)
    for row in found:
        tables[row[0]].append(row[1:])
    return tables


def _table(
    row: Sequence[Any], columns: list[Sequence[Any]], indexes: list[Sequence[Any]], policies: list[Sequence[Any]]
) -> TableFacts:
    kind, enabled, forced, heirs, worker_policies, privileges, guarded = row
    return TableFacts(
        kind=TableKind[kind],
        columns={column[0]: _column(column) for column in columns},
        indexes=tuple(_index(index) for index in indexes),
        heirs=tuple(heirs),
        row_security=enabled,
        row_security_forced=forced,
        policies=tuple(Policy(command=command, roles=frozenset(roles)) for command, roles in policies),
        worker_policies=frozenset(worker_policies),
        worker_privileges=frozenset(privileges),
        guarded=guarded,
    )


def _column(row: Sequence[Any]) -> Column:
    name, kind, base, not_null, generated, identity, labels, made_of = row
    return Column(
        name=name,
        type=kind,
        base=base,
        not_null=not_null,
        generated=generated,
        identity=identity,
        labels=tuple(labels),
        made_of=tuple(made_of),
    )


def _index(row: Sequence[Any]) -> Index:
    name, columns, unique, primary, usable, nulls_distinct = row
    leading = tuple(takewhile(lambda column: column is not None, columns))
    return Index(
        name=name, columns=leading, unique=unique, primary=primary, usable=usable, nulls_distinct=nulls_distinct
    )


def _foreign_key(row: Sequence[Any]) -> ForeignKey:
    name, table, belongs_to, pairs, parent, on_delete, whole, match_full, deferred = row
    return ForeignKey(
        name=name,
        table=table,
        belongs_to=belongs_to,
        pairs=tuple((own, theirs) for own, theirs in pairs),
        parent=parent,
        on_delete=OnDelete(on_delete),
        whole=whole,
        match_full=match_full,
        deferred=deferred,
    )
