"""Which instances may go: each boundary by one microsecond on both sides, each reason to stay (SPEC W1-W3, F13)."""

from datetime import UTC, datetime, timedelta

import pytest

from retention_pipeline.catalog.loader import load
from retention_pipeline.errors import Code, RetentionError
from retention_pipeline.model.decision import decide
from retention_pipeline.postgres import sample
from retention_pipeline.postgres.facts import FactStatements
from retention_pipeline.postgres.session import Session, rows
from retention_pipeline.postgres.source import PostgresSource
from retention_pipeline_tests.databases import PASSWORD
from retention_pipeline_tests.rows import Platform

ENDED = datetime(2026, 5, 2, 12, 0, 0, 345001, tzinfo=UTC)
DUE = ENDED + timedelta(days=30)
MICROSECOND = timedelta(microseconds=1)


@pytest.fixture
def source(database):
    session = Session(url=database.worker_url, source_setting="nucleus.tenant_id")
    yield PostgresSource(session=session, catalog=load())
    session.close()


def disposition(source, platform, instance, as_of=DUE):
    facts, _ = source.facts(platform.tenant, instance, as_of)
    return decide(facts).disposition


def test_a_row_goes_exactly_when_its_period_is_over_and_stays_one_microsecond_before(database, source):
    """W1: due when epoch + period <= as_of."""
    platform = Platform(database=database)
    instance = platform.add(ended=ENDED.isoformat())
    assert disposition(source, platform, instance, DUE) == "eligible"
    assert disposition(source, platform, instance, DUE - MICROSECOND) == "not_yet_due"
    assert source.inventory(platform.tenant, DUE).eligible == 1
    assert source.inventory(platform.tenant, DUE - MICROSECOND).eligible == 0


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/Los_Angeles", "UTC"])
@pytest.mark.parametrize("ended", ["2026-02-20 09:30:00+00", "2026-10-10 09:30:00+00"])
def test_no_time_zone_moves_a_boundary_across_a_change_of_clocks(database, zone, ended):
    """F13: both periods contain a day of 23 or of 25 hours in Los Angeles."""
    with database.superuser() as connection:
        connection.execute(f"ALTER DATABASE {database.name} SET TimeZone = '{zone}'")
    platform = Platform(database=database)
    instance = platform.add(ended=ended)
    source = PostgresSource(
        session=Session(url=database.worker_url, source_setting="nucleus.tenant_id"), catalog=load()
    )
    due = datetime.fromisoformat(ended) + timedelta(days=30)
    assert disposition(source, platform, instance, due) == "eligible"
    assert disposition(source, platform, instance, due - MICROSECOND) == "not_yet_due"
    source.session.close()


@pytest.mark.parametrize(
    ("own", "default", "expected"),
    [
        (None, 30, "eligible"),
        (None, 31, "not_yet_due"),
        (None, None, "unlimited_retention"),
        (None, 0, "unlimited_retention"),
        (0, 1, "unlimited_retention"),
        (30, 0, "eligible"),
        (30, None, "eligible"),
        (31, 1, "not_yet_due"),
        ("30.0", None, "eligible"),
        (-1, 1, "bad_period"),
        ("0.5", 1, "bad_period"),
        ("NaN", 1, "bad_period"),
        ("Infinity", 1, "bad_period"),
        ("-Infinity", 1, "bad_period"),
        (1_000_000, 1, "bad_period"),
        (None, -1, "bad_period"),
        (None, "NaN", "bad_period"),
    ],
)
def test_the_workflows_own_period_wins_and_a_bad_value_protects(database, source, own, default, expected):
    """W1: NULL inherits, 0 keeps without limit, a tenant without a default keeps without limit."""
    with database.superuser() as connection:
        connection.execute("ALTER TABLE nucleus.workflows DROP CONSTRAINT workflows_retention_days_whole")
        connection.execute("ALTER TABLE nucleus.tenants DROP CONSTRAINT tenants_retention_days_whole")
    platform = Platform(database=database, workflow_days=own, default_days=default)
    instance = platform.add(ended=ENDED.isoformat())
    assert disposition(source, platform, instance) == expected


@pytest.mark.parametrize("value", ["-1", "0.5", "'NaN'", "'Infinity'", "'-Infinity'", "1000000"])
def test_a_bad_period_is_refused_where_it_is_set(database, value):
    """W1."""
    platform = Platform(database=database)
    with pytest.raises(Exception, match="retention_days_whole"):
        platform.run(f"UPDATE nucleus.workflows SET retention_days = {value}")


@pytest.mark.parametrize("value", ["'thirty'", "'30 days'", "''", "' 30'", "'1e3'"])
def test_a_period_that_is_text_and_no_number_protects(database, source, value):
    """W1: whatever type the platform keeps it in."""
    with database.superuser() as connection:
        connection.execute("ALTER TABLE nucleus.workflows DROP CONSTRAINT workflows_retention_days_whole")
        connection.execute("ALTER TABLE nucleus.workflows ALTER retention_days TYPE text")
    platform = Platform(database=database)
    platform.run(f"UPDATE nucleus.workflows SET retention_days = {value}")
    instance = platform.add(ended=ENDED.isoformat())
    assert disposition(source, platform, instance) == "bad_period"


@pytest.mark.parametrize(
    ("state", "epochs", "expected"),
    [
        ("completed", (("completed", "2026-01-01Z"),), "eligible"),
        ("completed", (), "missing_epoch"),
        ("running", (), "not_terminal"),
        ("running", (("completed", "2026-01-01Z"),), "not_terminal"),  # reopened: never due on an old epoch
        ("failed", (("completed", "2026-01-01Z"),), "missing_epoch"),  # no epoch records this state
        ("completed", (("completed", "2026-01-01Z"), ("completed", "2026-05-31Z")), "not_yet_due"),  # the latest counts
        (
            "completed",
            (("failed", "2026-05-31Z"), ("completed", "2026-01-01Z")),
            "eligible",
        ),  # by ordinal, not by instant
        ("completed", (("completed", "infinity"),), "missing_epoch"),
        ("completed", (("completed", "-infinity"),), "missing_epoch"),
        ("completed", (("completed", "17026-01-01Z"),), "not_yet_due"),
        ("completed", (("completed", "0044-03-15 BC"),), "eligible"),
    ],
)
def test_only_the_latest_epoch_of_the_current_state_counts(database, source, state, epochs, expected):
    """W2: no instant is ever invented."""
    platform = Platform(database=database)
    instance = platform.add(state=state, epochs=epochs)
    assert disposition(source, platform, instance) == expected


def test_the_platform_records_each_entry_into_a_terminal_state_and_nobody_moves_it(database):
    """W2: immutable; coming back makes a new epoch."""
    platform = Platform(database=database)
    instance = platform.add(state="running", epochs=())
    with database.superuser() as connection:
        for state in ("completed", "running", "failed", "failed"):
            connection.execute("SELECT set_config('nucleus.tenant_id', %s, false)", [platform.tenant])
            connection.execute("UPDATE nucleus.workflow_instances SET state = %s WHERE id = %s", [state, instance])
        found = connection.execute(
            "SELECT epoch, state FROM nucleus.workflow_terminal_epochs WHERE instance_id = %s ORDER BY 1", [instance]
        ).fetchall()
        assert found == [(1, "completed"), (2, "failed")]
        with pytest.raises(Exception, match="never change"):
            connection.execute("UPDATE nucleus.workflow_terminal_epochs SET entered_at = '2000-01-01'")


BLOCKERS = {
    "dead_letter": lambda p, i: p.child("dead_letters", i, status="resolved"),
    "running_transition_request": lambda p, i: p.child("transition_requests", i, status="pending"),
    "running_execution": lambda p, i: p.child("executions", i, status="queued"),
    "active_trigger_delivery": lambda p, i: p.run(
        "INSERT INTO nucleus.workflow_trigger_deliveries (id, tenant_id, target_id, status)"
        " VALUES (gen_random_uuid(), %s, %s, 'active')",
        p.tenant,
        p.occurrence_target(i, "completed"),
    ),
    "open_occurrence_target": lambda p, i: p.occurrence_target(i, "dispatched"),
    "open_artifact_operation": lambda p, i: p.child("artifact_operations", i, kind="k", status="running"),
    "legal_hold": lambda p, i: p.hold(i),
}


@pytest.mark.parametrize("blocker", BLOCKERS)
def test_each_blocker_protects_a_due_instance(database, source, blocker):
    """W3."""
    platform = Platform(database=database)
    instance = platform.add()
    assert disposition(source, platform, instance) == "eligible"
    BLOCKERS[blocker](platform, instance)
    assert disposition(source, platform, instance) == blocker


def test_all_blockers_are_listed_and_the_first_is_the_disposition(database, source):
    """W3: exclusive dispositions add up, blockers overlap."""
    platform = Platform(database=database)
    instance, other = platform.add(), platform.add()
    for add in reversed(BLOCKERS.values()):
        add(platform, instance)
    facts, _ = source.facts(platform.tenant, instance, DUE)
    assert decide(facts).blockers == tuple(BLOCKERS)
    inventory = source.inventory(platform.tenant, DUE)
    assert inventory.dispositions == {"dead_letter": 1, "eligible": 1}
    assert inventory.blockers == dict.fromkeys(BLOCKERS, 1)
    assert sum(inventory.dispositions.values()) == inventory.total == 2
    assert disposition(source, platform, other) == "eligible"


def test_a_status_that_nobody_knows_is_open(database, source):
    """W3, fail safe: a newer platform's new status protects until somebody decides."""
    with database.superuser() as connection:
        connection.execute(
            "ALTER TABLE nucleus.workflow_executions DROP CONSTRAINT workflow_executions_status_check,"
            " ALTER status DROP NOT NULL"
        )
    platform = Platform(database=database)
    instance, other = platform.add(), platform.add()
    platform.child("executions", instance, status="paused")
    platform.child("executions", other, status=None)
    assert disposition(source, platform, instance) == "running_execution"
    assert disposition(source, platform, other) == "running_execution"


def test_a_released_hold_no_longer_protects_and_each_matter_counts(database, source):
    """G1: a release is another event; the latest of each matter counts."""
    platform = Platform(database=database)
    instance = platform.add()
    platform.hold(instance, "a")
    platform.hold(instance, "b")
    platform.hold(instance, "a", "release")
    assert disposition(source, platform, instance) == "legal_hold"
    platform.hold(instance, "b", "release")
    assert disposition(source, platform, instance) == "eligible"
    platform.hold(instance, "a")
    assert disposition(source, platform, instance) == "legal_hold"


@pytest.mark.parametrize(
    "add",
    [
        lambda p, i, other: p.child("contexts", i, tenant=other, name="c"),
        lambda p, i, other: p.child("executions", i, tenant=other, status="succeeded"),
        lambda p, _, other: p.run("UPDATE nucleus.workflows SET tenant_id = %s WHERE id = %s", other, p.workflow),
        lambda p, i, other: p.run(
            "UPDATE nucleus.workflow_action_checkpoints SET tenant_id = %s FROM nucleus.workflow_executions AS e"
            " WHERE e.id = execution_id AND e.instance_id = %s",
            other,
            i,
        ),
        lambda p, i, other: p.run(
            "UPDATE nucleus.workflow_trigger_occurrences AS o SET tenant_id = %s"
            " FROM nucleus.workflow_occurrence_targets AS t WHERE t.occurrence_id = o.id AND t.id = %s",
            other,
            p.occurrence_target(i, "completed"),
        ),
    ],
    ids=["context", "execution", "definition", "grandchild", "shared occurrence"],
)
def test_a_row_of_another_tenant_blocks_and_row_level_security_does_not_hide_it(database, source, add):
    """A2, F11: the worker can't see the row, and yet it is counted."""
    platform, other = Platform(database=database), Platform(database=database)
    instance = platform.add()
    add(platform, instance, other.tenant)
    assert disposition(source, platform, instance) == "foreign_rows"
    assert source.inventory(platform.tenant, DUE).dispositions == {"foreign_rows": 1}


def test_another_tenants_instance_does_not_resolve(database, source):
    """G3: ids of other tenants are unknown, not empty."""
    platform, other = Platform(database=database), Platform(database=database)
    instance = other.add()
    with pytest.raises(RetentionError) as refusal:
        source.facts(platform.tenant, instance, DUE)
    assert refusal.value.code is Code.INSTANCE_UNKNOWN


@pytest.mark.parametrize("tenant", ["", "not a uuid", "'; DROP TABLE nucleus.tenants; --"])
def test_an_empty_or_mistyped_tenant_is_an_error_and_never_zero_rows(source, tenant):
    """F11, F17."""
    with pytest.raises(RetentionError):
        source.inventory(tenant, DUE)


def test_the_database_selects_exactly_what_the_rule_decides(database, source):
    """W3: the condition in SQL and the pure function agree on every kind of instance of the sample."""
    tenants = tuple(
        sample.SampleTenant(alias=t.alias, default_retention_days=t.default_retention_days, instances=400)
        for t in sample.SAMPLE
    )
    as_of = datetime(2026, 6, 1, tzinfo=UTC)
    sample.seed(database.superuser_url, tenants, as_of)
    sample.add_drift(database.superuser_url, tenants)
    seen = set()
    for tenant in tenants:
        with source.session.transaction(tenant.id, read_only=True) as cursor:
            statements = FactStatements(dataset=source.catalog.instances, shape=source.shape(cursor))
            columns = ", ".join(statements.fact_columns())
            statement = statements.facts(some=False)
            query = (
                f"SELECT {columns}, {statements.eligible().as_string(cursor)} FROM ({statement.as_string(cursor)}) AS f"
            )
            for row in rows(cursor, query, {"tenant": tenant.id, "as_of": as_of}):
                decision = decide(statements.read_facts(row[:-1]))
                seen.add(decision.disposition)
                assert decision.go == row[-1]
    assert {"eligible", "foreign_rows", "missing_epoch", "bad_period", "unlimited_retention", "not_terminal"} <= seen


@pytest.mark.parametrize("login", ["postgres", "platform_owner"])
def test_a_role_that_row_level_security_does_not_bind_is_refused(database, login):
    """F11: superuser, or owner of the product's tables."""
    password = database.server.superuser_password if login == "postgres" else PASSWORD
    session = Session(url=database.server.url(login, password, database.name))
    with pytest.raises(RetentionError) as refusal, session.transaction(None):
        pass
    assert refusal.value.code is Code.ROLE_UNSAFE
