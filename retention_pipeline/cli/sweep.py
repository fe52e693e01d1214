"""`retention sweep`: ends exactly the rows that a sweep's rule names, a preflight unless told otherwise (SPEC E, L, J, W4)."""

import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from types import FrameType

import click
from rich.console import Group
from rich.text import Text

from retention_pipeline.cli.approving import approve_now
from retention_pipeline.cli.common import Call, pass_call
from retention_pipeline.cli.common import table as table_of
from retention_pipeline.model.people import Permission, SweepJob
from retention_pipeline.model.sweep import COUNTED
from retention_pipeline.model.table_health import TableHealth
from retention_pipeline.passes import Passes, PassResult
from retention_pipeline.sweeps.loop import SweepBounds

WORDS = {
    "preflight": "nothing was changed",
    "exhausted": "nothing is left that may go",
    "batch_bound": "the bound of one pass was reached",
    "approval_bound": "the approval's bound was reached",
    "time_bound": "the time was over",
    "stopped": "somebody asked it to stop; the batch in hand was finished",
}


@click.command()
@click.argument("name")
@click.option("--apply", is_flag=True, help="End the rows that are due; makes a single-use approval.")
@click.option("--reason", help="Why, for the record.")
@click.option("--batches", type=click.IntRange(1), help="Transactions at most; the catalog's number, or fewer.")
@click.option("--batch", type=click.IntRange(1), help="Rows of a transaction at most; the catalog's number, or fewer.")
@click.option(
    "--seconds", type=click.FloatRange(1, 300), default=300, show_default=True, help="Begin no batch after this."
)
@click.option("--as-of", type=click.DateTime(["%Y-%m-%dT%H:%M:%S%z"]), help="Look as of this instant, with its offset.")
@pass_call
def sweep(
    call: Call,
    name: str,
    apply: bool,
    reason: str | None,
    batches: int | None,
    batch: int | None,
    seconds: float,
    as_of: datetime | None,
) -> None:
    """Look what one sweep would end; with --apply, end it.

    NAME is a dataset of the catalog: ephemeral_payloads, submission_ledgers, job_evidence, workflow_history or
    join_requests in the shipped one. Ctrl-C, or SIGTERM, finishes the batch in hand and begins no other.

    \b
    Examples:
      retention --tenant acme sweep submission_ledgers
      retention --tenant acme sweep submission_ledgers --apply --reason "after the migration"
      retention --tenant acme sweep ephemeral_payloads --as-of 2026-12-24T00:00:00+0100
    """
    call.require(Permission.RECONCILE)
    passes = Passes(app=call.app, name=name)
    bounds = _bounds(passes.bounds, batches, batch, seconds)
    tenant = call.tenant.id
    approval = None
    if apply:
        approval = approve_now(call, SweepJob.of(name), max_items=min(bounds.ceiling, 50_000), reason=reason)
    with _stoppable() as stopping, call.progress(name if apply else "look") as progress:
        done = passes.over(
            tenant,
            run=call.correlation,
            apply=apply,
            approval=approval,
            bounds=bounds,
            as_of=as_of,
            stopping=stopping,
            progress=progress,
        )
    call.emit(as_json(done), shown(done))
    call.finish(done.result.report.outcome)


class _Stop:
    """Whether somebody asked for a stop."""

    asked = False

    def __call__(self) -> bool:
        return self.asked

    def ask(self, signal_number: int, frame: FrameType | None) -> None:  # noqa: ARG002  a handler's own signature
        """A second signal is not caught: it ends the program as ever, and the transaction in hand is rolled back."""
        self.asked = True
        signal.signal(signal_number, signal.default_int_handler)


@contextmanager
def _stoppable() -> Iterator[_Stop]:
    """SIGINT and SIGTERM ask for a stop as long as this lasts."""
    stop = _Stop()
    before = {number: signal.signal(number, stop.ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _bounds(allowed: SweepBounds, batches: int | None, batch: int | None, seconds: float) -> SweepBounds:
    """The catalog's bounds, or narrower ones."""
    return replace(
        allowed,
        batch=min(batch or allowed.batch, allowed.batch),
        batches=min(batches or allowed.batches, allowed.batches),
        seconds=seconds,
    )


def as_json(done: PassResult) -> dict[str, object]:
    """The run for programs."""
    result = done.result
    report = result.report
    return {
        "tenant": report.tenant,
        "run": report.run,
        "outcome": report.outcome,
        "reason": report.reason,
        "tables": {
            found.name: {
                "due": found.due,
                "done": result.tables[found.name].done,
                "kept": found.kept,
                "findings": found.findings,
                "falls_due_within_a_day": found.inflow,
                "set_aside": result.tables[found.name].aside,
                "failed": result.tables[found.name].failed,
            }
            for found in result.found.tables
        },
        "unread": result.found.unread,
        "failures": report.counts.failures,
        "ceiling": result.ceiling,
        "inflow": result.found.inflow,
        "backlog": report.backlog,
        "oldest_overdue_seconds": report.oldest_overdue_seconds,
        "forecast_runs": report.forecast_runs,
        "seconds": report.seconds,
        "health": {"before": _health(done.before), "after": _health(done.after), "notes": dict(done.notes)},
    }


def _health(tables: Iterable[TableHealth]) -> dict[str, dict[str, object]]:
    return {
        found.table: {
            "live_rows": found.live,
            "dead_rows": found.dead,
            "bytes": found.bytes,
            "autovacuum_begins_at": found.threshold,
            "vacuumed_at": found.vacuumed_at,
        }
        for found in tables
    }


def shown(done: PassResult) -> Group:
    """The run for people: how it ended, why, what is left, and how the tables are."""
    result = done.result
    report = result.report
    counts = table_of(
        ("table", "due", "ended", "kept", "looks wrong", "due within a day", "set aside"),
        [
            (
                found.name,
                _many(found.due),
                result.tables[found.name].done,
                _listed(found.kept),
                _listed(found.findings),
                "?" if found.inflow is None else _many(found.inflow),
                _listed(result.tables[found.name].aside),
            )
            for found in result.found.tables
        ],
    )
    notes = [Text(f"{name}: not read: {code}") for name, code in result.found.unread.items()]
    notes += [Text(f"{name}: given up: {table.failed}") for name, table in result.tables.items() if table.failed]
    notes += [Text(f"{name}: {note}.") for name, note in done.notes]
    left = f"{_many(report.backlog)} due and left; at most {result.ceiling:,} end in one pass"
    if report.forecast_runs:
        left += f", so that {report.forecast_runs:,} more passes like this one would do"
    why = WORDS.get(report.reason, report.reason)
    health = table_of(
        ("table", "rows, about", "dead before", "dead after", "size before", "size after"),
        [
            (after.table, f"{after.live:,}", f"{before.dead:,}", f"{after.dead:,}", _size(before), _size(after))
            for before, after in zip(done.before, done.after, strict=True)
        ],
    )
    return Group(
        Text(f"{report.outcome.replace('_', ' ')}: {why}", style="bold"), counts, Text(f"{left}."), health, *notes
    )


def _size(found: TableHealth) -> str:
    return f"{found.bytes / 1e6:,.1f} MB"


def _many(number: int) -> str:
    return f"{number:,} or more" if number >= COUNTED else f"{number:,}"


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {number:,}" for name, number in counts.items()) or "0"
