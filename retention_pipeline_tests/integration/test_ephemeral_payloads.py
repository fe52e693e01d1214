"""Short-lived payloads are cleared at their own expiry, and nothing else is (SPEC E1-E7)."""

import threading
from datetime import datetime

import psycopg
import pytest

from retention_pipeline.catalog.loader import load
from retention_pipeline.errors import Code
from retention_pipeline.model.outcome import Outcome
from retention_pipeline.postgres import live_payload
from retention_pipeline.postgres.clear import PostgresClear
from retention_pipeline_tests.databases import template
from retention_pipeline_tests.payloads import TABLES, add_row, ephemeral, row_of
from retention_pipeline_tests.sweeping import broom, module_database, shared

__all__ = ["broom", "module_database", "shared", "template"]

SWEEP = "ephemeral_payloads"
NOW = "2026-06-01T12:00:00Z"
JUST_BEFORE = "2026-06-01T11:59:59.999999Z"
CLEARED = (None, {})
NOW_AT = datetime.fromisoformat(NOW)


@pytest.fixture
def place(broom):
    platform = broom.platform()
    return platform, platform.add(state="running", epochs=())


def swept(broom, platform, **how):
    return broom.sweep(platform, SWEEP, **how)


@pytest.mark.parametrize("table", TABLES)
def test_a_payload_goes_one_microsecond_after_its_expiry_and_its_mirror_with_it(broom, place, table):
    """E1, E2: the one that expires exactly now goes next time."""
    platform, instance = place
    goes = add_row(platform, table, ephemeral(JUST_BEFORE), instance=instance)
    stays = add_row(platform, table, ephemeral(NOW), instance=instance)
    before = row_of(platform, table, stays)
    result = swept(broom, platform)
    assert row_of(platform, table, goes) == (*CLEARED, "2026-06-01 11:59:59.999999+00")
    assert row_of(platform, table, stays) == before
    assert (result.report.outcome, result.report.counts.cleared) == (Outcome.COMPLETED, 1)
    assert result.tables[table].done == 1  # exact, by table


@pytest.mark.parametrize(
    "payload",
    [
        None,
        ephemeral("2127-01-01T00:00:00Z"),
        '{"mode": "external_reference", "note": "was ephemeral_hosted once", "reason": "r", "expiresAt": "2020-01-01T00:00:00Z"}',
        '{"mode": "EPHEMERAL_HOSTED", "reason": "r", "expiresAt": "2020-01-01T00:00:00Z"}',
        '{"reason": "r", "expiresAt": "2020-01-01T00:00:00Z"}',
        '{"mode": ["ephemeral_hosted"], "reason": "r", "expiresAt": "2020-01-01T00:00:00Z"}',
        '[{"mode": "ephemeral_hosted", "reason": "r", "expiresAt": "2020-01-01T00:00:00Z"}]',
        '"ephemeral_hosted"',
        "null",
        "17",
        "{}",
    ],
)
def test_what_is_not_short_lived_or_not_over_is_kept_and_its_mirror_too(broom, place, payload):
    """E3."""
    platform, instance = place
    kept = add_row(platform, "central_tasks", payload, instance=instance)
    before = row_of(platform, "central_tasks", kept)
    result = swept(broom, platform)
    assert row_of(platform, "central_tasks", kept) == before
    assert (result.report.outcome, result.report.counts.cleared) == (Outcome.COMPLETED, 0)
    assert sum(n for t in result.found.tables for f, n in t.findings.items() if f != "not_allowed") == 0


FLAWS = {
    "no_reason": [
        '{"mode": "ephemeral_hosted", "expiresAt": "2020-01-01T00:00:00Z"}',
        ephemeral("x", reason=" "),
        ephemeral("x", reason=1),
    ],
    "no_expiry": ['{"mode": "ephemeral_hosted", "reason": "r"}'],
    "expiry_is_no_instant": [
        ephemeral(text)
        for text in (
            "",
            "now",
            "today",
            "infinity",
            "-infinity",
            "epoch",
            "2020-01-01",
            "2020-01-01T00:00:00",
            "2020-02-30T00:00:00Z",
            "2021-02-29T00:00:00Z",
            "2020-13-01T00:00:00Z",
            "2020-01-00T00:00:00Z",
            "2020-01-01T24:00:00Z",
            "2020-01-01T23:59:60Z",
            "2020-01-01T00:00:00 Europe/Berlin",
            "2020-01-01T00:00:00+24:00",
            "0000-01-01T00:00:00Z",
            "12020-01-01T00:00:00Z",
            " 2020-01-01T00:00:00Z",
            "2020-01-01T00:00:00Z\\n",
            "20200101T000000Z",
            "1577836800",
            None,
            1577836800,
        )
    ],
}


@pytest.mark.parametrize(("flaw", "payload"), [(flaw, p) for flaw, found in FLAWS.items() for p in found])
def test_what_looks_wrong_is_counted_and_never_cleared(broom, place, flaw, payload):
    """E3."""
    platform, instance = place
    kept = add_row(platform, "central_instances", payload, instance=instance)
    before = row_of(platform, "central_instances", kept)
    result = swept(broom, platform)
    assert row_of(platform, "central_instances", kept) == before
    [found] = [t for t in result.found.tables if t.name == "central_instances"]
    assert found.findings == {flaw: 1}


@pytest.mark.parametrize(
    "expires",
    [
        "2026-06-01T20:59:59.999999+09:00",
        "2026-06-01T20:59:59.999999+0900",
        "2026-06-01T04:59:59.999999-07",
        "2026-06-01t11:59:59.999999z",
        "2026-06-01T11:59Z",
        "2026-05-31T23:59:59-11:59",
    ],
)
def test_every_way_to_write_an_instant_with_its_offset(broom, place, expires):
    """E1."""
    platform, instance = place
    goes = add_row(platform, "central_tasks", ephemeral(expires), instance=instance)
    swept(broom, platform)
    assert row_of(platform, "central_tasks", goes)[:2] == CLEARED


def test_a_fraction_beyond_microseconds_never_makes_it_go_too_early(broom, place):
    """E1: 0.1 microseconds before now is not over by a clock that counts microseconds."""
    platform, instance = place
    kept = add_row(platform, "central_tasks", ephemeral("2026-06-01T11:59:59.9999999Z"), instance=instance)
    swept(broom, platform)
    assert row_of(platform, "central_tasks", kept)[0] is not None


def test_a_page_of_550(broom, place):
    """E4: two pages, counted exactly."""
    platform, instance = place
    platform.connection.execute(
        "INSERT INTO nucleus.workflow_central_tasks (id, tenant_id, instance_id, payload) SELECT gen_random_uuid(), %s, %s, %s"
        " FROM generate_series(1, 550)",
        [platform.tenant, instance, ephemeral(JUST_BEFORE)],
    )
    result = swept(broom, platform)
    assert (result.report.counts.cleared, result.report.reason) == (550, "exhausted")
    receipts = platform.connection.execute(
        "SELECT items FROM retention.sweep_receipts WHERE tenant_id = %s ORDER BY id", [platform.tenant]
    ).fetchall()
    assert [row[0] for row in receipts] == [500, 50]
    assert swept(broom, platform).report.counts.cleared == 0  # twice has one effect


def test_a_bad_row_first_in_line_starves_no_other_and_waits(broom, place):
    """E4, F7: the platform's own trigger raises on it."""
    platform, instance = place
    bad = add_row(platform, "central_tasks", ephemeral("2020-01-01T00:00:00Z"), instance=instance)
    others = [
        add_row(platform, "central_tasks", ephemeral(f"2020-01-02T00:00:{n:02}Z"), instance=instance) for n in range(20)
    ]
    platform.run(
        "CREATE OR REPLACE FUNCTION nucleus.bad() RETURNS trigger LANGUAGE plpgsql AS"
        f" $$ BEGIN IF OLD.id = '{bad}' THEN RAISE EXCEPTION 'no'; END IF; RETURN NEW; END $$"
    )
    platform.run(
        "CREATE TRIGGER bad BEFORE UPDATE ON nucleus.workflow_central_tasks FOR EACH ROW EXECUTE FUNCTION nucleus.bad()"
    )
    try:
        result = swept(broom, platform)
        assert (result.report.outcome, result.report.counts.cleared) == (Outcome.PARTIAL, 20)
        assert result.report.counts.failures == {Code.INTERNAL: 1}
        assert all(row_of(platform, "central_tasks", key)[:2] == CLEARED for key in others)
        again = add_row(platform, "central_tasks", ephemeral("2020-01-03T00:00:00Z"), instance=instance)
        result = swept(broom, platform)  # it waits: the next one is not held up
        assert (result.report.counts.cleared, result.report.counts.failures) == (1, {})
        assert row_of(platform, "central_tasks", again)[:2] == CLEARED
        assert result.report.backlog == 1
    finally:
        platform.run("DROP TRIGGER bad ON nucleus.workflow_central_tasks")


def test_one_tables_failure_does_not_stop_the_other_and_shows(broom, place):
    """E5."""
    platform, instance = place
    keys = {table: add_row(platform, table, ephemeral(JUST_BEFORE), instance=instance) for table in TABLES}
    platform.run("REVOKE UPDATE (payload) ON nucleus.workflow_central_tasks FROM retention_worker")
    try:
        result = swept(broom, platform)
    finally:
        platform.run("GRANT UPDATE (payload) ON nucleus.workflow_central_tasks TO retention_worker")
    assert row_of(platform, "central_instances", keys["central_instances"])[:2] == CLEARED
    assert row_of(platform, "central_tasks", keys["central_tasks"])[0] is not None
    assert (result.report.outcome, result.tables["central_tasks"].failed) == (Outcome.PARTIAL, Code.PERMISSION_DENIED)


def test_a_row_that_is_rewritten_between_the_search_and_the_update_is_safe(broom, place):
    """E4: somebody renews the payload, and has it locked meanwhile."""
    platform, instance = place
    key = add_row(platform, "central_tasks", ephemeral(JUST_BEFORE), instance=instance)
    with broom.bench.database.superuser() as writer:
        writer.autocommit = False
        writer.execute(
            "UPDATE nucleus.workflow_central_tasks SET payload = %s WHERE id = %s",
            [ephemeral("2127-01-01T00:00:00Z", code="new"), key],
        )
        result = swept(broom, platform)  # locked: passed by
        assert result.report.counts.cleared == 0
        writer.commit()
    swept(broom, platform)
    assert row_of(platform, "central_tasks", key)[0]["code"] == "new"


def test_two_workers_at_once_clear_each_row_once(broom, place):
    """E5: on two machines, without the lease between them."""
    platform, instance = place
    platform.connection.execute(
        "INSERT INTO nucleus.workflow_central_tasks (id, tenant_id, instance_id, payload) SELECT gen_random_uuid(), %s, %s, %s"
        " FROM generate_series(1, 400)",
        [platform.tenant, instance, ephemeral(JUST_BEFORE)],
    )
    results = []

    def work(dataset):
        results.append(broom.sweep(platform, SWEEP, batch=20, approval=approvals.pop(), lease=False))

    approvals = [broom.approve(platform, SWEEP) for _ in range(2)]
    workers = [threading.Thread(target=work, args=(SWEEP,)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert sum(result.report.counts.cleared for result in results) == 400
    assert (
        platform.value(
            "SELECT count(*) FROM nucleus.workflow_central_tasks WHERE tenant_id = %s AND payload IS NOT NULL",
            platform.tenant,
        )
        == 0
    )


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo", "America/Los_Angeles", "Europe/Berlin"])
def test_no_time_zone_moves_an_expiry(broom, place, zone):
    """F13: also within the hour that a clock goes through twice."""
    platform, instance = place
    platform.run(f"ALTER ROLE worker SET TimeZone = '{zone}'")
    try:
        goes = add_row(platform, "central_tasks", ephemeral("2025-10-26T02:59:59.999999+02:00"), instance=instance)
        stays = add_row(platform, "central_tasks", ephemeral("2025-10-26T02:00:00+01:00"), instance=instance)
        session = broom.session()
        moment = datetime.fromisoformat("2025-10-26T01:00:00+00:00")
        broom.sweep(platform, SWEEP, sweeper=broom.sweeper(SWEEP, session), as_of=moment)
    finally:
        platform.run("ALTER ROLE worker RESET TimeZone")
    assert row_of(platform, "central_tasks", goes)[0] is None
    assert row_of(platform, "central_tasks", stays)[0] is not None


def test_a_hold_does_not_extend_a_payload_unless_the_catalog_says_so(broom, place):
    """E7."""
    platform, instance = place
    platform.hold(instance)
    key = add_row(platform, "central_tasks", ephemeral(JUST_BEFORE), instance=instance)
    rules = load().sweep(SWEEP).dataset
    extending = PostgresClear(session=broom.session(), dataset=rules.model_copy(update={"holds_extend": True}))
    swept(broom, platform, sweeper=extending)
    assert row_of(platform, "central_tasks", key)[0] is not None
    swept(broom, platform)
    assert row_of(platform, "central_tasks", key)[0] is None


@pytest.mark.parametrize(
    ("value", "reported"),
    [(None, True), ("true", False), ('"true"', True), ("1", True), ("false", True), ("null", True)],
)
def test_a_tenant_that_may_not_have_such_payloads_is_reported_and_swept_all_the_same(broom, place, value, reported):
    """E7: allowed is literally `true`."""
    platform, instance = place
    if value is not None:
        platform.run(
            "INSERT INTO nucleus.tenant_settings VALUES (%s, 'workflow.allow_ephemeral_payload', %s)",
            platform.tenant,
            value,
        )
    key = add_row(platform, "central_tasks", ephemeral(JUST_BEFORE), instance=instance)
    result = swept(broom, platform)
    [found] = [t for t in result.found.tables if t.name == "central_tasks"]
    assert found.findings == ({"not_allowed": 1} if reported else {})
    assert row_of(platform, "central_tasks", key)[:2] == CLEARED
    everywhere = PostgresClear(session=broom.session(), dataset=load().sweep(SWEEP).dataset, allowed=True)
    assert all(not table.findings for table in everywhere.look(platform.tenant, NOW_AT).tables)


def test_the_workers_login_alone_clears_nothing_and_never_what_has_not_expired(broom, place):
    """G4: plain SQL under the worker's login, before and within an approved run."""
    platform, instance = place
    expired = add_row(platform, "central_tasks", ephemeral(JUST_BEFORE), instance=instance)
    live = add_row(platform, "central_tasks", ephemeral("2099-01-01T00:00:00Z"), instance=instance)
    clear = "UPDATE nucleus.workflow_central_tasks SET payload = NULL, data = '{}', payload_expired_at = now()"
    with psycopg.connect(broom.bench.database.worker_url, autocommit=True) as worker:
        for setting in ("retention.tenant_id", "nucleus.tenant_id"):
            worker.execute("SELECT set_config(%s, %s, false)", [setting, platform.tenant])
        assert worker.execute(clear).rowcount == 0
        approval = broom.approve(platform, SWEEP)
        worker.execute(
            "INSERT INTO retention.approval_uses (approval_id, run, tenant_id, single_use) VALUES (%s, 'r', %s, true)",
            [approval, platform.tenant],
        )
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            worker.execute(clear.replace("payload = NULL", "payload = '{}'"))
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            worker.execute("UPDATE nucleus.workflow_central_tasks SET name = 'x'")
        assert worker.execute(clear).rowcount == 1
    assert row_of(platform, "central_tasks", expired)[0] is None
    assert row_of(platform, "central_tasks", live)[0] is not None


# -- readers (E6) -----------------------------------------------------------------------------------------------------


@pytest.fixture
def reader(broom):
    """The platform's own login, which has its tables and the product's role for readers."""
    broom.bench.database.closing.callback(lambda: None)
    with broom.bench.database.superuser() as admin:
        admin.execute(
            "DO $$ BEGIN CREATE ROLE portal LOGIN PASSWORD 'a password of a throw-away server';"
            " EXCEPTION WHEN duplicate_object THEN NULL; END $$"
        )
        admin.execute("GRANT retention_reader TO portal")
        admin.execute("GRANT USAGE ON SCHEMA nucleus TO portal")
        admin.execute("GRANT SELECT ON nucleus.workflow_central_tasks, nucleus.workflow_central_instances TO portal")

    def read(platform, table, key):
        with psycopg.connect(broom.bench.database.url("portal")) as portal, portal.cursor() as cursor:
            cursor.execute("SELECT set_config('nucleus.tenant_id', %s, true)", [platform.tenant])
            return live_payload.read(cursor, table, key)

    return read


def state(answer):
    return answer.state, answer.http_status, answer.payload is not None


def test_a_reader_can_tell_live_from_expired_from_never_before_and_after_the_sweep(broom, place, reader):
    """E6: 200, 410, 404, and never an expired payload."""
    platform, instance = place
    expired = add_row(platform, "central_tasks", ephemeral("2026-01-01T00:00:00Z"), instance=instance)
    live = add_row(platform, "central_tasks", ephemeral("2099-01-01T00:00:00Z"), instance=instance)
    lasting = add_row(platform, "central_tasks", '{"a": 1}', instance=instance)
    never = add_row(platform, "central_tasks", None, instance=instance)
    expected = {
        expired: ("expired", 410, False),
        live: ("live", 200, True),
        lasting: ("live", 200, True),
        never: ("never", 404, False),
        "00000000-0000-4000-8000-000000000000": ("never", 404, False),
    }
    assert {key: state(reader(platform, "central_tasks", key)) for key in expected} == expected
    assert swept(broom, platform).report.counts.cleared == 1
    assert {key: state(reader(platform, "central_tasks", key)) for key in expected} == expected
    assert str(reader(platform, "central_tasks", expired).expires_at) == "2026-01-01 00:00:00+00:00"
    other = broom.platform()
    assert state(reader(other, "central_tasks", live)) == ("never", 404, False)  # the tables' own policies hold


def test_the_view_gives_every_row_once(broom, place, reader):
    """E6."""
    platform, instance = place
    for table in TABLES:
        add_row(platform, table, ephemeral("2026-01-01T00:00:00Z"), instance=instance)
        add_row(platform, table, '{"a": 1}', instance=instance)
    with psycopg.connect(broom.bench.database.worker_url) as worker:
        for setting in ("retention.tenant_id", "nucleus.tenant_id"):
            worker.execute("SELECT set_config(%s, %s, false)", [setting, platform.tenant])
        found = worker.execute("SELECT table_name, state, payload IS NULL FROM retention.live_payload").fetchall()
    assert sorted(found) == sorted((table, *what) for table in TABLES for what in (("expired", True), ("live", False)))
