"""Counts what a demo did, afterwards and from outside: as a superuser, by statements of its own, not by the product's."""

from dataclasses import dataclass

import psycopg

from retention_pipeline.model.ids import InstanceId, ObjectKey, ObjectVersion
from retention_pipeline.postgres.session import translated

_OWN = "instance_id = %(id)s::uuid"
_PARTS = {
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """An attempt whose source is deleted, with its receipt."""

    instance: InstanceId
    key: ObjectKey
    version: ObjectVersion
    verified: bool
    receipt: bool


def instances(superuser_url: str) -> frozenset[InstanceId]:
    """Every instance that is in the source, of whichever tenant."""
    with translated(), psycopg.connect(superuser_url) as connection:
        found = connection.execute("SELECT id::text FROM nucleus.workflow_instances").fetchall()
    return frozenset(InstanceId(row[0]) for row in found)


def recorded(superuser_url: str) -> tuple[Recorded, ...]:
    """Every attempt that says that its source was deleted."""
    with translated(), psycopg.connect(superuser_url) as connection:
        found = connection.execute(
            "SELECT a.instance_id, a.object_key, a.object_version, a.verified_at IS NOT NULL, r.attempt_id IS NOT NULL"
            " FROM retention.attempts AS a LEFT JOIN retention.receipts AS r ON r.attempt_id = a.id"
            " WHERE a.state = 'source_deleted'"
        ).fetchall()
    return tuple(
        Recorded(
            instance=InstanceId(row[0]),
            key=ObjectKey(row[1]),
            version=ObjectVersion(row[2]),
            verified=row[3],
            receipt=row[4],
        )
        for row in found
    )


def eligible(superuser_url: str) -> int:
    """How many instances were eligible in the preflights that a person acknowledged, each tenant's newest."""
    with translated(), psycopg.connect(superuser_url) as connection:
        row = connection.execute(
            "SELECT coalesce(sum(eligible), 0)::bigint FROM (SELECT DISTINCT ON (a.tenant_id) p.eligible"
            " FROM retention.acknowledgements AS a JOIN retention.preflights AS p ON p.id = a.preflight_id"
            " ORDER BY a.tenant_id, a.id DESC) AS newest"
        ).fetchone()
    return int(row[0]) if row else 0


def picture(superuser_url: str, instance: InstanceId) -> str:
    """Every row of one instance as PostgreSQL prints it: two pictures are equal, or something changed."""
    lines = []
    with translated(), psycopg.connect(superuser_url) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for table, where in _PARTS.items():
            found = connection.execute(
                f"SELECT t::text FROM nucleus.{table} AS t WHERE {where} ORDER BY 1".encode(), {"id": instance}
            ).fetchall()
            lines += [f"{table} {row[0]}" for row in found]
    return "\n".join(lines)


def told(storage_url: str, asset: str, number: str) -> int:
    """What the run history says: the sum of one number over all materializations of one asset."""
    with translated(), psycopg.connect(storage_url) as connection:
        row = connection.execute(
            "SELECT coalesce(sum(jsonb_path_query_first(event::jsonb,"
            " '$.**.metadata_entries[*] ? (@.label == $number).entry_data.value',"
            " jsonb_build_object('number', %(number)s::text))::bigint), 0)::bigint"
            " FROM event_logs WHERE dagster_event_type = 'ASSET_MATERIALIZATION' AND asset_key = %(asset)s",
            {"number": number, "asset": f'["{asset}"]'},
        ).fetchone()
    return int(row[0]) if row else 0
