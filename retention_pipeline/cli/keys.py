"""`retention keys`: rotate, copy and destroy what archives are encrypted with (SPEC A17, A18)."""

from collections.abc import Iterable, Mapping
from functools import partial

import click
from rich.text import Text

from retention_pipeline.app import App
from retention_pipeline.cli.common import Call, lines, pass_call, table
from retention_pipeline.errors import Code, RetentionError, UsageFault
from retention_pipeline.governance.key_destruction import obstacles
from retention_pipeline.model.ids import TenantId
from retention_pipeline.model.outcome import Outcome
from retention_pipeline.model.people import Permission
from retention_pipeline.model.tenant_keys import KeyUse
from retention_pipeline.stages.key_copies import CopyReport
from retention_pipeline.stages.key_destruction import destroy as destroy_keys
from retention_pipeline.stages.key_rotation import rewrap_all, rotate_tenant


@click.group()
def keys() -> None:
    """Rotate, copy and destroy what archives are encrypted with."""


@keys.command("list")
@pass_call
def show(call: Call) -> None:
    """List the generations of the tenant's key: their age, and how many archives and secrets need each.

    \b
    Example:
      retention --tenant acme keys list
    """
    call.require(Permission.KEY_MANAGE)
    found = call.app.key_desk().usage(call.tenant.id)
    root = _current_root(call.app)
    newest = max((use.generation for use in found), default=0)
    told = [
        {
            "generation": use.generation,
            "state": _state(use, newest),
            "made_at": use.made_at,
            "days": use.days,
            "root": None if use.destroyed_at or root is None else ("current" if use.root == root else "older"),
            "archives": use.archives,
            "in_flight": use.in_flight,
            "secrets": use.secrets,
            "copies_beside_archives": use.copies,
        }
        for use in found
    ]
    columns = ("generation", "state", "made at", "days", "root", "archives", "in flight", "secrets", "copies")
    call.emit({"tenant": call.tenant.alias, "keys": told}, table(columns, [list(entry.values()) for entry in told]))


@keys.command()
@pass_call
def export(call: Call) -> None:
    """Copy the tenant's wrapped keys beside its archives, where a copy is missing or old.

    Runs and the sealing of the audit record do this too. With a copy, an archive and the root key, an archive opens without
    the database.

    \b
    Example:
      retention --tenant acme keys export
    """
    call.require(Permission.KEY_MANAGE)
    report = call.app.copy_keys(call.tenant.id)
    _emit(call, {"tenant": call.tenant.alias, **_told(report)})
    call.finish(Outcome.PARTIAL if report.failures else Outcome.COMPLETED)


@keys.group()
def rotate() -> None:
    """Take a new key: for what is sealed from now on, or to wrap what others are wrapped under."""


@rotate.command()
@click.option("--reason", required=True, help="For the record.")
@pass_call
def tenant(call: Call, reason: str) -> None:
    """Make a new generation of the tenant's key, for new archives and secrets. The older ones stay readable.

    \b
    Example:
      retention --tenant acme keys rotate tenant --reason "yearly"
    """
    call.require(Permission.KEY_MANAGE)
    generation = rotate_tenant(
        call.app.key_desk(), call.app.key_provider(), call.tenant.id, reason=reason, correlation=call.correlation
    )
    copies = _copy(call.app, [call.tenant.id])
    _emit(
        call,
        {
            "tenant": call.tenant.alias,
            "generation": generation,
            "correlation": call.correlation,
            "copies_beside_archives": _told(copies),
        },
    )
    call.finish(Outcome.PARTIAL if copies.failures else Outcome.COMPLETED)


@rotate.command()
@click.option("--reason", required=True, help="For the record.")
@click.option(
    "--add-only", is_flag=True, help="Add the root key and stop: to back up and to hand out the keyring first."
)
@pass_call
def root(call: Call, reason: str, add_only: bool) -> None:
    """Take a new root key, and wrap every tenant's keys under it; no object is rewritten, and all stay readable.

    The keyring gets a root key; where AWS KMS wraps, it is the key that is configured now. Interrupted, run it again: it goes
    on. On several machines, or before the keyring is backed up, take two steps: --add-only, hand the file out, then this again.

    \b
    Examples:
      retention keys rotate root --add-only --reason "yearly"
      retention keys rotate root --reason "yearly"
    """
    call.require_everywhere(Permission.KEY_MANAGE)
    desk, provider = call.app.key_desk(), call.app.key_provider()
    by_kms = call.app.settings.wrap_by_kms
    if by_kms and add_only:
        raise UsageFault(
            Code.USAGE,
            "A key of the key service is not added from here.",
            remedy="Make it there, set RETENTION_KMS_KEY_ID, and run this without --add-only.",
        )
    rewrapping = call.app.rewrapping()
    waiting = rewrapping.under_other_roots(provider.current())
    added = not waiting and not by_kms  # else an earlier rotation is not finished, and is gone on with
    if added:
        desk.note_roots("root.added", 1, reason=reason, correlation=call.correlation)
        call.app.keyring().add_root()
    if add_only:
        call.emit(
            {"root_added": added, "correlation": call.correlation},
            "A root key was added. Back the keyring up and hand it out, then run this without --add-only."
            if added
            else "A rotation is not finished: run this without --add-only.",
        )
        return
    allow = partial(desk.allow_rotation, reason=reason, correlation=call.correlation)
    done = rewrap_all(rewrapping, provider, allow)
    desk.note_roots("root.rotated", done.keys, reason=reason, correlation=call.correlation)
    copies = _copy(call.app)
    failures = {**done.failures, **copies.failures}
    _emit(
        call,
        {
            "root_added": added,
            "tenants": done.tenants,
            "keys_wrapped_anew": done.keys,
            "failures": done.failures,
            "copies_beside_archives": _told(copies),
            "correlation": call.correlation,
        },
        "The keyring changed: back it up now, and hand it out." if added else "",
    )
    call.finish(Outcome.PARTIAL if failures else Outcome.COMPLETED)


@keys.command("prune-roots")
@click.option("--reason", required=True, help="For the record.")
@click.option("--apply", is_flag=True, help="Really forget them.")
@pass_call
def prune_roots(call: Call, reason: str, apply: bool) -> None:
    """Forget root keys of the keyring that no key, and no copy of one beside the archives, needs; a preflight without --apply.

    A backup of the database that is older than the last rotation can't be read without them: keep a backup of the keyring
    for as long as those.

    \b
    Example:
      retention keys prune-roots --reason "the backups from before June are gone" --apply
    """
    call.require_everywhere(Permission.KEY_MANAGE)
    desk, keyring = call.app.key_desk(), call.app.keyring()
    _, others = keyring.roots()  # before the question who needs them: one that comes later is not touched
    unneeded = others - desk.roots_in_use()
    pruned = 0
    if apply and unneeded:
        desk.note_roots("root.pruned", len(unneeded), reason=reason, correlation=call.correlation)
        pruned = keyring.drop_roots(unneeded)
    call.emit(
        {"older_roots": len(others), "unneeded": len(unneeded), "pruned": pruned, "correlation": call.correlation}
    )


@keys.command()
@click.option("--reason", required=True, help="For the record.")
@click.option("--confirm", metavar="ALIAS", help="The tenant's alias once more; needed with --apply.")
@click.option("--archives-too", is_flag=True, help="Also where archives are within their own period.")
@click.option("--without-store", is_flag=True, help="Go on where a store with copies of the keys does not answer.")
@click.option("--apply", is_flag=True, help="Really destroy them. There is no way back.")
@pass_call
def destroy(call: Call, reason: str, confirm: str | None, archives_too: bool, without_store: bool, apply: bool) -> None:
    """Destroy all keys of a tenant: its archives and secrets can never be read again. A preflight without --apply.

    Tombstones, receipts and the audit record stay. Refused while a legal hold of the tenant stands, or archives are in
    flight. Interrupted, run it again: it finishes.

    \b
    Examples:
      retention --tenant acme keys destroy --reason "contract ended, INC-4711"
      retention --tenant acme keys destroy --reason "contract ended, INC-4711" --confirm acme --archives-too --apply
    """
    call.require(Permission.KEY_MANAGE)
    if (apply or confirm is not None) and confirm != call.tenant.alias:
        raise UsageFault(
            Code.USAGE, "--confirm is not this tenant's alias.", remedy="Type the alias of --tenant once more."
        )
    desk, whose = call.app.key_desk(), call.tenant.id
    stakes = desk.stakes(whose)
    told = {
        "tenant": call.tenant.alias,
        "generations": stakes.generations,
        "archives_that_become_unreadable": dict(stakes.archives),
        "within_their_period": stakes.kept,
        "secrets_that_become_unreadable": stakes.secrets,
        "copies_beside_archives": stakes.copies,
        "legal_holds": stakes.holds,
        "in_flight": stakes.in_flight,
        "begun_at": stakes.begun_at,
        "destroyed_before": stakes.destroyed,
    }
    if not apply:
        found = obstacles(stakes, archives_too=archives_too)
        _emit(call, {**told, "outcome": Outcome.PREFLIGHT, "codes": list(found), "would_destroy": not found})
        return
    done = destroy_keys(
        desk,
        call.app.key_copies(),
        call.app.store,
        whose,
        archives_too=archives_too,
        without_store=without_store,
        reason=reason,
        correlation=call.correlation,
    )
    _emit(
        call,
        {
            **told,
            "outcome": Outcome.COMPLETED,
            "generations_destroyed": done.generations,
            "copies_removed": _told(done.copies),
            "correlation": call.correlation,
        },
    )


def _copy(app: App, tenants: Iterable[TenantId] | None = None) -> CopyReport:
    """Renew the copies where this machine has the worker's login; elsewhere the next run does it."""
    report = CopyReport()
    if app.settings.worker_url is None:
        return report
    for name in app.key_copies().tenants() if tenants is None else tenants:
        one = app.copy_keys(name)
        report.written += one.written
        report.removed += one.removed
        for code, number in one.failures.items():
            report.failures[code] = report.failures.get(code, 0) + number
    return report


def _current_root(app: App) -> str | None:
    try:
        return app.key_provider().current()
    except RetentionError:
        return None  # this machine has no keyring; what the database says is shown all the same


def _state(use: KeyUse, newest: int) -> str:
    if use.destroyed_at:
        return "destroyed"
    if use.doomed:
        return "being destroyed"
    return "current" if use.generation == newest else "older"


def _emit(call: Call, told: Mapping[str, object], note: str = "") -> None:
    """Show an answer; for people, counts within it as words."""
    flat = {
        name: ", ".join(f"{inner} {number}" for inner, number in value.items() if number) or None
        if isinstance(value, dict)
        else value
        for name, value in told.items()
    }
    call.emit(told, Text(f"{lines(flat).plain}\n{note}".rstrip()))


def _told(report: CopyReport) -> dict[str, object]:
    return {"written": report.written, "removed": report.removed, "failures": report.failures}
