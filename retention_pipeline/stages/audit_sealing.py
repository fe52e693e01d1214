"""Seals what waits, keeps the heads on this machine, and anchors them in the tenants' archive stores (SPEC G5).

- A block is one transaction: killed anywhere, the next run goes on with the next block.
- A head that is kept outside is never replaced by a chain that does not contain it: sealing goes on, because new events need
  their seal, but the run is not green until a person has looked.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final

from retention_pipeline.clock import Stopwatch, monotonic
from retention_pipeline.errors import Code, Integrity, RetentionError
from retention_pipeline.governance.audit import write_anchor
from retention_pipeline.model.audit import INSTALLATION, Anchor, Backlog, Head, Heads, SealingRecords
from retention_pipeline.model.ids import TenantId
from retention_pipeline.model.ports import ObjectStore
from retention_pipeline.stages.audit_anchors import anchor_name, newest_anchor

DAY_SECONDS: Final = 24 * 3600.0

OpenStore = Callable[[TenantId], tuple[int, ObjectStore]]
"""A tenant's ready archive store with its profile's generation, or a named failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SealingBounds:
    """How much one run does.

    Args:
        blocks: of one tenant.
        seconds: after which no further block is begun; below the five minutes to the next run.
    """

    blocks: int = 1000
    seconds: float = 240.0


@dataclass(slots=True, kw_only=True)
class SealingReport:
    """What a sealing run did, in counts.

    Args:
        late: events that were older than they can be when they were sealed; a person should look at them.
        left: events that still wait.
        oldest_seconds: how long the oldest of them has waited.
        failures: what did not get done, by its code.
    """

    tenants: int = 0
    blocks: int = 0
    events: int = 0
    anchors: int = 0
    late: int = 0
    left: int = 0
    oldest_seconds: float | None = None
    failures: Counter[str] = field(default_factory=Counter)
    broken: bool = False


@dataclass(slots=True, kw_only=True)
class Sealing:
    """One sealing run.

    Args:
        stores: opens a tenant's archive store.
        accept: whether a person vouches for chains that lost their anchored heads: the database was restored.
    """

    records: SealingRecords
    heads: Heads
    key: bytes = field(repr=False)
    stores: OpenStore
    bounds: SealingBounds = SealingBounds()
    accept: bool = False
    stopwatch: Stopwatch = monotonic
    report: SealingReport = field(default_factory=SealingReport)

    def seal(self, only: TenantId | None = None) -> None:
        """Seal what waits: one chain's, or everybody's, who waits longest first."""
        begun = self.stopwatch()
        kept: Mapping[TenantId, Head] | None = None
        with self._counted():
            kept = self.heads.read()
        for backlog in self._backlog(only):
            with self._counted():
                self._seal_one(backlog.tenant, begun, kept)
        waiting = self._backlog(only)
        self.report.left = sum(b.events for b in waiting)
        self.report.oldest_seconds = max((b.oldest_seconds or 0.0 for b in waiting), default=None)

    def adopt(self, only: TenantId | None = None) -> None:
        """Keep the heads that the chains have now, whatever was kept before: a person vouches for it."""
        for tenant in self.heads.read():
            if only is None or tenant == only:
                head = self.records.head(tenant)
                self.heads.forget(tenant)
                if head is not None:
                    self.heads.keep(head)

    def anchor(self, only: TenantId | None = None, *, age_seconds: float = DAY_SECONDS, unmoved: bool = False) -> None:
        """Anchor the heads that moved since an anchor of this age."""
        for tenant in self.records.anchors_due(age_seconds, unmoved=unmoved):
            if only is None or tenant == only:
                with self._counted():
                    self._anchor(tenant)

    # -- sealing ---------------------------------------------------------------------------------------------------------

    def _backlog(self, only: TenantId | None) -> list[Backlog]:
        return [b for b in self.records.backlog() if only is None or b.tenant == only]

    def _seal_one(self, tenant: TenantId, begun: float, kept: Mapping[TenantId, Head] | None) -> None:
        known = kept.get(tenant) if kept else None
        try:
            if known:
                self._require(known)
        except Integrity:
            self._seal_chain(tenant, begun, keep=False)  # and what is kept stays as evidence
            raise
        self._seal_chain(tenant, begun, keep=kept is not None)

    def _seal_chain(self, tenant: TenantId, begun: float, *, keep: bool) -> None:
        after, head = 0, None
        try:
            for _ in range(self.bounds.blocks):
                if self.stopwatch() - begun > self.bounds.seconds:
                    break
                done = self.records.seal_next(tenant, self.key, after)
                if done is None:
                    break
                seal, late = done
                # Within one run the outbox is read onwards; what committed late, with a lower id, is the next run's.
                after, head = seal.event_ids[-1], seal.head
                self.report.blocks += 1
                self.report.events += len(seal.event_ids)
                if late:
                    self.report.late += late
                    self.report.failures[str(Code.AUDIT_EVENT_BACKDATED)] += 1
        finally:
            if head is not None:
                self.report.tenants += 1
                if keep:
                    self.heads.keep(head)

    def _require(self, known: Head) -> None:
        """The chain must still contain a head that was kept elsewhere."""
        found = self.records.block_mac(known.tenant, known.block)
        if found is None:
            raise Integrity(
                Code.AUDIT_CHAIN_SHORTER,
                "The audit record ends before a block that was sealed.",
                remedy="Run `retention audit verify`; after a restore of the database, `retention audit seal --after-restore`.",
            )
        if found != known.mac:
            raise Integrity(
                Code.AUDIT_HEAD_DIFFERS,
                "The audit record has another block in the place of one that was sealed.",
                remedy="Run `retention audit verify`; after a restore of the database, `retention audit seal --after-restore`.",
            )

    # -- anchoring -------------------------------------------------------------------------------------------------------

    def _anchor(self, tenant: TenantId) -> None:
        head = self.records.head(tenant)
        if head is None:
            return
        anchor = Anchor(head=head, installation=self.records.head(INSTALLATION), at=self.records.now())
        generation, store = self.stores(tenant)
        try:
            if not self.accept:
                last = newest_anchor(store, self.key).anchor
                for known in (last.head, last.installation) if last else ():
                    if known is not None:
                        self._require(known)
            name = anchor_name(anchor)
            body = write_anchor(self.key, anchor, name)
            self.records.note_anchor(tenant, head.block, generation, name, None)
            version = store.put_once(name, body, sha256=sha256(body).digest())
            self.records.note_anchor(tenant, head.block, generation, name, version)
            self.report.anchors += 1
        finally:
            store.close()

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """One chain's failure is counted, and the next one goes on."""
        try:
            yield
        except RetentionError as error:
            self.report.failures[str(error.code)] += 1
            self.report.broken |= isinstance(error, Integrity)
