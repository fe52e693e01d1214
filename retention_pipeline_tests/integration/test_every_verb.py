"""What holds for purged, cleared and shelved rows alike: locked ones, failing ones, late comers (SPEC E4, E5, J4, J5, L1; F4, F7)."""

from dataclasses import dataclass, field

import pytest

from retention_pipeline.errors import Code
from retention_pipeline.model.outcome import Outcome
from retention_pipeline.postgres.session import Limits
from retention_pipeline_tests.databases import template
from retention_pipeline_tests.joining import Club
from retention_pipeline_tests.payloads import add_row, ephemeral
from retention_pipeline_tests.rows import Platform
from retention_pipeline_tests.sweeping import broom, ledger_row, module_database, shared

__all__ = ["broom", "module_database", "shared", "template"]


@dataclass
class Purged:
    """Keys of the CRM's ledger; ended: gone."""

    platform: Platform
    dataset: str = "submission_ledgers"
    deed: str = "DELETE"
    table: str = "crm_submission_ledger"
    key: str = "idempotency_key"
    ended: str = "false"

    def add(self, day):
        return ledger_row(self.platform, self.table, f"2026-01-{day:02} 00:00:00+00")

    def close(self):
        """Nothing is open."""


@dataclass
class Cleared:
    """Payloads of tasks; ended: empty."""

    platform: Platform
    dataset: str = "ephemeral_payloads"
    deed: str = "UPDATE"
    table: str = "workflow_central_tasks"
    key: str = "id"
    ended: str = "payload IS NULL"
    instance: str = ""

    def add(self, day):
        self.instance = self.instance or self.platform.add(state="running", epochs=())
        return add_row(self.platform, "central_tasks", ephemeral(f"2026-01-{day:02}T00:00:00Z"), instance=self.instance)

    def close(self):
        """Nothing is open."""


@dataclass
class Shelved:
    """Requests to join; ended: archived."""

    platform: Platform
    dataset: str = "join_requests"
    deed: str = "UPDATE"
    table: str = "join_requests"
    key: str = "id"
    ended: str = "archived_at IS NOT NULL"
    club: Club = field(init=False)

    def __post_init__(self):
        self.club = Club(platform=self.platform)

    def add(self, day):
        return self.club.ask(f"2026-01-{day:02} 00:00:00+00")

    def close(self):
        self.club.close()


@pytest.fixture(params=[Purged, Cleared, Shelved])
def system(request, broom):
    made = request.param(broom.platform())
    yield made
    made.close()


def left(system):
    """Rows that have not ended."""
    found = system.platform.connection.execute(
        f"SELECT {system.key}::text FROM nucleus.{system.table} WHERE tenant_id = %s AND NOT coalesce({system.ended}, false)",
        [system.platform.tenant],
    ).fetchall()
    return {row[0] for row in found}


def aside(system):
    return system.platform.value(
        "SELECT count(*) FROM retention.sweep_set_asides WHERE tenant_id = %s", system.platform.tenant
    )


@pytest.fixture
def refused(system):
    """The platform's own trigger refuses the end of these rows, until the test ends."""
    made = []

    def refuse(*keys):
        names = ", ".join(f"'{key}'" for key in keys)
        system.platform.run(
            "CREATE OR REPLACE FUNCTION nucleus.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            f" IF OLD.{system.key}::text IN ({names}) THEN RAISE check_violation; END IF;"
            f" RETURN {'OLD' if system.deed == 'DELETE' else 'NEW'}; END $$"
        )
        system.platform.run(
            f"CREATE TRIGGER refuse BEFORE {system.deed} ON nucleus.{system.table}"
            " FOR EACH ROW EXECUTE FUNCTION nucleus.refuse()"
        )
        made.append(True)

    yield refuse
    if made:
        system.platform.run(f"DROP TRIGGER refuse ON nucleus.{system.table}")


def test_whoever_has_a_row_in_hand_is_not_to_blame_for_the_one_that_fails_behind_it(broom, system, refused):
    """F7, J5: the first is locked, and passed by; the second fails, and is set aside; all others go."""
    locked, bad, *_ = [system.add(day) for day in range(1, 9)]
    refused(bad)
    with broom.bench.database.superuser() as writer:
        writer.autocommit = False
        writer.execute(f"SELECT FROM nucleus.{system.table} WHERE {system.key}::text = %s FOR UPDATE", [locked])
        report = broom.sweep(system.platform, system.dataset, batch=4).report
        writer.rollback()
    assert (left(system), aside(system)) == ({locked, bad}, 1)
    assert (report.outcome, report.counts.failures) == (Outcome.PARTIAL, {Code.DATABASE_REFUSED: 1})
    broom.sweep(system.platform, system.dataset, batch=4)
    assert left(system) == {bad}


@pytest.mark.parametrize("bad", [1, 4])
def test_rows_that_fail_are_told_one_by_one_wherever_they_stand_in_a_batch(broom, system, refused, bad):
    """F7: next to each other, at the head, and at a batch's end."""
    rows = [system.add(day) for day in range(1, 20)]
    failing = {*rows[:bad], rows[10], rows[18]}
    refused(*failing)
    report = broom.sweep(system.platform, system.dataset, batch=5).report
    assert left(system) == failing
    assert report.counts.failures == {Code.DATABASE_REFUSED: len(failing)}
    assert aside(system) == len(failing)


def test_a_row_that_falls_due_before_the_saved_place_is_not_left_for_the_next_round(broom, system):
    """L1, E4: a pass was bounded; then somebody wrote a row that is older than where it stopped."""
    for day in range(10, 20):
        system.add(day)
    first = broom.sweep(system.platform, system.dataset, batch=3, batches=2).report
    assert (first.reason, len(left(system)) > 0) == ("batch_bound", True)
    older = system.add(1)
    assert older in left(system)
    second = broom.sweep(system.platform, system.dataset, batch=3).report
    assert (left(system), second.outcome, second.backlog) == (set(), Outcome.COMPLETED, 0)


def test_a_table_that_is_locked_whole_fails_its_pass_and_costs_no_row_its_turn(broom, system):
    """E5, F4: not green, nobody is set aside, and the next pass is as if nothing had been."""
    rows = {system.add(day) for day in range(1, 6)}
    session = broom.session()
    session.limits = Limits(lock=100)
    sweeper = broom.sweeper(system.dataset, session)
    with broom.bench.database.superuser() as owner:
        owner.autocommit = False
        owner.execute(f"LOCK TABLE nucleus.{system.table} IN ACCESS EXCLUSIVE MODE")
        report = broom.sweep(system.platform, system.dataset, sweeper=sweeper, batch=2).report
        owner.rollback()
    assert not report.outcome.green
    assert (left(system), aside(system)) == (rows, 0)
    assert broom.sweep(system.platform, system.dataset, sweeper=sweeper).report.outcome is Outcome.COMPLETED
    assert left(system) == set()
