"""`retention inspect`: a tenant's archives, or what is in one of them, without its data (SPEC A17)."""

import uuid
from collections.abc import Mapping, Sequence

import click
from rich.text import Text

from retention_pipeline.cli.common import Call, pass_call, table
from retention_pipeline.errors import Code, Refused
from retention_pipeline.model.expiry import ArchiveLife
from retention_pipeline.model.ids import AttemptId
from retention_pipeline.model.people import Permission


@click.command()
@click.argument("archive", metavar="[ARCHIVE]", required=False)
@pass_call
def inspect(call: Call, archive: str | None) -> None:
    """List a tenant's archives, or look into one.

    The list has the newest thousand, with the instant at which each one's own period is over, and what keeps it. One that is
    named is opened and proven, and its rows are counted by table.

    \b
    Examples:
      retention --tenant acme inspect
      retention --tenant acme inspect 5a1e…
    """
    call.require(Permission.READ)
    tenant = call.tenant.id
    if archive is None:
        lives = call.app.archive_lives(tenant)
        found = [_life(life) for life in lives]
        listed = [
            {
                **_life(life),
                "expires_at": f"{life.expires_at:%Y-%m-%d}" if life.expires_at else "-",
                "kept_by": ",".join(life.kept_by) or "-",
            }
            for life in lives
        ]
        call.emit(
            {"archives": found},
            _listed(("archive", "instance", "epoch", "state", "bytes", "expires_at", "kept_by"), listed),
        )
        return
    attempt, manifest = call.app.open_archive(tenant, archive_id(archive))
    counts = {part.name: len(part.rows) for part in manifest.tables}
    call.emit(
        {
            "archive": attempt.id,
            "instance": attempt.instance,
            "epoch": attempt.epoch,
            "state": attempt.state,
            "captured_at": manifest.captured_at,
            "bytes": attempt.size,
            "proven": True,
            "rows": counts,
        },
        table(
            ("table", "rows"),
            [("(opened and proven just now)", ""), *counts.items(), ("all", sum(counts.values()))],
        ),
    )


def archive_id(text: str) -> AttemptId:
    """An archive's id, or `Refused(ARCHIVE_UNKNOWN)`."""
    try:
        return AttemptId(str(uuid.UUID(text)))
    except ValueError:
        raise Refused(
            Code.ARCHIVE_UNKNOWN, "This is no archive's id.", remedy="`retention inspect` lists the tenant's archives."
        ) from None


def _life(life: ArchiveLife) -> dict[str, object]:
    return {
        "archive": life.archive,
        "instance": life.instance,
        "epoch": life.epoch,
        "state": life.state,
        "bytes": life.bytes,
        "expires_at": life.expires_at,
        "kept_by": list(life.kept_by),
        "lock_pending": life.lock_pending,
    }


def _listed(names: Sequence[str], found: Sequence[Mapping[str, object]]) -> Text:
    """Lines that a narrow terminal wraps rather than cuts: an id that lost its end is of no use."""
    if not found:
        return Text("No archives.")
    cells = [names, *([str(row[name]) for name in names] for row in found)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(names))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]
    return Text("\n".join(lines))
