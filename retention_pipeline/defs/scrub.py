"""Stored archives read again: one asset and its check, over a single partition, a range, and a list of tenants (SPEC A19, D1, D4)."""

import warnings
from collections import Counter
from collections.abc import Iterator
from datetime import datetime

import dagster as dg

from retention_pipeline import reports
from retention_pipeline.app import App
from retention_pipeline.defs.config import ScrubConfig
from retention_pipeline.defs.instances import TENANTS_IN_A_RUN, Event, over_tenants, unforeseen
from retention_pipeline.defs.partitions import TENANTS
from retention_pipeline.defs.resources import ProductResource
from retention_pipeline.defs.specs import CODE_VERSION, GROUP, OWNERS
from retention_pipeline.errors import Code, RetentionError
from retention_pipeline.model.ids import TenantId
from retention_pipeline.model.outcome import Outcome
from retention_pipeline.model.scrub import ScrubResult, Verdict
from retention_pipeline.stages.reconcile import Bounds
from retention_pipeline.stages.scrub import ScrubBounds
from retention_pipeline.stages.world import Step

ASSET = "archive_scrub"
CHECK = "archives_intact"
SOUND = frozenset({Outcome.COMPLETED, Outcome.WORK_REMAINS})
"""Outcomes that mark a tenant; one with findings keeps the date of its last sound look."""
_REMEDY = (
    "Look at `retention integrity` and `retention audit show` for which archives it is; find out who changed or removed them, and bring "
    "them back from a copy of the store. What is unknown goes only on request: `retention scrub --remove-unknown`, and never right "
    "after a restore of the database."
)

_SPEC = dg.AssetSpec(
    ASSET,
    deps=[Step.DELETIONS.value],
    description=(
        "Stored archives, read again: a part in each run, so that by default each one is read once in thirty runs. Length, digest, "
        "decryption and content are proven as they were before the deletion, and the provider's lock is compared with the records.\n\n"
        "The whole store is listed beside it, both ways: what should be there and is not, and what is there and nobody knows. "
        "It changes nothing.\n\n"
        "A tenant is marked when nothing was found; what was found is in the check beside it, and the run fails."
    ),
    kinds={"s3"},
    tags={"retention/effect": "reads-archives"},
    group_name=GROUP,
    owners=OWNERS,
    code_version=CODE_VERSION,
    skippable=True,
)


def _check_spec() -> dg.AssetCheckSpec:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.PreviewWarning)  # partitions of a check, as beside the inventory
        return dg.AssetCheckSpec(
            CHECK,
            asset=ASSET,
            description=f"Archives are what was proven, and the store has nothing that no record names. Else: {_REMEDY}",
            partitions_def=TENANTS,
        )


@dg.multi_asset(
    name="archive_care",
    specs=[_SPEC],
    check_specs=[_check_spec()],
    partitions_def=TENANTS,
    can_subset=True,
    backfill_policy=dg.BackfillPolicy.multi_run(TENANTS_IN_A_RUN),
)
def archive_care(context: dg.AssetExecutionContext, config: ScrubConfig, product: ProductResource) -> Iterator[Event]:
    """Read archives again, tenant by tenant."""

    def one(app: App, _: Bounds, tenant: TenantId, failures: Counter[str]) -> tuple[Event, ...]:
        return scrub_tenant(context, config, app, tenant, failures)

    yield from over_tenants(context, config, product, one, order=ASSET)


def scrub_tenant(
    context: dg.AssetExecutionContext, config: ScrubConfig, app: App, tenant: TenantId, failures: Counter[str]
) -> tuple[Event, ...]:
    """One tenant's scrub; it is marked when nothing was found, and the check says what was."""
    try:
        bounds: ScrubBounds = config.limits()
        result = app.scrub(tenant, run=context.run.run_id, slices=config.slices, bounds=bounds)
    except RetentionError as error:
        told = error
    except Exception as error:  # noqa: BLE001  the boundary
        told = unforeseen(error)
    else:
        return _told(context, tenant, result, failures)
    context.log.error("Tenant %s: %s", tenant, told)
    failures[str(told.code)] += 1
    return ()


def _told(
    context: dg.AssetExecutionContext, tenant: TenantId, result: ScrubResult, failures: Counter[str]
) -> tuple[Event, ...]:
    outcome = result.report.outcome
    tell = context.log.info if outcome.green else context.log.error
    tell("Tenant %s: %s", tenant, ending(result))
    if not outcome.green:
        failures[_shortfall(result)] += 1
    if outcome is Outcome.SKIPPED:
        return ()
    numbers = metadata(result)
    events: tuple[Event, ...] = ()
    if outcome in SOUND:
        events = (dg.AssetMaterialization(asset_key=ASSET, partition=tenant, metadata=numbers),)
    if any(key.name == CHECK for key in context.selected_asset_check_keys):
        events = (*events, _check(tenant, result, numbers))
    return events


def _check(tenant: TenantId, result: ScrubResult, numbers: dict[str, dg.MetadataValue]) -> dg.AssetCheckEvaluation:
    passed = not result.integrity.open
    advice = {} if passed else {"what_to_do": dg.MetadataValue.text(_REMEDY)}
    return dg.AssetCheckEvaluation(
        asset_key=dg.AssetKey(ASSET),
        check_name=CHECK,
        passed=passed,
        partition=tenant,
        severity=dg.AssetCheckSeverity.ERROR,
        metadata={**advice, **numbers},
    )


def ending(result: ScrubResult) -> str:
    """How a tenant's scrub ended, in one line."""
    report, tally = result.report, result.tally
    found = ", ".join(f"{name} {number}" for name, number in _findings(result).items() if number)
    return (
        f"{report.outcome} ({report.reason}); {tally.archives} archives of slice {result.part.number} of {result.part.of},"
        f" {tally.listed} objects listed; found: {found or 'nothing'}."
    )


def _findings(result: ScrubResult) -> dict[str, int]:
    numbers = {str(verdict): result.tally.verdicts[verdict] for verdict in Verdict if verdict.is_finding}
    return {**numbers, "unknown": result.tally.unknown}


def _shortfall(result: ScrubResult) -> str:
    if result.tally.findings:
        return f"findings ({', '.join(name for name, number in _findings(result).items() if number)})"
    return f"{result.report.outcome} ({', '.join(sorted(result.report.counts.failures)) or Code.INTERNAL})"


def metadata(result: ScrubResult) -> dict[str, dg.MetadataValue]:
    """What a scrub saw, and how sure one may be now, in counts (A16)."""
    tally, sure = result.tally, result.integrity
    return {
        "read": dg.MetadataValue.int(tally.archives),
        **{name: dg.MetadataValue.int(number) for name, number in _findings(result).items()},
        "slice": dg.MetadataValue.text(f"{result.part.number} of {result.part.of}"),
        "bytes_read": dg.MetadataValue.int(tally.bytes),
        "objects_listed": dg.MetadataValue.int(tally.listed),
        "listed_whole": dg.MetadataValue.bool(tally.listed_whole),
        "coverage_percent": dg.MetadataValue.float(round(100 * sure.coverage, 1)),
        "coverage_days": dg.MetadataValue.int(sure.days),
        "oldest_proof": _day(sure.oldest_proof),
        "next_expiry": _day(sure.next_expiry),
        "archives": dg.MetadataValue.int(sure.archives),
        "bytes": dg.MetadataValue.int(sure.bytes),
        "held": dg.MetadataValue.int(sure.held),
        "unlimited": dg.MetadataValue.int(sure.unlimited),
        "keys_destroyed": dg.MetadataValue.int(sure.keys_destroyed),
        "findings_open": dg.MetadataValue.md(reports.counted("open", {**sure.findings, "unknown": sure.unknown})),
        "outcome": dg.MetadataValue.text(str(result.report.outcome)),
        "why_it_ended": dg.MetadataValue.text(str(result.report.reason)),
    }


def _day(moment: datetime | None) -> dg.MetadataValue:
    return dg.MetadataValue.text("none" if moment is None else f"{moment:%Y-%m-%d}")
