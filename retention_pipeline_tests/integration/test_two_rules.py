"""Two entries for one table of a purge: each ends its own rows, and the policies let both (K1, L2, G4)."""

import psycopg
import pytest

from retention_pipeline.catalog.loader import load, parse_sweep, with_sweeps
from retention_pipeline.postgres.migrate import migrate
from retention_pipeline_tests.rows import Platform

TWO = """
version: 1
dataset: two_rules
ends: purge
about: Jobs by how they ended.
every: day
batch: 100
batches: 10
tables:
  - {name: failed, table: nucleus.jobs, key: [id], tenant: tenant_id, purpose: evidence, age: finished_at, older_than_days: 90,
     status: status, closed: [failed]}
  - {name: others, table: nucleus.jobs, key: [id], tenant: tenant_id, purpose: evidence, age: finished_at, older_than_days: 400,
     status: status, closed: [succeeded, cancelled]}
"""


@pytest.mark.parametrize("turned", [False, True])
def test_the_database_lets_go_what_either_entry_names_and_nothing_else(database, turned):
    text = TWO
    if turned:
        head, first, second = text.partition("  - {name: failed")[0], *text.split("  - {")[1:]
        text = head + "  - {" + second + "  - {" + first
    rules = parse_sweep(text)
    catalog = load()
    others = tuple(r for r in catalog.sweeps if r.dataset.dataset != "job_evidence")
    migrate(database.owner_url, with_sweeps(catalog, (*others, rules), text))
    platform = Platform(database=database)
    for status, days in (("failed", 91), ("failed", 89), ("succeeded", 91), ("succeeded", 401)):
        platform.run(
            "INSERT INTO nucleus.jobs (id, tenant_id, kind, status, created_at, finished_at)"
            " VALUES (gen_random_uuid(), %s, %s, %s, '2024-01-01Z', now() - %s * interval '24 hours')",
            platform.tenant,
            f"{status} {days} days ago",
            status,
            days,
        )
    platform.run(
        "INSERT INTO retention.grant_events (tenant_id, principal, permission, action)"
        " VALUES ('*', 'operator', 'workflow_retention:reconcile', 'add')"
    )
    approval = platform.value(
        "INSERT INTO retention.approvals (tenant_id, job, kind, max_items, expires_at, reason, actor)"
        " VALUES (%s, 'sweep:two_rules', 'single_use', 10, now() + interval '1 hour', 'r', 'operator') RETURNING id",
        platform.tenant,
    )
    platform.run(
        "INSERT INTO retention.approval_uses (approval_id, run, tenant_id, single_use) VALUES (%s, 'r', %s, true)",
        approval,
        platform.tenant,
    )
    with psycopg.connect(database.worker_url, autocommit=True) as worker:
        for setting in ("retention.tenant_id", "nucleus.tenant_id"):
            worker.execute("SELECT set_config(%s, %s, false)", [setting, platform.tenant])
        assert worker.execute("DELETE FROM nucleus.jobs").rowcount == 2
    left = platform.connection.execute("SELECT kind FROM nucleus.jobs ORDER BY 1").fetchall()
    assert left == [("failed 89 days ago",), ("succeeded 91 days ago",)]
