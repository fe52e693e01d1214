"""A purge where it could go wrong: time zones, tenants, failures, other workers, statistics (SPEC L2-L4; F4, F6, F7, F11, F13)."""

import threading
from datetime import datetime
from types import SimpleNamespace

import psycopg
import pytest

from retention_pipeline.errors import Code, UsageFault
from retention_pipeline.model.outcome import Outcome
from retention_pipeline.model.people import Approval, SweepJob
from retention_pipeline.model.sweep import Turn
from retention_pipeline.postgres.session import Session
from retention_pipeline_tests.databases import template
from retention_pipeline_tests.sweeping import NOW, broom, ledger_row, module_database, shared

__all__ = ["broom", "module_database", "shared", "template"]

SWEEP = "submission_ledgers"
CRM = "crm_submission_ledger"
OLD = "2026-01-01 00:00:00+00"


def picture(platform, table=CRM):
    """Every row of a tenant, to the byte."""
    return platform.connection.execute(
        f"SELECT t::text FROM nucleus.{table} AS t WHERE tenant_id = %s ORDER BY 1", [platform.tenant]
    ).fetchall()


def fill(platform, rows, at=OLD):
    platform.run(
        f"INSERT INTO nucleus.{CRM} (id, tenant_id, idempotency_key, created_at)"
        " SELECT gen_random_uuid(), %s, 'k' || n, %s::timestamptz + n * interval '1 microsecond'"
        " FROM generate_series(1, %s) AS n",
        platform.tenant,
        at,
        rows,
    )


@pytest.fixture
def trigger(broom):
    """A trigger of the platform's own on each deleted row; gone after the test."""
    made = []

    def make(platform, body, declare=""):
        platform.run(
            f"CREATE OR REPLACE FUNCTION nucleus.odd() RETURNS trigger LANGUAGE plpgsql AS $$ {declare} BEGIN {body} END $$"
        )
        platform.run(f"CREATE TRIGGER odd BEFORE DELETE ON nucleus.{CRM} FOR EACH ROW EXECUTE FUNCTION nucleus.odd()")
        made.append(platform)

    yield make
    for platform in made:
        platform.run(f"DROP TRIGGER odd ON nucleus.{CRM}")


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo", "America/Los_Angeles", "Australia/Lord_Howe"])
@pytest.mark.parametrize(
    "moment",
    [
        "2026-03-08T10:00:00+00:00",  # the day on which Los Angeles loses an hour
        "2025-11-02T09:00:00+00:00",  # and the one on which it has one twice
        "2026-04-05T15:00:00+00:00",  # Lord Howe gains half an hour
        "2026-06-01T00:00:00+00:00",
    ],
)
def test_thirty_days_are_thirty_times_24_hours_in_every_zone(broom, zone, moment):
    """L2, F13: one microsecond on either side, whatever the login's time zone and the summer time are."""
    platform = broom.platform()
    for offset in ("0 seconds", "-1 microsecond"):
        platform.run(
            f"INSERT INTO nucleus.{CRM} (id, tenant_id, idempotency_key, created_at)"
            " VALUES (gen_random_uuid(), %s, %s, %s::timestamptz - interval '720 hours' + %s::interval)",
            platform.tenant,
            offset,
            moment,
            offset,
        )
    platform.run(f"ALTER ROLE worker SET TimeZone = '{zone}'")
    try:
        result = broom.sweep(
            platform, SWEEP, sweeper=broom.sweeper(SWEEP, broom.session()), as_of=datetime.fromisoformat(moment)
        )
    finally:
        platform.run("ALTER ROLE worker RESET TimeZone")
    assert result.report.counts.purged == 1
    left = platform.value(
        f"SELECT string_agg(idempotency_key, ',') FROM nucleus.{CRM} WHERE tenant_id = %s", platform.tenant
    )
    assert left == "0 seconds"


@pytest.mark.parametrize("at", ["infinity", "-infinity"])
def test_an_instant_that_is_none_ends_no_row(broom, at):
    """F13."""
    platform = broom.platform()
    fill(platform, 3, at)
    result = broom.sweep(platform, SWEEP)
    assert (result.report.outcome, len(picture(platform))) == (Outcome.COMPLETED, 3)


def test_no_row_of_another_tenant_is_touched(broom):
    """L3, F11: not even by a run that names their keys."""
    mine, other = broom.platform(), broom.platform()
    fill(mine, 40)
    fill(other, 40)
    before = picture(other)
    assert broom.sweep(mine, SWEEP).report.counts.purged == 40
    assert (picture(mine), picture(other)) == ([], before)
    assert other.value("SELECT count(*) FROM retention.sweep_receipts WHERE tenant_id = %s", other.tenant) == 0


def test_an_empty_tenant_is_an_error_and_not_nothing_to_do(broom):
    """L3, F11: at each door."""
    sweeper = broom.sweeper(SWEEP)
    for ask in (
        lambda: sweeper.look("", NOW),
        lambda: sweeper.place("", "crm_ledger"),
        lambda: sweeper.batch(turn(""), None, 10),
        lambda: sweeper.pass_by(turn(""), None, Code.INTERNAL),
        lambda: sweeper.rewind("", "crm_ledger"),
    ):
        with pytest.raises(UsageFault, match="The tenant is empty"):
            ask()


def test_a_context_that_is_missing_is_the_databases_error(broom):
    """L3, F11: whoever asks without one is told so by both walls, the platform's and ours."""
    fill(broom.platform(), 1)
    with psycopg.connect(broom.bench.database.worker_url, autocommit=True) as worker:
        for setting in ("retention.tenant_id", "nucleus.tenant_id"):
            for value in (None, ""):
                worker.execute("RESET ALL")
                if value is not None:
                    worker.execute("SELECT set_config(%s, %s, false)", [setting, value])
                with pytest.raises(psycopg.errors.InsufficientPrivilege, match="no tenant is set"):
                    worker.execute(f"DELETE FROM nucleus.{CRM}")


def test_a_session_that_forgets_the_platforms_setting_fails_and_ends_nothing(broom):
    """L3: the sweep is not green over a table that it could not see."""
    platform = broom.platform()
    fill(platform, 3)
    blind = Session(url=broom.bench.database.worker_url)
    try:
        result = broom.sweep(platform, SWEEP, sweeper=broom.sweeper(SWEEP, blind))
    finally:
        blind.close()
    assert result.report.outcome is Outcome.FAILED
    assert len(picture(platform)) == 3


def test_a_batch_that_fails_rolls_back_and_those_before_it_stay(broom, trigger):
    """L4: the database refuses in the middle of the third batch, and from then on."""
    platform = broom.platform()
    fill(platform, 25)
    trigger(platform, "IF OLD.idempotency_key IN ('k23', 'k24') THEN RAISE EXCEPTION 'no'; END IF; RETURN OLD;")
    result = broom.sweep(platform, SWEEP, batch=10)
    assert result.report.outcome is Outcome.PARTIAL
    assert [row[0].split(",")[2] for row in picture(platform)].count("k23") == 1
    assert len(picture(platform)) == 2
    assert (result.report.counts.purged, result.report.counts.failures) == (23, {Code.INTERNAL: 2})
    receipts = platform.value("SELECT sum(items) FROM retention.sweep_receipts WHERE tenant_id = %s", platform.tenant)
    assert receipts == 23
    again = broom.sweep(platform, SWEEP, batch=10)
    assert (again.report.counts.failures, again.report.backlog) == ({}, 2)  # they wait, and are still counted


def test_one_among_999_that_always_fails_keeps_998_from_nothing(broom, trigger):
    """F7: a row that something refers to, first in line."""
    platform = broom.platform()
    fill(platform, 999)
    trigger(platform, "IF OLD.idempotency_key = 'k1' THEN RAISE foreign_key_violation; END IF; RETURN OLD;")
    result = broom.sweep(platform, SWEEP)
    assert (result.report.counts.purged, result.report.counts.failures) == (998, {Code.DATABASE_REFUSED: 1})
    for n in range(10):
        ledger_row(platform, CRM, f"2026-01-02 00:00:{n:02}+00")
    assert broom.sweep(platform, SWEEP).report.counts.purged == 10


def test_a_row_that_had_failed_goes_when_it_can_and_nothing_is_remembered_of_it(broom, trigger):
    """F7: it waits longer each time, and is tried again."""
    platform = broom.platform()
    fill(platform, 5)
    trigger(platform, "IF OLD.idempotency_key = 'k1' THEN RAISE foreign_key_violation; END IF; RETURN OLD;")
    waits = []
    for _ in range(3):
        assert broom.sweep(platform, SWEEP).report.outcome is Outcome.PARTIAL
        waits.append(
            platform.value(
                "SELECT extract(epoch FROM not_before - at)::int FROM retention.sweep_set_asides WHERE tenant_id = %s",
                platform.tenant,
            )
        )
        platform.run("UPDATE retention.sweep_set_asides SET not_before = now() WHERE tenant_id = %s", platform.tenant)
    assert waits == [300, 600, 1200]
    platform.run(f"ALTER TABLE nucleus.{CRM} DISABLE TRIGGER odd")
    assert broom.sweep(platform, SWEEP).report.counts.purged == 1
    count = "SELECT count(*) FROM retention.sweep_set_asides WHERE tenant_id = %s"
    assert platform.value(count, platform.tenant) == 0


def test_a_statement_never_deletes_more_than_its_bound(broom, trigger):
    """L2, F6: a table without statistics, and a trigger that counts the rows of each transaction."""
    platform = broom.platform()
    platform.run("CREATE TABLE IF NOT EXISTS nucleus.counted (txid bigint)")
    platform.run("GRANT INSERT ON nucleus.counted TO PUBLIC")
    fill(platform, 700)
    platform.run("DELETE FROM pg_statistic WHERE starelid = %s::regclass", f"nucleus.{CRM}")
    platform.run("UPDATE pg_class SET reltuples = -1, relpages = 0 WHERE oid = %s::regclass", f"nucleus.{CRM}")
    trigger(platform, "INSERT INTO nucleus.counted VALUES (txid_current()); RETURN OLD;")
    result = broom.sweep(platform, SWEEP, batch=50)
    assert result.report.counts.purged == 700
    most, transactions = platform.connection.execute(
        "SELECT max(n), count(*) FROM (SELECT count(*) AS n FROM nucleus.counted GROUP BY txid) AS t"
    ).fetchone()
    assert (most, transactions) == (50, 14)
    platform.run("DROP TABLE nucleus.counted")


def test_two_workers_at_once_end_each_row_once(broom, trigger):
    """L2, F6: on two machines, without the lease between them."""
    platform = broom.platform()
    fill(platform, 600)
    platform.run("CREATE TABLE IF NOT EXISTS nucleus.gone (key text PRIMARY KEY)")
    platform.run("GRANT INSERT ON nucleus.gone TO PUBLIC")
    trigger(platform, "INSERT INTO nucleus.gone VALUES (OLD.idempotency_key); PERFORM pg_sleep(0.0005); RETURN OLD;")
    approvals = [broom.approve(platform, SWEEP) for _ in range(2)]
    results = []

    def work():
        results.append(broom.sweep(platform, SWEEP, batch=20, approval=approvals.pop(), lease=False))

    workers = [threading.Thread(target=work) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert sum(result.report.counts.purged for result in results) == 600
    assert all(result.report.counts.failures == {} for result in results)
    assert platform.value("SELECT count(*) FROM nucleus.gone") == 600
    assert picture(platform) == []
    assert (
        platform.value("SELECT sum(items) FROM retention.sweep_receipts WHERE tenant_id = %s", platform.tenant) == 600
    )
    platform.run("DROP TABLE nucleus.gone")


def test_a_row_that_somebody_has_locked_is_passed_and_goes_next_time(broom):
    """L2: nobody waits for anybody."""
    platform = broom.platform()
    fill(platform, 5)
    with broom.bench.database.superuser() as writer:
        writer.autocommit = False
        writer.execute(
            f"SELECT FROM nucleus.{CRM} WHERE tenant_id = %s AND idempotency_key = 'k3' FOR UPDATE", [platform.tenant]
        )
        assert broom.sweep(platform, SWEEP).report.counts.purged == 4
        writer.rollback()
    assert broom.sweep(platform, SWEEP).report.counts.purged == 1


def test_a_row_that_grew_young_between_search_and_deletion_stays(broom):
    """L2, E4's kind: its condition is asked again where it is deleted."""
    platform = broom.platform()
    ledger_row(platform, CRM, OLD)
    sweeper = broom.sweeper(SWEEP)
    inner = sweeper.batch

    def meanwhile(turn, after, limit):
        platform.run(f"UPDATE nucleus.{CRM} SET created_at = now() WHERE tenant_id = %s", platform.tenant)
        return inner(turn, after, limit)

    assert broom.sweep(platform, SWEEP, sweeper=with_batch(sweeper, meanwhile)).report.counts.purged == 0
    assert len(picture(platform)) == 1


def test_an_approval_that_ends_under_way_stops_the_run_and_shows(broom):
    """G4, O1: without it the policies hide every row; a pass over nothing is not done."""
    platform = broom.platform()
    fill(platform, 30)
    sweeper = broom.sweeper(SWEEP)
    inner, batches = sweeper.batch, []

    def expiring(turn, after, limit):
        if len(batches) == 3:  # the other ledger had the first turn
            platform.run("UPDATE retention.approvals SET expires_at = now() WHERE id = %s", turn.approval.id)
        batches.append(limit)
        return inner(turn, after, limit)

    result = broom.sweep(platform, SWEEP, sweeper=with_batch(sweeper, expiring), batch=10)
    assert (result.report.outcome, result.report.reason) == (Outcome.BLOCKED, Code.APPROVAL_INVALID)
    assert (result.report.counts.purged, result.report.backlog, len(picture(platform))) == (20, 10, 10)


def with_batch(sweeper, batch):
    """The same sweeper, with something that happens around each batch."""
    same = ("verb", "tables", "look", "place", "rewind", "pass_by")
    return SimpleNamespace(**{name: getattr(sweeper, name) for name in same}, batch=batch)


def turn(tenant):
    approval = Approval(
        id="00000000-0000-4000-8000-000000000000",
        tenant=tenant,
        job=SweepJob.of(SWEEP),
        actor="nobody",
        max_items=10,
        expires_at=NOW,
    )
    return Turn(tenant=tenant, table="crm_ledger", as_of=NOW, approval=approval, run="no run")
