"""Which instances keep their history: held ones, those that are due, and those under archive (SPEC W4).

Horizons sweep the history of instances that stay. What is due takes its history along into its archive, and what is under archive is
compared row by row before it goes. A closed dead letter past its horizon is excepted from both, or it would block its instance for ever;
from a hold nothing is.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from psycopg import sql

from retention_pipeline.catalog.model import InstanceDataset
from retention_pipeline.catalog.sweep_model import Purpose
from retention_pipeline.model.ids import TenantId
from retention_pipeline.postgres.facts import FactStatements
from retention_pipeline.postgres.session import Cursor, rows
from retention_pipeline.postgres.shape import read_shape, tables_of

_LOCK = sql.SQL("""
SELECT id FROM (SELECT DISTINCT id FROM unnest(%(ids)s::text[]) AS u (id) ORDER BY id) AS o
WHERE pg_try_advisory_xact_lock(retention.instance_lock(%(tenant)s::text, id))
""")
_UNDER_ARCHIVE = sql.SQL("""
SELECT DISTINCT instance_id FROM retention.attempts
WHERE tenant_id = %(tenant)s::text AND instance_id = ANY(%(ids)s::text[]) AND state IN ('intended', 'stored', 'verified')
""")


def lock(cursor: Cursor, tenant: TenantId, instances: Collection[str]) -> set[str]:
    """Take the lock that a hold takes, of each instance; gives those that we have. A hold that is being placed has it."""
    return {row[0] for row in rows(cursor, _LOCK, {"tenant": tenant, "ids": sorted(instances)})}


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Asks the instances' own rules.

    Args:
        instances: the rules of the instances whose evidence it is.
    """

    instances: InstanceDataset

    def keeping(
        self, cursor: Cursor, tenant: TenantId, ids: Collection[str], as_of: datetime, purpose: Purpose
    ) -> dict[str, str]:
        """Instances that keep their history, with the reason: `instance_due`, or `under_archive`."""
        if not ids or purpose is Purpose.DEAD_LETTERS:
            return {}
        values = {"tenant": tenant, "ids": sorted(ids), "as_of": as_of}
        shape = read_shape(cursor, tables_of(self.instances))
        statements = FactStatements(dataset=self.instances, shape=shape)
        due = sql.SQL("SELECT instance_id FROM ({}) AS facts WHERE due OR cooling_off").format(
            statements.facts(some=True)
        )
        kept = {row[0]: "instance_due" for row in rows(cursor, due, values)}
        kept.update((row[0], "under_archive") for row in rows(cursor, _UNDER_ARCHIVE, values))
        return kept
