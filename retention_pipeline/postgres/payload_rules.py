"""What a sweep that clears payloads installs: pages that see past row-level security, the worker's one right, and the view for readers.

Row-level security lets no index serve a function that could leak, so that the search runs in a definer function, for the tenant of its
transaction alone, and gives keys and instants. What is cleared is decided again where it is cleared, by the worker, under its policies.
"""

from collections.abc import Iterator
from typing import Final

from psycopg import sql

from retention_pipeline.catalog.loader import Catalog
from retention_pipeline.catalog.sweep_model import Allowed, ClearDataset, ClearedTable
from retention_pipeline.model.people import SweepJob
from retention_pipeline.model.sweep import COUNTED, NOTICED
from retention_pipeline.postgres import names
from retention_pipeline.postgres.content import EPHEMERAL_MARKER
from retention_pipeline.postgres.definer import COUNTER, OPERATOR, WORKER, DefinerFunction, policy
from retention_pipeline.postgres.shape import SourceShape

READER: Final = sql.Identifier("retention_reader")

_PAGE: Final = """
SELECT ARRAY[{keys}], {expiry} FROM {table} AS t
WHERE {tenant} = retention.current_tenant()::{tenant_type} AND {expiry} < before
  AND (after IS NULL OR ({expiry}, {bare}) > (after, {behind}))
ORDER BY {expiry}, {bare} LIMIT most
"""
_LOOK: Final = """
SELECT (SELECT count(*) FROM (SELECT FROM {table} AS t WHERE {mine} AND {expiry} < before{free} LIMIT {most}) AS c),
  (SELECT extract(epoch FROM before - {expiry})::float8 FROM {table} AS t WHERE {mine} AND {expiry} < before{free}
    ORDER BY {expiry} LIMIT 1),
  (SELECT count(*) FROM (SELECT FROM {table} AS t WHERE {mine} AND {expiry} >= before
    AND {expiry} < before + interval '24 hours' LIMIT {most}) AS c),
  (SELECT count(*) FROM (SELECT FROM {table} AS t WHERE {mine} AND {expiry} IS NOT NULL LIMIT {noticed}) AS c),
  (SELECT coalesce(jsonb_object_agg(flaw, number), '{{}}') FROM (SELECT flaw, count(*) AS number FROM (
    SELECT CASE WHEN jsonb_typeof({payload} -> 'reason') IS DISTINCT FROM 'string' OR {payload} ->> 'reason' !~ '\\S' THEN 'no_reason'
      WHEN NOT {payload} ? 'expiresAt' THEN 'no_expiry' ELSE 'expiry_is_no_instant' END AS flaw
    FROM {table} AS t WHERE {mine} AND {expiry} IS NULL AND {payload} ->> 'mode' = 'ephemeral_hosted' LIMIT {noticed}) AS f
    GROUP BY flaw) AS g),
  {allowed}
"""
_READ: Final = """
SELECT {name}::text AS table_name, {tenant}::text AS tenant_id, {key} AS row_key,
  CASE WHEN {payload} IS NULL THEN CASE WHEN {marker} IS NULL THEN 'never' ELSE 'expired' END
    WHEN {payload} = {never_archived}::jsonb OR {expiry} < clock_timestamp() THEN 'expired' ELSE 'live' END AS state,
  CASE WHEN {payload} IS NULL THEN {marker} ELSE {expiry} END AS expires_at,
  CASE WHEN {payload} <> {never_archived}::jsonb AND ({expiry} < clock_timestamp()) IS NOT TRUE THEN {payload} END AS payload
FROM {table} AS t
"""


def cleared(catalog: Catalog) -> Iterator[tuple[ClearDataset, ClearedTable]]:
    """Each table that is cleared, with its sweep."""
    for rules in catalog.sweeps:
        if isinstance(rules.dataset, ClearDataset):
            yield from ((rules.dataset, table) for table in rules.dataset.tables)


def function_name(kind: str, dataset: str, table: str) -> str:
    """What a table's function is called."""
    return f"{kind}_{dataset}_{table}"[:63]


def functions(catalog: Catalog, shape: SourceShape) -> list[DefinerFunction]:
    """Pages and looks, one of each for each table."""
    made = []
    for dataset, table in cleared(catalog):
        parts = _parts(table, shape)
        behind = names.comma(
            sql.SQL("behind[{}]::{}").format(sql.Literal(i), sql.SQL(shape.type_of(table.table, column)))
            for i, column in enumerate(table.key, 1)
        )
        made.append(
            DefinerFunction(
                name=function_name("page", dataset.dataset, table.name),
                arguments=(
                    ("before", "timestamptz"),
                    ("after", "timestamptz"),
                    ("behind", "text[]"),
                    ("most", "bigint"),
                ),
                returns="TABLE (row_key text[], expires_at timestamptz)",
                body=sql.SQL(_PAGE).format(**parts, behind=behind),
                readers=(WORKER,),
            )
        )
        made.append(
            DefinerFunction(
                name=function_name("look", dataset.dataset, table.name),
                arguments=(("before", "timestamptz"),),
                returns="TABLE (due bigint, overdue float8, inflow bigint, short_lived bigint, flaws jsonb, allowed boolean)",
                body=sql.SQL(_LOOK).format(
                    **parts,
                    free=_unheld(dataset, table),
                    allowed=_allowed(dataset.allowed, shape) if dataset.allowed else sql.SQL("true"),
                ),
                readers=(WORKER,),
            )
        )
    return made


def _parts(table: ClearedTable, shape: SourceShape) -> dict[str, sql.Composable]:
    payload, tenant = names.column("t", table.payload), names.column("t", table.tenant)
    kind = sql.SQL(shape.type_of(table.table, table.tenant))
    return {
        "table": names.table(table.table),
        "tenant": tenant,
        "tenant_type": kind,
        "mine": sql.SQL("{} = retention.current_tenant()::{}").format(tenant, kind),
        "payload": payload,
        "expiry": sql.SQL("retention.payload_expiry({})").format(payload),
        "bare": names.comma(names.column("t", column) for column in table.key),
        "keys": names.comma(sql.SQL("{}::text").format(names.column("t", column)) for column in table.key),
        "most": sql.Literal(COUNTED),
        "noticed": sql.Literal(NOTICED),
    }


def _unheld(dataset: ClearDataset, table: ClearedTable) -> sql.Composable:
    """Nothing, unless the catalog says that a hold on the instance keeps its payloads (E7)."""
    if not dataset.holds_extend or table.instance is None:
        return sql.SQL("")
    return sql.SQL(" AND NOT {}").format(held(names.column("t", table.instance)))


def held(instance: sql.Composable) -> sql.Composed:
    """Whether any matter's latest event for the instance is a hold, of the transaction's tenant."""
    return sql.SQL(
        "EXISTS (SELECT FROM retention.hold_events AS h WHERE h.tenant_id = retention.current_tenant()"
        " AND h.instance_id = {instance}::text AND h.action = 'hold' AND NOT EXISTS (SELECT FROM retention.hold_events AS r"
        " WHERE r.tenant_id = h.tenant_id AND r.instance_id = h.instance_id AND r.matter = h.matter AND r.id > h.id"
        " AND r.action = 'release'))"
    ).format(instance=instance)


def _allowed(allowed: Allowed, shape: SourceShape) -> sql.Composed:
    """Whether the tenant's own setting is literally `true`."""
    return sql.SQL(
        "EXISTS (SELECT FROM {table} AS s WHERE s.{tenant} = retention.current_tenant()::{type} AND s.{name} = {setting}"
        " AND s.{value}::jsonb = 'true'::jsonb)"
    ).format(
        table=names.table(allowed.table),
        tenant=sql.Identifier(allowed.tenant),
        type=sql.SQL(shape.type_of(allowed.table, allowed.tenant)),
        name=sql.Identifier(allowed.name),
        setting=sql.Literal(allowed.setting),
        value=sql.Identifier(allowed.value),
    )


def rules(catalog: Catalog) -> Iterator[sql.Composed]:
    """The worker's right to clear these columns of expired rows, and of no other."""
    for dataset, table in cleared(catalog):
        on = names.table(table.table)
        columns = names.comma(map(sql.Identifier, (table.payload, *table.mirrors, table.marker)))
        yield sql.SQL("GRANT UPDATE ({}) ON {} TO {}").format(columns, on, WORKER)
        yield from policy(
            "retention_worker_clears",
            table.table,
            "AS RESTRICTIVE FOR UPDATE TO {role} USING (retention.payload_expiry({payload}) < clock_timestamp()"
            " AND (SELECT retention.sweeping({job}))) WITH CHECK ({payload} IS NULL AND {marker} IS NOT NULL{mirrors})",
            WORKER,
            payload=sql.Identifier(table.payload),
            marker=sql.Identifier(table.marker),
            job=sql.Literal(SweepJob.of(dataset.dataset)),
            mirrors=sql.SQL("").join(
                sql.SQL(" AND {}::text = '{{}}'").format(sql.Identifier(mirror)) for mirror in table.mirrors
            ),
        )
        if dataset.allowed is not None:
            yield sql.SQL("GRANT SELECT ON {} TO {}").format(names.table(dataset.allowed.table), COUNTER)
            yield from policy(
                "retention_counter_reads", dataset.allowed.table, "FOR SELECT TO {role} USING (true)", COUNTER
            )


def view(catalog: Catalog, shape: SourceShape) -> Iterator[sql.Composed]:
    """`retention.live_payload`, and `retention.live_payload_of` for one row (E6). Whoever reads is bound by the tables' own policies."""
    tables = list(cleared(catalog))
    yield sql.SQL("DROP FUNCTION IF EXISTS retention.live_payload_of(text, text)").format()
    yield sql.SQL("DROP VIEW IF EXISTS retention.live_payload").format()
    if not tables:
        return
    reads = [sql.SQL(_READ).format(**_reading(table)) for _, table in tables]
    yield sql.SQL("CREATE VIEW retention.live_payload WITH (security_invoker = true) AS {}").format(
        sql.SQL(" UNION ALL ").join(reads)
    )
    one = sql.SQL(" UNION ALL ").join(
        sql.SQL("SELECT * FROM ({} WHERE $1 = {} AND {}) AS r").format(
            sql.SQL(_READ).format(**_reading(table)), sql.Literal(table.name), _this(table, shape)
        )
        for _, table in tables
    )
    yield sql.SQL(
        "CREATE FUNCTION retention.live_payload_of(wanted_table text, wanted_key text)"
        " RETURNS TABLE (state text, http_status integer, expires_at timestamptz, payload jsonb) LANGUAGE sql VOLATILE"
        " SET search_path = pg_catalog, pg_temp AS {}"
    ).format(
        sql.Literal(
            sql.SQL(
                "SELECT f.state, CASE f.state WHEN 'live' THEN 200 WHEN 'expired' THEN 410 ELSE 404 END, f.expires_at, f.payload"
                " FROM ({}) AS f"
            )
            .format(one)
            .as_string(None)
        )
    )
    yield sql.SQL("REVOKE EXECUTE ON FUNCTION retention.live_payload_of(text, text) FROM PUBLIC").format()
    everybody = names.comma((READER, WORKER, OPERATOR))
    yield sql.SQL("GRANT SELECT ON retention.live_payload TO {}").format(everybody)
    yield sql.SQL("GRANT EXECUTE ON FUNCTION retention.live_payload_of(text, text) TO {}").format(everybody)
    yield sql.SQL("ALTER VIEW retention.live_payload OWNER TO retention_owner").format()
    yield sql.SQL("ALTER FUNCTION retention.live_payload_of(text, text) OWNER TO retention_owner").format()


def _reading(table: ClearedTable) -> dict[str, sql.Composable]:
    payload = names.column("t", table.payload)
    single = sql.SQL("{}::text").format(names.column("t", table.key[0]))
    return {
        "name": sql.Literal(table.name),
        "table": names.table(table.table),
        "tenant": names.column("t", table.tenant),
        "key": single if len(table.key) == 1 else names.key_text("t", table.key),
        "payload": payload,
        "marker": names.column("t", table.marker),
        "expiry": sql.SQL("retention.payload_expiry({})").format(payload),
        "never_archived": sql.Literal(EPHEMERAL_MARKER),
    }


def _this(table: ClearedTable, shape: SourceShape) -> sql.Composed:
    """The one row of a key, by its index."""
    if len(table.key) == 1:
        kind = sql.SQL(shape.type_of(table.table, table.key[0]))
        return sql.SQL("{} = $2::{}").format(names.column("t", table.key[0]), kind)
    return sql.SQL("{} = $2").format(names.key_text("t", table.key))
