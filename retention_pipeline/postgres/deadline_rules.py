"""What a sweep with deadlines installs: triggers that keep the next one true for every writer, and its recomputation (SPEC J2, J3, J6).

A writer's trigger lowers the record to the soonest deadline among the rows that it wrote, whatever its company is at present: a company
that is resumed at the same moment can't be seen yet, and would be missed otherwise. A deadline that is too early costs one look.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from psycopg import sql

from retention_pipeline.catalog.loader import Catalog
from retention_pipeline.catalog.sweep_model import ShelveDataset
from retention_pipeline.postgres import names
from retention_pipeline.postgres.definer import COUNTER, WORKER, DefinerFunction, policy

_OF_REQUESTS: Final = """
BEGIN
  PERFORM retention.lower_deadline({dataset}, (
    SELECT min(r.{active_at}) + {idle} FROM written AS r WHERE {waiting} AND isfinite(r.{active_at})));
  RETURN NULL;
END
"""
_OF_COMPANIES: Final = """
BEGIN
  PERFORM retention.lower_deadline({dataset}, (
    SELECT min(r.{active_at}) + {idle} FROM written AS c JOIN {requests} AS r ON r.{company} = c.{company_key}
    WHERE {waiting} AND isfinite(r.{active_at}) AND c.{company_status}::text = ANY({active})));
  RETURN NULL;
END
"""
_OF_INVITES: Final = """
BEGIN
  PERFORM retention.lower_deadline({dataset}, (
    SELECT min(r.{active_at}) + {idle} FROM written AS i JOIN {requests} AS r ON r.{invite} = i.{invite_key}
    WHERE {waiting} AND isfinite(r.{active_at})));
  RETURN NULL;
END
"""
# The first that nothing makes wait, by the index; and the first of those that wait after a failure. Of requests whose company or invite
# keeps them out, none has a deadline.
_COMPUTE: Final = """
DECLARE
  first timestamptz;
  again timestamptz;
BEGIN
  IF NOT retention.begin_deadline({dataset}) THEN
    RETURN false;
  END IF;
  SELECT r.{active_at} + {idle} INTO first FROM {requests} AS r
  WHERE {waiting} AND r.{active_at} > '-infinity' AND r.{active_at} < 'infinity' AND {candidate}
    AND NOT EXISTS (SELECT FROM retention.sweep_set_asides AS s WHERE s.tenant_id = r.{tenant}::text AND s.dataset = {dataset}
      AND s.row_key = ROW({key})::text AND s.not_before > clock_timestamp())
  ORDER BY r.{active_at}, {key} LIMIT 1;
  SELECT min(s.not_before) INTO again FROM retention.sweep_set_asides AS s
  WHERE s.dataset = {dataset} AND s.not_before > clock_timestamp();
  PERFORM retention.set_deadline({dataset}, least(first, again));
  RETURN true;
END
"""


FORGET: Final = sql.SQL("""
DO $$
DECLARE
  known record;
BEGIN
  FOR known IN
    SELECT g.tgname, g.tgrelid::regclass AS on_table FROM pg_trigger AS g JOIN pg_proc AS f ON f.oid = g.tgfoid
    WHERE f.pronamespace = 'retention'::regnamespace AND g.tgname LIKE 'retention_deadline_%'
  LOOP
    EXECUTE format('DROP TRIGGER %I ON %s', known.tgname, known.on_table);
  END LOOP;
END $$
""")
"""Takes the triggers away before their functions are made anew; those of a sweep that the catalog has no more, too."""


def shelved(catalog: Catalog) -> Iterator[ShelveDataset]:
    """Each sweep with deadlines."""
    yield from (rules.dataset for rules in catalog.sweeps if isinstance(rules.dataset, ShelveDataset))


def function_name(kind: str, dataset: ShelveDataset) -> str:
    """What a dataset's function is called."""
    return f"{kind}_{dataset.dataset}"[:63]


def functions(catalog: Catalog) -> list[DefinerFunction]:
    """The triggers' functions, and the one that recomputes."""
    made = []
    for dataset in shelved(catalog):
        parts = _parts(dataset)
        for kind, body in (("requests", _OF_REQUESTS), ("companies", _OF_COMPANIES), ("invites", _OF_INVITES)):
            made.append(
                DefinerFunction(
                    name=function_name(f"deadline_{kind}", dataset),
                    arguments=(),
                    returns="trigger",
                    body=sql.SQL(body).format(**parts),
                    readers=(WORKER,),
                    volatile=True,
                    language="plpgsql",
                )
            )
        made.append(
            DefinerFunction(
                name=function_name("compute_deadline", dataset),
                arguments=(),
                returns="boolean",
                body=sql.SQL(_COMPUTE).format(**parts, candidate=candidate(dataset)),
                readers=(WORKER,),
                volatile=True,
                language="plpgsql",
            )
        )
    return made


def candidate(dataset: ShelveDataset) -> sql.Composed:
    """Of alias `r`: its company is active, and its invite is of the same company, whatever became of the invite (J1)."""
    requests, companies, invites = dataset.requests, dataset.companies, dataset.invites
    return sql.SQL(
        "EXISTS (SELECT FROM {companies} AS c WHERE c.{company_key} = r.{company} AND c.{company_status}::text = ANY({active})"
        " AND c.{company_tenant} = r.{tenant}) AND EXISTS (SELECT FROM {invites} AS i WHERE i.{invite_key} = r.{invite}"
        " AND i.{invite_company} = r.{company} AND i.{invite_tenant} = r.{tenant})"
    ).format(
        companies=names.table(companies.table),
        company_key=sql.Identifier(companies.key),
        company=sql.Identifier(requests.company),
        company_status=sql.Identifier(companies.status),
        active=sql.Literal(list(companies.active)),
        company_tenant=sql.Identifier(companies.tenant),
        tenant=sql.Identifier(requests.tenant),
        invites=names.table(invites.table),
        invite_key=sql.Identifier(invites.key),
        invite=sql.Identifier(requests.invite),
        invite_company=sql.Identifier(invites.company),
        invite_tenant=sql.Identifier(invites.tenant),
    )


def waiting(dataset: ShelveDataset, alias: str = "r") -> sql.Composed:
    """Of an alias: pending, kept by nobody, and not archived; what the indexes have."""
    requests = dataset.requests
    return sql.SQL("{status} = {pending} AND {kept} IS NULL AND {archived} IS NULL").format(
        status=names.column(alias, requests.status),
        pending=sql.Literal(requests.pending),
        kept=names.column(alias, requests.kept_at),
        archived=names.column(alias, requests.archived_at),
    )


def idle(dataset: ShelveDataset) -> sql.Composed:
    """How long nobody acts; a day is 24 hours (F13)."""
    return sql.SQL("make_interval(hours => 24 * {})").format(sql.Literal(dataset.idle_days))


def _parts(dataset: ShelveDataset) -> dict[str, sql.Composable]:
    requests, companies = dataset.requests, dataset.companies
    return {
        "dataset": sql.Literal(dataset.dataset),
        "requests": names.table(requests.table),
        "active_at": sql.Identifier(requests.active_at),
        "tenant": sql.Identifier(requests.tenant),
        "company": sql.Identifier(requests.company),
        "invite": sql.Identifier(requests.invite),
        "key": names.comma(names.column("r", column) for column in requests.key),
        "company_key": sql.Identifier(companies.key),
        "company_status": sql.Identifier(companies.status),
        "active": sql.Literal(list(companies.active)),
        "invite_key": sql.Identifier(dataset.invites.key),
        "waiting": waiting(dataset),
        "idle": idle(dataset),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlineTrigger:
    """A trigger on a table of the platform's, after a statement of one kind."""

    name: str
    table: str
    event: str
    function: str


def triggers(catalog: Catalog) -> Iterator[DeadlineTrigger]:
    """Those that keep the deadlines of all writers (J2)."""
    for dataset in shelved(catalog):
        of = {
            dataset.requests.table: ("requests", ("INSERT", "UPDATE")),
            dataset.companies.table: ("companies", ("INSERT", "UPDATE")),
            dataset.invites.table: ("invites", ("UPDATE",)),
        }
        for table, (kind, events) in of.items():
            for event in events:
                yield DeadlineTrigger(
                    name=f"retention_deadline_{event.lower()}_{dataset.dataset}"[:63],
                    table=table,
                    event=event,
                    function=function_name(f"deadline_{kind}", dataset),
                )


def rules(catalog: Catalog) -> Iterator[sql.Composed]:
    """Triggers on the platform's tables, and what the functions may read."""
    for trigger in triggers(catalog):
        yield sql.SQL(
            "CREATE TRIGGER {} AFTER {} ON {} REFERENCING NEW TABLE AS written FOR EACH STATEMENT EXECUTE FUNCTION retention.{}()"
        ).format(
            sql.Identifier(trigger.name),
            sql.SQL(trigger.event),
            names.table(trigger.table),
            sql.Identifier(trigger.function),
        )
    for dataset in shelved(catalog):
        for table in (dataset.requests.table, dataset.companies.table, dataset.invites.table):
            yield sql.SQL("GRANT SELECT ON {} TO {}").format(names.table(table), COUNTER)
            yield from policy("retention_counter_reads", table, "FOR SELECT TO {role} USING (true)", COUNTER)
