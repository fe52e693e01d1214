"""Credentials: sealed, bound to their tenant, and never shown (SPEC A13)."""

import threading

import pytest

from retention_pipeline.app import App
from retention_pipeline.envelope.wraps import open_value
from retention_pipeline.errors import Integrity, RetentionError
from retention_pipeline.postgres import credentials
from retention_pipeline.settings import Settings
from retention_pipeline_tests.rows import Platform

GIVEN = '{"access_key": "AKIAEXAMPLE", "secret_key": "kept-to-ourselves", "session_token": "for-a-while"}'


@pytest.fixture
def app(desk):
    with App(Settings.load(desk.environment("admin"))) as app:
        yield app


def newest(app, tenant, secret_id):
    with app.worker().transaction(tenant, read_only=True) as cursor:
        return credentials.newest(cursor, tenant, secret_id)


def test_what_was_put_is_what_the_worker_opens(desk, app):
    made = desk.done("secret", "put", text=GIVEN)
    tenant = desk.platform.tenant
    sealed = newest(app, tenant, made["secret_id"])
    opened = sealed.open(app.tenant_keys().find(tenant, sealed.key_id))
    assert (opened.access_key, opened.secret_key, opened.session_token) == (
        "AKIAEXAMPLE",
        "kept-to-ourselves",
        "for-a-while",
    )


def test_another_tenants_secret_does_not_resolve(desk, app):
    made = desk.done("secret", "put", text=GIVEN)
    other = Platform(database=desk.database)
    alias = other.value("SELECT alias FROM nucleus.tenants WHERE id = %s", other.tenant)
    with pytest.raises(RetentionError, match="RETENTION_SECRET_UNKNOWN"):
        newest(app, other.tenant, made["secret_id"])
    for words in (
        ("secret", "put", "--id", made["secret_id"]),
        ("secret", "revoke", made["secret_id"], "--reason", "r"),
        (
            *("profile", "set", "--provider", "s3-compatible", "--archive-retention-days", "0"),
            *("--secret-id", made["secret_id"], "--config", "endpoint=https://s3.example.org"),
            *("--config", "bucket=archives", "--config", "region=eu-1"),
        ),
    ):
        assert desk.call(*words, tenant=alias, text=GIVEN).error == "RETENTION_SECRET_UNKNOWN"
    assert desk.done("secret", "list", tenant=alias)["secrets"] == []


def test_a_row_that_was_moved_to_another_tenant_does_not_open(desk, app):
    made = desk.done("secret", "put", text=GIVEN)
    other = Platform(database=desk.database)
    desk.platform.run("UPDATE retention.secrets SET tenant_id = %s", other.tenant)
    sealed = newest(app, other.tenant, made["secret_id"])
    key = app.tenant_keys().find(desk.platform.tenant, sealed.key_id)
    with pytest.raises(Integrity):
        sealed.open(key)
    with pytest.raises(Integrity):
        open_value(key, ("nucleus/archive-secret.v1", desk.platform.tenant, made["secret_id"], 2), sealed.ciphertext)


def test_a_secret_gets_generations_until_it_is_revoked(desk):
    made = desk.done("secret", "put", text=GIVEN)
    again = desk.done("secret", "put", "--id", made["secret_id"].upper(), text=GIVEN)
    assert again == {**made, "generation": 2}
    desk.done("secret", "revoke", made["secret_id"], "--reason", "leaked")
    assert desk.call("secret", "put", "--id", made["secret_id"], text=GIVEN).error == "RETENTION_SECRET_REVOKED"
    [entry] = desk.done("secret", "list")["secrets"]
    assert (entry["secret_id"], entry["generation"], entry["revoked"]) == (made["secret_id"], 2, True)


def test_the_list_says_which_profiles_use_a_secret(desk):
    """A13: an older profile's secret still reads the archives that were written under it."""
    first, second, idle = (desk.done("secret", "put", text=GIVEN)["secret_id"] for _ in range(3))
    place = "INSERT INTO retention.profiles (tenant_id, generation, provider, configuration, secret_id, archive_retention_days)"
    for generation, secret in enumerate((first, second, second), 1):
        desk.platform.run(
            f"{place} VALUES (%s, %s, 's3-compatible', '{{}}', %s, 365)", desk.platform.tenant, generation, secret
        )
    uses = {e["secret_id"]: (e["profiles"], e["in_use"]) for e in desk.done("secret", "list")["secrets"]}
    assert uses == {first: ([1], False), second: ([2, 3], True), idle: ([], False)}
    desk.done("secret", "revoke", second, "--reason", "leaked")
    [entry] = [e for e in desk.done("secret", "list")["secrets"] if e["secret_id"] == second]
    assert (entry["profiles"], entry["in_use"], entry["revoked"], entry["days"]) == ([2, 3], False, True, 0)


@pytest.mark.parametrize(
    "given",
    ["", "AKIAEXAMPLE", "[]", '{"access_key": "AKIAEXAMPLE"}', GIVEN.replace("session", "zession"), "x" * 20_000],
)
def test_bad_credentials_are_refused_without_a_word_of_them(desk, given):
    answer = desk.call("secret", "put", text=given)
    assert (answer.code, answer.error) == (3, "RETENTION_SECRET_INVALID")
    assert "AKIAEXAMPLE" not in answer.out + answer.err
    assert desk.done("secret", "list")["secrets"] == []


def test_nothing_secret_is_shown_or_kept_in_clear(desk):
    words = (("secret", "put"), ("secret", "list"))
    answers = [desk.call(*w, text=GIVEN, as_json=as_json) for w in words for as_json in (True, False)]
    kept = desk.platform.value("SELECT string_agg(s::text, '') FROM retention.secrets AS s")
    for text in (*(a.out + a.err for a in answers), str(kept), str(desk.audit("secret"))):
        assert "AKIAEXAMPLE" not in text
        assert "kept-to-ourselves" not in text


def test_a_secret_on_the_command_line_is_refused_and_not_repeated(desk):
    answer = desk.call("secret", "put", "AKIAEXAMPLE", as_json=False)
    assert answer.code == 2
    assert "AKIAEXAMPLE" not in answer.out + answer.err


def test_without_a_keyring_nothing_is_sealed(desk):
    desk.keyring.rename(desk.keyring.with_suffix(".away"))
    answer = desk.call("secret", "put", text=GIVEN)
    assert (answer.code, answer.error) == (5, "RETENTION_KEYRING_MISSING")


def test_processes_that_need_a_tenants_first_key_at_once_get_the_same_one(desk):
    found, barrier = [], threading.Barrier(4)

    def ask():
        with App(Settings.load(desk.environment("admin"))) as app:
            keys = app.tenant_keys()
            app.worker().principal()
            barrier.wait()
            key = keys.current(desk.platform.tenant)
            found.append((key.id, key.secret, keys.find(desk.platform.tenant, key.id)))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert len(set(found)) == 1
    assert desk.platform.value("SELECT count(*) FROM retention.tenant_keys") == 1


def test_a_tenants_key_is_not_anothers(desk, app):
    key = app.tenant_keys().current(desk.platform.tenant)
    other = Platform(database=desk.database)
    with pytest.raises(RetentionError, match="RETENTION_KEY_UNAVAILABLE"):
        app.tenant_keys().find(other.tenant, key.id)
