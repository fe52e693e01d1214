"""A profile is ready only after what matters was tried on its very store (SPEC A11, A12, A15)."""

import json
import secrets

import pytest

CONFIG = ("--provider", "s3-compatible", "--archive-retention-days", "365")


@pytest.fixture
def stored(desk, s3):
    """The id of a secret that opens the embedded store."""

    def put(secret_key=None, secret_id=None):
        given = json.dumps({"access_key": s3.access_key, "secret_key": secret_key or s3.secret_key})
        words = ("--id", secret_id) if secret_id else ()
        return desk.done("secret", "put", *words, text=given)["secret_id"]

    return put


@pytest.fixture
def set_s3(desk, s3):
    def put(bucket, secret_id, prefix=None):
        places = {"endpoint": s3.endpoint, "bucket": bucket, "region": s3.region}
        places["prefix"] = prefix or f"t/{secrets.token_hex(4)}"
        return desk.call("profile", "set", *CONFIG, "--secret-id", secret_id, "--config", json.dumps(places))

    return put


@pytest.fixture
def approved(desk, s3):
    desk.done("egress", "allow", s3.endpoint, "--network", "127.0.0.0/8", "--reason", "embedded")


def readiness(desk):
    answer = desk.call("profile", "readiness")
    assert answer.code == (0 if answer.json["ready"] else 3)
    shown = desk.done("profile", "show")
    assert (shown["ready"], shown["codes"]) == (answer.json["ready"], answer.json["codes"])
    return answer.json["ready"], answer.json["codes"]


def test_a_folder_becomes_ready_and_the_next_generation_is_not(desk):
    made = desk.done(
        "profile", "set", "--provider", "filesystem", "--archive-retention-days", "0", "--config", "prefix=a"
    )
    assert (made["generation"], made["ready"]) == (1, False)
    assert desk.done("profile", "show")["codes"] == ["WORKFLOW_ARCHIVE_READINESS_UNPROVEN"]
    assert readiness(desk) == (True, [])
    assert desk.done("profile", "show")["checked_at"]
    desk.done("profile", "set", "--provider", "filesystem", "--archive-retention-days", "400")
    shown = desk.done("profile", "show")
    assert (shown["generation"], shown["ready"], shown["checked_at"]) == (2, False, None)


def test_each_tenant_has_a_folder_of_its_own(desk):
    desk.done("profile", "set", "--provider", "filesystem", "--archive-retention-days", "0", "--config", "prefix=a")
    assert readiness(desk) == (True, [])
    assert [folder.name for folder in (desk.home / "archives").iterdir()] == [desk.platform.tenant]


def test_without_a_data_root_nothing_is_ready(desk):
    (desk.home / "archives").rmdir()
    desk.done("profile", "set", "--provider", "filesystem", "--archive-retention-days", "0")
    assert readiness(desk) == (False, ["WORKFLOW_ARCHIVE_STORE_MISSING"])


def test_a_versioned_bucket_becomes_ready_once_its_endpoint_is_approved(desk, s3, stored, set_s3, make_bucket):
    assert set_s3(make_bucket(), stored()).code == 0
    assert readiness(desk) == (False, ["RETENTION_EGRESS_NOT_APPROVED"])
    desk.done("egress", "allow", s3.endpoint, "--reason", "without its network")
    assert readiness(desk) == (False, ["RETENTION_EGRESS_ADDRESS_REFUSED"])
    desk.done("egress", "allow", s3.endpoint, "--network", "127.0.0.0/8", "--reason", "embedded")
    assert readiness(desk) == (True, [])
    desk.done("egress", "remove", s3.endpoint, "--reason", "moved")
    assert readiness(desk) == (False, ["RETENTION_EGRESS_NOT_APPROVED"])


def test_object_lock_is_seen(desk, approved, stored, set_s3, make_bucket):
    assert set_s3(make_bucket(lock=True), stored()).code == 0
    assert readiness(desk) == (True, [])
    assert desk.done("profile", "show")["object_lock"] is True


def test_a_bucket_without_versions_is_not_ready(desk, approved, stored, set_s3, make_bucket):
    set_s3(make_bucket(versioning=False), stored())
    ready, codes = readiness(desk)
    assert not ready
    assert "WORKFLOW_ARCHIVE_READINESS_VERSIONING_OFF" in codes


def test_a_lifecycle_rule_over_the_prefix_is_not_ready(desk, approved, stored, set_s3, make_bucket, admin):
    bucket = make_bucket()
    rule = {"ID": "old", "Status": "Enabled", "Filter": {"Prefix": "arch"}, "Expiration": {"Days": 30}}
    admin.put_bucket_lifecycle_configuration(Bucket=bucket, LifecycleConfiguration={"Rules": [rule]})
    secret = stored()
    set_s3(bucket, secret, prefix="archives/acme")
    assert readiness(desk) == (False, ["WORKFLOW_ARCHIVE_READINESS_LIFECYCLE_RULE"])
    set_s3(bucket, secret, prefix="elsewhere")
    assert readiness(desk) == (True, [])


def test_wrong_credentials_are_not_ready(desk, approved, stored, set_s3, make_bucket):
    set_s3(make_bucket(), stored(secret_key="another-key"))
    assert readiness(desk) == (False, ["WORKFLOW_ARCHIVE_STORE_DENIED"])


def test_a_new_secret_takes_readiness_away_and_a_revoked_one_for_good(desk, approved, stored, set_s3, make_bucket):
    secret = stored()
    set_s3(make_bucket(), secret)
    assert readiness(desk) == (True, [])
    stored(secret_id=secret)
    assert desk.done("profile", "show")["codes"] == ["WORKFLOW_ARCHIVE_READINESS_UNPROVEN"]
    assert readiness(desk) == (True, [])
    desk.done("secret", "revoke", secret, "--reason", "seen in a ticket")
    shown = desk.done("profile", "show")
    assert (shown["ready"], shown["codes"]) == (False, ["RETENTION_SECRET_REVOKED"])
    assert readiness(desk) == (False, ["RETENTION_SECRET_REVOKED"])
    assert set_s3(make_bucket(), secret).error == "RETENTION_SECRET_REVOKED"


def test_a_configuration_that_reached_the_database_otherwise_is_read_by_the_rules_again(desk):
    desk.platform.run(
        "INSERT INTO retention.profiles (tenant_id, generation, provider, configuration, archive_retention_days)"
        " VALUES (%s, 1, 'filesystem', '{\"prefix\": \"../elsewhere\"}', 0)",
        desk.platform.tenant,
    )
    assert readiness(desk) == (False, ["WORKFLOW_ARCHIVE_PROFILE_INVALID"])


def test_every_check_is_audited_with_its_codes(desk):
    desk.done("profile", "set", "--provider", "filesystem", "--archive-retention-days", "0")
    answer = desk.call("profile", "readiness")
    [event] = desk.audit("profile.readiness")
    assert (event["outcome"], event["subject"], event["run"]) == ("ready", "1", answer.json["correlation"])


def test_nothing_of_the_place_is_shown(desk, s3, approved, stored, set_s3, make_bucket):
    secret, bucket = stored(), make_bucket()
    answers = [set_s3(bucket, secret, prefix="hidden/prefix")]
    for words in (("profile", "show"), ("profile", "readiness")):
        answers += [desk.call(*words), desk.call(*words, as_json=False)]
    for answer in answers:
        for hidden in (bucket, secret, "hidden/prefix", s3.endpoint, s3.access_key, s3.secret_key):
            assert hidden not in answer.out + answer.err
    events = json.dumps([desk.audit(kind) for kind in ("profile", "secret", "profile.readiness")])
    assert not [hidden for hidden in (bucket, secret, "hidden/prefix", s3.endpoint) if hidden in events]
