"""The doctor finds each thing that is broken, by its code, and nothing that is well (SPEC O3)."""

import re
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from retention_pipeline import clock
from retention_pipeline.keys.local import LocalKeyring
from retention_pipeline.model.diagnosis import Ailment, Check, Severity, error, examine
from retention_pipeline.postgres import examine_schema
from retention_pipeline.postgres.migrate import LATEST
from retention_pipeline_tests.desks import Desk
from retention_pipeline_tests.rows import Platform, new_id

RUNBOOK = Path(__file__).resolve().parents[2] / "docs" / "operations.md"
OF_THE_TEST_SERVER = {"RETENTION_DOCTOR_SERVER_NOT_DURABLE", "RETENTION_DOCTOR_SERVER_ASYNCHRONOUS"}
"""Tests may lose everything in a crash of the machine, and are faster for it."""


@pytest.fixture(scope="module")
def desk(module_database, tmp_path_factory):
    """One desk for all the tests here: what a test breaks, it mends."""
    home = tmp_path_factory.mktemp("home")
    (home / "archives").mkdir()
    LocalKeyring.create(home / "keyring.json")
    platform = Platform(database=module_database)
    alias = platform.value("SELECT alias FROM nucleus.tenants WHERE id = %s", platform.tenant)
    made = Desk(database=module_database, home=home, platform=platform, alias=str(alias))
    made.done("profile", "set", "--provider", "filesystem", "--archive-retention-days", "0")
    made.done("profile", "readiness")
    return made


def findings(desk, *words, **how):
    answer = desk.call("doctor", *words, **how)
    found = answer.json["findings"]
    assert answer.code == (3 if any(f["severity"] == "error" for f in found) else 0)
    return [f for f in found if f["code"] not in OF_THE_TEST_SERVER]


def only(found):
    [one] = found
    assert one["remedy"]
    return one["code"].removeprefix("RETENTION_DOCTOR_"), one["severity"]


@contextmanager
def broken(desk, breaks, mends):
    """As a superuser would, with a role of his own making at hand."""
    with desk.database.superuser() as connection:
        try:
            connection.execute(breaks)
            yield
        finally:
            connection.execute(mends)


def test_a_healthy_installation_and_tenant_have_nothing_to_mend(desk):
    assert findings(desk, tenant=None) == []
    assert findings(desk) == []


def test_what_is_well_is_listed_when_asked_for(desk):
    found = findings(desk, "--all")
    assert {f["severity"] for f in found} == {"ok"}
    assert len(found) == len({f["message"] for f in found}) >= 17


def test_people_read_a_line_and_a_remedy(desk):
    answer = desk.call("doctor", as_json=False, tenant=None)
    assert answer.out.startswith("error: RETENTION_DOCTOR_SERVER_NOT_DURABLE: fsync and full_page_writes off")
    assert "1 error(s), 1 warning(s)" in answer.out.splitlines()[-1]
    assert answer.code == 3


NEVER_TRUNCATED = (
    "CREATE TRIGGER never_truncated BEFORE TRUNCATE ON retention.receipts"
    " FOR EACH STATEMENT EXECUTE FUNCTION retention.refuse_change()"
)
BROKEN = {
    "superuser": ("ALTER ROLE admin SUPERUSER", "ALTER ROLE admin NOSUPERUSER", "LOGIN_UNSAFE"),
    "bypass": ("ALTER ROLE admin BYPASSRLS", "ALTER ROLE admin NOBYPASSRLS", "LOGIN_UNSAFE"),
    "create role": ("ALTER ROLE worker CREATEROLE", "ALTER ROLE worker NOCREATEROLE", "LOGIN_UNSAFE"),
    "owner": ("GRANT retention_owner TO admin", "REVOKE retention_owner FROM admin", "LOGIN_UNSAFE"),
    "both": ("GRANT retention_worker TO admin", "REVOKE retention_worker FROM admin", "LOGIN_ROLE"),
    "neither": ("REVOKE retention_operator FROM admin", "GRANT retention_operator TO admin", "LOGIN_ROLE"),
    "role logs in": ("ALTER ROLE retention_worker LOGIN", "ALTER ROLE retention_worker NOLOGIN", "ROLE_UNSAFE"),
    "role is lent": ("GRANT retention_counter TO clerk", "REVOKE retention_counter FROM clerk", "ROLE_UNSAFE"),
    "version": (
        "UPDATE retention.schema_version SET version_num = '0001'",
        f"UPDATE retention.schema_version SET version_num = '{LATEST}'",
        "SCHEMA_VERSION",
    ),
    "not forced": (
        "ALTER TABLE retention.receipts NO FORCE ROW LEVEL SECURITY",
        "ALTER TABLE retention.receipts FORCE ROW LEVEL SECURITY",
        "TABLE_UNFORCED",
    ),
    "no row security": (
        "ALTER TABLE retention.setting_events DISABLE ROW LEVEL SECURITY",
        "ALTER TABLE retention.setting_events ENABLE ROW LEVEL SECURITY",
        "TABLE_UNFORCED",
    ),
    "trigger disabled": (
        "ALTER TABLE retention.audit_events DISABLE TRIGGER append_only",
        "ALTER TABLE retention.audit_events ENABLE TRIGGER append_only",
        "TRIGGER_MISSING",
    ),
    "trigger fires on replicas alone": (
        "ALTER TABLE retention.grant_events ENABLE REPLICA TRIGGER audit",
        "ALTER TABLE retention.grant_events ENABLE TRIGGER audit",
        "TRIGGER_MISSING",
    ),
    "trigger dropped": (
        "DROP TRIGGER never_truncated ON retention.receipts",
        NEVER_TRUNCATED,
        "TRIGGER_MISSING",
    ),
    "function's owner": (
        "ALTER FUNCTION retention.permitted(text) OWNER TO platform_owner",
        "ALTER FUNCTION retention.permitted(text) OWNER TO retention_counter",
        "FUNCTION_UNSAFE",
    ),
    "function's path": (
        "ALTER FUNCTION retention.current_tenant() RESET search_path",
        "ALTER FUNCTION retention.current_tenant() SET search_path = pg_catalog, pg_temp",
        "FUNCTION_UNSAFE",
    ),
}


@pytest.mark.parametrize(("breaks", "mends", "code"), BROKEN.values(), ids=BROKEN)
def test_what_is_broken_in_the_database_is_found_by_its_code_alone(desk, breaks, mends, code):
    with broken(desk, breaks, mends):
        assert only(findings(desk, tenant=None)) == (code, "error")


def test_a_fault_of_the_catalog_keeps_its_own_code(desk):
    index = "nucleus.workflow_contexts_instance_id_idx"
    with broken(desk, f"DROP INDEX {index}", "CREATE INDEX ON nucleus.workflow_contexts (instance_id)"):
        [found] = findings(desk, tenant=None)
    assert (found["code"], found["severity"]) == ("RETENTION_CATALOG_INDEX_MISSING", "error")
    assert "CREATE INDEX CONCURRENTLY" in found["remedy"]
    with broken(
        desk,
        "ALTER TABLE nucleus.workflow_stores NO FORCE ROW LEVEL SECURITY",
        "ALTER TABLE nucleus.workflow_stores FORCE ROW LEVEL SECURITY",
    ):
        assert only(findings(desk, tenant=None)) == ("RETENTION_CATALOG_ROW_SECURITY_WEAK", "warning")


def test_every_trigger_of_the_product_is_among_those_that_are_looked_for(desk):
    """A migration that adds a guard names it there too."""
    made = desk.platform.connection.execute(
        "SELECT c.relname, g.tgname FROM pg_trigger AS g JOIN pg_class AS c ON c.oid = g.tgrelid"
        " WHERE c.relnamespace = 'retention'::regnamespace AND NOT g.tgisinternal"
    ).fetchall()
    named = {(table, name) for name, tables in examine_schema.SAFEGUARDS.items() for table in tables.split()}
    assert set(made) == named


# -- the machine and its clocks


def test_a_login_that_is_not_here_is_told_and_no_error(desk):
    found = findings(desk, RETENTION_WORKER_URL=None)
    assert {(f["code"], f["severity"]) for f in found} == {("RETENTION_DOCTOR_NOT_HERE", "warning")}
    assert len(found) >= 4


def test_one_check_that_fails_hides_no_other(desk):
    """The worker's password is wrong: the operator's login sees what it may; the rest is told as untried."""
    url = desk.database.worker_url.replace("@", "-wrong@", 1)
    with broken(desk, *BROKEN["not forced"][:2]):
        found = findings(desk, tenant=None, RETENTION_WORKER_URL=url)
    codes = [f["code"] for f in found]
    assert codes.count("RETENTION_DOCTOR_TABLE_UNFORCED") == 1
    assert set(codes) == {"RETENTION_DOCTOR_TABLE_UNFORCED", "RETENTION_DOCTOR_UNTRIED"}
    assert "wrong@" not in str(found)


def test_a_database_that_does_not_answer_is_told_for_each_thing_that_was_to_be_seen(desk):
    nowhere = "postgresql://x@127.0.0.1:1/x"
    for tenant in (None, ""):
        found = findings(desk, tenant=tenant, RETENTION_WORKER_URL=nowhere, RETENTION_OPERATOR_URL=nowhere)
        assert {f["code"] for f in found} == {"RETENTION_DOCTOR_UNTRIED"}
        assert len(found) >= 11


def test_a_check_that_breaks_down_itself_is_told_without_its_text():
    """A16: a library's message may quote a row."""

    def breaks():
        yield error(Ailment.KEY_UNUSABLE, "s", "r")
        raise ValueError("a customer's name")

    found = list(examine([Check(name="This", look=breaks), Check(name="That", look=list)]))
    assert [d.code for d in found] == [Ailment.KEY_UNUSABLE, Ailment.UNTRIED, Ailment.OK]
    assert [d.severity for d in found] == [Severity.ERROR, Severity.ERROR, Severity.OK]
    assert "customer" not in str(found)


@pytest.mark.parametrize(("seconds", "severity"), [(30, "warning"), (-30, "warning"), (120, "error"), (-120, "error")])
def test_a_clock_that_is_off_is_found(desk, monkeypatch, seconds, severity):
    now = clock.utc_now
    monkeypatch.setattr(clock, "utc_now", lambda: now() + timedelta(seconds=seconds))
    assert only(findings(desk, tenant=None)) == ("CLOCK_SKEW", severity)


def test_a_keyring_that_others_can_read_is_found(desk):
    desk.keyring.chmod(0o640)
    try:
        codes = {f["code"] for f in findings(desk, tenant=None)}
    finally:
        desk.keyring.chmod(0o600)
    assert codes == {"RETENTION_KEYRING_UNSAFE"}
    elsewhere = findings(desk, tenant=None, RETENTION_KEYRING=str(desk.home / "other.json"))
    assert only(elsewhere) == ("RETENTION_KEYRING_MISSING", "error")


def test_the_run_history_has_its_place(desk):
    """D6."""
    storage = "RETENTION_DAGSTER_STORAGE_URL"
    production = {"RETENTION_ENVIRONMENT": "production"}
    assert only(findings(desk, tenant=None, **production)) == ("HISTORY_IN_FILES", "error")
    closed = {storage: "postgresql://keeper:secret@127.0.0.1:1/history"}
    [found] = findings(desk, tenant=None, **closed)
    assert found["code"] == "RETENTION_DOCTOR_HISTORY_UNREACHABLE"
    assert not re.search("keeper|secret|127", str(found))
    there = {storage: desk.database.owner_url}
    assert only(findings(desk, tenant=None, **there)) == ("HISTORY_EMPTY", "warning")
    with broken(desk, "CREATE TABLE public.runs (id bigint)", "DROP TABLE public.runs"):
        assert findings(desk, tenant=None, **there, **production) == []


def test_settings_under_which_a_commit_is_lost_are_found(desk):
    answer = desk.call("doctor", tenant=None).json["findings"]
    assert {f["code"]: f["severity"] for f in answer} == {
        "RETENTION_DOCTOR_SERVER_NOT_DURABLE": "error",
        "RETENTION_DOCTOR_SERVER_ASYNCHRONOUS": "warning",
    }


def test_egress_settings_that_do_not_parse_are_found(desk):
    desk.platform.run(
        "INSERT INTO retention.setting_events (name, value, reason)"
        " VALUES ('workflow.archive.egress.mode', '\"open\"', 'r')"
    )
    try:
        assert only(findings(desk, tenant=None)) == ("RETENTION_EGRESS_INVALID", "error")
    finally:
        desk.platform.run("DELETE FROM retention.setting_events")


# -- one tenant


def test_a_clerk_may_not_look_at_a_tenant(desk):
    answer = desk.call("doctor", login="clerk")
    assert (answer.code, answer.error) == (3, "RETENTION_PERMISSION_DENIED")
    assert desk.call("doctor", tenant="nobody").error == "RETENTION_TENANT_UNKNOWN"


def test_a_tenant_without_a_profile_is_told_once(desk):
    other = Platform(database=desk.database)
    alias = other.value("SELECT alias FROM nucleus.tenants WHERE id = %s", other.tenant)
    assert only(findings(desk, tenant=alias)) == ("WORKFLOW_ARCHIVE_PROFILE_UNKNOWN", "error")


def test_a_profile_that_was_not_proven_since_it_changed_is_told(desk):
    desk.done("profile", "set", "--provider", "filesystem", "--archive-retention-days", "0")
    try:
        [found] = findings(desk)
        assert found["code"] == "WORKFLOW_ARCHIVE_PROFILE_NOT_READY"
        assert "WORKFLOW_ARCHIVE_READINESS_UNPROVEN" in found["message"]
    finally:
        desk.done("profile", "readiness")


def test_a_folder_that_is_gone_is_told_without_its_path(desk):
    """A16."""
    root = desk.home / "archives"
    root.rename(desk.home / "away")
    try:
        [found] = findings(desk)
    finally:
        (desk.home / "away").rename(root)
    assert found["code"] == "RETENTION_DOCTOR_UNTRIED"
    assert str(desk.home) not in str(found)


def test_a_key_that_this_keyring_does_not_open_is_counted(desk):
    """A18."""
    desk.platform.run(
        "INSERT INTO retention.tenant_keys (tenant_id, generation, key_id, root_key_id, ciphertext)"
        " VALUES (%s, 7, %s, 'local-other', '\\x00')",
        desk.platform.tenant,
        new_id(),
    )
    try:
        [found] = findings(desk)
    finally:
        desk.platform.run("DELETE FROM retention.tenant_keys WHERE generation = 7")
    assert found["code"] == "RETENTION_DOCTOR_KEY_UNUSABLE"
    assert found["message"].startswith("1 of ")
    assert "local-other" not in str(found)


def test_a_killed_run_that_nobody_followed_is_told(desk):
    """G7."""
    desk.platform.run(
        "INSERT INTO retention.leases VALUES (%s, 'reconcile', 'h', 1, clock_timestamp() - interval '25 hours')",
        desk.platform.tenant,
    )
    try:
        assert only(findings(desk)) == ("LEASE_ABANDONED", "warning")
    finally:
        desk.platform.run("DELETE FROM retention.leases")


def test_events_that_wait_long_for_their_seal_are_told(desk):
    """G5."""
    desk.platform.run("UPDATE retention.audit_events SET at = at - interval '1 hour'")
    try:
        found = findings(desk)
    finally:
        desk.platform.run("UPDATE retention.audit_events SET at = at + interval '1 hour'")
    assert {(f["code"], f["severity"]) for f in found} == {("RETENTION_AUDIT_SEALING_BEHIND", "warning")}


def test_attempts_that_nobody_looks_after_are_told(desk):
    """A5: their objects may or may not be there."""
    columns = {
        "id": new_id(), "tenant_id": desk.platform.tenant, "instance_id": "i", "epoch": 1, "epoch_at": "now",
        "state": "intended", "approval_id": new_id(), "job": "reconcile", "run": "r", "holder": "h",
        "leased_until": "-infinity", "profile_generation": 1, "archive_retention_days": 0, "key_id": "k",
        "object_key": "o", "object_size": 1, "object_sha256": b"x" * 32, "plaintext_size": 1,
        "manifest_digest": b"x" * 32, "manifest_format": "f", "fingerprint": b"x" * 32, "shared_digest": b"x" * 32,
        "rows_by_table": "{}",
    }  # fmt: skip
    marks = ", ".join(["%s"] * len(columns))
    desk.platform.run(
        f"INSERT INTO retention.attempts ({', '.join(columns)}) VALUES ({marks})",
        *columns.values(),
    )
    try:
        assert findings(desk) == []  # a run of just now is nobody's concern
        desk.platform.run("UPDATE retention.attempts SET intended_at = now() - interval '2 hours'")
        assert only(findings(desk)) == ("ATTEMPTS_STUCK", "warning")
    finally:
        desk.platform.run("DELETE FROM retention.attempts")


def test_looking_changes_nothing(desk):
    """O3: no row, and no file once the probe object is gone."""

    def picture():
        tables = desk.platform.connection.execute(
            "SELECT format('%I.%I', schemaname, tablename) FROM pg_tables WHERE schemaname IN ('retention', 'nucleus')"
        ).fetchall()
        rows = [
            desk.platform.value(f"SELECT md5(string_agg(t::text, '|' ORDER BY t::text)) FROM {n} AS t")
            for (n,) in tables
        ]
        return rows, [path for path in desk.home.rglob("*") if path.is_file()]

    before = picture()
    findings(desk)
    assert picture() == before


# -- the runbook


def test_each_code_has_a_page():
    runbook = RUNBOOK.read_text(encoding="utf-8")
    wanted = [ailment for ailment in Ailment if ailment is not Ailment.OK]
    assert [a for a in wanted if not re.search(rf"^#+ `{a}`$", runbook, re.MULTILINE)] == []
