"""All tenants at a glance, in one statement: who has what, so that idle tenants cost no run."""

import dagster as dg

from retention_pipeline.defs.instances import unforeseen
from retention_pipeline.defs.resources import ProductResource
from retention_pipeline.defs.specs import CODE_VERSION, GROUP, OWNERS
from retention_pipeline.errors import RetentionError


@dg.asset(
    name="tenant_overview",
    group_name=GROUP,
    kinds={"postgres"},
    owners=OWNERS,
    tags={"retention/effect": "reads"},
    code_version=CODE_VERSION,
    description="Every tenant of the platform with the number of its instances, and of those that have ended. Counts only, by a narrow "
    "function that sees all tenants. Materialize it to see who has work; then open a tenant's `inventory`.",
)
def tenant_overview(product: ProductResource) -> dg.MaterializeResult:  # type: ignore[type-arg]
    """Count instances per tenant."""
    failure = None
    try:
        with product.open() as app:
            counts = app.overview()
    except RetentionError as error:
        failure = error
    except Exception as error:  # noqa: BLE001  the boundary
        failure = unforeseen(error)
    if failure is not None:
        raise dg.Failure(description=str(failure), allow_retries=False) from None
    columns = [
        dg.TableColumn("tenant", "string"),
        dg.TableColumn("alias", "string"),
        dg.TableColumn("instances", "int"),
        dg.TableColumn("ended", "int"),
    ]
    records = [
        dg.TableRecord({"tenant": c.tenant, "alias": c.alias, "instances": c.instances, "ended": c.ended})
        for c in counts
    ]
    return dg.MaterializeResult(
        metadata={
            "tenants": dg.MetadataValue.int(len(counts)),
            "instances": dg.MetadataValue.int(sum(c.instances for c in counts)),
            "by_tenant": dg.MetadataValue.table(records[:1000], schema=dg.TableSchema(columns=columns)),
        }
    )
