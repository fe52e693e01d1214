"""Rules of the check: are the tables, columns, types and keys there that the catalog names?"""

from collections.abc import Iterator

from retention_pipeline.catalog import requirements as req
from retention_pipeline.catalog.comparison import Comparison
from retention_pipeline.catalog.consistency import policy_of, related, tables
from retention_pipeline.catalog.document import EntryPath
from retention_pipeline.catalog.fault import Fault, FaultCode
from retention_pipeline.catalog.model import Evidence, InstanceDataset, Related, Shared

_DAYS = req.INTEGERS | req.TEXTS | {"numeric"}


def tables_are_there(seen: Comparison) -> Iterator[Fault]:
    """Each table is an ordinary or a partitioned one, without heirs."""
    for path, table, _ in tables(seen.dataset):
        yield from req.whole_table(seen, (*path, "table"), table)


def columns_are_there(seen: Comparison) -> Iterator[Fault]:
    """Each column that the catalog names exists in its table."""
    yield from req.has_columns(seen, _named_columns(seen))


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
    yield from req.of_type(seen, ("epochs", "at"), epoch_table, epochs.at, req.INSTANT)
    yield from req.of_type(seen, ("epochs", "ordinal"), epoch_table, epochs.ordinal, req.INTEGERS)
    if dataset.tenants.retention_days:
        path: EntryPath = ("tenants", "retention_days")
        yield from req.of_type(seen, path, dataset.tenants.table, dataset.tenants.retention_days, _DAYS)
    for path, table in related(dataset):
        if isinstance(table, Shared) and table.retention_days:
            yield from req.of_type(seen, (*path, "retention_days"), table.table, table.retention_days, _DAYS)
        if isinstance(table, Evidence) and table.ephemeral:
            where = (*path, "ephemeral", "payload")
            yield from req.of_type(seen, where, table.table, table.ephemeral.payload, req.JSON)
        for own, theirs in table.join.items():
            parent = (seen.parent_table(table), theirs)
            yield from req.fitting(seen, (*path, "join", own), (table.table, own), parent)
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
        yield from req.of_type(seen, ("recovery", "fence"), table, recovery.fence, req.INTEGERS)
        yield from req.of_type(seen, ("recovery", "closed_at"), table, recovery.closed_at, req.INSTANT)
    if stores := seen.dataset.stores:
        yield from req.of_type(seen, ("stores", "detached_at"), stores.table, stores.detached_at, req.INSTANT)
        child = (seen.dataset.by_name[stores.bindings].table, stores.store)
        yield from req.fitting(seen, ("stores", "store"), child, (stores.table, stores.key))


def tenants_fit(seen: Comparison) -> Iterator[Fault]:
    """Each table's tenant is of the type of the tenants' key, and never absent."""
    tenants = seen.dataset.tenants
    for path, table, column in tables(seen.dataset):
        if path == ("tenants",):
            continue
        where = (*path, "tenant")
        yield from req.fitting(seen, where, (table, column), (tenants.table, tenants.key))
        effect = "is in no tenant's inventory" if path == ("root",) else "is a foreign row, and blocks its instance"
        yield from req.tenant_given(seen, where, (table, column), effect)


def values_are_known(seen: Comparison) -> Iterator[Fault]:
    """Where a column has a closed list of values, the catalog's values are among them."""
    dataset = seen.dataset
    states = dataset.root.terminal_states
    path: EntryPath = ("root", "terminal_states")
    yield from req.knowing(seen, path, (dataset.root.table, dataset.root.state), states)
    yield from req.knowing(seen, path, (dataset.epoch_table.table, dataset.epochs.state), states)
    for i, blocker in enumerate(dataset.blockers):
        if blocker.column:
            column = (dataset.by_name[blocker.evidence].table, blocker.column)
            yield from req.knowing(seen, ("blockers", i, "closed"), column, blocker.closed)
    if recovery := dataset.recovery:
        column = (dataset.by_name[recovery.evidence].table, recovery.status)
        yield from req.knowing(seen, ("recovery", "open"), column, recovery.open)
        yield from req.knowing(seen, ("recovery", "cancelled"), column, (recovery.cancelled,))


def keys_are_unique(seen: Comparison) -> Iterator[Fault]:
    """What the product takes for one row is one row."""
    for path, table, columns in _unique_columns(seen.dataset):
        yield from req.unique(seen, path, table, columns)


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
