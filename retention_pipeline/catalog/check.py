"""Does a catalog fit a database? A pure function over its facts (SPEC K2)."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from retention_pipeline.catalog import columns, indexes, links, safeguards
from retention_pipeline.catalog.comparison import Comparison
from retention_pipeline.catalog.fault import Fault, FaultCode, Severity, concerning, require_sound
from retention_pipeline.catalog.loader import Catalog
from retention_pipeline.catalog.schema import DatabaseFacts, TableKind
from retention_pipeline.catalog.sweep_check import check_sweep

__all__ = ["Fault", "FaultCode", "Severity", "check", "concerning", "require_sound"]

_RULES: tuple[Callable[[Comparison], Iterator[Fault]], ...] = (
    columns.columns_are_there,
    columns.types_fit,
    columns.no_copy_of_a_payload,
    columns.tenants_fit,
    columns.values_are_known,
    columns.keys_are_unique,
    links.children_are_bound,
    links.bindings_are_bound,
    links.nothing_else_refers,
    indexes.links_are_indexed,
    safeguards.row_security_is_strong,
    safeguards.row_security_blinds_nobody,
    safeguards.catalog_is_installed,
)


def check(catalog: Catalog, facts: DatabaseFacts) -> tuple[Fault, ...]:
    """Every fault, the instances' file's first, each file's in the order of its lines. What only follows from another fault is left out.

    Args:
        catalog: the rules, with their lines.
        facts: what the database says of itself; `postgres.introspection` reads it.
    """
    whole = Comparison(catalog=catalog, facts=facts)
    kinds = {TableKind.ORDINARY, TableKind.PARTITIONED}
    tables = {name: table for name, table in facts.tables.items() if table.kind in kinds}
    comparison = Comparison(catalog=catalog, facts=replace(facts, tables=tables))
    found = [*columns.tables_are_there(whole), *(fault for rule in _RULES for fault in rule(comparison))]
    for rules in catalog.sweeps:
        found += check_sweep(catalog, rules, comparison.facts, facts)
    return tuple(sorted(found, key=lambda fault: (fault.file or "", fault.line)))
