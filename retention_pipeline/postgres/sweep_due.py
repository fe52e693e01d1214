"""Which tenants have rows that may be due, in one statement over all tenants: who has none costs no run and no event (SPEC D1, L1).

One index probe for each tenant and table, by a definer function that gives ids and nothing else. A row that a hold keeps counts as
well: the tenant's own look says what keeps it.
"""

from datetime import datetime

from psycopg import sql

from retention_pipeline.catalog.loader import Catalog
from retention_pipeline.catalog.sweep_model import ClearDataset, PurgeDataset, SweepDataset
from retention_pipeline.model.ids import TenantId
from retention_pipeline.model.people import SweepJob
from retention_pipeline.postgres import names
from retention_pipeline.postgres.definer import WORKER, DefinerFunction
from retention_pipeline.postgres.session import Session, rows
from retention_pipeline.postgres.shape import SourceShape

_DUE = sql.SQL("SELECT retention.sweep_due(%(dataset)s, coalesce(%(as_of)s::timestamptz, clock_timestamp()))")
_BEHIND = sql.SQL("SELECT retention.sweeps_behind(%(job)s)")


def functions(catalog: Catalog, shape: SourceShape) -> list[DefinerFunction]:
    """What the catalog installs: nothing where it has no sweep."""
    if not catalog.sweeps:
        return []
    branches = [_tenants(catalog, rules.dataset, shape) for rules in catalog.sweeps]
    return [
        DefinerFunction(
            name="sweep_due",
            arguments=(("dataset", "text"), ("as_of", "timestamptz")),
            returns="SETOF text",
            body=sql.SQL(" UNION ALL ").join(branches) + sql.SQL(" ORDER BY 1"),
            readers=(WORKER,),
        )
    ]


def due(session: Session, dataset: str, as_of: datetime | None = None) -> tuple[TenantId, ...]:
    """Tenants that have rows over their time, by id; as of the database's clock where no instant is given."""
    with session.transaction(None, read_only=True) as cursor:
        return tuple(TenantId(row[0]) for row in rows(cursor, _DUE, {"dataset": dataset, "as_of": as_of}))


def behind(session: Session, dataset: str) -> tuple[TenantId, ...]:
    """Tenants whose last pass, within a day, left work behind: they get another one within the hour."""
    with session.transaction(None, read_only=True) as cursor:
        return tuple(TenantId(row[0]) for row in rows(cursor, _BEHIND, {"job": SweepJob.of(dataset)}))


def _tenants(catalog: Catalog, dataset: SweepDataset, shape: SourceShape) -> sql.Composed:
    tenants = catalog.instances.tenants
    key = names.column("t", tenants.key)
    probes = sql.SQL(" OR ").join(
        sql.SQL("EXISTS (SELECT FROM {} AS r WHERE r.{} = {}::text::{} AND {})").format(
            names.table(table), sql.Identifier(tenant), key, sql.SQL(shape.type_of(table, tenant)), is_over
        )
        for table, tenant, is_over in _over(dataset)
    )
    return sql.SQL("SELECT {}::text FROM {} AS t WHERE sweep_due.dataset = {} AND ({})").format(
        key, names.table(tenants.table), sql.Literal(dataset.dataset), probes
    )


def _over(dataset: SweepDataset) -> list[tuple[str, str, sql.Composed]]:
    """Each table with its tenant column, and the condition that a row (alias `r`) is over its time, as its index has it."""
    if isinstance(dataset, PurgeDataset):
        rule = "r.{age} < sweep_due.as_of - make_interval(hours => 24 * {days}) AND r.{age} > '-infinity'::timestamptz"
        return [
            (
                table.table,
                table.tenant,
                sql.SQL(rule).format(age=sql.Identifier(table.age), days=sql.Literal(table.older_than_days)),
            )
            for table in dataset.tables
        ]
    if isinstance(dataset, ClearDataset):
        return [
            (
                table.table,
                table.tenant,
                sql.SQL("retention.payload_expiry(r.{}) < sweep_due.as_of").format(sql.Identifier(table.payload)),
            )
            for table in dataset.tables
        ]
    requests = dataset.requests
    rule = (
        "r.{status}::text = {pending} AND r.{kept} IS NULL AND r.{archived} IS NULL"
        " AND r.{active} <= sweep_due.as_of - make_interval(hours => 24 * {days}) AND r.{active} > '-infinity'::timestamptz"
    )
    condition = sql.SQL(rule).format(
        status=sql.Identifier(requests.status),
        pending=sql.Literal(requests.pending),
        kept=sql.Identifier(requests.kept_at),
        archived=sql.Identifier(requests.archived_at),
        active=sql.Identifier(requests.active_at),
        days=sql.Literal(dataset.idle_days),
    )
    return [(requests.table, requests.tenant, condition)]
