"""Looks after stored archives: lists what there is, reads a part of it again, and reports what is not what it must be (SPEC A19, F1, F15).

- It changes nothing but its own records; whatever it finds, a person decides.
- Each store is listed in each run, both ways; what is missing there is not read again.
- Archives stand on a circle by a hash of their ids. A run reads from where the last one stopped to the end of that slice, so
  that so many runs read everything once, whatever is added between them, and a crash costs one archive's reading.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Final

from retention_pipeline.clock import Stopwatch, monotonic
from retention_pipeline.errors import Code, RetentionError
from retention_pipeline.model.ids import AttemptId, TenantId
from retention_pipeline.model.outcome import Counts, Outcome, RunReport
from retention_pipeline.model.ports import ObjectStore
from retention_pipeline.model.scrub import (
    SCRUB,
    SLICES,
    Position,
    Reading,
    ScrubRecords,
    ScrubResult,
    Slice,
    StoredArchive,
    Tally,
    Verdict,
)
from retention_pipeline.stages.archive_reading import examine
from retention_pipeline.stages.reconcile import holder_name
from retention_pipeline.stages.store_list import StoreList
from retention_pipeline.stages.world import Keys

PAGE: Final = 1_000
KEEP_LEASE_SECONDS: Final = 60.0
TOO_MANY: Final = 3
"""After so many failures in a row of one generation's store, the rest of what lies there is not tried."""
ENOUGH: Final = 1_000
"""After so many missing archives a run has told enough: a store that is not mounted lacks all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubBounds:
    """How much one run may read.

    Args:
        seconds: after which nothing further is begun; the list takes half of it at most.
        bytes: of archives.
    """

    seconds: float = 300.0
    bytes: int = 10 << 30


class _StopError(Exception):
    """A bound was reached."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(slots=True, kw_only=True)
class Scrub:
    """One run for one tenant.

    Args:
        stores: opens the archive store of one generation of the tenant's profile.
        slices: in how many runs everything is read; 1 reads all of it.
        only: this slice and no other; the position of the other runs stays where it is.
    """

    records: ScrubRecords
    stores: Callable[[TenantId, int], ObjectStore]
    keys: Keys
    tenant: TenantId
    run: str
    slices: int = SLICES
    only: int | None = None
    bounds: ScrubBounds = field(default_factory=ScrubBounds)
    stopwatch: Stopwatch = monotonic
    progress: Callable[[Counts], None] = lambda _: None
    _tally: Tally = field(default_factory=Tally)
    _counts: Counts = field(default_factory=Counts)
    _seconds: dict[str, float] = field(default_factory=dict)
    _stores: dict[int, ObjectStore] = field(default_factory=dict)
    _failed: dict[int, int] = field(default_factory=dict)
    _broken: dict[int, Code] = field(default_factory=dict)
    _alive: set[int] = field(default_factory=set)
    _missing: set[AttemptId] = field(default_factory=set)
    _begun: float = 0.0
    _kept: float = 0.0

    def __call__(self) -> ScrubResult:
        """List, read, and record how it ended."""
        started = self.records.now(self.tenant)
        holder = holder_name()
        fence = self.records.take_lease(self.tenant, holder)
        position = self.records.position(self.tenant)  # after the lease: the run before may just have moved it
        part = Slice(number=self.only, of=self.slices) if self.only else Slice.at(position, self.slices)
        if fence is None:
            return self._result(started, part, Outcome.SKIPPED, Code.RUN_OVERLAPS, finished=False)
        self._begun = self._kept = self.stopwatch()
        try:
            return self._work(started, part, position, partial(self._keep, holder, fence))
        finally:
            for store in self._stores.values():
                store.close()
            self.records.drop_lease(self.tenant, holder, fence)

    def _work(self, started: datetime, part: Slice, position: Position, keep: Callable[[], None]) -> ScrubResult:
        reason, finished = "exhausted", False
        try:
            with self._timed("list"):
                self._list(keep)
            with self._timed("read"):
                self._read(part, position, keep)
            finished = True
        except _StopError as stop:
            reason = stop.reason
        except RetentionError as error:
            self._counts.fail(error.code)
            reason = error.code
        outcome = self._judge(finished=finished)
        return self._result(started, part, outcome, reason, finished=finished)

    def _judge(self, *, finished: bool) -> Outcome:
        """A finding is worse than what could not be looked at, and that is worse than what waits for the next run (O1)."""
        if self._tally.findings:
            return Outcome.FAILED
        if self._counts.failed:
            return Outcome.PARTIAL if self._tally.archives or self._tally.listed else Outcome.FAILED
        return Outcome.COMPLETED if finished and self._tally.listed_whole else Outcome.WORK_REMAINS

    def _list(self, keep: Callable[[], None]) -> None:
        """What does not fit the records is noted; a place that can't be listed hides nothing of the others."""
        half = self._begun + self.bounds.seconds / 2

        def go_on() -> bool:
            keep()
            return self.stopwatch() <= half

        whole = True
        for place in self.records.places(self.tenant):
            listing = StoreList(
                records=self.records, store=self._store, tenant=self.tenant, run=self.run, tally=self._tally
            )
            try:
                whole &= listing(place, go_on, self._miss)
            except RetentionError as error:
                if error.code is Code.LEASE_LOST:
                    raise
                self._counts.fail(error.code)
                whole = False
        self._tally.listed_whole = whole

    def _miss(self, archive: StoredArchive) -> None:
        self._note(archive, Reading(verdict=Verdict.MISSING, code=Code.OBJECT_MISSING), None)
        self._missing.add(archive.stored.attempt)
        if len(self._missing) >= ENOUGH:
            raise _StopError("finding_bound")

    def _read(self, part: Slice, position: Position, keep: Callable[[], None]) -> None:
        """From where the last run stopped; everything, or a slice of its own, from the beginning."""
        saved = self.only is None
        at = position if saved and self.slices > 1 else part.first
        while found := self.records.next(self.tenant, at, part.end, PAGE):
            for at in found:
                keep()
                self._within_bounds()
                if at.archive not in self._missing:
                    self._read_one(at, save=saved)
        is_out = self._counts.failed and not self._alive and not self._tally.listed
        if saved and not is_out:
            self.records.move(self.tenant, part.next)

    def _read_one(self, at: Position, *, save: bool) -> None:
        """One archive; a store that does not answer is no finding.

        One that fails again and again is asked no more: where it answered before, the run ends and the next one goes on from here;
        where it never did, the archives of other generations have their turn.
        """
        with self.records.reading(self.tenant, at.archive) as archive:
            if archive is None:
                return
            generation = archive.stored.profile_generation
            if generation in self._broken:
                self._counts.fail(self._broken[generation])
                return
            try:
                reading = examine(self._store(generation), archive, partial(self.keys.find, self.tenant))
            except RetentionError as error:
                self._failed_at(generation, error)
                return
            self._failed[generation] = 0
            self._alive.add(generation)
            self._tally.bytes += archive.stored.size
            self._note(archive, reading, at if save else None)
        self.progress(self._counts)

    def _failed_at(self, generation: int, error: RetentionError) -> None:
        self._counts.fail(error.code)
        self._failed[generation] = self._failed.get(generation, 0) + 1
        if self._failed[generation] < TOO_MANY:
            return
        if generation in self._alive:
            raise _StopError(error.code)
        self._broken[generation] = error.code

    def _note(self, archive: StoredArchive, reading: Reading, position: Position | None) -> None:
        self._tally.verdicts[reading.verdict] += 1
        self._counts.verified += reading.proven
        self.records.found(self.tenant, archive, reading, run=self.run, position=position)

    def _within_bounds(self) -> None:
        if self.stopwatch() - self._begun > self.bounds.seconds:
            raise _StopError("time_bound")
        if self._tally.bytes >= self.bounds.bytes:
            raise _StopError("byte_bound")

    def _keep(self, holder: str, fence: int) -> None:
        if self.stopwatch() - self._kept > KEEP_LEASE_SECONDS:
            self._kept = self.stopwatch()
            self.records.keep_lease(self.tenant, holder, fence)

    def _store(self, generation: int) -> ObjectStore:
        if generation not in self._stores:
            self._stores[generation] = self.stores(self.tenant, generation)
        return self._stores[generation]

    @contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        begun = self.stopwatch()
        try:
            yield
        finally:
            self._seconds[what] = self._seconds.get(what, 0.0) + self.stopwatch() - begun

    def _result(self, started: datetime, part: Slice, outcome: Outcome, reason: str, *, finished: bool) -> ScrubResult:
        report = RunReport(
            tenant=self.tenant,
            job=SCRUB,
            run=self.run,
            outcome=outcome,
            reason=reason,
            counts=self._counts,
            seconds={name: round(spent, 3) for name, spent in self._seconds.items()},
            backlog=0,
            oldest_overdue_seconds=None,
            forecast_runs=None,
        )
        self.records.finish(report, self._tally, part, started=started, finished=finished)
        return ScrubResult(report=report, tally=self._tally, part=part, integrity=self.records.integrity(self.tenant))
