import pytest

from retention_pipeline.errors import Code, Refused
from retention_pipeline.governance.profile import Grammar, looks_like_credential, parse_profile
from retention_pipeline.model.profile import LockMode, Provider

SECRET = "5d1e1b4e-0000-4000-8000-00000000000a"
PLACES = {
    "endpoint": "https://s3.example.org",
    "bucket": "archives-1",
    "region": "eu-central-1",
    "prefix": "acme/cases",
}


def refuse(_):
    raise Refused(Code.EGRESS_INVALID, "no", remedy="write it so")


PLAIN = Grammar(endpoint=str.lower, prefix=str)


def parse(provider="s3-compatible", configuration=PLACES, secret_id=SECRET, days=365, grammar=PLAIN):
    return parse_profile(provider, configuration, secret_id=secret_id, archive_retention_days=days, grammar=grammar)


def test_places_are_kept_in_their_normal_spelling():
    draft = parse(configuration={**PLACES, "endpoint": "HTTPS://S3.example.org"}, secret_id=SECRET.upper())
    assert draft.configuration == PLACES
    assert (draft.provider, draft.secret_id, draft.archive_retention_days) == (Provider.S3, SECRET, 365)


def test_a_prefix_may_be_left_out():
    assert parse("filesystem", {}, None).configuration == {"prefix": ""}


@pytest.mark.parametrize("mode", LockMode)
def test_a_bucket_locks_as_it_is_told_a11(mode):
    assert parse(configuration={**PLACES, "lock_mode": str(mode)}).configuration["lock_mode"] == mode


@pytest.mark.parametrize("days", [0, 365, 36_500])
def test_archives_may_stay_for_ever_or_for_a_year_at_least(days):
    assert parse(days=days).archive_retention_days == days


@pytest.mark.parametrize("days", [-1, 1, 364, 36_501])
def test_no_other_period_is_taken(days):
    with pytest.raises(Refused, match="WORKFLOW_ARCHIVE_PROFILE_INVALID"):
        parse(days=days)


@pytest.mark.parametrize(
    "more",
    [
        {"provider": "ftp"},
        {"provider": "filesystem"},
        {"provider": "filesystem", "secret_id": None},
        {"secret_id": None},
        {"secret_id": "not-an-id"},
        {"configuration": {**PLACES, "acl": "public"}},
        {"configuration": {**PLACES, "bucket": "Archives"}},
        {"configuration": {**PLACES, "bucket": "a..b"}},
        {"configuration": {**PLACES, "bucket": "a/b"}},
        {"configuration": {**PLACES, "region": "eu central"}},
        {"configuration": {**PLACES, "region": "eu-1\n"}},
        {"configuration": {**PLACES, "prefix": 7}},
        {"configuration": {**PLACES, "lock_mode": "COMPLIANCE"}},
        {"configuration": {"prefix": "p", "lock_mode": "governance"}, "provider": "filesystem", "secret_id": None},
        {"configuration": {**PLACES, "prefix": "a" * 600}},
        {"configuration": {"endpoint": "https://s3.example.org"}},
        {"grammar": Grammar(endpoint=refuse, prefix=str)},
        {"grammar": Grammar(endpoint=str, prefix=refuse)},
    ],
)
def test_whatever_does_not_fit_is_refused_and_not_repeated(more):
    with pytest.raises(Refused) as caught:
        parse(**more)
    assert caught.value.code == "WORKFLOW_ARCHIVE_PROFILE_INVALID"
    assert not [value for value in ("s3.example.org", "archives-1", SECRET, "Archives") if value in str(caught.value)]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("secret_key", "x"),
        ("aws_secret_access_key", "x"),
        ("Password", "x"),
        ("access-key", "x"),
        ("accessKey", "x"),
        ("session_token", "x"),
        ("api_key", "x"),
        ("credentials", "x"),
        ("prefix", "AKIAIOSFODNN7EXAMPLE"),
        ("prefix", "ASIAIOSFODNN7EXAMPLE/x"),
        ("endpoint", "https://user:pass@s3.example.org"),
        ("endpoint", "https://user@s3.example.org"),
        ("prefix", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"),
        ("prefix", "-----BEGIN PRIVATE KEY-----"),
        ("prefix", "eyJhbGciOiJIUzI1NiJ9.e30.x"),
        ("prefix", "0123456789abcdef0123456789abcdef01234567"),
        ("prefix", "x?token=abc"),
    ],
)
def test_what_looks_like_a_credential(name, value):
    assert looks_like_credential(name, value)
    with pytest.raises(Refused, match="looks like a credential"):
        parse(configuration={**PLACES, name: value})


@pytest.mark.parametrize(
    "value",
    ["https://s3.eu-central-1.amazonaws.com", "acme/cases/2026", "5d1e1b4e-0000-4000-8000-00000000000a", "a-bucket.of.ours",
     "a/rather/long/prefix/of/lower/case/words/and/1/number"],
)  # fmt: skip
def test_what_does_not(value):
    assert not looks_like_credential("prefix", value)
