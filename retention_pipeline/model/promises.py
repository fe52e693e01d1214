"""Runs that somebody promised by a standing approval: which of them did not come, and which promise ends (SPEC O2)."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from retention_pipeline.model.ids import TenantId

TOLD_BEFORE: Final = timedelta(days=7)
"""So long before a promise ends, somebody is told."""


class Trouble(StrEnum):
    """What is wrong with a promised run."""

    NOT_RUN = "not_run"
    NOT_DONE = "not_done"
    LAPSED = "lapsed"
    ENDING = "ending"

    @property
    def late(self) -> bool:
        """Whether work that should be done is not; else there is still time."""
        return self is not Trouble.ENDING


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """One job of one tenant, with a standing approval, and what became of it.

    Args:
        since: when the oldest approval that is good still was given; None where none is.
        until: when the last one ends, or ended.
        did_at: the end of the last run that did its work, in whole or in part.
        tried_at: the end of the last run of whatever outcome.
        outcome: that run's.
        reason: why it ended so.
    """

    tenant: TenantId
    job: str
    since: datetime | None
    until: datetime
    did_at: datetime | None
    tried_at: datetime | None
    outcome: str | None
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenPromise:
    """A promise with its trouble.

    Args:
        at: since when the run is missing, or when the approval ends.
    """

    promise: Promise
    trouble: Trouble
    at: datetime


def broken(
    promises: Iterable[Promise],
    as_of: datetime,
    *,
    within: Callable[[str], timedelta],
    has_work: Callable[[Promise], bool],
) -> tuple[BrokenPromise, ...]:
    """Promises that were not kept, or are about to end, in their order.

    Args:
        promises: all of them.
        as_of: the database's now.
        within: how long after the last run, or after the promise, the next one has to have done its work; by the job's name.
        has_work: whether there is anything that such a run would have done; asked only where it is missing.
    """
    found = []
    for promise in promises:
        if promise.since is None:
            found.append(BrokenPromise(promise=promise, trouble=Trouble.LAPSED, at=promise.until))
            continue
        last = max(promise.since, promise.did_at) if promise.did_at else promise.since
        due = last + within(promise.job)
        if due < as_of and has_work(promise):
            tried = promise.tried_at is not None and promise.tried_at > last
            trouble = Trouble.NOT_DONE if tried else Trouble.NOT_RUN
            found.append(BrokenPromise(promise=promise, trouble=trouble, at=due))
        elif promise.until <= as_of + TOLD_BEFORE:
            found.append(BrokenPromise(promise=promise, trouble=Trouble.ENDING, at=promise.until))
    return tuple(found)
