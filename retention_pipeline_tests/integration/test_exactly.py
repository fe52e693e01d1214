"""A sweep ends exactly what its rule names: whatever the rows are, however small its batches, wherever it was stopped (SPEC L2, L5, G1).

The rule is said a second time here, in a few lines of Python; the database is the product's.
"""

from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retention_pipeline.model.outcome import Outcome
from retention_pipeline_tests.databases import template
from retention_pipeline_tests.rows import new_id
from retention_pipeline_tests.sweeping import NOW, Broom, module_database, shared

__all__ = ["module_database", "shared", "template"]

SWEEP = "job_evidence"
CUT = NOW - timedelta(hours=24 * 90)
BIT = timedelta(microseconds=1)
CLOSED = {"succeeded", "failed", "cancelled"}
INSTANTS = st.sampled_from([CUT, CUT - BIT, CUT + BIT, CUT - timedelta(days=400), NOW, "infinity", "-infinity"])


@dataclass
class Job:
    """A job as the test made it: with its evidence, and with the instance that it names, if it does."""

    status: str
    finished: datetime | str | None
    instance: str | None
    outcomes: list
    key: str = field(default_factory=new_id)

    def __post_init__(self):
        self.evidence = {new_id(): at for at in self.outcomes}


JOBS = st.lists(
    st.builds(
        Job,
        status=st.sampled_from(["queued", "running", *sorted(CLOSED)]),
        finished=st.one_of(INSTANTS, st.none()),
        instance=st.sampled_from([None, "free", "held", "released"]),
        outcomes=st.lists(INSTANTS, max_size=3),
    ),
    max_size=14,
)


def over(at):
    return isinstance(at, datetime) and at < CUT


def must_go(jobs):
    """Evidence of a closed job that nothing holds, when it is over; such a job, when it is over and none of its evidence stays."""
    gone = set()
    for job in jobs:
        if job.status not in CLOSED or job.instance == "held":
            continue
        gone |= {key for key, at in job.evidence.items() if over(at)}
        if over(job.finished) and gone.issuperset(job.evidence):
            gone.add(job.key)
    return gone


def write(platform, jobs):
    instances = {name: platform.add(state="running", epochs=(), contexts=0) for name in ("free", "held", "released")}
    for name in ("held", "released"):
        platform.hold(instances[name])
    platform.hold(instances["released"], action="release")
    for job in jobs:
        platform.run(
            "INSERT INTO nucleus.jobs (id, tenant_id, instance_id, kind, status, created_at, finished_at)"
            " VALUES (%s, %s, %s, 'k', %s, '2020-01-01Z', %s)",
            job.key,
            platform.tenant,
            instances.get(job.instance or ""),
            job.status,
            job.finished,
        )
        for key, at in job.evidence.items():
            platform.run(
                "INSERT INTO nucleus.job_outcome_evidence (id, tenant_id, job_id, outcome, recorded_at) VALUES (%s, %s, %s, 'o', %s)",
                key,
                platform.tenant,
                job.key,
                at,
            )


def there(platform):
    found = platform.connection.execute(
        "SELECT id::text FROM nucleus.jobs WHERE tenant_id = %(t)s UNION ALL"
        " SELECT id::text FROM nucleus.job_outcome_evidence WHERE tenant_id = %(t)s",
        {"t": platform.tenant},
    ).fetchall()
    return {row[0] for row in found}


@pytest.mark.parametrize("examples", [4, pytest.param(150, marks=pytest.mark.slow)])
def test_what_must_go_is_gone_and_all_else_is_there(shared, examples):
    settings(max_examples=examples, deadline=None)(tried)(shared)


@given(mine=JOBS, others=JOBS, batch=st.integers(1, 6), stops=st.lists(st.integers(1, 3), max_size=3))
def tried(shared, mine, others, batch, stops):
    with closing(Broom(bench=shared)) as broom:
        compare(broom, mine, others, batch, stops)


def compare(broom, mine, others, batch, stops):
    platform, other, sweeper = broom.platform(), broom.platform(), broom.sweeper(SWEEP)
    write(platform, mine)
    write(other, others)
    before, untouched = there(platform), there(other)
    expected = must_go(mine)
    look = broom.sweep(platform, SWEEP, sweeper=sweeper, apply=False)
    assert there(platform) == before
    done = 0
    for batches in stops:  # bounded passes first: each goes on where the last one stopped
        report = broom.sweep(platform, SWEEP, sweeper=sweeper, batch=batch, batches=batches).report
        done += report.counts.purged
        assert before - there(platform) <= expected
        assert report.outcome in {Outcome.COMPLETED, Outcome.WORK_REMAINS, Outcome.BEHIND}
        assert (report.outcome is Outcome.COMPLETED) <= (before - there(platform) == expected)
    last = broom.sweep(platform, SWEEP, sweeper=sweeper, batch=batch)
    assert (last.report.outcome, last.report.backlog) == (Outcome.COMPLETED, 0)
    assert before - there(platform) == expected
    assert done + last.report.counts.purged == len(expected)
    assert look.report.backlog <= len(expected)
    assert there(other) == untouched
    receipts = platform.value(
        "SELECT coalesce(sum(items), 0)::int FROM retention.sweep_receipts WHERE tenant_id = %s", platform.tenant
    )
    assert receipts == len(expected)
