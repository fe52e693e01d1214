"""`retention restore ARCHIVE`: to a file, or back into the database exactly as it was (SPEC A17)."""

from pathlib import Path

import click

from retention_pipeline.cli.common import Call, lines, pass_call
from retention_pipeline.cli.inspect import archive_id
from retention_pipeline.cli.reconcile import APPROVAL_LASTS
from retention_pipeline.errors import Code, UsageFault
from retention_pipeline.governance.approval import ApprovalRequest, Kind
from retention_pipeline.model.outcome import Outcome
from retention_pipeline.model.people import Job, Permission
from retention_pipeline.postgres import approvals


@click.command()
@click.argument("archive", metavar="ARCHIVE")
@click.option(
    "--to", "path", type=click.Path(path_type=Path, dir_okay=False), help="Write the manifest to this new file."
)
@click.option("--into-database", is_flag=True, help="Put the instance back; a preflight without --apply.")
@click.option("--apply", is_flag=True, help="Really put it back; makes a single-use approval.")
@click.option("--reason", help="Why, for the record.")
@pass_call
def restore(call: Call, archive: str, path: Path | None, into_database: bool, apply: bool, reason: str | None) -> None:
    """Open an archive again, into a file or the database.

    It is verified first. The file is new, and only you may read it. An instance that was put back is not due again for 30 days.

    \b
    Examples:
      retention --tenant acme restore 5a1e… --to case.json
      retention --tenant acme restore 5a1e… --into-database
      retention --tenant acme restore 5a1e… --into-database --apply --reason "the customer asks"
    """
    call.require(Permission.RESTORE)
    if (path is None) == (not into_database):
        raise UsageFault(
            Code.USAGE, "Where to is not said, or said twice.", remedy="Give --to FILE or --into-database."
        )
    tenant, wanted = call.tenant.id, archive_id(archive)
    if path is not None:
        if apply:
            raise UsageFault(Code.USAGE, "--apply belongs to --into-database.", remedy="Leave it out with --to.")
        if not path.absolute().parent.is_dir():
            raise UsageFault(Code.USAGE, "There is no such folder to write to.", remedy="Make it first.")
        call.app.restore_to_file(tenant, wanted, path)
        call.emit({"archive": wanted, "outcome": Outcome.COMPLETED, "written": True})
        return
    attempt, manifest = call.app.open_archive(tenant, wanted)
    if not apply:
        back = call.app.restorer().is_back(tenant, attempt.id, manifest)
        obstacles = () if back else call.app.restorer().obstacles(tenant, manifest)
        call.emit(
            {
                "archive": attempt.id,
                "instance": attempt.instance,
                "outcome": Outcome.PREFLIGHT,
                "already_there": back,
                "rows": sum(len(part.rows) for part in manifest.tables),
                "obstacles": [f"{o.table}: {o.sentence}" for o in obstacles],
            }
        )
        return
    request = ApprovalRequest(
        job=Job.RESTORE,
        kind=Kind.SINGLE_USE,
        subject=attempt.id,
        max_items=1,
        lasts=APPROVAL_LASTS,
        reason=reason or "restore --apply",
    )
    with call.app.operator().transaction(tenant) as cursor:
        approval = approvals.approve(cursor, tenant, request).id
    done = call.app.restore_into_database(tenant, attempt.id, approval=approval, run=call.correlation)
    told = {
        "archive": done.archive,
        "instance": done.instance,
        "outcome": Outcome.COMPLETED,
        "identical": done.identical,
        "already_there": done.already,
    }
    call.emit({**told, "rows": done.rows_by_table}, lines({**told, "rows": sum(done.rows_by_table.values())}))
