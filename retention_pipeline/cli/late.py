"""`retention late`: runs that somebody promised, and that did not do their work in time (SPEC O2)."""

from datetime import datetime
from typing import Any

import click

from retention_pipeline.cli.common import Call, instant, pass_call, table
from retention_pipeline.model.outcome import Outcome
from retention_pipeline.model.people import Permission
from retention_pipeline.model.promises import BrokenPromise, Trouble
from retention_pipeline.punctuality import Punctuality

WORDS = {
    Trouble.NOT_RUN: "no run since then",
    Trouble.NOT_DONE: "runs since then did not do the work",
    Trouble.LAPSED: "its standing approval ended",
    Trouble.ENDING: "its standing approval ends",
}


@click.command()
@click.option("--as-of", type=instant, help="Look as of this instant.")
@pass_call
def late(call: Call, as_of: datetime | None) -> None:
    """Show promised runs that did not come in time.

    A standing approval promises that a job runs on schedule. This asks what is due and what was done, and not the
    scheduler: one that is dead or was never switched on shows here. Approvals that end within a week, or that ended
    within the last 30 days, are told as well. Call it from outside, by cron or a monitor. Ends with 6 where work that
    should be done is not.

    \b
    Examples:
      retention late
      retention late --json
    """
    call.require_everywhere(Permission.READ)
    found = Punctuality(app=call.app, as_of=as_of).broken()
    names = {tenant.id: tenant.alias for tenant in call.app.tenants()} if found else {}
    rows = [_told(broken, names) for broken in found]
    number = sum(broken.trouble.late for broken in found)
    shown = table(
        ("tenant", "job", "since", "what", "last outcome"),
        [
            (
                row["alias"] or row["tenant"],
                row["job"],
                f"{row['at']:%Y-%m-%d %H:%M}",
                WORDS[row["trouble"]],
                row["outcome"] or "-",
            )
            for row in rows
        ],
    )
    call.emit({"late": number, "promises": rows}, shown if rows else "Every promised run did its work in time.")
    if number:
        raise click.exceptions.Exit(Outcome.BEHIND.exit_code)


def _told(broken: BrokenPromise, names: dict[Any, str]) -> dict[str, Any]:
    promise = broken.promise
    return {
        "tenant": promise.tenant,
        "alias": names.get(promise.tenant),
        "job": promise.job,
        "trouble": broken.trouble,
        "at": broken.at,
        "approved_until": promise.until,
        "did_at": promise.did_at,
        "tried_at": promise.tried_at,
        "outcome": promise.outcome,
        "reason": promise.reason,
    }
