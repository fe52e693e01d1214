"""Passes of sweeps, composed: the verb of a dataset, its bounds, and whose turn it is (SPEC E, L, J, W4)."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from retention_pipeline.app import App
from retention_pipeline.catalog.sweep_model import ClearDataset, PurgeDataset, ShelveDataset, SweepDataset
from retention_pipeline.model.ids import TenantId
from retention_pipeline.model.outcome import Counts
from retention_pipeline.model.people import SweepJob
from retention_pipeline.model.sweep import Sweeper
from retention_pipeline.model.table_health import TableHealth
from retention_pipeline.postgres import deadlines, sweep_due, sweep_records, table_health
from retention_pipeline.postgres.clear import PostgresClear
from retention_pipeline.postgres.purge import PostgresPurge
from retention_pipeline.postgres.shelve import PostgresShelve
from retention_pipeline.sweeps.loop import Sweep, SweepBounds, SweepResult
from retention_pipeline.sweeps.rounds import in_turn

PASSES_A_DAY: Final = 24
"""A tenant that can't keep up with one pass a day gets one an hour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassResult:
    """One pass over one tenant, and the health of the tables before and after it."""

    result: SweepResult
    before: tuple[TableHealth, ...]
    after: tuple[TableHealth, ...]

    @property
    def notes(self) -> tuple[tuple[str, str], ...]:
        """Tables with what a person should know of them."""
        found = ((table.table, table.note(self.result.ceiling)) for table in self.after)
        return tuple((table, note) for table, note in found if note is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """The passes of one sweep.

    Args:
        app: the parts of the installation.
        name: a dataset of the catalog.
    """

    app: App
    name: str

    @property
    def dataset(self) -> SweepDataset:
        """Its rules, or `UsageFault(SWEEP_UNKNOWN)`."""
        return self.app.catalog.sweep(self.name).dataset

    @property
    def bounds(self) -> SweepBounds:
        """What the catalog allows one pass over one tenant."""
        return SweepBounds(batch=self.dataset.batch, batches=self.dataset.batches, passes_a_day=PASSES_A_DAY)

    def sweeper(self, stopping: Callable[[], bool] = lambda: False) -> Sweeper:
        """The verb and the tables, as the worker."""
        dataset, session = self.dataset, self.app.worker_session("sweep")
        if isinstance(dataset, PurgeDataset):
            return PostgresPurge(session=session, dataset=dataset, catalog=self.app.catalog)
        if isinstance(dataset, ClearDataset):
            return PostgresClear(session=session, dataset=dataset, allowed=self.app.settings.allow_ephemeral_payload)
        return PostgresShelve(session=session, dataset=dataset, stopping=stopping)

    def health(self) -> tuple[TableHealth, ...]:
        """How large its tables are, and how many of their rows are dead."""
        return table_health.read(self.app.worker_session("sweep"), [table.table for table in self.dataset.tables])

    def over(
        self,
        tenant: TenantId,
        *,
        run: str,
        apply: bool = False,
        approval: str | None = None,
        bounds: SweepBounds | None = None,
        as_of: datetime | None = None,
        stopping: Callable[[], bool] = lambda: False,
        progress: Callable[[Counts], None] = lambda _: None,
    ) -> PassResult:
        """Look what the rule names; with `apply` and an approval, end exactly that.

        Raises:
            Refused: `CATALOG_INVALID`, with `apply`, when the catalog no longer fits the database (F18).
        """
        sweeper = self.sweeper(stopping)
        if apply:
            self.app.require_sound_catalog(self.name)
        before = self.health()
        result = Sweep(
            source=self.app.source(),
            records=self.app.records(),
            sweeper=sweeper,
            dataset=self.name,
            tenant=tenant,
            run=run,
            bounds=bounds or self.bounds,
            apply=apply,
            approval=approval,
            as_of=as_of,
            stopping=stopping,
            progress=progress,
        )()
        if apply:
            self.recompute_deadline()
        return PassResult(result=result, before=before, after=self.health() if apply else before)

    def next_deadline(self) -> tuple[datetime | None, datetime | None]:
        """The next deadline over all tenants, None where nothing waits, and the database's now; reads one row of ours (J3)."""
        return deadlines.next_due(self.app.worker_session("sweep"), self.name)

    def recompute_deadline(self) -> None:
        """Set it to what the rows say, for a sweep that has deadlines; where writers are under way it stays early."""
        if isinstance(self.dataset, ShelveDataset):
            deadlines.recompute(self.app.worker_session("sweep"), self.dataset)

    def standing_approval(self, tenant: TenantId) -> str | None:
        """The newest standing approval of this sweep that is good now."""
        return self.app.records().standing_approval(tenant, SweepJob.of(self.name))

    def due(self) -> tuple[TenantId, ...]:
        """Tenants that have rows over their time, in the order in which a pass takes them: from where the last one stopped (L1)."""
        return in_turn(sweep_due.due(self.app.worker_session("sweep"), self.name), self.last())

    def behind(self) -> tuple[TenantId, ...]:
        """Of those, the ones whose last pass left work behind: they get several passes a day."""
        left = set(sweep_due.behind(self.app.worker_session("sweep"), self.name))
        return tuple(tenant for tenant in self.due() if tenant in left)

    def last(self) -> TenantId | None:
        """Whom the last pass over many tenants handled last."""
        return sweep_records.last_tenant(self.app.worker_session("sweep"), self.name)

    def handled(self, tenant: TenantId) -> None:
        """The next pass over many tenants begins behind this one."""
        sweep_records.handled(self.app.worker_session("sweep"), self.name, tenant)
