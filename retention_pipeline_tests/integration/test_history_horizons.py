"""History of instances that stay: each kind to its own horizon, and never of what is held, due or under archive (SPEC W4, W3)."""

import pytest

from retention_pipeline.model.outcome import Outcome
from retention_pipeline.postgres import purge_rule
from retention_pipeline_tests.databases import template
from retention_pipeline_tests.rows import new_id
from retention_pipeline_tests.sweeping import NOW, broom, module_database, shared
from retention_pipeline_tests.worlds import Bench

__all__ = ["Bench", "broom", "module_database", "shared", "template"]

SWEEP = "workflow_history"
YEAR = ("2025-06-01 12:00:00+00", "2025-06-01 11:59:59.999999+00")
MONTH = ("2026-05-02 12:00:00+00", "2026-05-02 11:59:59.999999+00")
OLD = "2020-01-01 00:00:00+00"


def row(platform, table, instance, **columns):
    return platform.child(table, instance, **columns)


def request(platform, instance, at, status="completed", **more):
    return row(platform, "transition_requests", instance, status=status, finished_at=at, **more)


def execution(platform, instance, at, status="succeeded"):
    return row(platform, "executions", instance, status=status, finished_at=at)


def letter(platform, instance, at, status="resolved"):
    return row(platform, "dead_letters", instance, status=status, closed_at=at)


def checkpoint(platform, of, at):
    platform.run(
        "INSERT INTO nucleus.workflow_action_checkpoints (tenant_id, execution_id, step, at) VALUES (%s, %s, 's', %s)",
        platform.tenant,
        of,
        at,
    )
    return str(platform.value("SELECT max(id) FROM nucleus.workflow_action_checkpoints WHERE execution_id = %s", of))


def occurrence(platform, at):
    trigger, key = new_id(), new_id()
    platform.run(
        "INSERT INTO nucleus.workflow_triggers (id, tenant_id, workflow_id, kind) VALUES (%s, %s, %s, 'k')",
        trigger,
        platform.tenant,
        platform.workflow,
    )
    platform.run(
        "INSERT INTO nucleus.workflow_trigger_occurrences (id, tenant_id, trigger_id, occurred_at) VALUES (%s, %s, %s, %s)",
        key,
        platform.tenant,
        trigger,
        at,
    )
    return key


def target(platform, instance, of, at, status="completed"):
    return row(platform, "occurrence_targets", instance, occurrence_id=of, status=status, created_at=at)


def delivery(platform, of, at, status="delivered"):
    key = new_id()
    platform.run(
        "INSERT INTO nucleus.workflow_trigger_deliveries (id, tenant_id, target_id, status, at) VALUES (%s, %s, %s, %s, %s)",
        key,
        platform.tenant,
        of,
        status,
        at,
    )
    return key


def there(platform, table, key):
    return platform.value(f"SELECT count(*) FROM nucleus.workflow_{table} WHERE id::text = %s", key) == 1


@pytest.fixture
def place(broom):
    """A tenant whose instances stay: one that is at work."""
    platform = broom.platform(default_days=None)
    instance = platform.add(state="running", epochs=(), contexts=0)
    platform.run("DELETE FROM nucleus.workflow_action_checkpoints WHERE tenant_id = %s", platform.tenant)
    platform.run("DELETE FROM nucleus.workflow_executions WHERE tenant_id = %s", platform.tenant)
    return platform, instance


def test_each_kind_stays_to_its_horizon_and_goes_one_microsecond_after(broom, place):
    """W4: 365 days; replays and closed dead letters 30."""
    platform, instance = place
    pairs = []
    for exactly, older, make in (
        (*YEAR, lambda at: ("transition_requests", request(platform, instance, at))),
        (*YEAR, lambda at: ("transition_requests", request(platform, instance, at, "failed"))),
        (*YEAR, lambda at: ("executions", execution(platform, instance, at))),
        (*MONTH, lambda at: ("transition_requests", request(platform, instance, at, replay_of=new_id()))),
        (*MONTH, lambda at: ("dead_letters", letter(platform, instance, at))),
        (*MONTH, lambda at: ("dead_letters", letter(platform, instance, at, "not_replayable"))),
        (*YEAR, lambda at: ("trigger_occurrences", occurrence(platform, at))),
    ):
        pairs.append((make(exactly), make(older)))
    lasting = occurrence(platform, YEAR[0])
    pairs.append(tuple(("occurrence_targets", target(platform, instance, lasting, at)) for at in YEAR))
    kept_target = pairs[-1][0][1]
    pairs.append(tuple(("trigger_deliveries", delivery(platform, kept_target, at)) for at in YEAR))
    young = execution(platform, instance, YEAR[0])
    pairs.append(tuple(("action_checkpoints", checkpoint(platform, young, at)) for at in YEAR))
    result = broom.sweep(platform, SWEEP)
    assert result.report.outcome is Outcome.COMPLETED
    for stays, goes in pairs:
        assert there(platform, *stays), stays
        assert not there(platform, *goes), goes
    assert result.report.counts.purged == len(pairs)


def test_open_work_is_never_history_however_old(broom, place):
    """W4."""
    platform, instance = place
    rows = [("transition_requests", request(platform, instance, OLD, s)) for s in ("pending", "claimed", "running")]
    rows += [("executions", execution(platform, instance, OLD, s)) for s in ("queued", "running")]
    rows.append(("dead_letters", letter(platform, instance, OLD, "open")))
    rows.append(("transition_requests", request(platform, instance, MONTH[1], "failed", replay_of=new_id())))
    open_target = target(platform, instance, occurrence(platform, OLD), OLD, "dispatched")
    rows += [("occurrence_targets", open_target), ("trigger_deliveries", delivery(platform, open_target, OLD))]
    rows.append(("action_checkpoints", checkpoint(platform, rows[3][1], OLD)))
    broom.sweep(platform, SWEEP)
    assert [there(platform, *found) for found in rows] == [True] * len(rows)


def test_parents_go_after_the_last_of_their_own_in_one_pass(broom, place):
    """W4: occurrence, target, delivery; execution, checkpoint."""
    platform, instance = place
    first = occurrence(platform, OLD)
    middle = target(platform, instance, first, OLD)
    rows = [("trigger_occurrences", first), ("occurrence_targets", middle)]
    rows.append(("trigger_deliveries", delivery(platform, middle, OLD)))
    parent = execution(platform, instance, OLD)
    rows += [("executions", parent), ("action_checkpoints", checkpoint(platform, parent, OLD))]
    assert broom.sweep(platform, SWEEP).report.outcome is Outcome.COMPLETED
    assert [there(platform, *found) for found in rows] == [False] * len(rows)


def old_history(platform, instance):
    parent = execution(platform, instance, OLD)
    return [
        ("transition_requests", request(platform, instance, OLD)),
        ("executions", parent),
        ("action_checkpoints", checkpoint(platform, parent, OLD)),
    ]


def test_a_held_instance_keeps_all_of_its_history_closed_dead_letters_too(broom, place):
    """W4, G1, F5."""
    platform, instance = place
    rows = [*old_history(platform, instance), ("dead_letters", letter(platform, instance, OLD))]
    platform.hold(instance)
    result = broom.sweep(platform, SWEEP)
    assert all(there(platform, *found) for found in rows)
    assert result.report.outcome is Outcome.COMPLETED
    platform.hold(instance, action="release")
    broom.sweep(platform, SWEEP)
    assert not any(there(platform, *found) for found in rows)


def test_a_due_instance_takes_its_history_along_but_for_closed_dead_letters(broom):
    """W4: else they would block it for ever."""
    platform = broom.platform()
    due = platform.add(ended="2026-01-01 00:00:00+00")
    rows = old_history(platform, due)
    closed, opened = letter(platform, due, OLD), letter(platform, due, OLD, "open")
    result = broom.sweep(platform, SWEEP)
    assert all(there(platform, *found) for found in rows)
    assert not there(platform, "dead_letters", closed)
    assert there(platform, "dead_letters", opened)
    kept = {table.name: table.kept for table in result.found.tables}
    assert kept["transition_requests"] == {"instance_due": 1}


def test_an_instance_that_ended_and_is_not_due_yet_is_one_that_stays(broom):
    """W4."""
    platform = broom.platform(default_days=3650)
    instance = platform.add(ended="2025-01-01 00:00:00+00")
    rows = old_history(platform, instance)
    broom.sweep(platform, SWEEP)
    assert not any(there(platform, *found) for found in rows)


def test_an_instance_under_archive_keeps_its_history(broom):
    """W4: what is archived is compared row by row before it goes."""
    bench = broom.bench
    platform = bench.platform()
    instance = platform.add(ended="2026-01-01 00:00:00+00")
    from retention_pipeline.stages.world import Step

    steps = frozenset({Step.INVENTORY, Step.ELIGIBLE_SET, Step.ENCRYPTED_MANIFESTS})
    bench.reconcile(platform, steps=steps)
    platform.run(
        "UPDATE nucleus.tenants SET default_retention_days = 3650 WHERE id = %s", platform.tenant
    )  # not due any more
    rows = old_history(platform, instance)
    result = broom.sweep(platform, SWEEP)
    assert all(there(platform, *found) for found in rows)
    assert {"under_archive": 1} in [table.kept for table in result.found.tables]


def test_a_dead_letter_blocks_until_it_is_gone_and_only_then(broom):
    """W3, W4."""
    platform = broom.platform()
    instance = platform.add(ended="2026-01-01 00:00:00+00")
    letter(platform, instance, MONTH[0])

    def eligible():
        return broom.bench.world.source.inventory(platform.tenant, NOW).eligible

    broom.sweep(platform, SWEEP)
    assert eligible() == 0  # exactly 30 days
    platform.run("UPDATE nucleus.workflow_dead_letters SET closed_at = %s WHERE instance_id = %s", MONTH[1], instance)
    assert eligible() == 0  # past its horizon, and there
    broom.sweep(platform, SWEEP)
    assert eligible() == 1


def test_a_pass_that_saw_only_held_rows_is_not_complete_until_it_went_through_the_rest(broom, monkeypatch):
    """O1: a look asks about so many rows; those that a hold keeps may be all of them."""
    monkeypatch.setattr(purge_rule, "EACH", 3)
    platform = broom.platform()
    held, free = (platform.add(state="running", epochs=()) for _ in range(2))
    platform.hold(held)
    for n in range(3):
        request(platform, held, f"2020-01-0{n + 1}Z")
        request(platform, free, f"2020-02-0{n + 1}Z")
    bounded = broom.sweep(platform, SWEEP, batch=3, batches=8)  # one turn of each table
    assert (bounded.report.backlog, bounded.report.reason) == (0, "batch_bound")
    assert bounded.report.outcome is Outcome.WORK_REMAINS
    assert platform.value("SELECT count(*) FROM nucleus.workflow_transition_requests WHERE instance_id = %s", free) == 3
    whole = broom.sweep(platform, SWEEP, batch=3)
    assert (whole.report.outcome, whole.report.counts.purged) == (Outcome.COMPLETED, 3)


def test_the_workers_login_alone_deletes_no_history(broom, place):
    """G4: neither before an approved run nor, within one, what is younger."""
    import psycopg

    platform, instance = place
    old, young = request(platform, instance, OLD), request(platform, instance, "2126-11-30Z")
    opened = letter(platform, instance, OLD, "open")
    with psycopg.connect(broom.bench.database.worker_url, autocommit=True) as worker:
        for setting in ("retention.tenant_id", "nucleus.tenant_id"):
            worker.execute("SELECT set_config(%s, %s, false)", [setting, platform.tenant])

        def delete():
            return sum(
                worker.execute(f"DELETE FROM nucleus.workflow_{table}").rowcount
                for table in ("transition_requests", "dead_letters", "contexts")
            )

        assert delete() == 0
        worker.execute(
            "INSERT INTO retention.approval_uses (approval_id, run, tenant_id, single_use) VALUES (%s, 'r', %s, true)",
            [broom.approve(platform, SWEEP), platform.tenant],
        )
        assert delete() == 1
    assert not there(platform, "transition_requests", old)
    assert there(platform, "transition_requests", young)
    assert there(platform, "dead_letters", opened)
