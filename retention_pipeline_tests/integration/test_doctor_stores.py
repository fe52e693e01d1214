"""What a secret may do in a bucket, one permission at a time, and what the bucket does by itself (SPEC O3, A11, A14, A15)."""

import json
import secrets
from datetime import timedelta
from hashlib import sha256

import pytest

from retention_pipeline import clock
from retention_pipeline.egress.policy import Destination, EgressPolicy
from retention_pipeline.egress.s3_faults import Action, fault
from retention_pipeline.egress.s3_probe import Checksum, S3Probe
from retention_pipeline.egress.s3_wire import Bucket
from retention_pipeline.egress.transport import PinnedTransport
from retention_pipeline.errors import Code
from retention_pipeline.model.credentials import Credentials
from retention_pipeline.model.diagnosis import Ailment, Severity
from retention_pipeline.storage.s3_examination import S3Examination
from retention_pipeline_tests.conformance.conftest import transport
from retention_pipeline_tests.conformance.test_s3_store import rclone

__all__ = ["transport"]
PREFIX = "hidden/tenant"


@pytest.fixture(scope="module")
def locking(make_bucket):
    return make_bucket(lock=True)


@pytest.fixture
def look(s3, transport):
    """Examine a bucket; gives what was found."""

    def examine(bucket, *, kind=S3Probe, secret_key=None):
        place = Bucket(endpoint=Destination.parse(s3.endpoint), name=bucket, region=s3.region)
        credentials = Credentials(access_key=s3.access_key, secret_key=secret_key or s3.secret_key)
        found = list(S3Examination(bucket=kind(transport, place, credentials), prefix=PREFIX)())
        assert not any(hidden in str(found) for hidden in (bucket, s3.endpoint, PREFIX, s3.access_key))
        return found

    return examine


def left(admin, bucket):
    page = admin.list_object_versions(Bucket=bucket)
    return [*page.get("Versions", []), *page.get("DeleteMarkers", [])]


def test_a_bucket_with_object_lock_has_nothing_to_mend_and_nothing_is_left_in_it(look, admin, locking):
    before = left(admin, locking)
    assert look(locking) == []
    assert left(admin, locking) == before


def test_a_bucket_without_object_lock_is_a_warning(look, make_bucket):
    [found] = look(make_bucket())
    assert (found.code, found.severity) == (Ailment.STORE_UNLOCKED, Severity.WARNING)


def test_a_bucket_that_keeps_no_versions_is_an_error(look, make_bucket):
    codes = {found.code for found in look(make_bucket(versioning=False))}
    assert codes == {Code.READINESS_VERSIONING_OFF, Ailment.STORE_UNLOCKED}


def test_a_lifecycle_rule_that_could_end_an_archive_is_an_error(look, make_bucket, admin):
    bucket = make_bucket()
    rule = {"ID": "r", "Status": "Enabled", "Filter": {"Prefix": "hidden/"}, "Expiration": {"Days": 1}}
    admin.put_bucket_lifecycle_configuration(Bucket=bucket, LifecycleConfiguration={"Rules": [rule]})
    assert {found.code for found in look(bucket)} == {Code.READINESS_LIFECYCLE_RULE, Ailment.STORE_UNLOCKED}


def test_a_bucket_that_locks_by_itself_keeps_the_probe_and_says_so(look, make_bucket, admin):
    bucket = make_bucket(lock=True)
    default = {"ObjectLockEnabled": "Enabled", "Rule": {"DefaultRetention": {"Mode": "GOVERNANCE", "Days": 1}}}
    admin.put_object_lock_configuration(Bucket=bucket, ObjectLockConfiguration=default)
    [found] = look(bucket)
    assert found.code is Code.OBJECT_LOCKED


DENIED = {
    "put": (Action.WRITE, {Ailment.STORE_WRITE}),
    "get": (Action.READ, {Ailment.STORE_READ}),
    "versions": (Action.LIST, {Ailment.STORE_LIST}),
    "delete": (Action.DELETE, {Ailment.STORE_DELETE}),
    "versioning": (Action.SETTINGS, {Code.READINESS_UNREADABLE}),
    "lifecycle": (Action.SETTINGS, {Code.READINESS_UNREADABLE}),
    "object_lock": (Action.SETTINGS, {Code.READINESS_UNREADABLE}),
}


@pytest.mark.parametrize(("permission", "expected"), DENIED.items(), ids=DENIED)
def test_each_permission_that_is_lacking_is_told_alone(look, locking, permission, expected):
    action, codes = expected

    def denies(*_arguments, **_named):
        raise fault(action, 403, "AccessDenied")

    found = look(locking, kind=type("Denying", (S3Probe,), {permission: denies}))
    assert {d.code for d in found} == codes
    assert all(d.remedy for d in found)


def test_a_wrong_secret_is_told_for_everything_that_it_was_to_open(look, locking):
    codes = {found.code for found in look(locking, secret_key="w" * 32)}
    assert codes == {Ailment.STORE_WRITE, Ailment.STORE_LIST, Code.READINESS_UNREADABLE}


def test_a_store_that_looks_at_no_checksum_is_an_error(look, locking, admin):
    class Trusting(S3Probe):
        def accepts_wrong(self, key, body, checksum):
            assert checksum in Checksum
            return self.put(key, body, digest=sha256(body).digest())

    before = left(admin, locking)
    assert {found.code for found in look(locking, kind=Trusting)} == {Ailment.STORE_UNCHECKED}
    assert left(admin, locking) == before


def test_a_store_that_knows_neither_conditions_nor_versions_is_found_out(tmp_path):
    """A real one (F1, A15)."""
    (tmp_path / "bucket").mkdir()
    with rclone(tmp_path) as endpoint:
        approved = EgressPolicy.load(entries=[{"destination": endpoint, "networks": ["127.0.0.1/32"]}])
        shared = PinnedTransport(lambda: approved)
        place = Bucket(endpoint=Destination.parse(endpoint), name="bucket", region="us-east-1")
        probe = S3Probe(shared, place, Credentials(access_key="access", secret_key="s" * 16))
        found = list(S3Examination(bucket=probe, prefix="p")())
        shared.close()
    assert Code.READINESS_NO_CONDITIONAL_CREATE in {d.code for d in found}


# -- through the command line


@pytest.fixture
def profile(desk, s3):
    """Give the desk's tenant a profile on the embedded store."""

    def put(bucket):
        given = json.dumps({"access_key": s3.access_key, "secret_key": s3.secret_key})
        secret = desk.done("secret", "put", text=given)["secret_id"]
        places = {"endpoint": s3.endpoint, "bucket": bucket, "region": s3.region, "prefix": PREFIX}
        words = ("--provider", "s3-compatible", "--archive-retention-days", "365", "--secret-id", secret)
        desk.done("profile", "set", *words, "--config", json.dumps(places))

    return put


def test_an_operator_reads_where_the_fault_is_and_never_where_the_store_is(desk, s3, profile, locking, monkeypatch):
    """A14, A16; then all is approved and proven, and the store's clock is what is wrong."""
    profile(locking)
    server = {"RETENTION_DOCTOR_SERVER_NOT_DURABLE", "RETENTION_DOCTOR_SERVER_ASYNCHRONOUS"}

    def found():
        answer = desk.call("doctor")
        assert not any(hidden in answer.out for hidden in (s3.endpoint, "127.0.0.1", locking, PREFIX, s3.access_key))
        return {f["code"] for f in answer.json["findings"]} - server

    assert found() == {"WORKFLOW_ARCHIVE_PROFILE_NOT_READY", "RETENTION_EGRESS_NOT_APPROVED"}
    desk.done("egress", "allow", s3.endpoint, "--reason", "without its network")
    assert found() == {"WORKFLOW_ARCHIVE_PROFILE_NOT_READY", "RETENTION_EGRESS_ADDRESS_REFUSED"}
    desk.done("egress", "allow", s3.endpoint, "--network", "127.0.0.0/8", "--reason", "embedded")
    desk.done("profile", "readiness")
    assert found() == set()
    now = clock.utc_now
    monkeypatch.setattr(clock, "utc_now", lambda: now() + timedelta(seconds=100))
    clocks = [f["message"] for f in desk.call("doctor").json["findings"] if f["code"] == "RETENTION_DOCTOR_CLOCK_SKEW"]
    assert [message.split(" and ")[0] for message in clocks] == ["The database's clock", "The archive store's clock"]


def test_a_bucket_that_is_not_there_is_told(desk, s3, profile):
    profile(f"no-such-{secrets.token_hex(4)}")
    desk.done("egress", "allow", s3.endpoint, "--network", "127.0.0.0/8", "--reason", "embedded")
    codes = {f["code"] for f in desk.call("doctor").json["findings"]}
    assert "WORKFLOW_ARCHIVE_STORE_MISSING" in codes
