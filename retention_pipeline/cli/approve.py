"""`retention approve`: a person's yes to a change that the worker makes later (SPEC G4)."""

import re
import uuid
from datetime import timedelta

import click

from retention_pipeline.cli.common import Call, pass_call
from retention_pipeline.errors import Code, Refused
from retention_pipeline.governance.approval import BEFOREHAND, MAX_ITEMS, MAX_SWEPT, ApprovalRequest, Kind, most
from retention_pipeline.model.people import AnyJob, Job, SweepJob
from retention_pipeline.postgres import approvals, holds

_UNITS = {"m": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1)}


class _Duration(click.ParamType[timedelta]):
    """A time such as 30m, 12h or 90d."""

    name = "duration such as 30m, 12h or 90d"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        if isinstance(value, timedelta):
            return value
        match = re.fullmatch(r"([0-9]{1,5})([mhd])", str(value))
        if match is None:
            self.fail("not a duration", param, ctx)
        return int(match[1]) * _UNITS[match[2]]


class _JobName(click.ParamType[AnyJob]):
    """One of the jobs, or a sweep of the catalog."""

    name = "job"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:  # noqa: ARG002  click's own signature
        return f"[{'|'.join([*BEFOREHAND, 'sweep:NAME'])}]"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> AnyJob:
        text = str(value)
        if text in {*BEFOREHAND}:
            return Job(text)
        if not text.startswith("sweep:"):
            self.fail(f"one of {', '.join([*BEFOREHAND, 'sweep:NAME'])}", param, ctx)
        return SweepJob(text)


@click.command()
@click.argument("job", type=_JobName())
@click.argument("subject", required=False, metavar="[ID]")
@click.option("--reason", required=True, help="For the record.")
@click.option("--standing", is_flag=True, help="For every run of a schedule, until it expires.")
@click.option(
    "--max-items",
    type=int,
    help=f"How many one run may change; at most, and by default, {MAX_ITEMS}, for a sweep {MAX_SWEPT}.",
)
@click.option("--expires-in", type=_Duration(), help="30m, 12h or 90d; by default 24h, standing 90d.")
@pass_call
def approve(
    call: Call,
    job: AnyJob,
    subject: str | None,
    reason: str,
    standing: bool,
    max_items: int | None,
    expires_in: timedelta | None,
) -> None:
    """Approve a job beforehand.

    For one run, or standing for a schedule; `--apply` at the command line makes its own.
    The approval's id goes into the run's configuration. `archive` is for one instance, `restore` for one archive.

    \b
    Examples:
      retention --tenant acme approve reconcile --reason "Weekly run" --max-items 500
      retention --tenant acme approve reconcile --standing --expires-in 90d --reason "Nightly schedule, CHG-12"
      retention --tenant acme approve sweep:submission_ledgers --standing --reason "Daily schedule, CHG-13"
      retention --tenant acme approve archive 0b7c… --reason "Asked for by the customer"
    """
    call.require(job.permission)
    if isinstance(job, SweepJob):
        call.app.catalog.sweep(job.dataset)
    kind = Kind.STANDING if standing else Kind.SINGLE_USE
    tenant = call.tenant.id
    with call.app.operator().transaction(tenant) as cursor:
        if subject is not None and job is Job.ARCHIVE:
            subject = holds.resolve(cursor, subject)
        elif subject is not None and job is Job.RESTORE:
            subject = _archive(subject)
        request = ApprovalRequest(
            job=job,
            kind=kind,
            subject=subject,
            max_items=(1 if subject else most(job)) if max_items is None else max_items,
            lasts=(timedelta(days=90) if standing else timedelta(hours=24)) if expires_in is None else expires_in,
            reason=reason,
        )
        made = approvals.approve(cursor, tenant, request)
    call.emit(
        {
            "approval": made.id,
            "tenant": call.tenant.alias,
            "job": made.job,
            "kind": kind,
            "subject": subject,
            "actor": made.actor,
            "max_items": made.max_items,
            "expires_at": made.expires_at,
        }
    )


def _archive(text: str) -> str:
    try:
        return str(uuid.UUID(text))
    except ValueError:
        raise Refused(
            Code.ARCHIVE_UNKNOWN, "This is no archive's id.", remedy="Take it from the run's answer or the receipt."
        ) from None
