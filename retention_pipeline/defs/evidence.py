"""What a run leaves in Dagster's history: counts, codes and durations that a person understands, and nothing else (SPEC D5, A16)."""

from collections.abc import Iterator

import dagster as dg

from retention_pipeline import reports
from retention_pipeline.defs.specs import CHECKS
from retention_pipeline.model.decision import Disposition
from retention_pipeline.model.gates import Gates
from retention_pipeline.model.ids import TenantId
from retention_pipeline.model.outcome import Outcome
from retention_pipeline.stages.reconcile import RunResult
from retention_pipeline.stages.world import Step

DONE = frozenset({Outcome.COMPLETED, Outcome.WORK_REMAINS, Outcome.BEHIND})
"""Outcomes of runs that did their work, as far as their bounds reached; only these mark what comes after the preflight."""

Metadata = dict[str, dg.MetadataValue]


def materializations(
    tenant: TenantId, result: RunResult, selected: set[Step], why: str | None
) -> Iterator[dg.AssetMaterialization]:
    """One event for each selected step that really did its work for the tenant.

    Args:
        tenant: whose.
        result: what the run did.
        selected: which assets were asked for.
        why: why a run that was to apply was a preflight only.
    """
    steps = {Step.INVENTORY: _inventory(result), Step.ELIGIBLE_SET: _eligible(result, why)}
    if result.report.outcome in DONE:
        steps[Step.ENCRYPTED_MANIFESTS] = _archived(result)
        steps[Step.VERIFIED_OBJECTS] = _verified(result)
        steps[Step.DELETIONS] = _deleted(result)
    for step, metadata in steps.items():
        if step in selected:
            yield dg.AssetMaterialization(asset_key=step.value, partition=tenant, metadata=metadata)


def checks(tenant: TenantId, result: RunResult, gates: Gates) -> Iterator[dg.AssetCheckEvaluation]:
    """The gates and two findings, as evidence beside the inventory."""
    inventory = result.inventory
    counted = sum(inventory.dispositions.values())
    foreign = inventory.dispositions.get(Disposition.FOREIGN_ROWS, 0)
    numbers: Metadata = {
        "instances": dg.MetadataValue.int(inventory.total),
        "accounted_for": dg.MetadataValue.int(counted),
    }
    yield _check(tenant, "every_instance_accounted", counted == inventory.total, numbers)
    yield _check(tenant, "no_foreign_rows", not foreign, {"instances_with_foreign_rows": dg.MetadataValue.int(foreign)})
    for name, passed in (
        ("catalog_fits_database", gates.schema),
        ("preflight_acknowledged", gates.inventory),
        ("provider_ready", gates.provider),
        ("canary_proven", gates.canary),
    ):
        yield _check(tenant, name, passed, {"a_schedule_may_apply": dg.MetadataValue.bool(gates.open)})


def _check(tenant: TenantId, name: str, passed: bool, metadata: Metadata) -> dg.AssetCheckEvaluation:  # noqa: FBT001
    check = CHECKS[name]
    advice = {} if passed else {"what_to_do": dg.MetadataValue.text(check.remedy)}
    return dg.AssetCheckEvaluation(
        asset_key=dg.AssetKey(Step.INVENTORY.value),
        check_name=name,
        passed=passed,
        partition=tenant,
        severity=check.severity,
        metadata={**metadata, **advice},
    )


def _inventory(result: RunResult) -> Metadata:
    inventory = result.inventory
    return {
        "instances": dg.MetadataValue.int(inventory.total),
        "eligible": dg.MetadataValue.int(inventory.eligible),
        "protected": dg.MetadataValue.int(sum(inventory.protected.values())),
        "dispositions": dg.MetadataValue.md(reports.dispositions(inventory)),
        "chart": dg.MetadataValue.md(reports.disposition_chart(inventory)),
        "blockers_overlap": dg.MetadataValue.md(reports.blockers(inventory)),
        "as_of": dg.MetadataValue.timestamp(inventory.as_of),
    }


def _eligible(result: RunResult, why: str | None) -> Metadata:
    held_back = {"why_only_a_preflight": dg.MetadataValue.text(why)} if why else {}
    signals = [f"- `{signal.code}`: {signal.sentence}" for signal in result.signals]
    return {
        "instances": dg.MetadataValue.int(result.eligible.items),
        "beyond_the_bounds": dg.MetadataValue.int(result.eligible.remaining),
        "oldest_overdue": dg.MetadataValue.text(reports.age(result.report.oldest_overdue_seconds)),
        "preflight": dg.MetadataValue.text(result.preflight),
        "what_would_stop_an_apply": dg.MetadataValue.md("\n".join(signals) or "nothing"),
        **held_back,
    }


def _run(result: RunResult) -> Metadata:
    report = result.report
    return {
        "outcome": dg.MetadataValue.text(str(report.outcome)),
        "why_it_ended": dg.MetadataValue.text(str(report.reason)),
        "where_the_time_went": dg.MetadataValue.md(reports.durations(report.seconds)),
    }


def _archived(result: RunResult) -> Metadata:
    counts = result.report.counts
    return {
        "archived": dg.MetadataValue.int(counts.archived),
        "bytes": dg.MetadataValue.int(counts.bytes_archived),
        "adopted_from_an_earlier_run": dg.MetadataValue.int(counts.adopted),
        **_run(result),
    }


def _verified(result: RunResult) -> Metadata:
    return {"verified": dg.MetadataValue.int(result.report.counts.verified), **_run(result)}


def _deleted(result: RunResult) -> Metadata:
    report = result.report
    return {
        "deleted": dg.MetadataValue.int(report.counts.deleted),
        "rows": dg.MetadataValue.int(report.counts.rows_deleted),
        "changed_meanwhile": dg.MetadataValue.int(report.counts.superseded),
        "locks_to_tell": dg.MetadataValue.int(report.counts.locks_pending),
        "backlog": dg.MetadataValue.int(report.backlog),
        "oldest_overdue": dg.MetadataValue.text(reports.age(report.oldest_overdue_seconds)),
        "runs_to_catch_up": dg.MetadataValue.text(reports.forecast(report.forecast_runs)),
        **_run(result),
    }
