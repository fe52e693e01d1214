"""Removes objects that no record names, when somebody asks for it and a day after they were first seen (SPEC A19, F15).

- Approved, audited, one exact version at a time, and gone only when a listing says so.
- What has the form of an archive and no attempt's name stays: after a restore of the database it may be the only copy.
- The database refuses what a record of any tenant or generation names by then.
"""

from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import Final

from retention_pipeline.clock import Stopwatch, monotonic
from retention_pipeline.envelope.wire import MAGIC
from retention_pipeline.errors import Code, Integrity, Refused, RetentionError
from retention_pipeline.model.ids import TenantId
from retention_pipeline.model.outcome import Counts, Outcome, RunReport
from retention_pipeline.model.people import Approval, Job
from retention_pipeline.model.ports import Deletion, ObjectStore
from retention_pipeline.model.scrub import ScrubRecords, UnknownInventory, UnknownObject, UnknownObjects
from retention_pipeline.model.work import Records
from retention_pipeline.stages.reconcile import holder_name

KEEP_LEASE_EVERY: Final = 50
TOO_MANY: Final = 3
"""After so many failures in a row the rest is not tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovalResult:
    """A run's report, and what is left after it."""

    report: RunReport
    found: UnknownInventory


@dataclass(slots=True, kw_only=True)
class Removal:
    """One run for one tenant.

    Args:
        apply: False counts, and removes nothing.
        approval: an approval's id; without one nothing is removed.
    """

    scrub: ScrubRecords
    unknown: UnknownObjects
    records: Records
    stores: Callable[[TenantId, int], ObjectStore]
    tenant: TenantId
    run: str
    apply: bool = False
    approval: str | None = None
    limit: int = 10_000
    seconds: float = 300.0
    stopwatch: Stopwatch = monotonic
    _counts: Counts = field(default_factory=Counts)
    _stores: dict[int, ObjectStore] = field(default_factory=dict)
    _stack: ExitStack = field(default_factory=ExitStack)

    def __call__(self) -> RemovalResult:
        """Count, and with `apply` remove."""
        started = self.scrub.now(self.tenant)
        if not self.apply:
            return self._result(Outcome.PREFLIGHT, "preflight")
        holder = holder_name()
        fence = self.scrub.take_lease(self.tenant, holder)
        if fence is None:
            return self._result(Outcome.SKIPPED, Code.RUN_OVERLAPS)
        try:
            if self.approval is None:
                raise Refused(
                    Code.APPROVAL_REQUIRED, "Nothing is removed without an approval.", remedy="Use `--apply`."
                )
            approval = self.records.use_approval(self.tenant, self.approval, Job.SCRUB_REMOVE, self.run, None)
            with self._stack:
                reason = self._each(approval, lambda: self.scrub.keep_lease(self.tenant, holder, fence))
        finally:
            self.scrub.drop_lease(self.tenant, holder, fence)
        result = self._result(Outcome.PARTIAL if self._counts.failed else self._left(reason), reason)
        self.records.finish(result.report, started)
        return result

    @staticmethod
    def _left(reason: str) -> Outcome:
        return Outcome.COMPLETED if reason == "exhausted" else Outcome.WORK_REMAINS

    def _each(self, approval: Approval, keep: Callable[[], None]) -> str:
        begun, in_a_row = self.stopwatch(), 0
        limit = min(self.limit, approval.max_items)
        chosen = self.unknown.removable(self.tenant, limit)
        self._counts.selected = len(chosen)
        for position, found in enumerate(chosen):
            if self.stopwatch() - begun > self.seconds:
                return "time_bound"
            if position % KEEP_LEASE_EVERY == 0:
                keep()
            try:
                self._one(found, approval)
            except RetentionError as error:
                self._counts.fail(error.code)
                if error.code is Code.APPROVAL_INVALID:
                    return str(error.code)
                if isinstance(error, Refused):
                    self.unknown.stays(self.tenant, found, error.code, approval=approval, run=self.run)
                    continue
                in_a_row += 1
                if in_a_row == TOO_MANY:
                    return str(error.code)
            else:
                in_a_row = 0
        return "exhausted" if len(chosen) < limit else "approval_bound"

    def _one(self, found: UnknownObject, approval: Approval) -> None:
        store = self._store(found.profile_generation)
        if not found.was_tried and _looks_like_an_archive(store, found):
            raise Refused(
                Code.OBJECT_IS_ARCHIVE,
                "It has the form of an archive, and no record has its name.",
                remedy="Find its record: a restored database may have lost it.",
            )
        self.unknown.begin(self.tenant, found, approval=approval, run=self.run)
        deletion = store.delete(found.key, found.version)
        if deletion is Deletion.LOCKED:
            raise Refused(Code.OBJECT_LOCKED, "The store holds it.", remedy="Wait until its lock ends.")
        if any(stored.version == found.version for stored in store.versions(found.key)):
            raise Integrity(
                Code.STORE_PROTOCOL,
                "The store said that it deleted a version, and lists it still.",
                remedy="Look at the store, or at what stands in between.",
            )
        self.unknown.removed(self.tenant, found, approval=approval, run=self.run)
        self._counts.removed += 1

    def _store(self, generation: int) -> ObjectStore:
        if generation not in self._stores:
            self._stores[generation] = self._stack.enter_context(closing(self.stores(self.tenant, generation)))
        return self._stores[generation]

    def _result(self, outcome: Outcome, reason: str) -> RemovalResult:
        left = self.unknown.inventory(self.tenant)
        report = RunReport(
            tenant=self.tenant,
            job=Job.SCRUB_REMOVE,
            run=self.run,
            outcome=outcome,
            reason=reason,
            counts=self._counts,
            seconds={},
            backlog=left.removable,
            oldest_overdue_seconds=None,
            forecast_runs=None,
        )
        return RemovalResult(report=report, found=left)


def _looks_like_an_archive(store: ObjectStore, found: UnknownObject) -> bool:
    head = b""
    try:
        with store.read(found.key, found.version) as stream:
            while len(head) < len(MAGIC) and (more := stream.read(len(MAGIC) - len(head))):
                head += more
    except Integrity:
        return False  # gone already
    return head == MAGIC
