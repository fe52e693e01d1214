"""The bounded run that every sweep is: batches within a budget, a saved place, a size that adapts, an outcome (SPEC E4, L2, O1).

- One batch is one transaction. Its tables take turns, so that a large one starves no other; one that fails stops alone (E5).
- A batch that fails is halved until it goes through, or until one row is left that fails alone: it is set aside, and passed by (F7).
- A stop finishes the batch in hand and begins no other.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from retention_pipeline import clock
from retention_pipeline.clock import Stopwatch
from retention_pipeline.errors import Code, Refused, RetentionError
from retention_pipeline.model.ids import TenantId
from retention_pipeline.model.outcome import Counts, Outcome, RunReport
from retention_pipeline.model.people import Approval, SweepJob
from retention_pipeline.model.sweep import Sweeper, SweepFound, TableDone, Turn
from retention_pipeline.model.work import Records, Source
from retention_pipeline.stages.reconcile import holder_name
from retention_pipeline.sweeps.turn import TableTurn

EXHAUSTED: Final = "exhausted"
"""Why a run ended that went through every table to its end, or left nothing."""

KEEP_LEASE_SECONDS: Final = 60.0
"""How often the lease is extended: it lasts 15 minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepBounds:
    """How much one pass may do for one tenant; configurable downward.

    Args:
        batch: rows of one transaction.
        batches: transactions over all tables.
        seconds: after which no new batch is begun.
        behind_after: seconds after which an overdue row means that the sweep is behind (O1).
        passes_a_day: how often a schedule comes by, to tell what a day can carry.
        pause: seconds between two batches.
    """

    batch: int
    batches: int
    seconds: float = 300.0
    behind_after: float = 7 * 24 * 3600.0
    passes_a_day: int = 1
    pause: float = 0.0

    @property
    def ceiling(self) -> int:
        """Rows of one pass at most."""
        return self.batch * self.batches


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResult:
    """A run's report, what it found, what is left, and what was done by table."""

    report: RunReport
    found: SweepFound
    left: SweepFound
    tables: dict[str, TableDone]
    ceiling: int


@dataclass(slots=True, kw_only=True)
class Sweep:
    """One pass over one tenant.

    Args:
        source: for the database's clock.
        records: leases, approvals and outcomes.
        sweeper: the verb and its tables.
        dataset: the sweep's name.
        apply: False is a preflight: nothing changes.
        approval: an approval's id; without one nothing is applied.
        as_of: the instant of the run; the database's clock where None.
        stopping: asked before each batch, whether somebody wants to stop.
        progress: told after each batch.
    """

    source: Source
    records: Records
    sweeper: Sweeper
    dataset: str
    tenant: TenantId
    run: str
    bounds: SweepBounds
    apply: bool = False
    approval: str | None = None
    as_of: datetime | None = None
    stopwatch: Stopwatch = clock.monotonic
    stopping: Callable[[], bool] = lambda: False
    progress: Callable[[Counts], None] = lambda _: None
    _counts: Counts = field(default_factory=Counts)
    _seconds: dict[str, float] = field(default_factory=dict)
    _tables: dict[str, TableDone] = field(default_factory=dict)
    _done_before: int = 0
    _most: int = 0

    def __call__(self) -> SweepResult:
        """Look, and with `apply` act; how it ended is recorded either way.

        Raises:
            Refused: `AS_OF_IN_FUTURE`; an approval that is missing or not good.
        """
        now = self.source.now(self.tenant)
        as_of = self.as_of or now
        if self.apply and as_of > now:
            raise Refused(
                Code.AS_OF_IN_FUTURE, "An instant in the future can only be looked at.", remedy="Leave --as-of out."
            )
        self._tables = {name: TableDone() for name in self.sweeper.tables}
        found = self._look(as_of)
        if not self.apply:
            outcome = Outcome.PARTIAL if found.unread else Outcome.PREFLIGHT
            return self._result(now, found, found, outcome, "preflight")
        holder, job = holder_name(), SweepJob.of(self.dataset)
        fence = self.records.take_lease(self.tenant, job, holder)
        if fence is None:
            return self._result(now, found, found, Outcome.SKIPPED, Code.RUN_OVERLAPS)
        try:
            if self.approval is None:
                raise Refused(
                    Code.APPROVAL_REQUIRED,
                    "Nothing is applied without an approval.",
                    remedy="Use `--apply` at the command line, or give the run the id that `retention approve` prints.",
                )
            approval = self.records.use_approval(self.tenant, self.approval, job, self.run, None)
            reason, stopped = self._work(
                as_of, approval, lambda: self.records.keep_lease(self.tenant, job, holder, fence)
            )
            for table in self._tables.values():
                for code, number in (*table.aside.items(), *([(table.failed, 1)] if table.failed else [])):
                    self._counts.failures[code] = self._counts.failures.get(code, 0) + number
            left = self._look(as_of)
            self._counts.kept = sum(sum(table.kept.values()) for table in left.tables)
            previous = self.records.previous_backlog(self.tenant, job)
            nothing_left = not left.due and not left.more and not any(t.failed for t in self._tables.values())
            if stopped is None and nothing_left:
                reason = EXHAUSTED  # whichever bound was met, it kept nothing from being done
            outcome = self._judge(left, previous, stopped, gone_through=reason == EXHAUSTED)
            return self._result(now, found, left, outcome, reason)
        finally:
            self.records.drop_lease(self.tenant, job, holder, fence)

    def _work(self, as_of: datetime, approval: Approval, keep: Callable[[], None]) -> tuple[str, RetentionError | None]:
        """Batches of all tables in turns, within every bound; gives why it ended, and what stopped it."""
        begun = kept_at = self.stopwatch()
        self._most = min(self.bounds.ceiling, approval.max_items)
        batches, budget = self.bounds.batches, self._most
        try:
            turns = [self._turn(name, as_of, approval) for name in self.sweeper.tables]
            while turn := self._next(turns):
                if (reason := self._bound(begun, batches, budget, approval)) is not None:
                    for left in turns:
                        left.leave()
                    return reason, None
                if self.stopwatch() - kept_at > KEEP_LEASE_SECONDS:
                    keep()
                    kept_at = self.stopwatch()
                batches, budget = batches - 1, budget - self._step(turn, budget)
        except RetentionError as error:
            return error.code, error
        return EXHAUSTED, None

    def _turn(self, table: str, as_of: datetime, approval: Approval) -> TableTurn:
        turn = Turn(tenant=self.tenant, table=table, as_of=as_of, approval=approval, run=self.run)
        return TableTurn(sweeper=self.sweeper, turn=turn, largest=self.bounds.batch, done=self._tables[table])

    def _next(self, turns: list[TableTurn]) -> TableTurn | None:
        """Whose turn it is: one batch each, in a circle, and a further lap for what may be free by now."""
        if all(turn.over for turn in turns):
            progressed = sum(table.done for table in self._tables.values()) > self._done_before
            self._done_before = sum(table.done for table in self._tables.values())
            again = [turn.again(others_progressed=progressed) for turn in turns]
            if not any(again):
                return None
        turn = next(turn for turn in turns if not turn.over)
        turns.remove(turn)
        turns.append(turn)
        return turn

    def _step(self, turn: TableTurn, budget: int) -> int:
        begun = self.stopwatch()
        gone = turn.step(budget)
        name = f"{self.sweeper.verb} {turn.turn.table}"
        self._seconds[name] = self._seconds.get(name, 0.0) + self.stopwatch() - begun
        setattr(self._counts, self.sweeper.verb, getattr(self._counts, self.sweeper.verb) + gone)
        self.progress(self._counts)
        if self.bounds.pause:
            clock.sleep(self.bounds.pause)
        return gone

    def _bound(self, begun: float, batches: int, budget: int, approval: Approval) -> str | None:
        if self.stopping():
            return "stopped"
        if self.stopwatch() - begun > self.bounds.seconds:
            return "time_bound"
        if batches <= 0:
            return "batch_bound"
        if budget <= 0:
            return "approval_bound" if approval.max_items < self.bounds.ceiling else "batch_bound"
        return None

    def _look(self, as_of: datetime) -> SweepFound:
        begun = self.stopwatch()
        found = self.sweeper.look(self.tenant, as_of)
        self._seconds["look"] = self._seconds.get("look", 0.0) + self.stopwatch() - begun
        return found

    def _judge(
        self, left: SweepFound, previous: int | None, stopped: RetentionError | None, *, gone_through: bool
    ) -> Outcome:
        """How a run ended (O1), the worst first. *Grows*: more became due since the last run than this one handled.

        Where a look did not come to the end of what is over its time, only a run that went through all of it is complete.
        """
        if stopped is not None:
            return Outcome.BLOCKED if isinstance(stopped, Refused) else Outcome.FAILED
        if self._tables and all(table.failed for table in self._tables.values()):
            return Outcome.FAILED
        if self._counts.failures or left.unread:
            return Outcome.PARTIAL
        if not left.due and (gone_through or not left.more):
            return Outcome.COMPLETED
        grows = previous is not None and left.due > previous
        too_old = (left.overdue_seconds or 0.0) > self.bounds.behind_after
        too_many = (left.inflow or 0) > self._most * self.bounds.passes_a_day
        return Outcome.BEHIND if grows or too_old or too_many else Outcome.WORK_REMAINS

    def _result(self, now: datetime, found: SweepFound, left: SweepFound, outcome: Outcome, reason: str) -> SweepResult:
        done = sum(table.done for table in self._tables.values())
        report = RunReport(
            tenant=self.tenant,
            job=SweepJob.of(self.dataset),
            run=self.run,
            outcome=outcome,
            reason=reason,
            counts=self._counts,
            seconds={name: round(spent, 3) for name, spent in self._seconds.items()},
            backlog=left.due,
            oldest_overdue_seconds=left.overdue_seconds,
            forecast_runs=math.ceil(left.due / done) if done else (0 if not left.due else None),
        )
        self.records.finish(report, now)
        return SweepResult(report=report, found=found, left=left, tables=self._tables, ceiling=self.bounds.ceiling)
