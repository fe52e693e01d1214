"""`retention inspect`: a tenant's archives, or what is in one of them, without its data (SPEC A17)."""

import click

from retention_pipeline.cli.common import Call, pass_call, table
from retention_pipeline.model.ids import AttemptId
from retention_pipeline.model.people import Permission


@click.command()
@click.argument("archive", metavar="[ARCHIVE]", required=False)
@pass_call
def inspect(call: Call, archive: str | None) -> None:
    """List a tenant's newest archives; or open one, prove it, and count its rows by table.

    \b
    Examples:
      retention --tenant acme inspect
      retention --tenant acme inspect 5a1e…
    """
    call.require(Permission.READ)
    tenant = call.tenant.id
    if archive is None:
        found = [
            {"archive": a.id, "instance": a.instance, "epoch": a.epoch, "state": a.state, "bytes": a.size}
            for a in call.app.archives(tenant)
        ]
        names = ("archive", "instance", "epoch", "state", "bytes")
        call.emit({"archives": found}, table(names, [[row[name] for name in names] for row in found]))
        return
    attempt, manifest = call.app.open_archive(tenant, AttemptId(archive))
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
