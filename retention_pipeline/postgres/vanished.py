"""Instances under our care that are gone: deleted by us, with a receipt, or by a stranger (SPEC W11).

An old janitor that still runs is an integrity finding. An archive that had been proven is then the only copy: it is kept like
any archive whose source is gone, for its whole captured period, and its holds are bound to it; there is no receipt.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from psycopg import sql

from retention_pipeline.errors import Code
from retention_pipeline.model.archive import StoredObject
from retention_pipeline.model.ids import AttemptId, InstanceId, TenantId
from retention_pipeline.postgres import oversight
from retention_pipeline.postgres.session import Cursor, rows

_RECEIPTED = sql.SQL("""
SELECT n.instance, r.attempt_id = n.attempt
FROM unnest(%(attempts)s::uuid[], %(instances)s::text[], %(epochs)s::integer[]) AS n (attempt, instance, epoch)
JOIN retention.receipts AS r ON r.tenant_id = %(tenant)s::text AND r.instance_id = n.instance AND r.epoch = n.epoch
JOIN retention.attempts AS a ON a.id = n.attempt AND a.tenant_id = r.tenant_id
WHERE r.deleted_at > a.intended_at - interval '10 minutes'
""")
_RECEIPTED_LATELY = sql.SQL("""
SELECT DISTINCT r.instance_id FROM retention.receipts AS r
WHERE r.tenant_id = %(tenant)s::text AND r.instance_id = ANY(%(instances)s::text[])
  AND r.deleted_at > clock_timestamp() - interval '1 hour'
""")
_KEEP = sql.SQL("""
UPDATE retention.attempts AS a SET state = 'source_deleted', code = %(code)s, source_deleted_at = clock_timestamp()
FROM unnest(%(attempts)s::uuid[], %(fences)s::bigint[]) AS n (id, fence)
WHERE a.id = n.id AND a.fence = n.fence AND a.tenant_id = %(tenant)s::text AND a.state = 'verified'
RETURNING a.id::text
""")
BIND_HOLDS = sql.SQL("""
INSERT INTO retention.hold_bindings (attempt_id, hold_event_id, tenant_id)
SELECT a.id, h.id, a.tenant_id FROM retention.attempts AS a
JOIN retention.hold_events AS h ON h.tenant_id = a.tenant_id AND h.instance_id = a.instance_id AND h.action = 'hold'
WHERE a.tenant_id = %(tenant)s::text AND a.id = ANY(%(attempts)s::uuid[])
  AND NOT EXISTS (SELECT FROM retention.hold_events AS r WHERE r.tenant_id = h.tenant_id AND r.instance_id = h.instance_id
    AND r.matter = h.matter AND r.id > h.id AND r.action = 'release')
ON CONFLICT DO NOTHING
""")
"""Bind every hold that stands to the archives `attempts` (A9)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vanished:
    """Why instances that this run knows are not there."""

    tenant: TenantId
    actor: str
    run: str

    def explain(self, cursor: Cursor, gone: Sequence[StoredObject]) -> dict[InstanceId, Code]:
        """Deleted with this very archive after another worker took it over, with that worker's own, or by a stranger."""
        if not gone:
            return {}
        found = explained(cursor, self.tenant, [(s.attempt, s.instance, s.epoch) for s in gone])
        lost = [stored for stored in gone if stored.instance not in found]
        self._keep(cursor, lost)
        return {**found, **{stored.instance: Code.FOREIGN_DELETER for stored in lost}}

    def _keep(self, cursor: Cursor, lost: Sequence[StoredObject]) -> None:
        parameters = {
            "tenant": self.tenant,
            "code": Code.FOREIGN_DELETER,
            "attempts": [s.attempt for s in lost],
            "fences": [s.fence for s in lost],
        }
        kept = {AttemptId(row[0]) for row in rows(cursor, _KEEP, parameters)}
        cursor.execute(BIND_HOLDS, {"tenant": self.tenant, "attempts": list(kept)})
        oversight.audit(
            cursor,
            self.tenant,
            actor=self.actor,
            kind="instance.vanished",
            outcome="integrity",
            run=self.run,
            subjects=[(s.instance, Code.FOREIGN_DELETER) for s in lost if s.attempt in kept],
        )


def explained(
    cursor: Cursor, tenant: TenantId, gone: Sequence[tuple[AttemptId, InstanceId, int]]
) -> dict[InstanceId, Code]:
    """Those of the instances, given with their attempts and epochs, that went with a receipt."""
    attempts, instances, epochs = map(list, zip(*gone, strict=True)) if gone else ([], [], [])
    parameters = {"tenant": tenant, "attempts": attempts, "instances": instances, "epochs": epochs}
    return {
        InstanceId(instance): Code.LEASE_LOST if same else Code.ALREADY_ARCHIVED
        for instance, same in rows(cursor, _RECEIPTED, parameters)
    }


def receipted_lately(cursor: Cursor, tenant: TenantId, instances: Sequence[InstanceId]) -> set[InstanceId]:
    """Those of the instances that a run deleted within the last hour, which is longer than any run takes."""
    if not instances:
        return set()
    found = rows(cursor, _RECEIPTED_LATELY, {"tenant": tenant, "instances": list(instances)})
    return {InstanceId(row[0]) for row in found}
