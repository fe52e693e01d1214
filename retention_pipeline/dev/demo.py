"""The main job on a laptop, end to end, with its proof counted afterwards from the database, the bucket and the event log."""

import json
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from retention_pipeline import clock
from retention_pipeline.app import App
from retention_pipeline.dev import dagster_processes, demo_governance, demo_sweeps, stack, tenants
from retention_pipeline.dev.stack import Stack
from retention_pipeline.errors import Code, Integrity
from retention_pipeline.governance.approval import ApprovalRequest, Kind
from retention_pipeline.model.decision import Disposition
from retention_pipeline.model.ids import AttemptId, InstanceId
from retention_pipeline.model.people import Job, Tenant
from retention_pipeline.postgres import accounting, accounting_sweeps, approvals, holds, sample, sample_sweeps

JOB = "reconcile_tenants"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What the demo counted afterwards; every instance is in exactly one place."""

    instances: int
    eligible: int
    archived: int
    verified: int
    deleted: int
    protected: dict[str, int]
    foreign_rows_blocked: int
    remaining: int
    lost: int
    sweeps: dict[str, dict[str, int]] = field(default_factory=dict)
    restored_identical: bool = False
    refusals: tuple[str, ...] = ()
    audit_events_sealed: int = 0
    audit_chains_verified: int = 0
    tampering_found: bool = False
    seconds: float = 0.0

    def adds_up(self) -> bool:
        """Whether every instance is accounted for."""
        return self.instances == self.deleted + sum(self.protected.values()) + self.remaining + self.lost


def run(home: Path, console: Console) -> Proof:
    """Start afresh, do the whole job, print the proof, and write `demo.json`.

    Raises:
        Integrity: when anything is lost, or doesn't add up.
    """
    begun = clock.monotonic()
    stack.forget(home)
    _say(console, "Starting PostgreSQL and an S3 server of your own …")
    with stack.running(home) as servers, stack.open_app(servers) as app:
        prepare(servers, app, console)
        proof = _demo(servers, app, console, begun)
    (home / "demo.json").write_text(json.dumps(as_json(proof), indent=2) + "\n", encoding="utf-8")
    _show(proof, console)
    if proof.lost or not proof.adds_up() or not proof.restored_identical:
        raise Integrity(
            Code.DEMO_UNPROVEN,
            "The demo's figures don't prove what they should.",
            remedy="See demo.json, and report it.",
        )
    console.print(
        "\nNothing is lost. Open the UI on this very history with [bold]make dev[/bold], then Ctrl-C to stop it."
    )
    return proof


def _demo(servers: Stack, app: App, console: Console, begun: float) -> Proof:
    everybody = app.tenants()
    before = accounting.instances(servers.superuser_url())
    held = _hold(app, everybody[0], console)
    _say(console, "Rows that end by a rule of their own: payloads, ledgers, job evidence, history, join requests.")
    accounting_sweeps.remember_history(servers.superuser_url())
    _dagster(servers, console, demo_sweeps.orders(app, everybody))
    swept = demo_sweeps.account(servers, console)
    _show_inventory(app, everybody, console)
    _say(console, "A run that nobody approved is a preflight: it counts, and changes nothing.")
    _dagster(servers, console, [_order(tenant, None) for tenant in everybody])
    _say(console, "What must not work is tried, and refused.")
    refused = demo_governance.refusals(app, everybody[0], held, console)
    chosen = _choose(app, everybody[1])
    picture = accounting.picture(servers.superuser_url(), chosen)
    orders = [_order(tenant, _approve(app, tenant)) for tenant in everybody]
    _say(console, "A person acknowledged the numbers and approved; now the same job archives, verifies and deletes.")
    _dagster(servers, console, orders)
    identical = _restore(servers, app, everybody[1], chosen, picture, console)
    if held not in accounting.instances(servers.superuser_url()):
        raise Integrity(Code.DEMO_UNPROVEN, "A held instance is gone.", remedy="Report this.")
    _say(console, "The record of who did what is sealed, and read again from its first event to its last.")
    record = demo_governance.prove_record(app, servers.superuser_url(), everybody, console)
    counted = _count(servers, app, everybody, before)
    return replace(
        counted,
        sweeps=swept,
        restored_identical=identical,
        refusals=refused,
        audit_events_sealed=record.sealed,
        audit_chains_verified=record.chains,
        tampering_found=record.tampering_found,
        seconds=round(clock.monotonic() - begun, 1),
    )


def prepare(servers: Stack, app: App, console: Console) -> None:
    """Sample data, a bucket, and for each tenant an archive profile that was proven."""
    _seed(servers, console)
    tenants.approve_egress(app, servers.s3)
    tenants.bucket_api(app, servers.s3).create_bucket()
    for tenant in app.tenants():
        readiness = tenants.set_up(app, servers.s3, tenant, run="demo")
        proven = "ready: wrote once, read back, a second write was refused"
        words = proven if readiness.ready else ", ".join(readiness.codes)
        console.print(f"  archive profile of [bold]{tenant.alias}[/bold]: {words}")


def _seed(servers: Stack, console: Console) -> None:
    total = sum(tenant.instances for tenant in sample.SAMPLE)
    _say(console, f"Writing {total:,} workflow instances of three tenants, with everything that drifts in real life …")
    sample.seed(servers.superuser_url(), sample.SAMPLE, clock.utc_now())
    sample.add_drift(servers.superuser_url(), sample.SAMPLE)
    sample_sweeps.seed(servers.superuser_url(), sample.SAMPLE, clock.utc_now())


def _hold(app: App, tenant: Tenant, console: Console) -> InstanceId:
    instance = _choose(app, tenant)
    with app.operator().transaction(tenant.id) as cursor:
        holds.place(cursor, tenant.id, instance, matter="M-2026-17", reason="a dispute is pending", correlation="demo")
    console.print(f"  a legal hold on one due instance of [bold]{tenant.alias}[/bold]: it must stay")
    return instance


def _choose(app: App, tenant: Tenant) -> InstanceId:
    """An instance that may go: the first of the tenant's newest eligible set."""
    result = app.reconcile(tenant.id, run="demo-choice")
    return app.records().candidates(result.eligible, 0, 1)[0][1].instance


def _approve(app: App, tenant: Tenant) -> str:
    with app.operator().transaction(tenant.id) as cursor:
        approvals.acknowledge(cursor, tenant.id, "the demo's numbers were looked at")
        request = ApprovalRequest(
            job=Job.RECONCILE,
            kind=Kind.SINGLE_USE,
            subject=None,
            max_items=10_000,
            lasts=timedelta(hours=1),
            reason="the demo",
        )
        return approvals.approve(cursor, tenant.id, request).id


def _order(tenant: Tenant, approval: str | None) -> dict[str, Any]:
    config = {"apply": approval is not None, "approval": approval}
    return {"job": JOB, "step": "instance_archive", "config": config, "partition": tenant.id}


def _dagster(servers: Stack, console: Console, orders: list[dict[str, Any]]) -> None:
    answers = dagster_processes.run_jobs(servers, orders)
    for answer in answers:
        console.print(f"  Dagster run {answer['run'][:8]}: {'succeeded' if answer['success'] else 'FAILED'}")
    if not all(answer["success"] for answer in answers):
        raise Integrity(
            Code.DEMO_UNPROVEN, "A Dagster run failed.", remedy="See dagster/runs.log, and the run in the UI."
        )


def _restore(servers: Stack, app: App, tenant: Tenant, instance: InstanceId, picture: str, console: Console) -> bool:
    archive = next(a for a in app.archives(tenant.id) if a.instance == instance).id
    if instance in accounting.instances(servers.superuser_url()):
        raise Integrity(Code.DEMO_UNPROVEN, "The instance to restore is still there.", remedy="Report this.")
    (servers.home / "restored").mkdir(mode=0o700, exist_ok=True)
    app.restore_to_file(tenant.id, archive, servers.home / "restored" / f"{archive}.json")
    app.restore_into_database(tenant.id, archive, approval=_approve_restore(app, tenant, archive), run="demo-restore")
    identical = accounting.picture(servers.superuser_url(), instance) == picture
    console.print(
        f"  restored one archive of [bold]{tenant.alias}[/bold]: {'identical' if identical else 'DIFFERENT'} to the deleted rows"
    )
    return identical


def _approve_restore(app: App, tenant: Tenant, archive: AttemptId) -> str:
    with app.operator().transaction(tenant.id) as cursor:
        request = ApprovalRequest(
            job=Job.RESTORE,
            kind=Kind.SINGLE_USE,
            subject=archive,
            max_items=1,
            lasts=timedelta(hours=1),
            reason="the demo's proof",
        )
        return approvals.approve(cursor, tenant.id, request).id


def _count(servers: Stack, app: App, everybody: tuple[Tenant, ...], before: frozenset[InstanceId]) -> Proof:
    """Count from outside: rows and records by SQL of its own, objects by listing the bucket."""
    after = accounting.instances(servers.superuser_url())
    objects = {(stored.key, stored.version) for tenant in everybody for stored in _listed(app, tenant)}
    records = accounting.recorded(servers.superuser_url())
    safe = {r.instance for r in records if r.receipt and r.verified and (r.key, r.version) in objects}
    gone = before - after
    inventories = [app.inventory(tenant.id) for tenant in everybody]
    protected: dict[str, int] = {}
    for inventory in inventories:
        for reason, number in inventory.protected.items():
            protected[reason] = protected.get(reason, 0) + number
    told = accounting.told(servers.settings.need_dagster_storage_url(), "deletions", "deleted")
    if told != len(records):
        raise Integrity(
            Code.DEMO_UNPROVEN,
            f"The run history tells of {told} deletions, the database of {len(records)}.",
            remedy="See dagster/runs.log.",
        )
    return Proof(
        instances=len(before),
        eligible=accounting.eligible(servers.superuser_url()),
        archived=sum((r.key, r.version) in objects for r in records),
        verified=sum(r.verified for r in records),
        deleted=len(gone & safe),
        protected=dict(sorted(protected.items())),
        foreign_rows_blocked=protected.get(Disposition.FOREIGN_ROWS, 0),
        remaining=sum(inventory.eligible for inventory in inventories),
        lost=len(gone - safe),
    )


def _listed(app: App, tenant: Tenant) -> list[Any]:
    store = app.store(tenant.id, app.records().profile(tenant.id)[0].generation)
    try:
        return list(store.walk())
    finally:
        store.close()


def _show_inventory(app: App, everybody: tuple[Tenant, ...], console: Console) -> None:
    table = Table(title="Inventory: what may go, what must stay", title_justify="left")
    table.add_column("disposition")
    inventories = [app.inventory(tenant.id) for tenant in everybody]
    for tenant in everybody:
        table.add_column(tenant.alias, justify="right")
    for name in sorted({name for inventory in inventories for name in inventory.dispositions}):
        table.add_row(name, *(str(inventory.dispositions.get(name, 0)) for inventory in inventories))
    table.add_row("total", *(str(inventory.total) for inventory in inventories), style="bold")
    console.print(table)


def _show(proof: Proof, console: Console) -> None:
    table = Table(title="Every instance, accounted for", title_justify="left")
    table.add_column("where it is")
    table.add_column("instances", justify="right")
    table.add_row("deleted: archived, read back, proven, with a receipt", str(proof.deleted))
    for reason, number in proof.protected.items():
        table.add_row(f"protected: {reason}", str(number))
    table.add_row("due and not yet deleted", str(proof.remaining))
    table.add_row("lost", str(proof.lost), style="bold")
    table.add_row("all", str(proof.instances), style="bold")
    console.print(table)
    console.print(
        f"{proof.seconds:.0f} seconds. One archive was restored, and is identical: {proof.restored_identical}."
        f" {proof.audit_events_sealed:,} audit events are sealed and verified."
    )


def as_json(proof: Proof) -> dict[str, Any]:
    """The proof as `demo.json` holds it."""
    return {name: getattr(proof, name) for name in Proof.__slots__}


def _say(console: Console, sentence: str) -> None:
    console.print(f"\n[bold]{sentence}[/bold]")
