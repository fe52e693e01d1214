"""Tables and plots for people. pandas lives here alone, and nothing from here ever goes into an archive."""

import base64
from collections.abc import Sequence
from html import escape
from typing import Final

import pandas as pd

from retention_pipeline.model.inventory import Inventory
from retention_pipeline.model.table_health import TableHealth
from retention_pipeline.sweeps.loop import SweepResult

WORDS: Final = {
    "eligible": "may go now",
    "foreign_rows": "a row of another tenant hangs on it: repair the row",
    "missing_epoch": "nobody recorded when it ended: stays for good",
    "bad_period": "its retention period is no whole number of days: correct the workflow",
    "unlimited_retention": "kept without limit",
    "not_terminal": "still at work, or reopened",
    "not_yet_due": "its period is not over",
    "legal_hold": "an active legal hold",
}
"""One plain sentence for each disposition; a blocker of the catalog says itself what it is."""


def dispositions(inventory: Inventory) -> str:
    """Every instance's one disposition, with what it means, as a Markdown table."""
    rows = sorted(inventory.dispositions.items(), key=lambda item: (item[0] != "eligible", -item[1], item[0]))
    frame = pd.DataFrame(
        {
            "disposition": [str(name) for name, _ in rows] + ["total"],
            "instances": [count for _, count in rows] + [inventory.total],
            "what it means": [WORDS.get(name, f"protected by: {name.replace('_', ' ')}") for name, _ in rows] + [""],
        }
    )
    return str(frame.to_markdown(index=False))


def blockers(inventory: Inventory) -> str:
    """How many instances each blocker applies to, as a Markdown table; these overlap."""
    if not inventory.blockers:
        return "none"
    frame = pd.DataFrame(
        {"blocker": [str(n) for n in inventory.blockers], "instances": list(inventory.blockers.values())}
    )
    return str(frame.sort_values("instances", ascending=False).to_markdown(index=False))


def counted(what: str, numbers: dict[str, int]) -> str:
    """How many there are of each, as a Markdown table."""
    if not numbers:
        return "none"
    frame = pd.DataFrame({what: [name.replace("_", " ") for name in numbers], "number": list(numbers.values())})
    return str(frame.to_markdown(index=False))


def swept(result: SweepResult) -> str:
    """What a pass found and did in each table, as a Markdown table."""
    listed = [
        {
            "table": found.name.replace("_", " "),
            "were due": found.due,
            "ended": result.tables[found.name].done,
            "kept": _listed(found.kept),
            "looks wrong": _listed(found.findings),
            "fall due within a day": "?" if found.inflow is None else found.inflow,
            "set aside": _listed(result.tables[found.name].aside),
        }
        for found in result.found.tables
    ]
    unread = [f"\n{name.replace('_', ' ')} was not read: `{code}`" for name, code in result.found.unread.items()]
    return str(pd.DataFrame(listed).to_markdown(index=False)) + "".join(unread)


def health(before: Sequence[TableHealth], after: Sequence[TableHealth]) -> str:
    """Dead rows and size of each table before and after, as a Markdown table."""
    listed = [
        {
            "table": now.table,
            "rows, about": now.live,
            "dead rows before": was.dead,
            "dead rows after": now.dead,
            "MB before": f"{was.bytes / 1e6:.1f}",
            "MB after": f"{now.bytes / 1e6:.1f}",
            "autovacuum begins at": "never" if now.threshold is None else now.threshold,
        }
        for was, now in zip(before, after, strict=True)
    ]
    return str(pd.DataFrame(listed).to_markdown(index=False))


def _listed(numbers: dict[str, int]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {number}" for name, number in numbers.items()) or "none"


def durations(seconds: dict[str, float]) -> str:
    """Where the time went, as a Markdown table."""
    frame = pd.DataFrame({"part": list(seconds), "seconds": [f"{spent:.1f}" for spent in seconds.values()]})
    return str(frame.to_markdown(index=False))


def age(seconds: float | None) -> str:
    """An age that a person reads at a glance."""
    if seconds is None:
        return "nothing is overdue"
    if seconds < 2 * 3600:
        return f"{seconds / 60:.0f} minutes"
    if seconds < 2 * 86_400:
        return f"{seconds / 3600:.0f} hours"
    return f"{seconds / 86_400:.0f} days"


def forecast(runs: int | None) -> str:
    """How many runs like this one the rest still needs."""
    return "no forecast: this run deleted nothing" if runs is None else str(runs)


def disposition_chart(inventory: Inventory) -> str:
    """A small bar chart of the dispositions, as an image in Markdown.

    It is drawn by hand: one is kept for each tenant and run. A plotting library took 130 ms and 12 KB for it, and Dagster
    shows what is longer than a kilobyte or two only after a click.
    """
    rows = sorted(inventory.dispositions.items(), key=lambda item: -item[1])
    most = max((count for _, count in rows), default=0) or 1
    bars = [_bar(18 * line, name, count, 240 * count / most) for line, (name, count) in enumerate(rows)]
    picture = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="500" height="{18 * len(rows) + 4}" font-family="sans-serif" '
        f'font-size="11"><rect width="100%" height="100%" fill="#fff"/>{"".join(bars)}</svg>'
    )
    return f"![dispositions](data:image/svg+xml;base64,{base64.b64encode(picture.encode()).decode()})"


def _bar(top: int, name: str, count: int, width: float) -> str:
    colour = "#2b7a4b" if name == "eligible" else "#8a94a6"
    return (
        f'<text x="184" y="{top + 14}" text-anchor="end">{escape(name.replace("_", " "))}</text>'
        f'<rect x="190" y="{top + 4}" width="{width:.1f}" height="13" fill="{colour}"/>'
        f'<text x="{196 + width:.1f}" y="{top + 14}">{count}</text>'
    )
