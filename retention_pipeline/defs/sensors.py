"""Keeps partitions true: a tenant that the platform knows is a partition; none is ever removed here (SPEC D2)."""

import dagster as dg

from retention_pipeline.defs.instances import unforeseen
from retention_pipeline.defs.partitions import TENANTS
from retention_pipeline.defs.resources import ProductResource
from retention_pipeline.errors import RetentionError


@dg.sensor(
    name="tenant_partitions",
    minimum_interval_seconds=60,
    default_status=dg.DefaultSensorStatus.STOPPED,
    description="Adds a partition for each tenant that the platform has. It never removes one: a tenant that left may have archives.",
)
def tenant_partitions(context: dg.SensorEvaluationContext, product: ProductResource) -> dg.SensorResult | dg.SkipReason:
    """Compare the platform's tenants with the partitions."""
    failure = None
    try:
        with product.open() as app:
            tenants = [str(tenant.id) for tenant in app.tenants()]
    except RetentionError as error:
        failure = error
    except Exception as error:  # noqa: BLE001  the boundary
        failure = unforeseen(error)
    if failure is not None:
        raise dg.Failure(description=str(failure)) from None
    known = set(context.instance.get_dynamic_partitions(str(TENANTS.name)))
    missing = [tenant for tenant in tenants if tenant not in known]
    if not missing:
        return dg.SkipReason(f"All {len(tenants)} tenants are partitions.")
    return dg.SensorResult(dynamic_partitions_requests=[TENANTS.build_add_request(missing)])
