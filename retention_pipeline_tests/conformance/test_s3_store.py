"""What only a bucket can do, or fail to do (A11, A15, F9)."""

import secrets
import shutil
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from retention_pipeline.egress.policy import Destination, EgressPolicy
from retention_pipeline.egress.s3 import S3Api
from retention_pipeline.egress.s3_wire import Bucket
from retention_pipeline.egress.transport import PinnedTransport
from retention_pipeline.errors import Code, RetentionError
from retention_pipeline.model.credentials import Credentials
from retention_pipeline.storage.readiness import probe
from retention_pipeline.storage.s3 import S3Store


def codes(findings):
    return {finding.code for finding in findings}


def rule(**what):
    return {"ID": "r", "Status": "Enabled", **what}


@pytest.fixture
def lifecycled(admin, make_bucket):
    bucket = make_bucket()

    def configure(*rules):
        admin.put_bucket_lifecycle_configuration(Bucket=bucket, LifecycleConfiguration={"Rules": list(rules)})
        return bucket

    return configure


def test_a_bucket_without_versions_is_not_ready_a11(make_store, make_bucket):
    assert codes(probe(make_store(make_bucket(versioning=False)))) == {Code.READINESS_VERSIONING_OFF}


@pytest.mark.parametrize("prefix", ["", "archive/", "archive/t-1/", "archive/t-1/deeper", "arch"])
@pytest.mark.parametrize("end", [{"Expiration": {"Days": 1}}, {"NoncurrentVersionExpiration": {"NoncurrentDays": 1}}])
def test_a_rule_that_could_end_an_archive_is_found_a11(make_store, lifecycled, prefix, end):
    bucket = lifecycled(rule(Filter={"Prefix": prefix}, **end))
    assert codes(make_store(bucket, prefix="archive/t-1").findings()) == {Code.READINESS_LIFECYCLE_RULE}


@pytest.mark.parametrize(
    "harmless",
    [
        rule(Filter={"Prefix": "elsewhere/"}, Expiration={"Days": 1}),
        rule(Filter={"Prefix": "archive/t-10/"}, Expiration={"Days": 1}),
        rule(Filter={"Prefix": ""}, AbortIncompleteMultipartUpload={"DaysAfterInitiation": 1}),
        rule(Filter={"Prefix": "archive/"}, Expiration={"Days": 1}) | {"Status": "Disabled"},
    ],
    ids=["elsewhere", "a neighbour", "aborts uploads", "disabled"],
)
def test_a_rule_that_ends_nothing_of_ours_is_no_finding_a11(make_store, lifecycled, harmless):
    assert make_store(lifecycled(harmless), prefix="archive/t-1").findings() == ()


def test_settings_that_can_t_be_read_are_a_finding_a11(make_store, versioned):
    assert codes(make_store(versioned, secret_key="w" * 32).findings()) == {Code.READINESS_UNREADABLE}


def test_a_bucket_that_is_not_there_is_missing(make_store):
    with pytest.raises(RetentionError) as raised:
        probe(make_store("no-such-bucket"))
    assert raised.value.code is Code.STORE_MISSING


def test_wrong_credentials_are_denied_everywhere_f9(make_store, versioned):
    store = make_store(versioned, secret_key="w" * 32)

    def read():
        with store.read("k", "0" * 32):
            pass

    for call in (
        lambda: store.put_once("k", b"x", sha256=bytes(32)),
        read,
        lambda: store.versions("k"),
        lambda: list(store.walk()),
        lambda: store.delete("k", "0" * 32),
    ):
        with pytest.raises(RetentionError) as raised:
            call()
        assert raised.value.code is Code.STORE_DENIED


def test_a_long_listing_is_read_to_its_end_a19(make_store, versioned, admin):
    prefix = f"many/{secrets.token_hex(4)}"
    for number in range(1005):
        admin.put_object(Bucket=versioned, Key=f"{prefix}/{number:04}", Body=b"")
    assert [found.key for found in make_store(versioned, prefix=prefix).walk()] == [f"{n:04}" for n in range(1005)]


def test_versions_that_others_wrote_are_listed_oldest_first(make_store, versioned, admin):
    prefix = f"p/{secrets.token_hex(4)}"
    written = [admin.put_object(Bucket=versioned, Key=f"{prefix}/k", Body=b"%d" % n)["VersionId"] for n in range(3)]
    admin.delete_object(Bucket=versioned, Key=f"{prefix}/k")
    assert [found.version for found in make_store(versioned, prefix=prefix).versions("k")] == written


def test_a_strangers_key_of_any_spelling_is_listed_a19(make_store, versioned, admin):
    prefix = f"p/{secrets.token_hex(4)}"
    admin.put_object(Bucket=versioned, Key=f"{prefix}/a b+c%20ü", Body=b"")
    assert [found.key for found in make_store(versioned, prefix=prefix).walk()] == ["a b+c%20ü"]


def test_a_store_that_ignores_conditional_writes_is_not_ready_a15(tmp_path):
    (tmp_path / "bucket").mkdir()
    with rclone(tmp_path) as endpoint:
        approved = EgressPolicy.load(entries=[{"destination": endpoint, "networks": ["127.0.0.1/32"]}])
        transport = PinnedTransport(lambda: approved)
        bucket = Bucket(endpoint=Destination.parse(endpoint), name="bucket", region="us-east-1")
        api = S3Api(transport, bucket, Credentials(access_key="access", secret_key="s" * 16))
        found = codes(probe(S3Store(api, "p")))
        transport.close()
    assert Code.READINESS_NO_CONDITIONAL_CREATE in found


@contextmanager
def rclone(folder):
    program = shutil.which("rclone", path=str(Path(sys.executable).parent)) or shutil.which("rclone")
    assert program is not None, "rclone comes with the test dependencies: make setup"
    with socket.socket() as probing:
        probing.bind(("127.0.0.1", 0))
        port = probing.getsockname()[1]
    command = [program, "serve", "s3", "--addr", f"127.0.0.1:{port}", "--auth-key", f"access,{'s' * 16}", str(folder)]
    empty = {"HOME": str(folder), "RCLONE_CONFIG": "/dev/null"}
    with subprocess.Popen(command, env=empty, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            _wait_for(port)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()


def _wait_for(port):
    for _ in range(200):
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    pytest.fail("rclone did not start")
