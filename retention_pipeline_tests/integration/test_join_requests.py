"""Requests on which nobody acts are shelved after 90 days; nothing else is (SPEC J1, J2, J4, J5, J7)."""

import threading

import psycopg
import pytest

from retention_pipeline.model.outcome import Outcome
from retention_pipeline_tests.databases import template
from retention_pipeline_tests.joining import OVER, YOUNGER, Club
from retention_pipeline_tests.sweeping import broom, module_database, shared

__all__ = ["broom", "module_database", "shared", "template"]

SWEEP = "join_requests"


@pytest.fixture
def club(broom):
    made = Club(platform=broom.platform())
    yield made
    made.close()


def swept(broom, club, **how):
    return broom.sweep(club.platform, SWEEP, **how)


def test_a_request_is_due_at_the_instant_and_not_one_microsecond_before(broom, club):
    """J2."""
    due, not_yet = club.ask(OVER), club.ask(YOUNGER)
    result = swept(broom, club)
    assert club.archived() == {due} != {not_yet}
    assert (result.report.outcome, result.report.counts.shelved) == (Outcome.COMPLETED, 1)


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo", "America/Los_Angeles"])
def test_no_time_zone_and_no_summer_time_moves_a_deadline(broom, club, zone):
    """F13: a day is 24 hours, over the night on which clocks change too."""
    club.run(f"ALTER ROLE worker SET TimeZone = '{zone}'")
    try:
        due, not_yet = club.ask(OVER), club.ask(YOUNGER)
        broom.sweep(club.platform, SWEEP, sweeper=broom.sweeper(SWEEP, broom.session()))
    finally:
        club.run("ALTER ROLE worker RESET TimeZone")
    assert club.archived() == {due} != {not_yet}


def test_archiving_neither_approves_nor_rejects_and_tells_people_and_no_agent(broom, club):
    """J5: version, activity, notification; status, access, activity and visibility as they were."""
    request = club.ask(kind="agent")
    before = club.row(request)
    swept(broom, club)
    after = club.row(request)
    assert {name for name in after if after[name] != before[name]} == {"archived_at", "version"}
    assert after["version"] == before["version"] + 1
    assert club.told(request) == (1, 1, 0)
    assert (
        club.value("SELECT action FROM nucleus.activity_records WHERE subject_id = %s", request)
        == "join_request.archived"
    )
    [(actor, details)] = club.writer.execute(
        "SELECT actor, details ->> 'request' FROM retention.audit_events WHERE kind = 'sweep.shelved' AND details ->> 'request' = %s",
        [request],
    ).fetchall()
    assert (actor, details) == ("postgres", request)


@pytest.mark.parametrize(
    "columns",
    [
        {"status": "approved"},
        {"status": "rejected"},
        {"kept_at": OVER},
        {"archived_at": "2020-01-01Z"},
        {"updated_at": "infinity"},
        {"updated_at": "-infinity"},
        {"invite_id": None},
    ],
)
def test_what_is_no_candidate_stays_as_it_is(broom, club, columns):
    """J1."""
    request = club.ask(**columns) if "updated_at" not in columns else club.ask(columns["updated_at"])
    before = club.row(request)
    assert swept(broom, club).report.counts.shelved == 0
    assert club.row(request) == before
    assert club.told(request) == (0, 0, 0)


@pytest.mark.parametrize("status", ["paused", "archived", "deleted"])
def test_only_requests_of_an_active_company_are_candidates(broom, club, status):
    """J1."""
    request = club.ask()
    club.company_is(status)
    result = swept(broom, club)
    assert (club.archived(), result.report.backlog) == (set(), 0)
    club.company_is("active")
    swept(broom, club)
    assert club.archived() == {request}


def test_an_invite_of_another_company_makes_none_a_candidate_and_an_expired_one_changes_nothing(broom, club):
    """J1."""
    other = Club(platform=club.platform)
    club.ask(invite_id=other.invite)
    other.run("UPDATE nucleus.company_invites SET revoked_at = '2026-01-01Z', expires_at = '2026-01-01Z'")
    revoked = other.ask()
    swept(broom, club)
    assert club.archived() == {revoked}
    other.close()


def test_full_pages_go_on_until_the_work_is_done(broom, club):
    """J4: 250 requests, some of one instant."""
    asked = {club.ask(f"2026-01-01 00:00:00.0000{n // 10:02}+00") for n in range(250)}
    result = swept(broom, club)
    assert club.archived() == asked
    assert (result.report.counts.shelved, result.report.outcome) == (250, Outcome.COMPLETED)
    assert club.value("SELECT count(*) FROM nucleus.activity_records WHERE company_id = %s", club.company) == 250


def test_a_request_that_fails_first_in_line_starves_none_and_is_tried_again_after_30_seconds(broom, club):
    """J4, F7: the retry is on record, for whoever comes next."""
    bad = club.ask("2026-01-01Z")
    others = {club.ask("2026-01-02Z") for _ in range(12)}
    club.run(
        "CREATE OR REPLACE FUNCTION nucleus.bad_request() RETURNS trigger LANGUAGE plpgsql AS"
        f" $$ BEGIN IF OLD.id = '{bad}' THEN RAISE EXCEPTION 'no'; END IF; RETURN NEW; END $$"
    )
    club.run(
        "CREATE TRIGGER bad BEFORE UPDATE ON nucleus.join_requests FOR EACH ROW EXECUTE FUNCTION nucleus.bad_request()"
    )
    try:
        result = swept(broom, club)
    finally:
        club.run("DROP TRIGGER bad ON nucleus.join_requests")
    assert (club.archived(), result.report.outcome) == (others, Outcome.PARTIAL)
    assert club.told(bad) == (0, 0, 0)
    seconds = club.value(
        "SELECT extract(epoch FROM not_before - at) FROM retention.sweep_set_asides WHERE tenant_id = %s",
        club.platform.tenant,
    )
    assert 29 < seconds < 31
    assert swept(broom, club).report.counts.shelved == 0  # it waits
    club.run("UPDATE retention.sweep_set_asides SET not_before = now() WHERE tenant_id = %s", club.platform.tenant)
    assert swept(broom, club).report.counts.shelved == 1


class Between:
    """Somebody else acts between the page and the request's own transaction."""

    def __init__(self, inner, act):
        self.inner, self.act = inner, act

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def batch(self, turn, after, limit):
        self.inner.stopping = self.acts
        return self.inner.batch(turn, after, limit)

    def acts(self):
        if self.act is not None:
            self.act()
            self.act = None
        return False


@pytest.mark.parametrize(
    "columns",
    [
        {"status": "approved"},
        {"kept_at": "2026-05-01Z"},
        {"updated_at": "2026-05-01Z"},
        {"version": 2},
        {"archived_at": "2026-05-01Z", "version": 2},
    ],
)
def test_a_change_between_the_page_and_the_lock_wins(broom, club, columns):
    """J5."""
    request = club.ask()
    sweeper = Between(broom.sweeper(SWEEP), lambda: club.change(request, **columns))
    assert swept(broom, club, sweeper=sweeper).report.counts.shelved == 0
    assert club.told(request) == (0, 0, 0)
    assert all(str(club.row(request)[name])[:10] == str(value)[:10] for name, value in columns.items())


def test_a_request_that_somebody_has_in_hand_is_passed_by(broom, club):
    """J5: they win, whether they commit or not."""
    request, free = club.ask("2026-01-01Z"), club.ask()
    with club.platform.database.superuser() as other:
        other.autocommit = False
        other.execute("UPDATE nucleus.join_requests SET status = 'approved' WHERE id = %s", [request])
        assert swept(broom, club).report.counts.shelved == 1
        other.rollback()
    assert club.archived() == {free}
    swept(broom, club)
    assert club.archived() == {free, request}


def test_a_stop_finishes_the_request_in_hand_and_starts_no_further_one(broom, club):
    """J7."""
    for _ in range(10):
        club.ask()
    sweeper = broom.sweeper(SWEEP)
    asked = iter([False, False, False, True])
    sweeper.stopping = lambda: next(asked)
    with pytest.raises(StopIteration):  # the loop asks again: the page ended after three
        swept(broom, club, sweeper=sweeper)
    assert len(club.archived()) == 3
    assert swept(broom, club).report.counts.shelved == 7


def test_two_workers_at_once_shelve_each_request_once(broom, club):
    """J5, F4: exactly one activity and one notification each."""
    asked = [club.ask(f"2026-01-01 00:00:00.{n:06}+00") for n in range(60)]
    approvals = [broom.approve(club.platform, SWEEP) for _ in range(2)]
    workers = [
        threading.Thread(target=lambda: swept(broom, club, lease=False, batch=10, approval=approvals.pop()))
        for _ in range(2)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert club.archived() == set(asked)
    assert {club.told(request) for request in asked} == {(1, 1, 0)}


def test_archived_requests_leave_the_attention_feed_and_the_others_stay(broom, club):
    """J6."""
    due, kept, young = club.ask(), club.ask(kept_at=OVER), club.ask(YOUNGER)
    assert club.feed() == {due, kept, young}
    swept(broom, club)
    assert club.feed() == {kept, young}


def test_the_workers_login_alone_shelves_nothing_and_tells_nothing(broom, club):
    """G4."""
    due, young = club.ask(), club.ask("2126-11-30Z")
    shelve = "UPDATE nucleus.join_requests SET archived_at = now(), version = version + 1"
    tell = "INSERT INTO nucleus.activity_records (tenant_id, company_id, subject_id, action, actor) VALUES (%s, %s, %s, 'a', 'b')"
    with psycopg.connect(broom.bench.database.worker_url, autocommit=True) as worker:
        for setting in ("retention.tenant_id", "nucleus.tenant_id"):
            worker.execute("SELECT set_config(%s, %s, false)", [setting, club.platform.tenant])
        assert worker.execute(shelve).rowcount == 0
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            worker.execute(tell, [club.platform.tenant, club.company, due])
        worker.execute(
            "INSERT INTO retention.approval_uses (approval_id, run, tenant_id, single_use) VALUES (%s, 'r', %s, true)",
            [broom.approve(club.platform, SWEEP), club.platform.tenant],
        )
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            worker.execute("UPDATE nucleus.join_requests SET status = 'approved'")
        assert worker.execute(shelve).rowcount == 1
    assert club.archived() == {due} != {young}


def test_one_tenants_sweep_leaves_another_tenants_requests_alone(broom, club):
    other = Club(platform=broom.platform())
    theirs = other.ask()
    club.ask()
    swept(broom, club)
    assert other.archived() == set() != {theirs}
    other.close()
