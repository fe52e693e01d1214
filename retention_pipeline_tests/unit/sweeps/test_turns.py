"""The loop of every sweep when things go wrong around it: laps, tables that fail in odd places, any mess (SPEC E5, L2, L5, O1; F4, F7)."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retention_pipeline.errors import Code
from retention_pipeline.model.outcome import Outcome
from retention_pipeline.model.sweep import SweepFound
from retention_pipeline_tests.unit.sweeps.test_loop import Ledger, Tables, refusal, sweep


@dataclass
class Families(Tables):
    """Parents stay until the last of their children is gone; a parent and its child have one number."""

    def batch(self, turn, after, limit):
        self.kept = set(self.rows["children"]) if turn.table == "parents" else set()
        return super().batch(turn, after, limit)


@dataclass
class Stumbling(Tables):
    """One call about table `a` fails beside its batches: whatever the call is, it is about that table."""

    call: str = ""
    code: Code = Code.DATABASE_TIMEOUT

    def _stumble(self, call, table):
        if (call, table) == (self.call, "a"):
            raise refusal(self.code)

    def place(self, tenant, table):
        self._stumble("place", table)
        return super().place(tenant, table)

    def rewind(self, tenant, table):
        self._stumble("rewind", table)
        super().rewind(tenant, table)

    def pass_by(self, turn, after, code):
        self._stumble("pass_by", turn.table)
        return super().pass_by(turn, after, code)


@dataclass
class Ghost(Tables):
    """Its batches fail, and when asked for the row that did it there is none."""

    def pass_by(self, turn, after, code):
        return None


@dataclass
class Unread(Tables):
    """One table can't be looked at."""

    unread: dict = field(default_factory=dict)

    def look(self, tenant, as_of):
        found = super().look(tenant, as_of)
        seen = tuple(table for table in found.tables if table.name not in self.unread)
        return SweepFound(tenant=tenant, as_of=as_of, tables=seen, unread=self.unread)


def test_parents_that_were_passed_go_in_a_further_lap_and_in_the_same_run():
    """L5, E4: their turn came before the last of their children was gone."""
    families = Families(rows={"parents": list(range(40)), "children": list(range(40))})
    result = sweep(families, batch=10)
    assert (result.report.outcome, families.rows) == (Outcome.COMPLETED, {"parents": [], "children": []})
    assert result.report.counts.purged == 80


def test_a_lap_that_freed_nothing_is_the_last():
    """F4: rows that stay are not gone round for ever while another table has work."""
    tables = Tables(rows={"a": list(range(30)), "b": list(range(30, 60))}, kept=set(range(30)))
    assert sweep(tables, batch=10).report.outcome is Outcome.COMPLETED
    assert [name for name, size in tables.batches if size].count("a") <= 2 * 3


@pytest.mark.parametrize("call", ["pass_by", "rewind"])
def test_a_table_that_fails_beside_its_batches_does_not_stop_the_other(call):
    """E5: asking for the row that failed, and going back to the beginning, is as much its own as its batches are."""
    tables = Stumbling(rows={"a": list(range(5)), "b": list(range(5, 25))}, poison={0}, call=call)
    result = sweep(tables, batch=10)
    assert tables.rows["b"] == []
    assert result.tables["a"].failed is Code.DATABASE_TIMEOUT
    assert result.tables["b"].failed is None
    assert result.report.outcome is Outcome.PARTIAL


@pytest.mark.parametrize("call", ["place", "pass_by", "rewind"])
def test_a_database_that_is_gone_ends_the_run_wherever_it_is_noticed(call):
    """O1: no further table is tried of a database that does not answer."""
    tables = Stumbling(rows={"a": [0], "b": [1]}, poison={0}, call=call, code=Code.DATABASE_UNAVAILABLE)
    ledger = Ledger()
    report = sweep(tables, ledger, batch=1).report
    assert (report.outcome, report.reason) == (Outcome.FAILED, Code.DATABASE_UNAVAILABLE)
    assert ledger.free


def test_a_table_that_was_busy_once_and_has_nothing_to_do_has_not_failed():
    """O1: only its first batch failed, and the next one saw that it is empty; the other table's work met the bound."""
    tables = Tables(rows={"a": [], "b": list(range(100))}, broken={"a": Code.DATABASE_TIMEOUT})
    result = sweep(tables, batch=10, batches=6, progress=lambda _: tables.broken.clear())
    assert result.tables["a"].failed is None
    assert (result.report.outcome, result.report.reason) == (Outcome.WORK_REMAINS, "batch_bound")


def test_a_failure_for_which_there_is_no_row_is_its_tables():
    """F7: nothing is set aside that does not exist, and nobody tries for ever."""
    tables = Ghost(rows={"a": [1, 2], "b": [3]}, broken={"a": Code.INTERNAL})
    result = sweep(tables, batch=4)
    assert (result.tables["a"].failed, result.tables["a"].aside) == (Code.INTERNAL, {})
    assert (tables.rows, result.report.outcome) == ({"a": [1, 2], "b": []}, Outcome.PARTIAL)


@pytest.mark.parametrize("bounds", [{"batches": 3}, {"batches": 1000, "seconds": 100.0}])
def test_a_run_of_which_every_batch_failed_is_not_green(bounds):
    """F4: its bound came before the row or the size was found that goes through, so nothing went, and that shows."""
    ticks = iter(range(0, 100_000, 10))
    tables = Tables(rows={"a": list(range(1000))}, slow=0)
    result = sweep(tables, batch=1000, stopwatch=lambda: next(ticks), **bounds)
    assert result.report.reason in {"batch_bound", "time_bound"}
    assert result.report.counts.purged == 0
    assert result.report.outcome is Outcome.FAILED
    assert result.report.counts.failures == {"RETENTION_DATABASE_TIMEOUT": 1}


def test_a_run_that_looked_for_its_size_and_went_on_is_as_green_as_any():
    """E4, O1: the last batch was one too large, those before it went through."""
    tables = Tables(rows={"a": list(range(300))}, slow=30)
    result = sweep(tables, batch=100, batches=5)
    assert [size for _, size in tables.batches] == [100, 50, 25, 50, 25]
    assert (result.report.outcome, result.report.counts.failures) == (Outcome.WORK_REMAINS, {})


@pytest.mark.parametrize("apply", [True, False])
def test_a_table_that_cannot_be_looked_at_is_not_passed_over_in_silence(apply):
    """E5, O1: nothing due among those that could be read is not nothing due."""
    tables = Unread(rows={"a": [], "b": []}, unread={"a": Code.PERMISSION_DENIED})
    result = sweep(tables, apply=apply, approval="good" if apply else None)
    assert result.report.outcome is Outcome.PARTIAL
    assert not result.report.outcome.green


def test_a_run_that_is_skipped_leaves_the_approval_unused():
    """G4, G7: whoever comes second may use it when the first is done."""
    ledger, used = Ledger(free=False), []
    ledger.use_approval = lambda *_: used.append(True)
    assert sweep(Tables(rows={"a": [1]}), ledger).report.outcome is Outcome.SKIPPED
    assert used == []
    assert not ledger.free  # the lease is the other's still


def test_a_stop_that_came_before_the_first_batch_begins_none():
    """E5."""
    tables = Tables(rows={"a": [1, 2]})
    result = sweep(tables, stopping=lambda: True)
    assert (tables.batches, result.report.reason, result.report.outcome) == ([], "stopped", Outcome.WORK_REMAINS)


@st.composite
def messes(draw):
    """Up to three tables, with rows that fail, rows that stay, and a size beyond which the database gives up."""
    numbers = draw(st.lists(st.integers(0, 200), unique=True, max_size=60))
    rows = {name: sorted(numbers[at::3]) for at, name in enumerate(draw(st.sampled_from(["a", "ab", "abc"])))}
    some = st.sets(st.sampled_from(numbers), max_size=8) if numbers else st.just(set())
    return Tables(rows=rows, poison=draw(some), kept=draw(some), slow=draw(st.sampled_from([None, 1, 2, 5])))


@settings(max_examples=200, deadline=None)
@given(messes(), st.integers(1, 8), st.integers(1, 40), st.integers(1, 60))
def test_whatever_the_mess_is_a_run_keeps_its_bounds_and_tells_the_truth(tables, batch, batches, most):
    """L2, G4, O1: never more rows or transactions than allowed, and nothing is called complete that is not."""
    before = {row for rows in tables.rows.values() for row in rows}
    may_go = before - tables.kept - tables.poison
    result = sweep(tables, Ledger(most=most), batch=batch, batches=batches)
    gone = before - {row for rows in tables.rows.values() for row in rows}
    assert gone <= may_go
    assert len(gone) == result.report.counts.purged == sum(table.done for table in result.tables.values())
    assert len(gone) <= min(most, batch * batches)
    assert len(tables.batches) <= batches
    assert all(size <= batch for _, size in tables.batches)
    assert len(set(tables.aside)) == len(tables.aside)
    assert set(tables.aside) <= tables.poison
    if result.report.outcome is Outcome.COMPLETED:
        assert gone == before - tables.kept
    if result.report.reason == "exhausted" and not any(table.failed for table in result.tables.values()):
        assert gone == may_go


@settings(max_examples=200, deadline=None)
@given(messes(), st.integers(1, 8), st.integers(1, 60))
def test_whatever_the_mess_is_runs_one_after_another_end_all_that_can_go(tables, batch, most):
    """F4, F7: each run goes on where the last one stopped, and no row keeps another from going."""
    before = {row for rows in tables.rows.values() for row in rows}
    for _ in range(80):
        sweep(tables, Ledger(most=most), batch=batch, batches=15)
    left = {row for rows in tables.rows.values() for row in rows}
    assert left == before & (tables.kept | tables.poison)
