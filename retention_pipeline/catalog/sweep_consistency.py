"""Do the parts of a sweep fit together, and with the instances' file? Pure, and before any database is asked."""

from collections.abc import Iterator, Sequence
from typing import Final, TypeVar

from retention_pipeline.catalog import consistency
from retention_pipeline.catalog.consistency import Flaw
from retention_pipeline.catalog.model import InstanceDataset
from retention_pipeline.catalog.sweep_model import (
    ClearDataset,
    Every,
    PurgeDataset,
    PurgedTable,
    ShelveDataset,
    SweepDataset,
)

MAX_ROWS: Final = 50_000
"""Rows of one pass over one tenant at most: what an approval may cover."""

MOST_BATCH: Final = {"clear": 500, "purge": 1000, "shelve": 100}
"""Rows of one transaction, or of one page, at most."""

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
    yield from _bounded(dataset)
    if isinstance(dataset, PurgeDataset):
        yield from _purged(dataset)
    elif isinstance(dataset, ClearDataset):
        yield from _cleared(dataset)
    elif len(dataset.requests.key) > 1:
        yield Flaw(path=("requests", "key"), sentence="a request has a key of one column")


def _bounded(dataset: SweepDataset) -> Iterator[Flaw]:
    """What a file may say, and no more (E4, L2, J4); no approval reaches further than `MAX_ROWS`."""
    most = MOST_BATCH[dataset.ends]
    if dataset.batch > most:
        yield Flaw(path=("batch",), sentence=f"a batch that ends rows by `{dataset.ends}` has {most} at most")
    if dataset.batch * dataset.batches > MAX_ROWS:
        yield Flaw(path=("batches",), sentence=f"one pass ends {MAX_ROWS} rows at most: `batch` times `batches`")
    if (dataset.every is Every.DEADLINE) != isinstance(dataset, ShelveDataset):
        yield Flaw(path=("every",), sentence="`deadline` is for `shelve`, and `shelve` for `deadline`")


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
        yield from _out_of_reach(table, above, path)


def _out_of_reach(table: PurgedTable, above: dict[str, PurgedTable], path: tuple[str, int]) -> Iterator[Flaw]:
    """A hold reaches the rows that name the instance, and their children (G1)."""
    parent = above.get(table.parent or "")
    if table.instance is None and parent is not None and parent.instance is None:
        while parent is not None and parent.parent is not None:
            parent = above.get(parent.parent)
            if parent is not None and parent.instance is not None:
                sentence = (
                    f"a hold that keeps rows of {parent.name} would not reach it: give it or its parent an `instance`"
                )
                yield Flaw(path=path, sentence=sentence)
                return


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
    yield from _in_each_others_way(instances, sweeps)
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


def _in_each_others_way(
    instances: InstanceDataset, sweeps: Sequence[tuple[_R, SweepDataset]]
) -> Iterator[tuple[_R, Flaw]]:
    """Where the policies of two rules would exclude each other: who locks a table's rows may update none, and who clears them must."""
    parents = {instances.by_name[e.parent].table for e in instances.evidence if e.parent in instances.by_name}
    locked = {instances.root.table, *parents}
    locked |= {table.table for _, dataset in sweeps if isinstance(dataset, PurgeDataset) for table in dataset.tables}
    shelving = 0
    for rules, dataset in sweeps:
        if isinstance(dataset, PurgeDataset):
            continue
        shelving += isinstance(dataset, ShelveDataset)
        if isinstance(dataset, ShelveDataset) and shelving > 1:
            yield rules, Flaw(path=("ends",), sentence="only one file of a catalog may shelve")
        for i, table in enumerate(dataset.tables):
            if table.table in locked:
                path = ("requests", "table") if isinstance(dataset, ShelveDataset) else ("tables", i, "table")
                yield (
                    rules,
                    Flaw(
                        path=path,
                        sentence=f"{table.table} is purged, or has evidence below it: no other rule may change its rows",
                    ),
                )
