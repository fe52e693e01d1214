"""`retention join`: a person keeps, lets go, archives and revives a request (SPEC J6, G4, G6)."""

import pytest

from retention_pipeline.catalog.loader import load
from retention_pipeline.keys.local import LocalKeyring
from retention_pipeline.model.ids import TenantId
from retention_pipeline.postgres import join_acts
from retention_pipeline.postgres.session import Session
from retention_pipeline_tests.databases import template
from retention_pipeline_tests.desks import Desk
from retention_pipeline_tests.joining import Club
from retention_pipeline_tests.rows import Platform
from retention_pipeline_tests.seams import module_database

__all__ = ["module_database", "template"]


@pytest.fixture(scope="module")
def desk(module_database, tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    (home / "archives").mkdir()
    LocalKeyring.create(home / "keyring.json")
    platform = Platform(database=module_database)
    alias = platform.value("SELECT alias FROM nucleus.tenants WHERE id = %s", platform.tenant)
    return Desk(database=module_database, home=home, platform=platform, alias=str(alias))


@pytest.fixture
def club(desk):
    made = Club(platform=desk.platform)
    made.reset_deadline()
    yield made
    made.close()


def act(desk, what, request, *more):
    return desk.done("join", what, request, "--reason", "asked for", *more)


def test_each_act_is_looked_at_first_and_then_done_once(desk, club):
    """C, J6: the version, the activity, the event, and the same call again."""
    request = club.ask("2127-01-01Z")
    for what, column, is_set in (
        ("keep", "kept_at", True),
        ("unkeep", "kept_at", False),
        ("archive", "archived_at", True),
        ("revive", "archived_at", False),
    ):
        before = club.row(request)
        looked = act(desk, what, request)
        assert (looked["outcome"], looked[f"would_{what}"]) == ("preflight", True)
        assert club.row(request) == before
        done = act(desk, what, request, "--apply")
        assert (done["outcome"], done["already"]) == ("completed", False)
        after = club.row(request)
        assert ((after[column] is not None), after["version"]) == (is_set, before["version"] + 1)
        assert after["status"] == "pending_approval"
        assert act(desk, what, request)[f"would_{what}"] is False
        assert act(desk, what, request, "--apply")["already"] is True
        assert club.row(request) == after
    assert club.told(request) == (4, 0, 0)
    for what in ("keep", "unkeep", "archive", "revive"):
        events = [event for event in desk.audit(f"join_request.{what}") if event["subject"] == request]
        assert [(event["outcome"], event["actor"]) for event in events] == [("done", "admin")] * 2


def test_revive_and_unkeep_give_the_days_anew_and_move_the_deadline(desk, club):
    """J6: a revived request is not archived again at once, and returns to the feed."""
    request = club.ask("2020-01-01Z")
    act(desk, "archive", request, "--apply")
    assert request not in club.feed()
    club.reset_deadline()
    act(desk, "revive", request, "--apply")
    assert request in club.feed()
    assert club.value(
        "SELECT next_due BETWEEN now() + interval '2159 hours' AND now() + interval '2160 hours' FROM retention.deadlines"
    )
    assert act(desk, "keep", request)["due_at"] is not None


def test_what_can_t_be_done_is_refused_by_name(desk, club):
    """G6."""
    decided, archived = club.ask(status="approved"), club.ask(archived_at="2026-01-01Z")
    for what in ("keep", "unkeep", "archive", "revive"):
        assert desk.call("join", what, decided, "--reason", "r", "--apply").error == "RETENTION_JOIN_REQUEST_DECIDED"
    assert desk.call("join", "keep", archived, "--reason", "r", "--apply").error == "RETENTION_JOIN_REQUEST_ARCHIVED"
    for wrong in ("00000000-0000-4000-8000-000000000000", "no id"):
        assert desk.call("join", "keep", wrong, "--reason", "r").error == "RETENTION_JOIN_REQUEST_UNKNOWN"
    assert desk.call("join", "keep", archived).code == 2  # a reason is asked for


def test_a_change_between_the_look_and_the_act_is_refused(desk, club):
    """J5: under the version that was seen."""
    request = club.ask()
    session = Session(url=desk.database.worker_url, source_setting="nucleus.tenant_id")
    tenant = TenantId(desk.platform.tenant)
    with session.transaction(tenant) as cursor:
        known = join_acts.find(cursor, load(), request)
    club.change(request, version=7)
    approval = desk.platform.value(
        "WITH g AS (INSERT INTO retention.grant_events (tenant_id, principal, permission, action)"
        " VALUES ('*', 'postgres', 'workflow_retention:reconcile', 'add'))"
        " INSERT INTO retention.approvals (tenant_id, job, subject, kind, max_items, expires_at, reason)"
        " VALUES (%s, 'join_request', %s, 'single_use', 1, now() + interval '1 h', 'r') RETURNING id",
        tenant,
        request,
    )
    with session.transaction(tenant) as cursor:
        done = join_acts.do(cursor, known, join_acts.Act.KEEP, approval=str(approval), correlation="c")
    session.close()
    assert done.code == "RETENTION_JOIN_REQUEST_CHANGED"
    assert club.row(request)["kept_at"] is None


def test_the_help_has_an_example_of_each(desk):
    for what in ("keep", "unkeep", "archive", "revive"):
        shown = desk.call("join", what, "--help", as_json=False, tenant=None).out
        assert f"join {what} 0b7c" in shown
