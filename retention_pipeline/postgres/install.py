"""Installs in the database what the catalog asks for: privileges, policies, guards, and the narrow functions that see all tenants.

Row-level security must not blind the check for foreign rows (A2): a child of another tenant is invisible to the worker, and a
cascade would destroy it. So a few definer functions, owned by a role that owns nothing else, count over all tenants.
"""

import hashlib

import psycopg
from psycopg import sql

from retention_pipeline.catalog.loader import Catalog
from retention_pipeline.catalog.model import InstanceDataset, Related
from retention_pipeline.postgres import (
    act_functions,
    deadline_rules,
    join_acts,
    names,
    payload_rules,
    sweep_due,
    sweep_rules,
    worker_rules,
)
from retention_pipeline.postgres.definer import COUNTER, OPERATOR, PIN, WORKER, DefinerFunction, policy
from retention_pipeline.postgres.shape import SourceShape, named_tables, read_shape


def install(connection: psycopg.Connection, catalog: Catalog) -> None:
    """Create or replace everything, in one transaction. Needs a login that owns the source's tables."""
    with connection.transaction(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL search_path = pg_catalog")
        shape = read_shape(cursor, all_tables(catalog))
        for statement in statements(catalog, shape):
            cursor.execute(statement)
        cursor.execute(
            sql.SQL("COMMENT ON FUNCTION retention.tenant_directory() IS {}").format(
                sql.Literal(installed_digest(catalog, shape))
            )
        )


def all_tables(catalog: Catalog) -> tuple[str, ...]:
    """Every table that a catalog names, once."""
    return tuple(
        dict.fromkeys(
            [
                *named_tables(catalog.instances),
                *sweep_rules.swept_tables(catalog),
                *sweep_rules.extra_tables(catalog),
            ]
        )
    )


def statements(catalog: Catalog, shape: SourceShape) -> list[sql.Composed]:
    """Everything that a catalog installs over tables of this shape."""
    dataset = catalog.instances
    made = [*privileges(dataset), *policies(dataset), *worker_rules.policies(catalog)]
    made += [*guards(dataset), *worker_rules.receipt_guard(dataset), *act_functions.rules(dataset)]
    made += [*functions(catalog, shape), *sweep_rules.statements(catalog), *payload_rules.view(catalog, shape)]
    made += [*deadline_rules.rules(catalog), *join_acts.rules(catalog)]
    return [*made, PIN.format()]


def installed_digest(catalog: Catalog, shape: SourceShape) -> str:
    """Names what a catalog installs; `catalog check` compares it with the database's own note."""
    text = "\n".join(statement.as_string(None) for statement in statements(catalog, shape))
    return f"catalog {hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _sources(dataset: InstanceDataset) -> list[tuple[str, str]]:
    """Every source table with its tenant column, once."""
    pairs = [(dataset.tenants.table, dataset.tenants.key), (dataset.root.table, dataset.root.tenant)]
    pairs += [(related.table, related.tenant) for related in dataset.by_name.values()]
    return list(dict(pairs).items())


def _policy_tables(dataset: InstanceDataset) -> list[tuple[str, str]]:
    """The tables whose rows carry a retention period, with a key column: they are read under a share lock."""
    return [(dataset.tenants.table, dataset.tenants.key), (dataset.policy.table, dataset.policy.key[0])]


def locked_tables(dataset: InstanceDataset) -> list[tuple[str, str]]:
    """The root and every evidence table with children: rows that others may refer to are locked before children go."""
    parents = {e.parent for e in dataset.evidence}
    return [
        (dataset.root.table, dataset.root.key),
        *((e.table, e.key[0]) for e in dataset.evidence if e.name in parents),
    ]


def privileges(dataset: InstanceDataset) -> list[sql.Composed]:
    """What each role may do with the source's tables, and no more."""
    made = [
        sql.SQL("GRANT USAGE ON SCHEMA {} TO {}, {}, {}").format(sql.Identifier(schema), WORKER, OPERATOR, COUNTER)
        for schema in sorted({name.split(".")[0] for name, _ in _sources(dataset)})
    ]
    made += [
        sql.SQL("GRANT SELECT ON {} TO {}, {}, {}").format(names.table(name), WORKER, OPERATOR, COUNTER)
        for name, _ in _sources(dataset)
    ]
    for name in dict.fromkeys([dataset.root.table, *(e.table for e in dataset.evidence)]):
        made.append(sql.SQL("GRANT INSERT, DELETE ON {} TO {}").format(names.table(name), WORKER))
    # A row lock needs the privilege to update; the policies below let nobody use it for an update.
    made += [_lockable(name, key, WORKER) for name, key in locked_tables(dataset)]
    made += [_lockable(name, key, COUNTER) for name, key in _policy_tables(dataset)]
    return made


def _lockable(table: str, key: str, role: sql.Identifier) -> sql.Composed:
    return sql.SQL("GRANT UPDATE ({}) ON {} TO {}").format(sql.Identifier(key), names.table(table), role)


def policies(dataset: InstanceDataset) -> list[sql.Composed]:
    """Row-level security for our roles, beside whatever the source has of its own. Without effect where it is off."""
    made = []
    for name, tenant in _sources(dataset):
        made += policy("retention_counter_reads", name, "FOR SELECT TO {role} USING (true)", COUNTER)
        made += policy(
            "retention_operator_reads",
            name,
            "AS RESTRICTIVE FOR SELECT TO {role} USING ({tenant}::text = (SELECT retention.current_tenant())"
            " AND (SELECT retention.permitted('workflow_retention:read')))",
            OPERATOR,
            tenant=sql.Identifier(tenant),
        )
        made += policy(
            "retention_worker_tenant",
            name,
            "AS RESTRICTIVE TO {role} USING ({tenant}::text = (SELECT retention.current_tenant()))",
            WORKER,
            tenant=sql.Identifier(tenant),
        )
    for name, _ in locked_tables(dataset):
        made += policy(
            "retention_worker_locks",
            name,
            "AS RESTRICTIVE FOR UPDATE TO {role} USING (true) WITH CHECK (false)",
            WORKER,
        )
    for name, _ in _policy_tables(dataset):
        made += policy("retention_counter_locks", name, "FOR UPDATE TO {role} USING (true) WITH CHECK (false)", COUNTER)
    return made


def guards(dataset: InstanceDataset) -> list[sql.Composed]:
    """The opt-in trigger that refuses a deletion without a verified archive."""
    made = []
    guarded = [(dataset.root.table, dataset.root.tenant, dataset.root.key)] if dataset.root.guard else []
    guarded += [
        (e.table, e.tenant, next(own for own, theirs in e.join.items() if theirs == dataset.root.key))
        for e in dataset.evidence
        if e.guard and e.parent == "root"
    ]
    for table, tenant, key in guarded:
        on = names.table(table)
        made.append(sql.SQL("DROP TRIGGER IF EXISTS retention_guard ON {}").format(on))
        made.append(
            sql.SQL(
                "CREATE TRIGGER retention_guard BEFORE DELETE ON {} FOR EACH ROW"
                " EXECUTE FUNCTION retention.guard_archived({}, {})"
            ).format(on, sql.Literal(tenant), sql.Literal(key))
        )
    return made


def functions(catalog: Catalog, shape: SourceShape) -> list[sql.Composed]:
    """The definer functions over this catalog's tables."""
    dataset = catalog.instances
    foreign = "TABLE (instance_id text, name text, found bigint)"
    everybody = (WORKER, OPERATOR)
    some = (("tenant", "text"), ("wanted", "text[]"))
    made = [
        DefinerFunction(
            name="tenant_directory",
            arguments=(),
            returns="TABLE (id text, alias text)",
            body=_directory(dataset),
            readers=(WORKER,),
        ),
        DefinerFunction(
            name="tenant_overview",
            arguments=(),
            returns="TABLE (id text, alias text, instances bigint, ended bigint)",
            body=_overview(dataset),
            readers=(WORKER,),
        ),
        DefinerFunction(
            name="resolve_tenant",
            arguments=(("wanted", "text"),),
            returns="text",
            body=_resolve(dataset),
            readers=everybody,
        ),
        DefinerFunction(
            name="resolve_instance",
            arguments=(("wanted", "text"),),
            returns="text",
            body=_resolve_instance(dataset, shape),
            readers=everybody,
        ),
        DefinerFunction(
            name="instance_present",
            arguments=(("tenant", "text"), ("wanted", "text")),
            returns="boolean",
            body=_instance_present(dataset, shape),
            readers=(WORKER,),
        ),
        DefinerFunction(
            name="foreign_rows",
            arguments=some[:1],
            returns=foreign,
            body=_foreign_rows(dataset, shape, some=False),
            readers=everybody,
        ),
        DefinerFunction(
            name="foreign_rows",
            arguments=some,
            returns=foreign,
            body=_foreign_rows(dataset, shape, some=True),
            readers=everybody,
        ),
        DefinerFunction(
            name="references_left",
            arguments=some[1:],
            returns="SETOF text",
            body=_references_left(dataset, shape),
            readers=(WORKER,),
        ),
        DefinerFunction(
            name="lock_policies",
            arguments=some,
            returns="bigint",
            body=_lock_policies(dataset, shape),
            readers=(WORKER,),
            volatile=True,
        ),
    ]
    return [
        sql.SQL("GRANT CREATE ON SCHEMA retention TO {}").format(COUNTER),
        *act_functions.absent(dataset),
        deadline_rules.FORGET.format(),
        *(
            statement
            for function in [
                *made,
                *act_functions.functions(dataset, shape),
                *payload_rules.functions(catalog, shape),
                *sweep_due.functions(catalog, shape),
                *deadline_rules.functions(catalog),
                *join_acts.functions(catalog, shape),
            ]
            for statement in function.statements()
        ),
        sql.SQL("REVOKE CREATE ON SCHEMA retention FROM {}").format(COUNTER),
    ]


def _directory(dataset: InstanceDataset) -> sql.Composed:
    tenants = dataset.tenants
    return sql.SQL("SELECT {}::text, {}::text FROM {} ORDER BY 1").format(
        sql.Identifier(tenants.key), sql.Identifier(tenants.alias), names.table(tenants.table)
    )


def _overview(dataset: InstanceDataset) -> sql.Composed:
    """Counts per tenant, over all tenants; nothing but counts."""
    tenants, root = dataset.tenants, dataset.root
    return sql.SQL(
        "SELECT t.{key}::text, t.{alias}::text, count(i.{id}),"
        " count(i.{id}) FILTER (WHERE i.{state}::text = ANY({terminal}::text[]))"
        " FROM {tenants} AS t LEFT JOIN {roots} AS i ON i.{owner} = t.{key} GROUP BY t.{key}, t.{alias} ORDER BY 1"
    ).format(
        key=sql.Identifier(tenants.key),
        alias=sql.Identifier(tenants.alias),
        id=sql.Identifier(root.key),
        state=sql.Identifier(root.state),
        terminal=sql.Literal(list(root.terminal_states)),
        tenants=names.table(tenants.table),
        roots=names.table(root.table),
        owner=sql.Identifier(root.tenant),
    )


def _resolve(dataset: InstanceDataset) -> sql.Composed:
    tenants = dataset.tenants
    return sql.SQL("SELECT {}::text FROM {} WHERE {}::text = wanted").format(
        sql.Identifier(tenants.key), names.table(tenants.table), sql.Identifier(tenants.alias)
    )


def _resolve_instance(dataset: InstanceDataset, shape: SourceShape) -> sql.Composed:
    """An instance's id as PostgreSQL prints it, or NULL where the tenant never had it: a hold on a misspelt id protects nothing."""
    root = dataset.root
    return sql.SQL(
        "SELECT known.id FROM ("
        "SELECT {key}::text FROM {roots} AS i WHERE {key} = wanted::{type} AND {tenant}::text = retention.current_tenant()"
        " UNION SELECT a.instance_id FROM retention.attempts AS a"
        " WHERE a.tenant_id = retention.current_tenant() AND a.instance_id = wanted::{type}::text) AS known (id)"
        " WHERE pg_has_role(session_user, 'retention_worker', 'MEMBER') OR retention.permitted('workflow_retention:read')"
        " OR retention.permitted('workflow_retention:legal_hold') OR retention.permitted('workflow_retention:archive')"
    ).format(
        key=names.column("i", root.key),
        roots=names.table(root.table),
        type=sql.SQL(shape.type_of(root.table, root.key)),
        tenant=names.column("i", root.tenant),
    )


def _instance_present(dataset: InstanceDataset, shape: SourceShape) -> sql.Composed:
    """Whether the instance's own row stands in the source: a hold on one that was brought back is never too late (G1)."""
    root = dataset.root
    return sql.SQL(
        "SELECT EXISTS (SELECT FROM {roots} AS i WHERE {key} = wanted::{type} AND {tenant}::text = instance_present.tenant)"
    ).format(
        key=names.column("i", root.key),
        roots=names.table(root.table),
        type=sql.SQL(shape.type_of(root.table, root.key)),
        tenant=names.column("i", root.tenant),
    )


def _foreign_rows(dataset: InstanceDataset, shape: SourceShape, *, some: bool) -> sql.Composed:
    """Rows of another tenant, over all tenants, that hang on a tenant's instances; for its own tenant's context alone."""
    counts = [_foreign_rows_of(dataset, shape, related, some=some) for related in dataset.by_name.values()]
    return sql.SQL(
        "SELECT f.instance_id, f.name, f.found FROM ({}) AS f (instance_id, name, found)"
        " WHERE tenant = retention.current_tenant()"
        " AND (pg_has_role(session_user, 'retention_worker', 'MEMBER') OR retention.permitted('workflow_retention:read'))"
    ).format(sql.SQL(" UNION ALL ").join(counts))


def _foreign_rows_of(dataset: InstanceDataset, shape: SourceShape, related: Related, *, some: bool) -> sql.Composed:
    froms, ties = names.reach(dataset, related)
    root = dataset.root
    key = names.column("i", root.key)
    owner = names.column("i", root.tenant)
    return sql.SQL(
        "SELECT {key}::text, {name}::text, count(*) FROM {roots} AS i, {froms} WHERE {ties}"
        " AND {owner} = tenant::{tenant_type}{some} AND {theirs} IS DISTINCT FROM {owner} GROUP BY 1"
    ).format(
        key=key,
        name=sql.Literal(related.name),
        roots=names.table(root.table),
        froms=froms,
        ties=ties,
        owner=owner,
        tenant_type=sql.SQL(shape.type_of(root.table, root.tenant)),
        some=sql.SQL(" AND {} = ANY(wanted::{}[])").format(key, sql.SQL(shape.type_of(root.table, root.key)))
        if some
        else sql.SQL(""),
        theirs=names.column("t", related.tenant),
    )


def _references_left(dataset: InstanceDataset, shape: SourceShape) -> sql.Composed:
    """Which instances a row, of whatever tenant, still points at: none may, before the root goes."""
    found = []
    for related in dataset.evidence:
        if related.parent == "root":
            own = next(child for child, parent in related.join.items() if parent == dataset.root.key)
            found.append(
                sql.SQL("SELECT {own}::text FROM {table} AS t WHERE {own} = ANY(wanted::{type}[])").format(
                    own=names.column("t", own),
                    table=names.table(related.table),
                    type=sql.SQL(shape.type_of(related.table, own)),
                )
            )
    return sql.SQL(" UNION ").join(found)


def _lock_policies(dataset: InstanceDataset, shape: SourceShape) -> sql.Composed:
    """Hold the rows that carry retention periods still until the transaction ends; nobody shortens a period meanwhile."""
    tenants, policy = dataset.tenants, dataset.policy
    return sql.SQL(
        "SELECT count(*) FROM ("
        "SELECT 1 FROM (SELECT 1 FROM {tenants} AS t WHERE {tenant} = tenant::{tenant_type}"
        " AND tenant = retention.current_tenant() FOR SHARE) AS a UNION ALL "
        "SELECT 1 FROM (SELECT 1 FROM {policies} AS p WHERE {key} = ANY(wanted::{key_type}[])"
        " AND {owner} = tenant::{owner_type} AND tenant = retention.current_tenant() ORDER BY {key} FOR SHARE) AS b"
        ") AS locked"
    ).format(
        tenants=names.table(tenants.table),
        tenant=names.column("t", tenants.key),
        tenant_type=sql.SQL(shape.type_of(tenants.table, tenants.key)),
        policies=names.table(policy.table),
        key=names.column("p", policy.key[0]),
        key_type=sql.SQL(shape.type_of(policy.table, policy.key[0])),
        owner=names.column("p", policy.tenant),
        owner_type=sql.SQL(shape.type_of(policy.table, policy.tenant)),
    )
