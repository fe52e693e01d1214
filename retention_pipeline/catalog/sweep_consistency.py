"""Do the parts of a sweep fit together, and with the instances' file? Pure, and before any database is asked."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

from retention_pipeline.catalog import consistency
from retention_pipeline.catalog.consistency import Flaw
from retention_pipeline.catalog.model import InstanceDataset
from retention_pipeline.catalog.sweep_model import ClearDataset, PurgeDataset, PurgedTable, ShelveDataset, SweepDataset

_CLOSED_SCHEMAS = ("retention", "information_schema")
_R = TypeVar("_R")


def flaws(dataset: SweepDataset) -> tuple[Flaw, ...]:
    """Every flaw of one file, with the path of its entry."""
    return tuple(_flaws(dataset))


def _flaws(dataset: SweepDataset) -> Iterator[Flaw]:
    seen: set[str] = set()
    for i, table in enumerate(dataset.tables):
        path = ("tables", i) if not isinstance(dataset, ShelveDataset) else ("requests",)
        schema = table.table.split(".", 1)[0]
        if schema in _CLOSED_SCHEMAS or schema.startswith("pg_"):
            yield Flaw(path=(*path, "table"), sentence=f"tables of the schema {schema} are not the platform's")
        if table.name in seen:
            yield Flaw(path=(*path, "name"), sentence=f"the name {table.name} stands twice")
        seen.add(table.name)
    if isinstance(dataset, PurgeDataset):
        yield from _purged(dataset)
    if isinstance(dataset, ClearDataset):
        yield from _cleared(dataset)


def _purged(dataset: PurgeDataset) -> Iterator[Flaw]:
    above: dict[str, PurgedTable] = {}
    for i, table in enumerate(dataset.tables):
        path = ("tables", i)
        if table.older_than_days < table.purpose.least_days:
            sentence = f"{table.purpose} stays {table.purpose.least_days} days at least"
            yield Flaw(path=(*path, "older_than_days"), sentence=sentence)
        if (table.status is None) != (not table.closed):
            yield Flaw(path=path, sentence="`status` and `closed` go together")
        if (table.parent is None) != (not table.join):
            yield Flaw(path=path, sentence="`parent` and `join` go together")
        if table.parent is not None and table.parent not in above:
            yield Flaw(path=(*path, "parent"), sentence=f"the parent {table.parent} must stand above")
        above[table.name] = table


def _cleared(dataset: ClearDataset) -> Iterator[Flaw]:
    for i, table in enumerate(dataset.tables):
        changed = (table.payload, *table.mirrors, table.marker)
        for column in sorted(set(changed) & {*table.key, table.tenant, table.instance}):
            yield Flaw(path=("tables", i), sentence=f"the column {column} ties rows together, and is never cleared")
        for column in sorted({c for c in changed if changed.count(c) > 1}):
            yield Flaw(path=("tables", i), sentence=f"{column} stands twice")
        if dataset.holds_extend and table.instance is None:
            yield Flaw(path=("tables", i), sentence="`holds_extend` needs each table's `instance`")


def between(instances: InstanceDataset, sweeps: Sequence[tuple[_R, SweepDataset]]) -> Iterator[tuple[_R, Flaw]]:
    """Flaws of files that don't fit together, each with the rules that it stands in.

    A row of an instance is deleted with its instance. Only history, by the rules that protect instances, deletes one before.
    """
    names: set[str] = set()
    evidence = {table: (tenant, path) for path, table, tenant in consistency.tables(instances)}
    for rules, dataset in sweeps:
        if dataset.dataset in names:
            yield rules, Flaw(path=("dataset",), sentence=f"the dataset {dataset.dataset} stands in another file too")
        names.add(dataset.dataset)
        if not isinstance(dataset, PurgeDataset):
            continue
        for i, table in enumerate(dataset.tables):
            tenant, path = evidence.get(table.table, (None, ()))
            ours = bool(path) and path[0] in {"evidence", "shared"}
            if dataset.history != ours:
                sentence = (
                    f"{table.table} is no evidence of an instance, so it has no history rule"
                    if dataset.history
                    else f"{table.table} is a part of instances: only a file with `history: true` may purge it"
                )
                yield rules, Flaw(path=("tables", i, "table"), sentence=sentence)
            elif ours and tenant != table.tenant:
                yield rules, Flaw(path=("tables", i, "tenant"), sentence=f"its tenant column is {tenant} elsewhere")
