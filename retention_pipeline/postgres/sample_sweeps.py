"""Sample rows for the sweeps, with what must become of each: a demo counts against that, and not against what the product says."""

from datetime import datetime
from importlib import resources

import psycopg

from retention_pipeline.postgres.sample import SampleTenant
from retention_pipeline.postgres.session import translated

_SCHEMA = """
CREATE SCHEMA sample;
CREATE FUNCTION sample.id(tenant text, kind text, n integer) RETURNS uuid LANGUAGE sql IMMUTABLE AS
  $$ SELECT md5(tenant || '/' || kind || '/' || n)::uuid $$;
CREATE TABLE sample.fates (system text, table_name text, row_id text, ends boolean, why text, picture text);
"""
_PICTURE = """
UPDATE sample.fates AS f SET picture = md5(t::text) FROM nucleus.{0} AS t WHERE f.table_name = '{0}' AND f.row_id = t.id::text
"""
TABLES = (
    "workflow_central_tasks",
    "workflow_central_instances",
    "crm_submission_ledger",
    "platform_submission_ledger",
    "jobs",
    "job_outcome_evidence",
    "join_requests",
)
"""Every row of these has a fate."""


def seed(superuser_url: str, tenants: tuple[SampleTenant, ...], as_of: datetime) -> None:
    """Fill the tables of the sweeps, with triggers on: they keep the deadlines."""
    statements = resources.files("retention_pipeline.postgres").joinpath("sample_sweeps.sql").read_text("utf-8")
    with translated(), psycopg.connect(superuser_url, autocommit=True) as connection:
        connection.execute(_SCHEMA.encode())
        for tenant in tenants:
            with connection.transaction():
                for statement in statements.split(";\n"):
                    if statement.strip():
                        connection.execute(statement.encode(), {"tenant": tenant.id, "as_of": as_of})
        connection.execute("SET TimeZone = 'UTC'")
        for table in TABLES:
            connection.execute(_PICTURE.format(table).encode())
        connection.execute("ANALYZE")
