"""Archives whose period is nearly over, and runs that end them."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from retention_pipeline.model.ids import InstanceId
from retention_pipeline.model.outcome import Outcome
from retention_pipeline.postgres.expiry import PostgresExpiries
from retention_pipeline.stages.expiry import Expiry, ExpiryResult
from retention_pipeline_tests.rows import Platform
from retention_pipeline_tests.worlds import Bench

AT = datetime.fromisoformat("2026-05-01T12:00:00.345001+00:00")
"""The instant of the runs; the database's own clock is later, as it must be for a run that applies."""


@dataclass(kw_only=True)
class Vault:
    """One tenant's archives."""

    bench: Bench
    platform: Platform
    instances: list[InstanceId] = field(default_factory=list)
    expiries: PostgresExpiries = field(init=False)
    runs: int = 0

    def __post_init__(self) -> None:
        self.expiries = PostgresExpiries(session=self.bench.session())

    def archive(self, number: int = 1, *, over_by: timedelta = timedelta(0)) -> list[str]:
        """Archive new instances, whose archives' period was over that long ago at `AT`; gives the archives."""
        made = [self.platform.add(contexts=1) for _ in range(number)]
        assert self.bench.reconcile(self.platform).report.outcome is Outcome.COMPLETED
        self.instances += made
        archives = [self.of(instance) for instance in made]
        for archive in archives:
            self.over(archive, by=over_by)
        return archives

    def of(self, instance: str) -> str:
        return str(
            self.platform.value(
                "SELECT id FROM retention.attempts WHERE instance_id = %s ORDER BY intended_at DESC LIMIT 1", instance
            )
        )

    def over(self, archive: str, *, by: timedelta) -> None:
        """As if the source had gone so long ago."""
        self.platform.run(
            "UPDATE retention.attempts SET source_deleted_at = %s::timestamptz - make_interval(hours => 24 * 365)"
            " WHERE id = %s AND state = 'source_deleted'",
            AT - by,
            archive,
        )

    def expire(self, *, apply: bool = True, **how: object) -> ExpiryResult:
        self.runs += 1
        approval = how.pop("approval", None) or (self.bench.approve(self.platform, job="expire") if apply else None)
        return Expiry(
            world=how.pop("world", self.bench.world),
            archives=how.pop("archives", self.expiries),
            tenant=self.platform.tenant,
            run=f"expiry-{self.runs}",
            apply=apply,
            approval=approval,
            as_of=how.pop("as_of", AT),
            **how,
        )()

    def state(self, archive: str) -> str:
        return str(self.platform.value("SELECT state FROM retention.attempts WHERE id = %s", archive))

    def has_object(self, archive: str) -> bool:
        key, version = self.platform.connection.execute(
            "SELECT object_key, object_version FROM retention.attempts WHERE id = %s", [archive]
        ).fetchone()
        return any(found.version == version for found in self.bench.store.versions(key))

    def events(self, instance: str) -> list[str]:
        """What the audit says of an archive's end."""
        return [
            kind
            for kind in self.bench.audit_kinds(self.platform, instance)
            if kind.startswith("archive.") and not kind.startswith("archive.verified")
        ]

    def hold(self, instance: str, action: str = "hold", matter: str = "m") -> None:
        """By an operator's login, with every trigger that this has."""
        with self.bench.database.superuser() as connection:
            connection.execute("SELECT set_config('retention.tenant_id', %s, false)", [self.platform.tenant])
            connection.execute(
                "INSERT INTO retention.hold_events (tenant_id, instance_id, matter, action, reason, correlation)"
                " VALUES (%s, %s, %s, %s, 'a court asks', 'c')",
                [self.platform.tenant, instance, matter, action],
            )
