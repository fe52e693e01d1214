"""The loop of every sweep, over tables in memory: bounds, a size that adapts, turns, how it ends (SPEC E4, E5, L1, L2, L4, O1; F4, F7)."""

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import pytest

from retention_pipeline.errors import Code, Refused, RetentionError
from retention_pipeline.model.outcome import Outcome
from retention_pipeline.model.people import Approval, SweepJob
from retention_pipeline.model.sweep import Batch, SweepFound, TableFound, Verb
from retention_pipeline.sweeps.loop import Sweep, SweepBounds
from retention_pipeline.sweeps.rounds import in_turn
from retention_pipeline.sweeps.turn import TOO_MANY

NOW = datetime.fromisoformat("2026-06-01T12:00:00+00:00")
TENANT = "t"


def refusal(code):
    return RetentionError(code, "It was refused.", remedy="Nothing.")


@dataclass
class Tables:
    """Rows are numbers in order; some fail whenever a batch has them, some are kept."""

    rows: dict
    poison: set = field(default_factory=set)
    kept: set = field(default_factory=set)
    slow: int | None = None
    broken: dict = field(default_factory=dict)
    places: dict = field(default_factory=dict)
    batches: list = field(default_factory=list)
    aside: list = field(default_factory=list)
    inflow: int = 0
    overdue: float | None = None
    counted: int = 10**6
    verb: Verb = Verb.PURGED

    @property
    def tables(self):
        return tuple(self.rows)

    def look(self, tenant, as_of):
        found = tuple(
            TableFound(
                name=name,
                due=len(set(self.due(name)) & set(self.rows[name][: self.counted])),
                inflow=self.inflow,
                overdue_seconds=self.overdue,
                more=len(self.rows[name]) >= self.counted,
            )
            for name in self.rows
        )
        return SweepFound(tenant=tenant, as_of=as_of, tables=found)

    def due(self, table):
        return [row for row in self.rows[table] if row not in self.kept]

    def place(self, tenant, table):
        return self.places.get(table)

    def ahead(self, table, after):
        return [row for row in self.rows[table] if after is None or row > after]

    def batch(self, turn, after, limit):
        table = turn.table
        page = self.ahead(table, after)[:limit]
        self.batches.append((table, len(page)))
        if table in self.broken:
            raise refusal(self.broken[table])
        if self.slow is not None and len(page) > self.slow:
            raise refusal(Code.DATABASE_TIMEOUT)
        if self.poison & set(page) - set(self.aside):
            raise refusal(Code.DATABASE_REFUSED)
        gone = [row for row in page if row not in self.kept and row not in self.aside]
        self.rows[table] = [row for row in self.rows[table] if row not in gone]
        place = page[-1] if page else None
        if place is not None:
            self.places[table] = place
        return Batch(done=len(gone), passed=len(page) - len(gone), place=place, last=len(page) < limit)

    def rewind(self, tenant, table):
        self.places.pop(table, None)

    def pass_by(self, turn, after, code):
        ahead = self.ahead(turn.table, after)
        if not ahead:
            return None
        self.aside.append(ahead[0])
        self.places[turn.table] = ahead[0]
        return ahead[0]


@dataclass
class Ledger:
    """Leases, approvals and outcomes of one process."""

    free: bool = True
    most: int = 10**6
    previous: int | None = None
    finished: list = field(default_factory=list)
    kept: int = 0

    def now(self, tenant):
        return NOW

    def take_lease(self, tenant, job, holder):
        if not self.free:
            return None
        self.free = False
        return 1

    def keep_lease(self, tenant, job, holder, fence):
        self.kept += 1

    def drop_lease(self, tenant, job, holder, fence):
        self.free = True

    def use_approval(self, tenant, approval, job, run, subject):
        if approval != "good":
            raise Refused(Code.APPROVAL_INVALID, "It is not good.", remedy="Ask for one.")
        return Approval(id="good", tenant=tenant, job=job, actor="ann", max_items=self.most, expires_at=NOW)

    def previous_backlog(self, tenant, job):
        return self.previous

    def finish(self, report, begun):
        self.finished.append(report)


def sweep(tables, ledger=None, *, batch=100, batches=1000, **more):
    ledger = ledger or Ledger()
    bounds = {name: more.pop(name) for name in ("seconds", "behind_after", "passes_a_day") if name in more}
    asked = {"apply": True, "approval": "good", **more}
    return Sweep(
        source=ledger,
        records=ledger,
        sweeper=tables,
        dataset="d",
        tenant=TENANT,
        run="r",
        bounds=SweepBounds(batch=batch, batches=batches, **bounds),
        **asked,
    )()


def test_everything_that_is_due_goes_and_the_next_run_begins_at_the_beginning():
    tables, ledger = Tables(rows={"a": list(range(550))}), Ledger()
    result = sweep(tables, ledger)
    assert (result.report.outcome, result.report.reason, result.report.counts.purged) == (
        Outcome.COMPLETED,
        "exhausted",
        550,
    )
    assert tables.rows == {"a": []}
    assert tables.places == {}
    assert ledger.free
    assert ledger.finished == [result.report]
    assert result.report.job == SweepJob.of("d")


@pytest.mark.parametrize("poison", [0, 1, 500, 998])
def test_one_row_among_999_that_always_fails_is_set_aside_and_all_others_go(poison):
    """F7: wherever it stands, first in line too; and the run is not green."""
    tables = Tables(rows={"a": list(range(999))}, poison={poison})
    result = sweep(tables)
    assert tables.rows["a"] == tables.aside == [poison]
    assert result.report.outcome is Outcome.PARTIAL
    assert not result.report.outcome.green
    assert result.report.counts.failures == {"RETENTION_DATABASE_REFUSED": 1}
    assert result.report.counts.purged == 998


def test_a_batch_that_is_too_slow_is_halved_until_it_goes_through_and_grows_again():
    """F4, E4: what a database can carry is found, not configured."""
    tables = Tables(rows={"a": list(range(300))}, slow=30)
    result = sweep(tables)
    assert result.report.outcome is Outcome.COMPLETED
    assert tables.rows["a"] == []
    assert tables.aside == []
    sizes = [size for _, size in tables.batches]
    assert sizes[:3] == [100, 50, 25]
    assert sizes[3:6] == [50, 25, 50]  # it tries the double after each that went through


def test_so_many_failures_in_a_row_are_no_rows_doing():
    """F7: a table whose every row fails is given up after a few, and not walked through for hours."""
    tables = Tables(rows={"a": list(range(50)), "b": [1]}, poison=set(range(2, 50)) - {1})
    result = sweep(tables)
    assert len(tables.aside) == TOO_MANY
    assert result.tables["a"].failed is Code.DATABASE_REFUSED
    assert result.report.outcome is Outcome.PARTIAL
    assert tables.rows["b"] == []


def test_failures_that_are_not_in_a_row_give_nothing_up():
    poison = set(range(0, 60, 6))
    tables = Tables(rows={"a": list(range(60))}, poison=poison)
    result = sweep(tables, batch=4)
    assert set(tables.rows["a"]) == poison
    assert result.tables["a"].failed is None


def test_one_tables_failure_does_not_stop_the_other_and_shows():
    """E5."""
    tables = Tables(rows={"a": [1, 2], "b": [1, 2]}, broken={"a": Code.SOURCE_CHANGED})
    tables.broken["a"] = Code.CATALOG_INVALID
    result = sweep(tables)
    assert (tables.rows["a"], tables.rows["b"]) == ([1, 2], [])
    assert result.report.outcome is Outcome.PARTIAL
    assert result.report.counts.failures == {"RETENTION_CATALOG_INVALID": 1}


def test_a_run_in_which_every_table_failed_has_failed():
    """O1."""
    tables = Tables(rows={"a": [1], "b": [1]}, broken=dict.fromkeys("ab", Code.CATALOG_INVALID))
    assert sweep(tables).report.outcome is Outcome.FAILED


@pytest.mark.parametrize("code", [Code.DATABASE_UNAVAILABLE, Code.LEASE_LOST, Code.APPROVAL_INVALID])
def test_what_concerns_the_whole_run_ends_it(code):
    tables, ledger = Tables(rows={"a": [1], "b": [1]}, broken={"a": code}), Ledger()
    result = sweep(tables, ledger)
    assert (result.report.outcome, result.report.reason) == (Outcome.FAILED, code)
    assert tables.rows["b"] == [1]
    assert ledger.free


def test_tables_take_turns_so_that_a_large_one_starves_no_other():
    """E4, L1."""
    tables = Tables(rows={"a": list(range(1000)), "b": list(range(20))})
    result = sweep(tables, batch=10, batches=6)
    assert [name for name, _ in tables.batches] == list("ababab")
    assert tables.rows["b"] == []
    assert (result.report.outcome, result.report.reason) == (Outcome.WORK_REMAINS, "batch_bound")


@pytest.mark.parametrize(
    ("bounds", "most", "gone", "reason"),
    [
        ({"batch": 10, "batches": 3}, 10**6, 30, "batch_bound"),
        ({"batch": 10, "batches": 3}, 30, 30, "batch_bound"),
        ({"batch": 10, "batches": 3}, 19, 19, "approval_bound"),
        ({"batch": 10, "batches": 3}, 1, 1, "approval_bound"),
    ],
)
def test_a_pass_ends_no_more_than_the_catalog_and_the_approval_allow(bounds, most, gone, reason):
    """L2, G4."""
    tables = Tables(rows={"a": list(range(100))})
    result = sweep(tables, Ledger(most=most), **bounds)
    assert (result.report.counts.purged, result.report.reason) == (gone, reason)
    assert len(tables.rows["a"]) == 100 - gone


def test_the_last_batch_that_the_bounds_allow_may_have_been_the_last_needed():
    """O1: a bound that kept nothing from being done is no reason."""
    result = sweep(Tables(rows={"a": list(range(30))}), batch=10, batches=3)
    assert (result.report.outcome, result.report.reason) == (Outcome.COMPLETED, "exhausted")


def test_no_batch_is_begun_after_its_time():
    """L1: time is told by a clock of the test's own; each batch takes 40 seconds of it."""
    ticks = iter(range(0, 100_000, 10))
    tables, ledger = Tables(rows={"a": list(range(1000))}), Ledger()
    result = sweep(tables, ledger, batch=1, seconds=300.0, stopwatch=lambda: next(ticks))
    assert (result.report.outcome, result.report.reason) == (Outcome.WORK_REMAINS, "time_bound")
    assert 0 < result.report.counts.purged < 30
    assert ledger.kept > 0  # a long run keeps its lease


def test_a_stop_finishes_the_batch_in_hand_and_begins_no_other():
    """E5."""
    tables = Tables(rows={"a": list(range(100))})
    result = sweep(tables, batch=10, stopping=lambda: len(tables.batches) == 2)
    assert (result.report.counts.purged, result.report.reason) == (20, "stopped")
    assert result.report.outcome is Outcome.WORK_REMAINS


def test_the_next_pass_goes_on_behind_the_last_and_comes_round_to_what_lies_before():
    """L1: the saved place; what became due meanwhile before it is not forgotten."""
    tables = Tables(rows={"a": list(range(100))})
    sweep(tables, batch=10, batches=3)
    assert tables.places == {"a": 29}
    tables.rows["a"] = [-1, *tables.rows["a"]]
    tables.batches.clear()
    result = sweep(tables, batch=10)
    assert tables.rows["a"] == []
    assert result.report.outcome is Outcome.COMPLETED


def test_rows_that_stay_are_passed_once_and_never_in_a_circle():
    """F4: a thousand held rows first in line keep nothing behind them from going, and cost one walk."""
    tables = Tables(rows={"a": list(range(1100))}, kept=set(range(1000)))
    result = sweep(tables, batch=100)
    assert tables.rows["a"] == list(range(1000))
    assert result.report.outcome is Outcome.COMPLETED
    assert len(tables.batches) <= 2 * 12


@pytest.mark.parametrize(("batches", "outcome"), [(4, Outcome.WORK_REMAINS), (20, Outcome.COMPLETED)])
def test_a_look_that_sees_only_rows_that_stay_does_not_call_the_rest_done(batches, outcome):
    """O1: the first forty are kept, and a look counts no more; only a pass that went through all of them knows."""
    tables = Tables(rows={"a": list(range(60))}, kept=set(range(40)), counted=40)
    result = sweep(tables, batch=10, batches=batches)
    assert result.report.backlog == 0
    assert (result.report.outcome, len(tables.rows["a"])) == (outcome, 60 if batches == 4 else 40)
    assert result.report.reason == ("batch_bound" if batches == 4 else "exhausted")


def test_what_an_approval_allows_is_what_a_day_can_carry():
    """O1, G4: the file says 100 rows a pass, the approval 10."""
    tables = Tables(rows={"a": list(range(100))}, inflow=240)
    assert sweep(tables, Ledger(most=10), batch=10, batches=10, passes_a_day=24).report.outcome is Outcome.WORK_REMAINS
    tables = Tables(rows={"a": list(range(100))}, inflow=241)
    assert sweep(tables, Ledger(most=10), batch=10, batches=10, passes_a_day=24).report.outcome is Outcome.BEHIND


def test_a_preflight_counts_and_changes_nothing():
    tables, ledger = Tables(rows={"a": [1, 2, 3]}), Ledger()
    result = sweep(tables, ledger, apply=False, approval=None)
    assert (result.report.outcome, result.report.backlog) == (Outcome.PREFLIGHT, 3)
    assert (tables.rows, tables.batches) == ({"a": [1, 2, 3]}, [])


@pytest.mark.parametrize("approval", [None, "bad"])
def test_nothing_is_applied_without_a_good_approval(approval):
    """G4."""
    tables, ledger = Tables(rows={"a": [1]}), Ledger()
    with pytest.raises(Refused):
        sweep(tables, ledger, approval=approval)
    assert tables.batches == []
    assert ledger.free


def test_an_instant_in_the_future_is_only_looked_at():
    tables = Tables(rows={"a": [1]})
    assert sweep(tables, apply=False, as_of=NOW + timedelta(days=1)).report.outcome is Outcome.PREFLIGHT
    with pytest.raises(Refused, match="RETENTION_AS_OF_IN_FUTURE"):
        sweep(tables, as_of=NOW + timedelta(microseconds=1))
    assert sweep(tables, as_of=NOW).report.outcome is Outcome.COMPLETED


def test_a_second_run_of_the_same_tenant_is_skipped_with_its_reason():
    """O1: skipped is not done, and says why."""
    tables = Tables(rows={"a": [1]})
    result = sweep(tables, Ledger(free=False))
    assert (result.report.outcome, result.report.reason) == (Outcome.SKIPPED, Code.RUN_OVERLAPS)
    assert tables.rows == {"a": [1]}


@pytest.mark.parametrize(
    ("facts", "ledger", "more", "outcome"),
    [
        ({}, {}, {}, Outcome.WORK_REMAINS),
        ({}, {"previous": 90}, {}, Outcome.WORK_REMAINS),
        ({}, {"previous": 89}, {}, Outcome.BEHIND),
        ({"overdue": 7 * 86400.0}, {}, {}, Outcome.WORK_REMAINS),
        ({"overdue": 7 * 86400.0 + 0.001}, {}, {}, Outcome.BEHIND),
        ({"inflow": 240}, {}, {"passes_a_day": 24}, Outcome.WORK_REMAINS),
        ({"inflow": 241}, {}, {"passes_a_day": 24}, Outcome.BEHIND),
    ],
)
def test_what_a_day_can_not_carry_is_behind_and_not_green(facts, ledger, more, outcome):
    """O1, L1: the backlog grows, the oldest is too old, or more falls due than all passes of a day end."""
    tables = Tables(rows={"a": list(range(100))}, **facts)
    result = sweep(tables, Ledger(**ledger), batch=10, batches=1, **more)
    assert result.report.outcome is outcome
    assert result.report.backlog == 90
    assert result.report.forecast_runs == 9


def test_each_tenant_gets_its_turn():
    """L1: whoever was last comes last, whether or not they have work today."""
    assert in_turn("cab", None) == ("a", "b", "c")
    assert in_turn("cab", "b") == ("c", "a", "b")
    assert in_turn("ca", "b") == ("c", "a")
    assert in_turn("abc", "c") == ("a", "b", "c")
    assert in_turn((), "c") == ()
    last, turns = None, Counter()
    for _ in range(30):  # each pass has time for two of five
        for tenant in in_turn("abcde", last)[:2]:
            turns[tenant], last = turns[tenant] + 1, tenant
    assert set(turns.values()) == {12}
