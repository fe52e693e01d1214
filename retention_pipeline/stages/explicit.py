"""The explicit archive of one instance: a preflight by default, the same steps when a person says yes (SPEC W8)."""

from dataclasses import dataclass
from datetime import datetime

from retention_pipeline.errors import Code, Refused, RetentionError, UsageFault
from retention_pipeline.model.archive import Candidate
from retention_pipeline.model.decision import LEGAL_HOLD, Decision, Disposition, Facts, decide
from retention_pipeline.model.ids import InstanceId, TenantId
from retention_pipeline.model.outcome import Counts, Outcome
from retention_pipeline.model.people import Job
from retention_pipeline.stages.chain import Chain
from retention_pipeline.stages.reconcile import holder_name
from retention_pipeline.stages.world import EVERY_STEP, StopRunError, World


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplicitResult:
    """What the explicit path found or did.

    Args:
        go: whether nothing stands in the way; a hold does not, it is bound to the archive (A9).
        held: whether a hold would be bound.
    """

    instance: InstanceId
    decision: Decision
    go: bool
    held: bool
    ready: bool
    outcome: Outcome
    reason: str
    counts: Counts


@dataclass(slots=True, kw_only=True)
class ExplicitArchive:
    """One instance's archive on request."""

    world: World
    tenant: TenantId
    instance: InstanceId
    run: str
    apply: bool = False
    approval: str | None = None
    as_of: datetime | None = None

    def __call__(self) -> ExplicitResult:
        """Look, and with `apply` act; raises a refusal with its code."""
        now = self.world.source.now(self.tenant)
        as_of = self.as_of or now
        facts, candidate = self.world.source.facts(self.tenant, self.instance, as_of)
        decision = decide(facts)
        profile, readiness = self.world.records.profile(self.tenant)
        go = explicit_go(facts, decision)
        if not self.apply:
            return self._result(
                facts, decision, ready=readiness.ready, outcome=Outcome.PREFLIGHT, reason="preflight", counts=Counts()
            )
        if as_of > now:
            raise Refused(
                Code.AS_OF_IN_FUTURE, "An instant in the future can only be looked at.", remedy="Leave --as-of out."
            )
        if not go or candidate is None:
            raise Refused(
                Code.NOT_ELIGIBLE,
                f"The instance stays: {decision.disposition}.",
                remedy="See `retention archive ID` for everything that protects it.",
            )
        if not readiness.ready:
            raise Refused(
                Code.PROFILE_NOT_READY,
                f"The archive profile is not ready: {', '.join(readiness.codes) or 'never probed'}.",
                remedy="Run `retention profile readiness`.",
            )
        if self.approval is None:
            raise Refused(Code.APPROVAL_REQUIRED, "Nothing is applied without an approval.", remedy="Use `--apply`.")
        holder = holder_name()
        fence = self.world.records.take_lease(self.tenant, Job.ARCHIVE, holder)
        if fence is None:
            return self._result(
                facts,
                decision,
                ready=readiness.ready,
                outcome=Outcome.SKIPPED,
                reason=Code.RUN_OVERLAPS,
                counts=Counts(),
            )
        chain: Chain | None = None
        try:
            chain = Chain(
                world=self.world,
                tenant=self.tenant,
                run=self.run,
                holder=holder,
                as_of=as_of,
                profile=profile,
                approval=self.world.records.use_approval(
                    self.tenant, self.approval, Job.ARCHIVE, self.run, self.instance
                ),
                steps=EVERY_STEP,
                held_too=True,
            )
            return self._work(chain, candidate, facts, decision)
        finally:
            if chain is not None:
                chain.close()
            self.world.records.drop_lease(self.tenant, Job.ARCHIVE, holder, fence)

    def _work(self, chain: Chain, candidate: Candidate, facts: Facts, decision: Decision) -> ExplicitResult:
        try:
            chain.resume(1, self.instance)
            if not chain.counts.deleted and not chain.counts.failed:
                chain.archive([candidate])
        except StopRunError as stop:
            return self._ended(stop.error, chain.counts, facts, decision)
        except RetentionError as error:  # a refusal in the middle is how it ended
            return self._ended(error, chain.counts, facts, decision)
        if chain.counts.deleted == 1:
            return self._result(
                facts, decision, ready=True, outcome=Outcome.COMPLETED, reason="archived", counts=chain.counts
            )
        reason = next(iter(chain.counts.failures), None) or self._why_it_stays(chain.as_of)
        return self._result(facts, decision, ready=True, outcome=Outcome.PARTIAL, reason=reason, counts=chain.counts)

    def _ended(self, error: RetentionError, counts: Counts, facts: Facts, decision: Decision) -> ExplicitResult:
        outcome = Outcome.BLOCKED if isinstance(error, Refused) else Outcome.FAILED
        return self._result(facts, decision, ready=True, outcome=outcome, reason=error.code, counts=counts)

    def _why_it_stays(self, as_of: datetime) -> Code:
        """Nothing failed, and yet it is there: something protects it by now, or somebody else has it."""
        try:
            facts, _ = self.world.source.facts(self.tenant, self.instance, as_of)
        except UsageFault:
            return Code.ALREADY_ARCHIVED
        return Code.SOURCE_BUSY if explicit_go(facts, decide(facts)) else Code.NOT_ELIGIBLE

    def _result(
        self,
        facts: Facts,
        decision: Decision,
        *,
        ready: bool,
        outcome: Outcome,
        reason: str,
        counts: Counts,
    ) -> ExplicitResult:
        return ExplicitResult(
            instance=self.instance,
            decision=decision,
            go=explicit_go(facts, decision),
            held=facts.held,
            ready=ready,
            outcome=outcome,
            reason=reason,
            counts=counts,
        )


def explicit_go(facts: Facts, decision: Decision) -> bool:
    """Whether the explicit path may take it: due, and nothing but a hold protects it."""
    return decision.disposition == Disposition.ELIGIBLE or (
        facts.due and decision.blockers == (LEGAL_HOLD,) and not facts.foreign
    )
