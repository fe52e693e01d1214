"""Who may do what: every command and every statement by every permission by the right tenant, another one, none (SPEC G3, G4).

Allowed exactly where granted, at the command line and in plain SQL under the same login. The tables below are the promise; a
command or a table that they don't name fails the test.
"""

import itertools
import json
import uuid
from dataclasses import dataclass

import click
import psycopg
import pytest

from retention_pipeline.cli.main import cli
from retention_pipeline.governance.approval import BEFOREHAND, ONE_SUBJECT
from retention_pipeline.keys.local import LocalKeyring
from retention_pipeline.model.people import Job, Permission
from retention_pipeline_tests.databases import template
from retention_pipeline_tests.desks import Desk
from retention_pipeline_tests.rows import Platform
from retention_pipeline_tests.seams import module_database

__all__ = ["module_database", "template"]

P = Permission
ANY_ID = "0b7c3c3e-0000-4000-8000-000000000000"
SECRET = '{"access_key": "AKIAEXAMPLE", "secret_key": "kept-to-ourselves"}'
DENIED = "RETENTION_PERMISSION_DENIED"

TENANTS = {
    ("archive", ANY_ID): {P.ARCHIVE},
    ("audit", "export", "--to", "{file}"): {P.READ},
    ("audit", "show"): {P.READ},
    ("audit", "verify", "--without-anchors"): {P.READ},
    ("doctor",): {P.READ},
    ("expire",): {P.ARCHIVE},
    ("grant", "add", "worker", "read"): {P.GRANT},
    ("grant", "list"): {P.GRANT},
    ("grant", "remove", "worker", "read"): {P.GRANT},
    ("hold", ANY_ID, "--reason", "r"): {P.LEGAL_HOLD},
    ("hold", ANY_ID, "--list"): {P.LEGAL_HOLD},
    ("inspect",): {P.READ},
    ("integrity",): {P.READ},
    ("inventory",): {P.READ},
    ("keys", "destroy", "--reason", "r"): {P.KEY_MANAGE},
    ("keys", "export"): {P.KEY_MANAGE},
    ("keys", "list"): {P.KEY_MANAGE},
    ("keys", "rotate", "tenant", "--reason", "r"): {P.KEY_MANAGE},
    ("profile", "readiness"): {P.PROFILE_MANAGE},
    ("profile", "set", "--provider", "filesystem", "--archive-retention-days", "0"): {P.PROFILE_MANAGE},
    ("profile", "show"): {P.READ, P.PROFILE_MANAGE},
    ("reconcile",): {P.RECONCILE},
    ("recovery", "cancel", ANY_ID, "--expected-fence", "1", "--reason", "r"): {P.RECOVERY_CANCEL},
    ("restore", ANY_ID, "--to", "{file}"): {P.RESTORE},
    ("scrub",): {P.READ},
    ("scrub", "--remove-unknown", "--reason", "r"): {P.ARCHIVE},
    ("secret", "list"): {P.PROFILE_MANAGE},
    ("secret", "put"): {P.PROFILE_MANAGE},
    ("secret", "revoke", ANY_ID, "--reason", "r"): {P.PROFILE_MANAGE},
    ("store", "detach", ANY_ID, "--reason", "r"): {P.ARCHIVE},
    ("approve", "sweep:submission_ledgers", "--reason", "r"): {P.RECONCILE},
    ("sweep", "submission_ledgers"): {P.RECONCILE},
    **{("join", act, ANY_ID, "--reason", "r"): {P.RECONCILE} for act in ("keep", "unkeep", "archive", "revive")},
    **{
        ("approve", str(job), *([ANY_ID] if job in ONE_SUBJECT else []), "--reason", "r"): {job.permission}
        for job in BEFOREHAND
    },
}
"""Commands for one tenant, and any of which permissions they ask for."""
INSTALLATION = {
    ("sweep", "submission_ledgers", "--everyone"): {P.RECONCILE},
    ("late",): {P.READ},
    ("audit", "show"): {P.READ},
    ("audit", "verify", "--without-anchors"): {P.READ},
    ("audit", "export", "--to", "{file}"): {P.READ},
    ("egress", "show"): {P.EGRESS},
    ("egress", "allow", "https://s3.example.org", "--reason", "r"): {P.EGRESS},
    ("egress", "remove", "https://s3.example.org", "--reason", "r"): {P.EGRESS},
    ("grant", "add", "worker", "read", "--everywhere"): {P.GRANT},
    ("grant", "remove", "worker", "read", "--everywhere"): {P.GRANT},
    ("keys", "prune-roots", "--reason", "r"): {P.KEY_MANAGE},
    ("keys", "rotate", "root", "--reason", "r"): {P.KEY_MANAGE},
}
"""Commands for the whole installation, which ask for a permission everywhere."""
OTHER_LOGINS = {
    "audit seal": "the worker's login on its own machine",
    "catalog check": "whichever login this machine has; PostgreSQL's own catalog is open to all",
    "demo": "a laptop's own servers",
    "dev": "a laptop's own servers",
    "doctor": "without a tenant: whichever login this machine has, and what is open to all of them",
    "keyring create": "a file of this machine; no database",
    "migrate": "the owner's login",
}
"""Commands that ask no permission of an operator, and whose login they use."""


@pytest.fixture(scope="module")
def desk(module_database, tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    (home / "archives").mkdir()
    LocalKeyring.create(home / "keyring.json")
    platform = Platform(database=module_database)
    alias = platform.value("SELECT alias FROM nucleus.tenants WHERE id = %s", platform.tenant)
    return Desk(database=module_database, home=home, platform=platform, alias=str(alias))


@pytest.fixture(scope="module")
def other(desk):
    platform = Platform(database=desk.database)
    return platform, str(platform.value("SELECT alias FROM nucleus.tenants WHERE id = %s", platform.tenant))


@dataclass
class Granting:
    """Gives the clerk one permission, for a scope, and takes it away again."""

    desk: Desk
    permission: Permission | None
    scope: str

    def __enter__(self):
        self._change("add")

    def __exit__(self, *_):
        self._change("remove")

    def _change(self, action):
        if self.permission is not None:
            self.desk.platform.run(
                "INSERT INTO retention.grant_events (tenant_id, principal, permission, action) VALUES (%s, 'clerk', %s, %s)",
                self.scope,
                self.permission,
                action,
            )


numbers = itertools.count()


def denied(desk, words, tenant):
    """Whether the clerk's call is refused for want of a permission; other refusals come after that question."""
    filled = [word.format(file=desk.home / f"file-{next(numbers)}") for word in words]
    answer = desk.call(*filled, login="clerk", tenant=tenant, text=SECRET)
    if not answer.code:
        return False
    return json.loads(answer.out)["error"]["code"] == DENIED if "error" in answer.json else False


def denials(desk):
    return desk.platform.value("SELECT count(*) FROM retention.audit_events WHERE kind = 'denied' AND actor = 'clerk'")


def leaves(command, context, path=()):
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            yield from leaves(command.get_command(context, name), context, (*path, name))
    else:
        yield " ".join(path)


def test_the_matrix_names_every_command():
    """G3: a command that nobody thought about is a hole."""
    known = {*OTHER_LOGINS}
    for words in (*TENANTS, *INSTALLATION):
        known |= {words[0], " ".join(words[:2]), " ".join(words[:3])}
    assert set(leaves(cli, click.Context(cli))) <= known


@pytest.mark.parametrize("permission", [*Permission, None], ids=str)
def test_a_permission_for_one_tenant_allows_its_own_commands_there_and_nothing_else(desk, other, permission):
    """G3: at the right tenant, at another one, and where no tenant is named."""
    before = denials(desk)
    expected = 0
    with Granting(desk, permission, desk.platform.tenant):
        for words, wanted in TENANTS.items():
            # EGRESS is nobody's for one tenant; a row that grants it there, as here, still gives nothing.
            assert denied(desk, words, "") == (permission not in wanted), words
            assert denied(desk, words, other[1]), words
            expected += 1 + (permission not in wanted)
        for words in INSTALLATION:
            assert denied(desk, words, None), words
            expected += 1
    assert denials(desk) - before == expected  # each in a transaction of its own: the refused one left nothing else


@pytest.mark.parametrize("permission", Permission, ids=str)
def test_a_permission_everywhere_allows_its_own_commands_everywhere(desk, other, permission):
    """G3."""
    with Granting(desk, permission, "*"):
        for words in (words for words, wanted in TENANTS.items() if permission in wanted):
            assert not denied(desk, words, other[1]), words
        for words, wanted in INSTALLATION.items():
            assert denied(desk, words, None) == (permission not in wanted), words


@pytest.mark.parametrize(
    "words",
    [words for words in TENANTS if words not in INSTALLATION and words[0] not in OTHER_LOGINS],
    ids=lambda w: "-".join(w[:2]),
)
def test_without_a_tenant_a_tenants_command_is_no_command(desk, words):
    """F17: a selector is never guessed; not even for who may do everything."""
    answer = desk.call(*[word.format(file=desk.home / "f") for word in words], tenant=None, text=SECRET)
    assert (answer.code, answer.error) == (2, "RETENTION_USAGE")


# -- plain SQL under the same login -----------------------------------------------------------------------------------

APPROVE = (
    "INSERT INTO retention.approvals (tenant_id, job, subject, kind, max_items, expires_at, reason)"
    " VALUES (%(tenant)s, '{job}', {subject}, 'single_use', 1, now() + interval '1 h', 'r')"
)
INSERTS = {
    "INSERT INTO retention.hold_events (tenant_id, instance_id, matter, action, reason, correlation)"
    " VALUES (%(tenant)s, %(instance)s, 'm', 'hold', 'r', 'c')": {P.LEGAL_HOLD},
    "INSERT INTO retention.grant_events (tenant_id, principal, permission, action)"
    " VALUES (%(tenant)s, 'worker', 'workflow_retention:read', 'add')": {P.GRANT},
    "INSERT INTO retention.acknowledgements (tenant_id, preflight_id, reason) VALUES (%(tenant)s, %(preflight)s, 'r')": {
        P.RECONCILE
    },
    "INSERT INTO retention.expiry_acknowledgements (tenant_id, archives, due, reason) VALUES (%(tenant)s, 0, 0, 'r')": {
        P.ARCHIVE
    },
    "INSERT INTO retention.profiles (tenant_id, generation, provider, configuration, archive_retention_days)"
    " SELECT %(tenant)s, coalesce(max(generation), 0) + 1, 'filesystem', '{{}}', 0 FROM retention.profiles"
    " WHERE tenant_id = %(tenant)s": {P.PROFILE_MANAGE},
    "INSERT INTO retention.secrets (tenant_id, id, key_id, ciphertext) VALUES (%(tenant)s, gen_random_uuid(), 'k', '')": {
        P.PROFILE_MANAGE
    },
    "INSERT INTO retention.secret_revocations (tenant_id, id, reason) VALUES (%(tenant)s, gen_random_uuid(), 'r')": {
        P.PROFILE_MANAGE
    },
    **{APPROVE.format(job=job, subject="'s'" if job in ONE_SUBJECT else "NULL"): {job.permission} for job in Job},
}
READ_BY = {
    "retention.secrets": {P.PROFILE_MANAGE},
    "retention.tenant_keys": {P.PROFILE_MANAGE},
    "retention.profiles": {P.PROFILE_MANAGE},
    "retention.secret_revocations": {P.READ, P.PROFILE_MANAGE},
    "retention.hold_events": {P.READ, P.LEGAL_HOLD},
    "retention.grant_events": {P.READ, P.GRANT},
    "retention.approvals": {P.READ},
    "retention.audit_events": {P.READ},
    "nucleus.workflow_instances": {P.READ},
    "nucleus.workflow_contexts": {P.READ},
}
"""Tables with rows of both tenants, and whoever may see those of their own."""


@pytest.fixture(scope="module")
def filled(desk, other):
    """Rows of both tenants in each table of `READ_BY`."""
    kept = {}
    for platform in (desk.platform, other[0]):
        instance = platform.add()
        preflight = platform.value(
            "INSERT INTO retention.preflights (tenant_id, as_of, run, total, eligible, due, blocked_due, missing_epochs,"
            " dispositions) VALUES (%s, now(), 'r', 0, 0, 0, 0, 0, '{}') RETURNING id",
            platform.tenant,
        )
        kept[platform.tenant] = {"preflight": preflight, "instance": instance}
        values = {"tenant": platform.tenant, **kept[platform.tenant]}
        for statement in INSERTS:
            platform.connection.execute(statement.replace("{{}}", "{}"), values)
        event = "INSERT INTO retention.audit_events (tenant_id, actor, kind, outcome) VALUES (%s, 'a', 'k', 'done')"
        platform.run(event, platform.tenant)
        platform.run(
            "INSERT INTO retention.tenant_keys VALUES (%s, 1, %s, 'r', '') ON CONFLICT DO NOTHING",
            platform.tenant,
            str(uuid.uuid4()),
        )
    return kept


def clerk(desk, tenant):
    connection = psycopg.connect(desk.database.url("clerk"), autocommit=True)
    for setting in ("nucleus.tenant_id", "retention.tenant_id"):
        connection.execute("SELECT set_config(%s, %s, false)", [setting, tenant])
    return connection


@pytest.mark.parametrize("permission", [*Permission, None], ids=str)
def test_plain_sql_does_no_more_than_the_permission(desk, other, filled, permission):
    """G3, G4: what the database refuses here is in its own log."""
    with Granting(desk, permission, desk.platform.tenant):
        for tenant in (desk.platform.tenant, other[0].tenant):
            with clerk(desk, tenant) as connection:
                for statement, wanted in INSERTS.items():
                    values = {"tenant": tenant, **filled[tenant]}
                    allowed = tenant == desk.platform.tenant and permission in wanted
                    assert inserts(connection, statement.replace("{{}}", "{}"), values) == allowed, statement
                for table, wanted in READ_BY.items():
                    sees = connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] > 0
                    assert sees == (tenant == desk.platform.tenant and permission in wanted), table


def inserts(connection, statement, values):
    try:
        connection.execute(statement, values)
    except psycopg.Error as refusal:
        if refusal.sqlstate not in {"42501", "RT042"}:  # no privilege, no policy; or no such instance of the tenant's
            raise
        return False
    return True


def test_under_one_tenants_name_no_row_of_another_is_written(desk, other, filled):
    """G3: whoever has every permission for one tenant."""
    for permission in Permission:
        Granting(desk, permission, desk.platform.tenant).__enter__()
    try:
        with clerk(desk, desk.platform.tenant) as connection:
            for statement in INSERTS:
                values = {"tenant": other[0].tenant, **filled[other[0].tenant]}
                assert not inserts(connection, statement.replace("{{}}", "{}"), values), statement
    finally:
        for permission in Permission:
            Granting(desk, permission, desk.platform.tenant).__exit__()


def test_an_operator_changes_and_deletes_nothing_and_adds_to_the_named_tables_alone(desk):
    """G3: privileges, whatever the permissions."""
    found = desk.platform.connection.execute(
        "SELECT p.kind, c.oid::regclass::text FROM pg_class AS c, unnest(ARRAY['INSERT', 'UPDATE', 'DELETE', 'TRUNCATE']) AS p (kind)"
        " WHERE c.relnamespace IN ('retention'::regnamespace, 'nucleus'::regnamespace) AND c.relkind IN ('r', 'v', 'p')"
        " AND (has_table_privilege('clerk', c.oid, p.kind)"
        " OR p.kind IN ('INSERT', 'UPDATE') AND has_any_column_privilege('clerk', c.oid, p.kind))"
    ).fetchall()
    named = {statement.split()[2] for statement in INSERTS} | {"retention.setting_events", "retention.tenant_keys"}
    assert set(found) == {("INSERT", table) for table in named}


def test_an_operator_calls_the_named_functions_alone(desk):
    """G3: each of the others belongs to the worker, or to nobody."""
    found = desk.platform.connection.execute(
        "SELECT p.proname FROM pg_proc AS p WHERE p.pronamespace = 'retention'::regnamespace"
        " AND p.prorettype <> 'trigger'::regtype AND has_function_privilege('clerk', p.oid, 'EXECUTE')"
    ).fetchall()
    assert {row[0] for row in found} == CALLABLE


CALLABLE = {
    "add_key",  # this and the other functions of keys: for whoever may manage keys, here or (roots) everywhere
    "allow_root_rotation",
    "begin_key_destruction",
    "finish_key_destruction",
    "key_stakes",
    "key_usage",
    "note_roots",
    "roots_in_use",
    "tenants_under_other_roots",
    "tenant_keys_lock",
    "approval_permission",  # a name for a name
    "archive_lock",  # a number of two names
    "audit_denial",  # records a denial of the caller, and nothing else
    "bootstrapped",  # whether anybody has a permission yet
    "current_tenant",
    "data_store",  # for whoever may archive
    "dead_letter",  # for whoever may cancel a recovery
    "foreign_rows",  # for whoever may read
    "instance_lock",
    "join_request",  # for whoever may reconcile
    "live_payload_of",  # bound by the tables' own row-level security
    "payload_expiry",  # a part of a value
    "object_lock_lock",
    "permitted",  # of the caller
    "permitted_everywhere",
    "profile_status",  # for whoever may read or manage profiles
    "resolve_instance",  # for whoever may read, hold or archive
    "resolve_tenant",  # an alias
}


@pytest.mark.parametrize("job", Job, ids=str)
def test_an_approval_of_one_job_serves_no_other(desk, job):
    """G4: every job by every other one."""
    tenant = desk.platform.tenant
    desk.platform.run(
        "INSERT INTO retention.grant_events (tenant_id, principal, permission, action)"
        " SELECT '*', 'postgres', retention.approval_permission(%s), 'add'",
        job,
    )
    approval = desk.platform.value(
        "INSERT INTO retention.approvals (tenant_id, job, subject, kind, max_items, expires_at, reason)"
        " VALUES (%s, %s, %s, 'single_use', 1, now() + interval '1 h', 'r') RETURNING id",
        tenant,
        job,
        "s" if job in ONE_SUBJECT else None,
    )
    with psycopg.connect(desk.database.worker_url, autocommit=True) as worker:
        worker.execute("SELECT set_config('retention.tenant_id', %s, false)", [tenant])
        worker.execute(
            "INSERT INTO retention.approval_uses (approval_id, run, tenant_id, single_use) VALUES (%s, 'r', %s, true)",
            [approval, tenant],
        )
        for wanted in Job:
            good = worker.execute(
                "SELECT retention.approved(%s, %s, 'r', %s, 's')", [tenant, approval, wanted]
            ).fetchone()[0]
            assert good == (wanted is job), wanted
