"""The periodic run of one tenant: a preflight, then, if a person said yes, a bounded number of batches (SPEC W6, W7, W10)."""

import math
import os
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from retention_pipeline.errors import Code, Refused, RetentionError
from retention_pipeline.model.archive import Candidate
from retention_pipeline.model.ids import TenantId
from retention_pipeline.model.inventory import Inventory
from retention_pipeline.model.outcome import Counts, Outcome, RunReport
from retention_pipeline.model.people import Approval, Job
from retention_pipeline.model.profile import Profile
from retention_pipeline.model.work import Backlog, EligibleSet
from retention_pipeline.stages.chain import Chain
from retention_pipeline.stages.eligibility import StopSignal, stop_signals
from retention_pipeline.stages.world import EVERY_STEP, PREFLIGHT, Step, StopRunError, World


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How much one run may do for one tenant (W7); configurable downward.

    Args:
        batches: batches of a run.
        batch: instances of a batch.
        seconds: after which no new batch is begun.
        behind_after: seconds after which an overdue instance means that the run is behind (O1).
    """

    batches: int = 20
    batch: int = 500
    seconds: float = 300.0
    behind_after: float = 7 * 24 * 3600.0

    @property
    def instances(self) -> int:
        """How many instances a run takes at most."""
        return self.batches * self.batch


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """A run's report, and what its preflight found."""

    report: RunReport
    inventory: Inventory
    preflight: str
    eligible: EligibleSet
    signals: tuple[StopSignal, ...]


def holder_name() -> str:
    """Who holds a lease: unique, and of use to somebody who looks for the process."""
    return f"{os.getpid()}-{uuid.uuid4().hex[:12]}"


@dataclass(slots=True, kw_only=True)
class Reconciliation:
    """One run for one tenant.

    Args:
        world: the ports.
        tenant: whose instances.
        run: the run's id, in every event.
        apply: False is a preflight: it changes nothing in the source or the store.
        approval: an approval's id; without one nothing is applied.
        steps: which of the steps to run; the preflight's are always run.
        as_of: the instant of the run; the database's clock where None.
    """

    world: World
    tenant: TenantId
    run: str
    apply: bool = False
    approval: str | None = None
    steps: frozenset[Step] = EVERY_STEP
    bounds: Bounds = Bounds()
    as_of: datetime | None = None

    def __call__(self) -> RunResult:
        """Run, and tell how it ended; a refusal before any work is raised."""
        now = self.world.source.now(self.tenant)
        as_of = self.as_of or now
        if self.apply and as_of > now:
            raise Refused(
                Code.AS_OF_IN_FUTURE,
                "An instant in the future can only be looked at, never applied.",
                remedy="Leave --as-of out.",
            )
        begun = self.world.stopwatch()
        inventory = self.world.source.inventory(self.tenant, as_of)
        preflight = self.world.records.record_preflight(inventory, self.run)
        eligible = self.world.records.select(self.tenant, preflight, as_of, self.run, self.bounds.instances)
        preflight_seconds = {"preflight": self.world.stopwatch() - begun}
        found = _Found(now=now, as_of=as_of, inventory=inventory, preflight=preflight, eligible=eligible)
        signals, profile = self._signals(inventory)
        if not self.apply or self.steps <= PREFLIGHT:
            return self._result(found, signals, Outcome.PREFLIGHT, "preflight", Counts(), preflight_seconds)
        if signals or profile is None:
            for signal in signals:
                self.world.records.audit(
                    self.tenant,
                    actor="worker",
                    kind="run.blocked",
                    outcome="blocked",
                    run=self.run,
                    subject=preflight,
                    code=signal.code,
                )
            return self._result(found, signals, Outcome.BLOCKED, signals[0].code, Counts(), preflight_seconds)
        return self._under_lease(found, profile, preflight_seconds)

    def _signals(self, inventory: Inventory) -> tuple[tuple[StopSignal, ...], Profile | None]:
        acknowledged = self.world.records.acknowledged(self.tenant)
        try:
            profile, readiness = self.world.records.profile(self.tenant)
        except Refused as error:
            return (StopSignal(code=error.code, sentence=error.message),), None
        if profile.tenant != self.tenant:
            return (StopSignal(code=Code.TENANT_MISMATCH, sentence="The profile is another tenant's."),), None
        return stop_signals(inventory, readiness, acknowledged, self.world.brake), profile

    def _under_lease(self, found: "_Found", profile: Profile, seconds: dict[str, float]) -> RunResult:
        holder = holder_name()
        fence = self.world.records.take_lease(self.tenant, Job.RECONCILE, holder)
        if fence is None:
            return self._result(found, (), Outcome.SKIPPED, Code.RUN_OVERLAPS, Counts(), seconds)
        try:
            if self.approval is None:
                raise Refused(
                    Code.APPROVAL_REQUIRED,
                    "Nothing is applied without an approval.",
                    remedy="Use `--apply` at the command line, or give the run the id that `retention approve` prints.",
                )
            approval = self.world.records.use_approval(self.tenant, self.approval, Job.RECONCILE, self.run, None)
            chain = Chain(
                world=self.world,
                tenant=self.tenant,
                run=self.run,
                holder=holder,
                as_of=found.as_of,
                profile=profile,
                approval=approval,
                steps=self.steps,
                seconds=seconds,
            )
            return self._work(
                found, chain, lambda: self.world.records.keep_lease(self.tenant, Job.RECONCILE, holder, fence)
            )
        finally:
            self.world.records.drop_lease(self.tenant, Job.RECONCILE, holder, fence)

    def _work(self, found: "_Found", chain: Chain, keep: Callable[[], None]) -> RunResult:
        stopped: RetentionError | None = None
        reason = "exhausted"
        try:
            reason = self._batches(found.eligible, chain, chain.approval, keep)
        except StopRunError as stop:
            stopped, reason = stop.error, stop.error.code
        except (
            RetentionError
        ) as error:  # a refusal in the middle of a run is how it ended, and is recorded like any end
            stopped, reason = error, error.code
        finally:
            chain.close()
        backlog = self.world.source.backlog(self.tenant, found.as_of)
        if stopped is None and not backlog.instances:
            reason = "exhausted"  # whichever bound was met, it kept nothing from being done
        previous = self.world.records.previous_backlog(self.tenant, Job.RECONCILE)
        outcome = judge(chain.counts, backlog, previous, stopped, self.bounds)
        return self._result(found, (), outcome, reason, chain.counts, chain.seconds, backlog=backlog)

    def _batches(self, eligible: EligibleSet, chain: Chain, approval: Approval, keep: Callable[[], None]) -> str:
        """Resume, then take batches of the eligible set, within every bound; gives why it ended."""
        begun = self.world.stopwatch()
        budget = min(self.bounds.instances, approval.max_items)
        bound = "approval_bound" if approval.max_items < self.bounds.instances else "batch_bound"
        position = 0
        while True:
            if self.world.stopwatch() - begun > self.bounds.seconds:
                return "time_bound"
            keep()
            if budget <= 0:
                return bound
            size = min(self.bounds.batch, budget)
            batch: list[tuple[int, Candidate]] = []
            resumed = chain.resume(size)
            if not resumed:
                if Step.ENCRYPTED_MANIFESTS not in self.steps:
                    return "exhausted"
                batch = self.world.records.candidates(eligible, position, size)
                if not batch:
                    return bound if eligible.remaining else "exhausted"
                position = batch[-1][0]
                chain.archive([candidate for _, candidate in batch])
                chain.counts.selected += len(batch)
            budget -= resumed or len(batch)

    def _result(
        self,
        found: "_Found",
        signals: tuple[StopSignal, ...],
        outcome: Outcome,
        reason: str,
        counts: Counts,
        seconds: dict[str, float],
        *,
        backlog: Backlog | None = None,
    ) -> RunResult:
        left = backlog or self.world.source.backlog(self.tenant, found.as_of)
        report = RunReport(
            tenant=self.tenant,
            job=Job.RECONCILE,
            run=self.run,
            outcome=outcome,
            reason=reason,
            counts=counts,
            seconds={name: round(spent, 3) for name, spent in seconds.items()},
            backlog=left.instances,
            oldest_overdue_seconds=left.oldest_overdue_seconds,
            forecast_runs=math.ceil(left.instances / counts.deleted)
            if counts.deleted
            else (0 if not left.instances else None),
        )
        self.world.records.finish(report, found.now)
        return RunResult(
            report=report,
            inventory=found.inventory,
            preflight=found.preflight,
            eligible=found.eligible,
            signals=signals,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    now: datetime
    as_of: datetime
    inventory: Inventory
    preflight: str
    eligible: EligibleSet


def judge(
    counts: Counts, backlog: Backlog, previous: int | None, stopped: RetentionError | None, bounds: Bounds
) -> Outcome:
    """How a run ended (O1), the worst first. *Grows*: more became due since the last run than this one handled."""
    if stopped is not None:
        return Outcome.BLOCKED if isinstance(stopped, Refused) else Outcome.FAILED
    if counts.failed:
        return Outcome.PARTIAL
    if not backlog.instances:
        return Outcome.COMPLETED
    grows = previous is not None and backlog.instances > previous
    too_old = (backlog.oldest_overdue_seconds or 0.0) > bounds.behind_after
    return Outcome.BEHIND if grows or too_old else Outcome.WORK_REMAINS
