"""Tenants with archives and keys, at a desk of the test's own: one database and one keyring for a module."""

import itertools
import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta

import pytest

from retention_pipeline.app import App
from retention_pipeline.governance.approval import ApprovalRequest, Kind
from retention_pipeline.keys.local import LocalKeyring
from retention_pipeline.model.ids import TenantId
from retention_pipeline.model.outcome import Outcome
from retention_pipeline.model.people import Job
from retention_pipeline.model.ports import ObjectStore
from retention_pipeline.model.tenant_keys import KEY_COPIES
from retention_pipeline.postgres import approvals
from retention_pipeline.settings import Settings
from retention_pipeline.stages.reconcile import RunResult
from retention_pipeline_tests.desks import Answer, Desk
from retention_pipeline_tests.rows import Platform

SECRET = '{"access_key": "AKIAEXAMPLE", "secret_key": "kept-to-ourselves"}'
_numbers = itertools.count()


@dataclass(kw_only=True, eq=False)
class Room:
    """One tenant, whose archives lie in a folder."""

    desk: Desk
    platform: Platform
    alias: str
    archives: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def tenant(self) -> TenantId:
        return self.platform.tenant

    def call(self, *words: str, **how: object) -> Answer:
        return self.desk.call(*words, tenant=self.alias, **{**self.environment, **how})

    def done(self, *words: str, **how: object) -> dict:
        return self.desk.done(*words, tenant=self.alias, **{**self.environment, **how})

    def archive(self, instances: int = 1) -> list[str]:
        """Archive new instances; gives their archives."""
        made = [self.platform.add(contexts=1) for _ in range(instances)]
        assert self.run().report.outcome is Outcome.COMPLETED
        found = [
            str(self.platform.value("SELECT id FROM retention.attempts WHERE instance_id = %s", one)) for one in made
        ]
        self.archives += found
        return found

    def run(self) -> RunResult:
        """An acknowledged and approved run, in a process of its own."""
        with self.app() as app:
            app.reconcile(self.tenant, run="preflight")
            with app.operator().transaction(self.tenant) as cursor:
                approvals.acknowledge(cursor, self.tenant, "looked at")
                request = ApprovalRequest(
                    job=Job.RECONCILE,
                    kind=Kind.SINGLE_USE,
                    subject=None,
                    max_items=100,
                    lasts=timedelta(hours=1),
                    reason="test",
                )
                approval = approvals.approve(cursor, self.tenant, request).id
            return app.reconcile(self.tenant, run=f"run-{next(_numbers)}", apply=True, approval=approval)

    @contextmanager
    def app(self) -> Iterator[App]:
        """A process that has nothing in memory."""
        with App(Settings.load({**self.desk.environment("admin"), **self.environment})) as app:
            yield app

    def read(self, app: App, archive: str) -> str:
        return app.open_archive(self.tenant, archive)[1].instance

    def code(self, archive: str) -> str | None:
        """Why a fresh process can't read an archive; None where it can."""
        answer = self.call("restore", archive, "--to", str(self.desk.home / f"restored-{next(_numbers)}"))
        return answer.error if answer.code else None

    @contextmanager
    def store(self) -> Iterator[ObjectStore]:
        with self.app() as app, closing(app.store(self.tenant, 1)) as store:
            yield store

    def copies(self) -> list[dict]:
        """The objects beside the archives, as the store has them, by generation."""
        found = []
        with self.store() as store:
            for entry in store.walk(KEY_COPIES):
                with store.read(entry.key, entry.version) as stream:
                    found.append(json.loads(stream.read(10_000)))
        return sorted(found, key=lambda document: document["generation"])

    def wrapped(self) -> list[tuple]:
        """Generation, root, wrapped key and revision, as the database has them."""
        return self.platform.connection.execute(
            "SELECT generation, root_key_id, ciphertext, revision FROM retention.tenant_keys WHERE tenant_id = %s ORDER BY 1",
            [self.tenant],
        ).fetchall()


def open_room(desk: Desk, **environment: str) -> Room:
    """A new tenant with a proven store."""
    platform = Platform(database=desk.database)
    alias = str(platform.value("SELECT alias FROM nucleus.tenants WHERE id = %s", platform.tenant))
    room = Room(desk=desk, platform=platform, alias=alias, environment=environment)
    room.done("profile", "set", "--provider", "filesystem", "--archive-retention-days", "365")
    room.done("profile", "readiness")
    return room


@pytest.fixture(scope="module")
def keydesk(module_database, tmp_path_factory) -> Desk:
    home = tmp_path_factory.mktemp("home")
    (home / "archives").mkdir()
    LocalKeyring.create(home / "keyring.json")
    platform = Platform(database=module_database)
    return Desk(database=module_database, home=home, platform=platform, alias="")


@pytest.fixture
def room(keydesk) -> Room:
    return open_room(keydesk)


__all__ = ["Room", "keydesk", "open_room", "room"]
