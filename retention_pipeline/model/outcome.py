"""How a run ended, why, and with which exit code (SPEC O1)."""

from dataclasses import dataclass, field
from enum import StrEnum


class Outcome(StrEnum):
    """The end of a run. Four are green; the others never look green, in Dagster or in a shell."""

    COMPLETED = "completed"
    WORK_REMAINS = "work_remains"
    BEHIND = "behind"
    BLOCKED = "blocked"
    PARTIAL = "partial"
    FAILED = "failed"
    SKIPPED = "skipped"
    PREFLIGHT = "preflight"

    @property
    def green(self) -> bool:
        """Whether the run did what it was asked to do, or truly had nothing to do."""
        return self in {Outcome.COMPLETED, Outcome.WORK_REMAINS, Outcome.SKIPPED, Outcome.PREFLIGHT}

    @property
    def exit_code(self) -> int:
        """What the command line ends with."""
        if self.green:
            return 0
        return {Outcome.BLOCKED: 3, Outcome.BEHIND: 6, Outcome.PARTIAL: 7}.get(self, 1)


@dataclass(slots=True, kw_only=True)
class Counts:
    """What one run did for one tenant; filled step by step, shown at the end."""

    selected: int = 0
    archived: int = 0
    verified: int = 0
    deleted: int = 0
    rows_deleted: int = 0
    bytes_archived: int = 0
    superseded: int = 0
    adopted: int = 0
    expired: int = 0
    removed: int = 0
    cleared: int = 0
    purged: int = 0
    shelved: int = 0
    kept: int = 0
    locks_pending: int = 0
    skipped: int = 0
    failures: dict[str, int] = field(default_factory=dict)

    def fail(self, code: str) -> None:
        """Count one instance that was set aside, by its code."""
        self.failures[code] = self.failures.get(code, 0) + 1

    @property
    def failed(self) -> int:
        """How many instances were set aside."""
        return sum(self.failures.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """The answer of one run for one tenant.

    Args:
        reason: why the run ended, as a code that stays stable (`exhausted`, `batch_bound`, `time_bound`, …).
        seconds: where the time went, by step.
        backlog: due instances that are left and nothing protects.
        oldest_overdue_seconds: how long the oldest of them has been due; None where none is left.
        forecast_runs: how many runs of this size the backlog still needs; None where this run made no progress.
    """

    tenant: str
    job: str
    run: str
    outcome: Outcome
    reason: str
    counts: Counts
    seconds: dict[str, float]
    backlog: int
    oldest_overdue_seconds: float | None
    forecast_runs: int | None
