"""What a person may choose in the launchpad; unchanged, a run is a preflight (SPEC D3)."""

import dagster as dg
from pydantic import Field

from retention_pipeline.errors import Code, UsageFault
from retention_pipeline.model.scrub import SLICES
from retention_pipeline.stages.reconcile import Bounds
from retention_pipeline.stages.scrub import ScrubBounds

STANDING = "standing"
"""In the place of an approval's id: the tenant's newest standing approval, if its gates are open."""


class TenantsConfig(dg.Config):
    """Whose turn it is."""

    tenants: list[str] = Field(
        default_factory=list,
        description="Tenant ids, for runs without a partition (schedules). Leave it empty when you choose partitions.",
    )

    def bounds(self) -> Bounds:
        """How much one run may do for one tenant."""
        return Bounds()


class ReconcileConfig(TenantsConfig):
    """How a run over workflow instances behaves."""

    apply: bool = Field(
        default=False,
        description="False counts and selects, and changes nothing. True archives, verifies and deletes, with an approval.",
    )
    approval: str | None = Field(
        default=None,
        description="The id that `retention approve` printed, or `standing` for schedules. Needed where apply is true.",
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


class SweepConfig(TenantsConfig):
    """How a pass of a sweep behaves; what it ends, and how much of it at once, is in the catalog."""

    apply: bool = Field(
        default=False,
        description="False counts, and changes nothing. True ends the rows that the rule names, with an approval of this sweep.",
    )
    approval: str | None = Field(
        default=None,
        description="The id that `retention approve sweep:NAME` printed, or `standing` for schedules. Needed where apply is true.",
    )
    seconds: float = Field(
        default=300.0, description="No batch of a tenant is begun after this many seconds, from 1 to 300."
    )
    pass_seconds: float = Field(
        default=3000.0,
        description="No further tenant is begun after this many seconds, from 1 to 6000; the next pass begins with that one.",
    )

    def limits(self) -> tuple[float, float]:
        """Seconds of one tenant and of the whole pass, checked here: the launchpad does not enforce them (L1, L2)."""
        if not (1 <= self.seconds <= 300 and 1 <= self.pass_seconds <= 6000):
            raise UsageFault(
                Code.USAGE,
                "A bound is larger than it may be, or none.",
                remedy="Seconds 1 to 300, pass_seconds 1 to 6000.",
            )
        return self.seconds, self.pass_seconds


class ScrubConfig(TenantsConfig):
    """How much of the archives a run reads again; it changes nothing, so that it needs no approval."""

    slices: int = Field(
        default=SLICES, description="In how many runs every archive is read once, from 1 (all of them now) to 3650."
    )
    seconds: float = Field(default=300.0, description="No archive is begun after this many seconds, from 1 to 3600.")
    gigabytes: float = Field(default=10.0, description="No archive is begun after so much was read, at most 1000.")

    def limits(self) -> ScrubBounds:
        """The bounds, checked here: the launchpad does not enforce them (W7)."""
        if not (1 <= self.slices <= 3650 and 1 <= self.seconds <= 3600 and 0 < self.gigabytes <= 1000):
            raise UsageFault(
                Code.USAGE,
                "A bound is larger than it may be, or none.",
                remedy="Slices 1 to 3650, seconds 1 to 3600, gigabytes up to 1000.",
            )
        return ScrubBounds(seconds=self.seconds, bytes=int(self.gigabytes * 1e9))
