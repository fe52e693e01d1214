"""Rows with payloads of the reference platform, for tests."""

import json
from typing import Any

from retention_pipeline_tests.rows import Platform, new_id

TABLES = {"central_tasks": "data", "central_instances": "variables"}
"""The tables that are cleared, by the catalog's names, with their mirrored columns."""


def ephemeral(expires: object, **more: Any) -> str:
    """A payload as a writer would mark it."""
    return json.dumps({"mode": "ephemeral_hosted", "reason": "one-time code", "expiresAt": expires, "code": 1, **more})


def add_row(platform: Platform, table: str, payload: str | None, *, mirror: str = '{"old": 1}', instance: str) -> str:
    """A row of `nucleus.workflow_<table>`."""
    key = new_id()
    platform.run(
        f"INSERT INTO nucleus.workflow_{table} (id, tenant_id, instance_id, payload, {TABLES[table]}) VALUES (%s, %s, %s, %s, %s)",
        key,
        platform.tenant,
        instance,
        payload,
        mirror,
    )
    return key


def row_of(platform: Platform, table: str, key: str) -> tuple[Any, Any, Any]:
    """Payload, mirror and marker."""
    found = platform.connection.execute(
        f"SELECT payload, {TABLES[table]}, payload_expired_at::text FROM nucleus.workflow_{table} WHERE id = %s", [key]
    ).fetchone()
    assert found is not None
    return found
