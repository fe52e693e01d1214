"""A dead letter is closed under its fence, and a store detached when nothing is bound: once, by whom it was approved (SPEC G2, W9)."""

import time
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from retention_pipeline.catalog.loader import parse
from retention_pipeline.keys.local import LocalKeyring
from retention_pipeline.postgres.migrate import migrate
from retention_pipeline_tests.desks import Desk
from retention_pipeline_tests.integration.test_catalog_check import SHIPPED
from retention_pipeline_tests.integration.test_restore import archive, put_back
from retention_pipeline_tests.rows import Platform, new_id
from retention_pipeline_tests.worlds import NOW

DEAD_LETTER = "SELECT to_jsonb(d) FROM nucleus.workflow_dead_letters AS d WHERE id = %s"
STORE = "SELECT to_jsonb(s) FROM nucleus.workflow_stores AS s WHERE id = %s"


@pytest.fixture(scope="module")
def desk(module_database, tmp_path_factory):
    """One desk for all the tests here; each has its own tenant's rows or only looks."""
    home = tmp_path_factory.mktemp("home")
    LocalKeyring.create(home / "keyring.json")
    platform = Platform(database=module_database)
    alias = platform.value("SELECT alias FROM nucleus.tenants WHERE id = %s", platform.tenant)
    return Desk(database=module_database, home=home, platform=platform, alias=str(alias))


@pytest.fixture
def neighbour(desk):
    return Platform(database=desk.database)


def letter_of(platform, status="open", fence=7):
    return platform.child("dead_letters", platform.add(), status=status, fence=fence, error="a customer's name")


def store_of(platform):
    store = new_id()
    platform.run(
        "INSERT INTO nucleus.workflow_stores (id, tenant_id, name) VALUES (%s, %s, 'documents')", store, platform.tenant
    )
    return store


def bind(platform, store, instance=None, tenant=None):
    platform.run(
        "INSERT INTO nucleus.workflow_store_bindings (store_id, instance_id, tenant_id) VALUES (%s, %s, %s)",
        store,
        instance or platform.add(),
        tenant or platform.tenant,
    )


def cancel(desk, letter, *more, fence=7, **how):
    words = ("recovery", "cancel", letter, "--expected-fence", str(fence), "--reason", "paid by hand", *more)
    return desk.call(*words, **how)


def detach(desk, store, *more, **how):
    return desk.call("store", "detach", store, "--reason", "moved", *more, **how)


def acts(desk, kind, subject):
    return [event for event in desk.audit(kind) if event["subject"] == subject]


def uses(desk, subject):
    """Approvals of one subject, and how often each was used."""
    return desk.platform.connection.execute(
        "SELECT a.actor, a.job, count(u.run) FROM retention.approvals AS a LEFT JOIN retention.approval_uses AS u"
        " ON u.approval_id = a.id WHERE a.subject = %s GROUP BY a.id, a.actor, a.job",
        [subject],
    ).fetchall()


@pytest.fixture
def engine(desk):
    """The platform itself: it writes with its triggers on."""
    with psycopg.connect(desk.database.owner_url, autocommit=True) as connection:
        connection.execute("SELECT set_config('nucleus.tenant_id', %s, false)", [desk.platform.tenant])
        yield connection


BIND = "INSERT INTO nucleus.workflow_store_bindings (store_id, instance_id, tenant_id) VALUES (%s, %s, %s)"


# -- dead letters


def test_without_apply_it_is_looked_at_and_stays(desk):
    """G2."""
    letter = letter_of(desk.platform)
    before = desk.platform.value(DEAD_LETTER, letter)
    seen = cancel(desk, letter.upper()).json
    assert (seen["dead_letter"], seen["status"], seen["fence"], seen["would_close"]) == (letter, "open", 7, True)
    assert seen["outcome"] == "preflight"
    stale = cancel(desk, letter, fence=6).json
    assert (stale["would_close"], stale["code"]) == (False, "RETENTION_FENCE_STALE")
    assert desk.platform.value(DEAD_LETTER, letter) == before
    assert (uses(desk, letter), acts(desk, "recovery.cancel", letter)) == ([], [])


def test_it_is_closed_with_who_why_and_under_which_fence(desk):
    """G2, G4, G5: one event, one approval that is used up, and the next fence keeps a replayer off."""
    letter = letter_of(desk.platform)
    done = cancel(desk, letter, "--apply").json
    assert (done["outcome"], done["status"], done["fence"]) == ("completed", "not_replayable", 8)
    row = desk.platform.value(DEAD_LETTER, letter)
    assert (row["status"], row["fence"], row["error"]) == ("not_replayable", 8, "a customer's name")
    assert desk.platform.value(
        "SELECT closed_at BETWEEN now() - interval '1 minute' AND clock_timestamp()"
        " FROM nucleus.workflow_dead_letters WHERE id = %s",
        letter,
    )
    [event] = acts(desk, "recovery.cancel", letter)
    assert (event["actor"], event["session_role"], event["outcome"]) == ("admin", "worker", "done")
    assert (event["reason"], event["correlation"]) == ("paid by hand", done["correlation"])
    assert event["details"]["expected_fence"] == 7
    assert "customer" not in str(event)
    assert uses(desk, letter) == [("admin", "recovery_cancel", 1)]


def test_a_replayer_with_the_old_fence_finds_nothing_left(desk):
    letter = letter_of(desk.platform)
    assert cancel(desk, letter, "--apply").code == 0
    cursor = desk.platform.connection.execute(
        "UPDATE nucleus.workflow_dead_letters SET status = 'resolved' WHERE id = %s AND fence = 7", [letter]
    )
    assert cursor.rowcount == 0


@pytest.mark.parametrize(
    ("status", "fence", "code"),
    [
        ("open", 6, "RETENTION_FENCE_STALE"),
        ("open", 8, "RETENTION_FENCE_STALE"),
        ("resolved", 7, "RETENTION_RECOVERY_CLOSED"),
        ("not_replayable", 7, "RETENTION_RECOVERY_CLOSED"),
        ("resolved", 6, "RETENTION_RECOVERY_CLOSED"),
    ],
)
def test_a_stale_fence_or_a_closed_letter_is_refused_and_changes_nothing(desk, status, fence, code):
    """G2; the refusal is on record, and its approval is good for nothing else."""
    letter = letter_of(desk.platform, status=status)
    before = desk.platform.value(DEAD_LETTER, letter)
    answer = cancel(desk, letter, "--apply", fence=fence)
    assert (answer.code, answer.error) == (3, code)
    assert desk.platform.value(DEAD_LETTER, letter) == before
    [event] = acts(desk, "recovery.cancel", letter)
    assert (event["outcome"], event["code"], event["actor"]) == ("refused", code, "admin")
    assert uses(desk, letter) == [("admin", "recovery_cancel", 1)]


def test_another_tenants_letter_and_a_misspelt_one_do_not_resolve(desk, neighbour):
    """A13's rule for every id."""
    foreign = letter_of(neighbour)
    for wanted in (foreign, new_id(), "no uuid", ""):
        for more in ((), ("--apply",)):
            answer = cancel(desk, wanted, *more)
            assert (answer.code, answer.error) == (3, "RETENTION_RECOVERY_UNKNOWN")
    assert neighbour.value(DEAD_LETTER, foreign)["status"] == "open"
    assert uses(desk, foreign) == []


def test_a_closed_letter_still_protects_its_instance(desk, neighbour, shared):
    """G2, W3: until its own horizon is over."""
    letter = letter_of(neighbour)
    alias = neighbour.value("SELECT alias FROM nucleus.tenants WHERE id = %s", neighbour.tenant)
    before = shared.world.source.inventory(neighbour.tenant, NOW)
    assert cancel(desk, letter, "--apply", tenant=alias).code == 0
    after = shared.world.source.inventory(neighbour.tenant, NOW)
    assert after.blockers["dead_letter"] == before.blockers["dead_letter"] == 1
    assert (after.eligible, after.blocked_due) == (0, 1)


def test_two_cancels_at_once_one_wins(desk):
    letter = letter_of(desk.platform)
    answers = at_once(desk, "SELECT outcome FROM retention.cancel_recovery(%s, %s, 7, 'c')", "recovery_cancel", letter)
    assert sorted(answers) == [("closed",), ("not_open",)]
    assert desk.platform.value(DEAD_LETTER, letter)["fence"] == 8
    assert sorted(event["outcome"] for event in acts(desk, "recovery.cancel", letter)) == ["done", "refused"]


def at_once(desk, call, job, subject):
    """Two workers, each with an approval of its own; the second one surely waits for the first."""
    approvals = [approve(desk, job, subject) for _ in range(2)]
    with worker(desk) as first, worker(desk) as second, ThreadPoolExecutor(1) as pool:
        first.execute("BEGIN")
        answer = first.execute(call, [approvals[0], subject]).fetchone()
        waiting = pool.submit(lambda: second.execute(call, [approvals[1], subject]).fetchone())
        wait_for_a_lock(desk)
        first.execute("COMMIT")
        return [answer, waiting.result()]


@pytest.mark.parametrize(("end", "code", "status"), [("COMMIT", 3, "open"), ("ROLLBACK", 0, "not_replayable")])
def test_a_canceller_waits_for_a_replayer_that_was_first(desk, engine, end, code, status):
    """G2: whoever has the row first wins; the other sees the new fence."""
    letter = letter_of(desk.platform)
    with ThreadPoolExecutor(1) as pool:
        engine.execute("BEGIN")
        engine.execute("UPDATE nucleus.workflow_dead_letters SET fence = fence + 1 WHERE id = %s", [letter])
        answer = pool.submit(cancel, desk, letter, "--apply")
        wait_for_a_lock(desk)
        engine.execute(end)
        assert answer.result().code == code
    assert desk.platform.value(DEAD_LETTER, letter)["status"] == status


def test_a_replayer_that_waited_for_a_canceller_finds_another_fence(desk, engine):
    """G2: and the platform's own login, which may be the one that migrates, gets an answer and no error."""
    letter = letter_of(desk.platform)
    approval = approve(desk, "recovery_cancel", letter)
    replay = "UPDATE nucleus.workflow_dead_letters SET status = 'resolved', fence = 8 WHERE id = %s AND fence = 7"
    with worker(desk) as connection, ThreadPoolExecutor(1) as pool:
        connection.execute("BEGIN")
        connection.execute("SELECT retention.cancel_recovery(%s, %s, 7, 'c')", [approval, letter])
        replayed = pool.submit(engine.execute, replay, [letter])
        wait_for_a_lock(desk)
        connection.execute("COMMIT")
        assert replayed.result().rowcount == 0
    assert desk.platform.value(DEAD_LETTER, letter)["status"] == "not_replayable"


def wait_for_a_lock(desk):
    for _ in range(200):
        waiting = desk.platform.value(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND wait_event_type = 'Lock'", desk.database.name
        )
        if waiting:
            return
        time.sleep(0.02)
    raise AssertionError("nobody waited")


# -- plain SQL


def worker(desk):
    connection = psycopg.connect(desk.database.worker_url, autocommit=True)
    for name in ("retention.tenant_id", "nucleus.tenant_id"):
        connection.execute("SELECT set_config(%s, %s, false)", [name, desk.platform.tenant])
    return connection


def approve(desk, job, subject, *, login="admin"):
    with psycopg.connect(desk.database.url(login), autocommit=True) as connection:
        connection.execute("SELECT set_config('retention.tenant_id', %s, false)", [desk.platform.tenant])
        approval = new_id()  # the operator reads nothing back
        connection.execute(
            "INSERT INTO retention.approvals (id, tenant_id, job, subject, kind, max_items, expires_at, reason)"
            " VALUES (%s, %s, %s, %s, 'single_use', 1, now() + interval '1 hour', 'r')",
            [approval, desk.platform.tenant, job, subject],
        )
    return approval


def test_the_workers_login_without_an_approval_for_this_very_letter_can_do_nothing(desk):
    """G4: neither by an update nor by the function."""
    letter, other = letter_of(desk.platform), letter_of(desk.platform)
    spent = approve(desk, "recovery_cancel", letter)
    call = "SELECT outcome FROM retention.cancel_recovery(%s, %s, 7, 'c')"
    with worker(desk) as connection:
        assert connection.execute(call, [spent, letter]).fetchone() == ("closed",)
        for approval in (
            spent,
            new_id(),
            approve(desk, "recovery_cancel", letter),
            approve(desk, "store_detach", other),
        ):
            with pytest.raises(psycopg.Error) as caught:
                connection.execute(call, [approval, other])
            assert caught.value.sqlstate == "RT010"
        for column in ("status = 'not_replayable'", "fence = 8", "closed_at = now()", "error = NULL"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(f"UPDATE nucleus.workflow_dead_letters SET {column} WHERE id = %s", [other])
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("SELECT retention.take_approval(%s, 'store_detach', %s, 'r')", [spent, other])
    assert desk.platform.value(DEAD_LETTER, other)["status"] == "open"


def test_an_approval_whose_giver_lost_the_permission_closes_nothing(desk):
    desk.done("grant", "add", "clerk", "workflow_recovery:cancel")
    letter = letter_of(desk.platform)
    approval = approve(desk, "recovery_cancel", letter, login="clerk")
    desk.done("grant", "remove", "clerk", "workflow_recovery:cancel")
    with worker(desk) as connection, pytest.raises(psycopg.Error) as caught:
        connection.execute("SELECT retention.cancel_recovery(%s, %s, 7, 'c')", [approval, letter])
    assert caught.value.sqlstate == "RT010"


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT retention.cancel_recovery(gen_random_uuid(), 'x', 1, 'c')",
        "SELECT retention.detach_store(gen_random_uuid(), 'x', 'c')",
        "SELECT retention.take_approval(gen_random_uuid(), 'store_detach', 'x', 'c')",
        "UPDATE nucleus.workflow_dead_letters SET status = 'not_replayable'",
        "SELECT * FROM nucleus.workflow_stores",
        "UPDATE nucleus.workflow_stores SET detached_at = now()",
        "INSERT INTO retention.approval_uses (approval_id, run, tenant_id, single_use) VALUES (gen_random_uuid(), 'r', 't', true)",
    ],
)
@pytest.mark.parametrize("login", ["admin", "clerk"])
def test_an_operator_in_psql_can_do_no_more(desk, login, statement):
    """G3."""
    with psycopg.connect(desk.database.url(login)) as connection:
        for name in ("retention.tenant_id", "nucleus.tenant_id"):
            connection.execute("SELECT set_config(%s, %s, false)", [name, desk.platform.tenant])
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute(statement)


def test_the_one_permission_is_enough(desk):
    """G3: who may cancel need not be allowed to read, nor to detach."""
    letter, store = letter_of(desk.platform), store_of(desk.platform)
    desk.done("grant", "add", "clerk", "workflow_recovery:cancel")
    try:
        assert cancel(desk, letter, login="clerk").json["would_close"] is True
        assert cancel(desk, letter, "--apply", login="clerk").code == 0
        assert detach(desk, store, login="clerk").error == "RETENTION_PERMISSION_DENIED"
        assert desk.call("inventory", login="clerk").error == "RETENTION_PERMISSION_DENIED"
    finally:
        desk.done("grant", "remove", "clerk", "workflow_recovery:cancel")
    assert [event["actor"] for event in acts(desk, "recovery.cancel", letter)] == ["clerk"]


def test_a_clerk_is_denied_and_sees_nothing(desk):
    letter, store = letter_of(desk.platform), store_of(desk.platform)
    for answer in (cancel(desk, letter, "--apply", login="clerk"), detach(desk, store, login="clerk")):
        assert (answer.code, answer.error) == (3, "RETENTION_PERMISSION_DENIED")
    with psycopg.connect(desk.database.url("clerk")) as connection:
        connection.execute("SELECT set_config('retention.tenant_id', %s, false)", [desk.platform.tenant])
        assert connection.execute("SELECT * FROM retention.dead_letter(%s)", [letter]).fetchall() == []
        assert connection.execute("SELECT * FROM retention.data_store(%s)", [store]).fetchall() == []


# -- stores


def test_a_store_with_bound_instances_stays_and_archives_nothing(desk):
    """W9."""
    store, instances = store_of(desk.platform), [desk.platform.add() for _ in range(2)]
    for instance in instances:
        bind(desk.platform, store, instance)
    assert detach(desk, store).json["bound"] == 2
    answer = detach(desk, store, "--apply")
    assert (answer.code, answer.error) == (3, "RETENTION_STORE_BOUND")
    assert "2 instance(s)" in answer.json["error"]["message"]
    assert desk.platform.value(STORE, store)["detached_at"] is None
    assert all(desk.platform.exists(instance) for instance in instances)
    [event] = acts(desk, "store.detach", store)
    assert (event["outcome"], event["code"], event["details"]["bound"]) == ("refused", "RETENTION_STORE_BOUND", 2)


def test_a_binding_of_another_tenant_counts(desk, neighbour):
    """A2: row-level security hides it, and the store would be gone below it."""
    store = store_of(desk.platform)
    bind(neighbour, store)
    assert detach(desk, store, "--apply").error == "RETENTION_STORE_BOUND"


def test_a_store_is_detached_once_and_says_so_again(desk):
    """W9, G5."""
    store = store_of(desk.platform)
    assert detach(desk, store).json["would_detach"] is True
    assert desk.platform.value(STORE, store)["detached_at"] is None
    done = detach(desk, store, "--apply").json
    assert (done["outcome"], done["already_detached"]) == ("completed", False)
    row = desk.platform.value(STORE, store)
    assert (row["detached_at"] is not None, row["name"]) == (True, "documents")
    again = detach(desk, store, "--apply").json
    assert (again["already_detached"], again["detached_at"]) == (True, done["detached_at"])
    assert desk.platform.value(STORE, store) == row
    assert [event["outcome"] for event in acts(desk, "store.detach", store)] == ["done", "done"]
    assert uses(desk, store) == [("admin", "store_detach", 1)] * 2


def test_once_its_instances_are_archived_and_gone_it_detaches(desk, shared):
    """W9."""
    platform = shared.platform()
    alias = platform.value("SELECT alias FROM nucleus.tenants WHERE id = %s", platform.tenant)
    store = store_of(platform)
    bind(platform, store)
    assert detach(desk, store, "--apply", tenant=alias).error == "RETENTION_STORE_BOUND"
    assert shared.reconcile(platform).report.counts.deleted == 1
    assert detach(desk, store, "--apply", tenant=alias).code == 0


def test_another_tenants_store_and_a_misspelt_one_do_not_resolve(desk, neighbour):
    foreign = store_of(neighbour)
    for wanted in (foreign, new_id(), "no uuid"):
        answer = detach(desk, wanted, "--apply")
        assert (answer.code, answer.error) == (3, "RETENTION_STORE_UNKNOWN")
    assert neighbour.value(STORE, foreign)["detached_at"] is None


@pytest.mark.parametrize(("end", "code"), [("COMMIT", 3), ("ROLLBACK", 0)])
def test_a_binding_that_is_just_being_added_is_waited_for_and_counted(desk, engine, end, code):
    """W9."""
    store, instance = store_of(desk.platform), desk.platform.add()
    with ThreadPoolExecutor(1) as pool:
        engine.execute("BEGIN")
        engine.execute(BIND, [store, instance, desk.platform.tenant])
        answer = pool.submit(detach, desk, store, "--apply")
        wait_for_a_lock(desk)
        engine.execute(end)
        assert answer.result().code == code
    assert (desk.platform.value(STORE, store)["detached_at"] is None) == (code == 3)


def test_two_detachments_at_once_are_one(desk):
    store = store_of(desk.platform)
    call = "SELECT outcome, at FROM retention.detach_store(%s, %s, 'c')"
    first, second = at_once(desk, call, "store_detach", store)
    assert (first[0], second[0]) == ("detached", "already")
    assert first[1] == second[1]


def test_the_platforms_own_login_is_bound_by_none_of_this(desk, engine):
    """It may be the one that migrates, and so a member of every role of ours."""
    letter, store = letter_of(desk.platform), store_of(desk.platform)
    for statement, row in (
        ("UPDATE nucleus.workflow_dead_letters SET status = 'resolved', error = 'e' WHERE id = %s", letter),
        ("UPDATE nucleus.workflow_dead_letters SET status = 'open' WHERE id = %s", letter),
        ("UPDATE nucleus.workflow_stores SET name = 'n', detached_at = now() WHERE id = %s", store),
        ("UPDATE nucleus.workflow_stores SET detached_at = NULL WHERE id = %s", store),
    ):
        assert engine.execute(statement, [row]).rowcount == 1


def test_the_reference_platform_binds_nothing_to_a_detached_store(desk, engine):
    """W9: what the product asks of a platform, and the reference platform does."""
    store, instance = store_of(desk.platform), desk.platform.add()
    engine.execute(BIND, [store_of(desk.platform), instance, desk.platform.tenant])
    approval = approve(desk, "store_detach", store)
    with worker(desk) as connection, ThreadPoolExecutor(1) as pool:
        connection.execute("BEGIN")
        connection.execute("SELECT * FROM retention.detach_store(%s, %s, 'c')", [approval, store])
        binding = pool.submit(engine.execute, BIND, [store, instance, desk.platform.tenant])
        wait_for_a_lock(desk)
        connection.execute("COMMIT")
        with pytest.raises(psycopg.errors.CheckViolation):
            binding.result()


def test_an_instance_is_restored_with_its_binding_to_a_store_that_was_detached_since(desk, shared):
    """A17: exactly as it was archived."""
    platform = shared.platform()
    alias = platform.value("SELECT alias FROM nucleus.tenants WHERE id = %s", platform.tenant)
    store, instance = store_of(platform), platform.add()
    bind(platform, store, instance)
    attempt, manifest = archive(shared, platform)
    assert detach(desk, store, "--apply", tenant=alias).code == 0
    assert put_back(shared, platform, attempt, manifest).identical
    assert platform.value("SELECT count(*) FROM nucleus.workflow_store_bindings WHERE store_id = %s", store) == 1


# -- catalogs without them


def test_a_catalog_without_these_parts_says_so_and_leaves_no_way_in(database, tmp_path):
    """A platform without dead letters or stores: the functions are not there."""
    text = SHIPPED[: SHIPPED.index("# Dead letters that `recovery cancel`")]
    path = tmp_path / "catalog.yaml"
    path.write_text(text)
    migrate(database.owner_url, parse(text))
    home = tmp_path / "home"
    home.mkdir()
    platform = Platform(database=database)
    alias = platform.value("SELECT alias FROM nucleus.tenants WHERE id = %s", platform.tenant)
    desk = Desk(database=database, home=home, platform=platform, alias=str(alias))
    for answer in (
        cancel(desk, new_id(), "--apply", RETENTION_CATALOG=str(path)),
        detach(desk, new_id(), RETENTION_CATALOG=str(path)),
    ):
        assert (answer.code, answer.error) == (3, "RETENTION_CATALOG_SECTION_MISSING")
    assert desk.call("catalog", "check", tenant=None, RETENTION_CATALOG=str(path)).code == 0
    assert (
        platform.value(
            "SELECT count(*) FROM pg_proc WHERE pronamespace = 'retention'::regnamespace"
            " AND proname IN ('dead_letter', 'cancel_recovery', 'data_store', 'detach_store')"
        )
        == 0
    )


def test_a_closed_letter_of_an_enumerated_status_is_closed_all_the_same(database):
    """A platform's status may be an enumeration, its fence an integer."""
    platform = Platform(database=database)
    platform.run("ALTER TABLE nucleus.workflow_dead_letters DROP CONSTRAINT workflow_dead_letters_status_check")
    policies = platform.connection.execute(
        "SELECT policyname FROM pg_policies WHERE schemaname = 'nucleus' AND tablename = 'workflow_dead_letters'"
        " AND policyname LIKE 'retention%'"
    ).fetchall()
    for (policy,) in policies:
        platform.run(f"DROP POLICY {policy} ON nucleus.workflow_dead_letters")
    platform.run("CREATE TYPE nucleus.letter_status AS ENUM ('open', 'resolved', 'not_replayable')")
    platform.run(
        "ALTER TABLE nucleus.workflow_dead_letters ALTER status TYPE nucleus.letter_status"
        " USING status::nucleus.letter_status, ALTER fence TYPE integer"
    )
    migrate(database.owner_url, parse(SHIPPED))
    letter = letter_of(platform)
    desk = Desk(database=database, home=None, platform=platform, alias="")
    with worker(desk) as connection:
        approval = approve(desk, "recovery_cancel", letter)
        assert connection.execute(
            "SELECT outcome, was, now_fence FROM retention.cancel_recovery(%s, %s, 7, 'c')", [approval, letter]
        ).fetchone() == ("closed", "not_replayable", 8)
