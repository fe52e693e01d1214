"""`retention sweep`: ends exactly the rows that a sweep's rule names, a preflight unless told otherwise (SPEC E, L, J, W4)."""

from dataclasses import dataclass, replace
from datetime import datetime

import click

from retention_pipeline.cli.approving import approve_now
from retention_pipeline.cli.common import Call, instant, pass_call, table
from retention_pipeline.cli.stopping import Stop, stoppable
from retention_pipeline.cli.sweep_told import as_json, shown
from retention_pipeline.clock import monotonic
from retention_pipeline.errors import Code, RetentionError, UsageFault
from retention_pipeline.governance.approval import MAX_SWEPT
from retention_pipeline.model.ids import TenantId
from retention_pipeline.model.outcome import Outcome
from retention_pipeline.model.people import Permission, SweepJob
from retention_pipeline.passes import Passes, PassResult
from retention_pipeline.sweeps.loop import SweepBounds


@click.command()
@click.argument("name")
@click.option("--apply", is_flag=True, help="End the rows that are due; makes a single-use approval.")
@click.option("--everyone", is_flag=True, help="Each tenant that has rows over their time, in turn; without --tenant.")
@click.option("--reason", help="Why, for the record.")
@click.option("--batches", type=click.IntRange(1), help="Transactions at most; the catalog's number, or fewer.")
@click.option("--batch", type=click.IntRange(1), help="Rows of a transaction at most; the catalog's number, or fewer.")
@click.option(
    "--seconds", type=click.FloatRange(1, 300), default=300, show_default=True, help="Begin no batch after this."
)
@click.option(
    "--pass-seconds",
    type=click.FloatRange(1, 6000),
    default=3000,
    show_default=True,
    help="With --everyone: begin no further tenant after this; the next call begins with that one.",
)
@click.option("--as-of", type=instant, help="Look as of this instant; an apply's may not lie in the future.")
@pass_call
def sweep(
    call: Call,
    name: str,
    apply: bool,
    everyone: bool,
    reason: str | None,
    batches: int | None,
    batch: int | None,
    seconds: float,
    pass_seconds: float,
    as_of: datetime | None,
) -> None:
    """Look what one sweep would end; with --apply, end it.

    NAME is a dataset of the catalog: ephemeral_payloads, submission_ledgers, job_evidence, workflow_history or
    join_requests in the shipped one. Ctrl-C, or SIGTERM, finishes the batch in hand and begins no other.

    \b
    Examples:
      retention --tenant acme sweep submission_ledgers
      retention --tenant acme sweep submission_ledgers --apply --reason "after the migration"
      retention --tenant acme sweep ephemeral_payloads --as-of 2026-12-24T00:00:00+01:00
      retention sweep submission_ledgers --everyone --apply --reason "nightly, by cron"
    """
    if everyone and call.alias:
        raise UsageFault(Code.USAGE, "It is either one tenant or everyone.", remedy="Leave one of the two out.")
    if everyone:
        call.require_everywhere(Permission.RECONCILE)
    else:
        call.require(Permission.RECONCILE)
    passes = Passes(app=call.app, name=name)
    one = _One(
        call=call,
        passes=passes,
        apply=apply,
        reason=reason,
        bounds=_bounds(passes.bounds, batches, batch, seconds),
        as_of=as_of,
    )
    if everyone:
        _everyone(one, pass_seconds)
    else:
        _alone(one)


@dataclass(frozen=True, slots=True, kw_only=True)
class _One:
    """One tenant's pass, as the call wants it."""

    call: Call
    passes: Passes
    apply: bool
    reason: str | None
    bounds: SweepBounds
    as_of: datetime | None

    def over(self, tenant: TenantId, stopping: Stop) -> PassResult:
        """Approve on the spot where it applies, and run."""
        job = SweepJob.of(self.passes.name)
        most = min(self.bounds.ceiling, MAX_SWEPT)
        approval = (
            approve_now(self.call, job, max_items=most, reason=self.reason, tenant=tenant) if self.apply else None
        )
        with self.call.progress(self.passes.name if self.apply else "look") as progress:
            return self.passes.over(
                tenant,
                run=self.call.correlation,
                apply=self.apply,
                approval=approval,
                bounds=self.bounds,
                as_of=self.as_of,
                stopping=stopping,
                progress=progress,
            )


def _alone(one: _One) -> None:
    with stoppable() as stopping:
        done = one.over(one.call.tenant.id, stopping)
    one.call.emit(as_json(done), shown(done))
    one.call.finish(done.result.report.outcome)


def _everyone(one: _One, seconds: float) -> None:
    """Tenant after tenant, from where the last pass stopped; one that fails is told, and the next goes on (L1, L4)."""
    tenants = one.passes.due()
    told: dict[TenantId, dict[str, object]] = {}
    begun = monotonic()
    with stoppable() as stopping:
        for tenant in tenants:
            if stopping() or monotonic() - begun > seconds:
                break
            try:
                told[tenant] = as_json(one.over(tenant, stopping))
            except RetentionError as error:
                told[tenant] = {"outcome": Outcome.FAILED, "reason": error.code, "backlog": None}
            if one.apply:
                one.passes.handled(tenant)
    left = len(tenants) - len(told)
    outcome = _together([Outcome(str(found["outcome"])) for found in told.values()], left, apply=one.apply)
    answer = {"outcome": outcome, "tenants": list(told.values()), "not_reached": left}
    rows = [(tenant, found["outcome"], found["reason"], found["backlog"]) for tenant, found in told.items()]
    one.call.emit({**answer, "dataset": one.passes.name}, table(("tenant", "outcome", "why it ended", "left"), rows))
    one.call.finish(outcome)


def _together(outcomes: list[Outcome], left: int, *, apply: bool) -> Outcome:
    """The outcome of a pass over many: nothing that is not green is hidden behind others that are (O1)."""
    bad = {outcome for outcome in outcomes if not outcome.green}
    if len(bad) == 1 and len(set(outcomes)) == 1:
        return bad.pop()
    if bad:
        return Outcome.PARTIAL
    if left:
        return Outcome.BEHIND
    if not apply:
        return Outcome.PREFLIGHT
    return Outcome.WORK_REMAINS if Outcome.WORK_REMAINS in outcomes else Outcome.COMPLETED


def _bounds(allowed: SweepBounds, batches: int | None, batch: int | None, seconds: float) -> SweepBounds:
    """The catalog's bounds, or narrower ones."""
    return replace(
        allowed,
        batch=min(batch or allowed.batch, allowed.batch),
        batches=min(batches or allowed.batches, allowed.batches),
        seconds=seconds,
    )
