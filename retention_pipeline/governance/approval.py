"""How far an approval may reach: bounded in count and time, whoever gives it (SPEC G4)."""

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Final

from retention_pipeline.errors import Code, UsageFault
from retention_pipeline.model.people import AnyJob, Job, SweepJob

MAX_ITEMS: Final = 10_000
"""What one run handles at most (W7)."""

MAX_SWEPT: Final = 50_000
"""What one pass of a sweep handles at most for one tenant (L2)."""

ONE_SUBJECT: Final = frozenset({Job.ARCHIVE, Job.RESTORE, Job.RECOVERY_CANCEL, Job.STORE_DETACH, Job.JOIN_REQUEST})
"""Jobs about one instance, archive, dead letter, store or join request."""


def most(job: AnyJob) -> int:
    """How many items an approval of a job covers at most."""
    return MAX_SWEPT if isinstance(job, SweepJob) else MAX_ITEMS


BEFOREHAND: Final = (Job.RECONCILE, Job.ARCHIVE, Job.RESTORE, Job.EXPIRE)
"""Jobs that something else than the approver's own call may run; the others are approved and done in one call."""


class Kind(StrEnum):
    """How often an approval may be used."""

    SINGLE_USE = "single_use"
    STANDING = "standing"

    @property
    def longest(self) -> timedelta:
        """How far ahead a person may say yes."""
        return timedelta(days=7) if self is Kind.SINGLE_USE else timedelta(days=366)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRequest:
    """A yes that a person is about to give.

    Args:
        subject: the one instance or archive, for the jobs that have one.
        max_items: how many one run may change.
        lasts: from now on.
        reason: for the record.
    """

    job: AnyJob
    kind: Kind
    subject: str | None
    max_items: int
    lasts: timedelta
    reason: str

    def __post_init__(self) -> None:
        if not 1 <= self.max_items <= most(self.job):
            raise _out_of_bounds(f"An approval of {self.job} covers 1 to {most(self.job)} items a run.")
        if not timedelta(0) < self.lasts <= self.kind.longest:
            raise _out_of_bounds(f"A {self.kind} approval lasts up to {self.kind.longest.days} days.")
        if self.job in ONE_SUBJECT and (self.subject is None or self.kind is Kind.STANDING):
            raise _out_of_bounds(f"An approval of {self.job} is for one subject and one use.")
        if self.job not in ONE_SUBJECT and self.subject is not None:
            raise _out_of_bounds(f"An approval of {self.job} has no single subject.")
        if not self.reason.strip():
            raise _out_of_bounds("An approval needs a reason.")


def _out_of_bounds(message: str) -> UsageFault:
    return UsageFault(Code.USAGE, message, remedy="See `retention approve --help`.")
