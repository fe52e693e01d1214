"""Is a chain of blocks what was sealed? A pure check, a block at a time, that names everything that is not (SPEC G5)."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from retention_pipeline.errors import Code
from retention_pipeline.governance.audit import BLOCK_EVENTS, LEAF_SIZE, block_mac, genuine, leaf
from retention_pipeline.model.audit import AT, AuditFinding, Event, Head, Seal
from retention_pipeline.model.ids import TenantId

LATE: Final = timedelta(minutes=15)
"""No transaction of the product lasts as long: an event is in the outbox this soon after its own time."""


@dataclass(slots=True, kw_only=True)
class ChainCheck:
    """Follows one chain from its first block; what it remembers does not grow with it.

    Args:
        heads: heads that were kept elsewhere, which the chain must still contain.
    """

    tenant: TenantId
    key: bytes = field(repr=False)
    heads: Iterable[Head] = ()
    last: Seal | None = None
    blocks: int = 0
    events: int = 0
    late: int = 0
    first_late: AuditFinding | None = None
    _by_block: dict[int, list[Head]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for head in self.heads:
            self._by_block.setdefault(head.block, []).append(head)

    def block(self, seal: Seal, events: Mapping[int, Event]) -> Iterator[AuditFinding]:
        """Look at the next block that there is, with those of its events that are there."""
        expected = self.last.block + 1 if self.last else 1
        if seal.block > expected:
            through = seal.block - 1 if seal.block - 1 > expected else None
            yield AuditFinding(code=Code.AUDIT_BLOCK_MISSING, block=expected, through=through)
        if not genuine(seal.mac, block_mac(self.key, seal)):
            yield AuditFinding(code=Code.AUDIT_BLOCK_CHANGED, block=seal.block)
        elif seal.block == expected and not genuine(seal.previous, self.last.mac if self.last else b""):
            yield AuditFinding(code=Code.AUDIT_BLOCK_UNCHAINED, block=seal.block)
        yield from self._events(seal, events)
        for head in self._by_block.pop(seal.block, ()):
            if not genuine(seal.mac, head.mac):
                yield AuditFinding(code=Code.AUDIT_HEAD_DIFFERS, block=seal.block)
        self.last = seal
        self.blocks += 1

    def end(self) -> Iterator[AuditFinding]:
        """What is missing at the end: heads that were kept elsewhere and that the chain never came to."""
        reached = self.last.block if self.last else 0
        lost = max((block for block in self._by_block if block > reached), default=0)
        if lost:
            through = lost if lost > reached + 1 else None
            yield AuditFinding(code=Code.AUDIT_CHAIN_SHORTER, block=reached + 1, through=through)

    def _events(self, seal: Seal, events: Mapping[int, Event]) -> Iterator[AuditFinding]:
        horizon = late_after(self.last.sealed_at, len(self.last.event_ids)) if self.last else None
        for position, event_id in enumerate(seal.event_ids):
            event = events.get(event_id)
            if event is None:
                yield AuditFinding(code=Code.AUDIT_EVENT_REMOVED, block=seal.block, event=event_id)
                continue
            expected = seal.leaves[position * LEAF_SIZE : (position + 1) * LEAF_SIZE]
            if not genuine(expected, leaf(self.key, event)):
                yield AuditFinding(code=Code.AUDIT_EVENT_CHANGED, block=seal.block, event=event_id)
            elif horizon is not None and str(event[AT]) < horizon:
                self.late += 1
                self.first_late = self.first_late or AuditFinding(
                    code=Code.AUDIT_EVENT_BACKDATED, block=seal.block, event=event_id
                )
        self.events += len(seal.event_ids)


def late_after(sealed_at: str, events: int) -> str | None:
    """The instant before which nothing may be that comes after a block; none, where that block left others waiting.

    A block that is not full took all that waited.
    """
    return late_before(sealed_at) if events < BLOCK_EVENTS else None


def late_before(sealed_at: str) -> str | None:
    """The instant before which nothing may wait that a block of that time did not take, as PostgreSQL would print it.

    Instants of this form are in the order of their text, so that a million of them need no parsing. What is no instant (the
    block's MAC says so, too) gives none.
    """
    try:
        instant = datetime.fromisoformat(sealed_at) - LATE
    except (ValueError, OverflowError):
        return None
    seconds, _, fraction = instant.strftime("%Y-%m-%d %H:%M:%S.%f").partition(".")
    digits = fraction.rstrip("0")  # as PostgreSQL prints it, which is what it is compared with
    return f"{seconds}.{digits}+00" if digits else f"{seconds}+00"
