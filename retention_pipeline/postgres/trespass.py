"""What somebody with too many rights might try, for the demo to show: an end without an archive, and a record that is bent."""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from retention_pipeline.model.ids import InstanceId, TenantId
from retention_pipeline.postgres.session import translated


def delete_without_archive(owner_url: str, tenant: TenantId, instance: InstanceId) -> str | None:
    """Try to delete an instance as the platform's own owner, in plain SQL.

    Returns:
        The SQLSTATE of the database's refusal; None where it let that happen, which was then rolled back.
    """
    with translated(), psycopg.connect(owner_url) as connection:
        connection.execute("SELECT set_config('nucleus.tenant_id', %s, false)", [tenant])
        try:
            connection.execute("DELETE FROM nucleus.workflow_terminal_epochs WHERE instance_id = %s", [instance])
            connection.execute("DELETE FROM nucleus.workflow_instances WHERE id = %s", [instance])
        except psycopg.DatabaseError as refusal:
            return refusal.sqlstate
        finally:
            connection.rollback()
    return None


@contextmanager
def bent_record(superuser_url: str, tenant: TenantId) -> Iterator[int]:
    """While this lasts, a tenant's newest sealed event names another actor: done as a superuser, with triggers off.

    Gives the event's id. Afterwards everything is as it was.
    """
    change = "UPDATE retention.audit_events SET actor = %s WHERE id = %s"
    with translated(), psycopg.connect(superuser_url, autocommit=True) as connection:
        connection.execute("SET session_replication_role = replica")
        row = connection.execute(
            "SELECT id, actor FROM retention.audit_events WHERE tenant_id = %s AND kind = 'instance.deleted'"
            " ORDER BY id DESC LIMIT 1",
            [tenant],
        ).fetchone()
        event, actor = (int(row[0]), str(row[1])) if row else (0, "")
        connection.execute(change, ["somebody else", event])
        try:
            yield event
        finally:
            connection.execute(change, [actor, event])
