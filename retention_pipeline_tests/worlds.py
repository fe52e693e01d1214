"""The steps, wired to a real database and to a store of the test's choice."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

import pytest

from retention_pipeline.catalog.loader import load
from retention_pipeline.keys.local import LocalKeyring
from retention_pipeline.model.ids import InstanceId, TenantId
from retention_pipeline.model.ports import ObjectStore
from retention_pipeline.postgres.records import PostgresRecords
from retention_pipeline.postgres.restore import PostgresRestorer
from retention_pipeline.postgres.session import Limits as SessionLimits
from retention_pipeline.postgres.session import Session
from retention_pipeline.postgres.source import PostgresSource
from retention_pipeline.postgres.tenant_keys import TenantKeys
from retention_pipeline.stages.eligibility import Brake
from retention_pipeline.stages.explicit import ExplicitArchive, ExplicitResult
from retention_pipeline.stages.reconcile import Bounds, Reconciliation, RunResult
from retention_pipeline.stages.world import EVERY_STEP, Step, World
from retention_pipeline_tests.databases import Database
from retention_pipeline_tests.fakes import MemoryStore
from retention_pipeline_tests.rows import AS_OF, Platform

NOW = datetime.fromisoformat(AS_OF)

BRAKE = Brake(instances=100, share=0.10, blocked_share=0.05)
"""The shipped catalog's."""


@dataclass(slots=True, kw_only=True)
class Bench:
    """One database, one store, and everything between them."""

    database: Database
    keyring: Path
    store: ObjectStore = field(default_factory=MemoryStore)
    closing: ExitStack
    statement_ms: int = 60_000
    runs: int = 0
    world: World = field(init=False)
    restorer: PostgresRestorer = field(init=False)
    keys: TenantKeys = field(init=False)

    def __post_init__(self) -> None:
        if not self.keyring.exists():
            LocalKeyring.create(self.keyring)
        catalog = load()
        self.keys = TenantKeys(session=self.session(), provider=LocalKeyring(self.keyring))
        self.world = World(
            source=PostgresSource(session=self.session(), catalog=catalog),
            records=PostgresRecords(session=self.session(), catalog=catalog),
            keys=self.keys,
            stores=lambda _tenant, _generation: self.store,
            brake=BRAKE,
        )
        self.restorer = PostgresRestorer(session=self.session(), catalog=catalog)

    def session(self) -> Session:
        session = Session(
            url=self.database.worker_url,
            source_setting="nucleus.tenant_id",
            limits=SessionLimits(statement=self.statement_ms),
        )
        self.closing.callback(session.close)
        return session

    def platform(self, *, days: int = 30, ready: bool = True, acknowledged: bool = True, **more: object) -> Platform:
        """A tenant with a ready profile and an acknowledged preflight of generous numbers."""
        platform = Platform(database=self.database, default_days=days, **more)
        platform.run(
            "INSERT INTO retention.profiles (tenant_id, generation, provider, configuration, archive_retention_days)"
            " VALUES (%s, 1, 'filesystem', '{\"prefix\": \"p\"}', 365)",
            platform.tenant,
        )
        if ready:
            platform.run(
                "INSERT INTO retention.readiness_events (tenant_id, profile_generation, ready, codes) VALUES (%s, 1, true, '{}')",
                platform.tenant,
            )
        if acknowledged:
            self.acknowledge(platform, eligible=100_000, blocked=100_000, missing=100_000)
        return platform

    def acknowledge(self, platform: Platform, *, eligible: int, blocked: int, missing: int) -> None:
        platform.run(
            "WITH p AS (INSERT INTO retention.preflights (tenant_id, as_of, run, total, eligible, due, blocked_due,"
            " missing_epochs, dispositions) VALUES (%s, now(), 'r', %s, %s, %s, %s, %s, '{}') RETURNING id)"
            " INSERT INTO retention.acknowledgements (tenant_id, preflight_id, reason) SELECT %s, id, 'test' FROM p",
            platform.tenant,
            eligible,
            eligible,
            eligible,
            blocked,
            missing,
            platform.tenant,
        )

    def approve(
        self,
        platform: Platform,
        *,
        job: str = "reconcile",
        subject: str | None = None,
        kind: str = "single_use",
        items: int = 10_000,
    ) -> str:
        platform.run(
            "INSERT INTO retention.grant_events (tenant_id, principal, permission, action)"
            " VALUES ('*', 'postgres', retention.approval_permission(%s), 'add')",
            job,
        )
        return str(
            platform.value(
                "INSERT INTO retention.approvals (tenant_id, job, subject, kind, max_items, expires_at, reason)"
                " VALUES (%s, %s, %s, %s, %s, now() + interval '1 day', 'test') RETURNING id",
                platform.tenant,
                job,
                subject,
                kind,
                items,
            )
        )

    def reconcile(
        self,
        platform: Platform,
        *,
        apply: bool = True,
        approval: str | None = None,
        steps: frozenset[Step] = EVERY_STEP,
        bounds: Bounds = Bounds(),  # noqa: B008
        world: World | None = None,
        as_of: datetime | None = NOW,
    ) -> RunResult:
        self.runs += 1
        if apply and approval is None:
            approval = self.approve(platform)
        return Reconciliation(
            world=world or self.world,
            tenant=platform.tenant,
            run=f"run-{self.runs}",
            apply=apply,
            approval=approval,
            steps=steps,
            bounds=bounds,
            as_of=as_of,
        )()

    def explicit(
        self, platform: Platform, instance: InstanceId, *, apply: bool = True, world: World | None = None
    ) -> ExplicitResult:
        self.runs += 1
        approval = self.approve(platform, job="archive", subject=instance) if apply else None
        return ExplicitArchive(
            world=world or self.world,
            tenant=platform.tenant,
            instance=instance,
            run=f"run-{self.runs}",
            apply=apply,
            approval=approval,
            as_of=NOW,
        )()

    def with_store(self, store: ObjectStore) -> World:
        return replace(self.world, stores=lambda _tenant, _generation: store)

    # -- what a test looks at --------------------------------------------------------------------------------------

    def states(self, platform: Platform) -> dict[str, int]:
        found = platform.connection.execute(
            "SELECT state, count(*) FROM retention.attempts WHERE tenant_id = %s GROUP BY 1", [platform.tenant]
        ).fetchall()
        return dict(found)

    def forget_back_offs(self, platform: Platform) -> None:
        platform.run("UPDATE retention.set_asides SET not_before = '-infinity' WHERE tenant_id = %s", platform.tenant)

    def end_leases(self, platform: Platform) -> None:
        """As time would, after a process was killed."""
        platform.run("UPDATE retention.attempts SET leased_until = '-infinity' WHERE tenant_id = %s", platform.tenant)
        platform.run("UPDATE retention.leases SET expires_at = '-infinity' WHERE tenant_id = %s", platform.tenant)

    def rows(self, platform: Platform, instance: str) -> str:
        """Everything of one instance, as text: byte-identical or not."""
        parts = []
        for table, where in TABLES.items():
            found = platform.connection.execute(
                f"SELECT coalesce(json_agg(t ORDER BY t::text), '[]')::text FROM nucleus.{table} AS t WHERE {where}",
                {"id": instance},
            ).fetchone()
            parts.append(f"{table}: {found[0]}")
        return "\n".join(parts)

    def audit_kinds(self, platform: Platform, instance: str) -> list[str]:
        found = platform.connection.execute(
            "SELECT kind || coalesce(' ' || code, '') FROM retention.audit_events WHERE tenant_id = %s AND subject = %s ORDER BY id",
            [platform.tenant, instance],
        ).fetchall()
        return [row[0] for row in found]


_OWN = "instance_id = %(id)s::uuid"
TABLES = {
    "workflow_instances": "id = %(id)s::uuid",
    "workflow_terminal_epochs": _OWN,
    "workflow_contexts": _OWN,
    "workflow_transitions": _OWN,
    "workflow_transition_requests": _OWN,
    "workflow_executions": _OWN,
    "workflow_action_checkpoints": f"execution_id IN (SELECT id FROM nucleus.workflow_executions WHERE {_OWN})",
    "workflow_dead_letters": _OWN,
    "workflow_occurrence_targets": _OWN,
    "workflow_trigger_deliveries": f"target_id IN (SELECT id FROM nucleus.workflow_occurrence_targets WHERE {_OWN})",
    "workflow_artifact_operations": _OWN,
    "workflow_store_bindings": _OWN,
    "workflow_central_instances": _OWN,
    "workflow_central_tasks": _OWN,
}


@pytest.fixture
def bench(database: Database, tmp_path: Path) -> Iterator[Bench]:
    with ExitStack() as closing:
        yield Bench(database=database, keyring=tmp_path / "keyring.json", closing=closing)


def parse(body: bytes) -> dict:
    return json.loads(body)


__all__ = ["NOW", "Bench", "InstanceId", "TenantId", "bench", "parse"]
