"""The next deadline is kept by triggers for every writer, and raised by the worker alone (SPEC J2, J3, J6; F16)."""

import threading
import time

import pytest

from retention_pipeline.catalog.loader import load
from retention_pipeline.postgres import deadlines
from retention_pipeline_tests.databases import database, template
from retention_pipeline_tests.joining import Club
from retention_pipeline_tests.sweeping import Broom
from retention_pipeline_tests.worlds import bench

__all__ = ["bench", "database", "template"]

RULES = load().sweep("join_requests").dataset
MAY, AUGUST = "2127-05-01 00:00:00+00", "2127-07-30 00:00:00+00"
"""An instant, and 90 days after it."""
LATER = "2127-06-01 00:00:00+00"


@pytest.fixture
def club(bench):
    broom = Broom(bench=bench)
    made = Club(platform=broom.platform())
    made.reset_deadline()
    yield made
    made.close()
    broom.close()


@pytest.fixture
def session(bench):
    broom = Broom(bench=bench)
    yield broom.session()
    broom.close()


def recompute(session):
    return deadlines.recompute(session, RULES)


def test_a_new_request_lowers_the_deadline_and_a_later_one_leaves_it(club):
    """J6: creation, by plain SQL."""
    club.ask(MAY)
    assert club.deadline() == AUGUST
    club.ask(LATER)
    assert club.deadline() == AUGUST


def test_a_writer_that_rolls_back_leaves_no_wake(club):
    """J3."""
    with club.writer.transaction(force_rollback=True):
        club.ask(MAY)
        assert club.deadline() == AUGUST
    assert club.deadline() == "infinity"


COMPANY = "UPDATE nucleus.companies SET status = %(status)s WHERE id = %(company)s"
INVITE = "UPDATE nucleus.company_invites SET {} WHERE id = %(invite)s"
MOVERS = {
    "activity earlier": {"updated_at": "2127-04-01Z"},
    "unkeep": {"kept_at": None},
    "revive": {"archived_at": None},
    "back to pending": {"status": "pending_approval"},
    "company resumed": COMPANY.replace("%(status)s", "'active'"),
    "invite written": INVITE.format("company_id = company_id"),
}
BEFORE = {
    "unkeep": {"kept_at": MAY},
    "revive": {"archived_at": MAY},
    "back to pending": {"status": "rejected"},
}


@pytest.mark.parametrize("mover", MOVERS)
def test_whatever_brings_a_deadline_nearer_lowers_it_in_its_own_transaction(club, mover):
    """J6."""
    request = club.ask(LATER if mover == "activity earlier" else MAY, **BEFORE.get(mover, {}))
    if mover == "company resumed":
        club.company_is("paused")
    club.reset_deadline()
    act_on(club, request, MOVERS[mover])
    assert club.deadline() == ("2127-06-30 00:00:00+00" if mover == "activity earlier" else AUGUST)


NON_MOVERS = {
    "acceptance that reuses a human request": {"accepted_at": LATER},
    "revocation": INVITE.format("revoked_at = now()"),
    "expiry": INVITE.format("expires_at = now()"),
    "approval": {"status": "approved"},
    "rejection": {"status": "rejected"},
    "keep": {"kept_at": LATER},
    "archive": {"archived_at": LATER},
    "company paused": COMPANY.replace("%(status)s", "'paused'"),
    "company archived": COMPANY.replace("%(status)s", "'archived'"),
    "company deleted": COMPANY.replace("%(status)s", "'deleted'"),
}


def act_on(club, request, act):
    """A program changes the request's columns, or runs a statement about its company or invite."""
    if isinstance(act, dict):
        club.change(request, **act)
    else:
        club.writer.execute(act, {"company": club.company, "invite": club.invite})


@pytest.mark.parametrize("act", NON_MOVERS)
def test_what_brings_none_nearer_never_moves_it_beyond_what_it_was(club, session, act):
    """J6; what takes the request out raises it at the next recomputation."""
    request = club.ask(MAY)
    act_on(club, request, NON_MOVERS[act])
    assert club.deadline() == AUGUST
    assert recompute(session)
    stays = act in {"acceptance that reuses a human request", "revocation", "expiry"}
    assert club.deadline() == (AUGUST if stays else "infinity")


def test_the_recomputation_is_over_all_tenants_and_active_companies(club, session, bench):
    """J1, J2."""
    paused = Club(platform=club.platform)
    paused.ask("2127-01-01Z")
    paused.company_is("paused")
    broom = Broom(bench=bench)
    other = Club(platform=broom.platform())
    other.ask(MAY)
    club.ask(LATER)
    club.reset_deadline("2020-01-01Z")
    assert recompute(session)
    assert club.deadline() == AUGUST
    for made in (paused, other, broom):
        made.close()


def test_a_recomputation_never_waits_for_a_writer_nor_loses_what_it_writes(club, session):
    """J3, F16: a row that has not committed can't be seen, so that the record stays early meanwhile."""
    club.reset_deadline("2020-01-01Z")
    with club.platform.database.superuser() as writer:
        writer.autocommit = False
        writer.execute(
            "INSERT INTO nucleus.join_requests (id, tenant_id, company_id, invite_id, status, updated_at)"
            " VALUES (gen_random_uuid(), %s, %s, %s, 'pending_approval', %s)",
            [club.platform.tenant, club.company, club.invite, MAY],
        )
        begun = time.monotonic()
        assert not recompute(session)
        assert time.monotonic() - begun < 30
        assert club.deadline() == "2020-01-01 00:00:00+00"
        writer.commit()
    assert recompute(session)
    assert club.deadline() == AUGUST


def test_writers_don_t_wait_for_each_other(club):
    """J3: whoever's deadline is not the next one touches no row that others have."""
    club.ask(MAY)
    with club.platform.database.superuser() as first:
        first.autocommit = False
        insert = (
            "INSERT INTO nucleus.join_requests (id, tenant_id, company_id, invite_id, status, updated_at)"
            " VALUES (gen_random_uuid(), %s, %s, %s, 'pending_approval', %s)"
        )
        first.execute(insert, [club.platform.tenant, club.company, club.invite, LATER])
        club.run("SET lock_timeout = '500ms'")
        club.ask(LATER)
        first.rollback()


def test_a_writer_in_a_snapshot_of_its_own_loses_no_wake(club, session):
    """J3, F16: it reads the record as it was before it was raised."""
    club.reset_deadline("2020-01-01Z")
    with club.platform.database.superuser() as writer:
        writer.autocommit = False
        writer.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        writer.execute("SELECT count(*) FROM retention.deadlines")
        assert recompute(session)
        assert club.deadline() == "infinity"
        writer.execute(
            "INSERT INTO nucleus.join_requests (id, tenant_id, company_id, invite_id, status, updated_at)"
            " VALUES (gen_random_uuid(), %s, %s, %s, 'pending_approval', %s)",
            [club.platform.tenant, club.company, club.invite, MAY],
        )
        writer.commit()
    assert club.deadline() == AUGUST
    assert recompute(session)
    assert club.deadline() == AUGUST
    assert club.value("SELECT count(*) FROM retention.deadline_wakes") == 0


def test_however_writers_and_recomputations_meet_the_record_is_never_late(club, session, bench):
    """F16: after each storm, nothing that is pending is due before the record says so."""
    stop = threading.Event()

    def write(number):
        with club.platform.database.superuser() as writer:
            for n in range(25):
                writer.execute(
                    "INSERT INTO nucleus.join_requests (id, tenant_id, company_id, invite_id, status, updated_at)"
                    " VALUES (gen_random_uuid(), %s, %s, %s, 'pending_approval', '2127-01-01Z'::timestamptz + %s * interval '1 h')",
                    [club.platform.tenant, club.company, club.invite, 1000 - 31 * n - number],
                )

    def compute():
        broom = Broom(bench=bench)
        own = broom.session()
        while not stop.is_set():
            deadlines.recompute(own, RULES)
        broom.close()

    computing = threading.Thread(target=compute)
    writing = [threading.Thread(target=write, args=(n,)) for n in range(4)]
    for thread in (computing, *writing):
        thread.start()
    for thread in writing:
        thread.join()
    stop.set()
    computing.join()
    soonest = club.value("SELECT (min(updated_at) + interval '2160 hours')::text FROM nucleus.join_requests")
    assert club.value("SELECT next_due <= %s::timestamptz FROM retention.deadlines", soonest)
    assert recompute(session)
    assert club.deadline() == soonest


def test_a_request_that_waits_after_a_failure_wakes_at_its_retry(club, session):
    """J4."""
    request = club.ask("2020-01-01Z")
    club.run(
        "INSERT INTO retention.sweep_set_asides (tenant_id, dataset, table_name, row_key, code, not_before)"
        " VALUES (%s, 'join_requests', 'join_requests', ROW(%s::uuid)::text, 'c', '2099-01-01Z')",
        club.platform.tenant,
        request,
    )
    assert recompute(session)
    assert club.deadline() == "2099-01-01 00:00:00+00"


def test_the_next_deadline_beside_40_000_resolved_requests_is_one_row_of_the_index(club, session):
    """J2: built concurrently, and found whatever the statistics say."""
    club.run("SET session_replication_role = replica")
    club.run(
        "INSERT INTO nucleus.join_requests (id, tenant_id, company_id, invite_id, status, updated_at)"
        " SELECT gen_random_uuid(), %s, %s, %s, 'approved', '2020-01-01Z' FROM generate_series(1, 40000)",
        club.platform.tenant,
        club.company,
        club.invite,
    )
    club.run("SET session_replication_role = origin")
    club.ask(MAY)
    club.run("VACUUM (ANALYZE) nucleus.join_requests")
    before = counted(club)
    assert recompute(session)
    after = counted(club)
    assert club.deadline() == AUGUST
    assert after[0] == before[0]  # no scan of the table
    assert after[1] - before[1] <= 2  # rows that the index led to


def counted(club):
    time.sleep(1.1)  # a session tells its statistics once a second
    return club.writer.execute(
        "SELECT seq_scan, idx_tup_fetch FROM pg_stat_user_tables WHERE relname = 'join_requests'"
    ).fetchone()
