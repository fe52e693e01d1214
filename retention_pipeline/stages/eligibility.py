"""May the run begin, and with which instances? Pure stop signals over a preflight's numbers (SPEC W10, G8)."""

from dataclasses import dataclass

from retention_pipeline.errors import Code
from retention_pipeline.model.inventory import Inventory
from retention_pipeline.model.profile import Readiness
from retention_pipeline.model.work import Acknowledged

BLOCKED_SHARE = 0.05
BRAKE_SHARE = 0.10
BRAKE_INSTANCES = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class StopSignal:
    """A reason to stop before any mutation; a person decides."""

    code: Code
    sentence: str


def stop_signals(
    inventory: Inventory, readiness: Readiness, acknowledged: Acknowledged | None
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
    allowed = max(acknowledged.blocked_due, int(BLOCKED_SHARE * inventory.due))
    if inventory.blocked_due > allowed:
        signals.append(
            StopSignal(
                code=Code.BLOCKERS_UNACKNOWLEDGED,
                sentence=f"{inventory.blocked_due} of {inventory.due} due instances are blocked; {allowed} are allowed.",
            )
        )
    newly = inventory.eligible - acknowledged.eligible
    brake = max(BRAKE_INSTANCES, int(BRAKE_SHARE * inventory.total))
    if newly > brake:
        signals.append(
            StopSignal(
                code=Code.BRAKE,
                sentence=f"{newly} more instances are eligible than when a preflight was last acknowledged; "
                f"the brake allows {brake}.",
            )
        )
    return tuple(signals)
