"""What an S3 server may answer, and what it is called here (A16, F9)."""

import logging
from datetime import UTC, datetime
from hashlib import sha256

import pytest

from retention_pipeline import clock
from retention_pipeline.egress.policy import Destination, EgressPolicy
from retention_pipeline.egress.s3 import S3Api
from retention_pipeline.egress.s3_wire import Bucket
from retention_pipeline.egress.transport import PinnedTransport
from retention_pipeline.errors import Code, Integrity, Refused, RetentionError, Unavailable
from retention_pipeline.model.credentials import Credentials
from retention_pipeline.model.profile import LockMode

BODY = b"body"
SECRETS = ("AKIDEXAMPLE", "wJalrXUtnFEMI", "the-token", "the-bucket", "the/key", "127.0.0.1")


@pytest.fixture(autouse=True)
def pauses(monkeypatch):
    waited = []
    monkeypatch.setattr(clock, "sleep", waited.append)
    return waited


@pytest.fixture
def api_on():
    made = []

    def make(script, lock_mode=LockMode.GOVERNANCE, **how):
        endpoint = f"http://127.0.0.1:{script.port}"
        approved = EgressPolicy.load(entries=[{"destination": endpoint, "networks": ["127.0.0.1/32"]}])
        made.append(PinnedTransport(lambda: approved, **how))
        bucket = Bucket(endpoint=Destination.parse(endpoint), name="the-bucket", region="eu-central-1")
        credentials = Credentials(access_key="AKIDEXAMPLE", secret_key="wJalrXUtnFEMI", session_token="the-token")
        return S3Api(made[-1], bucket, credentials, lock_mode=lock_mode)

    yield make
    for transport in made:
        transport.close()


def put(api):
    return api.put("the/key", BODY, digest=sha256(BODY).digest())


def get(api):
    with api.get("the/key", "v1") as stream:
        return stream.read(100)


def listing(api):
    return list(api.versions("the/"))


def delete(api):
    return api.delete("the/key", "v1")


def settings(api):
    return api.versioning()


def error(status, code=""):
    body = f"<Error><Code>{code}</Code><Message>the-bucket the/key</Message><Key>the/key</Key></Error>" if code else ""
    return status, {"Content-Type": "application/xml"}, body.encode()


def failure(call, api):
    with pytest.raises(RetentionError) as raised:
        call(api)
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__ or raised.value.__context__ is None
    assert not any(secret in str(raised.value) for secret in SECRETS)
    return raised.value


@pytest.mark.parametrize(
    ("call", "answer", "kind", "code"),
    [
        (put, error(412, "PreconditionFailed"), Refused, Code.OBJECT_EXISTS),
        (put, error(409, "ConditionalRequestConflict"), Unavailable, Code.STORE_CONTENDED),
        (put, error(409, "OperationAborted"), Unavailable, Code.STORE_CONTENDED),
        (put, error(400, "BadDigest"), Integrity, Code.OBJECT_DIGEST_MISMATCH),
        (put, error(400, "XAmzContentSHA256Mismatch"), Integrity, Code.OBJECT_DIGEST_MISMATCH),
        (put, error(404, "NoSuchBucket"), Refused, Code.STORE_MISSING),
        (put, error(404), Refused, Code.STORE_MISSING),
        (put, error(403, "AccessDenied"), Refused, Code.STORE_DENIED),
        (put, error(403, "SignatureDoesNotMatch"), Refused, Code.STORE_DENIED),
        (put, error(403, "InvalidAccessKeyId"), Refused, Code.STORE_DENIED),
        (put, error(400, "ExpiredToken"), Refused, Code.STORE_DENIED),
        (put, error(403, "RequestTimeTooSkewed"), Unavailable, Code.STORE_CLOCK_SKEW),
        (put, error(507), Unavailable, Code.STORE_FULL),
        (put, error(507, "XMinioStorageFull"), Unavailable, Code.STORE_FULL),
        (put, error(403, "QuotaExceeded"), Unavailable, Code.STORE_FULL),
        (put, error(500, "InternalError"), Unavailable, Code.STORE_UNAVAILABLE),
        (put, error(503, "SlowDown"), Unavailable, Code.STORE_UNAVAILABLE),
        (put, error(429), Unavailable, Code.STORE_UNAVAILABLE),
        (put, error(400, "RequestTimeout"), Unavailable, Code.STORE_UNAVAILABLE),
        (put, error(501, "NotImplemented"), Unavailable, Code.STORE_PROTOCOL),
        (put, error(418), Unavailable, Code.STORE_PROTOCOL),
        (put, error(400, "AuthorizationHeaderMalformed"), Unavailable, Code.STORE_PROTOCOL),
        (put, error(301, "PermanentRedirect"), Refused, Code.EGRESS_NOT_APPROVED),
        (put, error(307, "TemporaryRedirect"), Refused, Code.EGRESS_NOT_APPROVED),
        (put, "cut", Unavailable, Code.STORE_UNAVAILABLE),
        (get, error(404, "NoSuchKey"), Integrity, Code.OBJECT_MISSING),
        (get, error(404, "NoSuchVersion"), Integrity, Code.OBJECT_MISSING),
        (get, error(405, "MethodNotAllowed"), Integrity, Code.OBJECT_MISSING),
        (get, error(404, "NoSuchBucket"), Refused, Code.STORE_MISSING),
        (get, error(403, "AccessDenied"), Refused, Code.STORE_DENIED),
        (get, error(503), Unavailable, Code.STORE_UNAVAILABLE),
        (listing, error(404, "NoSuchBucket"), Refused, Code.STORE_MISSING),
        (listing, error(403, "AccessDenied"), Refused, Code.STORE_DENIED),
        (listing, (200, {}, b"<html>not s3"), Unavailable, Code.STORE_PROTOCOL),
        (listing, (200, {}, b"\xff\xfe"), Unavailable, Code.STORE_PROTOCOL),
        (delete, error(404, "NoSuchVersion"), Integrity, Code.OBJECT_MISSING),
        (delete, error(403, "AccessDenied"), Refused, Code.STORE_DENIED),
        (settings, error(403, "AccessDenied"), Refused, Code.STORE_DENIED),
        (settings, error(301), Refused, Code.EGRESS_NOT_APPROVED),
    ],
)
def test_each_answer_has_its_name_and_shows_nothing_f9(serve, api_on, call, answer, kind, code):
    raised = failure(call, api_on(serve(answer)))
    assert (type(raised), raised.code) == (kind, code)


def test_a_denied_read_says_that_the_object_may_be_missing_f9(serve, api_on):
    assert "missing" in failure(get, api_on(serve(error(403, "AccessDenied")))).message


@pytest.mark.parametrize("answer", ["cut", error(500), error(503, "SlowDown"), error(409)])
def test_a_write_is_never_repeated_by_itself_a5(serve, api_on, answer):
    script = serve(answer)
    failure(put, api_on(script))
    assert len(script.requests) == 1


@pytest.mark.parametrize("first", ["cut", error(500), error(503)])
def test_a_read_is_asked_again_after_a_pause(serve, api_on, pauses, first):
    script = serve(first, first, (200, {}, BODY))
    assert get(api_on(script)) == BODY
    assert len(script.requests) == 3
    assert pauses == sorted(pauses)
    assert len(pauses) == 2


def test_a_server_that_hangs_is_unavailable(serve, api_on):
    raised = failure(put, api_on(serve("hang"), read_timeout=0.1))
    assert raised.code is Code.STORE_UNAVAILABLE


def test_a_body_that_is_cut_is_unavailable_and_not_short_a6(serve, api_on):
    api = api_on(serve((200, {"Content-Length": "100"}, BODY)), read_timeout=0.2)

    def read_all(api):
        with api.get("the/key", "v1") as stream:
            while stream.read(10):
                pass

    assert failure(read_all, api).code is Code.STORE_UNAVAILABLE


def test_a_write_is_conditional_signed_and_has_both_checksums_a5(serve, api_on):
    script = serve((200, {"x-amz-version-id": "v9"}, b""))
    assert put(api_on(script)) == "v9"
    ((method, path, headers, body),) = script.requests
    assert (method, path, body) == ("PUT", "/the-bucket/the/key", BODY)
    assert headers["if-none-match"] == "*"
    assert headers["content-md5"] == "hBotaJrYa9FhFEdFPCLG/A=="
    assert headers["x-amz-checksum-sha256"] == "Iw2DWNyOiJC0xY3utikS7i8gNXrpKlzIYbmOaP4xrLU="
    assert headers["x-amz-content-sha256"] == sha256(BODY).hexdigest()
    assert headers["x-amz-security-token"] == "the-token"
    signed = headers["authorization"].split("SignedHeaders=")[1]
    for name in ("if-none-match", "content-md5", "x-amz-checksum-sha256", "x-amz-security-token", "host"):
        assert name in signed
    assert "expect" not in headers


@pytest.mark.parametrize("mode", LockMode)
def test_a_lock_is_part_of_the_write_and_nothing_asks_to_bypass_one_a11(serve, api_on, mode):
    script = serve((200, {}, b""), (200, {}, b""), (204, {}, b""))
    until = datetime(2031, 1, 2, 3, 4, 5, 999, tzinfo=UTC)
    api = api_on(script, lock_mode=mode)
    api.put("k", BODY, digest=sha256(BODY).digest(), lock_until=until)
    api.lock("k", "v", until)
    api.delete("k", "v")
    assert not any("bypass" in name for request in script.requests for name in request[2])
    headers = script.requests[0][2]
    assert headers["x-amz-object-lock-mode"] == mode.upper()
    assert headers["x-amz-object-lock-retain-until-date"] == "2031-01-02T03:04:05Z"


def page(*, more, key="", version="", entries=()):
    versions = "".join(f"<Version><Key>{k}</Key><VersionId>{v}</VersionId><Size>1</Size></Version>" for k, v in entries)
    text = f"""<ListVersionsResult><EncodingType>url</EncodingType><IsTruncated>{str(more).lower()}</IsTruncated>
    <NextKeyMarker>{key}</NextKeyMarker><NextVersionIdMarker>{version}</NextVersionIdMarker>{versions}
    <DeleteMarker><Key>the/gone</Key><VersionId>m</VersionId></DeleteMarker></ListVersionsResult>"""
    return 200, {}, text.encode()


def test_a_listing_is_read_page_by_page_without_delete_markers(serve, api_on):
    script = serve(
        page(more=True, key="the/a%2Bb", version="2", entries=[("the/a%2Bb", "3"), ("the/a%2Bb", "2")]),
        page(more=False, entries=[("the/a%2Bb", "1"), ("the/c+d", "1")]),
    )
    found = [(entry.key, entry.version) for entry in api_on(script).versions("the/")]
    assert found == [("the/a+b", "3"), ("the/a+b", "2"), ("the/a+b", "1"), ("the/c d", "1")]
    assert "key-marker=the%2Fa%2Bb" in script.requests[1][1]
    assert "version-id-marker=2" in script.requests[1][1]


def test_a_listing_that_never_ends_is_refused(serve, api_on):
    assert failure(listing, api_on(serve(page(more=True, key="the/a", version="1")))).code is Code.STORE_PROTOCOL
    assert failure(listing, api_on(serve(page(more=True)))).code is Code.STORE_PROTOCOL


def test_settings_that_were_never_made_are_no_error_a11(serve, api_on):
    assert api_on(serve(error(404, "NoSuchLifecycleConfiguration"))).lifecycle() == ()
    assert not api_on(serve(error(404, "ObjectLockConfigurationNotFoundError"))).object_lock()
    assert not api_on(serve((200, {}, b"<VersioningConfiguration/>"))).versioning()


def test_the_environment_gives_no_credentials_region_or_place_a14(serve, api_on, monkeypatch):
    for name in ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL", "AWS_REGION"):
        monkeypatch.setenv(name, "ambient")
    script = serve((200, {}, b""))
    put(api_on(script))
    assert "Credential=AKIDEXAMPLE/" in script.requests[0][2]["authorization"]
    assert "/eu-central-1/s3/" in script.requests[0][2]["authorization"]
    assert "ambient" not in str(script.requests)


def test_nothing_of_a_request_is_logged_or_shown_a16(serve, api_on, caplog):
    caplog.set_level(logging.DEBUG)
    api = api_on(serve(page(more=False)))
    listing(api)
    assert caplog.records == []
    assert not any(secret in repr(vars(api)) for secret in SECRETS[:5])
