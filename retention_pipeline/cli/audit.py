"""`retention audit`: the sealed record of who did what, and whether it is still what it was (SPEC G5)."""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import click
from rich.console import Group
from rich.text import Text

from retention_pipeline import audit as record
from retention_pipeline.cli.common import Call, instant, lines, pass_call, table
from retention_pipeline.errors import Code, Integrity, Unavailable, UsageFault
from retention_pipeline.model.audit import COLUMNS, INSTALLATION, AuditFinding
from retention_pipeline.model.ids import TenantId
from retention_pipeline.model.outcome import Outcome
from retention_pipeline.model.people import Permission

_SHOWN = ("id", "at", "actor", "kind", "subject", "outcome", "code", "reason", "run")


@click.group()
def audit() -> None:
    """Seal, read and verify the record of who did what.

    With --tenant it is that tenant's record; without, the installation's own: grants for all, egress, the first administrator.
    """


@audit.command()
@click.option("--anchor", is_flag=True, help="Anchor the heads in the archive stores now; else once a day.")
@click.option("--after-restore", is_flag=True, help="Vouch for chains that lost blocks: the database was restored.")
@click.option("--reason", help="Why, for the record; with --after-restore.")
@pass_call
def seal(call: Call, anchor: bool, after_restore: bool, reason: str | None) -> None:
    """Seal what waits, and anchor the heads that moved since yesterday.

    Runs as the worker. Without --tenant: every tenant's record and the installation's own.

    \b
    Examples:
      retention audit seal
      retention --tenant acme audit seal --anchor
      retention audit seal --after-restore --reason "Backup of Sunday, INC-4711"
    """
    if after_restore != (reason is not None and bool(reason.strip())):
        raise UsageFault(
            Code.USAGE,
            "--after-restore and --reason belong together.",
            remedy="Say why the database was restored, or leave both out.",
        )
    tenant = call.tenant.id if call.alias else None
    report = record.seal(call.app, tenant, anchor_now=anchor, restored=reason)
    call.emit(
        {
            "tenants": report.tenants,
            "blocks": report.blocks,
            "events": report.events,
            "anchors": report.anchors,
            "backdated": report.late,
            "left": report.left,
            "oldest_unsealed_seconds": report.oldest_seconds,
            "failures": dict(report.failures),
        }
    )
    if report.broken:
        raise click.exceptions.Exit(Integrity.exit_code)
    if report.failures:
        raise click.exceptions.Exit(Outcome.PARTIAL.exit_code)


@audit.command()
@click.option("--since", type=instant, help="Not before this instant.")
@click.option("--kind", help="Such as instance.deleted, hold.hold, approval.used, denied.")
@click.option("--subject", help="What it was about: an instance, an archive, a login.")
@click.option("--run", help="Of one run.")
@click.option("--correlation", help="Of one call.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="The newest, at most.")
@pass_call
def show(
    call: Call,
    since: datetime | None,
    kind: str | None,
    subject: str | None,
    run: str | None,
    correlation: str | None,
    limit: int,
) -> None:
    """List events, the newest last.

    \b
    Examples:
      retention --tenant acme audit show --kind instance.deleted --since 2027-01-01T00:00:00Z
      retention audit show
    """
    chain = _chain(call)
    with record.reader(call.app) as records:
        found = records.show(
            chain, since=since, kind=kind, subject=subject, run=run, correlation=correlation, limit=limit
        )
    events = [dict(zip(COLUMNS, event, strict=True)) for event in found]
    call.emit({"events": events}, table(_SHOWN, [[event[name] for name in _SHOWN] for event in events]))


@audit.command()
@click.option(
    "--file", "path", type=click.Path(path_type=Path, dir_okay=False), help="Of `audit export`; needs no database."
)
@click.option("--without-anchors", is_flag=True, help="Look at no archive store, such as on an auditor's machine.")
@pass_call
def verify(call: Call, path: Path | None, without_anchors: bool) -> None:
    """Prove that the record is what was sealed, or name what is not.

    Needs the keyring. Ends with 4 if anything was found. What is not sealed yet is counted: a tamperer's window.

    \b
    Examples:
      retention --tenant acme audit verify
      retention audit verify --without-anchors
      retention audit verify --file acme.jsonl
    """
    if path is not None:
        if call.alias:
            raise UsageFault(Code.USAGE, "A file says whose it is.", remedy="Leave --tenant out with --file.")
        seen = record.verify_file(call.app, path)
    else:
        seen = record.verify_chain(call.app, _chain(call), anchors=not without_anchors)
    _emit(call, seen)
    if not seen.result.sound:
        raise click.exceptions.Exit(Integrity.exit_code)
    if seen.unread and not seen.read:
        raise click.exceptions.Exit(Unavailable.exit_code)


@audit.command()
@click.option("--to", "path", required=True, type=click.Path(path_type=Path, dir_okay=False), help="A new file.")
@pass_call
def export(call: Call, path: Path) -> None:
    """Write the record with its blocks to a new file, which only you may read.

    \b
    Example:
      retention --tenant acme audit export --to acme.jsonl
    """
    chain = _chain(call)
    if not path.absolute().parent.is_dir():
        raise UsageFault(Code.USAGE, "There is no such folder to write to.", remedy="Make it first.")
    done = record.export(call.app, chain, path)
    call.emit({"chain": chain, "blocks": done.blocks, "events": done.events, "unsealed": done.unsealed})


def _chain(call: Call) -> TenantId:
    """Whose record, for somebody who may read it."""
    if call.alias:
        call.require(Permission.READ)
        return call.tenant.id
    call.require_everywhere(Permission.READ)
    return INSTALLATION


def _emit(call: Call, seen: record.Verified) -> None:
    result = seen.result
    told: dict[str, Any] = {
        "chain": result.tenant,
        "sound": result.sound,
        "blocks": result.blocks,
        "sealed": result.sealed,
        "sealed_at": result.sealed_at,
        "unsealed": result.waiting.events,
        "oldest_unsealed_seconds": result.waiting.oldest_seconds,
        "kept_block": seen.kept,
        "anchored_at": seen.anchor.at if seen.anchor else None,
    }
    warnings = [*map(_told, result.warnings)]
    warnings += [{**_told(AuditFinding(code=Code.AUDIT_ANCHOR_UNREAD)), "why": code} for code in seen.unread]
    document = {
        **told,
        "counts": dict(result.counts),
        "findings": [*map(_told, result.findings)],
        "warnings": warnings,
    }
    parts = [lines({**told, "findings": result.counts.total(), "warnings": len(warnings)})]
    call.emit(document, Group(*parts, *_listed("finding", document["findings"]), *_listed("warning", warnings)))


def _told(finding: AuditFinding) -> dict[str, Any]:
    return {"code": str(finding.code), "block": finding.block, "through": finding.through, "event": finding.event}


def _listed(title: str, found: Sequence[dict[str, Any]]) -> list[Any]:
    if not found:
        return []
    columns = ("block", "through", "event", "why") if any("why" in f for f in found) else ("block", "through", "event")
    return [Text(), table((title, *columns), [[f["code"], *(f.get(name) for name in columns)] for f in found])]
