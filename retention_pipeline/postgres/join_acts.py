"""What people do with one join request: keep it, let it go again, archive it now, revive it (SPEC J6, G4).

One definer function takes an approval for exactly this request, changes it under its version, and leaves activity and audit event, all in
one transaction; the triggers of the deadline see the change like any other. The other function tells how the request stands.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from psycopg import errors, sql

from retention_pipeline.catalog.loader import Catalog
from retention_pipeline.catalog.sweep_model import ShelveDataset
from retention_pipeline.errors import Code, Refused
from retention_pipeline.postgres import act_functions, deadline_rules, names
from retention_pipeline.postgres.definer import COUNTER, OPERATOR, WORKER, DefinerFunction
from retention_pipeline.postgres.session import Cursor, one, rows
from retention_pipeline.postgres.shape import SourceShape


class Act(StrEnum):
    """What can be done with a request."""

    KEEP = "keep"
    UNKEEP = "unkeep"
    ARCHIVE = "archive"
    REVIVE = "revive"


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    """One request, as it stands.

    Args:
        due_at: when it is archived, if nothing happens; None where it is not.
    """

    id: str
    status: str
    version: int
    pending: bool
    kept_at: datetime | None
    archived_at: datetime | None
    due_at: datetime | None

    def refusal(self, act: Act) -> Refused | None:
        """Why an act can't be done; None where it can, or is done already."""
        if not self.pending:
            return _refusals(self.status)["not_pending"]
        if act in {Act.KEEP, Act.UNKEEP} and self.archived_at is not None:
            return _refusals(self.status)["archived"]
        return None

    def done(self, act: Act) -> bool:
        """Whether it is so already."""
        return {
            Act.KEEP: self.kept_at is not None,
            Act.UNKEEP: self.kept_at is None,
            Act.ARCHIVE: self.archived_at is not None,
            Act.REVIVE: self.archived_at is None,
        }[act]


_LOOK: Final = """
SELECT {key}::text, {status}::text, {version}::bigint, {status}::text = {pending}, {kept}::timestamptz, {archived}::timestamptz,
  CASE WHEN {waiting} AND isfinite({active_at}) AND {candidate} THEN {active_at} + {idle} END
FROM {requests} AS r WHERE {key} = wanted::{key_type} AND {tenant}::text = retention.current_tenant() AND ({who})
"""
_ACT: Final = """
#variable_conflict use_variable
DECLARE
  given record;
  was record;
  locked boolean;
  refusal text;
BEGIN
  given := retention.take_approval(approval, 'join_request', wanted, correlation);
  SELECT {status}::text AS status, {version}::bigint AS version, {kept} AS kept, {archived} AS archived, {company}::text AS company
  INTO was FROM {requests} AS r
  WHERE {key} = wanted::{key_type} AND {tenant}::text = retention.current_tenant() FOR UPDATE;
  locked := FOUND;
  IF NOT locked THEN  -- the policy lets nobody lock a decided one
    SELECT {status}::text AS status, {version}::bigint AS version, {kept} AS kept, {archived} AS archived, {company}::text AS company
    INTO was FROM {requests} AS r WHERE {key} = wanted::{key_type} AND {tenant}::text = retention.current_tenant();
  END IF;
  outcome := CASE WHEN NOT FOUND THEN 'unknown' WHEN was.status <> {pending} THEN 'not_pending' WHEN NOT locked THEN 'changed'
    WHEN act IN ('keep', 'unkeep') AND was.archived IS NOT NULL THEN 'archived'
    WHEN (act = 'keep') = (was.kept IS NOT NULL) AND act IN ('keep', 'unkeep')
      OR (act = 'archive') = (was.archived IS NOT NULL) AND act IN ('archive', 'revive') THEN 'already'
    WHEN was.version <> expected THEN 'changed' ELSE 'done' END;
  now_version := was.version;
  IF outcome = 'done' THEN
    UPDATE {requests} AS r SET {set_version} = {version} + 1,
      {set_kept} = CASE act WHEN 'keep' THEN clock_timestamp() WHEN 'unkeep' THEN NULL ELSE {kept} END,
      {set_archived} = CASE act WHEN 'archive' THEN clock_timestamp() WHEN 'revive' THEN NULL ELSE {archived} END,
      {set_active_at} = CASE WHEN act IN ('revive', 'unkeep') THEN clock_timestamp() ELSE {active_at} END
    WHERE {key} = wanted::{key_type} AND {tenant}::text = retention.current_tenant();
    INSERT INTO {activity} ({activity_columns}) VALUES ({activity_values});
    now_version := was.version + 1;
  END IF;
  refusal := CASE outcome WHEN 'unknown' THEN 'RETENTION_JOIN_REQUEST_UNKNOWN' WHEN 'not_pending' THEN 'RETENTION_JOIN_REQUEST_DECIDED'
    WHEN 'archived' THEN 'RETENTION_JOIN_REQUEST_ARCHIVED' WHEN 'changed' THEN 'RETENTION_JOIN_REQUEST_CHANGED' END;
  INSERT INTO retention.audit_events (tenant_id, actor, kind, subject, outcome, code, reason, correlation, run, details)
  VALUES (retention.current_tenant(), given.actor, 'join_request.' || act, wanted,
    CASE WHEN refusal IS NULL THEN 'done' ELSE 'refused' END, refusal, given.reason, correlation, correlation,
    jsonb_strip_nulls(jsonb_build_object('approval', approval, 'version', now_version, 'already', outcome = 'already')));
  RETURN NEXT;
END
"""


def functions(catalog: Catalog, shape: SourceShape) -> list[DefinerFunction]:
    """How a request stands, and what is done with it; nothing where no sweep shelves."""
    made = []
    for dataset in list(deadline_rules.shelved(catalog))[:1]:
        parts = _parts(dataset, shape)
        made.append(
            DefinerFunction(
                name="join_request",
                arguments=(("wanted", "text"),),
                returns="TABLE (id text, status text, version bigint, pending boolean, kept_at timestamptz,"
                " archived_at timestamptz, due_at timestamptz)",
                body=sql.SQL(_LOOK).format(**parts),
                readers=(WORKER, OPERATOR),
            )
        )
        made.append(
            DefinerFunction(
                name="act_on_join_request",
                arguments=(
                    ("approval", "uuid"),
                    ("wanted", "text"),
                    ("act", "text"),
                    ("expected", "bigint"),
                    ("correlation", "text"),
                ),
                returns="TABLE (outcome text, now_version bigint)",
                body=sql.SQL(_ACT).format(**parts),
                readers=(WORKER,),
                volatile=True,
                language="plpgsql",
            )
        )
    return made


def rules(catalog: Catalog) -> list[sql.Composed]:
    """What the role that the functions act as may change: these columns of pending requests, and one table of activity."""
    made: list[sql.Composed] = []
    for dataset in list(deadline_rules.shelved(catalog))[:1]:
        requests = dataset.requests
        columns = (requests.version, requests.kept_at, requests.archived_at, requests.active_at)
        made.append(act_functions.updatable(requests.table, columns))
        pending = sql.SQL("{} = {}").format(sql.Identifier(requests.status), sql.Literal(requests.pending))
        made += act_functions.changes("retention_counter_acts", requests.table, requests.tenant, pending, pending)
        made.append(sql.SQL("GRANT INSERT ON {} TO {}").format(names.table(dataset.activity.table), COUNTER))
        made += act_functions.inserts("retention_counter_tells", dataset.activity.table, dataset.activity.tenant)
    return made


def find(cursor: Cursor, catalog: Catalog, wanted: str) -> JoinRequest:
    """A request of this tenant, in the database's own spelling.

    Raises:
        Refused: `JOIN_REQUEST_UNKNOWN`; or `CATALOG_SECTION_MISSING`, when no sweep of the catalog shelves requests.
    """
    if not list(deadline_rules.shelved(catalog)):
        raise Refused(
            Code.CATALOG_SECTION_MISSING,
            "The catalog has no sweep that shelves requests.",
            remedy="Add a file with `ends: shelve`, then run `retention migrate`.",
        )
    try:
        found = rows(cursor, sql.SQL("SELECT * FROM retention.join_request(%(wanted)s)"), {"wanted": wanted})
    except errors.DataError:
        found = []
    if not found:
        raise _refusals("")["unknown"]
    key, status, version, pending, kept_at, archived_at, due_at = found[0]
    return JoinRequest(
        id=key,
        status=status,
        version=version,
        pending=pending,
        kept_at=kept_at,
        archived_at=archived_at,
        due_at=due_at,
    )


def do(cursor: Cursor, known: JoinRequest, act: Act, *, approval: str, correlation: str) -> "Refused | bool":
    """Do it under an approval, as the worker; gives whether it was so already, or why nothing was changed.

    The audit event is in the same transaction, a refusal's too.
    """
    cursor.execute(
        sql.SQL(
            "SELECT outcome, now_version FROM retention.act_on_join_request(%(approval)s::uuid, %(key)s, %(act)s,"
            " %(version)s, %(correlation)s)"
        ),
        {
            "approval": approval,
            "key": known.id,
            "act": act,
            "version": known.version,
            "correlation": correlation,
        },
    )
    outcome = str(one(cursor)[0])
    return _refusals(known.status).get(outcome, outcome == "already")


def _refusals(status: str) -> dict[str, Refused]:
    return {
        "unknown": Refused(
            Code.JOIN_REQUEST_UNKNOWN,
            "This tenant has no such join request.",
            remedy="Check the request's id and the tenant.",
        ),
        "not_pending": Refused(
            Code.JOIN_REQUEST_DECIDED,
            f"The request is {status}: somebody decided it.",
            remedy="Nothing is left to do here.",
        ),
        "archived": Refused(
            Code.JOIN_REQUEST_ARCHIVED,
            "The request is archived.",
            remedy="Revive it first: `retention join revive ID`.",
        ),
        "changed": Refused(
            Code.JOIN_REQUEST_CHANGED,
            "Somebody changed the request meanwhile; nothing was done.",
            remedy="Look at it again, and repeat the call if it still is what you want.",
        ),
    }


def _parts(dataset: ShelveDataset, shape: SourceShape) -> dict[str, sql.Composable]:
    requests, activity = dataset.requests, dataset.activity
    columns = {
        "key": requests.key[0],
        "status": requests.status,
        "version": requests.version,
        "kept": requests.kept_at,
        "archived": requests.archived_at,
        "active_at": requests.active_at,
        "company": requests.company,
        "tenant": requests.tenant,
    }
    values = {
        activity.tenant: "retention.current_tenant()",
        activity.company: "was.company",
        activity.subject: "wanted",
        activity.what: "'join_request.' || act",
    }
    if activity.actor is not None:
        values[activity.actor] = "given.actor"
    return {
        **{name: names.column("r", column) for name, column in columns.items()},
        **{f"set_{name}": sql.Identifier(column) for name, column in columns.items()},
        "requests": names.table(requests.table),
        "key_type": sql.SQL(shape.type_of(requests.table, requests.key[0])),
        "pending": sql.Literal(requests.pending),
        "waiting": deadline_rules.waiting(dataset),
        "candidate": deadline_rules.candidate(dataset),
        "idle": deadline_rules.idle(dataset),
        "who": sql.SQL(act_functions.WHO_READS).format(sql.Literal("workflow_retention:reconcile")),
        "activity": names.table(activity.table),
        "activity_columns": names.comma(map(sql.Identifier, values)),
        "activity_values": names.comma(
            sql.SQL("({})::{}").format(sql.SQL(value), sql.SQL(shape.type_of(activity.table, column)))
            for column, value in values.items()
        ),
    }
