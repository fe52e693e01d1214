"""What a sweep that shelves requests lets the worker do: archive what is due by the database's clock, and tell of it (SPEC G4, J5)."""

from collections.abc import Iterator

from psycopg import sql

from retention_pipeline.catalog.loader import Catalog
from retention_pipeline.catalog.sweep_model import ShelveDataset
from retention_pipeline.model.people import SweepJob
from retention_pipeline.postgres import deadline_rules, names
from retention_pipeline.postgres.definer import WORKER, policy


def tables_beside(dataset: ShelveDataset) -> dict[str, str]:
    """Tables that it reads or writes beside the requests, with their tenant columns."""
    parts = (dataset.companies, dataset.invites, dataset.activity, dataset.notifications)
    return {part.table: part.tenant for part in parts}


def rules(catalog: Catalog) -> Iterator[sql.Composed]:
    """Restrictive policies for the worker; without effect where row-level security is off."""
    for dataset in deadline_rules.shelved(catalog):
        requests = dataset.requests
        sweeping = sql.SQL("(SELECT retention.sweeping({}))").format(sql.Literal(SweepJob.of(dataset.dataset)))
        changed = names.comma(map(sql.Identifier, (requests.archived_at, requests.version)))
        yield sql.SQL("GRANT UPDATE ({}) ON {} TO {}").format(changed, names.table(requests.table), WORKER)
        bare = requests.table.partition(".")[2]
        yield from policy(
            "retention_worker_shelves",
            requests.table,
            "AS RESTRICTIVE FOR UPDATE TO {role} USING ({waiting} AND {active_at} <= clock_timestamp() - {idle} AND {sweeping})"
            " WITH CHECK ({status} = {pending} AND {archived} IS NOT NULL)",
            WORKER,
            waiting=deadline_rules.waiting(dataset, alias=bare),
            active_at=sql.Identifier(requests.active_at),
            idle=deadline_rules.idle(dataset),
            sweeping=sweeping,
            status=sql.Identifier(requests.status),
            pending=sql.Literal(requests.pending),
            archived=sql.Identifier(requests.archived_at),
        )
        for trace in (dataset.activity, dataset.notifications):
            yield sql.SQL("GRANT INSERT ON {} TO {}").format(names.table(trace.table), WORKER)
            yield from policy(
                "retention_worker_tells",
                trace.table,
                "AS RESTRICTIVE FOR INSERT TO {role} WITH CHECK ({sweeping})",
                WORKER,
                sweeping=sweeping,
            )
