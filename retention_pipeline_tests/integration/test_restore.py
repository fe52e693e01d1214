"""What was archived comes back once, as it was, into tables that can take it; else it is refused by name (SPEC A1, A17, F12, F19)."""

import pytest

from retention_pipeline.errors import Code, RetentionError
from retention_pipeline.model.archive import AttemptState
from retention_pipeline.model.outcome import Outcome
from retention_pipeline.postgres import migrate
from retention_pipeline.stages import restoration
from retention_pipeline_tests.faulty import Around

MARKER = "SECRET-MARKER"
SECTIONS = {
    "instance",
    "definition",
    "context",
    "transition_history",
    "action_checkpoints",
    "recovery",
    "trigger_occurrences",
    "occurrence_targets",
    "deliveries",
    "artifact_evidence",
    "terminal_epochs",
    "executions",
    "central",
    "store_bindings",
}


def archive(bench, platform):
    """Archive what is due, and open the newest archive."""
    assert bench.reconcile(platform).report.outcome is Outcome.COMPLETED
    attempt = bench.world.records.archives(platform.tenant, limit=1)[0]
    assert attempt.state is AttemptState.SOURCE_DELETED
    stored = restoration.restorable(attempt)
    return attempt, restoration.open_archive(bench.store, stored, lambda key: bench.keys.find(platform.tenant, key))


def put_back(bench, platform, attempt, manifest):
    approval = bench.approve(platform, job="restore", subject=attempt.id)
    return restoration.into_database(
        bench.world.records, bench.restorer, attempt, manifest, approval_id=approval, run="restoring"
    )


def refused(bench, platform, attempt, manifest, *words):
    with pytest.raises(RetentionError) as refusal:
        put_back(bench, platform, attempt, manifest)
    assert refusal.value.code is Code.RESTORE_CONFLICT
    for word in words:
        assert word in str(refusal.value)
    assert not platform.exists(manifest.instance)
    assert platform.value("SELECT count(*) FROM retention.restorations WHERE tenant_id = %s", platform.tenant) == 0


def alter(bench, *statements):
    """The platform changes its tables, and its operator runs `retention migrate`."""
    with bench.database.superuser() as owner:
        for statement in statements:
            owner.execute(statement)
    migrate.migrate(bench.database.owner_url, bench.world.source.catalog)


def test_a_restored_instance_is_whole_and_not_due_before_its_grace_is_over(shared):
    """A17: then it goes again, in a second archive."""
    platform = shared.platform()
    instance = platform.add()
    before = shared.rows(platform, instance)
    attempt, manifest = archive(shared, platform)
    assert put_back(shared, platform, attempt, manifest).identical
    assert shared.rows(platform, instance) == before
    assert shared.reconcile(platform).report.counts.deleted == 0
    platform.run(
        "UPDATE retention.restorations SET grace_until = '2026-06-01 12:00:00.000001+00' WHERE tenant_id = %s",
        platform.tenant,
    )
    assert shared.reconcile(platform).report.counts.deleted == 0  # by a microsecond
    platform.run(
        "UPDATE retention.restorations SET grace_until = '2026-06-01 12:00:00+00' WHERE tenant_id = %s", platform.tenant
    )
    platform.run(
        "UPDATE retention.receipts SET deleted_at = deleted_at - interval '31 days' WHERE tenant_id = %s",
        platform.tenant,
    )
    assert shared.reconcile(platform).report.counts.deleted == 1
    assert shared.states(platform) == {"source_deleted": 2}


def test_a_second_restore_makes_no_second_copy(shared):
    """A17: the id exists, and is named; whoever asks can see that it is back."""
    platform = shared.platform()
    instance = platform.add()
    attempt, manifest = archive(shared, platform)
    assert not shared.restorer.is_back(platform.tenant, attempt.id, manifest)
    put_back(shared, platform, attempt, manifest)
    before = shared.rows(platform, instance)
    assert shared.restorer.is_back(platform.tenant, attempt.id, manifest)
    with pytest.raises(RetentionError) as refusal:
        put_back(shared, platform, attempt, manifest)
    assert (refusal.value.code, "nucleus.workflow_instances" in str(refusal.value)) == (Code.RESTORE_CONFLICT, True)
    assert shared.rows(platform, instance) == before
    assert platform.value("SELECT count(*) FROM retention.restorations WHERE tenant_id = %s", platform.tenant) == 1


def test_an_approval_for_another_archive_restores_nothing(shared):
    """G4."""
    platform = shared.platform()
    platform.add()
    attempt, manifest = archive(shared, platform)
    approval = shared.approve(platform, job="restore", subject="00000000-0000-4000-8000-000000000000")
    with pytest.raises(RetentionError) as refusal:
        restoration.into_database(
            shared.world.records, shared.restorer, attempt, manifest, approval_id=approval, run="restoring"
        )
    assert refusal.value.code is Code.APPROVAL_INVALID
    assert not platform.exists(manifest.instance)


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("ALTER TABLE nucleus.workflow_contexts DROP COLUMN deleted_at", ("nucleus.workflow_contexts", "deleted_at")),
        (
            "ALTER TABLE nucleus.workflow_executions ALTER log TYPE varchar(400)",
            ("nucleus.workflow_executions", "log", "text", "character varying(400)"),
        ),
        ("ALTER TABLE nucleus.workflow_contexts RENAME COLUMN name TO title", ("nucleus.workflow_contexts", "name")),
        (
            "ALTER TABLE nucleus.workflow_contexts ADD CONSTRAINT never CHECK (name <> 'c0') NOT VALID",
            ("nucleus.workflow_contexts", "23514"),
        ),
        (
            "ALTER TABLE nucleus.workflow_contexts ADD COLUMN must text NOT NULL",
            ("nucleus.workflow_contexts", "23502"),
        ),
    ],
    ids=["dropped", "retyped", "renamed", "a new rule", "a new duty"],
)
def test_tables_that_can_no_longer_take_it_are_named(bench, statement, words):
    """F19: nothing is restored."""
    platform = bench.platform()
    platform.add()
    attempt, manifest = archive(bench, platform)
    alter(bench, statement)
    refused(bench, platform, attempt, manifest, *words)


def test_a_column_that_came_since_gets_its_default(bench):
    """F19."""
    platform = bench.platform()
    instance = platform.add()
    attempt, manifest = archive(bench, platform)
    alter(bench, "ALTER TABLE nucleus.workflow_contexts ADD COLUMN verdict text NOT NULL DEFAULT 'none yet'")
    assert put_back(bench, platform, attempt, manifest).identical
    found = platform.connection.execute(
        "SELECT DISTINCT verdict FROM nucleus.workflow_contexts WHERE instance_id = %s", [instance]
    ).fetchall()
    assert found == [("none yet",)]


def test_a_definition_that_is_gone_is_named(shared):
    """F19: shared rows are not restored, since they were never deleted."""
    platform = shared.platform()
    own = platform.add_workflow()
    platform.add(workflow=own)
    attempt, manifest = archive(shared, platform)
    platform.run("DELETE FROM nucleus.workflows WHERE id = %s", own)
    refused(shared, platform, attempt, manifest, "nucleus.workflow_instances", "1 row(s) of nucleus.workflows")


def test_everything_that_hangs_on_an_instance_is_in_its_archive(shared):
    """A1: earlier epochs, every context, soft-deleted children, each kind of evidence in its section."""
    platform = shared.platform()
    instance = platform.add(
        epochs=(("completed", "2025-01-01Z"), ("failed", "2025-06-01Z"), ("completed", "2026-01-01Z"))
    )
    platform.run(
        "UPDATE nucleus.workflow_contexts SET deleted_at = now() WHERE instance_id = %s AND name = 'c0'", instance
    )
    target = platform.occurrence_target(instance, "completed")
    platform.run(
        "INSERT INTO nucleus.workflow_trigger_deliveries (id, tenant_id, target_id, status) VALUES"
        " (gen_random_uuid(), %s, %s, 'delivered')",
        platform.tenant,
        target,
    )
    platform.child("transition_requests", instance, status="completed")
    platform.child("artifact_operations", instance, kind="k", status="done", checksum=b"\x00\xff")
    platform.run(
        "INSERT INTO nucleus.workflow_transitions (tenant_id, instance_id, to_state) VALUES (%s, %s, 'completed')",
        platform.tenant,
        instance,
    )
    platform.child("central_instances", instance, payload='{"a": 1}', variables='{"a": 1}')
    platform.child("central_tasks", instance, payload='{"a": 1}', payload_expired_at="2025-06-01Z")
    store = platform.value(
        "INSERT INTO nucleus.workflow_stores (id, tenant_id, name) VALUES (gen_random_uuid(), %s, 's') RETURNING id",
        platform.tenant,
    )
    platform.run(
        "INSERT INTO nucleus.workflow_store_bindings (store_id, instance_id, tenant_id) VALUES (%s, %s, %s)",
        store,
        instance,
        platform.tenant,
    )
    before = shared.rows(platform, instance)
    attempt, manifest = archive(shared, platform)
    assert {table.section for table in manifest.tables} == SECTIONS
    rows = {table.name: len(table.rows) for table in manifest.tables}
    assert (rows["terminal_epochs"], rows["contexts"]) == (3, 2)
    empty = {table.name for table in manifest.tables if not table.rows}
    assert empty == {"dead_letters"}  # any would have kept it
    assert put_back(shared, platform, attempt, manifest).identical
    assert shared.rows(platform, instance) == before


EPHEMERAL = f'{{"mode": "ephemeral_hosted", "reason": "r", "expiresAt": "%s", "text": "{MARKER}"}}'


@pytest.mark.parametrize("expires", ["2020-01-01T00:00:00Z", "2099-01-01T00:00:00Z"], ids=["expired", "not expired"])
def test_an_ephemeral_payload_is_nowhere_after_its_instance_was_archived(bench, expires):
    """A1, F12: not in the archive, the manifest, the audit, nor anywhere in the database; expired or not."""
    platform = bench.platform()
    instance = platform.add()
    platform.child("contexts", instance, name="e", payload=EPHEMERAL % expires, data=f'{{"copy": "{MARKER}"}}')
    bodies = []

    class Looking(Around):
        def put_once(self, key, body, *, sha256, lock_until=None):
            bodies.append(body)
            return self.inner.put_once(key, body, sha256=sha256, lock_until=lock_until)

    bench.reconcile(platform, world=bench.with_store(Looking(bench.store)))
    attempt = bench.world.records.archives(platform.tenant, limit=1)[0]
    clear = bytearray()
    verified = restoration.restorable(attempt)
    manifest = restoration.open_archive(bench.store, verified, lambda key: bench.keys.find(platform.tenant, key))
    for table in manifest.tables:
        clear += repr(table.rows).encode()
    assert b"never archived" in clear  # a marker stands there
    assert MARKER.encode() not in clear
    assert all(MARKER.encode() not in body for body in bodies)
    assert MARKER not in everything(bench)

    put_back(bench, platform, attempt, manifest)
    assert MARKER not in everything(bench)


@pytest.mark.parametrize(
    "payload",
    [
        f'{{"mode": "external_reference", "note": "ephemeral_hosted {MARKER}"}}',
        f'{{"inner": {{"mode": "ephemeral_hosted", "text": "{MARKER}"}}}}',
        f'[{{"mode": "ephemeral_hosted", "text": "{MARKER}"}}]',
        f'"ephemeral_hosted {MARKER}"',
    ],
)
def test_a_payload_that_only_mentions_the_mode_is_archived(shared, payload):
    """A1, E3."""
    platform = shared.platform()
    instance = platform.add(contexts=0)
    platform.child("contexts", instance, name="e", payload=payload, data='{"copy": 1}')
    before = shared.rows(platform, instance)
    attempt, manifest = archive(shared, platform)
    put_back(shared, platform, attempt, manifest)
    assert shared.rows(platform, instance) == before


def everything(bench):
    """Every row of the database as text, ours and the platform's."""
    found = []
    with bench.database.superuser() as connection:
        tables = connection.execute(
            "SELECT c.oid::regclass::text FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace"
            " WHERE n.nspname IN ('nucleus', 'retention') AND c.relkind = 'r'"
        ).fetchall()
        for (table,) in tables:
            found += [row[0] for row in connection.execute(f"SELECT t::text FROM {table} AS t").fetchall()]
    return "\n".join(found)
