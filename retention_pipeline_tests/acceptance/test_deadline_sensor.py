"""The sensor sleeps until the next deadline, notices one that moved nearer within a minute, and costs nothing meanwhile (SPEC J3; F16)."""

import json
import time
from contextlib import contextmanager
from datetime import datetime, timedelta

import dagster as dg
import pytest

from retention_pipeline.app import App
from retention_pipeline.definitions import defs
from retention_pipeline.defs.deadline_sensor import Wake, sensor
from retention_pipeline.defs.resources import ProductResource
from retention_pipeline.governance.approval import ApprovalRequest, Kind
from retention_pipeline.model.people import SweepJob
from retention_pipeline.passes import Passes
from retention_pipeline.postgres import approvals
from retention_pipeline_tests.acceptance.conftest import AURORA
from retention_pipeline_tests.joining import Club
from retention_pipeline_tests.rows import Platform

SWEEP = "join_requests"


LOOKS: list[bool] = []
"""How often the product was opened, by whichever tick."""


class Opened(ProductResource):
    """Counts how often a connection might be made."""

    @contextmanager
    def open(self):
        LOOKS.append(True)
        with App.from_environment() as app:
            yield app


class Ticking:
    """The sensor, tick after tick, on a clock of the test's own."""

    def __init__(self, office):
        self.office, self.cursor, self.product = office, None, Opened()
        self.moment = datetime.fromisoformat("2026-12-01T00:00:00+00:00")
        job = defs.resolve_job_def(f"sweep_{SWEEP}")
        self.sensor = sensor(SWEEP, job, now=lambda: self.moment)

    def __call__(self, seconds=0.0):
        self.moment += timedelta(seconds=seconds)
        context = dg.build_sensor_context(
            instance=self.office.instance,
            cursor=self.cursor,
            resources={"product": self.product},
            repository_def=defs.get_repository_def(),
        )
        answer = self.sensor.evaluate_tick(context)
        self.cursor = answer.cursor
        return answer

    @property
    def looks(self):
        return len(LOOKS)


@pytest.fixture
def ticking(office):
    return Ticking(office)


@pytest.fixture
def club(installation):
    platform = object.__new__(Platform)
    platform.database, platform.tenant = installation.database, AURORA.id
    made = Club(platform=platform)
    yield made
    made.close()


def standing(installation):
    with installation.app() as app, app.operator().transaction(AURORA.id) as cursor:
        request = ApprovalRequest(
            job=SweepJob.of(SWEEP),
            kind=Kind.STANDING,
            subject=None,
            max_items=10_000,
            lasts=timedelta(days=30),
            reason="r",
        )
        approvals.approve(cursor, AURORA.id, request)


def scans(installation):
    time.sleep(1.1)
    return installation.rows(
        "SELECT relname, seq_scan, idx_scan FROM pg_stat_user_tables WHERE schemaname = 'nucleus' ORDER BY 1"
    )


def test_an_idle_hour_of_ticks_reads_no_table_of_the_platforms_and_one_row_a_minute(installation, ticking, club):
    """J3: 120 ticks."""
    club.ask("2126-11-01Z")  # due in a hundred years
    club.run("SELECT pg_stat_force_next_flush()")  # what its own triggers read belongs to the time before
    before, looks = scans(installation), ticking.looks
    for _ in range(120):
        assert not ticking(30).run_requests
    assert scans(installation) == before
    assert ticking.looks - looks == 60


def test_between_looks_a_tick_opens_nothing(installation, ticking, club):
    """J3."""
    ticking()
    looks = ticking.looks
    for _ in range(5):
        ticking(10)
    assert ticking.looks == looks


def test_it_starts_a_run_for_those_who_have_work_and_a_standing_approval(installation, ticking, club):
    """J3, G4, D3."""
    club.ask("2026-01-01Z")
    answer = ticking()
    assert not answer.run_requests
    assert "none of them a standing approval" in answer.skip_message
    standing(installation)
    [request] = ticking(61).run_requests
    assert request.run_config["ops"][f"{SWEEP}_pass"]["config"]["tenants"] == [AURORA.id]
    [again] = ticking(61).run_requests
    assert again.run_key == request.run_key  # which Dagster asks for once


def test_after_the_run_it_sleeps_until_the_next_one(installation, office, ticking, club):
    """J3, J7: everything is rebuilt from the database."""
    standing(installation)
    club.ask("2026-01-01Z")
    club.ask("2126-11-01Z")
    [request] = ticking().run_requests
    result = defs.resolve_job_def(f"sweep_{SWEEP}").execute_in_process(
        instance=office.instance, run_config=request.run_config, raise_on_error=False
    )
    assert result.success
    assert len(club.archived()) == 1
    assert not ticking(61).run_requests
    assert Wake.read(ticking.cursor).next_due == datetime.fromisoformat("2127-01-30T00:00:00+00:00")


def test_a_deadline_that_moves_nearer_is_noticed_within_a_minute(installation, ticking, club):
    """J3, F16: after the wake was set, another program writes one that is due at once."""
    standing(installation)
    club.ask("2126-11-01Z")
    ticking()
    club.ask("2026-01-01Z")
    asked = [ticking(30).run_requests for _ in range(2)]
    assert any(asked)


def test_a_restart_keeps_the_cursor_and_a_lost_one_looks_at_once(installation, ticking, club):
    """J7."""
    club.ask("2126-11-01Z")
    ticking()
    kept = ticking.cursor
    looks = ticking.looks
    ticking(1)
    assert ticking.looks == looks
    for lost in (None, "", "{", "[]", '{"next_due": 7}', '{"revalidate_at": "yesterday"}'):
        ticking.cursor = lost
        looks = ticking.looks
        ticking()
        assert ticking.looks == looks + 1, lost
    assert json.loads(ticking.cursor)["next_due"] == json.loads(kept)["next_due"]


def test_a_clock_that_jumps_keeps_it_asleep_no_longer_than_a_minute(installation, ticking, club):
    """F16."""
    standing(installation)
    club.ask("2026-01-01Z")
    ticking.cursor = Wake(
        next_due=ticking.moment + timedelta(days=90), revalidate_at=ticking.moment + timedelta(days=1)
    ).written()
    assert ticking().run_requests  # the clock was set back by a day after the cursor was written


def test_a_lost_deadline_is_found_again_by_the_daily_schedule(installation, office, ticking, club):
    """J7: once a day the record is what the rows say, whatever became of it."""
    standing(installation)
    club.ask("2026-01-01Z")
    installation.change("UPDATE retention.deadlines SET next_due = 'infinity'")
    assert not ticking(61).run_requests
    context = dg.build_schedule_context(
        instance=office.instance,
        scheduled_execution_time=datetime.fromisoformat("2026-06-01T03:00:00+00:00"),
        resources={"product": ProductResource()},
    )
    schedule = defs.get_repository_def().get_schedule_def(f"{SWEEP}_schedule")
    assert len(schedule.evaluate_tick(context).run_requests) == 1
    assert ticking(61).run_requests


def test_a_database_that_does_not_answer_fails_the_tick_by_name(installation, ticking):
    """O1: it never looks like a quiet time."""
    installation.configure(RETENTION_WORKER_URL="postgresql://nobody@127.0.0.1:1/none")
    with pytest.raises(dg.Failure, match="RETENTION_DATABASE_UNAVAILABLE"):
        ticking()


def test_passes_tell_the_deadline(installation, club):
    """J2."""
    club.ask("2126-11-01Z")
    with installation.app() as app:
        due, now = Passes(app=app, name=SWEEP).next_deadline()
    assert due == datetime.fromisoformat("2127-01-30T00:00:00+00:00")
    assert now is not None
