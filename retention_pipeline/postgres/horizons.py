"""How many days a purge's rows stay: what the catalog says, or longer while a shortened period cools off (SPEC G8, F13, F17)."""

from psycopg import sql

from retention_pipeline.catalog.sweep_model import PurgedTable
from retention_pipeline.model.ids import TenantId
from retention_pipeline.postgres.session import Cursor, one

_OBSERVE = sql.SQL("""
INSERT INTO retention.horizon_observations (tenant_id, dataset, table_name, days)
SELECT %(tenant)s::text, %(dataset)s::text, %(table)s::text, %(days)s::integer
WHERE (SELECT o.days FROM retention.horizon_observations AS o WHERE o.tenant_id = %(tenant)s::text AND o.dataset = %(dataset)s::text
  AND o.table_name = %(table)s::text ORDER BY o.id DESC LIMIT 1) IS DISTINCT FROM %(days)s::integer
""")
# A period was in effect until the next one was seen.
_LONGEST = sql.SQL("""
SELECT greatest(%(days)s::integer, max(seen.days)) FROM (
  SELECT o.days, lead(o.at) OVER (ORDER BY o.id) AS until FROM retention.horizon_observations AS o
  WHERE o.tenant_id = %(tenant)s::text AND o.dataset = %(dataset)s::text AND o.table_name = %(table)s::text) AS seen
WHERE coalesce(seen.until, clock_timestamp()) > clock_timestamp() - make_interval(hours => %(hours)s::integer)
""")


def observe(cursor: Cursor, tenant: TenantId, dataset: str, table: PurgedTable) -> None:
    """Note the days that this run read in the catalog, where they are others than the last run's."""
    cursor.execute(_OBSERVE, _values(tenant, dataset, table))


def days(cursor: Cursor, tenant: TenantId, dataset: str, table: PurgedTable, *, cooling_off_hours: int) -> int:
    """The days that apply now: the longest that were in effect within the last hours."""
    cursor.execute(_LONGEST, {**_values(tenant, dataset, table), "hours": cooling_off_hours})
    return int(one(cursor)[0])


def _values(tenant: TenantId, dataset: str, table: PurgedTable) -> dict[str, object]:
    return {"tenant": tenant, "dataset": dataset, "table": table.name, "days": table.older_than_days}
