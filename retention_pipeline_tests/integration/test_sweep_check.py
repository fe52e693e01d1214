"""The files of sweeps against real databases: one change of the schema, one fault with its file and line (K2, F14, F18)."""

from contextlib import closing
from importlib import resources

import pytest

from retention_pipeline.catalog.check import FaultCode, Severity, check, concerning, require_sound
from retention_pipeline.catalog.loader import load
from retention_pipeline.errors import Refused
from retention_pipeline.postgres.introspection import read_facts
from retention_pipeline.postgres.migrate import migrate
from retention_pipeline.postgres.session import Session
from retention_pipeline_tests.changing import changed
from retention_pipeline_tests.databases import template
from retention_pipeline_tests.seams import module_database

__all__ = ["module_database", "template"]

ERROR, WARNING = Severity.ERROR, Severity.WARNING


def line_of(file, part):
    text = resources.files("retention_pipeline.catalog").joinpath(file).read_text()
    return text[: text.index(part)].count("\n") + 1


def faults(database):
    with closing(Session(url=database.worker_url)) as session, session.transaction(None, read_only=True) as cursor:
        return check(load(), read_facts(cursor, load()))


def after(database, *statements):
    """Faults after a change that is undone again, without those of an installation that is stale by it."""
    found = changed(database, load(), *statements)
    return [f for f in found if (f.code, f.file) != (FaultCode.CATALOG_NOT_INSTALLED, None)]


def told(fault):
    return fault.code.name.removeprefix("CATALOG_"), fault.severity, fault.file, fault.line


LEDGERS, JOBS, HISTORY = "submission_ledgers.yaml", "job_evidence.yaml", "workflow_history.yaml"
PAYLOADS, REQUESTS = "ephemeral_payloads.yaml", "join_requests.yaml"


@pytest.mark.parametrize(
    ("statement", "code", "file", "part"),
    [
        ("DROP TABLE nucleus.crm_submission_ledger", "TABLE_MISSING", LEDGERS, "table: nucleus.crm"),
        ("ALTER TABLE nucleus.jobs RENAME finished_at TO ended_at", "COLUMN_MISSING", JOBS, "age: finished_at"),
        ("ALTER TABLE nucleus.jobs RENAME status TO state", "COLUMN_MISSING", JOBS, "status: status"),
        ("ALTER TABLE nucleus.tenant_settings RENAME value TO val", "COLUMN_MISSING", PAYLOADS, "value: value"),
        ("ALTER TABLE nucleus.notifications RENAME kind TO sort", "COLUMN_MISSING", REQUESTS, "what: kind"),
        (
            "ALTER TABLE nucleus.companies RENAME status TO state",
            "COLUMN_MISSING",
            REQUESTS,
            "status: status\n  active:",
        ),
        (
            "ALTER TABLE nucleus.crm_submission_ledger DROP CONSTRAINT crm_submission_ledger_pkey",
            "KEY_NOT_UNIQUE",
            LEDGERS,
            "key: [id]",
        ),
        (
            "DROP INDEX nucleus.crm_submission_ledger_tenant_id_created_at_id_idx",
            "INDEX_MISSING",
            LEDGERS,
            "age: created_at",
        ),
        ("DROP INDEX nucleus.job_outcome_evidence_job_id_idx", "INDEX_MISSING", JOBS, "join: {job_id: id}"),
        ("DROP INDEX nucleus.join_requests_invite_id_idx", "INDEX_MISSING", REQUESTS, "invite: invite_id"),
        (
            "DROP INDEX nucleus.workflow_executions_tenant_id_finished_at_id_idx",
            "INDEX_MISSING",
            HISTORY,
            "age: finished_at\n    older_than_days: 365\n    status: status\n    closed: [succeeded",
        ),
        (
            "DROP INDEX nucleus.retention_ephemeral_payloads_central_tasks_expiry",
            "NOT_INSTALLED",
            PAYLOADS,
            "table: nucleus.workflow_central_tasks",
        ),
        (
            (
                "UPDATE pg_index SET indisvalid = false"
                " WHERE indexrelid = 'nucleus.retention_join_requests_join_requests_deadline'::regclass"
            ),
            "NOT_INSTALLED",
            REQUESTS,
            "table: nucleus.join_requests",
        ),
        (
            "ALTER TABLE nucleus.companies DISABLE TRIGGER retention_deadline_update_join_requests",
            "NOT_INSTALLED",
            REQUESTS,
            "table: nucleus.companies",
        ),
        ("DROP POLICY retention_worker_deletes ON nucleus.jobs", "NOT_INSTALLED", JOBS, "table: nucleus.jobs"),
        (
            "DROP POLICY retention_worker_tells ON nucleus.notifications",
            "NOT_INSTALLED",
            REQUESTS,
            "table: nucleus.notif",
        ),
        ("REVOKE DELETE ON nucleus.jobs FROM retention_worker", "NOT_INSTALLED", JOBS, "table: nucleus.jobs"),
        (
            "ALTER TABLE nucleus.workflow_central_tasks ALTER payload_expired_at SET NOT NULL",
            "COLUMN_TYPE",
            PAYLOADS,
            "marker: payload_expired_at",
        ),
        (
            "DROP POLICY own_tenant ON nucleus.company_invites",
            "ROW_SECURITY_BLIND",
            REQUESTS,
            "table: nucleus.company_inv",
        ),
        (
            "CREATE TABLE nucleus.notes (job_id uuid REFERENCES nucleus.jobs ON DELETE CASCADE)",
            "FOREIGN_KEY_ACTION",
            JOBS,
            "table: nucleus.jobs",
        ),
        (
            (
                "ALTER TABLE nucleus.job_outcome_evidence DROP CONSTRAINT job_outcome_evidence_job_id_fkey,"
                " ADD FOREIGN KEY (job_id) REFERENCES nucleus.jobs ON DELETE CASCADE"
            ),
            "FOREIGN_KEY_ACTION",
            JOBS,
            "table: nucleus.jobs",
        ),
        (
            (
                "ALTER TABLE nucleus.workflow_action_checkpoints DROP CONSTRAINT workflow_action_checkpoints_execution_id_fkey,"
                " ADD FOREIGN KEY (execution_id) REFERENCES nucleus.workflow_executions ON DELETE CASCADE"
            ),
            "FOREIGN_KEY_ACTION",
            HISTORY,
            "table: nucleus.workflow_executions",
        ),
    ],
)
def test_one_change_is_one_error_with_its_file_and_line(module_database, statement, code, file, part):
    found = after(module_database, statement)
    errors = [told(fault) for fault in found if fault.severity is ERROR]
    assert errors.pop(0) == (code, ERROR, file, line_of(file, part))
    assert {(more[0], more[2]) for more in errors} <= {(code, file)}  # a policy that is gone blinds two roles


@pytest.mark.parametrize(
    ("statement", "code", "file", "part"),
    [
        (
            "CREATE TABLE nucleus.notes (job_id uuid REFERENCES nucleus.jobs)",
            "FOREIGN_KEY_UNNAMED",
            JOBS,
            "table: nucleus.jobs",
        ),
        ("ALTER TABLE nucleus.jobs ALTER tenant_id DROP NOT NULL", "TENANT_NULLABLE", JOBS, "tenant: tenant_id"),
        ("ALTER TABLE nucleus.jobs NO FORCE ROW LEVEL SECURITY", "ROW_SECURITY_WEAK", JOBS, "table: nucleus.jobs"),
    ],
)
def test_what_a_person_should_know_is_a_warning(module_database, statement, code, file, part):
    (fault,) = after(module_database, statement)
    assert told(fault) == (code, WARNING, file, line_of(file, part))


def test_the_remedy_for_a_missing_index_is_the_statement_and_mends_it(database):
    with database.superuser() as connection:
        connection.execute("DROP INDEX nucleus.platform_submission_ledger_tenant_id_created_at_id_idx")
    (fault,) = faults(database)
    assert fault.remedy == (
        'CREATE INDEX CONCURRENTLY ON "nucleus"."platform_submission_ledger" ("tenant_id", "created_at", "id");'
    )
    with database.superuser() as connection:
        connection.autocommit = True
        connection.execute(fault.remedy)
    assert faults(database) == ()


def test_a_lost_index_of_ours_is_built_again_by_a_migration(database):
    with database.superuser() as connection:
        connection.execute("DROP INDEX nucleus.retention_join_requests_join_requests_pages")
    (fault,) = faults(database)
    assert fault.sentence == "nucleus.join_requests lacks the index retention_join_requests_join_requests_pages."
    migrate(database.owner_url, load())
    assert faults(database) == ()


def test_a_fault_of_one_sweep_stops_that_sweep_alone(module_database):
    """An index that a ledger lacks is no reason to leave instances, or another sweep's rows, where they are."""
    found = after(module_database, "DROP INDEX nucleus.crm_submission_ledger_tenant_id_created_at_id_idx")
    require_sound(concerning(found, None))
    require_sound(concerning(found, "job_evidence.yaml"))
    with pytest.raises(Refused, match=r"submission_ledgers\.yaml, line 1\d: No index of nucleus\.crm"):
        require_sound(concerning(found, "submission_ledgers.yaml"))
