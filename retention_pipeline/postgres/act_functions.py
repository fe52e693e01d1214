"""What the catalog's `recovery` and `stores` install: the two changes of a source row that a person may ask for (SPEC G2, W9).

The worker has no privilege to update these rows. It may call a function, which takes an approval for exactly this row, changes
it or says why not, and writes the audit event, all in one transaction: plain SQL under the worker's login can do no more.
"""

from typing import Final

from psycopg import sql

from retention_pipeline.catalog.model import InstanceDataset, Recovery, Stores
from retention_pipeline.postgres import names
from retention_pipeline.postgres.definer import COUNTER, OPERATOR, WORKER, DefinerFunction, policy
from retention_pipeline.postgres.shape import SourceShape

WHO_READS: Final = "pg_has_role(session_user, 'retention_worker', 'MEMBER') OR retention.permitted({})"
_SIGNATURES: Final = {
    "recovery": ("dead_letter(text)", "cancel_recovery(uuid, text, bigint, text)"),
    "stores": ("data_store(text)", "detach_store(uuid, text, text)"),
}


def rules(dataset: InstanceDataset) -> list[sql.Composed]:
    """Privileges and policies of the role that the functions act as: these columns, from this state to that one."""
    made: list[sql.Composed] = []
    if recovery := dataset.recovery:
        evidence = dataset.by_name[recovery.evidence]
        made.append(updatable(evidence.table, (recovery.fence, recovery.status, recovery.closed_at)))
        status = sql.Identifier(recovery.status)
        before = sql.SQL("{}::text = ANY({}::text[])").format(status, sql.Literal(list(recovery.open)))
        after = sql.SQL("{}::text = {}").format(status, sql.Literal(recovery.cancelled))
        made += changes("retention_counter_closes", evidence.table, evidence.tenant, before, after)
    if stores := dataset.stores:
        schema = sql.Identifier(stores.table.split(".", 1)[0])
        made.append(sql.SQL("GRANT USAGE ON SCHEMA {} TO {}").format(schema, COUNTER))
        made.append(sql.SQL("GRANT SELECT ON {} TO {}").format(names.table(stores.table), COUNTER))
        made.append(updatable(stores.table, (stores.detached_at,)))
        made += policy("retention_counter_reads", stores.table, "FOR SELECT TO {role} USING (true)", COUNTER)
        anything = sql.SQL("true").format()
        made += changes("retention_counter_detaches", stores.table, stores.tenant, anything, anything)
    return made


def changes(name: str, table: str, tenant: str, before: sql.Composed, after: sql.Composed) -> list[sql.Composed]:
    """What the role may update, and, in a second policy, that no policy of the platform's lets it update more.

    The login that migrates is a member of the role, and may be the platform's own: it is bound by neither. Nothing in them
    raises: after a wait for a lock, PostgreSQL evaluates all parts of a policy, also those behind a CASE.
    """
    mine = (
        "(CASE WHEN current_user = 'retention_counter'"
        " THEN {tenant}::text = current_setting('retention.tenant_id', true) AND {%s} ELSE {%s} END)"
    )
    made = []
    for suffix, kind, others in (("", "", "nobody"), ("_only", "AS RESTRICTIVE ", "everybody")):
        using, check = (mine % (state, others) for state in ("before", "after"))
        made += policy(
            f"{name}{suffix}",
            table,
            f"{kind}FOR UPDATE TO {{role}} USING {using} WITH CHECK {check}",
            COUNTER,
            tenant=sql.Identifier(tenant),
            before=before,
            after=after,
            nobody=sql.SQL("false"),
            everybody=sql.SQL("true"),
        )
    return made


def functions(dataset: InstanceDataset, shape: SourceShape) -> list[DefinerFunction]:
    """The functions of the sections that the catalog has."""
    made: list[DefinerFunction] = []
    if dataset.recovery:
        made += _recovery(dataset, dataset.recovery, shape)
    if dataset.stores:
        made += _stores(dataset, dataset.stores, shape)
    return made


def absent(dataset: InstanceDataset) -> list[sql.Composed]:
    """Take away the functions of a section that the catalog has no more."""
    gone = [] if dataset.recovery else list(_SIGNATURES["recovery"])
    gone += [] if dataset.stores else list(_SIGNATURES["stores"])
    return [sql.SQL("DROP FUNCTION IF EXISTS retention.{}").format(sql.SQL(signature)) for signature in gone]


def inserts(name: str, table: str, tenant: str) -> list[sql.Composed]:
    """Let the role add rows of the transaction's tenant, and of no other."""
    return policy(
        name,
        table,
        "FOR INSERT TO {role} WITH CHECK (CASE WHEN current_user = 'retention_counter'"
        " THEN {tenant}::text = current_setting('retention.tenant_id', true) ELSE false END)",
        COUNTER,
        tenant=sql.Identifier(tenant),
    )


def updatable(table: str, columns: tuple[str, ...]) -> sql.Composed:
    """Let the role change these columns, as far as its policies go."""
    return sql.SQL("GRANT UPDATE ({}) ON {} TO {}").format(
        names.comma(map(sql.Identifier, columns)), names.table(table), COUNTER
    )


def _recovery(dataset: InstanceDataset, recovery: Recovery, shape: SourceShape) -> list[DefinerFunction]:
    evidence = dataset.by_name[recovery.evidence]
    parts = {
        "table": names.table(evidence.table),
        "key": names.column("t", recovery.key),
        "key_type": sql.SQL(shape.type_of(evidence.table, recovery.key)),
        "tenant": names.column("t", evidence.tenant),
        "fence": names.column("t", recovery.fence),
        "status": names.column("t", recovery.status),
        "open": sql.Literal(list(recovery.open)),
        "set_fence": sql.Identifier(recovery.fence),
        "set_status": sql.Identifier(recovery.status),
        "set_closed_at": sql.Identifier(recovery.closed_at),
        "cancelled": sql.Literal(recovery.cancelled),
        "who": sql.SQL(WHO_READS).format(sql.Literal("workflow_recovery:cancel")),
    }
    look = sql.SQL(
        "SELECT {key}::text, {status}::text, {fence}::bigint, coalesce({status}::text = ANY({open}::text[]), false)"
        " FROM {table} AS t WHERE {key} = $1::{key_type} AND {tenant}::text = retention.current_tenant() AND ({who})"
    )
    return [
        DefinerFunction(
            name="dead_letter",
            arguments=(("wanted", "text"),),
            returns="TABLE (id text, status text, fence bigint, open boolean)",
            body=look.format(**parts),
            readers=(WORKER, OPERATOR),
        ),
        DefinerFunction(
            name="cancel_recovery",
            arguments=(("approval", "uuid"), ("wanted", "text"), ("expected", "bigint"), ("correlation", "text")),
            returns="TABLE (outcome text, was text, now_fence bigint)",
            body=_CANCEL.format(**parts),
            readers=(WORKER,),
            volatile=True,
            language="plpgsql",
        ),
    ]


# The update itself is the comparison: whoever comes second, another canceller or a replayer, finds another fence or status.
# A replayer that still holds the old fence is refused by the new one.
_CANCEL: Final = sql.SQL("""
#variable_conflict use_variable
DECLARE
  given record;
  refusal text;
BEGIN
  given := retention.take_approval(approval, 'recovery_cancel', wanted, correlation);
  UPDATE {table} AS t
  SET {set_fence} = {fence} + 1, {set_status} = {cancelled}, {set_closed_at} = clock_timestamp()
  WHERE {key} = wanted::{key_type} AND {tenant}::text = retention.current_tenant()
    AND {fence} = expected AND {status}::text = ANY({open}::text[]);
  outcome := CASE WHEN FOUND THEN 'closed' END;
  SELECT {status}::text, {fence} INTO was, now_fence FROM {table} AS t
  WHERE {key} = wanted::{key_type} AND {tenant}::text = retention.current_tenant();
  outcome := coalesce(outcome, CASE WHEN NOT FOUND THEN 'unknown'
    WHEN coalesce(was = ANY({open}::text[]), false) THEN 'stale' ELSE 'not_open' END);
  refusal := CASE outcome WHEN 'unknown' THEN 'RETENTION_RECOVERY_UNKNOWN' WHEN 'stale' THEN 'RETENTION_FENCE_STALE'
    WHEN 'not_open' THEN 'RETENTION_RECOVERY_CLOSED' END;
  INSERT INTO retention.audit_events (tenant_id, actor, kind, subject, outcome, code, reason, correlation, run, details)
  VALUES (retention.current_tenant(), given.actor, 'recovery.cancel', wanted,
    CASE WHEN refusal IS NULL THEN 'done' ELSE 'refused' END, refusal, given.reason, correlation, correlation,
    jsonb_build_object('approval', approval, 'expected_fence', expected, 'fence', now_fence, 'status', was));
  RETURN NEXT;
END
""")


def _stores(dataset: InstanceDataset, stores: Stores, shape: SourceShape) -> list[DefinerFunction]:
    bindings = dataset.by_name[stores.bindings]
    parts = {
        "table": names.table(stores.table),
        "key": names.column("t", stores.key),
        "key_type": sql.SQL(shape.type_of(stores.table, stores.key)),
        "tenant": names.column("t", stores.tenant),
        "detached_at": names.column("t", stores.detached_at),
        "set_detached_at": sql.Identifier(stores.detached_at),
        "bindings": names.table(bindings.table),
        "store": names.column("b", stores.store),
        "who": sql.SQL(WHO_READS).format(sql.Literal("workflow_retention:archive")),
    }
    look = sql.SQL(
        "SELECT {key}::text, {detached_at}::timestamptz, (SELECT count(*) FROM {bindings} AS b WHERE {store} = {key})"
        " FROM {table} AS t WHERE {key} = $1::{key_type} AND {tenant}::text = retention.current_tenant() AND ({who})"
    )
    return [
        DefinerFunction(
            name="data_store",
            arguments=(("wanted", "text"),),
            returns="TABLE (id text, detached_at timestamptz, bound bigint)",
            body=look.format(**parts),
            readers=(WORKER, OPERATOR),
        ),
        DefinerFunction(
            name="detach_store",
            arguments=(("approval", "uuid"), ("wanted", "text"), ("correlation", "text")),
            returns="TABLE (outcome text, at timestamptz, bound bigint)",
            body=_DETACH.format(**parts),
            readers=(WORKER,),
            volatile=True,
            language="plpgsql",
        ),
    ]


# The lock on the store's row makes a binding that is being added wait, or waits for it: the count after it misses none.
_DETACH: Final = sql.SQL("""
#variable_conflict use_variable
DECLARE
  given record;
  refusal text;
BEGIN
  given := retention.take_approval(approval, 'store_detach', wanted, correlation);
  SELECT {detached_at} INTO at FROM {table} AS t
  WHERE {key} = wanted::{key_type} AND {tenant}::text = retention.current_tenant() FOR UPDATE;
  IF NOT FOUND THEN
    outcome := 'unknown';
  ELSIF at IS NOT NULL THEN
    outcome := 'already';
  ELSE
    SELECT count(*) INTO bound FROM {bindings} AS b WHERE {store} = wanted::{key_type};
    IF bound > 0 THEN
      outcome := 'bound';
    ELSE
      at := clock_timestamp();
      UPDATE {table} AS t SET {set_detached_at} = at
      WHERE {key} = wanted::{key_type} AND {tenant}::text = retention.current_tenant();
      outcome := 'detached';
    END IF;
  END IF;
  refusal := CASE outcome WHEN 'unknown' THEN 'RETENTION_STORE_UNKNOWN' WHEN 'bound' THEN 'RETENTION_STORE_BOUND' END;
  INSERT INTO retention.audit_events (tenant_id, actor, kind, subject, outcome, code, reason, correlation, run, details)
  VALUES (retention.current_tenant(), given.actor, 'store.detach', wanted,
    CASE WHEN refusal IS NULL THEN 'done' ELSE 'refused' END, refusal, given.reason, correlation, correlation,
    jsonb_strip_nulls(jsonb_build_object('approval', approval, 'bound', bound, 'already', outcome = 'already')));
  RETURN NEXT;
END
""")
