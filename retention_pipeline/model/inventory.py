"""What a tenant has, what may go and what must stay, at one instant (W5)."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from retention_pipeline.model.decision import Disposition, Facts, decide
from retention_pipeline.model.ids import TenantId


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """How many instances share exactly these facts."""

    facts: Facts
    instances: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """Exclusive dispositions add up to the total; blockers overlap and don't.

    Args:
        due: instances whose period is over, blocked or not.
        blocked_due: those of them that a blocker other than a hold protects (W10).
        cooling_off: instances that would be due, but for a period that was shortened only lately (G8).
    """

    tenant: TenantId
    as_of: datetime
    total: int
    states: dict[str, int]
    dispositions: dict[str, int]
    blockers: dict[str, int]
    due: int
    blocked_due: int
    cooling_off: int = 0

    @property
    def eligible(self) -> int:
        """How many may go now."""
        return self.dispositions.get(Disposition.ELIGIBLE, 0)

    @property
    def missing_epochs(self) -> int:
        """How many are protected for good, because no authoritative epoch stands."""
        return self.dispositions.get(Disposition.MISSING_EPOCH, 0)

    @property
    def protected(self) -> dict[str, int]:
        """Why the others stay."""
        return {name: n for name, n in self.dispositions.items() if name != Disposition.ELIGIBLE}


def summarize(tenant: TenantId, as_of: datetime, tallies: Iterable[Tally], states: dict[str, int]) -> Inventory:
    """Add tallies up: the database counted, the rule of W3 decides."""
    dispositions: dict[str, int] = {}
    blockers: dict[str, int] = {}
    total = due = blocked_due = cooling_off = 0
    for tally in tallies:
        decision = decide(tally.facts)
        total += tally.instances
        dispositions[decision.disposition] = dispositions.get(decision.disposition, 0) + tally.instances
        for blocker in decision.blockers:
            blockers[blocker] = blockers.get(blocker, 0) + tally.instances
        cooling_off += tally.instances if tally.facts.cooling_off else 0
        if tally.facts.due:
            due += tally.instances
            blocked_due += tally.instances if tally.facts.open_blockers else 0
    return Inventory(
        tenant=tenant,
        as_of=as_of,
        total=total,
        states=states,
        dispositions=dispositions,
        blockers=blockers,
        due=due,
        blocked_due=blocked_due,
        cooling_off=cooling_off,
    )
