"""Tenants as partitions: keys are the platform's own tenant ids, opaque and immutable."""

from collections.abc import Sequence

import dagster as dg

from retention_pipeline.model.ids import TenantId
from retention_pipeline.stages.world import Step

TENANTS = dg.DynamicPartitionsDefinition(name="tenants")


def longest_unseen_first(
    instance: dg.DagsterInstance, tenants: Sequence[TenantId], asset: str = Step.INVENTORY.value
) -> tuple[TenantId, ...]:
    """In the order in which a run takes them: where its time ends, the next run begins (W7).

    The position is in the history already: who has no materialization of the asset yet comes first, then who has the
    oldest one.
    """
    if len(tenants) < 2:
        return tuple(tenants)
    seen = instance.get_latest_storage_id_by_partition(
        dg.AssetKey(asset), dg.DagsterEventType.ASSET_MATERIALIZATION, set(tenants)
    )
    return tuple(sorted(tenants, key=lambda tenant: seen.get(tenant, -1)))
