"""Do the parts of a catalog fit together? Pure, and before any database is asked."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from retention_pipeline.catalog.document import EntryPath
from retention_pipeline.catalog.model import ROOT, Evidence, InstanceDataset, Related, Shared
from retention_pipeline.model.decision import Disposition

_CLOSED_SCHEMAS = ("retention", "information_schema")


@dataclass(frozen=True, slots=True, kw_only=True)
class Flaw:
    """An entry that does not fit the others."""

    path: EntryPath
    sentence: str


def flaws(dataset: InstanceDataset) -> tuple[Flaw, ...]:
    """Every flaw, with the path of its entry."""
    rules: tuple[Callable[[InstanceDataset], Iterator[Flaw]], ...] = (
        _names_stand_once,
        _tables_have_one_part,
        _tables_are_the_platforms,
        _parents_stand_above,
        _root_children_name_the_instance,
        _epochs_belong_to_the_root,
        _policy_is_found_by_its_key,
        _blockers_have_evidence,
        _payloads_carry_no_meaning,
        _values_stand_once,
        _setting_is_the_platforms,
        _recovery_changes_evidence_alone,
        _stores_have_bindings,
    )
    return tuple(flaw for rule in rules for flaw in rule(dataset))


def related(dataset: InstanceDataset) -> Iterator[tuple[EntryPath, Related]]:
    """Each evidence and shared table, with its path in the file."""
    yield from ((("evidence", i), table) for i, table in enumerate(dataset.evidence))
    yield from ((("shared", i), table) for i, table in enumerate(dataset.shared))


def tables(dataset: InstanceDataset) -> Iterator[tuple[EntryPath, str, str]]:
    """Each table with the path of its part and its tenant column."""
    yield ("tenants",), dataset.tenants.table, dataset.tenants.key
    yield ("root",), dataset.root.table, dataset.root.tenant
    yield from ((path, table.table, table.tenant) for path, table in related(dataset))
    if dataset.stores:
        yield ("stores",), dataset.stores.table, dataset.stores.tenant


def policy_of(dataset: InstanceDataset) -> tuple[EntryPath, Shared]:
    """The shared table that carries the retention period, with its path."""
    found = dataset.policy
    return ("shared", dataset.shared.index(found)), found


def _names_stand_once(dataset: InstanceDataset) -> Iterator[Flaw]:
    seen = {ROOT}
    for path, table in related(dataset):
        if table.name in seen:
            yield Flaw(path=(*path, "name"), sentence=f"the name {table.name} stands twice")
        seen.add(table.name)


def _tables_have_one_part(dataset: InstanceDataset) -> Iterator[Flaw]:
    """A row has one end: deleted with one instance, or kept. Only shared tables, stores too, may be reached in two ways."""
    seen: dict[str, tuple[EntryPath, str]] = {}
    for path, table, tenant in tables(dataset):
        first, first_tenant = seen.setdefault(table, (path, tenant))
        if first == path:
            continue
        if first[0] != "shared" or path[0] not in {"shared", "stores"}:
            yield Flaw(
                path=(*path, "table"), sentence=f"{table} stands under `{first[0]}` already; a table has one part"
            )
        elif first_tenant != tenant:
            yield Flaw(path=(*path, "tenant"), sentence=f"{table} has the tenant column {first_tenant} above")


def _tables_are_the_platforms(dataset: InstanceDataset) -> Iterator[Flaw]:
    for path, table, _ in tables(dataset):
        schema = table.split(".", 1)[0]
        if schema in _CLOSED_SCHEMAS or schema.startswith("pg_"):
            yield Flaw(path=(*path, "table"), sentence=f"tables of the schema {schema} are not the platform's")


def _parents_stand_above(dataset: InstanceDataset) -> Iterator[Flaw]:
    """Deletion goes through the evidence from its end to its beginning, so that children go before their parents."""
    seen = {ROOT}
    for path, table in related(dataset):
        if table.parent not in seen:
            sentence = f"the parent {table.parent} must be root or the name of a table that stands above"
            yield Flaw(path=(*path, "parent"), sentence=sentence)
        seen.add(table.name)


def _root_children_name_the_instance(dataset: InstanceDataset) -> Iterator[Flaw]:
    for i, table in enumerate(dataset.evidence):
        path: EntryPath = ("evidence", i)
        if table.parent == ROOT and dataset.root.key not in table.join.values():
            yield Flaw(path=(*path, "join"), sentence=f"a child of the root joins on the root's key {dataset.root.key}")
        if table.guard and table.parent != ROOT:
            yield Flaw(path=(*path, "guard"), sentence="only the root and its own children can be guarded")


def _epochs_belong_to_the_root(dataset: InstanceDataset) -> Iterator[Flaw]:
    found = _evidence(dataset, dataset.epochs.evidence)
    if found is None:
        yield Flaw(path=("epochs", "evidence"), sentence=f"there is no evidence named {dataset.epochs.evidence}")
    elif found.parent != ROOT:
        yield Flaw(path=("epochs", "evidence"), sentence="epochs are children of the root itself")


def _policy_is_found_by_its_key(dataset: InstanceDataset) -> Iterator[Flaw]:
    wanted = dataset.root.policy
    found = next((s for s in dataset.shared if s.name == wanted), None)
    if found is None:
        yield Flaw(path=("root", "policy"), sentence=f"there is no shared table named {wanted}")
        return
    path: EntryPath = ("shared", dataset.shared.index(found))
    if found.parent != ROOT:
        yield Flaw(path=(*path, "parent"), sentence="the policy is a shared table of the root itself")
    if found.retention_days is None:
        yield Flaw(path=(*path, "retention_days"), sentence="the policy says its `retention_days`")
    if next(iter(found.join)) != found.key[0]:
        # The rows that carry periods are locked by this one column.
        yield Flaw(path=(*path, "join"), sentence=f"the policy's join begins with its key's column {found.key[0]}")


def _blockers_have_evidence(dataset: InstanceDataset) -> Iterator[Flaw]:
    seen: set[str] = set()
    for i, blocker in enumerate(dataset.blockers):
        path: EntryPath = ("blockers", i)
        if _evidence(dataset, blocker.evidence) is None:
            yield Flaw(path=(*path, "evidence"), sentence=f"there is no evidence named {blocker.evidence}")
        if blocker.name in seen:
            yield Flaw(path=(*path, "name"), sentence=f"the name {blocker.name} stands twice")
        if blocker.name in set(Disposition):
            yield Flaw(path=(*path, "name"), sentence=f"{blocker.name} is the name of a disposition already")
        seen.add(blocker.name)


def _payloads_carry_no_meaning(dataset: InstanceDataset) -> Iterator[Flaw]:
    """A marker stands in a payload's place: a key, a tenant, a link or a status that it replaces would be lost."""
    for i, table in enumerate(dataset.evidence):
        if table.ephemeral is None:
            continue
        path: EntryPath = ("evidence", i, "ephemeral")
        needed = _needed(dataset, table)
        columns = (table.ephemeral.payload, *table.ephemeral.mirrors)
        for column in sorted(set(columns) & needed):
            yield Flaw(path=path, sentence=f"the column {column} is needed elsewhere, and would not be archived")
        yield from _once((*path, "mirrors"), columns)


def _needed(dataset: InstanceDataset, table: Related) -> set[str]:
    needed = {table.tenant, *table.key, *table.join}
    for _, child in related(dataset):
        if child.parent == table.name:
            needed.update(child.join.values())
    needed.update(b.column for b in dataset.blockers if b.evidence == table.name and b.column)
    if dataset.epochs.evidence == table.name:
        needed |= {dataset.epochs.ordinal, dataset.epochs.state, dataset.epochs.at}
    return needed


def _values_stand_once(dataset: InstanceDataset) -> Iterator[Flaw]:
    yield from _once(("root", "terminal_states"), dataset.root.terminal_states)
    for i, blocker in enumerate(dataset.blockers):
        yield from _once(("blockers", i, "closed"), blocker.closed)
    for path, table in related(dataset):
        yield from _once((*path, "key"), table.key)


def _once(path: EntryPath, values: Iterable[str]) -> Iterator[Flaw]:
    seen: set[str] = set()
    for value in values:
        if value in seen:
            yield Flaw(path=path, sentence=f"{value} stands twice")
        seen.add(value)


def _setting_is_the_platforms(dataset: InstanceDataset) -> Iterator[Flaw]:
    if (dataset.tenants.setting or "").startswith("retention."):
        yield Flaw(path=("tenants", "setting"), sentence="settings that begin with `retention.` are the product's own")


def _recovery_changes_evidence_alone(dataset: InstanceDataset) -> Iterator[Flaw]:
    recovery = dataset.recovery
    if recovery is None:
        return
    found = _evidence(dataset, recovery.evidence)
    if found is None:
        yield Flaw(path=("recovery", "evidence"), sentence=f"there is no evidence named {recovery.evidence}")
        return
    if found.key != (recovery.key,):
        yield Flaw(path=("recovery", "key"), sentence=f"a dead letter is named by the one key of {found.name}")
    if recovery.cancelled in recovery.open:
        yield Flaw(path=("recovery", "cancelled"), sentence=f"{recovery.cancelled} is open as well")
    changed = (recovery.fence, recovery.status, recovery.closed_at)
    yield from _once(("recovery",), changed)
    ephemeral = (found.ephemeral.payload, *found.ephemeral.mirrors) if found.ephemeral else ()
    fixed = {found.tenant, *found.key, *found.join, *ephemeral}
    fixed |= {theirs for _, child in related(dataset) if child.parent == found.name for theirs in child.join.values()}
    for column in sorted(set(changed) & fixed):
        yield Flaw(path=("recovery",), sentence=f"the column {column} ties rows together, and never changes")


def _stores_have_bindings(dataset: InstanceDataset) -> Iterator[Flaw]:
    stores = dataset.stores
    if stores is None:
        return
    if _evidence(dataset, stores.bindings) is None:
        yield Flaw(path=("stores", "bindings"), sentence=f"there is no evidence named {stores.bindings}")
    if stores.detached_at in {stores.key, stores.tenant}:
        yield Flaw(path=("stores", "detached_at"), sentence=f"the column {stores.detached_at} names the store already")


def _evidence(dataset: InstanceDataset, name: str) -> Evidence | None:
    return next((e for e in dataset.evidence if e.name == name), None)
