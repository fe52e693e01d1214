"""A few rows that are due beside millions that are not: no table is read whole, and a batch costs what it costs alone (SPEC E4, J2; F14).

The short form runs with the other tests; `make scale` runs it over 5,000,000 rows.
"""

import contextlib
import json
import time
from statistics import median

import pytest

from retention_pipeline.model.outcome import Outcome
from retention_pipeline_tests.databases import cloned, template
from retention_pipeline_tests.rows import new_id
from retention_pipeline_tests.seams import shared
from retention_pipeline_tests.sweeping import Broom
from retention_pipeline_tests.worlds import Bench

__all__ = ["shared", "template"]

DUE = 2_000
BATCH = 100
SHORT = 40_000
LONG = 5_000_000
SIZES = [pytest.param(SHORT, id="short"), pytest.param(LONG, marks=pytest.mark.slow, id="long")]
FLAT = 2.0
"""A batch over the large table may cost so many times one over the small one."""


@pytest.fixture(scope="module", params=SIZES)
def rows(request):
    return request.param


@pytest.fixture(scope="module")
def module_database(pg, template, rows):
    with cloned(pg, template) as database:
        yield database


def fill(platform, statement, count, **more):
    platform.connection.execute(statement, {"tenant": platform.tenant, "rows": count, **more})


def analyze(platform, table):
    platform.run(f"VACUUM (ANALYZE) nucleus.{table}")


LEDGER = (
    "INSERT INTO nucleus.crm_submission_ledger (id, tenant_id, idempotency_key, created_at)"
    " SELECT gen_random_uuid(), %(tenant)s, gen_random_uuid()::text, %(from)s::timestamptz - n * interval '1 microsecond'"
    " FROM generate_series(1, %(rows)s) AS n"
)
TASKS = (
    (
        "INSERT INTO nucleus.workflow_central_tasks (id, tenant_id, instance_id, payload, data)"
        " SELECT gen_random_uuid(), %(tenant)s, %(instance)s, CASE n %% 4 WHEN 0 THEN jsonb_build_object('mode', 'ephemeral_hosted',"
        " 'reason', 'r', 'expiresAt', %(expires)s::text) WHEN 1 THEN '{{\"mode\": \"external_reference\"}}' WHEN 2 THEN '{{\"a\": 1}}' END,"
        " '{{}}' FROM generate_series(1, %(rows)s) AS n"
    )
    .replace("{{", "{")
    .replace("}}", "}")
)
EXPIRED = TASKS.replace("n %% 4", "0")


def add_ledger(platform, live):
    fill(platform, LEDGER, DUE, **{"from": "2026-04-01 00:00:00+00"})
    fill(platform, LEDGER, live, **{"from": "2026-05-31 00:00:00+00"})
    analyze(platform, "crm_submission_ledger")


def add_tasks(platform, live):
    instance = platform.add()
    fill(platform, EXPIRED, DUE, instance=instance, expires="2026-04-01T00:00:00Z")
    fill(platform, TASKS, live, instance=instance, expires="2126-12-01T00:00:00Z")
    analyze(platform, "workflow_central_tasks")


CASES = {
    "submission_ledgers": ("crm_submission_ledger", add_ledger, "purged"),
    "ephemeral_payloads": ("workflow_central_tasks", add_tasks, "cleared"),
}


@pytest.fixture
def closing():
    with contextlib.ExitStack() as stack:
        yield stack


class Timed:
    """A sweeper whose batches are timed."""

    def __init__(self, inner):
        self.inner, self.seconds = inner, []

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def batch(self, turn, after, limit):
        begun = time.monotonic()
        done = self.inner.batch(turn, after, limit)
        if done.done == limit:
            self.seconds.append(time.monotonic() - begun)
        return done


def swept(broom, platform, dataset):
    sweeper = Timed(broom.sweeper(dataset))
    result = broom.sweep(platform, dataset, sweeper=sweeper, batch=BATCH)
    assert result.report.outcome is Outcome.COMPLETED, result
    return result, median(sweeper.seconds)


def scans(platform, table):
    platform.run("SELECT pg_stat_force_next_flush()")
    return platform.connection.execute(
        "SELECT seq_scan, seq_tup_read, idx_tup_fetch FROM pg_stat_user_tables WHERE relname = %s", [table]
    ).fetchone()


@pytest.mark.parametrize("dataset", CASES)
def test_what_is_due_is_found_by_index_beside_what_is_not(closing, shared, pg, template, tmp_path, rows, dataset):
    table, add, verb = CASES[dataset]
    broom = closing.enter_context(contextlib.closing(Broom(bench=shared)))
    platform = shared.platform()
    add(platform, rows)
    before = scans(platform, table)
    result, large = swept(broom, platform, dataset)
    assert getattr(result.report.counts, verb) == DUE
    time.sleep(1.1)  # a session tells its statistics once a second
    after = scans(platform, table)
    assert (after[0], after[1]) == (before[0], before[1])  # no scan of the whole table
    assert after[2] - before[2] < 40 * DUE  # and no index walked through what is not due
    with cloned(pg, template) as database, contextlib.closing(Broom(bench=None)) as other:
        other.bench = bench = Bench(database=database, keyring=tmp_path / "keyring.json", closing=database.closing)
        alone = bench.platform()
        add(alone, 0)
        _, little = swept(other, alone, dataset)
    assert large < FLAT * little, json.dumps({"large": large, "alone": little})


def test_one_pending_request_is_found_beside_40_000_resolved(closing, shared, rows):
    """J2."""
    broom = closing.enter_context(contextlib.closing(Broom(bench=shared)))
    platform = shared.platform()
    company, invite = new_id(), new_id()
    platform.run(
        "INSERT INTO nucleus.companies (id, tenant_id, name, status) VALUES (%s, %s, 'c', 'active')",
        company,
        platform.tenant,
    )
    platform.run(
        "INSERT INTO nucleus.company_invites (id, tenant_id, company_id) VALUES (%s, %s, %s)",
        invite,
        platform.tenant,
        company,
    )
    platform.connection.execute(
        "INSERT INTO nucleus.join_requests (id, tenant_id, company_id, invite_id, status, updated_at)"
        " SELECT gen_random_uuid(), %(tenant)s, %(company)s, %(invite)s, CASE n WHEN 0 THEN 'pending_approval' ELSE 'approved' END,"
        " '2026-01-01Z' FROM generate_series(0, 40000) AS n",
        {"tenant": platform.tenant, "company": company, "invite": invite},
    )
    analyze(platform, "join_requests")
    before = scans(platform, "join_requests")
    result = broom.sweep(platform, "join_requests")
    assert (result.report.outcome, result.report.counts.shelved) == (Outcome.COMPLETED, 1)
    time.sleep(1.1)
    after = scans(platform, "join_requests")
    assert (after[0], after[1]) == (before[0], before[1])
    assert after[2] - before[2] < 100
