"""`retention scrub`: reads stored archives again, and removes on request what no record names (SPEC A19)."""

import math
import re
from typing import Any

import click
from rich.console import Group
from rich.text import Text

from retention_pipeline.cli.approving import approve_now
from retention_pipeline.cli.common import Call, pass_call, table
from retention_pipeline.cli.integrity import as_json as integrity_of
from retention_pipeline.errors import Code, Integrity, UsageFault
from retention_pipeline.model.people import Job, Permission
from retention_pipeline.model.scrub import SLICES, ScrubResult, Verdict
from retention_pipeline.stages.scrub import ScrubBounds
from retention_pipeline.stages.unknown_objects import RemovalResult

_WORDS = {
    "exhausted": "read to the end of the slice",
    "time_bound": "the time was over; the next run goes on",
    "byte_bound": "the bytes were used up; the next run goes on",
    "finding_bound": "enough was found",
    "approval_bound": "the bound of one call was reached",
    "preflight": "nothing was changed",
}


class _Slices(click.ParamType[tuple[int, int]]):
    """One part of several, such as 3/30."""

    name = "part of several, such as 3/30"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        match = re.fullmatch(r"([0-9]{1,4})/([0-9]{1,4})", str(value))
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            self.fail("not a part of several", param, ctx)
        return int(match[1]), int(match[2])


@click.command()
@click.option("--all", "everything", is_flag=True, help="Read every archive.")
@click.option(
    "--slices", type=_Slices(), metavar="N/T", help="Read the N-th of T parts, and leave the position as it is."
)
@click.option("--percent", type=click.FloatRange(0.1, 100), help="Read so much, from where the last run stopped.")
@click.option(
    "--seconds", type=click.FloatRange(1, 86_400), default=3600, show_default=True, help="Begin no archive after this."
)
@click.option(
    "--gigabytes", type=click.FloatRange(0.001), default=1000, show_default=True, help="Read no more than this."
)
@click.option("--remove-unknown", is_flag=True, help="Look at objects that no record names; with --apply, remove them.")
@click.option("--apply", is_flag=True, help="With --remove-unknown; makes a single-use approval.")
@click.option("--reason", help="Why, for the record; with --remove-unknown.")
@click.option(
    "--limit", type=click.IntRange(1, 10_000), default=10_000, show_default=True, help="Objects to remove at most."
)
@pass_call
def scrub(
    call: Call,
    everything: bool,
    slices: tuple[int, int] | None,
    percent: float | None,
    seconds: float,
    gigabytes: float,
    remove_unknown: bool,
    apply: bool,
    reason: str | None,
    limit: int,
) -> None:
    """Read archives again, and name what is wrong.

    It finds archives that are missing, changed, unreadable or unlocked, and objects that no record knows.

    Lists the tenant's stores, and reads a thirtieth of the archives, going on where the last run stopped. It changes nothing.
    Ends with 4 if anything was found, and with 7 if something could not be looked at.

    \b
    Examples:
      retention --tenant acme scrub
      retention --tenant acme scrub --all
      retention --tenant acme scrub --slices 3/30
      retention --tenant acme scrub --remove-unknown --reason "left by a copy, INC-4711" --apply
    """
    if sum((everything, slices is not None, percent is not None, remove_unknown)) > 1:
        raise UsageFault(
            Code.USAGE, "--all, --slices, --percent and --remove-unknown exclude each other.", remedy="Choose one."
        )
    if remove_unknown:
        _remove(call, apply=apply, reason=reason, limit=limit)
        return
    if apply or reason:
        raise UsageFault(
            Code.USAGE, "--apply and --reason belong to --remove-unknown.", remedy="A scrub changes nothing by itself."
        )
    call.require(Permission.READ)
    only, of = slices or (None, 1 if everything else math.ceil(100 / percent) if percent else SLICES)
    with call.progress("read archives") as progress:
        result = call.app.scrub(
            call.tenant.id,
            run=call.correlation,
            slices=of,
            only=only,
            bounds=ScrubBounds(seconds=seconds, bytes=int(gigabytes * 1e9)),
            progress=progress,
        )
    call.emit(as_json(result), shown(result))
    if result.tally.findings:
        raise click.exceptions.Exit(Integrity.exit_code)
    call.finish(result.report.outcome)


def as_json(result: ScrubResult) -> dict[str, Any]:
    """The run for programs."""
    report, tally = result.report, result.tally
    return {
        "tenant": report.tenant,
        "run": report.run,
        "outcome": report.outcome,
        "reason": report.reason,
        "slice": f"{result.part.number}/{result.part.of}",
        "read": tally.archives,
        "bytes": tally.bytes,
        **{str(verdict): tally.verdicts[verdict] for verdict in Verdict},
        "listed": tally.listed,
        "listed_whole": tally.listed_whole,
        "unknown": tally.unknown,
        "new_unknown": tally.new_unknown,
        "failures": report.counts.failures,
        "seconds": report.seconds,
        "integrity": integrity_of(result.integrity),
    }


def shown(result: ScrubResult) -> Group:
    """The run for people: how it ended, and what was found."""
    report, tally = result.report, result.tally
    numbers = [
        ("slice", f"{result.part.number} of {result.part.of}"),
        ("archives looked at", tally.archives),
        *((str(verdict).replace("_", " "), tally.verdicts[verdict]) for verdict in Verdict),
        ("objects listed", tally.listed if tally.listed_whole else f"{tally.listed}, not all"),
        ("unknown objects", tally.unknown),
        ("could not be looked at", ", ".join(f"{code} {n}" for code, n in report.counts.failures.items()) or 0),
        ("proven lately", f"{100 * result.integrity.coverage:.0f} % within {result.integrity.days} days"),
        ("oldest proof", result.integrity.oldest_proof),
    ]
    facts = table(("", ""), numbers)
    facts.show_header = False
    why = _WORDS.get(report.reason, report.reason)
    return Group(Text(f"{report.outcome.replace('_', ' ')}: {why}", style="bold"), facts)


def _remove(call: Call, *, apply: bool, reason: str | None, limit: int) -> None:
    if not (reason and reason.strip()):
        raise UsageFault(Code.USAGE, "A removal needs a reason.", remedy="Give one with --reason.")
    call.require(Permission.ARCHIVE)
    tenant = call.tenant.id
    approval = approve_now(call, Job.SCRUB_REMOVE, max_items=limit, reason=reason) if apply else None
    result = call.app.remove_unknown(tenant, run=call.correlation, apply=apply, approval=approval, limit=limit)
    call.emit(_removal(result))
    call.finish(result.report.outcome)


def _removal(result: RemovalResult) -> dict[str, Any]:
    report = result.report
    return {
        "tenant": report.tenant,
        "run": report.run,
        "outcome": report.outcome,
        "reason": report.reason,
        "removed": report.counts.removed,
        "failures": report.counts.failures,
        "unknown": result.found.all,
        "removable": result.found.removable,
    }
