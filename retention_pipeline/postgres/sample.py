"""Sample data for the reference platform: three tenants, every blocker, every retention period, and what drifts in real life."""

import hashlib
import uuid
from dataclasses import dataclass
from datetime import datetime
from importlib import resources

import psycopg

from retention_pipeline.model.ids import InstanceId, TenantId
from retention_pipeline.postgres.session import translated

_NAMESPACE = uuid.UUID("6f9619ff-8b86-4011-b42d-00c04fc964ff")
_HELPERS = """
CREATE SCHEMA IF NOT EXISTS nucleus_sample;
CREATE OR REPLACE FUNCTION nucleus_sample.id(tenant text, kind text, n integer) RETURNS uuid LANGUAGE sql IMMUTABLE AS
  $$ SELECT md5(tenant || '/' || kind || '/' || n)::uuid $$;
-- From 5 to 200 KiB, most of them small, as real instances are.
CREATE OR REPLACE FUNCTION nucleus_sample.bytes(n integer, instances integer) RETURNS integer LANGUAGE sql IMMUTABLE AS
  $$ SELECT CASE WHEN n % 40 = 0 THEN 180000 WHEN n % 8 = 0 THEN 60000 ELSE 3000 + (n * 7919) % 21000 END $$;
CREATE OR REPLACE FUNCTION nucleus_sample.log(n integer, bytes integer) RETURNS text LANGUAGE sql IMMUTABLE AS
  $$ SELECT string_agg('12:00:' || lpad((k % 60)::text, 2, '0') || ' INFO step ' || k || ' ' || md5(n || ':' || k), chr(10))
     FROM generate_series(1, greatest(bytes / 60, 1)) AS k $$;
"""
LARGE_INSTANCE_BYTES = 20 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleTenant:
    """One tenant of the sample."""

    alias: str
    default_retention_days: int | None
    instances: int

    @property
    def id(self) -> TenantId:
        """The tenant's id: the same in every database, so that a demo can be read twice."""
        return TenantId(str(uuid.uuid5(_NAMESPACE, self.alias)))


SAMPLE = (
    SampleTenant(alias="aurora", default_retention_days=60, instances=1200),
    SampleTenant(alias="borealis", default_retention_days=None, instances=1000),
    SampleTenant(alias="cascade", default_retention_days=180, instances=800),
)


def seed(superuser_url: str, tenants: tuple[SampleTenant, ...], as_of: datetime) -> None:
    """Fill the reference platform; as an embedded server's superuser, with triggers off."""
    statements = resources.files("retention_pipeline.postgres").joinpath("sample.sql").read_text(encoding="utf-8")
    with translated(), psycopg.connect(superuser_url, autocommit=True) as connection:
        connection.execute(_HELPERS.encode())
        for tenant in tenants:
            with connection.transaction():
                connection.execute("SET LOCAL session_replication_role = replica")
                _run(connection, statements, tenant, as_of)
        connection.execute("DROP SCHEMA nucleus_sample CASCADE")
        connection.execute("ANALYZE")


def _run(connection: psycopg.Connection, statements: str, tenant: SampleTenant, as_of: datetime) -> None:
    parameters = {
        "tenant": tenant.id,
        "alias": tenant.alias,
        "default_days": tenant.default_retention_days,
        "instances": tenant.instances,
        "as_of": as_of,
    }
    for statement in statements.split(";\n"):
        if statement.strip():
            connection.execute(statement.encode(), parameters)


def instance_id(tenant: SampleTenant, number: int) -> InstanceId:
    """The id of the sample's n-th instance of a tenant."""
    return InstanceId(
        str(uuid.UUID(hashlib.md5(f"{tenant.id}/instance/{number}".encode(), usedforsecurity=False).hexdigest()))
    )


def add_drift(superuser_url: str, tenants: tuple[SampleTenant, ...]) -> None:
    """What no platform is without: a row of another tenant, a retention period that is none, an instance of 20 MiB."""
    first, second = tenants[0], tenants[1]
    with translated(), psycopg.connect(superuser_url, autocommit=True) as connection, connection.transaction():
        connection.execute("SET LOCAL session_replication_role = replica")
        connection.execute(
            "UPDATE nucleus.workflow_contexts SET tenant_id = %s::uuid WHERE id = ("
            " SELECT c.id FROM nucleus.workflow_contexts AS c WHERE c.instance_id = %s::uuid ORDER BY c.id LIMIT 1)",
            [second.id, instance_id(first, 10)],
        )
        connection.execute("ALTER TABLE nucleus.workflows DROP CONSTRAINT workflows_retention_days_whole")
        connection.execute(
            "INSERT INTO nucleus.workflows (id, tenant_id, name, definition, retention_days)"
            " VALUES (%s::uuid, %s::uuid, 'legacy import', '{}', -1)",
            [str(uuid.uuid5(_NAMESPACE, "legacy")), first.id],
        )
        connection.execute(
            "ALTER TABLE nucleus.workflows ADD CONSTRAINT workflows_retention_days_whole"
            " CHECK (retention_days::text ~ '^[0-9]{1,6}$') NOT VALID"
        )
        connection.execute(
            "UPDATE nucleus.workflow_instances SET workflow_id = %s::uuid WHERE id = ANY(%s::uuid[])",
            [str(uuid.uuid5(_NAMESPACE, "legacy")), [instance_id(first, n) for n in (11, 12, 13)]],
        )
        connection.execute(
            "UPDATE nucleus.workflow_executions SET log = (SELECT string_agg(md5(k::text), '') FROM generate_series(1, %s) AS k)"
            " WHERE id = (SELECT e.id FROM nucleus.workflow_executions AS e WHERE e.instance_id = %s::uuid ORDER BY e.id LIMIT 1)",
            [LARGE_INSTANCE_BYTES // 32, instance_id(first, 20)],
        )
