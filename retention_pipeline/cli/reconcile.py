"""`retention reconcile`: the periodic run of one tenant, a preflight unless told otherwise (SPEC W6, W7, W10)."""

import click
from rich.console import Group
from rich.text import Text

from retention_pipeline.cli.approving import approve_now
from retention_pipeline.cli.common import Call, pass_call, table
from retention_pipeline.cli.inventory import notes as inventory_notes
from retention_pipeline.errors import Code, UsageFault
from retention_pipeline.model.people import Job, Permission
from retention_pipeline.postgres import approvals
from retention_pipeline.stages.reconcile import Bounds, RunResult

_ACKNOWLEDGE = "Look at these numbers; if they are right, `retention reconcile --acknowledge --reason …`."
_WAYS_ON: dict[str, str] = {
    Code.PROFILE_UNKNOWN: "Give the tenant an archive profile: `retention profile set`.",
    Code.PROFILE_NOT_READY: "Try the archive store: `retention profile readiness`.",
    Code.PREFLIGHT_UNACKNOWLEDGED: _ACKNOWLEDGE,
    Code.MISSING_EPOCHS_UNACKNOWLEDGED: _ACKNOWLEDGE,
    Code.BLOCKERS_UNACKNOWLEDGED: _ACKNOWLEDGE,
    Code.BRAKE: _ACKNOWLEDGE,
}
_WORDS = {
    "preflight": "nothing was changed",
    "exhausted": "nothing is left that may go",
    "batch_bound": "the bound of batches was reached",
    "approval_bound": "the approval's bound was reached",
    "time_bound": "the time was over",
}


@click.command()
@click.option("--apply", is_flag=True, help="Archive, verify and delete what is eligible; makes a single-use approval.")
@click.option("--acknowledge", is_flag=True, help="Accept the numbers of this preflight; needs --reason.")
@click.option("--reason", help="Why, for the record.")
@click.option("--batches", type=click.IntRange(1, 20), default=20, show_default=True, help="Batches at most.")
@click.option(
    "--batch", type=click.IntRange(1, 500), default=500, show_default=True, help="Instances of a batch at most."
)
@click.option(
    "--seconds", type=click.FloatRange(1, 300), default=300, show_default=True, help="Begin no batch after this."
)
@pass_call
def reconcile(
    call: Call, apply: bool, acknowledge: bool, reason: str | None, batches: int, batch: int, seconds: float
) -> None:
    """Look what may go; with --apply, archive and delete it.

    Each archive is proven before its source goes. Without --apply nothing changes in the source or the archive store.

    \b
    Examples:
      retention --tenant acme reconcile
      retention --tenant acme reconcile --acknowledge --reason "first look at acme"
      retention --tenant acme reconcile --apply --reason "monthly run"
    """
    call.require(Permission.RECONCILE)
    tenant = call.tenant.id
    if acknowledge and not (reason and reason.strip()):
        raise UsageFault(Code.USAGE, "An acknowledgement needs a reason.", remedy="Give one with --reason.")
    bounds = Bounds(batches=batches, batch=batch, seconds=seconds)
    accepted = _acknowledge(call, str(reason), bounds) if acknowledge else None
    approval = approve_now(call, Job.RECONCILE, max_items=bounds.instances, reason=reason) if apply else None
    with call.progress("archive, verify, delete" if apply else "look") as progress:
        result = call.app.reconcile(
            tenant, run=call.correlation, apply=apply, approval=approval, bounds=bounds, progress=progress
        )
    call.emit(as_json(result, accepted), shown(result, accepted))
    call.finish(result.report.outcome)


def _acknowledge(call: Call, reason: str, bounds: Bounds) -> str:
    """Accept the numbers of a preflight of its own, and give its id; the run that follows looks again."""
    looked = call.app.reconcile(call.tenant.id, run=call.correlation, bounds=bounds)
    with call.app.operator().transaction(call.tenant.id) as cursor:
        approvals.acknowledge(cursor, call.tenant.id, reason, looked.preflight)
    return looked.preflight


def as_json(result: RunResult, accepted: str | None) -> dict[str, object]:
    """The run for programs."""
    report = result.report
    return {
        "tenant": report.tenant,
        "run": report.run,
        "outcome": report.outcome,
        "reason": report.reason,
        "preflight": result.preflight,
        "acknowledged": accepted is not None,
        "acknowledged_preflight": accepted,
        "eligible": result.inventory.eligible,
        "cooling_off": result.inventory.cooling_off,
        "dispositions": result.inventory.dispositions,
        "stop_signals": [
            {"code": s.code, "sentence": s.sentence, "remedy": _WAYS_ON.get(s.code)} for s in result.signals
        ],
        "archived": report.counts.archived,
        "verified": report.counts.verified,
        "deleted": report.counts.deleted,
        "bytes_archived": report.counts.bytes_archived,
        "adopted": report.counts.adopted,
        "superseded": report.counts.superseded,
        "locks_to_tell": report.counts.locks_pending,
        "skipped": report.counts.skipped,
        "failures": report.counts.failures,
        "backlog": report.backlog,
        "oldest_overdue_seconds": report.oldest_overdue_seconds,
        "forecast_runs": report.forecast_runs,
        "seconds": report.seconds,
    }


def shown(result: RunResult, accepted: str | None) -> Group:
    """The run for people: how it ended, why, and what is left."""
    report = result.report
    numbers = [
        ("eligible", result.inventory.eligible),
        ("archived", report.counts.archived),
        ("verified", report.counts.verified),
        ("deleted", report.counts.deleted),
        ("set aside", ", ".join(f"{code} {n}" for code, n in report.counts.failures.items()) or 0),
        ("backlog", report.backlog),
        ("oldest overdue", _days(report.oldest_overdue_seconds)),
        ("where the time went", ", ".join(f"{name} {spent:.1f} s" for name, spent in report.seconds.items())),
    ]
    facts = table(("", ""), numbers)
    facts.show_header = False
    notes = [Text(f"Preflight {accepted or result.preflight}{' was acknowledged' if accepted else ''}.")]
    notes += inventory_notes(result.inventory)
    for signal in result.signals:
        notes.append(Text(f"An apply stops here: {signal.code}: {signal.sentence}"))
        notes.append(Text(f"  {_WAYS_ON[signal.code]}" if signal.code in _WAYS_ON else ""))
    why = _WORDS.get(report.reason, report.reason)
    return Group(Text(f"{report.outcome.replace('_', ' ')}: {why}", style="bold"), facts, *notes)


def _days(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds / 86_400:.1f} days"
