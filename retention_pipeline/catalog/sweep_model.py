"""The words of a sweep's file: which rows end by their own rule, and how (SPEC E, L, J, W4; K1).

A sweep ends in one of three ways. *Clear*: a payload's columns are emptied and the row stays. *Purge*: rows are deleted. *Shelve*:
rows are marked as archived, and can be revived.
"""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from retention_pipeline.catalog.model import Column, Name, QualifiedTable, Strict, Value

DatasetName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,49}$")]
"""A sweep's name; shorter than others, since its job is called `sweep:…`."""

About = Annotated[str, StringConstraints(pattern=r"\S", max_length=2000)]
"""What the people read who browse: one or more sentences."""


class Every(StrEnum):
    """How often a schedule looks."""

    HOUR = "hour"
    DAY = "day"
    DEADLINE = "deadline"


class Purpose(StrEnum):
    """What rows are kept for, which decides how long at least (L2, L5, W4)."""

    LEDGER = "ledger"
    EVIDENCE = "evidence"
    HISTORY = "history"
    REPLAYS = "replays"
    DEAD_LETTERS = "dead_letters"

    @property
    def least_days(self) -> int:
        """No file may say less."""
        return {Purpose.EVIDENCE: 90, Purpose.HISTORY: 365}.get(self, 30)


class SweptTable(Strict):
    """One table that a sweep goes through."""

    name: Name
    table: QualifiedTable
    key: tuple[Column, ...] = Field(min_length=1)
    tenant: Column


class ClearedTable(SweptTable):
    """A table with payloads that their writers may mark as short-lived (E1, E2, E6)."""

    payload: Column
    mirrors: tuple[Column, ...] = Field(default=(), description="older columns with the same content; reset to `{}`")
    marker: Column = Field(description="gets the instant at which the payload expired; tells expired from never there")
    instance: Column | None = Field(default=None, description="the workflow instance's key, where a row has one")


class PurgedTable(SweptTable):
    """A table whose rows go when they are older than so many days of 24 hours (L2, L5, W4)."""

    purpose: Annotated[Purpose, Field(strict=False)]
    age: Column = Field(description="the instant from which the days are counted")
    older_than_days: int = Field(ge=1, le=36500)
    status: Column | None = None
    closed: tuple[Value, ...] = Field(default=(), description="only rows in one of these states go")
    present: Column | None = Field(default=None, description="only rows that have a value here go")
    parent: Name | None = Field(default=None, description="a table above; a row of it goes after the last of its own")
    join: dict[Column, Column] = Field(default={}, description="this table's column: the parent's column")
    instance: Column | None = Field(default=None, description="the workflow instance's key: a hold on it keeps the row")


class Allowed(Strict):
    """Where tenants say whether they may have short-lived payloads (E7)."""

    table: QualifiedTable
    tenant: Column
    name: Column
    value: Column
    setting: Value


class _Sweep(Strict):
    version: Literal[1]
    dataset: DatasetName
    about: About
    every: Annotated[Every, Field(strict=False)]
    hour: int = Field(default=3, ge=0, le=23, description="the hour of the day, in UTC, of a sweep of every day")
    batch: int = Field(ge=1, le=1000, description="rows of one transaction at most")
    batches: int = Field(ge=1, le=1000, description="transactions of one pass over one tenant at most")


class ClearDataset(_Sweep):
    """Payloads that are emptied at their own expiry."""

    ends: Literal["clear"]
    tables: tuple[ClearedTable, ...] = Field(min_length=1)
    allowed: Allowed | None = None
    holds_extend: bool = Field(
        default=False, description="whether a legal hold on the instance keeps its payloads (E7)"
    )


class PurgeDataset(_Sweep):
    """Rows that are deleted by age. Parents stand above their children."""

    ends: Literal["purge"]
    tables: tuple[PurgedTable, ...] = Field(min_length=1)
    history: bool = Field(
        default=False, description="whether the rows are evidence of instances that stay, so that W4 protects them"
    )


class Requests(SweptTable):
    """Requests that wait for somebody (J1, J2)."""

    status: Column
    pending: Value
    company: Column
    invite: Column
    kept_at: Column
    archived_at: Column
    version: Column
    active_at: Column = Field(description="the last activity, from which the days are counted")


class Companies(Strict):
    """Whom a request asks to join."""

    table: QualifiedTable
    key: Column
    tenant: Column
    status: Column
    active: tuple[Value, ...] = Field(min_length=1)


class Invites(Strict):
    """What a request came by."""

    table: QualifiedTable
    key: Column
    tenant: Column
    company: Column


class Trace(Strict):
    """A table that tells people what became of a request: one row for each (J5)."""

    table: QualifiedTable
    tenant: Column
    company: Column
    subject: Column
    what: Column
    actor: Column | None = None


class ShelveDataset(_Sweep):
    """Requests that are archived when nobody acts on them, and that can be revived."""

    ends: Literal["shelve"]
    idle_days: int = Field(ge=90, le=36500)
    requests: Requests
    companies: Companies
    invites: Invites
    activity: Trace
    notifications: Trace

    @property
    def tables(self) -> tuple[SweptTable, ...]:
        """The one table that it goes through."""
        return (self.requests,)


SweepDataset = ClearDataset | PurgeDataset | ShelveDataset
AnySweep = Annotated[SweepDataset, Field(discriminator="ends")]
