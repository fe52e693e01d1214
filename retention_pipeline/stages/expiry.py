"""Ends archives whose own retention is over: marked, deleted by the version that was verified, buried (SPEC A10, A11, F5, F8).

- Look first: a store that does not answer begins nothing, and what vanished before our mark is an alarm.
- `mark` commits: from here on a hold is told that it comes too late, and a crash leaves an archive that the next run goes on with.
- Delete exactly the recorded version, holding the locks that a hold and a reader take, and let a listing say that it is gone.
- What the provider holds was not deleted: it goes back to where it was, so that a hold may come again, and waits.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeVar

from retention_pipeline.errors import Code, Refused, RetentionError, Unavailable
from retention_pipeline.model.expiry import (
    DueArchive,
    DueInventory,
    Ending,
    Expiries,
    ExpiryAcknowledged,
    Tombstone,
)
from retention_pipeline.model.ids import TenantId
from retention_pipeline.model.outcome import Counts, Outcome, RunReport
from retention_pipeline.model.people import Approval, Job
from retention_pipeline.model.ports import Deletion, ObjectStore
from retention_pipeline.model.work import Backlog
from retention_pipeline.stages.eligibility import Brake, StopSignal
from retention_pipeline.stages.reconcile import Bounds, holder_name, judge
from retention_pipeline.stages.world import World

KEEP_LEASE_EVERY = 50
TOO_MANY = 3
"""After so many failures in a row of one generation's store, the rest of what lies there is not tried."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiryResult:
    """A run's report, and what its preflight found."""

    report: RunReport
    found: DueInventory
    signals: tuple[StopSignal, ...]


class StoreFailedError(Exception):
    """What a store answered, told apart from what the database answers.

    Args:
        error: the store's own.
        noted: whether the archive's record says so already.
    """

    def __init__(self, error: RetentionError, *, noted: bool = False) -> None:
        super().__init__(error.code)
        self.error = error
        self.noted = noted


def brake_signals(found: DueInventory, acknowledged: ExpiryAcknowledged, brake: Brake) -> tuple[StopSignal, ...]:
    """Whether far more is due than a person accepted last (G8)."""
    newly = found.free - acknowledged.due
    allowed = max(brake.instances, int(brake.share * found.archives))
    if newly <= allowed:
        return ()
    return (
        StopSignal(
            code=Code.BRAKE,
            sentence=f"{newly} more of {found.archives} archives are due than were acknowledged; the brake allows {allowed}.",
        ),
    )


@dataclass(slots=True, kw_only=True)
class Expiry:
    """One run for one tenant.

    Args:
        world: the ports of every run.
        archives: the records of archives' ends.
        apply: False is a preflight: nothing changes, neither in the records of archives nor in the store.
        approval: an approval's id; without one nothing is applied.
        as_of: the instant of the run; the database's clock where None.
    """

    world: World
    archives: Expiries
    tenant: TenantId
    run: str
    apply: bool = False
    approval: str | None = None
    bounds: Bounds = field(default_factory=Bounds)
    as_of: datetime | None = None
    _counts: Counts = field(default_factory=Counts)
    _seconds: dict[str, float] = field(default_factory=dict)
    _stores: dict[int, ObjectStore] = field(default_factory=dict)
    _failed: dict[int, int] = field(default_factory=dict)
    _broken: dict[int, RetentionError] = field(default_factory=dict)

    def __call__(self) -> ExpiryResult:
        """Look, and with `apply` act; how it ended is recorded either way."""
        now = self.world.source.now(self.tenant)
        as_of = self.as_of or now
        if self.apply and as_of > now:
            raise Refused(
                Code.AS_OF_IN_FUTURE, "An instant in the future can only be looked at.", remedy="Leave --as-of out."
            )
        with self._timed("preflight"):
            found = self.archives.inventory(self.tenant, as_of)
        signals = brake_signals(found, self.archives.acknowledged(self.tenant), self.world.brake)
        if not self.apply:
            return self._result(now, found, signals, Outcome.PREFLIGHT, "preflight")
        if signals:
            self.world.records.audit(
                self.tenant,
                actor="worker",
                kind="run.blocked",
                outcome="blocked",
                run=self.run,
                subject=Job.EXPIRE,
                code=signals[0].code,
            )
            return self._result(now, found, signals, Outcome.BLOCKED, signals[0].code)
        holder = holder_name()
        fence = self.world.records.take_lease(self.tenant, Job.EXPIRE, holder)
        if fence is None:
            return self._result(now, found, (), Outcome.SKIPPED, Code.RUN_OVERLAPS)
        try:
            if self.approval is None:
                raise Refused(
                    Code.APPROVAL_REQUIRED,
                    "Nothing is applied without an approval.",
                    remedy="Use `--apply` at the command line, or give the run the id that `retention approve` prints.",
                )
            approval = self.world.records.use_approval(self.tenant, self.approval, Job.EXPIRE, self.run, None)
            return self._work(
                now, as_of, approval, lambda: self.world.records.keep_lease(self.tenant, Job.EXPIRE, holder, fence)
            )
        finally:
            for store in self._stores.values():
                store.close()
            self.world.records.drop_lease(self.tenant, Job.EXPIRE, holder, fence)

    def _work(self, now: datetime, as_of: datetime, approval: Approval, keep: Callable[[], None]) -> ExpiryResult:
        stopped: RetentionError | None = None
        try:
            reason = self._each(as_of, approval, keep)
        except RetentionError as error:
            stopped, reason = error, error.code
        if stopped is None and self._broken and not (self._counts.expired or self._counts.removed):
            stopped = next(iter(self._broken.values()))
            reason = stopped.code
        found = self.archives.inventory(self.tenant, as_of)
        if stopped is None and not found.backlog:
            reason = "exhausted"
        backlog = Backlog(instances=found.backlog, oldest_overdue_seconds=found.overdue_seconds)
        previous = self.world.records.previous_backlog(self.tenant, Job.EXPIRE)
        return self._result(now, found, (), judge(self._counts, backlog, previous, stopped, self.bounds), reason)

    def _each(self, as_of: datetime, approval: Approval, keep: Callable[[], None]) -> str:
        """End one after the other, within every bound; gives why it stopped."""
        begun = self.world.stopwatch()
        with self._timed("object locks"):  # a hold that was lifted locks no more
            self._counts.locks_pending = self.world.settle(self.tenant).pending
        self.archives.note_held(self.tenant, as_of, approval=approval, run=self.run, limit=self.bounds.instances)
        limit = min(self.bounds.instances, approval.max_items)
        chosen = self.archives.due(self.tenant, as_of, limit)
        self._counts.selected = len(chosen)
        for position, archive in enumerate(chosen):
            if self.world.stopwatch() - begun > self.bounds.seconds:
                return "time_bound"
            if position % KEEP_LEASE_EVERY == 0:
                keep()
            if archive.profile_generation not in self._broken:
                with self._timed("end archives"):
                    self._try(archive, as_of, approval)
        if len(chosen) < limit:
            return "exhausted"
        return "approval_bound" if approval.max_items < self.bounds.instances else "batch_bound"

    def _try(self, archive: DueArchive, as_of: datetime, approval: Approval) -> None:
        """One archive; what its store refuses sets it aside alone (F7), unless the store refuses everything."""
        generation = archive.profile_generation
        try:
            buried = self._end(archive, as_of, approval)
        except StoreFailedError as failed:
            self._counts.fail(failed.error.code)
            if not failed.noted:
                self.archives.wait(archive, failed.error.code, run=self.run, actor=approval.actor)
            self._failed[generation] = self._failed.get(generation, 0) + 1
            if self._failed[generation] >= TOO_MANY:
                self._broken[generation] = failed.error
            return
        except Unavailable as error:
            if error.code is not Code.DATABASE_TIMEOUT:
                raise
            self._counts.skipped += 1  # somebody places a hold just now, and takes long
            return
        self._failed[generation] = 0
        if buried is None:
            self._counts.skipped += 1
        elif buried.leftover:
            self._counts.removed += 1
        else:
            self._counts.expired += 1
        self.world.progress(self._counts)

    def _end(self, archive: DueArchive, as_of: datetime, approval: Approval) -> Tombstone | None:
        """Mark, delete, bury; None where it stays."""
        vanished = not archive.begun and not self._is_there(archive)
        marked = self.archives.mark(archive, as_of=as_of, approval=approval, run=self.run)
        if isinstance(marked, Code):
            return None
        with self.archives.ending(marked, as_of=as_of, approval=approval, run=self.run) as ending:
            buried = self._delete(archive, ending, vanished=vanished) if ending is not None else None
        if isinstance(buried, Refused):
            raise StoreFailedError(buried, noted=True)
        if buried is not None and vanished:
            self._counts.fail(Code.OBJECT_MISSING)  # done, with an alarm (F8)
        return buried

    def _delete(self, archive: DueArchive, ending: Ending, *, vanished: bool) -> Tombstone | Refused | None:
        """The object goes while the archive is in our hands alone; a hold that stands by now still saves what is there.

        What the store refuses to delete, by a lock or for want of a right, was not deleted: the archive lives on.
        """
        if ending.kept_by is not None and self._is_there(archive):
            ending.keep(ending.kept_by)
            return None
        store = self._store(archive.profile_generation)
        try:
            answer = store.delete(archive.key, archive.version)
        except Refused as error:
            if not self._is_there(archive):
                raise StoreFailedError(error) from None
            ending.keep(error.code)
            return error
        except RetentionError as error:
            raise StoreFailedError(error) from None
        if answer is Deletion.LOCKED:
            lock = self._ask(lambda: store.lock_state(archive.key, archive.version))
            ending.keep(Code.OBJECT_LOCKED, until=None if lock.held else lock.until)
            return None
        if self._is_there(archive):
            raise StoreFailedError(
                Unavailable(
                    Code.STORE_PROTOCOL,
                    "The store said that it deleted a version, and lists it still.",
                    remedy="Look at the store, or at what stands in between; the next run tries again.",
                )
            )
        return ending.bury(vanished=vanished)

    def _is_there(self, archive: DueArchive) -> bool:
        found = self._ask(lambda: self._store(archive.profile_generation).versions(archive.key))
        return any(stored.version == archive.version for stored in found)

    def _store(self, generation: int) -> ObjectStore:
        if generation not in self._stores:
            self._stores[generation] = self._ask(lambda: self.world.stores(self.tenant, generation))
        return self._stores[generation]

    @contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        begun = self.world.stopwatch()
        try:
            yield
        finally:
            self._seconds[what] = self._seconds.get(what, 0.0) + self.world.stopwatch() - begun

    @staticmethod
    def _ask(call: Callable[[], _T]) -> _T:
        try:
            return call()
        except RetentionError as error:
            raise StoreFailedError(error) from None

    def _result(
        self, now: datetime, found: DueInventory, signals: tuple[StopSignal, ...], outcome: Outcome, reason: str
    ) -> ExpiryResult:
        done = self._counts.expired + self._counts.removed
        report = RunReport(
            tenant=self.tenant,
            job=Job.EXPIRE,
            run=self.run,
            outcome=outcome,
            reason=reason,
            counts=self._counts,
            seconds={name: round(spent, 3) for name, spent in self._seconds.items()},
            backlog=found.backlog,
            oldest_overdue_seconds=found.overdue_seconds,
            forecast_runs=math.ceil(found.backlog / done) if done else (0 if not found.backlog else None),
        )
        self.world.records.finish(report, now)
        return ExpiryResult(report=report, found=found, signals=signals)
