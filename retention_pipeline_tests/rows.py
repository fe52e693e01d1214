"""Rows of the reference platform for tests, written as the platform would have left them."""

import itertools
import uuid
from dataclasses import dataclass, field

import psycopg

from retention_pipeline.model.ids import InstanceId, TenantId
from retention_pipeline_tests.databases import Database

AS_OF = "2026-06-01 12:00:00+00"
_numbers = itertools.count(1)


def new_id() -> str:
    return str(uuid.uuid4())


@dataclass(slots=True, kw_only=True)
class Platform:
    """Writes as a superuser with triggers off: history as it would have happened, drift included."""

    database: Database
    tenant: TenantId = field(default_factory=lambda: TenantId(new_id()))
    default_days: object = 30
    workflow: str = field(default_factory=new_id)
    workflow_days: object = None
    connection: psycopg.Connection = field(init=False)

    def __post_init__(self) -> None:
        self.connection = self.database.closing.enter_context(self.database.superuser())
        self.connection.execute("SET session_replication_role = replica")
        self.connection.execute("SET TimeZone = 'UTC'")
        self.run(
            "INSERT INTO nucleus.tenants (id, alias, default_retention_days) VALUES (%s, %s, %s)",
            self.tenant,
            f"tenant-{next(_numbers)}",
            self.default_days,
        )
        self.add_workflow(self.workflow, self.workflow_days)

    def run(self, statement: str, *parameters: object) -> None:
        self.connection.execute(statement.encode(), parameters)

    def value(self, statement: str, *parameters: object) -> object:
        row = self.connection.execute(statement.encode(), parameters).fetchone()
        return row[0] if row else None

    def add_workflow(self, workflow: str | None = None, days: object = None) -> str:
        workflow = workflow or new_id()
        self.run(
            "INSERT INTO nucleus.workflows (id, tenant_id, name, definition, retention_days)"
            " VALUES (%s, %s, 'w', '{\"steps\": [1]}', %s)",
            workflow,
            self.tenant,
            days,
        )
        return workflow

    def add(
        self,
        *,
        ended: str = "2026-01-01 00:00:00+00",
        state: str = "completed",
        epochs: tuple[tuple[str, str], ...] | None = None,
        workflow: str | None = None,
        contexts: int = 2,
    ) -> InstanceId:
        """An instance with some evidence; by default it ended at `ended`, once."""
        instance = InstanceId(new_id())
        self.run(
            "INSERT INTO nucleus.workflow_instances (id, tenant_id, workflow_id, state, title, deadline)"
            " VALUES (%s, %s, %s, %s, 'a case', '1 mon 2 days')",
            instance,
            self.tenant,
            workflow or self.workflow,
            state,
        )
        for number, (epoch_state, at) in enumerate(((state, ended),) if epochs is None else epochs, 1):
            self.run(
                "INSERT INTO nucleus.workflow_terminal_epochs VALUES (%s, %s, %s, %s, %s)",
                instance,
                number,
                self.tenant,
                epoch_state,
                at,
            )
        for number in range(contexts):
            self.child("contexts", instance, name=f"c{number}", payload='{"a": [1, "ü"]}')
        execution = self.child("executions", instance, status="succeeded", log="x" * 300)
        self.run(
            "INSERT INTO nucleus.workflow_action_checkpoints (tenant_id, execution_id, step, attachment)"
            " VALUES (%s, %s, 's', '\\x00ff')",
            self.tenant,
            execution,
        )
        return instance

    def child(self, table: str, instance: str, *, tenant: str | None = None, **columns: object) -> str:
        """A row of `nucleus.workflow_<table>` with a uuid key."""
        made = {"id": new_id(), "tenant_id": tenant or self.tenant, "instance_id": instance, **columns}
        names, marks = ", ".join(made), ", ".join(["%s"] * len(made))
        self.run(f"INSERT INTO nucleus.workflow_{table} ({names}) VALUES ({marks})", *made.values())
        return str(made["id"])

    def occurrence_target(self, instance: str, status: str) -> str:
        trigger, occurrence = new_id(), new_id()
        self.run(
            "INSERT INTO nucleus.workflow_triggers (id, tenant_id, workflow_id, kind) VALUES (%s, %s, %s, 'schedule')",
            trigger,
            self.tenant,
            self.workflow,
        )
        self.run(
            "INSERT INTO nucleus.workflow_trigger_occurrences (id, tenant_id, trigger_id, occurred_at)"
            " VALUES (%s, %s, %s, now())",
            occurrence,
            self.tenant,
            trigger,
        )
        return self.child("occurrence_targets", instance, occurrence_id=occurrence, status=status)

    def hold(self, instance: str, matter: str = "m", action: str = "hold") -> None:
        self.run(
            "INSERT INTO retention.hold_events (tenant_id, instance_id, matter, action, reason, correlation)"
            " VALUES (%s, %s, %s, %s, 'a court asks', 'c')",
            self.tenant,
            instance,
            matter,
            action,
        )

    def exists(self, instance: str) -> bool:
        return self.value("SELECT count(*) FROM nucleus.workflow_instances WHERE id = %s", instance) == 1
