"""`retention expire`: ends archives whose own retention is over, a preflight unless told otherwise (SPEC A10)."""

import click
from rich.console import Group
from rich.text import Text

from retention_pipeline.cli.approving import approve_now
from retention_pipeline.cli.common import Call, pass_call, table
from retention_pipeline.errors import Code, UsageFault
from retention_pipeline.model.expiry import DueInventory
from retention_pipeline.model.people import Job, Permission
from retention_pipeline.postgres import archive_lives
from retention_pipeline.stages.expiry import ExpiryResult
from retention_pipeline.stages.reconcile import Bounds

_WORDS = {
    "preflight": "nothing was changed",
    "exhausted": "nothing is left that may go",
    "batch_bound": "the bound of one run was reached",
    "approval_bound": "the approval's bound was reached",
    "time_bound": "the time was over",
}
_WAY_ON = "Look at these numbers; if they are right, `retention expire --acknowledge --reason …`."


@click.command()
@click.option("--apply", is_flag=True, help="Delete the objects of archives that are due; makes a single-use approval.")
@click.option("--acknowledge", is_flag=True, help="Accept how many archives are due; needs --reason.")
@click.option("--reason", help="Why, for the record.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=10_000, show_default=True, help="Archives at most.")
@click.option(
    "--seconds", type=click.FloatRange(1, 300), default=300, show_default=True, help="Begin no archive after this."
)
@pass_call
def expire(call: Call, apply: bool, acknowledge: bool, reason: str | None, limit: int, seconds: float) -> None:
    """Look which archives are over; with --apply, end them.

    An archive's period was captured when its instance was deleted, and counts from then. A legal hold keeps it, and so does
    a restore. Its record stays as its tombstone. A legal hold that comes after an archive's deletion has begun is refused.

    \b
    Examples:
      retention --tenant acme expire
      retention --tenant acme expire --acknowledge --reason "archives of 2016"
      retention --tenant acme expire --apply --reason "yearly run"
    """
    call.require(Permission.ARCHIVE)
    tenant = call.tenant.id
    if acknowledge and not (reason and reason.strip()):
        raise UsageFault(Code.USAGE, "An acknowledgement needs a reason.", remedy="Give one with --reason.")
    if acknowledge:
        looked = call.app.expire(tenant, run=call.correlation)
        with call.app.operator().transaction(tenant) as cursor:
            archive_lives.acknowledge(cursor, tenant, looked.found, str(reason))
    approval = approve_now(call, Job.EXPIRE, max_items=limit, reason=reason) if apply else None
    with call.progress("end archives" if apply else "look") as progress:
        result = call.app.expire(
            tenant,
            run=call.correlation,
            apply=apply,
            approval=approval,
            bounds=Bounds(batches=1, batch=limit, seconds=seconds),
            progress=progress,
        )
    call.emit(as_json(result, acknowledged=acknowledge), shown(result))
    call.finish(result.report.outcome)


def as_json(result: ExpiryResult, *, acknowledged: bool) -> dict[str, object]:
    """The run for programs."""
    report = result.report
    return {
        "tenant": report.tenant,
        "run": report.run,
        "outcome": report.outcome,
        "reason": report.reason,
        "acknowledged": acknowledged,
        **inventory_of(result.found),
        "stop_signals": [{"code": s.code, "sentence": s.sentence, "remedy": _WAY_ON} for s in result.signals],
        "expired": report.counts.expired,
        "leftovers_removed": report.counts.removed,
        "skipped": report.counts.skipped,
        "failures": report.counts.failures,
        "backlog": report.backlog,
        "oldest_overdue_seconds": report.oldest_overdue_seconds,
        "forecast_runs": report.forecast_runs,
        "seconds": report.seconds,
    }


def inventory_of(found: DueInventory) -> dict[str, object]:
    """What is due, and what keeps the rest; after a run that applied, what is left."""
    return {
        "archives": found.archives,
        "due": found.due,
        "stays": found.stays,
        "waiting_for": found.waiting_for,
        "leftovers_due": found.leftovers,
        "leftovers_held": found.leftovers_held,
        "leftovers_waiting": found.leftovers_waiting,
        "locks_to_tell": found.lock_tasks,
    }


def shown(result: ExpiryResult) -> Group:
    """The run for people: how it ended, why, and what is left."""
    report, found = result.report, result.found
    numbers = [
        ("archives", found.archives),
        ("due", found.due),
        *((name.replace("_", " "), number) for name, number in found.stays.items()),
        ("waiting for", ", ".join(f"{code} {n}" for code, n in found.waiting_for.items()) or 0),
        ("left from attempts, due", found.leftovers),
        ("locks to tell the provider", found.lock_tasks),
        ("ended", report.counts.expired),
        ("left from attempts, removed", report.counts.removed),
        ("set aside", ", ".join(f"{code} {n}" for code, n in report.counts.failures.items()) or 0),
        ("backlog", report.backlog),
        ("where the time went", ", ".join(f"{name} {spent:.1f} s" for name, spent in report.seconds.items())),
    ]
    facts = table(("", ""), numbers)
    facts.show_header = False
    notes = [Text(f"An apply stops here: {s.code}: {s.sentence}\n  {_WAY_ON}") for s in result.signals]
    why = _WORDS.get(report.reason, report.reason)
    return Group(Text(f"{report.outcome.replace('_', ' ')}: {why}", style="bold"), facts, *notes)
