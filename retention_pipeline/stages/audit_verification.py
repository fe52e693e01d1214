"""Reads a whole chain and says whether it is what was sealed, with every fault by name (SPEC G5)."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from retention_pipeline.errors import Code
from retention_pipeline.governance.audit_chain import LATE, ChainCheck
from retention_pipeline.model.audit import AuditFinding, AuditLog, Head, Waiting
from retention_pipeline.model.ids import TenantId

NAMED: Final = 10_000
"""Findings that are named one by one; all are counted."""


@dataclass(slots=True, kw_only=True)
class Verification:
    """What a look through a whole chain found.

    Args:
        sealed: events in blocks.
        findings: what is not as it was sealed, at most `NAMED`.
        warnings: what a person should know, and what is no proof of anything.
        counts: all findings by their code.
    """

    tenant: TenantId
    blocks: int = 0
    sealed: int = 0
    sealed_at: str | None = None
    waiting: Waiting = field(default_factory=lambda: Waiting(events=0, oldest_seconds=None))
    findings: list[AuditFinding] = field(default_factory=list)
    warnings: list[AuditFinding] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def sound(self) -> bool:
        """Whether nothing was found."""
        return not self.counts

    def add(self, findings: Iterable[AuditFinding]) -> None:
        """Count findings, and keep them while there are few enough to read."""
        for finding in findings:
            self.counts[str(finding.code)] += 1
            if len(self.findings) < NAMED:
                self.findings.append(finding)


def verify(log: AuditLog, tenant: TenantId, key: bytes, heads: Sequence[Head] = ()) -> Verification:
    """Follow a chain from its first block to its last.

    What no block has is looked at first: every block that this look relied on is proven afterwards, however much a sealer adds
    in the meantime.

    Args:
        log: the chain, wherever it is.
        tenant: whose.
        key: of the audit record.
        heads: of this chain, kept outside the database and read before it.
    """
    result = Verification(tenant=tenant)
    result.waiting = log.waiting()
    result.add(log.suspicious())
    check = ChainCheck(tenant=tenant, key=key, heads=heads)
    for seal, events in log.blocks():
        result.add(check.block(seal, events))
    result.add(check.end())
    result.blocks, result.sealed = check.blocks, check.events
    result.sealed_at = check.last.sealed_at if check.last else None
    if result.waiting.oldest_seconds is not None and result.waiting.oldest_seconds > LATE.total_seconds():
        result.warnings.append(AuditFinding(code=Code.AUDIT_SEALING_BEHIND))
    if check.first_late is not None:
        result.warnings.append(check.first_late)
    return result
