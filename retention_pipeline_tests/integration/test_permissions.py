"""Who may do what: at the command line, and no more than that in psql (SPEC G3)."""

import psycopg
import pytest

SECRET = '{"access_key": "AKIAEXAMPLE", "secret_key": "kept-to-ourselves"}'
NEEDED = {
    ("profile", "set", "--provider", "filesystem", "--archive-retention-days", "0"): "profile_manage",
    ("profile", "readiness"): "profile_manage",
    ("secret", "put"): "profile_manage",
    ("secret", "list"): "profile_manage",
    ("secret", "revoke", "0b7c3c3e-0000-4000-8000-000000000000", "--reason", "r"): "profile_manage",
    ("grant", "list"): "grant",
    ("grant", "add", "worker", "read"): "grant",
    ("grant", "remove", "worker", "read"): "grant",
    ("approve", "reconcile", "--reason", "r"): "reconcile",
    ("hold", "0b7c3c3e-0000-4000-8000-000000000000", "--reason", "r"): "legal_hold",
    ("egress", "show"): "egress",
    ("egress", "allow", "https://s3.example.org", "--reason", "r"): "egress",
}


@pytest.mark.parametrize(("words", "permission"), NEEDED.items(), ids=lambda value: "-".join(value[:2]))
def test_a_clerk_is_denied_and_the_denial_is_recorded(desk, words, permission):
    answer = desk.call(*words, login="clerk", text=SECRET)
    assert (answer.code, answer.error) == (3, "RETENTION_PERMISSION_DENIED")
    assert permission in answer.json["error"]["message"]
    assert "grant add" in answer.json["error"]["remedy"]
    [event] = desk.audit("denied")
    assert event["actor"] == "clerk"
    assert permission in event["details"]["permission"]
    assert event["subject"] == " ".join(
        w
        for w in words[:2]
        if w in {words[0], "set", "readiness", "put", "list", "revoke", "add", "remove", "show", "allow"}
    )


def test_a_permission_can_be_given_and_taken(desk):
    desk.done("grant", "add", "clerk", "profile_manage", "--reason", "stands in")
    assert desk.call("secret", "list", login="clerk").code == 0
    grants = desk.done("grant", "list")["grants"]
    assert {"login": "clerk", "permission": "workflow_retention:profile_manage", "everywhere": False} in grants
    desk.done("grant", "remove", "clerk", "workflow_retention:profile_manage")
    assert desk.call("secret", "list", login="clerk").error == "RETENTION_PERMISSION_DENIED"
    assert [e["actor"] for e in desk.audit("grant.add") if e["subject"] == "clerk"] == ["admin"]


def test_a_permission_ends_at_its_tenant(desk):
    desk.done("grant", "add", "clerk", "grant")
    other = type(desk.platform)(database=desk.database)
    alias = other.value("SELECT alias FROM nucleus.tenants WHERE id = %s", other.tenant)
    assert desk.call("grant", "list", login="clerk").code == 0
    assert desk.call("grant", "list", login="clerk", tenant=alias).error == "RETENTION_PERMISSION_DENIED"
    everywhere = desk.call("grant", "add", "clerk", "read", "--everywhere", login="clerk")
    assert everywhere.error == "RETENTION_PERMISSION_DENIED"


def test_the_last_administrator_stays(desk):
    answer = desk.call("grant", "remove", "admin", "grant", "--everywhere")
    assert (answer.code, answer.error) == (3, "RETENTION_USAGE")
    assert desk.call("grant", "list").code == 0


def test_a_misspelt_login_gets_nothing(desk):
    assert desk.call("grant", "add", "clrek", "read").error == "RETENTION_USAGE"


def test_egress_is_not_a_tenants_to_have(desk):
    assert desk.call("grant", "add", "clerk", "egress").error == "RETENTION_USAGE"
    desk.done("grant", "add", "clerk", "egress", "--everywhere", tenant=None)
    assert desk.call("egress", "show", login="clerk", tenant=None).code == 0


FORBIDDEN = {
    "grant": "INSERT INTO retention.grant_events (tenant_id, principal, permission, action)"
    " VALUES (%(tenant)s, 'clerk', 'workflow_retention:read', 'add')",
    "grant everywhere": "INSERT INTO retention.grant_events (tenant_id, principal, permission, action)"
    " VALUES ('*', 'clerk', 'workflow_retention:read', 'add')",
    "hold": "INSERT INTO retention.hold_events (tenant_id, instance_id, matter, action, reason, correlation)"
    " VALUES (%(tenant)s, 'i', 'm', 'hold', 'r', 'c')",
    "approval": "INSERT INTO retention.approvals (tenant_id, job, kind, max_items, expires_at, reason)"
    " VALUES (%(tenant)s, 'reconcile', 'standing', 1, now() + interval '1 day', 'r')",
    "profile": "INSERT INTO retention.profiles (tenant_id, generation, provider, configuration, archive_retention_days)"
    " VALUES (%(tenant)s, 1, 'filesystem', '{}', 0)",
    "tenant key": "INSERT INTO retention.tenant_keys (tenant_id, generation, key_id, root_key_id, ciphertext)"
    " VALUES (%(tenant)s, 1, 'k', 'r', '')",
    "egress": "INSERT INTO retention.setting_events (name, value, reason)"
    " VALUES ('workflow.archive.egress.mode', '\"open\"', 'r')",
    "audit": "INSERT INTO retention.audit_events (tenant_id, actor, kind, outcome) VALUES (%(tenant)s, 'x', 'k', 'done')",
    "readiness": "INSERT INTO retention.readiness_events (tenant_id, profile_generation, ready, codes)"
    " VALUES (%(tenant)s, 1, true, '{}')",
    "delete": "DELETE FROM nucleus.workflow_instances",
    "another's name": "INSERT INTO retention.grant_events (tenant_id, principal, permission, action, actor)"
    " VALUES (%(tenant)s, 'clerk', 'workflow_retention:read', 'add', 'admin')",
}


@pytest.mark.parametrize("statement", FORBIDDEN.values(), ids=FORBIDDEN)
def test_plain_sql_can_do_no_more(desk, statement):
    with psycopg.connect(desk.database.url("clerk")) as connection:
        connection.execute("SELECT set_config('retention.tenant_id', %s, false)", [desk.platform.tenant])
        with pytest.raises((psycopg.errors.InsufficientPrivilege, psycopg.errors.CheckViolation)):
            connection.execute(statement, {"tenant": desk.platform.tenant})


@pytest.mark.parametrize(
    "table", ["profiles", "secrets", "tenant_keys", "setting_events", "grant_events", "hold_events"]
)
def test_plain_sql_reads_no_more(desk, table):
    desk.done("profile", "set", "--provider", "filesystem", "--archive-retention-days", "0")
    desk.done("secret", "put", text=SECRET)
    desk.done("egress", "allow", "https://s3.example.org", "--reason", "r")
    desk.done("hold", desk.platform.add(), "--reason", "r")
    with psycopg.connect(desk.database.url("clerk")) as connection:
        connection.execute("SELECT set_config('retention.tenant_id', %s, false)", [desk.platform.tenant])
        assert connection.execute(f"SELECT count(*) FROM retention.{table}").fetchone() == (0,)
        assert connection.execute("SELECT * FROM retention.profile_status()").fetchall() == []


def test_an_operator_cannot_add_a_later_tenant_key(desk):
    with psycopg.connect(desk.database.operator_url) as connection:
        connection.execute("SELECT set_config('retention.tenant_id', %s, false)", [desk.platform.tenant])
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute(
                "INSERT INTO retention.tenant_keys (tenant_id, generation, key_id, root_key_id, ciphertext)"
                " VALUES (%s, 2, 'k', 'r', '')",
                [desk.platform.tenant],
            )


def test_nobody_acts_in_another_name(desk):
    with psycopg.connect(desk.database.operator_url) as connection:
        connection.execute("SELECT set_config('retention.tenant_id', %s, false)", [desk.platform.tenant])
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute(
                FORBIDDEN["another's name"].replace("'admin'", "'clerk'"), {"tenant": desk.platform.tenant}
            )


def test_no_constraint_asks_who_restores_a_dump(desk):
    found = desk.platform.value(
        "SELECT count(*) FROM pg_constraint WHERE connamespace = 'retention'::regnamespace"
        " AND pg_get_constraintdef(oid) ~* 'session_user|current_user|clock_timestamp|\\mnow\\M'"
    )
    assert found == 0
