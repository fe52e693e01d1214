"""One table's turns in a sweep: its place, a size that adapts, and what fails alone (SPEC E4, F7)."""

from dataclasses import dataclass, field
from typing import Final

from retention_pipeline.errors import Code, RetentionError
from retention_pipeline.model.sweep import Batch, Place, Sweeper, TableDone, Turn

TOO_MANY: Final = 5
"""After so many rows in a row that fail alone, the rest of their table is not tried in this run."""

ALONE: Final = frozenset({Code.DATABASE_TIMEOUT, Code.DATABASE_REFUSED, Code.SOURCE_CHANGED, Code.INTERNAL})
"""Failures that one row can cause; any other is its table's, or the whole run's."""

WHOLE_RUN: Final = frozenset({Code.DATABASE_UNAVAILABLE, Code.APPROVAL_INVALID, Code.LEASE_LOST})
"""Failures after which no other table is tried."""


@dataclass(slots=True, kw_only=True)
class TableTurn:
    """Goes through one table, a transaction at a time.

    Args:
        largest: rows of one transaction at most.
        done: what is told of it afterwards.
        over: whether this lap has come to the table's end, or the table was given up.
    """

    sweeper: Sweeper
    turn: Turn
    largest: int
    done: TableDone
    over: bool = False
    _size: int = field(init=False)
    _place: Place | None = field(init=False)
    _midway: bool = field(init=False)
    _passed: int = 0
    _failures: int = 0
    _failing: Code | None = None

    def __post_init__(self) -> None:
        self._size = self.largest
        self._place = self.sweeper.place(self.turn.tenant, self.turn.table)
        self._midway = self._place is not None

    def step(self, most: int) -> int:
        """One transaction over at most `most` rows; gives how many ended.

        Raises:
            RetentionError: of `WHOLE_RUN`; any other failure is this table's, and is told in `done`.
        """
        before = self.done.done
        try:
            self._batch(most)
        except RetentionError as error:  # beside the batch: of what follows it
            if error.code in WHOLE_RUN:
                raise
            self._give_up(error.code)
        return self.done.done - before

    def leave(self) -> None:
        """A bound ends the run. Where nothing went through before it and batches failed, the table failed, and that shows (F4)."""
        if self._failing is not None and not (self.done.done or self.done.passed or self.done.aside):
            self._give_up(self._failing)

    def again(self, *, others_progressed: bool) -> bool:
        """Begin another lap where one makes sense: the last began midway, or rows that were passed may be free by now."""
        if self.done.failed is not None or not (self._midway or (self._passed and others_progressed)):
            return False
        self._place, self._midway, self._passed, self.over = None, False, 0, False
        return True

    def _batch(self, most: int) -> None:
        try:
            batch = self.sweeper.batch(self.turn, self._place, min(self._size, most))
        except RetentionError as error:
            if error.code in WHOLE_RUN:
                raise
            self._fail(error.code)
        else:
            self._went_through(batch)

    def _went_through(self, batch: Batch) -> None:
        self.done.done += batch.done
        self.done.passed += batch.passed
        self._passed += batch.passed
        self._failures, self._failing = 0, None
        self._size = min(self.largest, self._size * 2)
        self._place = batch.place or self._place
        if batch.last:
            self.sweeper.rewind(self.turn.tenant, self.turn.table)
            self.over = True

    def _fail(self, code: Code) -> None:
        self._failing = code
        if code not in ALONE:
            self._give_up(code)
        elif self._size > 1:
            self._size //= 2
        elif (behind := self.sweeper.pass_by(self.turn, self._place, code)) is None:
            self._give_up(code)  # not a row's doing: there is none
        else:
            self.done.aside[code] = self.done.aside.get(code, 0) + 1
            self._place = behind
            self._failures += 1
            if self._failures >= TOO_MANY:
                self._give_up(code)

    def _give_up(self, code: Code) -> None:
        self.done.failed = code
        self.over = True
