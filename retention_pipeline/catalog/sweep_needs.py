"""What the rules of a sweep name in a database: tables with what the worker does in them, and columns with their types (SPEC K2)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from retention_pipeline.catalog import requirements as req
from retention_pipeline.catalog.document import EntryPath
from retention_pipeline.catalog.sweep_model import ClearDataset, PurgeDataset, ShelveDataset, SweepDataset

TENANT_POLICY: Final = "retention_worker_tenant"


@dataclass(frozen=True, slots=True, kw_only=True)
class NeededTable:
    """A table of a sweep.

    Args:
        path: its entry in the file.
        keys: its unique columns.
        commands: what the worker does in it; a row lock needs `UPDATE`.
        policies: the product's own restrictive policies for the worker that must stand.
    """

    path: EntryPath
    table: str
    tenant: str
    keys: tuple[str, ...]
    commands: frozenset[str]
    policies: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class NeededColumn:
    """A column of a sweep.

    Args:
        path: its entry in the file.
        types: those that it may have; none where any will do.
        like: a table and a column whose values it must hold.
        values: those that the file says it has.
        emptied: whether the product writes it, and NULL is one of its values.
    """

    path: EntryPath
    table: str
    column: str
    types: frozenset[str] = frozenset()
    like: tuple[str, str] | None = None
    values: tuple[str, ...] = ()
    emptied: bool = False


def tables(dataset: SweepDataset) -> Iterator[NeededTable]:
    """Each table, once for each entry that names it."""
    if isinstance(dataset, ShelveDataset):
        yield from _shelving(dataset)
        return
    verb = "retention_worker_clears" if isinstance(dataset, ClearDataset) else "retention_worker_deletes"
    commands = {"SELECT", "UPDATE"} if isinstance(dataset, ClearDataset) else {"SELECT", "UPDATE", "DELETE"}
    for i, table in enumerate(dataset.tables):
        yield NeededTable(
            path=("tables", i),
            table=table.table,
            tenant=table.tenant,
            keys=table.key,
            commands=frozenset(commands),
            policies=frozenset({TENANT_POLICY, verb}),
        )


def _shelving(dataset: ShelveDataset) -> Iterator[NeededTable]:
    parts: tuple[tuple[str, str, str, tuple[str, ...], set[str], str | None], ...] = (
        *(
            (name, part.table, part.tenant, (part.key,), {"SELECT"}, None)
            for name, part in (("companies", dataset.companies), ("invites", dataset.invites))
        ),
        *(
            (name, part.table, part.tenant, (), {"INSERT"}, "retention_worker_tells")
            for name, part in (("activity", dataset.activity), ("notifications", dataset.notifications))
        ),
    )
    requests = dataset.requests
    own = ("requests", requests.table, requests.tenant, requests.key, {"SELECT", "UPDATE"}, "retention_worker_shelves")
    for name, table, tenant, keys, commands, policy in (own, *parts):
        yield NeededTable(
            path=(name,),
            table=table,
            tenant=tenant,
            keys=keys,
            commands=frozenset(commands),
            policies=frozenset({TENANT_POLICY, policy} if policy else {TENANT_POLICY}),
        )


def columns(dataset: SweepDataset, instances: tuple[str, str]) -> Iterator[NeededColumn]:
    """Each column that the file names.

    Args:
        dataset: the sweep's rules.
        instances: the table of the instances and its key, whose values an `instance` column holds.
    """
    for needed in tables(dataset):
        yield NeededColumn(path=(*needed.path, "tenant"), table=needed.table, column=needed.tenant)
        for i, column in enumerate(needed.keys):
            path = (
                (*needed.path, "key", i)
                if len(needed.path) > 1 or needed.path == ("requests",)
                else (*needed.path, "key")
            )
            yield NeededColumn(path=path, table=needed.table, column=column)
    if isinstance(dataset, PurgeDataset):
        yield from _purged(dataset, instances)
    elif isinstance(dataset, ClearDataset):
        yield from _cleared(dataset, instances)
    else:
        yield from _shelved(dataset)


def _purged(dataset: PurgeDataset, instances: tuple[str, str]) -> Iterator[NeededColumn]:
    names = {table.name: table for table in dataset.tables}
    for i, table in enumerate(dataset.tables):
        path: EntryPath = ("tables", i)
        yield NeededColumn(path=(*path, "age"), table=table.table, column=table.age, types=req.INSTANT)
        if table.status:
            yield NeededColumn(path=(*path, "status"), table=table.table, column=table.status)
            yield NeededColumn(path=(*path, "closed"), table=table.table, column=table.status, values=table.closed)
        if table.present:
            yield NeededColumn(path=(*path, "present"), table=table.table, column=table.present)
        if table.instance:
            # A hold is found by the key's text: of another type, it could be missed.
            yield NeededColumn(path=(*path, "instance"), table=table.table, column=table.instance, like=instances)
        for own, theirs in table.join.items():
            parent = (names[table.parent].table, theirs) if table.parent else None
            yield NeededColumn(path=(*path, "join", own), table=table.table, column=own, like=parent)
            if parent:
                yield NeededColumn(path=(*path, "join", own), table=parent[0], column=theirs)


def _cleared(dataset: ClearDataset, instances: tuple[str, str]) -> Iterator[NeededColumn]:
    for i, table in enumerate(dataset.tables):
        path: EntryPath = ("tables", i)
        yield NeededColumn(
            path=(*path, "payload"), table=table.table, column=table.payload, types=frozenset({"jsonb"}), emptied=True
        )
        yield NeededColumn(
            path=(*path, "marker"), table=table.table, column=table.marker, types=req.INSTANT, emptied=True
        )
        for j, mirror in enumerate(table.mirrors):
            yield NeededColumn(path=(*path, "mirrors", j), table=table.table, column=mirror, types=req.JSON)
        if table.instance:
            yield NeededColumn(path=(*path, "instance"), table=table.table, column=table.instance, like=instances)
    if allowed := dataset.allowed:
        for name in ("tenant", "name", "value"):
            yield NeededColumn(path=("allowed", name), table=allowed.table, column=getattr(allowed, name))


def _shelved(dataset: ShelveDataset) -> Iterator[NeededColumn]:
    requests, companies, invites = dataset.requests, dataset.companies, dataset.invites
    company, invite = (companies.table, companies.key), (invites.table, invites.key)
    of_requests = (
        ("status", frozenset[str](), None, (), False),
        ("pending", frozenset[str](), None, (requests.pending,), False),
        ("company", frozenset[str](), company, (), False),
        ("invite", frozenset[str](), invite, (), False),
        ("kept_at", req.INSTANT, None, (), True),
        ("archived_at", req.INSTANT, None, (), True),
        ("version", req.INTEGERS, None, (), False),
        ("active_at", req.INSTANT, None, (), False),
    )
    for name, types, like, values, emptied in of_requests:
        yield NeededColumn(
            path=("requests", name),
            table=requests.table,
            column=requests.status if name == "pending" else getattr(requests, name),
            types=types,
            like=like,
            values=values,
            emptied=emptied,
        )
    yield NeededColumn(path=("companies", "status"), table=companies.table, column=companies.status)
    yield NeededColumn(
        path=("companies", "active"), table=companies.table, column=companies.status, values=companies.active
    )
    yield NeededColumn(path=("invites", "company"), table=invites.table, column=invites.company, like=company)
    for name, trace in (("activity", dataset.activity), ("notifications", dataset.notifications)):
        yield NeededColumn(path=(name, "company"), table=trace.table, column=trace.company, like=company)
        subject = (requests.table, requests.key[0])
        yield NeededColumn(path=(name, "subject"), table=trace.table, column=trace.subject, like=subject)
        yield NeededColumn(path=(name, "what"), table=trace.table, column=trace.what)
        if trace.actor:
            yield NeededColumn(path=(name, "actor"), table=trace.table, column=trace.actor)
