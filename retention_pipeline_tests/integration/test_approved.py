"""The database itself asks for an approval, of the worker's own login in plain SQL (SPEC G4, A7, A17)."""

import uuid
from contextlib import contextmanager

import psycopg
import pytest

from retention_pipeline.errors import Code
from retention_pipeline.model.outcome import Outcome
from retention_pipeline_tests.seams import STORED, VERIFIED, acting

ATTEMPT = (
    "INSERT INTO retention.attempts (id, tenant_id, instance_id, epoch, epoch_at, state, approval_id, job, run, holder,"
    " leased_until, profile_generation, archive_retention_days, key_id, object_key, object_size, object_sha256,"
    " plaintext_size, manifest_digest, manifest_format, fingerprint, shared_digest, rows_by_table)"
    " SELECT gen_random_uuid(), tenant_id, %(instance)s, 1, now(), 'intended', %(approval)s, %(job)s, %(run)s, 'h', now(), 1,"
    " 365, key_id, %(key)s, 1, sha256('x'), 1, sha256('x'), 'f', sha256('x'), sha256('x'), '{}'"
    " FROM retention.tenant_keys LIMIT 1"
)
USE = (
    "INSERT INTO retention.approval_uses (approval_id, run, tenant_id, single_use)"
    " VALUES (%(approval)s, %(run)s, retention.current_tenant(), true)"
)


@contextmanager
def as_worker(bench, platform):
    with psycopg.connect(bench.database.worker_url, autocommit=True) as worker:
        for setting in ("nucleus.tenant_id", "retention.tenant_id"):
            worker.execute("SELECT set_config(%s, %s, false)", [setting, platform.tenant])
        yield worker


@contextmanager
def refused(state="RT010"):
    with pytest.raises(psycopg.Error) as error:
        yield
    assert error.value.sqlstate == state


@pytest.fixture
def platform(shared):
    platform = shared.platform()
    shared.world.keys.current(platform.tenant)
    return platform


def values(platform, approval, job="reconcile", run="r1"):
    return {"approval": approval, "run": run, "job": job, "instance": platform.add(), "key": uuid.uuid4().hex}


def test_an_attempt_needs_an_approval_that_its_own_run_has_taken(shared, platform):
    """G4."""
    given = values(platform, shared.approve(platform))
    with as_worker(shared, platform) as worker:
        with refused():
            worker.execute(ATTEMPT, given)
        worker.execute(USE, given)
        with refused():
            worker.execute(ATTEMPT, {**given, "run": "another"})
        with refused():
            worker.execute(ATTEMPT, {**given, "job": "archive"})
        worker.execute(ATTEMPT, given)


def test_an_approval_for_one_instance_is_for_no_other(shared, platform):
    """G4."""
    given = values(platform, None, job="archive")
    given["approval"] = shared.approve(platform, job="archive", subject=given["instance"])
    with as_worker(shared, platform) as worker:
        worker.execute(USE, given)
        with refused():
            worker.execute(ATTEMPT, {**given, "instance": platform.add()})
        worker.execute(ATTEMPT, given)


@pytest.mark.parametrize("what", ["expired", "of another tenant", "unknown", "no longer permitted", "standing"])
def test_an_approval_that_is_not_good_cannot_even_be_taken(shared, platform, what):
    """G4."""
    owner = shared.platform() if what == "of another tenant" else platform
    approval = str(uuid.uuid4()) if what == "unknown" else shared.approve(owner)
    if what == "expired":
        platform.run(
            "UPDATE retention.approvals SET at = now() - interval '2 h', expires_at = now() WHERE id = %s", approval
        )
    if what == "no longer permitted":
        remove = "INSERT INTO retention.grant_events (tenant_id, principal, permission, action) VALUES (%s, 'postgres', %s, %s)"
        platform.run(remove, "*", "workflow_retention:reconcile", "remove")
    if what == "standing":
        platform.run("UPDATE retention.approvals SET kind = 'standing' WHERE id = %s", approval)
    with as_worker(shared, platform) as worker, refused():
        worker.execute(USE, {"approval": approval, "run": "r1"})


@pytest.mark.parametrize("moment", [STORED, VERIFIED])
@pytest.mark.parametrize("end", ["expired", "no longer permitted"])
def test_an_approval_that_ends_during_a_run_ends_the_run(shared, platform, moment, end):
    """G4, A8: what was archived under it waits for the next approval, and its source stays."""
    instance, approval = platform.add(), shared.approve(platform)

    def ends():
        if end == "expired":
            platform.run(
                "UPDATE retention.approvals SET at = now() - interval '2 h', expires_at = now() WHERE id = %s", approval
            )
        else:
            platform.run(
                "INSERT INTO retention.grant_events (tenant_id, principal, permission, action)"
                " VALUES (%s, 'postgres', 'workflow_retention:reconcile', 'remove')",
                platform.tenant,
            )
            platform.run(
                "INSERT INTO retention.grant_events (tenant_id, principal, permission, action)"
                " VALUES ('*', 'postgres', 'workflow_retention:reconcile', 'remove')"
            )

    report = shared.reconcile(platform, approval=approval, world=acting(shared.world, moment, ends)).report
    assert (report.outcome, report.reason, report.counts.deleted) == (Outcome.BLOCKED, Code.APPROVAL_INVALID, 0)
    assert platform.exists(instance)
    again = shared.reconcile(platform).report
    assert (again.outcome, again.counts.deleted, again.counts.archived) == (Outcome.COMPLETED, 1, 0)


def test_no_more_receipts_than_the_approval_covers(shared, platform):
    """G4: counted by the database."""
    platform.add()
    approval = shared.approve(platform, items=1)
    shared.reconcile(platform, approval=approval)
    run = platform.value("SELECT run FROM retention.receipts WHERE approval_id = %s", approval)
    other = platform.add()
    shared.reconcile(platform)
    platform.run("DELETE FROM retention.receipts WHERE instance_id = %s", other)
    receipt = (
        "INSERT INTO retention.receipts (attempt_id, tenant_id, instance_id, epoch, approval_id, actor, run, rows_by_table)"
        " SELECT id, tenant_id, instance_id, epoch, %(approval)s, 'postgres', %(run)s, '{}' FROM retention.attempts"
        " WHERE instance_id = %(instance)s"
    )
    given = {"approval": approval, "run": run, "instance": other}
    with as_worker(shared, platform) as worker:
        with refused():
            worker.execute(receipt, given)
        # It is the count alone: the same receipt is taken where the approval covers one more.
        platform.run("UPDATE retention.approvals SET max_items = 2 WHERE id = %s", approval)
        worker.execute(receipt, given)


def test_a_receipt_is_for_an_archive_whose_source_just_went(shared, platform):
    """A7: nobody writes one for an instance that stands."""
    instance = platform.add()
    approval = shared.approve(platform)
    shared.reconcile(
        platform, approval=approval, world=acting(shared.world, VERIFIED, lambda: stand_still(platform, instance))
    )
    receipt = (
        "INSERT INTO retention.receipts (attempt_id, tenant_id, instance_id, epoch, approval_id, actor, run, rows_by_table)"
        " SELECT id, tenant_id, instance_id, epoch, approval_id, 'a', run, '{}' FROM retention.attempts WHERE instance_id = %s"
    )
    with as_worker(shared, platform) as worker, refused("RT003"):
        worker.execute(receipt, [instance])


def stand_still(platform, instance):
    platform.run("UPDATE nucleus.workflow_instances SET title = 'changed' WHERE id = %s", instance)


@pytest.mark.parametrize("who", ["the worker", "the platform's owner"])
def test_a_root_goes_only_in_a_transaction_that_leaves_its_receipt(shared, platform, who):
    """A7, A8: an archive that was proven is not yet a receipt."""
    instance = platform.add(contexts=0)
    platform.run("DELETE FROM nucleus.workflow_action_checkpoints")
    platform.run("DELETE FROM nucleus.workflow_executions WHERE instance_id = %s", instance)
    before = shared.rows(platform, instance)

    def delete():
        url = shared.database.worker_url if who == "the worker" else shared.database.url("platform_owner")
        with psycopg.connect(url, autocommit=True) as login:
            for setting in ("nucleus.tenant_id", "retention.tenant_id"):
                login.execute("SELECT set_config(%s, %s, false)", [setting, platform.tenant])
            with refused("RT003"), login.transaction():
                login.execute("DELETE FROM nucleus.workflow_terminal_epochs WHERE instance_id = %s", [instance])
                login.execute("DELETE FROM nucleus.workflow_instances WHERE id = %s", [instance])
        assert shared.rows(platform, instance) == before

    assert shared.reconcile(platform, world=acting(shared.world, VERIFIED, delete)).report.counts.deleted == 1


@pytest.mark.parametrize("table", ["workflow_instances", "workflow_contexts", "workflow_action_checkpoints"])
def test_the_worker_puts_no_row_into_the_source_but_by_an_approved_restore(shared, platform, table):
    """G4, A17: at every depth."""
    platform.add()
    copy = {
        "workflow_instances": "(id, tenant_id, workflow_id, state) SELECT gen_random_uuid(), tenant_id, workflow_id, state",
        "workflow_contexts": "(id, tenant_id, instance_id, name) SELECT gen_random_uuid(), tenant_id, instance_id, name",
        "workflow_action_checkpoints": "(tenant_id, execution_id, step) SELECT tenant_id, execution_id, step",
    }[table]
    with as_worker(shared, platform) as worker, refused("42501"):
        worker.execute(f"INSERT INTO nucleus.{table} {copy} FROM nucleus.{table} LIMIT 1")


@pytest.mark.parametrize(
    "change", ["state = 'intended'", "state = 'verified'", "object_key = 'x'", "archive_retention_days = 400"]
)
def test_an_attempt_goes_forward_and_what_it_says_never_changes(shared, platform, change):
    """A5, A10: an archive's period is captured once."""
    platform.add()
    shared.reconcile(platform)
    with as_worker(shared, platform) as worker, refused("RT011"):
        worker.execute(f"UPDATE retention.attempts SET {change}")
