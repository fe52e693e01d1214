"""Are the runs that people promised done in time? Composed of what approvals promise, what outcomes say, and what is due (SPEC O2).

It asks the database and not the scheduler: a scheduler that is dead, was never switched on, or runs without doing anything is all the
same to a row that should be gone.
"""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from retention_pipeline.app import App
from retention_pipeline.catalog.sweep_model import Every, SweepDataset
from retention_pipeline.model.ids import TenantId
from retention_pipeline.model.people import SweepJob
from retention_pipeline.model.promises import BrokenPromise, Promise, broken
from retention_pipeline.postgres import promises, sweep_due

WITHIN: Final = {Every.HOUR: timedelta(hours=2), Every.DEADLINE: timedelta(hours=26), Every.DAY: timedelta(hours=26)}
"""How long after its last run a sweep has to have done its work: its interval, and time to run.

One with deadlines is looked at daily: rows that are over their time and stay (a paused company's requests) have no deadline, and only the
daily schedule comes by for them.
"""

NIGHTLY: Final = timedelta(hours=26)
"""The same for the nightly jobs over instances and archives."""


@dataclass(slots=True, kw_only=True)
class Punctuality:
    """What is late now.

    Args:
        as_of: the instant to look from; the database's now by default.
    """

    app: App
    as_of: datetime | None = None
    _due: dict[str, frozenset[TenantId]] = field(default_factory=dict)

    def broken(self) -> tuple[BrokenPromise, ...]:
        """Promises that were not kept, or end soon. A sweep is late only where rows were due long enough and are there still."""
        now, found = promises.promised(self.app.worker_session("watch"), self.as_of)
        return broken(found, now, within=self._within, has_work=lambda promise: self._has_work(promise, now))

    def _within(self, job: str) -> timedelta:
        sweep = self._sweep(job)
        return WITHIN[sweep.every] if sweep is not None else NIGHTLY

    def _has_work(self, promise: Promise, now: datetime) -> bool:
        sweep = self._sweep(promise.job)
        if sweep is None:
            return True  # those runs come every night for everybody
        if promise.job not in self._due:
            then = now - self._within(promise.job)
            self._due[promise.job] = frozenset(sweep_due.due(self.app.worker_session("watch"), sweep.dataset, then))
        return promise.tenant in self._due[promise.job]

    def _sweep(self, job: str) -> SweepDataset | None:
        """The sweep that a job is, if it is one of the catalog's."""
        found = (rules.dataset for rules in self.app.catalog.sweeps if SweepJob.of(rules.dataset.dataset) == job)
        return next(found, None)
