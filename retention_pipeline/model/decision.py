"""What is known of an instance at one instant, and what follows from it."""

from dataclasses import dataclass
from enum import StrEnum

LEGAL_HOLD = "legal_hold"


class Period(StrEnum):
    """What the retention period says, before any instant is compared (W1)."""

    LIMITED = "limited"
    UNLIMITED = "unlimited"
    BAD = "bad"


class Disposition(StrEnum):
    """The one answer for an instance (W3); a blocker's disposition is the blocker's own name."""

    ELIGIBLE = "eligible"
    FOREIGN_ROWS = "foreign_rows"
    MISSING_EPOCH = "missing_epoch"
    BAD_PERIOD = "bad_period"
    UNLIMITED = "unlimited_retention"
    NOT_TERMINAL = "not_terminal"
    NOT_YET_DUE = "not_yet_due"
    LEGAL_HOLD = LEGAL_HOLD


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Facts as of one instant. The database compared the instants; nothing here has a clock.

    Args:
        foreign: whether a row of another tenant hangs on the instance, or its definition is another tenant's (A2).
        terminal: whether the current state is terminal.
        has_epoch: whether the latest epoch records this very state, at a finite instant (W2).
        period: what the retention period says.
        due: whether epoch + period has come.
        open_blockers: the catalog's blockers that apply, in the catalog's order.
        held: whether a legal hold is active.
        cooling_off: whether it would be due, but for a period that was shortened only lately (G8).
    """

    foreign: bool
    terminal: bool
    has_epoch: bool
    period: Period
    due: bool
    open_blockers: tuple[str, ...]
    held: bool
    cooling_off: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """May the instance go? One exclusive disposition, and every blocker that applies (these overlap)."""

    go: bool
    disposition: str
    blockers: tuple[str, ...]


def decide(facts: Facts) -> Decision:
    """Choose the first disposition of W3 that applies, and list every blocker."""
    blockers = (*facts.open_blockers, *((LEGAL_HOLD,) if facts.held else ()))
    keep = _keep(facts, blockers)
    return Decision(go=keep is None, disposition=keep or Disposition.ELIGIBLE, blockers=blockers)


def _keep(facts: Facts, blockers: tuple[str, ...]) -> str | None:
    if facts.foreign:
        return Disposition.FOREIGN_ROWS
    if facts.terminal and not facts.has_epoch:
        return Disposition.MISSING_EPOCH
    if facts.period is Period.BAD:
        return Disposition.BAD_PERIOD
    if facts.period is Period.UNLIMITED:
        return Disposition.UNLIMITED
    if not facts.terminal:
        return Disposition.NOT_TERMINAL
    if not facts.due:
        return Disposition.NOT_YET_DUE
    return blockers[0] if blockers else None
