"""A purge beside others at work on its tables: locks, constraints, plans, a slow or lost server (SPEC L2-L4, E5, G7; F4-F7)."""

import pytest

from retention_pipeline.app import App
from retention_pipeline.errors import Code
from retention_pipeline.model.outcome import Outcome
from retention_pipeline.passes import Passes
from retention_pipeline.postgres.session import Limits, Session
from retention_pipeline.settings import Settings
from retention_pipeline_tests.databases import template
from retention_pipeline_tests.rows import new_id
from retention_pipeline_tests.sweeping import broom, ledger_row, module_database, shared

__all__ = ["broom", "module_database", "shared", "template"]

LEDGERS, EVIDENCE = "submission_ledgers", "job_evidence"
CRM, PLATFORM = "crm_submission_ledger", "platform_submission_ledger"


def fill(platform, rows):
    """Rows `k1`, `k2`, …, a second apart, all of them over."""
    platform.run(
        f"INSERT INTO nucleus.{CRM} (id, tenant_id, idempotency_key, created_at)"
        " SELECT gen_random_uuid(), %s, 'k' || n, '2026-01-01Z'::timestamptz + n * interval '1 second'"
        " FROM generate_series(1, %s) AS n",
        platform.tenant,
        rows,
    )


def keys(platform, table=CRM):
    found = platform.connection.execute(
        f"SELECT idempotency_key FROM nucleus.{table} WHERE tenant_id = %s", [platform.tenant]
    ).fetchall()
    return {row[0] for row in found}


def aside(platform):
    return platform.value("SELECT count(*) FROM retention.sweep_set_asides WHERE tenant_id = %s", platform.tenant)


@pytest.fixture
def platform(broom):
    return broom.platform()


@pytest.fixture
def trigger(platform):
    """A trigger of the platform's own on each deleted row of a table; gone after the test."""
    made = []

    def make(body, table=CRM):
        platform.run(
            "CREATE OR REPLACE FUNCTION nucleus.neighbour() RETURNS trigger LANGUAGE plpgsql AS"
            f" $$ BEGIN {body} RETURN OLD; END $$"
        )
        platform.run(
            f"CREATE TRIGGER neighbour BEFORE DELETE ON nucleus.{table}"
            " FOR EACH ROW EXECUTE FUNCTION nucleus.neighbour()"
        )
        made.append(table)

    yield make
    for table in made:
        platform.run(f"DROP TRIGGER neighbour ON nucleus.{table}")


@pytest.fixture
def hurried(broom):
    """A sweeper whose login gives up soon."""
    made = []

    def make(dataset, **limits):
        made.append(
            Session(url=broom.bench.database.worker_url, source_setting="nucleus.tenant_id", limits=Limits(**limits))
        )
        return broom.sweeper(dataset, made[-1])

    yield make
    for session in made:
        session.close()


def test_a_table_that_somebody_has_locked_whole_stops_none_of_the_others(broom, platform, hurried):
    """E5, L4: a migration of theirs is at one ledger; the other one is purged, the run says so, and the next ends the rest."""
    fill(platform, 3)
    for _ in range(9):
        ledger_row(platform, PLATFORM, "2026-01-01Z")
    sweeper = hurried(LEDGERS, lock=100)
    with broom.bench.database.superuser() as owner:
        owner.autocommit = False
        owner.execute(f"LOCK TABLE nucleus.{CRM} IN ACCESS EXCLUSIVE MODE")
        result = broom.sweep(platform, LEDGERS, sweeper=sweeper, batch=2)
        owner.rollback()
    assert (len(keys(platform)), len(keys(platform, PLATFORM))) == (3, 0)
    assert result.tables["crm_ledger"].failed is Code.DATABASE_TIMEOUT
    assert result.report.outcome is Outcome.PARTIAL
    assert aside(platform) == 0  # no row of it did anything
    assert broom.sweep(platform, LEDGERS, sweeper=sweeper).report.outcome is Outcome.COMPLETED
    assert keys(platform) == set()


def test_a_pass_as_the_product_composes_it_waits_for_no_locked_table_either(broom, platform, tmp_path):
    """E5: its look at the tables' health and at the catalog beside the batches."""
    fill(platform, 2)
    ledger_row(platform, PLATFORM, "2026-01-01Z")
    settings = Settings(
        home=tmp_path, worker_url=broom.bench.database.worker_url, keyring=broom.bench.keyring, data_root=tmp_path
    )
    with App(settings) as app:
        app.worker_session("sweep").limits = Limits(lock=100)
        passes = Passes(app=app, name=LEDGERS)
        run = {"run": new_id(), "apply": True, "approval": broom.approve(platform, LEDGERS)}
        with broom.bench.database.superuser() as owner:
            owner.autocommit = False
            owner.execute(f"LOCK TABLE nucleus.{CRM} IN ACCESS EXCLUSIVE MODE")
            done = passes.over(platform.tenant, **run)
            owner.rollback()
    assert (len(keys(platform)), len(keys(platform, PLATFORM))) == (2, 0)
    assert done.result.report.outcome is Outcome.PARTIAL
    assert done.result.found.unread == {"crm_ledger": Code.DATABASE_TIMEOUT}
    assert {table.table for table in done.after} == {f"nucleus.{CRM}", f"nucleus.{PLATFORM}"}


def test_the_row_that_failed_is_set_aside_and_not_one_that_somebody_has_in_hand(broom, platform, trigger):
    """F7: the first in line is locked, and passed by; the second fails. The blame is the second's."""
    fill(platform, 4)
    trigger("IF OLD.idempotency_key = 'k2' THEN RAISE foreign_key_violation; END IF;")
    with broom.bench.database.superuser() as writer:
        writer.autocommit = False
        writer.execute(
            f"SELECT FROM nucleus.{CRM} WHERE tenant_id = %s AND idempotency_key = 'k1' FOR UPDATE", [platform.tenant]
        )
        result = broom.sweep(platform, LEDGERS)
        writer.rollback()
    assert keys(platform) == {"k1", "k2"}
    assert (aside(platform), result.report.counts.failures) == (1, {Code.DATABASE_REFUSED: 1})
    assert broom.sweep(platform, LEDGERS).report.counts.purged == 1
    assert keys(platform) == {"k2"}


@pytest.mark.parametrize("when", ["INITIALLY IMMEDIATE", "INITIALLY DEFERRED"])
def test_a_row_to_which_something_refers_stays_alone(broom, platform, when):
    """F7, L4: a foreign key that is asked at the commit too, when all of a batch has been written."""
    fill(platform, 9)
    platform.run("SET session_replication_role = origin")
    platform.run(
        "CREATE TABLE nucleus.referring AS SELECT id FROM nucleus.crm_submission_ledger WHERE tenant_id = %s"
        " AND idempotency_key = 'k4'",
        platform.tenant,
    )
    platform.run(
        "ALTER TABLE nucleus.referring ADD FOREIGN KEY (id) REFERENCES nucleus.crm_submission_ledger (id)"
        f" DEFERRABLE {when}"
    )
    try:
        result = broom.sweep(platform, LEDGERS, batch=4)
    finally:
        platform.run("DROP TABLE nucleus.referring")
    assert keys(platform) == {"k4"}
    assert (result.report.outcome, result.report.counts.purged) == (Outcome.PARTIAL, 8)
    assert result.report.counts.failures == {Code.DATABASE_REFUSED: 1}
    receipts = platform.value("SELECT sum(items) FROM retention.sweep_receipts WHERE tenant_id = %s", platform.tenant)
    assert receipts == 8


def test_a_statement_timeout_makes_batches_smaller_until_they_go_through(broom, platform, trigger, hurried):
    """F4: each row takes the server 10 ms, and a statement may take 250."""
    fill(platform, 60)
    trigger("PERFORM pg_sleep(0.01);")
    result = broom.sweep(platform, LEDGERS, sweeper=hurried(LEDGERS, statement=250), batch=60)
    assert (result.report.outcome, result.report.counts.purged) == (Outcome.COMPLETED, 60)
    assert (result.report.counts.failures, aside(platform)) == ({}, 0)
    most = platform.value("SELECT max(items) FROM retention.sweep_receipts WHERE tenant_id = %s", platform.tenant)
    assert 1 < most < 30


def test_a_server_for_which_one_row_is_too_much_is_not_green(broom, platform, trigger, hurried):
    """F4: nothing went, which is an outcome of its own; the other ledger's pass is as it should be."""
    fill(platform, 30)
    ledger_row(platform, PLATFORM, "2026-01-01Z")
    trigger("PERFORM pg_sleep(0.2);")
    result = broom.sweep(platform, LEDGERS, sweeper=hurried(LEDGERS, statement=100), batch=4)
    assert len(keys(platform)) == 30
    assert keys(platform, PLATFORM) == set()
    assert (result.report.outcome, result.tables["crm_ledger"].failed) == (Outcome.PARTIAL, Code.DATABASE_TIMEOUT)
    assert (result.report.backlog, result.report.forecast_runs) == (30, 30)


def test_a_connection_that_breaks_in_a_batch_ends_the_run_as_failed_and_the_next_goes_on(broom, platform, trigger):
    """F2, L4: the server ends the session in the middle of the second batch; the first stays."""
    fill(platform, 12)
    trigger("IF OLD.idempotency_key = 'k6' THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF;")
    platform.run("ALTER FUNCTION nucleus.neighbour() SECURITY DEFINER")
    result = broom.sweep(platform, LEDGERS, batch=4)
    assert (result.report.outcome, result.report.reason) == (Outcome.FAILED, Code.DATABASE_UNAVAILABLE)
    assert keys(platform) == {f"k{n}" for n in range(5, 13)}
    assert aside(platform) == 0
    platform.run(f"ALTER TABLE nucleus.{CRM} DISABLE TRIGGER neighbour")
    again = broom.sweep(platform, LEDGERS, batch=4)
    assert (again.report.outcome, again.report.counts.purged) == (Outcome.COMPLETED, 8)


def test_a_second_run_of_the_same_sweep_and_tenant_is_skipped_and_no_other_is(broom, platform, trigger):
    """G7: while one is at work; another tenant's, and another sweep's of the same tenant, go their way."""
    other = broom.platform()
    fill(platform, 3)
    fill(other, 2)
    sweeper, seen = broom.sweeper(LEDGERS), []
    look = sweeper.rewind

    class Meanwhile:
        def __getattr__(self, name):
            return getattr(sweeper, name)

        def rewind(self, tenant, table):
            if not seen:
                seen.append(broom.sweep(platform, LEDGERS).report)
                seen.append(broom.sweep(other, LEDGERS).report)
                seen.append(broom.sweep(platform, EVIDENCE).report)
            look(tenant, table)

    first = broom.sweep(platform, LEDGERS, sweeper=Meanwhile()).report
    assert [(report.outcome, report.reason) for report in (first, *seen)] == [
        (Outcome.COMPLETED, "exhausted"),
        (Outcome.SKIPPED, Code.RUN_OVERLAPS),
        (Outcome.COMPLETED, "exhausted"),
        (Outcome.COMPLETED, "exhausted"),
    ]
    assert keys(platform) == keys(other) == set()
    assert broom.sweep(platform, LEDGERS).report.outcome is Outcome.COMPLETED  # the lease was given back


PLANS = {
    "as planned": (),
    "no nested loop": ("enable_nestloop = off",),
    "no index": ("enable_indexscan = off", "enable_indexonlyscan = off", "enable_bitmapscan = off"),
    "nothing is dear": ("cpu_tuple_cost = 0", "random_page_cost = 0", "seq_page_cost = 0"),
}


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("dataset", [LEDGERS, EVIDENCE])
def test_no_transaction_tries_more_rows_than_its_bound_whatever_the_plan(broom, platform, trigger, dataset, plan):
    """F6, L2: no statistics, plans that the login was given, and a trigger that counts the rows that each transaction tries."""
    table = CRM if dataset == LEDGERS else "job_outcome_evidence"
    if dataset == LEDGERS:
        fill(platform, 70)
    else:
        instance = platform.add(state="running", epochs=())
        for _ in range(7):
            evidence(platform, instance, 10)
    platform.run("CREATE TABLE nucleus.tried (txid bigint)")
    platform.run("GRANT INSERT ON nucleus.tried TO PUBLIC")
    platform.run("DELETE FROM pg_statistic WHERE starelid = %s::regclass", f"nucleus.{table}")
    platform.run("UPDATE pg_class SET reltuples = -1, relpages = 0 WHERE oid = %s::regclass", f"nucleus.{table}")
    trigger("INSERT INTO nucleus.tried VALUES (txid_current());", table)
    for setting in PLANS[plan]:
        platform.run(f"ALTER ROLE worker SET {setting}")
    try:
        result = broom.sweep(platform, dataset, sweeper=broom.sweeper(dataset, broom.session()), batch=8)
        most, tried = platform.connection.execute(
            "SELECT max(n), sum(n) FROM (SELECT count(*) AS n FROM nucleus.tried GROUP BY txid) AS t"
        ).fetchone()
    finally:
        platform.run("ALTER ROLE worker RESET ALL")
        platform.run("DROP TABLE nucleus.tried")
    assert result.report.outcome is Outcome.COMPLETED
    assert (most, tried) == (8, 70)  # as many were tried as went


def evidence(platform, instance, outcomes, status="succeeded"):
    """A job that is over, with its evidence; gives the job."""
    job = new_id()
    platform.run(
        "INSERT INTO nucleus.jobs (id, tenant_id, instance_id, kind, status, created_at, finished_at)"
        " VALUES (%s, %s, %s, 'k', %s, '2025-12-01Z', '2026-01-01Z')",
        job,
        platform.tenant,
        instance,
        status,
    )
    platform.run(
        "INSERT INTO nucleus.job_outcome_evidence (id, tenant_id, job_id, outcome, recorded_at)"
        " SELECT gen_random_uuid(), %s, %s, 'o', '2026-01-01Z'::timestamptz + n * interval '1 second'"
        " FROM generate_series(1, %s) AS n",
        platform.tenant,
        job,
        outcomes,
    )
    return job


def test_one_held_one_open_and_one_without_an_end_keep_none_of_999(broom, platform):
    """F7, G1, F5: all of them first in line; the 996 others go, and the next run is not blocked at its head."""
    free, held = (platform.add(state="running", epochs=()) for _ in range(2))
    platform.hold(held)
    stay = {evidence(platform, held, 1), evidence(platform, free, 1, status="running")}
    platform.run(
        "INSERT INTO nucleus.jobs (id, tenant_id, instance_id, kind, status, created_at, finished_at)"
        " SELECT gen_random_uuid(), %s, %s, 'k', 'succeeded', '2025-12-01Z',"
        " CASE n WHEN 1 THEN '-infinity' ELSE '2026-01-02Z'::timestamptz + n * interval '1 second' END"
        " FROM generate_series(1, 997) AS n",
        platform.tenant,
        free,
    )
    for expected in (996, 0):
        report = broom.sweep(platform, EVIDENCE, batch=100).report
        assert (report.counts.purged, report.counts.failures) == (expected, {})
        assert (report.outcome, report.backlog) == (Outcome.COMPLETED, 0)
    left = platform.connection.execute(
        "SELECT id::text, finished_at = '-infinity' FROM nucleus.jobs WHERE tenant_id = %s", [platform.tenant]
    ).fetchall()
    assert {key for key, _ in left if key in stay} == stay
    assert sorted(endless for _, endless in left) == [False, False, True]


@pytest.mark.parametrize("batch", [1, 7])
def test_every_instant_that_a_database_can_hold_is_a_place_to_go_on_from(broom, platform, batch):
    """F10, F13: before Christ, in the year 1, to the microsecond, and many rows of one instant."""
    instants = ["4713-01-01 00:00:00+00 BC", "0001-12-31 23:59:59.999999+00 BC", "0001-01-01 00:00:00.000001+00"]
    instants += ["1999-12-31 23:59:59.345001+00", *["1999-12-31 23:59:59.345002+00"] * 4]
    for instant in instants:
        ledger_row(platform, CRM, instant)
    young = ledger_row(platform, CRM, "2026-05-31 00:00:00+00")
    while True:  # one transaction a run: each goes on from the place that the last one saved
        report = broom.sweep(platform, LEDGERS, batch=batch, batches=2).report
        if report.outcome is Outcome.COMPLETED:
            break
        assert report.counts.purged == batch
    assert keys(platform) == {young}
