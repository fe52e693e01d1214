"""One tenant's audit record, who writes it, and who bends it."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import pytest

from retention_pipeline import audit
from retention_pipeline.app import App
from retention_pipeline.audit import Verified
from retention_pipeline.keys.local import LocalKeyring
from retention_pipeline.postgres.audit import PostgresAudit
from retention_pipeline.settings import Settings
from retention_pipeline.stages.audit_sealing import SealingBounds, SealingReport
from retention_pipeline_tests.databases import Database
from retention_pipeline_tests.rows import Platform

WRITE = (
    "INSERT INTO retention.audit_events (tenant_id, actor, kind, subject, outcome, code, reason, correlation, run, details)"
    " SELECT current_setting('retention.tenant_id'), 'somebody', 'instance.deleted', 's' || n, 'done', 'c', 'r', 'cc', 'run',"
    " jsonb_build_object('n', n) FROM generate_series(1, %s) AS n RETURNING id"
)


@dataclass(kw_only=True)
class Ledger:
    """An app, and a tenant whose events it seals."""

    database: Database
    home: Path
    app: App = field(init=False)
    platform: Platform = field(init=False)
    one_block = SealingBounds(blocks=1)

    def __post_init__(self) -> None:
        self.home.mkdir(exist_ok=True)
        if not (self.home / "keyring.json").exists():
            LocalKeyring.create(self.home / "keyring.json")
        (self.home / "archives").mkdir(exist_ok=True, mode=0o700)
        self.app = self.machine(self.home)
        self.platform = Platform(database=self.database)

    def machine(self, home: Path) -> App:
        """An app of another machine, or of another process."""
        app = App(
            Settings(
                home=home,
                worker_url=self.database.worker_url,
                operator_url=self.database.operator_url,
                keyring=self.home / "keyring.json",
                data_root=self.home / "archives",
            )
        )
        self.database.closing.callback(app.close)
        return app

    @property
    def tenant(self):
        return self.platform.tenant

    # -- what happens ----------------------------------------------------------------------------------------------------

    def writer(self) -> psycopg.Connection:
        """As the worker writes; a transaction is open until somebody ends it."""
        connection = self.database.closing.enter_context(psycopg.connect(self.database.worker_url))
        connection.execute("SELECT set_config('retention.tenant_id', %s, false)", [self.tenant])
        connection.commit()
        return connection

    def write(self, events: int = 1) -> list[int]:
        with self.writer() as connection:
            return [row[0] for row in connection.execute(WRITE, [events]).fetchall()]

    def seal(self, **how) -> SealingReport:
        return audit.seal(self.app, self.tenant, **how)

    def sealed(self, *sizes: int) -> list[list[int]]:
        """Blocks of these sizes; gives their events."""
        blocks = []
        for size in sizes:
            blocks.append(self.write(size))
            report = self.seal()
            told = (report.events, dict(report.failures))
            assert told == (size, {}), f"{told}"
        return blocks

    def verify(self, **how) -> Verified:
        return audit.verify_chain(self.app, self.tenant, **how)

    def log(self):
        """The chain, as the product reads it."""
        return PostgresAudit(session=self.app.worker()).log(self.tenant)

    def found(self, **how) -> list[tuple]:
        """Findings as (code without its beginning, block, event)."""
        return sorted(
            ((f.code.removeprefix("RETENTION_AUDIT_"), f.block, f.event) for f in self.verify(**how).result.findings),
            key=str,
        )

    # -- what a tamperer does: a superuser, with triggers off ------------------------------------------------------------

    def bend(self, statement: str, *parameters: object) -> None:
        self.platform.run(statement, *parameters)

    def ready_store(self) -> None:
        """A proven store below the data root."""
        self.bend(
            "INSERT INTO retention.profiles (tenant_id, generation, provider, configuration, archive_retention_days)"
            " VALUES (%s, 1, 'filesystem', '{\"prefix\": \"p\"}', 365)",
            self.tenant,
        )
        self.bend(
            "INSERT INTO retention.readiness_events (tenant_id, profile_generation, ready, codes) VALUES (%s, 1, true, '{}')",
            self.tenant,
        )

    @property
    def anchors(self) -> Path:
        return self.home / "archives" / self.tenant / "p" / "audit"


@pytest.fixture
def ledger(module_database: Database, tmp_path: Path) -> Iterator[Ledger]:
    with ExitStack() as closing:
        database = Database(server=module_database.server, name=module_database.name, closing=closing)
        yield Ledger(database=database, home=tmp_path / "home")
