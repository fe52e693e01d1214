"""The words of a catalog file: where a platform keeps instances and evidence, and what blocks their end (SPEC K1)."""

from collections.abc import Iterator
from functools import cached_property
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

Name = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,62}$")]
"""A name that this file gives to something, used in reports."""

Column = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_$]{0,62}$")]
"""A column, as PostgreSQL's own catalog spells it."""

QualifiedTable = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_$]{0,62}\.[A-Za-z_][A-Za-z0-9_$]{0,62}$")
]
"""A table with its schema: `schema.table`."""

Setting = Annotated[str, StringConstraints(pattern=r"^[a-z_][a-z0-9_]*(\.[a-z_][a-z0-9_]*)+$", max_length=63)]
"""A setting that PostgreSQL lets anybody set; never one of its own, which have no dot."""

Value = Annotated[str, StringConstraints(pattern=r"^[^\x00]+$", max_length=200)]
"""A state or a status, as the column prints it."""

BlockerName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,54}$")]
"""A blocker's name; shorter, since a statement's column `blocker_…` is named after it and has 63 bytes."""

ROOT = "root"
"""What children call the instance's own row."""

Section = Literal[
    "instance",
    "definition",
    "context",
    "transition_history",
    "action_checkpoints",
    "recovery",
    "trigger_occurrences",
    "occurrence_targets",
    "deliveries",
    "artifact_evidence",
    "terminal_epochs",
    "executions",
    "central",
    "store_bindings",
]
"""The part of the archive's manifest that a table belongs to (A1)."""


class Strict(BaseModel):
    """What no file may add to, and nothing changes."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Tenants(Strict):
    """The platform's table of tenants."""

    table: QualifiedTable
    key: Column
    alias: Column
    retention_days: Column | None = None
    setting: Setting | None = Field(default=None, description="what the source's own row-level security reads")


class Root(Strict):
    """The instance's own row."""

    table: QualifiedTable
    key: Column
    tenant: Column
    state: Column
    terminal_states: tuple[Value, ...] = Field(min_length=1)
    policy: Name = Field(description="the shared table that carries the workflow's own retention period")
    section: Section = "instance"
    guard: bool = Field(default=False, description="let the database refuse a deletion without a verified archive")


class Ephemeral(Strict):
    """A payload column that may be short-lived, with its mirrored columns: never archived, a marker stands instead."""

    payload: Column
    mirrors: tuple[Column, ...] = ()


class Related(Strict):
    """A table that is reached from the instance, one step at a time."""

    name: Name
    table: QualifiedTable
    key: tuple[Column, ...] = Field(min_length=1)
    tenant: Column
    parent: Name = ROOT
    join: dict[Column, Column] = Field(min_length=1, description="this table's column: the parent's column")
    section: Section


class Evidence(Related):
    """A child whose rows belong to one instance: archived with it, and deleted with it."""

    ephemeral: Ephemeral | None = None
    guard: bool = False


class Shared(Related):
    """A table whose rows many instances refer to: archived with each, compared before deletion, never deleted."""

    retention_days: Column | None = None


class Epochs(Strict):
    """Where the platform records when an instance entered a terminal state (W2)."""

    evidence: Name
    ordinal: Column
    state: Column
    at: Column


class Blocker(Strict):
    """Evidence that protects its instance (W3). Whatever is not known to be closed is open."""

    name: BlockerName
    evidence: Name
    column: Column | None = None
    closed: tuple[Value, ...] = ()

    @model_validator(mode="after")
    def _column_and_values_go_together(self) -> Self:
        if (self.column is None) != (not self.closed):
            raise PydanticCustomError("blocker", "`column` and `closed` go together; without both, any row blocks")
        return self


class Recovery(Strict):
    """Dead letters that may be closed by hand, under their fence (G2)."""

    evidence: Name
    key: Column = Field(description="what names one dead letter")
    fence: Column = Field(description="grows whenever somebody else takes it over")
    status: Column
    open: tuple[Value, ...] = Field(min_length=1)
    cancelled: Value = Field(description="the status of what must not be replayed")
    closed_at: Column


class Stores(Strict):
    """Data stores of the platform, to which instances are bound by evidence (W9)."""

    table: QualifiedTable
    key: Column
    tenant: Column
    detached_at: Column
    bindings: Name = Field(description="the evidence that binds instances to stores")
    store: Column = Field(description="the bindings' column that names the store")


class Safety(Strict):
    """How much may change at once without a person's yes (G8, W10)."""

    cooling_off_hours: int = Field(
        default=72, ge=0, le=8760, description="a shortened period has no effect for so long"
    )
    brake_instances: int = Field(default=100, ge=0, description="so many more eligible instances are always allowed")
    brake_share: float = Field(default=0.10, ge=0, le=1, description="of all the tenant's instances, the same")
    blocked_share: float = Field(default=0.05, ge=0, le=1, description="of the due instances, how many may be blocked")


class InstanceDataset(Strict):
    """One dataset of instances that are archived, verified and deleted. The loader sees that its parts fit together."""

    version: Literal[1]
    dataset: Name
    ends: Literal["archive"]
    tenants: Tenants
    root: Root
    epochs: Epochs
    evidence: tuple[Evidence, ...] = Field(min_length=1)
    shared: tuple[Shared, ...] = Field(min_length=1)
    blockers: tuple[Blocker, ...]
    recovery: Recovery | None = None
    stores: Stores | None = None
    safety: Safety = Safety()

    @cached_property
    def by_name(self) -> dict[str, Related]:
        """Every related table by its name in this file."""
        return {t.name: t for t in (*self.evidence, *self.shared)}

    @property
    def policy(self) -> Shared:
        """The shared table that carries the retention period."""
        return next(s for s in self.shared if s.name == self.root.policy)

    @property
    def epoch_table(self) -> Evidence:
        """The evidence table that records terminal epochs."""
        return next(e for e in self.evidence if e.name == self.epochs.evidence)

    def path(self, table: Related) -> Iterator[Related]:
        """The table itself, its parent, and so on up to, but without, the root."""
        step = table
        yield step
        while step.parent != ROOT:
            step = self.by_name[step.parent]
            yield step

    def deletion_order(self) -> tuple[Evidence, ...]:
        """Evidence tables, children before their parents."""
        return tuple(reversed(self.evidence))
