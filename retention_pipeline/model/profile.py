"""Where a tenant's archives go, for how long, and whether that place has been proven."""

from dataclasses import dataclass, field
from enum import StrEnum

from retention_pipeline.model.ids import TenantId


class Provider(StrEnum):
    """The two kinds of archive store (A12)."""

    FILESYSTEM = "filesystem"
    S3 = "s3-compatible"


class LockMode(StrEnum):
    """How a bucket with object lock holds archives (A11).

    `governance`: an administrator of the bucket with a right of their own may end a lock early. `compliance`: nobody may.
    """

    GOVERNANCE = "governance"
    COMPLIANCE = "compliance"


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One generation of a tenant's archive profile. Its configuration holds places, never credentials.

    Args:
        archive_retention_days: 0 keeps without limit; otherwise at least 365 (A10).
    """

    tenant: TenantId
    generation: int
    provider: Provider
    configuration: dict[str, str] = field(repr=False)
    secret_id: str | None = field(repr=False)
    archive_retention_days: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """Whether the newest generation of profile and secret passed the probe (A15)."""

    ready: bool
    codes: tuple[str, ...]
    locks: bool = False
