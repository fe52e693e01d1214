"""A period that was shortened is not believed at once, and a run that would take much more than foreseen stops (SPEC G8, F17)."""

import pytest

from retention_pipeline.errors import Code
from retention_pipeline.model.outcome import Outcome


def shorten(platform, days):
    platform.run("UPDATE nucleus.workflows SET retention_days = %s WHERE tenant_id = %s", days, platform.tenant)


def long_ago(platform):
    """As if all that was seen and acknowledged so far had been so a month ago."""
    for table in ("policy_observations", "preflights"):
        platform.run(f"UPDATE retention.{table} SET at = at - interval '30 days' WHERE tenant_id = %s", platform.tenant)


@pytest.fixture
def platform(shared):
    """A tenant whose instances, ended on 2026-01-01, have another ten years to go; its preflight was seen long ago."""
    platform = shared.platform(days=3650)
    shared.reconcile(platform, apply=False)
    long_ago(platform)
    return platform


def look(shared, platform):
    """A preflight by the database's clock, as people and schedules run it."""
    return shared.reconcile(platform, apply=False, as_of=None)


def apply(shared, platform):
    return shared.reconcile(platform, as_of=None)


@pytest.mark.parametrize("days", [1, 30, 90])
def test_a_shortened_period_has_no_effect_until_the_cooling_off_is_over(shared, platform, days):
    """G8: 72 hours from when a preflight first saw it, to the microsecond."""
    instance = platform.add()
    shorten(platform, days)
    result = apply(shared, platform)
    assert (result.inventory.cooling_off, result.inventory.eligible, result.report.counts.deleted) == (1, 0, 0)
    assert platform.exists(instance)
    seen = platform.value("SELECT max(at) FROM retention.policy_observations WHERE tenant_id = %s", platform.tenant)
    for microseconds, over in ((-1, False), (0, True)):
        as_of = platform.value(
            "SELECT %s::timestamptz + interval '72 hours' + %s * interval '1 us'", seen, microseconds
        )
        found = shared.reconcile(platform, apply=False, as_of=as_of).inventory
        assert (found.eligible == 1, found.cooling_off == 1) == (over, not over)


def test_an_acknowledged_preflight_ends_the_cooling_off(shared, platform):
    """G8: with its numbers, which the brake then expects."""
    instances = [platform.add() for _ in range(3)]
    shorten(platform, 30)
    preflight = look(shared, platform).preflight
    platform.run(
        "INSERT INTO retention.acknowledgements (tenant_id, preflight_id, reason) VALUES (%s, %s, 'meant so')",
        platform.tenant,
        preflight,
    )
    report = apply(shared, platform).report
    assert (report.outcome, report.counts.deleted) == (Outcome.COMPLETED, 3)
    assert not any(map(platform.exists, instances))


def test_a_period_that_was_shortened_after_the_acknowledged_preflight_waits_all_the_same(shared, platform):
    """G8: what nobody saw, nobody accepted."""
    platform.add()
    preflight = look(shared, platform).preflight
    shorten(platform, 30)
    platform.run(
        "INSERT INTO retention.acknowledgements (tenant_id, preflight_id, reason) VALUES (%s, %s, 'meant so')",
        platform.tenant,
        preflight,
    )
    assert apply(shared, platform).inventory.cooling_off == 1


def test_there_and_back_again_within_the_cooling_off_takes_nothing(shared, platform):
    """F17: a mistake that is mended within three days has done nothing."""
    instance = platform.add()
    shorten(platform, 1)
    apply(shared, platform)
    shorten(platform, None)
    result = apply(shared, platform)
    assert (result.inventory.cooling_off, result.inventory.eligible) == (0, 0)
    assert platform.exists(instance)


@pytest.mark.parametrize("before", ["0", "None", "bad"])
def test_what_was_kept_without_limit_or_protected_by_a_bad_value_cools_off_too(shared, before):
    """G8, W1."""
    platform = shared.platform(days=None)
    platform.run("ALTER TABLE nucleus.workflows DROP CONSTRAINT IF EXISTS workflows_retention_days_whole")
    shorten(platform, {"0": 0, "None": None, "bad": -1}[before])
    look(shared, platform)
    platform.add()
    shorten(platform, 30)
    long_ago(platform)
    assert look(shared, platform).inventory.cooling_off == 1


def test_a_tenants_default_that_was_shortened_cools_off_for_those_that_inherit_it(shared, platform):
    """W1, G8."""
    platform.add()
    platform.run("UPDATE nucleus.tenants SET default_retention_days = 30 WHERE id = %s", platform.tenant)
    own = platform.add_workflow(days=30)
    platform.add(workflow=own)  # its period was never another
    found = apply(shared, platform)
    assert (found.inventory.cooling_off, found.report.counts.deleted) == (1, 1)


def test_a_lengthened_period_counts_at_once(shared):
    """F13: also one that races a deletion; the swap's own test has that."""
    platform = shared.platform(days=30)
    platform.add()
    look(shared, platform)
    shorten(platform, 3650)
    result = apply(shared, platform)
    assert (result.inventory.eligible, result.inventory.cooling_off, result.report.counts.deleted) == (0, 0, 0)


def test_a_shortened_period_has_no_effect_on_the_explicit_path_either(shared, platform):
    """G8, W8."""
    instance = platform.add()
    shorten(platform, 30)
    assert shared.explicit(platform, instance, apply=False).go is False


def test_the_brake_stops_before_anything_is_touched_with_the_numbers(shared):
    """G8, F17: 101 more than foreseen, of 101."""
    platform = shared.platform(acknowledged=False)
    shared.acknowledge(platform, eligible=0, blocked=0, missing=0)
    for _ in range(101):
        platform.add(contexts=0)
    result = shared.reconcile(platform)
    assert (result.report.outcome, result.report.reason) == (Outcome.BLOCKED, Code.BRAKE)
    assert "101 more instances are eligible" in result.signals[0].sentence
    assert "allows 100" in result.signals[0].sentence
    assert shared.states(platform) == {}
