"""What the catalog's sweeps install: privileges and policies of the worker, so that its login alone ends no row (SPEC G4, L3).

A restrictive policy asks what the run asks: is this row over its time by the database's own clock, and is a run of this sweep under
way that somebody approved? Who shortens the days in a file on the worker's machine shortens nothing before the owner migrates.
"""

from collections.abc import Iterator

from psycopg import sql

from retention_pipeline.catalog.loader import Catalog
from retention_pipeline.catalog.sweep_model import ClearDataset, PurgeDataset, PurgedTable, ShelveDataset
from retention_pipeline.model.people import SweepJob
from retention_pipeline.postgres import names, payload_rules, shelve_rules
from retention_pipeline.postgres.definer import COUNTER, OPERATOR, WORKER, policy


def swept_tables(catalog: Catalog) -> dict[str, str]:
    """Every table that a sweep reads or changes, with its tenant column, without those of instances."""
    found: dict[str, str] = {}
    for rules in catalog.sweeps:
        for table in rules.dataset.tables:
            found[table.table] = table.tenant
        if isinstance(rules.dataset, ShelveDataset):
            found.update(shelve_rules.tables_beside(rules.dataset))
    return found


def extra_tables(catalog: Catalog) -> tuple[str, ...]:
    """Tables that a sweep asks about beside those that it goes through."""
    return tuple(
        rules.dataset.allowed.table
        for rules in catalog.sweeps
        if isinstance(rules.dataset, ClearDataset) and rules.dataset.allowed
    )


def statements(catalog: Catalog) -> list[sql.Composed]:
    """Everything that the sweeps of a catalog install, beside what its instances do."""
    made: list[sql.Composed] = []
    evidence = {table.table for table in catalog.instances.evidence}
    own = {name for name in swept_tables(catalog) if name not in _of_instances(catalog)}
    for name, tenant in swept_tables(catalog).items():
        if name in own:
            made += _reading(name, tenant)
    made += [*payload_rules.rules(catalog), *shelve_rules.rules(catalog)]
    going: dict[str, list[sql.Composed]] = {}
    for dataset, table in _purged(catalog):
        made += _locking(table)
        going.setdefault(table.table, []).append(purgeable(dataset, table))
    for name, rules in going.items():
        if name not in evidence:  # of evidence, `worker_rules` says which rows go
            made += _deleting(name, rules)
    return made


def histories(catalog: Catalog) -> dict[str, list[sql.Composed]]:
    """For each table of evidence, the rules by which a row of it may go as history."""
    found: dict[str, list[sql.Composed]] = {}
    for dataset, table in _purged(catalog):
        if dataset.history:
            found.setdefault(table.table, []).append(purgeable(dataset, table))
    return found


def _purged(catalog: Catalog) -> Iterator[tuple[PurgeDataset, PurgedTable]]:
    """Each entry by which a table is purged; several may name one table."""
    for rules in catalog.sweeps:
        if isinstance(rules.dataset, PurgeDataset):
            yield from ((rules.dataset, table) for table in rules.dataset.tables)


def _of_instances(catalog: Catalog) -> set[str]:
    dataset = catalog.instances
    return {dataset.tenants.table, dataset.root.table, *(related.table for related in dataset.by_name.values())}


def _reading(name: str, tenant: str) -> Iterator[sql.Composed]:
    """The product's three roles read their own tenant's rows; the counter counts over all."""
    yield sql.SQL("GRANT USAGE ON SCHEMA {} TO {}, {}, {}").format(
        sql.Identifier(name.split(".", 1)[0]), WORKER, OPERATOR, COUNTER
    )
    yield sql.SQL("GRANT SELECT ON {} TO {}, {}, {}").format(names.table(name), WORKER, OPERATOR, COUNTER)
    yield from policy("retention_counter_reads", name, "FOR SELECT TO {role} USING (true)", COUNTER)
    yield from policy(
        "retention_operator_reads",
        name,
        "AS RESTRICTIVE FOR SELECT TO {role} USING ({tenant}::text = (SELECT retention.current_tenant())"
        " AND (SELECT retention.permitted('workflow_retention:read')))",
        OPERATOR,
        tenant=sql.Identifier(tenant),
    )
    yield from policy(
        "retention_worker_tenant",
        name,
        "AS RESTRICTIVE TO {role} USING ({tenant}::text = (SELECT retention.current_tenant()))",
        WORKER,
        tenant=sql.Identifier(tenant),
    )


def _locking(table: PurgedTable) -> Iterator[sql.Composed]:
    """The worker's privileges to lock and to delete."""
    on = names.table(table.table)
    yield sql.SQL("GRANT DELETE ON {} TO {}").format(on, WORKER)
    # A row lock needs the privilege to update; the policy lets nobody use it for an update.
    yield sql.SQL("GRANT UPDATE ({}) ON {} TO {}").format(sql.Identifier(table.key[0]), on, WORKER)
    yield from policy(
        "retention_worker_locks",
        table.table,
        "AS RESTRICTIVE FOR UPDATE TO {role} USING (true) WITH CHECK (false)",
        WORKER,
    )


def _deleting(table: str, rules: list[sql.Composed]) -> Iterator[sql.Composed]:
    """Which rows the worker deletes: those that one of the entries for this table names."""
    yield from policy(
        "retention_worker_deletes",
        table,
        "AS RESTRICTIVE FOR DELETE TO {role} USING ({over})",
        WORKER,
        over=sql.SQL(" OR ").join(sql.SQL("({})").format(rule) for rule in rules),
    )


def purgeable(dataset: PurgeDataset, table: PurgedTable) -> sql.Composed:
    """The row, by its bare columns, is over its time by the database's clock, no hold keeps it, and an approved run is under way."""
    rule = [
        sql.SQL("{} < clock_timestamp() - make_interval(hours => 24 * {})").format(
            sql.Identifier(table.age), sql.Literal(table.older_than_days)
        ),
        sql.SQL("{} > '-infinity'::timestamptz").format(sql.Identifier(table.age)),
    ]
    if table.status is not None:
        closed = sql.Literal(list(table.closed))
        rule.append(sql.SQL("{}::text = ANY({})").format(sql.Identifier(table.status), closed))
    if table.present is not None:
        rule.append(sql.SQL("{} IS NOT NULL").format(sql.Identifier(table.present)))
    rule += _unheld(dataset, table)
    job = sql.Literal(SweepJob.of(dataset.dataset))
    rule.append(sql.SQL("(SELECT retention.sweeping({}))").format(job))
    return names.conjunction(rule)


def _unheld(dataset: PurgeDataset, table: PurgedTable) -> Iterator[sql.Composed]:
    """No legal hold on the instance that the row names, or that its parent does (G1)."""
    bare = table.table.partition(".")[2]
    if table.instance is not None:
        yield sql.SQL("NOT {}").format(payload_rules.held(names.column(bare, table.instance)))
        return
    parent = next((other for other in dataset.tables if other.name == table.parent), None)
    if parent is not None and parent.instance is not None:
        ties = names.conjunction(
            sql.SQL("{} = {}").format(names.column(bare, own), names.column("o", theirs))
            for own, theirs in table.join.items()
        )
        yield sql.SQL("NOT EXISTS (SELECT FROM {} AS o WHERE {} AND {})").format(
            names.table(parent.table), ties, payload_rules.held(names.column("o", parent.instance))
        )
