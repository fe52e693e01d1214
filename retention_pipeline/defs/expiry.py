"""The end of archives' lives: one asset, over a single partition, a range, and a list of tenants (SPEC A10, D1, D2)."""

from collections import Counter
from collections.abc import Iterator

import dagster as dg

from retention_pipeline import reports
from retention_pipeline.app import App
from retention_pipeline.defs.config import STANDING, ExpiryConfig
from retention_pipeline.defs.evidence import DONE
from retention_pipeline.defs.instances import (
    TENANTS_IN_A_RUN,
    Event,
    over_tenants,
    permission_to_apply,
    shortfall,
    unforeseen,
)
from retention_pipeline.defs.partitions import TENANTS
from retention_pipeline.defs.resources import ProductResource
from retention_pipeline.defs.specs import CODE_VERSION, GROUP, OWNERS
from retention_pipeline.errors import RetentionError
from retention_pipeline.model.ids import TenantId
from retention_pipeline.model.people import Job
from retention_pipeline.stages.expiry import ExpiryResult
from retention_pipeline.stages.reconcile import Bounds
from retention_pipeline.stages.world import Step

ASSET = "archive_retention"

_SPEC = dg.AssetSpec(
    ASSET,
    deps=[Step.DELETIONS.value],
    description=(
        "Archives whose own retention is over: their objects are deleted by the very version that was verified, and the record "
        "stays as a tombstone. The period was captured when the instance was deleted; a later profile does not shorten it.\n\n"
        "A legal hold, unlimited retention, a restore of late and a lock of the provider keep an archive. A run that nobody "
        "approved counts, and ends nothing: it is in the run's log."
    ),
    kinds={"s3"},
    tags={"retention/effect": "deletes-archives"},
    group_name=GROUP,
    owners=OWNERS,
    code_version=CODE_VERSION,
    skippable=True,
)


@dg.multi_asset(
    name="archive_life",
    specs=[_SPEC],
    partitions_def=TENANTS,
    can_subset=True,
    backfill_policy=dg.BackfillPolicy.multi_run(TENANTS_IN_A_RUN),
)
def archive_life(context: dg.AssetExecutionContext, config: ExpiryConfig, product: ProductResource) -> Iterator[Event]:
    """End archives whose own period is over, tenant by tenant."""

    def one(app: App, bounds: Bounds, tenant: TenantId, failures: Counter[str]) -> tuple[Event, ...]:
        return expire_tenant(context, config, bounds, app, tenant, failures)

    yield from over_tenants(context, config, product, one, order=ASSET)


def expire_tenant(
    context: dg.AssetExecutionContext,
    config: ExpiryConfig,
    bounds: Bounds,
    app: App,
    tenant: TenantId,
    failures: Counter[str],
) -> tuple[Event, ...]:
    """One tenant's run; a preflight marks nothing, and says what it counted."""
    try:
        apply, approval, why = permission_to_apply(config, app, tenant, app.gates(tenant), Job.EXPIRE)
        if why:
            context.log.warning("Tenant %s: preflight only. %s", tenant, why)
            if config.approval == STANDING:
                app.settle_locks(tenant)  # a hold or a captured period needs no further yes to be told to the store
        result = app.expire(tenant, run=context.run.run_id, apply=apply, approval=approval, bounds=bounds)
    except RetentionError as error:
        told = error
    except Exception as error:  # noqa: BLE001  the boundary
        told = unforeseen(error)
    else:
        report = result.report
        tell = context.log.info if report.outcome.green else context.log.error
        tell("Tenant %s: %s", tenant, ending(result))
        if not report.outcome.green:
            failures[shortfall(report)] += 1
        if report.outcome not in DONE:
            return ()
        return (dg.AssetMaterialization(asset_key=ASSET, partition=tenant, metadata=_metadata(result)),)
    context.log.error("Tenant %s: %s", tenant, told)
    failures[str(told.code)] += 1
    return ()


def ending(result: ExpiryResult) -> str:
    """How a tenant's run ended, in one line."""
    report, found = result.report, result.found
    aside = ", ".join(f"{code} {number}" for code, number in sorted(report.counts.failures.items()))
    return (
        f"{report.outcome} ({report.reason}); {report.counts.expired} archives ended, {found.due} due"
        f"{f'; set aside: {aside}' if aside else ''}."
    )


def _metadata(result: ExpiryResult) -> dict[str, dg.MetadataValue]:
    report, found = result.report, result.found
    return {
        "expired": dg.MetadataValue.int(report.counts.expired),
        "leftovers_removed": dg.MetadataValue.int(report.counts.removed),
        "archives_left": dg.MetadataValue.int(found.archives),
        "kept_by": dg.MetadataValue.md(reports.counted("kept by", found.stays)),
        "backlog": dg.MetadataValue.int(report.backlog),
        "oldest_overdue": dg.MetadataValue.text(reports.age(report.oldest_overdue_seconds)),
        "locks_to_tell": dg.MetadataValue.int(found.lock_tasks),
        "outcome": dg.MetadataValue.text(str(report.outcome)),
        "why_it_ended": dg.MetadataValue.text(str(report.reason)),
    }
