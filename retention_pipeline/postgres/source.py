"""The platform's rows, behind the port `Source`."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime

from psycopg import sql

from retention_pipeline.catalog.loader import Catalog
from retention_pipeline.errors import Code, UsageFault
from retention_pipeline.model.archive import Attempt, Candidate, DeletionReceipt, Export, Rejected, VerifiedObject
from retention_pipeline.model.decision import Facts
from retention_pipeline.model.ids import InstanceId, TenantId
from retention_pipeline.model.inventory import Inventory, Tally, summarize
from retention_pipeline.model.people import Approval
from retention_pipeline.model.work import Backlog
from retention_pipeline.postgres.content import ContentStatements
from retention_pipeline.postgres.export import Exporter
from retention_pipeline.postgres.facts import FactStatements
from retention_pipeline.postgres.session import Cursor, Session, one, rows
from retention_pipeline.postgres.shape import SourceShape, read_shape, tables_of
from retention_pipeline.postgres.swap import Swap
from retention_pipeline.postgres.vanished import explained


@dataclass(slots=True, kw_only=True)
class PostgresSource:
    """Reads and swaps through one session; the shape is read once, and compared in every transaction that matters."""

    session: Session
    catalog: Catalog
    _shape: SourceShape | None = field(default=None, repr=False)

    def now(self, tenant: TenantId) -> datetime:
        """The database's clock."""
        with self.session.transaction(tenant, read_only=True) as cursor:
            cursor.execute(sql.SQL("SELECT clock_timestamp()"))
            moment: datetime = one(cursor)[0]
            return moment

    def inventory(self, tenant: TenantId, as_of: datetime) -> Inventory:
        """Count everything in one snapshot and change nothing (W5)."""
        parameters = {"tenant": tenant, "as_of": as_of}
        with self.session.transaction(tenant, snapshot=True, read_only=True) as cursor:
            statements = self._facts(cursor)
            tallies = [
                Tally(facts=statements.read_facts(row[:-1]), instances=row[-1])
                for row in rows(cursor, statements.tally(), parameters)
            ]
            states = {row[0]: row[1] for row in rows(cursor, statements.states(), parameters)}
        return summarize(tenant, as_of, tallies, states)

    def backlog(self, tenant: TenantId, as_of: datetime) -> Backlog:
        """What is due and free to go, and for how long the oldest has been."""
        with self.session.transaction(tenant, snapshot=True, read_only=True) as cursor:
            statements = self._facts(cursor)
            statement = sql.SQL(
                "SELECT count(*), extract(epoch FROM %(as_of)s::timestamptz - min(due_at))::float8 FROM ({}) AS facts WHERE {}"
            ).format(statements.facts(some=False), statements.eligible())
            cursor.execute(statement, {"tenant": tenant, "as_of": as_of})
            instances, oldest = one(cursor)
        return Backlog(instances=instances, oldest_overdue_seconds=oldest)

    def facts(self, tenant: TenantId, instance: InstanceId, as_of: datetime) -> tuple[Facts, Candidate | None]:
        """One instance's facts; an id that is not of this tenant does not resolve."""
        with self.session.transaction(tenant, snapshot=True, read_only=True) as cursor:
            statements = self._facts(cursor)
            statement = sql.SQL("SELECT instance_id, epoch, epoch_at::text, {} FROM ({}) AS facts").format(
                sql.SQL(", ").join(sql.Identifier(name) for name in statements.fact_columns()),
                statements.facts(some=True),
            )
            found = rows(cursor, statement, {"tenant": tenant, "ids": [instance], "as_of": as_of})
        if not found:
            raise UsageFault(
                Code.INSTANCE_UNKNOWN, "This tenant has no such instance.", remedy="Check the id and the tenant."
            )
        row = found[0]
        candidate = (
            Candidate(instance=InstanceId(row[0]), epoch=row[1], epoch_at=row[2]) if row[1] is not None else None
        )
        return statements.read_facts(row[3:]), candidate

    def vanished(self, tenant: TenantId, attempt: Attempt) -> bool:
        """Whether the instance of an attempt is gone, and no receipt says why (W11)."""
        with self.session.transaction(tenant, read_only=True) as cursor:
            content = ContentStatements(dataset=self.catalog.instances, shape=self.shape(cursor))
            if rows(cursor, content.present(), {"tenant": tenant, "ids": [attempt.instance]}):
                return False
            return not explained(cursor, tenant, [(attempt.id, attempt.instance, attempt.epoch)])

    @contextmanager
    def export(
        self, tenant: TenantId, candidates: Sequence[Candidate], as_of: datetime, *, held_too: bool
    ) -> Iterator[Iterator[Export | Rejected]]:
        """Read candidates whole, in one read-only snapshot that lasts as long as the caller takes from it."""
        with self.session.transaction(tenant, snapshot=True, read_only=True) as cursor:
            exporter = Exporter(catalog=self.catalog, shape=self.shape(cursor), held_too=held_too)
            yield exporter.export(cursor, tenant, candidates, as_of)

    def swap(
        self,
        tenant: TenantId,
        verified: Sequence[VerifiedObject],
        *,
        as_of: datetime,
        approval: Approval,
        run: str,
        held_too: bool,
    ) -> tuple[list[DeletionReceipt], list[Rejected]]:
        """Delete what is unchanged and still eligible, in one transaction with its receipts (A7)."""
        if any(v.stored.tenant != tenant for v in verified) or approval.tenant != tenant:
            raise UsageFault(
                Code.TENANT_MISMATCH,
                "Archive, approval and tenant are not of one tenant; nothing was deleted.",
                remedy="Report this; it can't happen through a run.",
            )
        with self.session.transaction(tenant) as cursor:
            swap = Swap(
                catalog=self.catalog,
                shape=self.shape(cursor),
                tenant=tenant,
                as_of=as_of,
                approval=approval,
                run=run,
                held_too=held_too,
            )
            return swap.delete(cursor, verified)

    def shape(self, cursor: Cursor) -> SourceShape:
        """The shape of the source's tables as it was when this run first looked."""
        if self._shape is None:
            self._shape = read_shape(cursor, tables_of(self.catalog.instances))
        return self._shape

    def _facts(self, cursor: Cursor) -> FactStatements:
        return FactStatements(dataset=self.catalog.instances, shape=self.shape(cursor))
