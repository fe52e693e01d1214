"""What a pass of a sweep is told as: to programs, and to people."""

from collections.abc import Iterable

from rich.console import Group
from rich.text import Text

from retention_pipeline.cli.common import table as table_of
from retention_pipeline.model.sweep import COUNTED
from retention_pipeline.model.table_health import TableHealth
from retention_pipeline.passes import PassResult

WORDS = {
    "preflight": "nothing was changed",
    "exhausted": "nothing is left that may go",
    "batch_bound": "the bound of one pass was reached",
    "approval_bound": "the approval's bound was reached",
    "time_bound": "the time was over",
    "stopped": "somebody asked it to stop; the batch in hand was finished",
}


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
        "counted_in_part": result.left.more,
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
    at_least = "at least " if result.left.more else ""
    left = f"{at_least}{_many(report.backlog)} due and left; at most {result.ceiling:,} end in one pass"
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
