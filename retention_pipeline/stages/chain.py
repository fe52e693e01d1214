"""One run's work on one tenant: archive, verify, delete, in batches, each step resumable from what the database records.

- Ask of each line: what if it is killed here? Before `intend`: nothing happened. After it: the attempt names the object, and the
  next run asks the store what became of it. After `mark_stored`: it is verified. After `mark_verified`: it is swapped.
- One instance's failure sets that instance aside (W10). A store that fails them all stops the run.
"""

import secrets
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TypeVar

from retention_pipeline.errors import Code, Integrity, RetentionError, Unavailable
from retention_pipeline.model.archive import (
    Attempt,
    AttemptState,
    Candidate,
    Rejected,
    StoredObject,
    VerifiedObject,
)
from retention_pipeline.model.ids import AttemptId, InstanceId, ObjectKey, ObjectVersion, TenantId
from retention_pipeline.model.object_locks import FIRST_LOCK_DAYS
from retention_pipeline.model.outcome import Counts
from retention_pipeline.model.people import Approval
from retention_pipeline.model.ports import ObjectStore
from retention_pipeline.model.profile import Profile
from retention_pipeline.stages import archive, deletion, manifest, verification
from retention_pipeline.stages.archive import SealedArchive
from retention_pipeline.stages.world import Step, StopRunError, World

THREADS = 8
CHUNK_BYTES = 32 << 20
FIRST_FENCE = 1
SLOW_ENOUGH = 3
"""After so many single deletions that the database gave up, and none that it did, the rest is not tried."""

_T = TypeVar("_T")
_R = TypeVar("_R")


@dataclass(slots=True, kw_only=True)
class Chain:
    """The steps of one run, over whichever instances it is given."""

    world: World
    tenant: TenantId
    run: str
    holder: str
    as_of: datetime
    profile: Profile
    approval: Approval
    steps: frozenset[Step]
    held_too: bool = False
    counts: Counts = field(default_factory=Counts)
    seconds: dict[str, float] = field(default_factory=dict)
    _stores: dict[int, ObjectStore] = field(default_factory=dict)

    def close(self) -> None:
        """Close the stores that were opened."""
        for store in self._stores.values():
            store.close()
        self._stores.clear()

    def resume(self, limit: int, instance: InstanceId | None = None) -> int:
        """Go on with attempts that an earlier run left; gives how many there were."""
        states = [
            state
            for step, state in (
                (Step.ENCRYPTED_MANIFESTS, AttemptState.INTENDED),
                (Step.VERIFIED_OBJECTS, AttemptState.STORED),
                (Step.DELETIONS, AttemptState.VERIFIED),
            )
            if step in self.steps
        ]
        if not states or limit <= 0:
            return 0
        claimed = self.world.records.claim(
            self.tenant, holder=self.holder, states=states, limit=limit, instance=instance
        )
        was_verified = [a for a in claimed if a.state is AttemptState.VERIFIED]
        recalled = [v for v in map(verification.recall, was_verified) if v is not None]
        known = {v.stored.attempt for v in recalled}
        stale = [a.stored(a.version) for a in was_verified if a.id not in known and a.version is not None]
        landed = [a for a in map(self._adopt, claimed) if a is not None and a.attempt not in known]
        self.finish([s for s in landed if s not in stale], [*recalled, *self._verify(stale)])
        return len(claimed)

    def archive(self, candidates: Sequence[Candidate]) -> None:
        """Archive candidates, and take them as far as the selected steps go."""
        waiting = list(candidates)
        while waiting:
            sealed, waiting = self._seal(waiting)
            stored = self._write(sealed)
            self.finish(stored, [])

    def finish(self, stored: Sequence[StoredObject], verified: Sequence[VerifiedObject]) -> None:
        """Verify what is stored, and delete the source of what is verified."""
        proven = [*verified]
        if Step.VERIFIED_OBJECTS in self.steps:
            proven += self._verify(stored)
        if Step.DELETIONS in self.steps:
            self._delete(proven)

    # -- sealing ----------------------------------------------------------------------------------------------------

    def _seal(self, waiting: list[Candidate]) -> tuple[list[SealedArchive], list[Candidate]]:
        """Seal until a chunk is full; what was not reached is read again in a later snapshot."""
        sealed: list[SealedArchive] = []
        rejected: list[Rejected] = []
        key = self.world.keys.current(self.tenant)
        size, reached = 0, set[str]()
        full = False
        with (
            self._timed("export and seal"),
            self.world.source.export(self.tenant, waiting, self.as_of, held_too=self.held_too) as exports,
        ):
            for export in exports:
                if isinstance(export, Rejected):
                    rejected.append(export)
                    reached.add(export.instance)
                    continue
                reached.add(export.candidate.instance)
                try:
                    sealed.append(archive.encrypt(manifest.build(export), key, self.world.limits))
                except RetentionError as error:
                    rejected.append(Rejected(instance=export.candidate.instance, code=error.code))
                    continue
                size += len(sealed[-1].body)
                if size >= CHUNK_BYTES:
                    full = True
                    break
        # Protected by now, a hold for one: not a failure, but the refusal is on record, and it waits (F5).
        protected = [r for r in rejected if r.code is Code.NOT_ELIGIBLE]
        self.counts.skipped += len(protected)
        self.world.records.reject(self.tenant, protected, run=self.run, actor=self.approval.actor)
        self._reject([r for r in rejected if r.code is not Code.NOT_ELIGIBLE])
        return sealed, [c for c in waiting if c.instance not in reached] if full else []

    # -- writing ----------------------------------------------------------------------------------------------------

    def _write(self, sealed: Sequence[SealedArchive]) -> list[StoredObject]:
        if not sealed:
            return []
        with self._timed("store"):
            store = self._store(self.profile.generation)
            lock_until = self._lock_until(store)
            ours = self.world.records.intend(
                self.tenant,
                [s.intention for s in sealed],
                approval=self.approval,
                run=self.run,
                holder=self.holder,
                profile=self.profile,
            )
            mine = [s for s in sealed if s.intention.id in ours]
            self.counts.skipped += len(sealed) - len(mine)
            written: list[StoredObject] = []
            failures: list[tuple[SealedArchive, RetentionError]] = []
            for item, answer in self._each(lambda s: archive.write(store, s, lock_until=lock_until), mine):
                if isinstance(answer, RetentionError):
                    failures.append((item, answer))
                else:
                    written.append(self._stored(item, answer))
            kept = self._mark(written, self.world.records.mark_stored)
            self.counts.archived += len(kept)
            self.counts.bytes_archived += sum(s.size for s in kept)
            for item, error in failures:
                if error.code is Code.OBJECT_CONFLICT:
                    self._retire(item.intention.id, FIRST_FENCE, item.intention.candidate.instance, error.code)
            self._fail([(i.intention.candidate.instance, e) for i, e in failures], succeeded=len(kept))
        return kept

    def _stored(self, item: SealedArchive, version: ObjectVersion) -> StoredObject:
        intention = item.intention
        return StoredObject(
            attempt=intention.id,
            tenant=self.tenant,
            instance=intention.candidate.instance,
            epoch=intention.candidate.epoch,
            fence=FIRST_FENCE,
            key=intention.key,
            version=version,
            size=intention.size,
            sha256=intention.sha256,
            manifest_digest=intention.manifest_digest,
            key_id=intention.key_id,
            profile_generation=self.profile.generation,
            archive_retention_days=self.profile.archive_retention_days,
            rows_by_table=intention.rows_by_table,
        )

    def _adopt(self, attempt: Attempt) -> StoredObject | None:
        """What became of an attempt that an earlier run left (F2): its object, or nothing and a new try later."""
        if attempt.version is not None:
            return attempt.stored(attempt.version)
        try:
            version = archive.landed(
                self._store(attempt.profile_generation), attempt.key, size=attempt.size, sha256=attempt.sha256
            )
        except Integrity as error:
            self._retire(attempt.id, attempt.fence, attempt.instance, error.code)
            self._reject([Rejected(instance=attempt.instance, code=error.code, attempt=attempt.id)])
            return None
        except RetentionError as error:
            if attempt.profile_generation == self.profile.generation and not self._answers():
                raise StopRunError(error) from None
            # One object that can't be reached, or a store of an older profile: it waits, and stops nobody's new work (F7).
            self._reject([Rejected(instance=attempt.instance, code=error.code, attempt=attempt.id)])
            return None
        if version is None:
            # Told before the attempt ends: killed in between, the next run finds the attempt, and tells it again.
            if self.world.source.vanished(self.tenant, attempt):  # neither the row nor an archive of it is left
                self._reject([Rejected(instance=attempt.instance, code=Code.FOREIGN_DELETER, attempt=attempt.id)])
            self._retire(attempt.id, attempt.fence, attempt.instance, Code.OBJECT_MISSING, state=AttemptState.ABANDONED)
            return None
        kept = self._mark([attempt.stored(version)], self.world.records.mark_stored)
        self.counts.adopted += len(kept)
        return kept[0] if kept else None

    # -- verifying --------------------------------------------------------------------------------------------------

    def _verify(self, stored: Sequence[StoredObject]) -> list[VerifiedObject]:
        if not stored:
            return []
        with self._timed("verify"):
            proven: list[VerifiedObject] = []
            reachable, failures = self._reach(stored)
            for item, answer in self._each(self._prove, reachable):
                if isinstance(answer, RetentionError):
                    failures.append((item, answer))
                else:
                    proven.append(answer)
            kept = {s.attempt for s in self._mark([p.stored for p in proven], self.world.records.mark_verified)}
            self.counts.verified += len(kept)
            for item, error in failures:
                if isinstance(error, Integrity):
                    self._retire(item.attempt, item.fence, item.instance, error.code)
            older = [(i, e) for i, e in failures if i.profile_generation != self.profile.generation]
            self._reject([Rejected(instance=i.instance, code=e.code, attempt=i.attempt) for i, e in older])
            newest = [(i.instance, e) for i, e in failures if i.profile_generation == self.profile.generation]
            self._fail(newest, succeeded=len(kept))
        return [p for p in proven if p.stored.attempt in kept]

    def _reach(
        self, stored: Sequence[StoredObject]
    ) -> tuple[list[StoredObject], list[tuple[StoredObject, RetentionError]]]:
        """Open each generation's store, before threads share it; an older one that is closed by now fails its own objects."""
        closed: dict[int, RetentionError] = {}
        for generation in {s.profile_generation for s in stored}:
            try:
                self._store(generation)
            except RetentionError as error:
                closed[generation] = error
        failures = [(s, closed[s.profile_generation]) for s in stored if s.profile_generation in closed]
        return [s for s in stored if s.profile_generation not in closed], failures

    def _prove(self, stored: StoredObject) -> VerifiedObject:
        return verification.verify(
            self._store(stored.profile_generation), stored, lambda key_id: self.world.keys.find(self.tenant, key_id)
        )

    # -- deleting ---------------------------------------------------------------------------------------------------

    def _delete(self, verified: Sequence[VerifiedObject]) -> None:
        """Delete the sources; where the database is too slow for some of them, the others go (F7); for most, stop (F4)."""
        deleted = self.counts.deleted
        slow: list[tuple[InstanceId, Unavailable]] = []
        self._delete_some(verified, slow)
        if len(slow) > self.counts.deleted - deleted:
            raise StopRunError(slow[0][1])

    def _delete_some(self, verified: Sequence[VerifiedObject], slow: list[tuple[InstanceId, Unavailable]]) -> None:
        if not verified:
            return
        try:
            with self._timed("delete"):
                receipts, rejected = deletion.delete(
                    self.world.source,
                    self.tenant,
                    verified,
                    as_of=self.as_of,
                    approval=self.approval,
                    run=self.run,
                    held_too=self.held_too,
                )
        except Unavailable as error:
            if error.code is not Code.DATABASE_TIMEOUT:
                raise
            if len(verified) == 1:
                found = verified[0].stored
                slow.append((found.instance, error))
                self._reject([Rejected(instance=found.instance, code=error.code, attempt=found.attempt)])
                if len(slow) >= SLOW_ENOUGH and len(slow) > self.counts.deleted:
                    raise StopRunError(error) from None
                return
            half = len(verified) // 2  # a smaller transaction when the database is slow
            self._delete_some(verified[:half], slow)
            self._delete_some(verified[half:], slow)
            return
        self.counts.deleted += len(receipts)
        self.counts.rows_deleted += sum(r.rows for r in receipts)
        stored = {v.stored.instance: v.stored for v in verified}
        for item in rejected:
            if item.code in deletion.SUPERSEDED:
                found = stored[item.instance]
                self.counts.superseded += 1
                self._retire(found.attempt, found.fence, item.instance, item.code, state=AttemptState.SUPERSEDED)
        skipped = [r for r in rejected if r.code in deletion.ONLY_SKIPPED]
        self.counts.skipped += len(skipped)
        # Protected by now, a hold for one: not a failure, but the refusal is on record, and it waits (F5).
        self.world.records.reject(
            self.tenant,
            [r for r in skipped if r.code is Code.NOT_ELIGIBLE],
            run=self.run,
            actor=self.approval.actor,
        )
        self._reject([r for r in rejected if r.code not in deletion.ONLY_SKIPPED])
        if receipts:
            with self._timed("object locks"):  # a store that does not take one keeps its reminder, and nothing fails
                self.counts.locks_pending = self.world.settle(self.tenant).pending
        self.world.progress(self.counts)

    def _lock_until(self, store: ObjectStore) -> datetime | None:
        """A short lock, where the store can lock: what a failed deletion leaves is not undeletable for years (A11)."""
        try:
            locks = store.locks()
        except RetentionError as error:  # no attempt is recorded for a store that does not answer
            self.counts.fail(error.code)
            raise StopRunError(error) from None
        if not locks:
            return None
        return self.world.source.now(self.tenant) + timedelta(days=FIRST_LOCK_DAYS)

    # -- what the steps share ---------------------------------------------------------------------------------------

    def _each(self, call: Callable[[_T], _R], items: Sequence[_T]) -> Iterator[tuple[_T, _R | RetentionError]]:
        """Call for each item, some at a time; a named failure is that item's answer."""

        def answer(item: _T) -> _R | RetentionError:
            try:
                return call(item)
            except RetentionError as error:
                return error

        if len(items) == 1:
            yield items[0], answer(items[0])
            return
        with ThreadPoolExecutor(max_workers=THREADS, thread_name_prefix="archive-store") as pool:
            yield from zip(items, pool.map(answer, items), strict=True)

    def _mark(
        self,
        moved: Sequence[StoredObject],
        mark: Callable[[TenantId, Sequence[tuple[AttemptId, int, ObjectVersion]]], set[AttemptId]],
    ) -> list[StoredObject]:
        if not moved:
            return []
        ours = mark(self.tenant, [(s.attempt, s.fence, s.version) for s in moved])
        self.counts.skipped += len(moved) - len(ours)
        self.world.progress(self.counts)
        return [s for s in moved if s.attempt in ours]

    def _fail(self, failures: Sequence[tuple[InstanceId, RetentionError]], *, succeeded: int) -> None:
        """Set failed instances aside; where the store failed more than it served, stop the run instead."""
        if not failures:
            return
        systemic = [error for _, error in failures if not isinstance(error, Integrity)]
        if systemic and len(systemic) > succeeded:
            self.counts.fail(systemic[0].code)
            raise StopRunError(systemic[0])
        self._reject([Rejected(instance=instance, code=error.code) for instance, error in failures])

    def _reject(self, rejected: Sequence[Rejected]) -> None:
        for item in rejected:
            self.counts.fail(item.code)
        self.world.records.reject(self.tenant, rejected, run=self.run, actor=self.approval.actor)

    def _retire(
        self,
        attempt: AttemptId,
        fence: int,
        instance: InstanceId,
        code: Code,
        *,
        state: AttemptState = AttemptState.CONFLICT,
    ) -> None:
        self.world.records.retire(
            self.tenant, attempt, fence, instance, state=state, code=code, run=self.run, actor=self.approval.actor
        )

    def _answers(self) -> bool:
        """Whether the newest profile's store answers at all, asked for a key that nobody has."""
        try:
            self._store(self.profile.generation).versions(ObjectKey(f"none/{secrets.token_hex(16)}"))
        except RetentionError:
            return False
        return True

    def _store(self, generation: int) -> ObjectStore:
        if generation not in self._stores:
            self._stores[generation] = self.world.stores(self.tenant, generation)
        return self._stores[generation]

    @contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        begun = self.world.stopwatch()
        try:
            yield
        finally:
            self.seconds[what] = self.seconds.get(what, 0.0) + self.world.stopwatch() - begun
