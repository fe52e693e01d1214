"""Sealing the record of who did what, every five minutes, for everybody in one run (SPEC G5)."""

import dagster as dg

from retention_pipeline import audit
from retention_pipeline.defs.instances import unforeseen
from retention_pipeline.defs.resources import ProductResource
from retention_pipeline.defs.specs import CODE_VERSION, OWNERS
from retention_pipeline.errors import RetentionError
from retention_pipeline.stages.audit_sealing import SealingReport


@dg.asset(
    name="audit_seals",
    group_name="governance",
    kinds={"postgres", "s3"},
    owners=OWNERS,
    tags={"retention/effect": "seals-records"},
    code_version=CODE_VERSION,
    description="The record of every decision and change, sealed in blocks with a key that is not in the database: an event that is "
    "changed, removed or inserted later is found by `retention audit verify`.\n\n"
    "Each tenant has a chain of its own, and the installation has one. Once a day a chain's head is anchored in the tenant's archive "
    "store. What is not sealed yet is the window that a tamperer has: keep the schedule on.\n\n"
    "**Red** means that something was not sealed or anchored, or that a chain no longer contains a head that was kept outside the "
    "database: run `retention audit verify`. Counts only; no event is shown.",
)
def audit_seals(context: dg.AssetExecutionContext, product: ProductResource) -> dg.MaterializeResult:  # type: ignore[type-arg]
    """Seal what waits, and anchor what moved."""
    failure = None
    report = SealingReport()
    try:
        with product.open() as app:
            report = audit.seal(app)
    except RetentionError as error:
        failure = str(error)
    except Exception as error:  # noqa: BLE001  the boundary
        failure = str(unforeseen(error))
    if failure is None and report.failures:
        told = ", ".join(f"{code} {number}" for code, number in sorted(report.failures.items()))
        failure = f"Sealed {report.events} events, but not everything was done: {told}."
        context.log.error(failure)
    if failure is not None:
        raise dg.Failure(description=failure, metadata=metadata(report), allow_retries=False) from None
    return dg.MaterializeResult(metadata=metadata(report))


def metadata(report: SealingReport) -> dict[str, dg.MetadataValue]:
    """What a sealing run did, in counts (A16)."""
    return {
        "tenants": dg.MetadataValue.int(report.tenants),
        "blocks": dg.MetadataValue.int(report.blocks),
        "events": dg.MetadataValue.int(report.events),
        "anchors": dg.MetadataValue.int(report.anchors),
        "backdated": dg.MetadataValue.int(report.late),
        "left": dg.MetadataValue.int(report.left),
        "oldest_unsealed_seconds": dg.MetadataValue.float(report.oldest_seconds or 0.0),
    }


seal_audit = dg.define_asset_job(
    "seal_audit",
    selection=dg.AssetSelection.assets("audit_seals"),
    executor_def=dg.in_process_executor,
    tags={"retention/job": "seal_audit"},
    description="Seals the audit events that wait, of every tenant and of the installation, and anchors the heads once a day.",
)

audit_sealing = dg.ScheduleDefinition(
    name="audit_sealing",
    job=seal_audit,
    cron_schedule="*/5 * * * *",
    execution_timezone="UTC",
    default_status=dg.DefaultScheduleStatus.STOPPED,
    description="Every five minutes: seals the audit events that wait. Until an event is sealed, a superuser could change it unseen.",
)
