"""Companies and requests to join them, of the reference platform, as its own programs write them: with triggers on."""

from dataclasses import dataclass, field
from typing import Any

import psycopg

from retention_pipeline_tests.rows import Platform, new_id

OVER = "2026-03-03 12:00:00+00"
"""90 days before the tests' now: due exactly now."""
YOUNGER = "2026-03-03 12:00:00.000001+00"


@dataclass(slots=True, kw_only=True)
class Club:
    """One company with an invite, and a connection of a program that knows nothing of the product."""

    platform: Platform
    company: str = field(default_factory=new_id)
    invite: str = field(default_factory=new_id)
    writer: psycopg.Connection = field(init=False)

    def __post_init__(self) -> None:
        self.writer = self.platform.database.superuser()
        self.writer.execute("SET TimeZone = 'UTC'")
        self.run(
            "INSERT INTO nucleus.companies (id, tenant_id, name, status) VALUES (%s, %s, 'c', 'active')",
            self.company,
            self.platform.tenant,
        )
        self.run(
            "INSERT INTO nucleus.company_invites (id, tenant_id, company_id) VALUES (%s, %s, %s)",
            self.invite,
            self.platform.tenant,
            self.company,
        )

    def run(self, statement: str, *parameters: object) -> None:
        self.writer.execute(statement.encode(), parameters)

    def value(self, statement: str, *parameters: object) -> Any:
        row = self.writer.execute(statement.encode(), parameters).fetchone()
        return row[0] if row else None

    def ask(self, at: str = OVER, **columns: object) -> str:
        """A request whose last activity was at that instant."""
        made = {
            "id": new_id(),
            "tenant_id": self.platform.tenant,
            "company_id": self.company,
            "invite_id": self.invite,
            "status": "pending_approval",
            "updated_at": at,
            **columns,
        }
        names, marks = ", ".join(made), ", ".join(["%s"] * len(made))
        self.run(f"INSERT INTO nucleus.join_requests ({names}) VALUES ({marks})", *made.values())
        return str(made["id"])

    def change(self, request: str, **columns: object) -> None:
        pairs = ", ".join(f"{name} = %s" for name in columns)
        self.run(f"UPDATE nucleus.join_requests SET {pairs} WHERE id = %s", *columns.values(), request)

    def company_is(self, status: str) -> None:
        self.run("UPDATE nucleus.companies SET status = %s WHERE id = %s", status, self.company)

    def archived(self) -> set[str]:
        found = self.writer.execute(
            "SELECT id::text FROM nucleus.join_requests WHERE tenant_id = %s AND archived_at IS NOT NULL",
            [self.platform.tenant],
        ).fetchall()
        return {row[0] for row in found}

    def row(self, request: str) -> dict[str, Any]:
        return self.value("SELECT to_jsonb(r) FROM nucleus.join_requests AS r WHERE id = %s", request)

    def told(self, request: str) -> tuple[int, int, int]:
        """Activity records, notifications, deliveries to agents."""
        return tuple(
            self.value(f"SELECT count(*) FROM nucleus.{table} WHERE subject_id = %s", request)
            for table in ("activity_records", "notifications", "agent_deliveries")
        )

    def feed(self) -> set[str]:
        found = self.writer.execute(
            "SELECT id::text FROM nucleus.attention_feed WHERE tenant_id = %s", [self.platform.tenant]
        ).fetchall()
        return {row[0] for row in found}

    def deadline(self) -> str | None:
        """The record, as text in UTC."""
        return self.value(
            "SELECT least(next_due, (SELECT min(due) FROM retention.deadline_wakes))::text FROM retention.deadlines"
            " WHERE dataset = 'join_requests'"
        )

    def reset_deadline(self, at: str = "infinity") -> None:
        self.run("DELETE FROM retention.deadline_wakes")
        self.run(
            "INSERT INTO retention.deadlines (dataset, next_due) VALUES ('join_requests', %s)"
            " ON CONFLICT (dataset) DO UPDATE SET next_due = EXCLUDED.next_due",
            at,
        )

    def close(self) -> None:
        self.writer.close()
