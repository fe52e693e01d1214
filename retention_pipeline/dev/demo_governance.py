"""What the demo shows beside the main job: that it can be refused, and that nobody bends its record (SPEC G4, G5, W10)."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console

from retention_pipeline import audit
from retention_pipeline.app import App
from retention_pipeline.errors import Code, Integrity
from retention_pipeline.model.audit import INSTALLATION
from retention_pipeline.model.ids import InstanceId, TenantId
from retention_pipeline.model.outcome import Outcome
from retention_pipeline.model.people import Tenant
from retention_pipeline.postgres import trespass


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What was seen of the audit record.

    Args:
        sealed: events in blocks, over all chains.
        chains: chains that were followed from their first block to their last.
        tampering_found: whether one event that was changed with every right was named.
    """

    sealed: int
    chains: int
    tampering_found: bool


def refusals(app: App, tenant: Tenant, held: InstanceId, console: Console) -> tuple[str, ...]:
    """Try what must not work, and give the codes of the refusals.

    Raises:
        Integrity: when anything of it worked.
    """
    blocked = app.reconcile(tenant.id, run="demo-refused", apply=True).report
    state = trespass.delete_without_archive(app.settings.need_owner_url(), tenant.id, held)
    if blocked.outcome is not Outcome.BLOCKED or state is None:
        raise Integrity(Code.DEMO_UNPROVEN, "What must be refused was done.", remedy="Report this.")
    console.print(f"  an apply whose numbers nobody acknowledged: blocked, {blocked.reason}")
    console.print(f"  a plain DELETE by the tables' own owner: refused by the database, SQLSTATE {state}")
    return (blocked.reason, state)


def prove_record(app: App, superuser_url: str, tenants: Sequence[Tenant], console: Console) -> Record:
    """Seal the record, follow every chain, bend one event, and see it named.

    Raises:
        Integrity: when a chain does not hold, or the bent event is not named.
    """
    sealed = audit.seal(app, anchor_now=True)
    chains = [INSTALLATION, *(tenant.id for tenant in tenants)]
    events = sum(_followed(app, chain) for chain in chains)
    console.print(
        f"  {events:,} audit events in {len(chains)} chains, {sealed.anchors} of them anchored beside the archives:"
        " every block verified"
    )
    with trespass.bent_record(superuser_url, tenants[1].id) as event:
        named = {finding.event for finding in audit.verify_chain(app, tenants[1].id).result.findings}
    if event not in named:
        raise Integrity(Code.DEMO_UNPROVEN, "An event was changed, and nobody noticed.", remedy="Report this.")
    console.print(f"  a superuser changed one event's actor, with every trigger off: verify names event {event}")
    _followed(app, tenants[1].id)
    return Record(sealed=events, chains=len(chains), tampering_found=event in named)


def _followed(app: App, chain: TenantId) -> int:
    result = audit.verify_chain(app, chain).result
    if not result.sound or result.waiting.events:
        raise Integrity(Code.DEMO_UNPROVEN, "The audit record does not hold.", remedy="Report this.")
    return result.sealed
