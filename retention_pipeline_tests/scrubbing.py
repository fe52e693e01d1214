"""Archives of one tenant, and runs that look after them."""

from dataclasses import dataclass, field

from retention_pipeline.model.ids import InstanceId
from retention_pipeline.model.outcome import Outcome
from retention_pipeline.model.scrub import ScrubResult
from retention_pipeline.postgres.scrub import PostgresScrub
from retention_pipeline.stages.scrub import Scrub
from retention_pipeline_tests.rows import Platform
from retention_pipeline_tests.worlds import Bench


@dataclass(kw_only=True)
class Keep:
    """Where the archives are, and who reads them again."""

    bench: Bench
    platform: Platform
    records: PostgresScrub = field(init=False)
    runs: int = 0

    def __post_init__(self) -> None:
        self.records = self.new_records()

    def new_records(self) -> PostgresScrub:
        return PostgresScrub(session=self.bench.session(), readers=self.bench.session())

    def archive(self, number: int = 1) -> list[InstanceId]:
        made = [self.platform.add(contexts=1) for _ in range(number)]
        assert self.bench.reconcile(self.platform).report.outcome is Outcome.COMPLETED
        return made

    def place(self, instance: str) -> tuple[str, str]:
        """Key and version of an instance's archive."""
        return self.platform.connection.execute(
            "SELECT object_key, object_version FROM retention.attempts WHERE instance_id = %s AND state = 'source_deleted'",
            [instance],
        ).fetchone()

    def scrub(self, **how: object) -> ScrubResult:
        self.runs += 1
        store = how.pop("store", self.bench.store)
        return Scrub(
            records=how.pop("records", self.records),
            stores=how.pop("stores", lambda _tenant, _generation: store),
            keys=self.bench.keys,
            tenant=self.platform.tenant,
            run=f"scrub-{self.runs}",
            slices=how.pop("slices", 1),
            **how,
        )()

    def events(self, kind: str = "scrub.%") -> list[str]:
        found = self.platform.connection.execute(
            "SELECT kind || coalesce(' ' || code, '') FROM retention.audit_events WHERE tenant_id = %s AND kind LIKE %s"
            " ORDER BY id",
            [self.platform.tenant, kind],
        ).fetchall()
        return [row[0] for row in found]
