"""A promised run that does not come is told, on both sides of its time; one with nothing to do is not (SPEC O2)."""

from datetime import datetime, timedelta

import pytest

from retention_pipeline.model.promises import Promise, Trouble, broken

NOW = datetime.fromisoformat("2026-06-01T12:00:00+00:00")
DAY = timedelta(hours=26)
BIT = timedelta(microseconds=1)


def promise(**more):
    facts = {
        "tenant": "t",
        "job": "reconcile",
        "since": NOW - timedelta(days=30),
        "until": NOW + timedelta(days=60),
        "did_at": NOW - timedelta(hours=1),
        "tried_at": NOW - timedelta(hours=1),
        "outcome": "completed",
        "reason": "exhausted",
    }
    return Promise(**{**facts, **more})


def trouble(found, *, work=True):
    answer = broken([found], NOW, within=lambda _: DAY, has_work=lambda _: work)
    return [(one.trouble, one.at) for one in answer]


@pytest.mark.parametrize(
    ("did_at", "expected"),
    [(NOW - DAY, []), (NOW - DAY - BIT, [(Trouble.NOT_RUN, NOW - BIT)])],
)
def test_a_run_is_late_one_microsecond_after_its_time(did_at, expected):
    assert trouble(promise(did_at=did_at, tried_at=did_at)) == expected


@pytest.mark.parametrize(
    ("since", "expected"),
    [(NOW - DAY, []), (NOW - DAY - BIT, [(Trouble.NOT_RUN, NOW - BIT)])],
)
def test_a_promise_that_was_never_kept_counts_from_when_it_was_given(since, expected):
    assert trouble(promise(since=since, did_at=None, tried_at=None, outcome=None)) == expected


def test_an_approval_that_was_renewed_after_a_gap_gives_time_again():
    assert trouble(promise(since=NOW - BIT, did_at=NOW - timedelta(days=40))) == []


@pytest.mark.parametrize("outcome", ["failed", "blocked", "skipped", "preflight"])
def test_runs_that_came_and_did_not_do_it_are_told_as_such(outcome):
    """O1, O2: a schedule that is green for a year and only counts."""
    found = promise(did_at=NOW - timedelta(days=9), tried_at=NOW - timedelta(hours=1), outcome=outcome)
    assert trouble(found) == [(Trouble.NOT_DONE, NOW - timedelta(days=9) + DAY)]


def test_where_there_is_nothing_to_do_nothing_is_late():
    assert trouble(promise(did_at=NOW - timedelta(days=9)), work=False) == []


@pytest.mark.parametrize(
    ("until", "expected"),
    [
        (NOW + timedelta(days=7) + BIT, []),
        (NOW + timedelta(days=7), [(Trouble.ENDING, NOW + timedelta(days=7))]),
        (NOW + BIT, [(Trouble.ENDING, NOW + BIT)]),
    ],
)
def test_an_approval_that_ends_is_told_a_week_before(until, expected):
    assert trouble(promise(until=until)) == expected
    assert not Trouble.ENDING.late


def test_an_approval_that_ended_is_late_whatever_is_due():
    ended = NOW - timedelta(days=3)
    assert trouble(promise(since=None, until=ended), work=False) == [(Trouble.LAPSED, ended)]
    assert Trouble.LAPSED.late
