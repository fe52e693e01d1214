"""Retention periods as they are written, and what preflights saw of them before (SPEC W1, G8).

A period that was shortened is not believed at once: until the cooling-off time is over, or a later preflight was acknowledged,
the longest period that was in force meanwhile counts. Who shortened it by mistake has that long to notice.
"""

from typing import Final

from psycopg import sql

from retention_pipeline.catalog.model import InstanceDataset
from retention_pipeline.postgres import names
from retention_pipeline.postgres.shape import SourceShape

UNLIMITED_DAYS: Final = 9_999_999
"""Longer than any period that can be written; what is no period protects its rows, and counts like none."""

_LONGEST = """
SELECT seen.policy_key, max(CASE WHEN seen.said ~ '^[0-9]{{1,6}}([.]0*)?$'
    THEN CASE WHEN seen.said::numeric > 0 THEN seen.said::numeric::integer ELSE {unlimited} END ELSE {unlimited} END) AS days
FROM (SELECT policy_key, said, lead(at) OVER (PARTITION BY policy_key ORDER BY id) AS until
  FROM retention.policy_observations WHERE tenant_id = %(tenant)s::text) AS seen
WHERE seen.until IS NULL OR seen.until > greatest(%(as_of)s::timestamptz - make_interval(hours => {hours}),
  (SELECT p.at FROM retention.acknowledgements AS a JOIN retention.preflights AS p ON p.id = a.preflight_id
    AND p.tenant_id = a.tenant_id WHERE a.tenant_id = %(tenant)s::text ORDER BY a.id DESC LIMIT 1))
GROUP BY seen.policy_key"""

_OBSERVE = """
INSERT INTO retention.policy_observations (tenant_id, policy_key, said)
SELECT %(tenant)s::text, now_said.policy_key, now_said.said
FROM (SELECT w.{key}::text AS policy_key, {said} AS said FROM {policies} AS w WHERE w.{owner} = {tenant}) AS now_said
LEFT JOIN LATERAL (SELECT o.said FROM retention.policy_observations AS o WHERE o.tenant_id = %(tenant)s::text
  AND o.policy_key = now_said.policy_key ORDER BY o.id DESC LIMIT 1) AS last ON true
WHERE last.said IS DISTINCT FROM now_said.said
ORDER BY now_said.policy_key"""


def longest_periods(cooling_off_hours: int) -> sql.Composed:
    """For each policy that a preflight saw: the longest period, in days, that still counts. Parameters: `tenant`, `as_of`."""
    return sql.SQL(_LONGEST).format(unlimited=sql.Literal(UNLIMITED_DAYS), hours=sql.Literal(cooling_off_hours))


def observe(dataset: InstanceDataset, shape: SourceShape) -> sql.Composed:
    """Record the periods that differ from what was seen last; the first preflight records them all. Parameter: `tenant`."""
    policy = dataset.policy
    return sql.SQL(_OBSERVE).format(
        key=sql.Identifier(next(iter(policy.join))),
        said=said_period(dataset, shape),
        policies=names.table(policy.table),
        owner=sql.Identifier(policy.tenant),
        tenant=this_tenant(shape, policy.table, policy.tenant),
    )


def said_period(dataset: InstanceDataset, shape: SourceShape) -> sql.Composed:
    """What a policy row `w` says, else the tenant's default, as text; `none` where neither says anything."""
    tenants = dataset.tenants
    default = (
        sql.SQL("(SELECT n.{days}::text FROM {tenants} AS n WHERE n.{key} = {this})").format(
            days=sql.Identifier(tenants.retention_days),
            tenants=names.table(tenants.table),
            key=sql.Identifier(tenants.key),
            this=this_tenant(shape, tenants.table, tenants.key),
        )
        if tenants.retention_days
        else sql.SQL("NULL::text")
    )
    return sql.SQL("coalesce(w.{}::text, {}, 'none')").format(
        sql.Identifier(dataset.policy.retention_days or ""), default
    )


def this_tenant(shape: SourceShape, table: str, column: str) -> sql.Composed:
    """The tenant, as the type of a source column, so that an index on it serves."""
    return sql.SQL("%(tenant)s::text::{}").format(sql.SQL(shape.type_of(table, column)))
