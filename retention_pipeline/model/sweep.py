"""Rows that end by a rule of their own, as values: what is due, one batch, and the port of the three verbs (SPEC E, L, J, W4)."""

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import NewType, Protocol

from retention_pipeline.errors import Code
from retention_pipeline.model.ids import TenantId
from retention_pipeline.model.people import Approval

Place = NewType("Place", str)
"""Where a sweep stands in a table: instant and key of the last row that it looked at, as the database wrote them."""

COUNTED: int = 200_000
"""How many due rows of one table are counted at most: a preflight reads no table whole."""


NOTICED: int = 10_000
"""How many rows of one table that look wrong are counted at most, by what is wrong: they are for a person, who starts with the first."""


class Verb(StrEnum):
    """How a row ends."""

    CLEARED = "cleared"
    PURGED = "purged"
    SHELVED = "shelved"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFound:
    """What a look at one table found.

    Args:
        due: rows that may go now; at most `COUNTED`, and those that wait after a failure among them.
        overdue_seconds: how long the oldest of them has been due; None where there is none.
        kept: rows that are over their time and stay, by the reason.
        inflow: rows that fall due within the next 24 hours, at most `COUNTED`; None where nobody knows.
        findings: rows that look wrong, by what is wrong, at most `NOTICED`; they stay too.
        more: whether there may be rows over their time beyond those that were counted, so that `due` is a part of them.
    """

    name: str
    due: int
    overdue_seconds: float | None = None
    kept: dict[str, int] = field(default_factory=dict)
    inflow: int | None = None
    findings: dict[str, int] = field(default_factory=dict)
    more: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepFound:
    """What a look at all tables of one sweep found, for one tenant, as of one instant.

    Args:
        unread: tables that could not be looked at, by the code of why.
    """

    tenant: TenantId
    as_of: datetime
    tables: tuple[TableFound, ...]
    unread: dict[str, Code] = field(default_factory=dict)

    @property
    def due(self) -> int:
        """Rows that may go now."""
        return sum(table.due for table in self.tables)

    @property
    def more(self) -> bool:
        """Whether more rows may be due than were counted."""
        return any(table.more for table in self.tables)

    @property
    def overdue_seconds(self) -> float | None:
        """How long the oldest has been due."""
        return max((t.overdue_seconds for t in self.tables if t.overdue_seconds is not None), default=None)

    @property
    def inflow(self) -> int | None:
        """Rows that fall due within the next 24 hours."""
        known = [table.inflow for table in self.tables if table.inflow is not None]
        return sum(known) if known else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One table's turn in a run: whose rows, as of when, by whose yes."""

    tenant: TenantId
    table: str
    as_of: datetime
    approval: Approval
    run: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What one transaction did.

    Args:
        done: rows that ended.
        passed: rows that were looked at and stay.
        place: behind the last row that was looked at; None where there was none.
        last: whether there was no further row.
    """

    done: int
    passed: int
    place: Place | None
    last: bool


@dataclass(slots=True, kw_only=True)
class TableDone:
    """What one run did in one table, filled batch by batch.

    Args:
        done: rows that ended.
        passed: rows that were looked at and stay.
        aside: rows that failed alone, by code.
        failed: why the rest of the table was given up, if it was.
    """

    done: int = 0
    passed: int = 0
    aside: dict[str, int] = field(default_factory=dict)
    failed: Code | None = None


class Sweeper(Protocol):
    """One verb over the tables of one sweep, one tenant and one transaction at a time; `postgres` implements it.

    A batch ends the rows, saves the place behind them and leaves its receipt in one transaction: killed anywhere, each row is
    handled once, and the next run goes on from the place that was saved. It skips rows that somebody else has locked.
    """

    @property
    def verb(self) -> Verb:
        """What becomes of the rows."""
        ...

    @property
    def tables(self) -> tuple[str, ...]:
        """The tables in the order in which they are swept, children before their parents."""
        ...

    def look(self, tenant: TenantId, as_of: datetime) -> SweepFound:
        """Count what is due and what keeps the rest, and change nothing; one unreadable table hides no other (E5)."""
        ...

    def place(self, tenant: TenantId, table: str) -> Place | None:
        """Where the last batch of this table stopped; None is the beginning."""
        ...

    def batch(self, turn: Turn, after: Place | None, limit: int) -> Batch:
        """Look at the next rows, at most `limit`, in their order, and end those that may go."""
        ...

    def rewind(self, tenant: TenantId, table: str) -> None:
        """The table was gone through to its end: the next batch begins at the beginning."""
        ...

    def pass_by(self, turn: Turn, after: Place | None, code: Code) -> Place | None:
        """Set the next row aside, which failed alone, with a back-off; gives the place behind it, None where there is none (F7)."""
        ...
