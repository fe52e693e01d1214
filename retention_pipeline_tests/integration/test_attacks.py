"""Somebody with one login and psql: what the command line would refuse, the database refuses as well (SPEC G1, G3, G4)."""

import threading
import uuid
from contextlib import contextmanager

import psycopg
import pytest

from retention_pipeline_tests.seams import VERIFIED, acting

HOLD = (
    "INSERT INTO retention.hold_events ({more}tenant_id, instance_id, matter, action, reason, correlation) {override}"
    " VALUES ({values}%(tenant)s, %(instance)s, 'm', %(action)s, 'r', 'c')"
)


@contextmanager
def as_login(bench, platform, login):
    with psycopg.connect(bench.database.url(login), autocommit=True) as connection:
        for setting in ("nucleus.tenant_id", "retention.tenant_id"):
            connection.execute("SELECT set_config(%s, %s, false)", [setting, platform.tenant])
        yield connection


@pytest.fixture
def platform(shared):
    return shared.platform()


@pytest.fixture
def admin(shared, platform):
    with as_login(shared, platform, "admin") as connection:
        yield connection


DOMAIN = """
CREATE FUNCTION pg_temp.runs() RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  IF current_user <> session_user THEN RAISE EXCEPTION 'as %', current_user; END IF;
  RETURN true;
END $$;
CREATE DOMAIN pg_temp.{name} AS pg_catalog.{name} CHECK (pg_temp.runs());
"""


@pytest.mark.parametrize("name", ["jsonb", "text"])
def test_no_type_of_a_callers_own_runs_in_a_function_that_sees_all_tenants(shared, platform, name):
    """G3: PostgreSQL looks for types in the caller's temporary schema first, unless a search path says otherwise."""
    instance = platform.add()
    with as_login(shared, platform, "admin") as admin:
        admin.execute(DOMAIN.format(name=name))
        admin.execute(
            HOLD.format(more="", override="", values=""),
            {"tenant": platform.tenant, "instance": instance, "action": "hold"},
        )
        assert admin.execute("SELECT retention.resolve_instance(%s)", [instance.upper()]).fetchone() == (instance,)


@pytest.mark.parametrize("spelt", ["upper", "unknown", "another tenant's", "none"])
def test_a_hold_is_on_an_instance_that_the_tenant_has_in_its_own_spelling(shared, platform, admin, spelt):
    """G1: one on any other id would protect nothing, and nobody would know."""
    own, theirs = platform.add(), shared.platform().add()
    instance = {"upper": own.upper(), "unknown": str(uuid.uuid4()), "another tenant's": theirs, "none": "x"}[spelt]
    with pytest.raises(psycopg.Error) as refusal:
        admin.execute(
            HOLD.format(more="", override="", values=""),
            {"tenant": platform.tenant, "instance": instance, "action": "hold"},
        )
    assert refusal.value.sqlstate == ("22P02" if spelt == "none" else "RT042")


FAR = "9223372036854775807"


@pytest.mark.parametrize("identifier", ["1", FAR])
def test_no_hold_event_takes_a_place_of_its_own_choice(shared, platform, admin, identifier):
    """G1: the latest event of a matter counts, and which one that is nobody chooses."""
    instance = platform.add()
    values = {"tenant": platform.tenant, "instance": instance}
    admin.execute(
        HOLD.format(more="id, at, ", override="OVERRIDING SYSTEM VALUE", values=f"{identifier}, '2001-01-01', "),
        {**values, "action": "release"},
    )
    admin.execute(HOLD.format(more="", override="", values=""), {**values, "action": "hold"})
    assert not shared.reconcile(platform).report.counts.deleted
    assert platform.value("SELECT count(*) FROM retention.hold_events WHERE at < now() - interval '1 hour'") == 0


def test_of_a_release_and_a_hold_that_waits_for_it_the_hold_counts(shared, platform, admin):
    """G1: whoever comes second at the instance's lock is the latest, not whoever drew a number first."""
    instance = platform.add()
    values = {"tenant": platform.tenant, "instance": instance}
    event = HOLD.format(more="", override="", values="")
    with as_login(shared, platform, "admin") as other:
        with admin.transaction():
            admin.execute("SELECT pg_advisory_xact_lock(retention.instance_lock(%(tenant)s, %(instance)s))", values)
            held = threading.Thread(target=other.execute, args=(event, {**values, "action": "hold"}))
            held.start()
            waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'advisory' AND datname = %s"
            while not platform.value(waiting, shared.database.name):
                pass
            admin.execute(event, {**values, "action": "release"})
        held.join()
    assert not shared.reconcile(platform).report.counts.deleted


def test_a_grant_can_always_be_taken_away(shared, platform, admin):
    """G3."""
    grant = (
        "INSERT INTO retention.grant_events ({id}tenant_id, principal, permission, action) {override}"
        " VALUES ({value}%s, 'clerk', 'workflow_retention:read', %s)"
    )
    admin.execute(
        grant.format(id="id, ", override="OVERRIDING SYSTEM VALUE", value=f"{FAR}, "), [platform.tenant, "add"]
    )
    admin.execute(grant.format(id="", override="", value=""), [platform.tenant, "remove"])
    with as_login(shared, platform, "clerk") as clerk:
        assert clerk.execute("SELECT retention.permitted('workflow_retention:read')").fetchone() == (False,)


def test_every_act_bears_the_databases_own_time(shared, platform, admin):
    """G1, G5: nobody approves, holds or acknowledges yesterday."""
    preflight = shared.reconcile(platform, apply=False).preflight
    subject = platform.add()
    acts = [
        ("hold_events", "instance_id, matter, action, reason, correlation", f"'{subject}', 'm', 'hold', 'r', 'c'"),
        ("grant_events", "principal, permission, action", "'clerk', 'workflow_retention:read', 'remove'"),
        ("acknowledgements", "preflight_id, reason", f"'{preflight}', 'r'"),
        ("approvals", "job, kind, max_items, expires_at, reason", "'reconcile', 'standing', 1, now() + interval '1 h', 'r'"),
        ("expiry_acknowledgements", "archives, due, reason", "0, 0, 'r'"),
        ("secret_revocations", "id, reason", "gen_random_uuid(), 'r'"),
    ]  # fmt: skip
    for table, columns, values in acts:
        admin.execute(
            f"INSERT INTO retention.{table} (tenant_id, at, {columns}) VALUES ('{platform.tenant}', '2001-01-01', {values})"
        )
        wrong = f"SELECT count(*) FROM retention.{table} WHERE at < now() - interval '1 hour' AND tenant_id = %s"
        assert platform.value(wrong, platform.tenant) == 0, table


APPROVAL = (
    "INSERT INTO retention.approvals (tenant_id, job, subject, kind, max_items, expires_at, reason, at)"
    " VALUES (%(tenant)s, %(job)s, %(subject)s, %(kind)s, %(items)s, now() + %(lasts)s::interval, 'r',"
    " now() + %(later)s::interval)"
)
GOOD = {"job": "reconcile", "subject": None, "kind": "single_use", "items": 10_000, "lasts": "6 days", "later": "0"}
ONE = {"job": "archive", "subject": "0b7c3c3e-0000-4000-8000-000000000000", "items": 1}


@pytest.mark.parametrize(
    "beyond",
    [
        {"items": 10_001},
        {"items": 2**31 - 1},
        {"lasts": "8 days"},
        {"lasts": "1000 years", "later": "999 years"},
        {"kind": "standing", "lasts": "367 days"},
        {"subject": "x"},
        {"job": "expire", "subject": "x"},
        {**ONE, "subject": None},
        {**ONE, "kind": "standing"},
        {**ONE, "job": "restore", "subject": None},
        {**ONE, "job": "recovery_cancel", "kind": "standing"},
        {**ONE, "job": "store_detach", "subject": None},
    ],
    ids=str,
)
def test_plain_sql_approves_no_more_than_the_command_line(platform, admin, beyond):
    """G4: bounded in job, count and time, whoever gives it."""
    with pytest.raises(psycopg.errors.CheckViolation):
        admin.execute(APPROVAL, {"tenant": platform.tenant, **GOOD, **beyond})


@pytest.mark.parametrize("within", [{}, ONE, {"kind": "standing", "lasts": "365 days"}, {"job": "expire"}], ids=str)
def test_plain_sql_approves_as_much_as_the_command_line(platform, admin, within):
    """G4."""
    admin.execute(APPROVAL, {"tenant": platform.tenant, **GOOD, **within})


def test_nobody_acknowledges_another_tenants_preflight(shared, platform, admin):
    """G8, W10."""
    other = shared.platform()
    theirs = shared.reconcile(other, apply=False).preflight
    with pytest.raises(psycopg.errors.ForeignKeyViolation):
        admin.execute(
            "INSERT INTO retention.acknowledgements (tenant_id, preflight_id, reason) VALUES (%s, %s, 'r')",
            [platform.tenant, theirs],
        )


def test_who_gives_permissions_takes_that_one_from_nobody_but_others(platform, admin):
    """G3: in plain SQL neither, so that one administrator is always left."""
    take = "INSERT INTO retention.grant_events (tenant_id, principal, permission, action) VALUES (%s, %s, %s, 'remove')"
    for scope in (platform.tenant, "*"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            admin.execute(take, [scope, "admin", "workflow_retention:grant"])
    admin.execute(take, [platform.tenant, "clerk", "workflow_retention:grant"])


def test_egress_is_no_tenants_to_have_in_plain_sql(platform, admin):
    """A14, G3."""
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        admin.execute(
            "INSERT INTO retention.grant_events (tenant_id, principal, permission, action) VALUES (%s, 'clerk', %s, 'add')",
            [platform.tenant, "workflow_retention:egress"],
        )


@pytest.mark.parametrize("scope", ["no such tenant", "", None])
def test_a_denial_is_recorded_for_a_tenant_in_whose_name_it_happened(shared, platform, scope):
    """G3: nobody opens a chain of their own in the audit record."""
    deny = "SELECT retention.audit_denial(%s, 'p', 'c', 'c')"
    with as_login(shared, platform, "clerk") as clerk:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            clerk.execute(deny, [scope])
        clerk.execute("SELECT set_config('retention.tenant_id', %s, false)", [scope])
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            clerk.execute(deny, [scope])


@pytest.mark.parametrize("generation", [0, 7, 2**31 - 1])
@pytest.mark.parametrize("table", ["profiles", "secrets"])
def test_no_generation_is_left_out(shared, admin, platform, table, generation):
    """A12, A13: after the last one there would be no next."""
    insert = {
        "profiles": "INSERT INTO retention.profiles (tenant_id, generation, provider, configuration, archive_retention_days)"
        " VALUES (%s, %s, 'filesystem', '{}', 0)",
        "secrets": "INSERT INTO retention.secrets (tenant_id, id, generation, key_id, ciphertext)"
        " VALUES (%s, '0b7c3c3e-0000-4000-8000-000000000000', %s, 'k', '')",
    }[table]
    with pytest.raises(psycopg.errors.CheckViolation):
        admin.execute(insert, [platform.tenant, generation])


@pytest.mark.parametrize("column", ["archives", "due"])
def test_nobody_accepts_more_archives_than_there_are(shared, platform, admin, column):
    """G8: a made-up number would take the brake off for good."""
    platform.add()
    shared.reconcile(platform)
    accept = "INSERT INTO retention.expiry_acknowledgements (tenant_id, archives, due, reason) VALUES (%s, %s, %s, 'r')"
    admin.execute(accept, [platform.tenant, 1, 1])
    with pytest.raises(psycopg.errors.CheckViolation):
        admin.execute(accept, [platform.tenant, *((2, 0) if column == "archives" else (0, 10**15))])


# -- the worker's login and psql --------------------------------------------------------------------------------------


@pytest.fixture
def worker(shared, platform):
    with as_login(shared, platform, "worker") as connection:
        yield connection


def verified(shared, platform, *, explicit=False):
    """An instance whose archive was proven just now under an approval, and whose deletion was stopped."""
    instance = platform.add(contexts=0)

    def stop():
        raise RuntimeError

    world = acting(shared.world, VERIFIED, stop)
    with pytest.raises(RuntimeError):
        shared.explicit(platform, instance, world=world) if explicit else shared.reconcile(platform, world=world)
    return instance


DELETE = """
DO $$
BEGIN
  DELETE FROM nucleus.workflow_action_checkpoints WHERE execution_id IN (
    SELECT id FROM nucleus.workflow_executions WHERE instance_id = '{0}');
  DELETE FROM nucleus.workflow_executions WHERE instance_id = '{0}';
  DELETE FROM nucleus.workflow_terminal_epochs WHERE instance_id = '{0}';
  DELETE FROM nucleus.workflow_instances WHERE id = '{0}';
  UPDATE retention.attempts SET state = 'source_deleted', source_deleted_at = now() WHERE instance_id = '{0}';
  INSERT INTO retention.receipts (attempt_id, tenant_id, instance_id, epoch, approval_id, actor, run, rows_by_table, deleted_at)
  SELECT t.id, t.tenant_id, instance_id, epoch, approval_id, {actor}, run, '{{}}', {at}
  FROM retention.attempts AS t JOIN retention.approvals AS a ON a.id = approval_id WHERE instance_id = '{0}';
END $$
"""
HONEST = {"actor": "a.actor", "at": "clock_timestamp()"}


@pytest.mark.parametrize(
    ("lie", "state"),
    [({"actor": "'a'"}, "RT010"), ({"at": "'infinity'"}, "RT003"), ({"at": "now() - interval '1 s'"}, "RT003")],
    ids=["the name", "a time to come", "a time that is over"],
)
def test_a_receipt_bears_the_approvers_name_and_the_time_of_the_deletion(shared, platform, worker, lie, state):
    """G4, A7: one for all time would stand for every deletion of the same instance to come."""
    instance = verified(shared, platform)
    with pytest.raises(psycopg.Error) as error:
        worker.execute(DELETE.format(instance, **{**HONEST, **lie}))
    assert error.value.sqlstate == state
    assert platform.exists(instance)


@pytest.mark.parametrize("explicit", [False, True], ids=["periodic", "explicit, and nothing is bound"])
def test_a_worker_deletes_no_held_instance(shared, platform, worker, explicit):
    """G1, A9: though its archive is proven and its deletion approved."""
    instance = verified(shared, platform, explicit=explicit)
    platform.hold(instance)
    before = shared.rows(platform, instance)
    with pytest.raises(psycopg.Error) as error:
        worker.execute(DELETE.format(instance, **HONEST))
    assert error.value.sqlstate == "RT040"
    assert shared.rows(platform, instance) == before
    platform.hold(instance, action="release")
    worker.execute(DELETE.format(instance, **HONEST))
    assert not platform.exists(instance)


@pytest.mark.parametrize(
    "change",
    [
        "verified_at = now() + interval '1 hour'",
        "state = 'source_deleted', source_deleted_at = now() - interval '20 years'",
        "state = 'source_deleted', source_deleted_at = 'infinity'",
        "state = 'superseded', ended_at = now() - interval '31 days'",
    ],
)
def test_a_worker_moves_no_instant_of_an_archive(shared, platform, worker, change):
    """A7, A10: a proof does not last longer, and no period ends sooner, than it does."""
    instance = verified(shared, platform)
    with pytest.raises(psycopg.Error) as error:
        worker.execute(f"UPDATE retention.attempts SET {change} WHERE instance_id = %s", [instance])
    assert error.value.sqlstate == "RT041"
