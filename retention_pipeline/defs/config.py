"""What a person may choose in the launchpad; unchanged, a run is a preflight (SPEC D3)."""

import dagster as dg
from pydantic import Field

from retention_pipeline.errors import Code, UsageFault
from retention_pipeline.stages.reconcile import Bounds

STANDING = "standing"
"""In the place of an approval's id: the tenant's newest standing approval, if its gates are open."""


class ReconcileConfig(dg.Config):
    """How a run over workflow instances behaves."""

    apply: bool = Field(
        default=False,
        description="False counts and selects, and changes nothing. True archives, verifies and deletes, with an approval.",
    )
    approval: str | None = Field(
        default=None,
        description="The id that `retention approve` printed, or `standing` for schedules. Needed where apply is true.",
    )
    tenants: list[str] = Field(
        default_factory=list,
        description="Tenant ids, for runs without a partition (schedules). Leave it empty when you choose partitions.",
    )
    batches: int = Field(default=20, description="Batches at most, from 1 to 20.")
    batch: int = Field(default=500, description="Instances of a batch at most, from 1 to 500.")
    seconds: float = Field(default=300.0, description="No batch is begun after this many seconds, from 1 to 300.")

    def bounds(self) -> Bounds:
        """The bounds, checked here: the launchpad does not enforce them (W7)."""
        if not (1 <= self.batches <= 20 and 1 <= self.batch <= 500 and 1 <= self.seconds <= 300):
            raise UsageFault(
                Code.USAGE,
                "A bound is larger than it may be, or none.",
                remedy="Batches 1 to 20, batch 1 to 500, seconds 1 to 300.",
            )
        return Bounds(batches=self.batches, batch=self.batch, seconds=self.seconds)


class ExpiryConfig(ReconcileConfig):
    """How a run over archives behaves that are near their own end."""

    apply: bool = Field(
        default=False,
        description="False counts, and ends nothing. True deletes the objects of archives that are due, with an approval of `expire`.",
    )
