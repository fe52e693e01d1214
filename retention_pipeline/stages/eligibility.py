"""May the run begin, and with which instances? Pure stop signals over a preflight's numbers (SPEC W10, G8)."""

from dataclasses import dataclass

from retention_pipeline.errors import Code
from retention_pipeline.model.inventory import Inventory
from retention_pipeline.model.profile import Readiness
from retention_pipeline.model.work import Acknowledged


@dataclass(frozen=True, slots=True, kw_only=True)
class Brake:
    """How much more than was acknowledged may go without a person's yes (G8, W10); configurable in the catalog.

    Args:
        instances: so many more eligible instances are always allowed.
        share: of all instances of the tenant, the same.
        blocked_share: of the due instances, how many may be blocked.
    """

    instances: int
    share: float
    blocked_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StopSignal:
    """A reason to stop before any mutation; a person decides."""

    code: Code
    sentence: str


def stop_signals(
    inventory: Inventory, readiness: Readiness, acknowledged: Acknowledged | None, brake: Brake
) -> tuple[StopSignal, ...]:
    """Every signal that applies, with its numbers; none means go."""
    signals = []
    if not readiness.ready:
        codes = ", ".join(readiness.codes) or "never probed"
        signals.append(StopSignal(code=Code.PROFILE_NOT_READY, sentence=f"The archive profile is not ready: {codes}."))
    if acknowledged is None:
        signals.append(
            StopSignal(
                code=Code.PREFLIGHT_UNACKNOWLEDGED,
                sentence=f"No preflight of this tenant was ever acknowledged; this one finds {inventory.eligible} "
                f"of {inventory.total} instances eligible.",
            )
        )
        return tuple(signals)
    if inventory.missing_epochs > acknowledged.missing_epochs:
        signals.append(
            StopSignal(
                code=Code.MISSING_EPOCHS_UNACKNOWLEDGED,
                sentence=f"{inventory.missing_epochs} terminal instances lack an epoch; "
                f"{acknowledged.missing_epochs} were acknowledged.",
            )
        )
    allowed = max(acknowledged.blocked_due, int(brake.blocked_share * inventory.due))
    if inventory.blocked_due > allowed:
        signals.append(
            StopSignal(
                code=Code.BLOCKERS_UNACKNOWLEDGED,
                sentence=f"{inventory.blocked_due} of {inventory.due} due instances are blocked; {allowed} are allowed.",
            )
        )
    newly = inventory.eligible - acknowledged.expected
    allowed = max(brake.instances, int(brake.share * inventory.total))
    if newly > allowed:
        signals.append(
            StopSignal(
                code=Code.BRAKE,
                sentence=f"{newly} more instances are eligible than when a preflight was last acknowledged; "
                f"the brake allows {allowed}.",
            )
        )
    return tuple(signals)
