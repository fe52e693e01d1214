"""A whole installation for each test: a seeded database, a home with its settings, and both fronts on top of it."""

import itertools
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import psycopg
import pytest
from click.testing import CliRunner

from retention_pipeline import clock
from retention_pipeline import settings as names
from retention_pipeline.app import App
from retention_pipeline.cli.main import cli
from retention_pipeline.definitions import defs
from retention_pipeline.defs.partitions import TENANTS
from retention_pipeline.dev.postgres import EmbeddedPostgres
from retention_pipeline.governance.approval import ApprovalRequest, Kind
from retention_pipeline.keys.local import LocalKeyring
from retention_pipeline.model.people import Job
from retention_pipeline.postgres import approvals, provision, sample
from retention_pipeline.postgres.sample import SampleTenant
from retention_pipeline.settings import Settings, write_file
from retention_pipeline_tests.conformance.conftest import admin, make_bucket
from retention_pipeline_tests.databases import Database, database, template
from retention_pipeline_tests.desks import Answer

__all__ = ["admin", "database", "make_bucket", "template"]

AURORA = SampleTenant(alias="aurora", default_retention_days=60, instances=40)
BOREALIS = SampleTenant(alias="borealis", default_retention_days=None, instances=30)
CASCADE = SampleTenant(alias="cascade", default_retention_days=180, instances=30)
TENANTS_OF_THE_SAMPLE = (AURORA, BOREALIS, CASCADE)
SEEDED = "acceptance_template"
ROOT = Path(__file__).resolve().parents[2]
_numbers = itertools.count()


@dataclass(frozen=True, slots=True, kw_only=True)
class Seed:
    """What is cloned for each test: a database, and the keyring that its tenants' keys are wrapped with."""

    server: EmbeddedPostgres
    keyring: Path


@pytest.fixture(scope="session")
def seed(pg: EmbeddedPostgres, template: str, tmp_path_factory: pytest.TempPathFactory) -> Seed:
    """Three small tenants, each with a profile below the data root that was tried for real."""
    provision.make_database(pg.superuser_url(), SEEDED, "platform_owner", template=template)
    sample.seed(pg.superuser_url(SEEDED), TENANTS_OF_THE_SAMPLE, clock.utc_now())
    home = tmp_path_factory.mktemp("seed")
    LocalKeyring.create(home / "keyring.json")
    with ExitStack() as closing:
        made = Installation(database=Database(server=pg, name=SEEDED, closing=closing), home=home)
        made.settle()
        for tenant in TENANTS_OF_THE_SAMPLE:
            made.use_folder(tenant)
    return Seed(server=pg, keyring=home / "keyring.json")


@pytest.fixture
def installation(seed: Seed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator["Installation"]:
    """A clone of the seed, with a home of its own that both fronts find by RETENTION_HOME alone."""
    name = f"a{os.getpid()}_{next(_numbers)}"
    provision.make_database(seed.server.superuser_url(), name, "platform_owner", template=SEEDED)
    home = tmp_path / "home"
    home.mkdir()
    shutil.copyfile(seed.keyring, home / "keyring.json")
    (home / "keyring.json").chmod(0o600)
    with ExitStack() as closing:
        made = Installation(database=Database(server=seed.server, name=name, closing=closing), home=home)
        made.settle()
        monkeypatch.setenv(names.HOME, str(home))
        yield made
    provision.drop_database(seed.server.superuser_url(), name)


@dataclass(kw_only=True)
class Installation:
    """One installation, and what its people do with it."""

    database: Database
    home: Path
    variables: dict[str, str] = field(default_factory=dict)
    transcript: list[tuple[str, str]] = field(default_factory=list)
    """Every call of the command line with all that it printed."""

    def settle(self) -> None:
        """Write `settings.env`, as `retention dev` does."""
        (self.home / "archives").mkdir(exist_ok=True)
        self.variables = {
            names.WORKER_URL: self.database.worker_url,
            names.OPERATOR_URL: self.database.operator_url,
            names.OWNER_URL: self.database.owner_url,
        }
        write_file(self.home, self.variables)

    def configure(self, **variables: str) -> None:
        self.variables |= variables
        write_file(self.home, self.variables)

    def app(self) -> App:
        return App(Settings.load({names.HOME: str(self.home)}))

    # -- as a person ------------------------------------------------------------------------------------------------

    def call(
        self,
        *words: str,
        tenant: SampleTenant | str | None = AURORA,
        login: str | None = None,
        as_json: bool = True,
        text: str | None = None,
        columns: int | None = None,
        **environment: str,
    ) -> Answer:
        """One call of the command line."""
        front = ["--json"] if as_json else []
        if tenant is not None:
            front += ["--tenant", tenant if isinstance(tenant, str) else tenant.alias]
        told = {names.HOME: str(self.home), **environment}
        if login:
            told[names.OPERATOR_URL] = self.database.url(login)
        if columns:
            told["COLUMNS"] = str(columns)
        result = CliRunner().invoke(cli, [*front, *words], input=text, env=told, prog_name="retention")
        self.transcript.append((" ".join(words), result.stdout + result.stderr))
        return Answer(code=result.exit_code, out=result.stdout, err=result.stderr)

    def done(self, *words: str, **how: Any) -> dict[str, Any]:
        answer = self.call(*words, **how)
        assert answer.code == 0, answer.out + answer.err
        return answer.json

    def use_folder(self, tenant: SampleTenant, prefix: str = "archives") -> dict[str, Any]:
        self.done(
            "profile", "set", "--provider", "filesystem", "--archive-retention-days", "3650",
            "--config", f"prefix={prefix}", tenant=tenant,
        )  # fmt: skip
        return self.done("profile", "readiness", tenant=tenant)

    def use_bucket(self, tenant: SampleTenant, s3: Any, bucket: str, *, secret_key: str | None = None) -> Answer:
        """A profile on the S3 server; the answer of its readiness."""
        self.done("egress", "allow", s3.endpoint, "--network", "127.0.0.1/32", "--reason", "embedded", tenant=None)
        credentials = json.dumps({"access_key": s3.access_key, "secret_key": secret_key or s3.secret_key})
        secret = self.done("secret", "put", text=credentials, tenant=tenant)["secret_id"]
        places = {"endpoint": s3.endpoint, "bucket": bucket, "region": s3.region, "prefix": f"hidden/{tenant.alias}"}
        self.done(
            "profile", "set", "--provider", "s3-compatible", "--archive-retention-days", "3650",
            "--secret-id", secret, "--config", json.dumps(places), tenant=tenant,
        )  # fmt: skip
        return self.call("profile", "readiness", tenant=tenant)

    def acknowledge(self, *tenants: SampleTenant) -> None:
        for tenant in tenants:
            self.done("reconcile", "--acknowledge", "--reason", "the numbers are right", tenant=tenant)

    def approve(self, tenant: SampleTenant, *, kind: Kind = Kind.SINGLE_USE, items: int = 10_000) -> str:
        with self.app() as app, app.operator().transaction(tenant.id) as cursor:
            request = ApprovalRequest(
                job=Job.RECONCILE,
                kind=kind,
                subject=None,
                max_items=items,
                lasts=timedelta(hours=1),
                reason="asked for",
            )
            return approvals.approve(cursor, tenant.id, request).id

    def archive(self, tenant: SampleTenant, instance: str) -> str:
        """Archive one instance explicitly; gives its archive's id."""
        self.done("archive", instance, "--apply", "--reason", "asked for", tenant=tenant)
        found = self.done("inspect", tenant=tenant)["archives"]
        return next(entry["archive"] for entry in found if entry["instance"] == instance)

    def open_gates(self, *tenants: SampleTenant) -> None:
        """Acknowledge, and prove a canary: archived, deleted, restored, compared."""
        self.acknowledge(*tenants)
        for tenant in tenants:
            archive = self.archive(tenant, self.due(tenant)[0])
            self.done("restore", archive, "--into-database", "--apply", "--reason", "canary", tenant=tenant)

    # -- what is there ----------------------------------------------------------------------------------------------

    def rows(self, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        """What a superuser sees, never what the product uses."""
        with psycopg.connect(self.database.superuser_url, autocommit=True) as connection:
            cursor = connection.execute(statement.encode(), parameters or None)
            return cursor.fetchall() if cursor.description else []

    def change(self, statement: str, *parameters: object) -> None:
        """Change rows as history would have, with triggers off."""
        with psycopg.connect(self.database.superuser_url, autocommit=True) as connection:
            connection.execute("SET session_replication_role = replica")
            connection.execute(statement.encode(), parameters or None)

    def instances(self, tenant: SampleTenant) -> set[str]:
        found = self.rows("SELECT id::text FROM nucleus.workflow_instances WHERE tenant_id = %s", tenant.id)
        return {row[0] for row in found}

    def eligible(self, tenant: SampleTenant) -> int:
        with self.app() as app:
            return app.inventory(tenant.id).eligible

    def due(self, tenant: SampleTenant) -> list[str]:
        """Instances that may go, the oldest due first."""
        with self.app() as app:
            result = app.reconcile(tenant.id, run="a look")
            return [str(candidate.instance) for _, candidate in app.records().candidates(result.eligible, 0, 1000)]

    def states(self, tenant: SampleTenant) -> dict[str, int]:
        return dict(
            self.rows("SELECT state, count(*) FROM retention.attempts WHERE tenant_id = %s GROUP BY 1", tenant.id)
        )

    def picture(self) -> str:
        """Every source row and every archived byte: the same before and after, or something changed."""
        tables = self.rows(
            "SELECT format('%I.%I', schemaname, tablename) FROM pg_tables WHERE schemaname = 'nucleus' ORDER BY 1"
        )
        rows = {
            name: self.rows(f"SELECT md5(string_agg(t::text, '|' ORDER BY t::text)) FROM {name} AS t")
            for (name,) in tables
        }
        files = sorted(str(path) for path in (self.home / "archives").rglob("*") if path.is_file())
        return json.dumps([rows, files])


# -- Dagster --------------------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class Office:
    """Runs of the job, in this process, in a Dagster instance of the test's own."""

    installation: Installation
    instance: dg.DagsterInstance

    def run(
        self,
        *tenants: SampleTenant,
        spread: tuple[SampleTenant, SampleTenant] | None = None,
        assets: tuple[str, ...] | None = None,
        **config: Any,
    ) -> dg.ExecuteInProcessResult:
        """One run: of one partition, of a range (`spread`), or of what `config` says."""
        how: dict[str, Any] = {}
        if spread is not None:
            first, last = spread
            how["tags"] = {
                "dagster/asset_partition_range_start": str(first.id),
                "dagster/asset_partition_range_end": str(last.id),
            }
        elif tenants:
            [tenant] = tenants
            how["partition_key"] = str(tenant.id)
        if assets is not None:
            how["asset_selection"] = [dg.AssetKey(name) for name in assets]
        return defs.resolve_job_def("reconcile_tenants").execute_in_process(
            instance=self.instance,
            run_config={"ops": {"instance_archive": {"config": config}}},
            raise_on_error=False,
            **how,
        )

    def marked(self, asset: str) -> set[str]:
        """Partitions that the history calls materialized."""
        return set(self.instance.get_materialized_partitions(dg.AssetKey(asset)))

    def why(self, result: dg.ExecuteInProcessResult) -> str:
        """What a person reads where the run failed."""
        [failed] = [e for e in result.all_events if e.is_step_failure]
        return str(failed.step_failure_data.user_failure_data.description)

    def log(self, result: dg.ExecuteInProcessResult) -> str:
        return "\n".join(entry.user_message for entry in self.instance.all_logs(result.run_id))


@pytest.fixture
def office(installation: Installation) -> Iterator[Office]:
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions(str(TENANTS.name), [str(t.id) for t in TENANTS_OF_THE_SAMPLE])
        yield Office(installation=installation, instance=instance)


@pytest.fixture
def dagster_home(installation: "Installation", monkeypatch: pytest.MonkeyPatch) -> Path:
    """Dagster's home with the file that ships."""
    folder = installation.home / "dagster"
    folder.mkdir()
    shutil.copyfile(ROOT / "dagster.yaml", folder / "dagster.yaml")
    monkeypatch.setenv("DAGSTER_HOME", str(folder))
    return folder


@pytest.fixture
def history_url(seed: Seed) -> Iterator[str]:
    """An empty database for Dagster alone."""
    name = f"history_{secrets.token_hex(4)}"
    superuser = seed.server.superuser_url()
    provision.make_logins(superuser, {"keeper": "another throw-away password"}, "platform_owner")
    provision.make_database(superuser, name, "keeper")
    yield seed.server.url("keeper", "another throw-away password", name)
    provision.drop_database(superuser, name)
