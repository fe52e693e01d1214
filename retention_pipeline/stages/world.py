"""What a run is made of: its steps, and what it needs of the world."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from retention_pipeline.clock import Stopwatch, monotonic
from retention_pipeline.envelope.wraps import TenantKey
from retention_pipeline.errors import RetentionError
from retention_pipeline.model.ids import TenantId
from retention_pipeline.model.outcome import Counts
from retention_pipeline.model.ports import ObjectStore
from retention_pipeline.model.work import Records, Source
from retention_pipeline.stages.archive import Limits
from retention_pipeline.stages.eligibility import Brake
from retention_pipeline.stages.object_locks import Settled


class Step(StrEnum):
    """The steps, by the names of their assets."""

    INVENTORY = "inventory"
    ELIGIBLE_SET = "eligible_set"
    ENCRYPTED_MANIFESTS = "encrypted_manifests"
    VERIFIED_OBJECTS = "verified_objects"
    DELETIONS = "deletions"


PREFLIGHT = frozenset({Step.INVENTORY, Step.ELIGIBLE_SET})
EVERY_STEP = frozenset(Step)


class Keys(Protocol):
    """A tenant's keys, unwrapped."""

    def current(self, tenant: TenantId) -> TenantKey:
        """The newest key, made at first use."""
        ...

    def find(self, tenant: TenantId, key_id: str) -> bytes:
        """The key of an older archive, or raise `Unavailable(KEY_UNAVAILABLE)`."""
        ...


class StopRunError(Exception):
    """The run ends here, with everything it had begun left for the next one."""

    def __init__(self, error: RetentionError) -> None:
        super().__init__(error.code)
        self.error = error


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What a run needs of the world.

    Args:
        stores: opens the archive store of one generation of a tenant's profile.
        brake: how much more than was acknowledged may go.
        progress: told after each step of each batch.
        settle: tells stores that can lock what they shall hold, after each deletion.
    """

    source: Source
    records: Records
    keys: Keys
    stores: Callable[[TenantId, int], ObjectStore]
    brake: Brake
    limits: Limits = field(default_factory=Limits)
    stopwatch: Stopwatch = monotonic
    progress: Callable[[Counts], None] = lambda _: None
    settle: Callable[[TenantId], Settled] = lambda _: Settled()
