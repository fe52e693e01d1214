"""The catalog against real databases: one change of the schema, one fault with its name (K2, F14, F18)."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib import resources

import psycopg
import pytest

from retention_pipeline.catalog.check import FaultCode, Severity, check, concerning, require_sound
from retention_pipeline.catalog.loader import load, parse
from retention_pipeline.errors import Refused
from retention_pipeline.postgres.introspection import read_facts
from retention_pipeline.postgres.migrate import migrate
from retention_pipeline.postgres.session import Session
from retention_pipeline_tests.changing import changed
from retention_pipeline_tests.databases import template
from retention_pipeline_tests.seams import module_database

__all__ = ["module_database", "template"]

SHIPPED = resources.files("retention_pipeline.catalog").joinpath("workflow_instances.yaml").read_text()
ROOT = "nucleus.workflow_instances"
EXECUTIONS = "nucleus.workflow_executions"
ID = "00000000-0000-4000-8000-000000000001"


def line_of(part):
    return SHIPPED[: SHIPPED.index(part)].count("\n") + 1


def facts_of(url, catalog):
    session = Session(url=url)
    try:
        with session.transaction(None, read_only=True) as cursor:
            return read_facts(cursor, catalog)
    finally:
        session.close()


def faults(database, catalog=None):
    catalog = catalog or load()
    return check(catalog, facts_of(database.worker_url, catalog))


def run(database, *statements):
    with database.superuser() as connection:
        for statement in statements:
            connection.execute(statement)


def other_than_installation(found):
    """Most changes make what was installed stale as well; a test of its own says so. Sweeps' files are test_sweep_check's."""
    return [fault for fault in found if fault.code is not FaultCode.CATALOG_NOT_INSTALLED and fault.file is None]


def only(database, *statements):
    """The one fault after a change that is undone again."""
    (fault,) = other_than_installation(changed(database, load(), *statements))
    return fault


def test_the_shipped_catalog_fits_the_reference_platform(database):
    assert faults(database) == ()


def test_every_login_reads_the_same_facts_without_a_privilege_on_a_table(database):
    catalog = load()
    seen = facts_of(database.worker_url, catalog)
    assert facts_of(database.operator_url, catalog) == seen
    assert facts_of(database.url("clerk"), catalog) == seen
    run(database, "REVOKE ALL ON ALL TABLES IN SCHEMA nucleus FROM retention_operator")
    assert facts_of(database.operator_url, catalog) == seen


@pytest.mark.parametrize(
    ("action", "effect"),
    [
        ("RESTRICT", "could never go"),
        ("NO ACTION", "could never go"),
        ("CASCADE", "would vanish unarchived"),
        ("SET NULL", "would be changed"),
        ("SET DEFAULT", "would be changed"),
    ],
)
def test_a_table_that_the_catalog_does_not_name_is_named(module_database, action, effect):
    fault = only(
        module_database,
        f"CREATE TABLE nucleus.invoices (id int PRIMARY KEY, instance_id uuid REFERENCES {ROOT} ON DELETE {action})",
    )
    assert (fault.code, fault.severity) == (FaultCode.CATALOG_FOREIGN_KEY_UNNAMED, Severity.ERROR)
    assert "nucleus.invoices (instance_id)" in fault.sentence
    assert f"ON DELETE {action}" in fault.sentence
    assert effect in fault.sentence
    assert fault.line == line_of("table: nucleus.workflow_instances")
    with pytest.raises(Refused, match=r"nucleus\.invoices"):
        require_sound([fault])


def test_a_table_that_refers_to_evidence_is_named_with_the_evidence_line(module_database):
    fault = only(
        module_database,
        "CREATE SCHEMA billing",
        "CREATE TABLE billing.costs (execution uuid REFERENCES nucleus.workflow_executions ON DELETE CASCADE)",
    )
    assert fault.code is FaultCode.CATALOG_FOREIGN_KEY_UNNAMED
    assert "billing.costs" in fault.sentence
    assert fault.line == line_of("table: nucleus.workflow_executions")


def test_a_partitioned_table_is_named_once_and_a_lone_partition_by_its_own_name(database):
    run(
        database,
        f"CREATE TABLE nucleus.notes (id int, instance_id uuid REFERENCES {ROOT}) PARTITION BY RANGE (id)",
        "CREATE TABLE nucleus.notes_1 PARTITION OF nucleus.notes FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE nucleus.notes_2 PARTITION OF nucleus.notes FOR VALUES FROM (10) TO (20)",
        "CREATE TABLE nucleus.marks (id int, instance_id uuid) PARTITION BY RANGE (id)",
        "CREATE TABLE nucleus.marks_1 PARTITION OF nucleus.marks FOR VALUES FROM (0) TO (10)",
        f"ALTER TABLE nucleus.marks_1 ADD FOREIGN KEY (instance_id) REFERENCES {ROOT} ON DELETE SET NULL",
    )
    named = sorted(fault.sentence.split()[0] for fault in faults(database))
    assert named == ["nucleus.marks_1", "nucleus.notes"]


def test_a_foreign_key_that_is_not_validated_or_from_an_odd_name_is_named(database):
    run(
        database,
        'CREATE TABLE nucleus."Odd ""name"".x" (i uuid)',
        f'ALTER TABLE nucleus."Odd ""name"".x" ADD FOREIGN KEY (i) REFERENCES {ROOT} NOT VALID',
    )
    (fault,) = faults(database)
    assert fault.code is FaultCode.CATALOG_FOREIGN_KEY_UNNAMED
    assert 'nucleus.Odd "name".x' in fault.sentence


def test_a_foreign_key_that_is_not_enforced_is_named_and_binds_nothing(database):
    with database.superuser() as connection:
        if connection.info.server_version < 180000:
            pytest.skip("NOT ENFORCED came with PostgreSQL 18")
    run(
        database,
        f"CREATE TABLE nucleus.invoices (instance_id uuid REFERENCES {ROOT} NOT ENFORCED)",
        "ALTER TABLE nucleus.workflow_contexts ALTER CONSTRAINT workflow_contexts_instance_id_fkey NOT ENFORCED",
    )
    codes = {fault.code for fault in faults(database)}
    assert codes == {FaultCode.CATALOG_FOREIGN_KEY_UNNAMED, FaultCode.CATALOG_FOREIGN_KEY_MISSING}


def test_a_foreign_key_whose_triggers_are_disabled_binds_nothing(module_database):
    fault = only(module_database, "ALTER TABLE nucleus.workflow_contexts DISABLE TRIGGER ALL")
    assert fault.code is FaultCode.CATALOG_FOREIGN_KEY_MISSING
    assert "nucleus.workflow_contexts" in fault.sentence


def again(table, column, parent, rest):
    constraint = f"{table.split('.')[1]}_{column}_fkey"
    return (
        f"ALTER TABLE {table} DROP CONSTRAINT {constraint}",
        f"ALTER TABLE {table} ADD CONSTRAINT {constraint} FOREIGN KEY ({column}) REFERENCES {parent} {rest}",
    )


def test_cascade_from_a_named_child_of_the_root_is_allowed(database):
    run(database, *again("nucleus.workflow_contexts", "instance_id", ROOT, "ON DELETE CASCADE"))
    assert concerning(faults(database), None) == ()  # a horizon of its own is another matter: test_sweep_check


def test_set_null_from_a_named_child_of_the_root_is_a_warning(module_database):
    fault = only(module_database, *again("nucleus.workflow_contexts", "instance_id", ROOT, "ON DELETE SET NULL"))
    assert (fault.code, fault.severity) == (FaultCode.CATALOG_FOREIGN_KEY_ACTION, Severity.WARNING)
    require_sound([fault])


def test_cascade_further_down_is_allowed_because_the_swap_locks_the_parent_first(database):
    run(database, *again("nucleus.workflow_action_checkpoints", "execution_id", EXECUTIONS, "ON DELETE CASCADE"))
    assert concerning(faults(database), None) == ()  # a horizon of its own is another matter: test_sweep_check
    assert (workflow_rows(database), late_insert(database, lock_first=False)) == (1, 0)


def test_a_locked_parent_makes_the_late_insert_wait_and_be_seen(database):
    run(database, *again("nucleus.workflow_action_checkpoints", "execution_id", EXECUTIONS, "ON DELETE CASCADE"))
    assert (workflow_rows(database), late_insert(database, lock_first=True)) == (1, "seen")


def workflow_rows(database):
    """One execution of one instance, without the guards that would refuse to delete it here."""
    run(
        database,
        "DROP TRIGGER retention_guard ON nucleus.workflow_instances",
        f"INSERT INTO nucleus.tenants VALUES ('{ID}', 'tenant')",
        f"INSERT INTO nucleus.workflows (id, tenant_id, name, definition) VALUES ('{ID}', '{ID}', 'w', '{{}}')",
        f"INSERT INTO {ROOT} (id, tenant_id, workflow_id, state) VALUES ('{ID}', '{ID}', '{ID}', 'running')",
        f"INSERT INTO {EXECUTIONS} (id, tenant_id, instance_id, status) VALUES ('{ID}', '{ID}', '{ID}', 'succeeded')",
    )
    return count(database, EXECUTIONS)


def late_insert(database, *, lock_first):
    """How many checkpoints are left, of one that commits while the rows around it are deleted with or without the lock."""
    checkpoints = "nucleus.workflow_action_checkpoints"
    with database.superuser() as writer, database.superuser() as swap, ThreadPoolExecutor() as pool:
        writer.execute("BEGIN")
        writer.execute(f"INSERT INTO {checkpoints} (tenant_id, execution_id, step) VALUES ('{ID}', '{ID}', 'late')")
        swap.execute("BEGIN")
        swap.execute(f"SELECT FROM {ROOT} WHERE id = '{ID}' FOR UPDATE")
        if lock_first:
            waiting = pool.submit(swap.execute, f"SELECT FROM {EXECUTIONS} WHERE instance_id = '{ID}' FOR UPDATE")
            while not waits(database, swap.info.backend_pid):
                assert not waiting.done()
            writer.execute("COMMIT")
            waiting.result()
            deleted = swap.execute(f"DELETE FROM {checkpoints} WHERE execution_id = '{ID}'").rowcount
            swap.execute("ROLLBACK")
            return "seen" if deleted == 1 else "missed"
        assert swap.execute(f"DELETE FROM {checkpoints} WHERE execution_id = '{ID}'").rowcount == 0
        waiting = pool.submit(swap.execute, f"DELETE FROM {EXECUTIONS} WHERE instance_id = '{ID}'")
        while not waits(database, swap.info.backend_pid):
            assert not waiting.done()
        writer.execute("COMMIT")
        assert waiting.result().rowcount == 1
        swap.execute("COMMIT")
    return count(database, checkpoints)


def waits(database, pid):
    with database.superuser() as connection:
        query = "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = %s"
        return connection.execute(query, [pid]).fetchone()[0]


def count(database, table):
    with database.superuser() as connection:
        return connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]


@pytest.mark.parametrize(
    ("statement", "code", "severity"),
    [
        (f"ALTER TABLE {ROOT} ADD parent_id uuid REFERENCES {ROOT} ON DELETE CASCADE", "ACTION", Severity.ERROR),
        (f"ALTER TABLE {ROOT} ADD parent_id uuid REFERENCES {ROOT} ON DELETE SET NULL", "ACTION", Severity.ERROR),
        (f"ALTER TABLE {ROOT} ADD parent_id uuid REFERENCES {ROOT}", "ACTION", Severity.WARNING),
        (
            f"ALTER TABLE nucleus.workflows ADD parent_id uuid REFERENCES {ROOT} ON DELETE CASCADE",
            "ACTION",
            Severity.ERROR,
        ),
        (f"ALTER TABLE nucleus.workflows ADD parent_id uuid REFERENCES {ROOT}", "ACTION", Severity.WARNING),
        (
            f"ALTER TABLE nucleus.workflow_transitions ADD parent_id uuid REFERENCES {EXECUTIONS} ON DELETE CASCADE",
            "ACTION",
            Severity.ERROR,
        ),
        (
            "ALTER TABLE nucleus.workflow_transitions ADD parent_id uuid REFERENCES nucleus.workflow_executions",
            "ORDER",
            Severity.ERROR,
        ),
        (f"ALTER TABLE {ROOT} ADD parent_id uuid REFERENCES nucleus.workflow_executions", "ORDER", Severity.ERROR),
    ],
)
def test_a_second_link_between_named_tables_destroys_nothing(module_database, statement, code, severity):
    table = statement.split()[2]
    fault = only(module_database, statement, f"CREATE INDEX ON {table} (parent_id)")
    assert (fault.code.name, fault.severity) == (f"CATALOG_FOREIGN_KEY_{code}", severity)


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE nucleus.workflow_dead_letters ADD parent_id uuid REFERENCES nucleus.workflow_executions",
        f"ALTER TABLE {ROOT} ADD parent_id uuid REFERENCES nucleus.workflow_executions DEFERRABLE INITIALLY DEFERRED",
        "ALTER TABLE nucleus.workflow_executions ADD parent_id uuid REFERENCES nucleus.workflow_executions",
    ],
)
def test_a_second_link_that_goes_in_order_is_no_fault(database, statement):
    run(database, statement, f"CREATE INDEX ON {statement.split()[2]} (parent_id)")
    assert other_than_installation(faults(database)) == []


def test_a_second_link_needs_an_index_too(module_database):
    fault = only(
        module_database, "ALTER TABLE nucleus.workflow_dead_letters ADD x uuid REFERENCES nucleus.workflow_executions"
    )
    assert fault.code is FaultCode.CATALOG_INDEX_MISSING
    assert fault.remedy == 'CREATE INDEX CONCURRENTLY ON "nucleus"."workflow_dead_letters" ("x");'


def test_a_missing_foreign_key_comes_with_its_statement_which_mends_it(database):
    run(database, "ALTER TABLE nucleus.workflow_contexts DROP CONSTRAINT workflow_contexts_instance_id_fkey")
    (fault,) = other_than_installation(faults(database))
    assert fault.code is FaultCode.CATALOG_FOREIGN_KEY_MISSING
    assert SHIPPED.splitlines()[fault.line - 1].strip() == "join: {instance_id: id}"
    run(database, *fault.remedy.split("; "))
    assert faults(database) == ()


def test_a_foreign_key_with_the_tenant_binds_where_no_column_may_be_null(database):
    table = "nucleus.workflow_contexts"
    run(
        database,
        f"ALTER TABLE {ROOT} ADD UNIQUE (tenant_id, id)",
        f"ALTER TABLE {table} DROP CONSTRAINT workflow_contexts_instance_id_fkey",
        f"ALTER TABLE {table} ADD FOREIGN KEY (tenant_id, instance_id) REFERENCES {ROOT} (tenant_id, id)",
    )
    assert faults(database) == ()
    run(database, f"ALTER TABLE {table} ALTER tenant_id DROP NOT NULL")
    codes = {fault.code for fault in faults(database)}
    assert codes == {FaultCode.CATALOG_FOREIGN_KEY_MISSING, FaultCode.CATALOG_TENANT_NULLABLE}


def test_a_missing_index_comes_with_its_statement_which_mends_it(database):
    run(database, "DROP INDEX nucleus.workflow_contexts_instance_id_idx")
    (fault,) = other_than_installation(faults(database))
    assert (fault.code, fault.severity) == (FaultCode.CATALOG_INDEX_MISSING, Severity.ERROR)
    assert fault.remedy == 'CREATE INDEX CONCURRENTLY ON "nucleus"."workflow_contexts" ("instance_id");'
    run(database, fault.remedy)
    assert faults(database) == ()


@pytest.mark.parametrize(
    "definition",
    [
        "(instance_id) WHERE deleted_at IS NULL",
        "((instance_id::text))",
        "(tenant_id, name, instance_id)",
        "(id, instance_id)",
        "USING brin (instance_id)",
    ],
)
def test_an_index_that_does_not_find_all_rows_is_none(module_database, definition):
    fault = only(
        module_database,
        "DROP INDEX nucleus.workflow_contexts_instance_id_idx",
        f"CREATE INDEX ON nucleus.workflow_contexts {definition}",
    )
    assert fault.code is FaultCode.CATALOG_INDEX_MISSING


@pytest.mark.parametrize(
    "definition", ["(instance_id, name)", "USING hash (instance_id)", "(instance_id) INCLUDE (name)"]
)
def test_an_index_that_finds_them_serves(database, definition):
    run(
        database,
        "DROP INDEX nucleus.workflow_contexts_instance_id_idx",
        f"CREATE INDEX ON nucleus.workflow_contexts {definition}",
    )
    assert faults(database) == ()


def test_an_index_that_was_left_invalid_is_named(database):
    run(
        database,
        "DROP INDEX nucleus.workflow_contexts_instance_id_idx",
        "CREATE INDEX half_made ON nucleus.workflow_contexts (instance_id)",
        "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'nucleus.half_made'::regclass",
    )
    (fault,) = faults(database)
    assert fault.code is FaultCode.CATALOG_INDEX_MISSING
    assert "The index half_made does not serve" in fault.sentence


def test_a_missing_table_is_told_once(module_database):
    fault = only(module_database, "DROP TABLE nucleus.workflow_artifact_operations")
    assert fault.code is FaultCode.CATALOG_TABLE_MISSING
    assert fault.line == line_of("table: nucleus.workflow_artifact_operations")


def test_a_view_in_a_table_place_is_told_once(module_database):
    fault = only(
        module_database,
        "ALTER TABLE nucleus.workflow_artifact_operations RENAME TO kept",
        "ALTER TABLE nucleus.kept DROP CONSTRAINT workflow_artifact_operations_instance_id_fkey",
        "CREATE VIEW nucleus.workflow_artifact_operations AS SELECT * FROM nucleus.kept",
    )
    assert fault.code is FaultCode.CATALOG_TABLE_KIND
    assert "is a view" in fault.sentence


def test_heirs_of_a_table_are_told(module_database):
    fault = only(module_database, "CREATE TABLE nucleus.heir () INHERITS (nucleus.workflow_contexts)")
    assert fault.code is FaultCode.CATALOG_TABLE_KIND
    assert "nucleus.heir" in fault.sentence


def test_a_partitioned_child_fits(database):
    run(
        database,
        "DROP TABLE nucleus.workflow_transitions",
        f"""CREATE TABLE nucleus.workflow_transitions (id bigint, tenant_id uuid NOT NULL, at timestamptz NOT NULL,
          instance_id uuid NOT NULL REFERENCES {ROOT}, PRIMARY KEY (id, at)) PARTITION BY RANGE (at)""",
        "CREATE TABLE nucleus.workflow_transitions_old PARTITION OF nucleus.workflow_transitions DEFAULT",
        "CREATE INDEX ON nucleus.workflow_transitions (instance_id)",
        "ALTER TABLE nucleus.workflow_transitions ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY",
        "CREATE POLICY own ON nucleus.workflow_transitions USING (tenant_id = (SELECT nucleus.current_tenant()))",
        "ALTER TABLE nucleus.workflow_transitions OWNER TO platform_owner",
        "ALTER TABLE nucleus.workflow_transitions_old OWNER TO platform_owner",
    )
    fitting = parse(
        SHIPPED.replace(
            "table: nucleus.workflow_transitions\n    key: [id]",
            "table: nucleus.workflow_transitions\n    key: [id, at]",
        )
    )
    migrate(database.owner_url, fitting)
    assert faults(database, fitting) == ()
    (fault,) = other_than_installation(faults(database))
    assert fault.code is FaultCode.CATALOG_KEY_NOT_UNIQUE
    run(database, "DROP INDEX nucleus.workflow_transitions_instance_id_idx")
    (fault,) = faults(database, fitting)
    assert fault.code is FaultCode.CATALOG_INDEX_MISSING
    assert fault.remedy.startswith('CREATE INDEX ON ONLY "nucleus"."workflow_transitions" ("instance_id");')


def test_a_missing_column_is_told_once_with_its_line(module_database):
    fault = only(module_database, "ALTER TABLE nucleus.workflow_executions DROP COLUMN status CASCADE")
    assert fault.code is FaultCode.CATALOG_COLUMN_MISSING
    assert "nucleus.workflow_executions has no column status" in fault.sentence
    assert fault.line == line_of("name: running_execution") + 2


def test_a_renamed_join_column_is_told_once(module_database):
    fault = only(module_database, "ALTER TABLE nucleus.workflow_contexts RENAME instance_id TO of_instance")
    assert fault.code is FaultCode.CATALOG_COLUMN_MISSING


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("workflow_terminal_epochs ALTER entered_at TYPE timestamp", "must be timestamp with time zone"),
        ("workflow_terminal_epochs ALTER epoch TYPE numeric", "must be bigint or integer or smallint"),
        ("workflow_contexts ALTER payload TYPE text", "must be json or jsonb"),
        ("workflows ALTER retention_days TYPE interval USING NULL", "workflows.retention_days is of type interval"),
        ("tenants ALTER default_retention_days TYPE boolean USING NULL", "tenants.default_retention_days is of type"),
    ],
)
def test_a_wrong_type_is_told(module_database, statement, says):
    fault = only(
        module_database,
        "ALTER TABLE nucleus.workflows DROP CONSTRAINT workflows_retention_days_whole",
        "ALTER TABLE nucleus.tenants DROP CONSTRAINT tenants_retention_days_whole",
        f"ALTER TABLE nucleus.{statement}",
    )
    assert fault.code is FaultCode.CATALOG_COLUMN_TYPE
    assert says in fault.sentence


@pytest.mark.parametrize("source", ["payload", "data"])
def test_a_generated_copy_of_an_ephemeral_payload_is_told(module_database, source):
    """A1, F12: it would be archived in clear."""
    copy = (
        f"ALTER TABLE nucleus.workflow_contexts ADD COLUMN brief text GENERATED ALWAYS AS ({source} ->> 'note') STORED"
    )
    fault = only(module_database, copy)
    assert fault.code is FaultCode.CATALOG_EPHEMERAL_COPIED
    assert f"workflow_contexts.brief is generated from {source}" in fault.sentence
    catalog = parse(SHIPPED.replace("mirrors: [data]", "mirrors: [data, brief]", 1))
    assert other_than_installation(changed(module_database, catalog, copy)) == []


def test_a_generated_column_of_other_columns_is_no_copy(database):
    run(database, "ALTER TABLE nucleus.workflow_contexts ADD COLUMN big text GENERATED ALWAYS AS (upper(name)) STORED")
    assert other_than_installation(faults(database)) == []


def test_a_tenant_of_another_type_is_told(module_database):
    table = "nucleus.workflow_contexts"
    fault = only(
        module_database,
        *(f"DROP POLICY {policy} ON {table}" for policy in policies(module_database, table)),
        f"ALTER TABLE {table} ALTER tenant_id TYPE text",
        f"CREATE POLICY own ON {table} USING (tenant_id = (SELECT nucleus.current_tenant())::text)",
    )
    assert fault.code is FaultCode.CATALOG_COLUMN_TYPE
    assert "workflow_contexts.tenant_id is of type text, but nucleus.tenants.id of uuid" in fault.sentence


def policies(database, table):
    with database.superuser() as connection:
        query = "SELECT polname FROM pg_policy WHERE polrelid = %s::regclass"
        return [name for (name,) in connection.execute(query, [table])]


def test_a_link_between_other_types_is_told(module_database):
    fault = only(
        module_database,
        "ALTER TABLE nucleus.workflow_trigger_occurrences DROP COLUMN trigger_id",
        "ALTER TABLE nucleus.workflow_trigger_occurrences ADD trigger_id text",
    )
    assert fault.code is FaultCode.CATALOG_COLUMN_TYPE
    assert (
        "workflow_triggers.id is of type uuid, but nucleus.workflow_trigger_occurrences.trigger_id of text"
        in fault.sentence
    )


def test_a_domain_counts_as_what_it_is(database):
    run(
        database,
        "CREATE DOMAIN nucleus.moment AS timestamptz NOT NULL",
        "ALTER TABLE nucleus.workflow_terminal_epochs ALTER entered_at TYPE nucleus.moment",
    )
    assert other_than_installation(faults(database)) == []


def test_an_enumeration_knows_the_values(database):
    run(
        database,
        "CREATE TYPE nucleus.artifact_status AS ENUM ('open', 'running', 'done', 'failed')",
        "ALTER TABLE nucleus.workflow_artifact_operations DROP CONSTRAINT workflow_artifact_operations_status_check",
        """ALTER TABLE nucleus.workflow_artifact_operations
          ALTER status TYPE nucleus.artifact_status USING status::nucleus.artifact_status""",
    )
    (fault,) = other_than_installation(faults(database))
    assert fault.code is FaultCode.CATALOG_VALUE_UNKNOWN
    assert "never 'cancelled'" in fault.sentence
    assert "open, running, done, failed" in fault.sentence


def test_a_tenant_that_may_be_absent_is_a_warning(module_database):
    fault = only(module_database, "ALTER TABLE nucleus.workflow_contexts ALTER tenant_id DROP NOT NULL")
    assert (fault.code, fault.severity) == (FaultCode.CATALOG_TENANT_NULLABLE, Severity.WARNING)


def test_an_alias_that_two_tenants_could_have_is_told(module_database):
    fault = only(module_database, "ALTER TABLE nucleus.tenants DROP CONSTRAINT tenants_alias_key")
    assert fault.code is FaultCode.CATALOG_KEY_NOT_UNIQUE
    assert fault.line == line_of("alias: alias")


@pytest.mark.parametrize(
    ("key", "unique"),
    [
        ("UNIQUE INDEX ON nucleus.tenants (alias)", True),
        ("UNIQUE INDEX ON nucleus.tenants (alias) INCLUDE (created_at)", True),
        ("UNIQUE INDEX ON nucleus.tenants (alias) WHERE alias <> ''", False),
        ("UNIQUE INDEX ON nucleus.tenants (lower(alias))", False),
        ("UNIQUE INDEX ON nucleus.tenants (alias, created_at)", False),
        ("INDEX ON nucleus.tenants (alias)", False),
    ],
)
def test_what_makes_a_key_unique(database, key, unique):
    run(database, "ALTER TABLE nucleus.tenants DROP CONSTRAINT tenants_alias_key", f"CREATE {key}")
    assert (faults(database) == ()) is unique


def test_a_unique_key_that_may_be_null_is_none_unless_nulls_are_alike(database):
    alias = "ALTER TABLE nucleus.tenants ALTER alias DROP NOT NULL"
    assert only(database, alias).code is FaultCode.CATALOG_KEY_NOT_UNIQUE
    run(
        database,
        alias,
        "ALTER TABLE nucleus.tenants DROP CONSTRAINT tenants_alias_key",
        "CREATE UNIQUE INDEX ON nucleus.tenants (alias) NULLS NOT DISTINCT",
    )
    assert faults(database) == ()


def test_two_epochs_with_one_number_are_told(database):
    run(
        database,
        "ALTER TABLE nucleus.workflow_terminal_epochs DROP CONSTRAINT workflow_terminal_epochs_pkey",
        "CREATE INDEX ON nucleus.workflow_terminal_epochs (instance_id)",
    )
    found = faults(database)
    assert {fault.code for fault in found} == {FaultCode.CATALOG_KEY_NOT_UNIQUE}
    assert line_of("ordinal: epoch") in {fault.line for fault in found}


@pytest.mark.parametrize(("change", "says"), [("DISABLE", "is off"), ("NO FORCE", "is not forced")])
def test_weak_row_security_is_a_warning(module_database, change, says):
    fault = only(module_database, f"ALTER TABLE nucleus.workflow_contexts {change} ROW LEVEL SECURITY")
    assert (fault.code, fault.severity) == (FaultCode.CATALOG_ROW_SECURITY_WEAK, Severity.WARNING)
    assert says in fault.sentence


def test_row_security_that_hides_every_row_from_the_product_is_told(database):
    run(
        database,
        "CREATE ROLE application" if not has_role(database, "application") else "SELECT 1",
        "ALTER POLICY own_tenant ON nucleus.workflow_contexts TO application",
        "ALTER POLICY own_tenant ON nucleus.workflows TO application",
    )
    found = faults(database)
    assert {fault.code for fault in found} == {FaultCode.CATALOG_ROW_SECURITY_BLIND}
    assert sorted(fault.remedy.split(" USING")[0] for fault in found) == [
        "CREATE POLICY ... FOR DELETE TO retention_worker",
        "CREATE POLICY ... FOR SELECT TO retention_operator",
        "CREATE POLICY ... FOR SELECT TO retention_operator",
        "CREATE POLICY ... FOR SELECT TO retention_worker",
        "CREATE POLICY ... FOR SELECT TO retention_worker",
    ]
    run(
        database,
        "ALTER POLICY own_tenant ON nucleus.workflow_contexts TO worker, retention_operator",
        "ALTER POLICY own_tenant ON nucleus.workflows TO retention_worker, admin",
    )
    assert faults(database) == ()


def has_role(database, name):
    with database.superuser() as connection:
        return connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [name]).fetchone() is not None


def installation(database, catalog=None):
    found = faults(database, catalog)
    assert {fault.code for fault in found} == {FaultCode.CATALOG_NOT_INSTALLED}
    return [fault.sentence for fault in found]


def test_a_database_without_the_products_functions_is_told(database):
    run(database, "DROP FUNCTION retention.tenant_directory()")
    assert installation(database) == ["The product's functions over these tables are not installed."]
    migrate(database.owner_url, load())
    assert faults(database) == ()


def test_a_missing_function_is_named(database):
    with psycopg.connect(database.superuser_url, autocommit=True) as connection:
        connection.execute("DROP FUNCTION retention.references_left(text[])")
    assert installation(database) == ["Functions are missing: references_left."]


def test_another_catalog_than_the_installed_one_is_told(database):
    other = parse(SHIPPED.replace("guard: true", "guard: false", 1))
    (sentence,) = installation(database, other)
    assert "another catalog" in sentence
    migrate(database.owner_url, other)
    assert faults(database, other) == ()


def test_a_remark_in_the_catalog_needs_no_installation(database):
    assert faults(database, replace(parse(SHIPPED + "# now\n"), sweeps=load().sweeps)) == ()


@pytest.mark.parametrize(
    ("statement", "lacks"),
    [
        ("REVOKE DELETE ON nucleus.workflow_contexts FROM retention_worker", "the worker's DELETE"),
        ("DROP POLICY retention_worker_tenant ON nucleus.workflow_contexts", "the worker's policy"),
        ("ALTER TABLE nucleus.workflow_terminal_epochs DISABLE TRIGGER retention_guard", "an enabled guard"),
        ("DROP TRIGGER retention_guard ON nucleus.workflow_instances", "an enabled guard"),
    ],
)
def test_what_a_table_lost_since_the_installation_is_told(database, statement, lacks):
    run(database, statement)
    (sentence,) = installation(database)
    assert lacks in sentence
    migrate(database.owner_url, load())
    assert faults(database) == ()


def test_a_changed_table_makes_the_installation_stale_only_where_it_matters(database):
    run(database, "ALTER TABLE nucleus.workflow_contexts ADD remark text")
    assert faults(database) == ()
