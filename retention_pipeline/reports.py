"""Tables and plots for people. pandas lives here alone, and nothing from here ever goes into an archive."""

import base64
import io
from typing import Final

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure

from retention_pipeline.model.inventory import Inventory

mpl.use("Agg")

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


def disposition_chart(inventory: Inventory) -> str:
    """A small bar chart of the dispositions, as an image in Markdown."""
    rows = sorted(inventory.dispositions.items(), key=lambda item: item[1])
    figure = Figure(figsize=(6, 0.3 * len(rows) + 0.6), layout="constrained")
    axes = figure.subplots()
    colours = ["#2b7a4b" if name == "eligible" else "#8a94a6" for name, _ in rows]
    bars = axes.barh([str(name).replace("_", " ") for name, _ in rows], [count for _, count in rows], color=colours)
    axes.bar_label(bars, padding=3, fontsize=8)
    axes.tick_params(labelsize=8)
    axes.set_xlabel("instances", fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=80)
    return f"![dispositions](data:image/png;base64,{base64.b64encode(image.getvalue()).decode()})"
