"""What the demo shows of the sweeps: each of the systems swept through Dagster, and every row of it accounted for (SPEC E, L, J, W4)."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from rich.console import Console
from rich.table import Table

from retention_pipeline import clock
from retention_pipeline.app import App
from retention_pipeline.dev.stack import Stack
from retention_pipeline.errors import Code, Integrity
from retention_pipeline.governance.approval import MAX_SWEPT, ApprovalRequest, Kind
from retention_pipeline.model.people import SweepJob, Tenant
from retention_pipeline.postgres import accounting, accounting_sweeps, approvals
from retention_pipeline.postgres.accounting_sweeps import Account

HISTORY = "workflow_history"


def orders(app: App, tenants: Sequence[Tenant]) -> list[dict[str, Any]]:
    """For each sweep of the catalog one run over all tenants, under standing approvals that are given here."""
    made = []
    for rules in app.catalog.sweeps:
        name = rules.dataset.dataset
        for tenant in tenants:
            _approve(app, tenant, name)
        config = {"apply": True, "approval": "standing", "tenants": [tenant.id for tenant in tenants]}
        made.append({"job": f"sweep_{name}", "step": f"{name}_pass", "config": config})
    return made


def _approve(app: App, tenant: Tenant, name: str) -> None:
    request = ApprovalRequest(
        job=SweepJob.of(name),
        kind=Kind.STANDING,
        subject=None,
        max_items=MAX_SWEPT,
        lasts=timedelta(days=30),
        reason="the demo's schedule",
    )
    with app.operator().transaction(tenant.id) as cursor:
        approvals.approve(cursor, tenant.id, request)


def account(servers: Stack, console: Console) -> dict[str, dict[str, int]]:
    """Count from outside what became of every row, and show it.

    Raises:
        Integrity: when a row is lost, was left, or is in no place, or the receipts and the history tell another number.
    """
    url = servers.superuser_url()
    accounts = accounting_sweeps.account(url)
    accounts[HISTORY] = accounting_sweeps.account_history(url, clock.utc_now().isoformat())
    receipts = accounting_sweeps.swept(url)
    storage = servers.settings.need_dagster_storage_url()
    for name, found in accounts.items():
        told = accounting.told(storage, name, "ended")
        if found.lost or found.left or not found.adds_up() or not receipts.get(name) == told == found.ended:
            numbers = json.dumps({**asdict(found), "receipts": receipts.get(name), "told": told})
            raise Integrity(
                Code.DEMO_UNPROVEN, f"{name} does not add up: {numbers}.", remedy="See dagster/runs.log, and report it."
            )
    _show(accounts, console)
    return {name: asdict(found) for name, found in sorted(accounts.items())}


def _show(accounts: dict[str, Account], console: Console) -> None:
    table = Table(title="Every row of the sweeps, accounted for", title_justify="left")
    table.add_column("sweep")
    for column in ("rows", "ended", "stayed, unchanged", "due and left", "lost"):
        table.add_column(column, justify="right")
    for name, found in sorted(accounts.items()):
        table.add_row(
            name.replace("_", " "), *map(str, (found.rows, found.ended, found.stayed, found.left, found.lost))
        )
    console.print(table)
