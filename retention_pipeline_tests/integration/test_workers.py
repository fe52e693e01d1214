"""Workers beside each other, and what the database itself refuses a worker (SPEC W7, W11, A7, F6)."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace

import psycopg
import pytest

from retention_pipeline.errors import Code
from retention_pipeline.model.archive import AttemptState
from retention_pipeline.model.outcome import Outcome
from retention_pipeline.stages.reconcile import Bounds
from retention_pipeline.stages.world import Step
from retention_pipeline_tests.seams import EXPORTED, VERIFIED, Seams, acting
from retention_pipeline_tests.worlds import Bench

ARCHIVED = frozenset({Step.INVENTORY, Step.ELIGIBLE_SET, Step.ENCRYPTED_MANIFESTS, Step.VERIFIED_OBJECTS})
PLANS = [
    "",
    "SET enable_hashjoin = off; SET enable_mergejoin = off",
    "SET enable_indexscan = off; SET enable_bitmapscan = off",
]


def beside(bench, closing):
    """Another worker: its own sessions, the same database, store and keys."""
    return Bench(database=bench.database, keyring=bench.keyring, store=bench.store, closing=closing)


def receipts(platform):
    found = platform.connection.execute(
        "SELECT instance_id FROM retention.receipts WHERE tenant_id = %s", [platform.tenant]
    ).fetchall()
    return Counter(row[0] for row in found)


def once_each(platform, instances):
    """Each instance went once: one receipt, one event, one archive that says so."""
    events = platform.connection.execute(
        "SELECT subject FROM retention.audit_events WHERE tenant_id = %s AND kind = 'instance.deleted'",
        [platform.tenant],
    ).fetchall()
    assert receipts(platform) == Counter(row[0] for row in events) == dict.fromkeys(instances, 1)
    assert not any(platform.exists(i) for i in instances)


@pytest.mark.parametrize("plan", PLANS, ids=["as planned", "nested loops", "no index"])
def test_a_claim_takes_no_more_than_its_limit_whatever_the_plan(shared, plan):
    """F6: without statistics, and with the joins that run a subquery again for each row."""
    platform = shared.platform()
    for _ in range(12):
        platform.add(contexts=0)
    shared.reconcile(platform, steps=ARCHIVED)
    shared.end_leases(platform)
    session = shared.session()
    with session.transaction(platform.tenant):
        pass
    session._connection.execute(plan or "SELECT 1")
    records = replace(shared.world.records, session=session)
    claimed = records.claim(platform.tenant, holder="h", states=list(AttemptState)[:3], limit=5, instance=None)
    moved = platform.value(
        "SELECT count(*) FROM retention.attempts WHERE tenant_id = %s AND holder = 'h'", platform.tenant
    )
    assert (len(claimed), moved) == (5, 5)
    session._connection.execute("RESET ALL")


def test_claims_beside_each_other_share_nothing(shared):
    """W7, F6."""
    platform = shared.platform()
    for _ in range(24):
        platform.add(contexts=0)
    shared.reconcile(platform, steps=ARCHIVED)
    shared.end_leases(platform)
    with ExitStack() as closing, ThreadPoolExecutor(4) as pool:
        workers = [beside(shared, closing).world.records for _ in range(4)]

        def claim(number):
            states = [AttemptState.STORED, AttemptState.VERIFIED]
            return workers[number].claim(platform.tenant, holder=f"h{number}", states=states, limit=6, instance=None)

        found = [attempt.id for claimed in pool.map(claim, range(4)) for attempt in claimed]
    assert len(found) == len(set(found)) <= 24


def test_a_run_handles_as_many_as_its_bounds_and_the_next_goes_on(shared):
    """W7: batches, instances, an approval's own limit; and no transaction of the swap is larger than a batch."""
    platform = shared.platform()
    instances = [platform.add(contexts=0) for _ in range(13)]
    sizes = []

    class Counting(Seams):
        def swap(self, tenant, verified, **named):
            sizes.append(len(verified))
            return self.inner.swap(tenant, verified, **named)

    world = replace(shared.world, source=Counting(shared.world.source))
    first = shared.reconcile(platform, bounds=Bounds(batches=2, batch=3, behind_after=1e9), world=world)
    assert (first.report.counts.deleted, first.report.reason) == (6, "batch_bound")
    assert (first.report.outcome, first.report.backlog) == (Outcome.WORK_REMAINS, 7)
    second = shared.reconcile(platform, approval=shared.approve(platform, items=2), world=world)
    assert (second.report.counts.deleted, second.report.reason) == (2, "approval_bound")
    third = shared.reconcile(platform, bounds=Bounds(batches=20, batch=4), world=world)
    assert (third.report.counts.deleted, third.report.outcome) == (5, Outcome.COMPLETED)
    assert sizes == [3, 3, 2, 4, 1]
    once_each(platform, instances)


def test_a_run_takes_no_new_work_after_its_time(shared):
    """W7."""
    platform = shared.platform()
    for _ in range(4):
        platform.add(contexts=0)
    clock = iter(range(0, 100_000, 100))
    world = replace(shared.world, stopwatch=lambda: next(clock))
    result = shared.reconcile(platform, bounds=Bounds(batch=1), world=world)
    assert result.report.reason == "time_bound"
    assert 0 < result.report.counts.deleted < 4
    assert result.report.backlog == 4 - result.report.counts.deleted


def test_two_runs_of_one_tenant_do_not_overlap(shared):
    """G7: the second is skipped."""
    platform = shared.platform()
    instances = [platform.add(contexts=0) for _ in range(3)]
    second = []
    with ExitStack() as closing:
        other = beside(shared, closing)
        world = acting(shared.world, VERIFIED, lambda: second.append(other.reconcile(platform)))
        shared.reconcile(platform, world=world)
    assert (second[0].report.outcome, second[0].report.reason) == (Outcome.SKIPPED, Code.RUN_OVERLAPS)
    once_each(platform, instances)


def test_two_workers_at_once_handle_each_instance_once(shared):
    """W7: even where the run's own lease kept nobody off."""
    platform = shared.platform()
    instances = [platform.add(contexts=0) for _ in range(60)]
    with ExitStack() as closing, ThreadPoolExecutor(3) as pool:
        workers = [beside(shared, closing) for _ in range(3)]
        for number, worker in enumerate(workers):
            worker.runs = 1000 * number
            worker.world = replace(worker.world, records=Unleased(worker.world.records))
        approvals = [shared.approve(platform) for _ in workers]

        def work(number):
            return workers[number].reconcile(platform, approval=approvals[number], bounds=Bounds(batch=7))

        results = list(pool.map(work, range(3)))
    # A row that another worker had locked at that moment is skipped, not failed: the next run takes what is left.
    results.append(shared.reconcile(platform))
    assert sum(result.report.counts.deleted for result in results) == 60
    assert all(result.report.counts.failures == {} for result in results)
    once_each(platform, instances)
    assert shared.states(platform) == {"source_deleted": 60}


class Unleased(Seams):
    """Records that give everybody the job."""

    def take_lease(self, tenant, job, holder):
        return 1

    def keep_lease(self, tenant, job, holder, fence):
        """Nothing to keep."""


@pytest.mark.parametrize("moment", [EXPORTED, VERIFIED])
def test_the_explicit_archive_beside_a_periodic_run_takes_an_instance_once(shared, moment):
    """W7: whoever is first has it; the other skips it."""
    platform = shared.platform()
    instances = [platform.add(contexts=0) for _ in range(3)]
    with ExitStack() as closing:
        other = beside(shared, closing)
        other.runs = 1000
        answers = []
        world = acting(shared.world, moment, lambda: answers.append(other.explicit(platform, instances[0])))
        result = shared.reconcile(platform, world=world)
    assert (answers[0].outcome is Outcome.COMPLETED) == (moment == EXPORTED)
    assert result.report.counts.failures == {}
    assert result.report.counts.deleted == (2 if moment == EXPORTED else 3)
    once_each(platform, instances)


def test_a_back_off_of_periodic_runs_does_not_bind_the_explicit_archive(shared):
    """W8, A9: the hold that set it aside is what the explicit path binds; the archive that was proven is used."""
    platform = shared.platform()
    instance = platform.add()
    world = acting(shared.world, VERIFIED, lambda: platform.hold(instance))
    assert shared.reconcile(platform, world=world).report.counts.deleted == 0
    assert shared.states(platform) == {"verified": 1}
    answer = shared.explicit(platform, instance)
    assert (answer.outcome, answer.counts.deleted, answer.counts.archived) == (Outcome.COMPLETED, 1, 0)
    assert platform.value("SELECT count(*) FROM retention.hold_bindings WHERE tenant_id = %s", platform.tenant) == 1
    once_each(platform, [instance])


def test_a_back_off_holds_for_the_rest_of_the_run_that_began_it(shared):
    """A7: a resumed attempt whose row changed is not uploaded again by the very same run."""
    platform = shared.platform()
    instance = platform.add()
    shared.reconcile(platform, steps=ARCHIVED)
    shared.end_leases(platform)
    platform.run("UPDATE nucleus.workflow_instances SET title = 'x' WHERE id = %s", instance)
    result = shared.reconcile(platform)
    assert (result.report.counts.superseded, result.report.counts.archived) == (1, 0)
    assert result.report.counts.failures == {Code.SOURCE_CHANGED: 1}
    shared.forget_back_offs(platform)
    assert shared.reconcile(platform).report.outcome is Outcome.COMPLETED
    once_each(platform, [instance])


def test_a_worker_that_lost_its_lease_finds_its_work_done_and_accuses_nobody(shared):
    """W11: a row that our own receipt explains was not deleted by a stranger."""
    platform = shared.platform()
    instances = [platform.add() for _ in range(2)]
    with ExitStack() as closing:
        other = beside(shared, closing)
        other.runs = 1000

        def overtake():
            shared.end_leases(platform)
            assert other.reconcile(platform).report.counts.deleted == 2

        result = shared.reconcile(platform, world=acting(shared.world, VERIFIED, overtake))
    assert result.report.counts.failures == {}
    assert (result.report.counts.deleted, result.report.counts.skipped) == (0, 2)
    once_each(platform, instances)


def test_an_archive_that_came_second_is_kept_as_evidence_and_ends(shared):
    """W7, W11: even where the other worker's deletion commits after this one's attempt is on record."""
    platform = shared.platform()
    instances = [platform.add() for _ in range(2)]
    platform.run("SET session_replication_role = replica")

    def overtake():
        """The other attempt is live until its deletion commits; here both deletions stand on one record each."""
        taken = "UPDATE retention.attempts SET state = 'superseded' WHERE tenant_id = %s AND state = 'verified'"
        platform.run(taken, platform.tenant)
        assert other.reconcile(platform).report.counts.deleted == 2
        platform.run(
            "UPDATE retention.attempts SET state = 'verified' WHERE tenant_id = %s AND state = 'superseded'",
            platform.tenant,
        )

    with ExitStack() as closing:
        other = beside(shared, closing)
        other.runs = 1000
        other.world = replace(other.world, records=Unleased(other.world.records))
        result = shared.reconcile(platform, world=acting(shared.world, VERIFIED, overtake))
    assert (result.report.counts.failures, result.report.counts.skipped) == ({}, 2)
    assert shared.states(platform) == {"superseded": 2, "source_deleted": 2}
    once_each(platform, instances)


def vanish(platform, instance):
    """A janitor of old deletes the instance, with what hangs on it."""
    platform.run(
        "DELETE FROM nucleus.workflow_action_checkpoints USING nucleus.workflow_executions AS e"
        " WHERE e.id = execution_id AND e.instance_id = %s",
        instance,
    )
    for table in ("executions WHERE instance_id", "terminal_epochs WHERE instance_id", "instances WHERE id"):
        platform.run(f"DELETE FROM nucleus.workflow_{table} = %s", instance)


def stop():
    raise KeyboardInterrupt


def test_a_row_that_a_stranger_deleted_is_told(shared):
    """W11."""
    platform = shared.platform()
    instance, other = platform.add(contexts=0), platform.add()

    result = shared.reconcile(platform, world=acting(shared.world, VERIFIED, lambda: vanish(platform, instance)))
    assert result.report.counts.failures == {Code.FOREIGN_DELETER: 1}
    assert f"instance.set_aside {Code.FOREIGN_DELETER}" in shared.audit_kinds(platform, instance)
    once_each(platform, [other])
    assert shared.states(platform) == {"source_deleted": 2}  # the archive is the only copy: kept like any other
    ended = shared.reconcile(platform)
    assert (ended.report.outcome, ended.report.counts.failures) == (Outcome.COMPLETED, {})  # told once, not for ever


@pytest.mark.parametrize("when", ["after selection", "after the intent"])
def test_a_row_that_a_stranger_deleted_before_it_was_archived_is_told(shared, when):
    """W11: there is no archive of it, and the run is not green."""
    platform = shared.platform()
    instance = platform.add(contexts=0)
    if when == "after selection":
        records = Seams(shared.world.records, after={"select": lambda: vanish(platform, instance)})
        report = shared.reconcile(platform, world=replace(shared.world, records=records)).report
    else:
        with pytest.raises(KeyboardInterrupt):
            shared.reconcile(
                platform, world=replace(shared.world, records=Seams(shared.world.records, after={"intend": stop}))
            )
        vanish(platform, instance)
        report = shared.reconcile(platform).report
    assert (report.outcome, report.counts.failures) == (Outcome.PARTIAL, {Code.FOREIGN_DELETER: 1})
    assert f"instance.set_aside {Code.FOREIGN_DELETER}" in shared.audit_kinds(platform, instance)


def test_a_run_that_is_killed_while_it_tells_of_a_stranger_leaves_the_telling_to_the_next(shared):
    """W11, F2: the attempt ends last, so that it is still found."""
    platform = shared.platform()
    instance = platform.add(contexts=0)
    for seam in ("intend", "reject"):
        records = Seams(shared.world.records, after={seam: stop})
        with pytest.raises(KeyboardInterrupt):
            shared.reconcile(platform, world=replace(shared.world, records=records))
        if seam == "intend":
            vanish(platform, instance)
    shared.forget_back_offs(platform)
    report = shared.reconcile(platform).report
    assert (report.outcome, report.counts.failures) == (Outcome.PARTIAL, {Code.FOREIGN_DELETER: 1})
    assert shared.states(platform) == {"abandoned": 1}


def test_an_archive_that_was_proven_more_than_an_hour_ago_is_proven_again(shared):
    """A7: nothing is deleted on an old proof."""
    platform = shared.platform()
    instance = platform.add()
    old = "UPDATE retention.attempts SET verified_at = clock_timestamp() - interval '61 minutes' WHERE tenant_id = %s"
    world = acting(shared.world, VERIFIED, lambda: platform.run(old, platform.tenant))
    assert shared.reconcile(platform, world=world).report.counts.deleted == 0
    assert platform.exists(instance)
    again = shared.reconcile(platform)
    assert (again.report.counts.verified, again.report.counts.archived, again.report.counts.deleted) == (1, 0, 1)


STATEMENTS = {
    "an instance": "DELETE FROM nucleus.workflow_instances WHERE id = %s",
    "its epochs": "DELETE FROM nucleus.workflow_terminal_epochs WHERE instance_id = %s",
    "a state": "UPDATE nucleus.workflow_instances SET state = 'completed' WHERE id = %s",
    "a key": "UPDATE nucleus.workflow_instances SET id = id WHERE id = %s",
    "a period": "UPDATE nucleus.workflows SET retention_days = 1 WHERE id = (SELECT workflow_id FROM"
    " nucleus.workflow_instances WHERE id = %s)",
    "everything": "TRUNCATE nucleus.workflow_instances CASCADE",
}


@pytest.mark.parametrize("what", STATEMENTS)
def test_the_database_refuses_a_worker_what_no_archive_stands_for(shared, what):
    """A8: not the program's good will, the database."""
    platform = shared.platform()
    instance = platform.add()
    before = shared.rows(platform, instance)
    parameters = [instance] if "%s" in STATEMENTS[what] else []
    with psycopg.connect(shared.database.worker_url, autocommit=True) as worker:
        for setting in ("nucleus.tenant_id", "retention.tenant_id"):
            worker.execute("SELECT set_config(%s, %s, false)", [setting, platform.tenant])
        with suppress(psycopg.errors.InsufficientPrivilege):
            assert (
                worker.execute(STATEMENTS[what], parameters).rowcount == 0
            )  # to a deletion its rows are not even there
    assert shared.rows(platform, instance) == before


def test_a_run_leaves_other_tenants_rows_byte_identical(shared):
    """F11."""
    platform, other = shared.platform(), shared.platform()
    platform.add()
    theirs = other.add()
    before = shared.rows(other, theirs)
    assert shared.reconcile(platform).report.outcome is Outcome.COMPLETED
    assert shared.rows(other, theirs) == before
    assert receipts(other) == {}
