"""Sweeps over a real database: one run as the product makes it, with an approval of its own."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest

from retention_pipeline.catalog.loader import load
from retention_pipeline.catalog.sweep_model import ClearDataset, ShelveDataset, SweepDataset
from retention_pipeline.model.sweep import Sweeper
from retention_pipeline.model.work import Records
from retention_pipeline.postgres.clear import PostgresClear
from retention_pipeline.postgres.purge import PostgresPurge
from retention_pipeline.postgres.records import PostgresRecords
from retention_pipeline.postgres.session import Session
from retention_pipeline.postgres.shelve import PostgresShelve
from retention_pipeline.postgres.source import PostgresSource
from retention_pipeline.sweeps.loop import Sweep, SweepBounds, SweepResult
from retention_pipeline_tests.rows import Platform, new_id
from retention_pipeline_tests.seams import module_database, shared
from retention_pipeline_tests.worlds import NOW, Bench

__all__ = ["NOW", "Broom", "broom", "module_database", "shared"]


@dataclass(slots=True, kw_only=True)
class Broom:
    """One database, and every sweep of the shipped catalog."""

    bench: Bench
    _sessions: list[Session] = field(default_factory=list)
    _platforms: list[Platform] = field(default_factory=list)

    def platform(self, **more: Any) -> Platform:
        made = Platform(database=self.bench.database, **more)
        self._platforms.append(made)
        return made

    def session(self) -> Session:
        """A session of the worker's, until the test ends."""
        made = Session(url=self.bench.database.worker_url, source_setting="nucleus.tenant_id")
        self._sessions.append(made)
        return made

    def close(self) -> None:
        for session in self._sessions:
            session.close()
        for platform in self._platforms:
            platform.connection.close()

    def approve(self, platform: Platform, dataset: str, *, items: int = 50_000, kind: str = "single_use") -> str:
        return self.bench.approve(platform, job=f"sweep:{dataset}", items=items, kind=kind)

    def without_lease(self) -> Records:
        """Records through a session of their own, that let several workers in: what the lease prevents must be harmless too."""
        records = PostgresRecords(session=self.session(), catalog=load())
        return cast(
            "Records",
            SimpleNamespace(
                **{name: getattr(records, name) for name in ("use_approval", "previous_backlog", "finish")},
                take_lease=lambda *_: 1,
                keep_lease=lambda *_: None,
                drop_lease=lambda *_: None,
            ),
        )

    def sweeper(self, dataset: str | SweepDataset, session: Session | None = None) -> Sweeper:
        """The verb over a sweep of the shipped catalog, or over a dataset of the test's own."""
        rules = load().sweep(dataset).dataset if isinstance(dataset, str) else dataset
        session = session or self.session()
        if isinstance(rules, ClearDataset):
            return PostgresClear(session=session, dataset=rules)
        if isinstance(rules, ShelveDataset):
            return PostgresShelve(session=session, dataset=rules)
        return PostgresPurge(session=session, dataset=rules, catalog=load())

    def sweep(
        self,
        platform: Platform,
        dataset: str,
        *,
        apply: bool = True,
        approval: str | None = None,
        as_of: datetime | None = NOW,
        sweeper: Sweeper | None = None,
        lease: bool = True,
        **bounds: Any,
    ) -> SweepResult:
        """One pass; `bounds` are narrower ones than the catalog's."""
        self.bench.runs += 1
        if apply and approval is None:
            approval = self.approve(platform, dataset)
        rules = load().sweep(dataset).dataset
        return Sweep(
            source=self.bench.world.source if lease else PostgresSource(session=self.session(), catalog=load()),
            records=self.bench.world.records if lease else self.without_lease(),
            sweeper=sweeper or self.sweeper(dataset),
            dataset=dataset,
            tenant=platform.tenant,
            run=f"run-{self.bench.runs}",
            bounds=replace(SweepBounds(batch=rules.batch, batches=rules.batches), **bounds),
            apply=apply,
            approval=approval,
            as_of=as_of,
        )()


@pytest.fixture
def broom(shared: Bench) -> Iterator[Broom]:
    made = Broom(bench=shared)
    yield made
    made.close()


def ledger_row(platform: Platform, table: str, created_at: str) -> str:
    """A row of `nucleus.<table>`."""
    key = new_id()
    columns = "tenant_id, idempotency_key, created_at" + (", id" if table.startswith("crm") else "")
    marks = "%s, %s, %s" + (", %s" if table.startswith("crm") else "")
    values = [platform.tenant, key, created_at] + ([new_id()] if table.startswith("crm") else [])
    platform.run(f"INSERT INTO nucleus.{table} ({columns}) VALUES ({marks})", *values)
    return key
