"""`retention restore`: archives into files, or back into the database exactly as they were (SPEC A17)."""

from datetime import datetime
from pathlib import Path

import click
from rich.console import Group
from rich.text import Text

from retention_pipeline.cli.approving import approve_now
from retention_pipeline.cli.common import Call, instant, lines, pass_call
from retention_pipeline.cli.inspect import archive_id
from retention_pipeline.errors import Code, UsageFault
from retention_pipeline.model.ids import AttemptId
from retention_pipeline.model.outcome import Outcome
from retention_pipeline.model.people import Job, Permission
from retention_pipeline.postgres import archive_choice
from retention_pipeline.postgres.archive_choice import Choice
from retention_pipeline.restores import Restores, Restoring

_SHOWN = 20
"""Refusals that a person is shown; a program gets them all."""


@click.command()
@click.argument("archive", metavar="[ARCHIVE]", required=False)
@click.option("--instance", metavar="ID", help="The newest archive of this instance.")
@click.option(
    "--deleted-since", "since", type=instant, help="Every instance that was deleted at this instant or later."
)
@click.option("--deleted-until", "until", type=instant, help="Every instance that was deleted before this instant.")
@click.option("--all", "everything", is_flag=True, help="Every instance of the tenant.")
@click.option(
    "--limit", type=click.IntRange(1, 10_000), default=500, show_default=True, help="Of several, so many at most."
)
@click.option(
    "--to",
    "path",
    type=click.Path(path_type=Path),
    help="Write the manifest to this new file; of several, to files in this folder.",
)
@click.option("--into-database", is_flag=True, help="Put the instance back; a preflight without --apply.")
@click.option("--apply", is_flag=True, help="Really put it back; makes a single-use approval for each archive.")
@click.option("--reason", help="Why, for the record.")
@pass_call
def restore(
    call: Call,
    archive: str | None,
    instance: str | None,
    since: datetime | None,
    until: datetime | None,
    everything: bool,
    limit: int,
    path: Path | None,
    into_database: bool,
    apply: bool,
    reason: str | None,
) -> None:
    """Open archives again, into files or the database.

    Each is verified first. A file is new, and only you may read it. An instance that was put back is not due again for 30 days.
    Of several, each comes back whole or not at all; what stands in the way of one is named, and the others go on. Those that were
    restored already are left out, so that the same call goes on where it stopped.

    \b
    Examples:
      retention --tenant acme restore 5a1e… --to case.json
      retention --tenant acme restore 5a1e… --into-database
      retention --tenant acme restore --instance 0b7c… --into-database --apply --reason "the customer asks"
      retention --tenant acme restore --deleted-since 2027-01-01T00:00:00Z --into-database
    """
    call.require(Permission.RESTORE)
    several = since is not None or until is not None or everything
    if (archive is not None) + (instance is not None) + several != 1:
        raise UsageFault(
            Code.USAGE,
            "Which archives is not said, or said twice.",
            remedy="Give one ARCHIVE, --instance ID, a time by --deleted-since and --deleted-until, or --all.",
        )
    if (path is None) == (not into_database):
        raise UsageFault(
            Code.USAGE, "Where to is not said, or said twice.", remedy="Give --to FILE or --into-database."
        )
    if path is not None and apply:
        raise UsageFault(Code.USAGE, "--apply belongs to --into-database.", remedy="Leave it out with --to.")
    if several:
        _several(call, Choice(since=since, until=until), limit, path, reason if apply else None, apply=apply)
        return
    wanted = archive_id(archive) if archive is not None else _of(call, str(instance))
    if path is not None:
        _to_file(call, wanted, path)
    elif apply:
        _put_back(call, wanted, reason)
    else:
        _look(call, wanted)


def _of(call: Call, instance: str) -> AttemptId:
    with call.app.worker().transaction(call.tenant.id, read_only=True) as cursor:
        chosen, _ = archive_choice.choose(cursor, call.tenant.id, Choice(instance=instance), limit=1)
    return chosen[0].archive


def _to_file(call: Call, wanted: AttemptId, path: Path) -> None:
    if not path.absolute().parent.is_dir():
        raise UsageFault(Code.USAGE, "There is no such folder to write to.", remedy="Make it first.")
    call.app.restore_to_file(call.tenant.id, wanted, path)
    call.emit({"archive": wanted, "outcome": Outcome.COMPLETED, "written": True})


def _look(call: Call, wanted: AttemptId) -> None:
    attempt, manifest = call.app.open_archive(call.tenant.id, wanted)
    back = call.app.restorer().is_back(call.tenant.id, attempt.id, manifest)
    obstacles = () if back else call.app.restorer().obstacles(call.tenant.id, manifest)
    call.emit(
        {
            "archive": attempt.id,
            "instance": attempt.instance,
            "outcome": Outcome.PREFLIGHT,
            "already_there": back,
            "rows": sum(call.app.own_rows(manifest).values()),
            "obstacles": [f"{o.table}: {o.sentence}" for o in obstacles],
        }
    )


def _put_back(call: Call, wanted: AttemptId, reason: str | None) -> None:
    # Opened before anything is approved: an archive that can't be read needs no approval.
    attempt, _ = call.app.open_archive(call.tenant.id, wanted)
    done = call.app.restore_into_database(
        call.tenant.id,
        attempt.id,
        approval=approve_now(call, Job.RESTORE, subject=attempt.id, reason=reason),
        run=call.correlation,
    )
    told = {
        "archive": done.archive,
        "instance": done.instance,
        "outcome": Outcome.COMPLETED,
        "identical": done.identical,
        "already_there": done.already,
    }
    call.emit({**told, "rows": done.rows_by_table}, lines({**told, "rows": sum(done.rows_by_table.values())}))


def _several(call: Call, choice: Choice, limit: int, folder: Path | None, reason: str | None, *, apply: bool) -> None:
    if folder is not None and not folder.is_dir():
        raise UsageFault(Code.USAGE, "Several archives need a folder that is there.", remedy="Make it first.")
    with call.steps("restore" if apply else "look") as progress:
        restoring = Restoring(app=call.app, tenant=call.tenant.id, choice=choice, limit=limit, progress=progress)
        if folder is not None:
            found = restoring.into_folder(folder)
        elif apply:
            found = restoring.into_database(
                lambda archive: approve_now(call, Job.RESTORE, subject=archive, reason=reason), run=call.correlation
            )
        else:
            found = restoring.look()
    changed = apply or folder is not None
    outcome = found.outcome if changed else Outcome.PREFLIGHT
    call.emit(_as_json(found, outcome), _shown(found, outcome))
    call.finish(outcome)


def _as_json(found: Restores, outcome: Outcome) -> dict[str, object]:
    return {
        "outcome": outcome,
        "archives": found.chosen,
        "may_come_back": found.ready,
        "restored": found.done,
        "rows": found.rows,
        "left": found.left,
        "refused": [
            {"archive": r.archive, "instance": r.instance, "code": r.code, "obstacles": list(r.sentences)}
            for r in found.refused
        ],
    }


def _shown(found: Restores, outcome: Outcome) -> Group:
    told = {name: value for name, value in _as_json(found, outcome).items() if name != "refused"}
    refused = [
        Text(f"{r.archive}  {r.code}{': ' if r.sentences else ''}{' '.join(r.sentences)}")
        for r in found.refused[:_SHOWN]
    ]
    more = [Text(f"and {len(found.refused) - _SHOWN} more; see --json")] if len(found.refused) > _SHOWN else []
    return Group(lines({**told, "refused": len(found.refused)}), *refused, *more)
