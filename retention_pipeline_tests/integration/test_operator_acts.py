"""Profiles, egress approvals, approvals, holds and acknowledgements, through the command line (SPEC A12, A14, G1, G4)."""

import json
import uuid

import pytest

from retention_pipeline.app import App
from retention_pipeline.errors import Refused
from retention_pipeline.model.people import Job
from retention_pipeline.postgres import approvals, egress_settings, oversight
from retention_pipeline.settings import Settings
from retention_pipeline_tests.rows import Platform

S3 = {"endpoint": "https://s3.example.org", "bucket": "archives", "region": "eu-1", "prefix": "acme"}
SET = ("profile", "set", "--archive-retention-days", "0")


@pytest.fixture
def app(desk):
    with App(Settings.load(desk.environment("admin"))) as app:
        yield app


# -- profiles


@pytest.mark.parametrize(
    "extra",
    [
        {"secret_key": "x"},
        {"password": "x"},
        {"access_key": "x"},
        {"endpoint": "https://me:mine@s3.example.org"},
        {"bucket": "AKIAABCDEFGHIJKLMNOP"},
        {"prefix": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"},
    ],
)
def test_a_profile_with_something_like_a_credential_is_refused(desk, extra):
    secret = desk.done("secret", "put", text='{"access_key": "a", "secret_key": "b"}')["secret_id"]
    config = json.dumps({**S3, **extra})
    answer = desk.call(*SET, "--provider", "s3-compatible", "--secret-id", secret, "--config", config)
    assert (answer.code, answer.error) == (3, "WORKFLOW_ARCHIVE_PROFILE_INVALID")
    assert not [value for value in extra.values() if value in answer.out and len(value) > 1]
    assert desk.call("profile", "show").error == "WORKFLOW_ARCHIVE_PROFILE_UNKNOWN"


@pytest.mark.parametrize(
    "words",
    [
        ("--provider", "filesystem", "--config", "prefix=../up"),
        ("--provider", "filesystem", "--config", "root=/srv"),
        ("--provider", "filesystem", "--config", "prefix"),
        ("--provider", "filesystem", "--config", "{"),
        ("--provider", "filesystem", "--config", "prefix=a", "--config", "prefix=b"),
        ("--provider", "filesystem", "--secret-id", str(uuid.UUID(int=1))),
        ("--provider", "s3-compatible", *(w for n, v in S3.items() for w in ("--config", f"{n}={v}"))),
    ],
)
def test_a_profile_that_is_not_whole_is_refused(desk, words):
    answer = desk.call(*SET, *words)
    assert (answer.code, answer.error) == (3, "WORKFLOW_ARCHIVE_PROFILE_INVALID")


@pytest.mark.parametrize("days", ["-1", "1", "364", "100000"])
def test_archives_stay_a_year_or_without_limit(desk, days):
    answer = desk.call("profile", "set", "--provider", "filesystem", "--archive-retention-days", days)
    assert (answer.code, answer.error) == (3, "WORKFLOW_ARCHIVE_PROFILE_INVALID")


def test_who_may_only_read_sees_status_and_no_more(desk):
    desk.done(*SET, "--provider", "filesystem", "--config", "prefix=hidden")
    desk.done("grant", "add", "clerk", "read")
    answer = desk.call("profile", "show", login="clerk")
    assert answer.json["generation"] == 1
    assert "hidden" not in answer.out
    assert desk.call(*SET, "--provider", "filesystem", login="clerk").error == "RETENTION_PERMISSION_DENIED"


# -- egress


def test_nothing_is_approved_at_first(desk, app):
    assert desk.done("egress", "show", tenant=None) == {"valid": True, "destinations": []}
    assert not app.egress_policy().approved


def test_approvals_are_read_anew_and_normalized(desk, app):
    desk.done("egress", "allow", "HTTPS://S3.Example.org:443", "--reason", "r", tenant=None)
    shown = desk.done("egress", "allow", "https://minio.corp:9000", "--network", "10.1.0.0/16", "--reason", "r")
    assert shown["destinations"] == [
        {"destination": "https://s3.example.org", "networks": []},
        {"destination": "https://minio.corp:9000", "networks": ["10.1.0.0/16"]},
    ]
    assert len(app.egress_policy().approved) == 2
    desk.done("egress", "remove", "https://s3.example.org", "--reason", "r")
    assert [str(d) for d in app.egress_policy().approved] == ["https://minio.corp:9000"]
    assert (
        desk.call("egress", "remove", "https://s3.example.org", "--reason", "r").error
        == "RETENTION_EGRESS_NOT_APPROVED"
    )


@pytest.mark.parametrize(
    "words",
    [("ftp://s3.example.org",), ("https://s3.example.org/path",), ("https://s3.example.org", "--network", "0.0.0.0/0")],
)
def test_what_is_not_a_destination_is_refused(desk, words):
    assert desk.call("egress", "allow", *words, "--reason", "r").error == "RETENTION_EGRESS_INVALID"


@pytest.mark.parametrize("value", ['"https://a.example"', '["https://a.example/x"]', "7", "null", '{"a": 1}'])
def test_settings_that_do_not_parse_close_everything_until_they_are_closed_on_purpose(desk, app, value):
    desk.done("egress", "allow", "https://s3.example.org", "--reason", "r")
    desk.platform.run(
        "INSERT INTO retention.setting_events (name, value, reason) VALUES (%s, %s, 'typed')",
        egress_settings.DESTINATIONS,
        value,
    )
    policy = app.egress_policy()
    assert (policy.valid, dict(policy.approved)) == (False, {})
    assert desk.call("egress", "allow", "https://b.example", "--reason", "r").error == "RETENTION_EGRESS_INVALID"
    assert desk.done("egress", "show")["valid"] is False
    desk.done("egress", "remove", "--all", "--reason", "mend")
    assert desk.done("egress", "allow", "https://b.example", "--reason", "r")["valid"] is True


def test_any_other_mode_is_closed(desk, app):
    desk.done("egress", "allow", "https://s3.example.org", "--reason", "r")
    desk.platform.run(
        "INSERT INTO retention.setting_events (name, value, reason) VALUES (%s, '\"open\"', 'typed')",
        egress_settings.MODE,
    )
    assert app.egress_policy().valid is False


# -- approvals


def use(app, tenant, approval, run, job=Job.RECONCILE, subject=None):
    with app.worker().transaction(tenant) as cursor:
        return oversight.use_approval(cursor, tenant, approval, job, run, subject)


def test_a_single_use_is_one_use_and_names_the_actor(desk, app):
    made = desk.done("approve", "reconcile", "--reason", "weekly", "--max-items", "5")
    tenant = desk.platform.tenant
    used = use(app, tenant, made["approval"], "run-1")
    assert (used.actor, used.max_items) == ("admin", 5)
    assert use(app, tenant, made["approval"], "run-1") == used  # a retry of the same run
    with pytest.raises(Refused, match="used by another run"):
        use(app, tenant, made["approval"], "run-2")


def test_a_standing_approval_serves_every_run_until_its_giver_may_not_any_more(desk, app):
    tenant = desk.platform.tenant
    desk.done("grant", "add", "clerk", "reconcile")
    made = desk.done("approve", "reconcile", "--standing", "--expires-in", "2d", "--reason", "nightly", login="clerk")
    assert made["actor"] == "clerk"
    use(app, tenant, made["approval"], "run-1")
    use(app, tenant, made["approval"], "run-2")
    desk.done("grant", "remove", "clerk", "reconcile")
    with pytest.raises(Refused, match="no longer has the permission"):
        use(app, tenant, made["approval"], "run-3")


def test_an_approval_is_for_its_tenant_job_and_subject(desk, app):
    instance = desk.platform.add()
    made = desk.done("approve", "archive", instance.upper(), "--reason", "asked for")
    assert (made["subject"], made["max_items"]) == (instance, 1)
    other = Platform(database=desk.database)
    with pytest.raises(Refused, match="no such approval"):
        use(app, other.tenant, made["approval"], "run", Job.ARCHIVE, instance)
    with pytest.raises(Refused, match="is for archive"):
        use(app, desk.platform.tenant, made["approval"], "run")
    with pytest.raises(Refused, match="another instance"):
        use(app, desk.platform.tenant, made["approval"], "run", Job.ARCHIVE, desk.platform.add())
    use(app, desk.platform.tenant, made["approval"], "run", Job.ARCHIVE, instance)


@pytest.mark.parametrize(
    "words",
    [
        ("reconcile", "--max-items", "0"),
        ("reconcile", "--max-items", "10001"),
        ("reconcile", "--expires-in", "8d"),
        ("reconcile", "--expires-in", "0m"),
        ("reconcile", "--expires-in", "soon"),
        ("reconcile", "--standing", "--expires-in", "400d"),
        ("reconcile", str(uuid.UUID(int=1))),
        ("archive",),
        ("restore", str(uuid.UUID(int=1)), "--standing"),
        ("everything",),
    ],
)
def test_an_approval_without_bounds_is_none(desk, words):
    answer = desk.call("approve", *words, "--reason", "r")
    assert (answer.code, answer.error) == (2, "RETENTION_USAGE")


def test_an_approval_needs_a_reason(desk):
    assert desk.call("approve", "reconcile", "--reason", " ").code == 2
    assert desk.call("approve", "reconcile").code == 2


def test_a_preflight_is_acknowledged_by_its_id_or_as_the_latest(desk, app):
    tenant = desk.platform.tenant

    def acknowledge(preflight=None):
        with app.operator().transaction(tenant) as cursor:
            return approvals.acknowledge(cursor, tenant, "numbers are right", preflight)

    with pytest.raises(Refused, match="RETENTION_PREFLIGHT_UNKNOWN"):
        acknowledge()
    insert = (
        "INSERT INTO retention.preflights (tenant_id, as_of, run, total, eligible, due, blocked_due, missing_epochs,"
        " dispositions) VALUES (%s, now(), 'r', %s, 0, 0, 0, 0, '{}') RETURNING id::text"
    )
    first, second = (desk.platform.value(insert, tenant, total) for total in (1, 2))
    assert acknowledge().preflight == second
    assert acknowledge(str(first)).total == 1
    for unknown in ("x", str(uuid.uuid4())):
        with pytest.raises(Refused, match="RETENTION_PREFLIGHT_UNKNOWN"):
            acknowledge(unknown)
    with app.worker().transaction(tenant, read_only=True) as cursor:
        assert oversight.acknowledged(cursor, tenant).preflight == first


# -- holds


def test_a_hold_stands_until_its_own_matter_is_released(desk):
    instance = desk.platform.add()
    desk.done("hold", instance, "--reason", "a court asks")
    held = desk.done("hold", instance.upper(), "--matter", "M-2", "--reason", "another court")
    assert (held["instance"], held["matters"]) == (instance, ["M-2", "general"])
    assert (
        desk.call("hold", instance, "--matter", "M-3", "--release", "--reason", "r").error == "RETENTION_HOLD_UNKNOWN"
    )
    left = desk.done("hold", instance, "--matter", "M-2", "--release", "--reason", "settled")
    assert left["matters"] == ["general"]
    desk.done("hold", instance, "--release", "--reason", "settled")
    assert desk.done("hold", instance, "--list")["held"] is False
    [event] = desk.audit("hold.release")[-1:]
    assert (event["actor"], event["subject"], event["reason"]) == ("admin", instance, "settled")


def test_a_hold_on_what_the_tenant_never_had_is_refused(desk):
    other = Platform(database=desk.database)
    for wanted in (str(uuid.uuid4()), "no-id", other.add()):
        assert desk.call("hold", wanted, "--reason", "r").error == "RETENTION_INSTANCE_UNKNOWN"


def test_a_hold_needs_a_reason(desk):
    instance = desk.platform.add()
    assert desk.call("hold", instance).code == 2
    assert desk.call("hold", instance, "--reason", "  ").code == 2


def test_who_may_hold_needs_no_other_permission(desk):
    instance = desk.platform.add()
    desk.done("grant", "add", "clerk", "legal_hold")
    assert desk.done("hold", instance, "--reason", "r", login="clerk")["held"] is True
    assert desk.done("hold", instance, "--release", "--reason", "r", login="clerk")["held"] is False


@pytest.fixture
def archived(desk, bench):
    """An instance that is archived and gone, and the alias of its tenant."""
    platform = bench.platform()
    instance = platform.add()
    bench.reconcile(platform)
    assert not platform.exists(instance)
    return instance, str(platform.value("SELECT alias FROM nucleus.tenants WHERE id = %s", platform.tenant))


def test_a_hold_on_an_archived_instance_is_bound_to_its_archive(desk, archived):
    instance, alias = archived
    assert desk.done("hold", instance, "--reason", "a court asks", tenant=alias)["held"] is True
    bound = desk.platform.value(
        "SELECT count(*) FROM retention.hold_bindings AS b JOIN retention.attempts AS a ON a.id = b.attempt_id"
        " WHERE a.instance_id = %s",
        instance,
    )
    assert bound == 1


@pytest.mark.parametrize("state", ["expiring", "tombstone"])
def test_a_hold_that_comes_too_late_is_answered_as_such(desk, archived, state):
    instance, alias = archived
    desk.platform.run("UPDATE retention.attempts SET state = %s WHERE instance_id = %s", state, instance)
    answer = desk.call("hold", instance, "--reason", "a court asks", tenant=alias)
    assert (answer.code, answer.error) == (3, "RETENTION_HOLD_TOO_LATE")
    assert desk.done("hold", instance, "--list", tenant=alias)["held"] is False
