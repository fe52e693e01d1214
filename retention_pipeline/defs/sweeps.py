"""One asset, one job and one schedule for each sweep of the catalog (SPEC D1, E, L, J, W4)."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import dagster as dg

from retention_pipeline import reports
from retention_pipeline.app import App
from retention_pipeline.catalog.sweep_model import Every, SweepDataset
from retention_pipeline.defs.config import STANDING, SweepConfig
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
from retention_pipeline.defs.specs import CODE_VERSION, OWNERS
from retention_pipeline.errors import RetentionError
from retention_pipeline.model.gates import Gates
from retention_pipeline.model.ids import TenantId
from retention_pipeline.model.people import SweepJob
from retention_pipeline.passes import Passes, PassResult
from retention_pipeline.sweeps.rounds import in_turn

GROUP: Final = "sweeps"
_EFFECTS: Final = {"clear": "clears-payloads", "purge": "deletes-source-rows", "shelve": "archives-requests"}
_HOURLY: Final = "7 * * * *"
_ON_THE_HOUR: Final = "0 * * * *"


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepDefinitions:
    """What Dagster loads of one sweep."""

    name: str
    every: Every
    asset: dg.AssetsDefinition
    job: Any  # Dagster gives its type no public name
    schedule: dg.ScheduleDefinition


def step_of(dataset: str) -> str:
    """What the step of a sweep is called, in a run's configuration."""
    return f"{dataset}_pass"


def define(dataset: SweepDataset) -> SweepDefinitions:
    """Make a sweep's asset, its job and its schedule from its rules."""
    asset = _asset(dataset)
    job = dg.define_asset_job(
        f"sweep_{dataset.dataset}",
        selection=dg.AssetSelection.assets(*asset.keys),
        executor_def=dg.in_process_executor,
        tags={"retention/job": SweepJob.of(dataset.dataset)},
        description=f"{dataset.about}\n\nLaunched without a change it is a preflight: it counts, and changes nothing. To apply, set "
        f"`apply: true` and give the id of an approval of `{SweepJob.of(dataset.dataset)}`.",
    )
    return SweepDefinitions(
        name=dataset.dataset, every=dataset.every, asset=asset, job=job, schedule=_schedule(dataset, job)
    )


def _asset(dataset: SweepDataset) -> dg.AssetsDefinition:
    name = dataset.dataset
    spec = dg.AssetSpec(
        name,
        description=f"{dataset.about}\n\nA run that nobody approved counts, and ends nothing: it is in the run's log.",
        kinds={"postgres"},
        tags={"retention/effect": _EFFECTS[dataset.ends]},
        group_name=GROUP,
        owners=OWNERS,
        code_version=CODE_VERSION,
        skippable=True,
    )

    @dg.multi_asset(
        name=step_of(name),
        specs=[spec],
        partitions_def=TENANTS,
        can_subset=True,
        backfill_policy=dg.BackfillPolicy.multi_run(TENANTS_IN_A_RUN),
    )
    def swept(context: dg.AssetExecutionContext, config: SweepConfig, product: ProductResource) -> Iterator[Event]:
        gates: list[Gates] = []

        def arrange(app: App, tenants: tuple[TenantId, ...]) -> tuple[TenantId, ...]:
            gates.append(app.schema_gate(name))  # once: the schema is no tenant's
            return in_turn(tenants, Passes(app=app, name=name).last())

        def one(app: App, _: object, tenant: TenantId, failures: Counter[str]) -> tuple[Event, ...]:
            return sweep_tenant(context, config, Passes(app=app, name=name), gates[0], tenant, failures)

        yield from over_tenants(context, config, product, one, arrange=arrange, seconds=lambda: config.limits()[1])

    return swept


def sweep_tenant(
    context: dg.AssetExecutionContext,
    config: SweepConfig,
    passes: Passes,
    gates: Gates,
    tenant: TenantId,
    failures: Counter[str],
) -> tuple[Event, ...]:
    """One tenant's pass; a preflight marks nothing, and says what it counted."""
    try:
        apply, approval, why = permission_to_apply(config, passes.app, tenant, gates, SweepJob.of(passes.name))
        if why:
            context.log.warning("Tenant %s: preflight only. %s", tenant, why)
        bounds = replace(passes.bounds, seconds=config.limits()[0])
        done = passes.over(tenant, run=context.run.run_id, apply=apply, approval=approval, bounds=bounds)
        passes.handled(tenant)
    except RetentionError as error:
        told = error
    except Exception as error:  # noqa: BLE001  the boundary
        told = unforeseen(error)
    else:
        report = done.result.report
        tell = context.log.info if report.outcome.green else context.log.error
        tell("Tenant %s: %s", tenant, ending(done))
        if not report.outcome.green:
            failures[shortfall(report)] += 1
        if report.outcome not in DONE:
            return ()
        return (dg.AssetMaterialization(asset_key=passes.name, partition=tenant, metadata=_metadata(done)),)
    context.log.error("Tenant %s: %s", tenant, told)
    failures[str(told.code)] += 1
    return ()


def ending(done: PassResult) -> str:
    """How a tenant's pass ended, in one line."""
    report = done.result.report
    ended = sum(table.done for table in done.result.tables.values())
    aside = ", ".join(f"{code} {number}" for code, number in sorted(report.counts.failures.items()))
    return f"{report.outcome} ({report.reason}); {ended} ended, {report.backlog} due{f'; set aside: {aside}' if aside else ''}."


def _metadata(done: PassResult) -> dict[str, dg.MetadataValue]:
    result, report = done.result, done.result.report
    notes = "\n".join(f"- {table}: {note}." for table, note in done.notes)
    metadata: dict[str, dg.MetadataValue] = {
        "ended": dg.MetadataValue.int(sum(table.done for table in result.tables.values())),
        "by_table": dg.MetadataValue.md(reports.swept(result)),
        "backlog": dg.MetadataValue.int(report.backlog),
        "rows_of_one_pass_at_most": dg.MetadataValue.int(result.ceiling),
        "oldest_overdue": dg.MetadataValue.text(reports.age(report.oldest_overdue_seconds)),
        "further_passes_needed": dg.MetadataValue.text(reports.forecast(report.forecast_runs)),
        "outcome": dg.MetadataValue.text(str(report.outcome)),
        "why_it_ended": dg.MetadataValue.text(str(report.reason)),
        "where_the_time_went": dg.MetadataValue.md(reports.durations(report.seconds)),
        "tables_before_and_after": dg.MetadataValue.md(reports.health(done.before, done.after)),
    }
    if result.left.inflow is not None:
        metadata["fall_due_within_a_day"] = dg.MetadataValue.int(result.left.inflow)
    if result.left.more:
        metadata["backlog_is_at_least_that"] = dg.MetadataValue.text("More rows are over their time than are counted.")
    if notes:
        metadata["what_to_do_about_vacuum"] = dg.MetadataValue.md(notes)
    return metadata


def _schedule(dataset: SweepDataset, job: Any) -> dg.ScheduleDefinition:
    when = "Every hour" if dataset.every is Every.HOUR else f"Every day at {dataset.hour:02}:00 UTC"
    what = f"{when}: a pass of `{dataset.dataset}` over each tenant that has rows over their time, under its standing approval; without "
    what += "one it counts only, and the run says why."
    if dataset.every is not Every.HOUR:
        what += " A tenant whose last pass left work behind gets one every hour, until it has caught up."

    @dg.schedule(
        name=f"{dataset.dataset}_schedule",
        job=job,
        cron_schedule=_HOURLY if dataset.every is Every.HOUR else _ON_THE_HOUR,
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.STOPPED,
        description=what,
    )
    def scheduled(
        context: dg.ScheduleEvaluationContext, product: ProductResource
    ) -> Iterator[dg.RunRequest | dg.SkipReason]:
        regular = dataset.every is Every.HOUR or context.scheduled_execution_time.hour == dataset.hour
        tenants = _whose(product, dataset.dataset, lambda passes: _turn(passes, regular=regular))
        if not tenants:
            yield dg.SkipReason("No tenant has rows over their time." if regular else "No tenant has to catch up.")
        yield from lists(dataset.dataset, tenants, context.scheduled_execution_time.isoformat())

    return scheduled


def _turn(passes: Passes, *, regular: bool) -> tuple[TenantId, ...]:
    if regular:
        passes.recompute_deadline()  # the backstop of those that have one
    return passes.due() if regular else passes.behind()


def lists(dataset: str, tenants: tuple[TenantId, ...], moment: str) -> Iterator[dg.RunRequest]:
    """Runs over lists of tenants, in the order in which they come; the step decides for each whether it may apply."""
    for start in range(0, len(tenants), TENANTS_IN_A_RUN):
        batch = [str(tenant) for tenant in tenants[start : start + TENANTS_IN_A_RUN]]
        config = {"apply": True, "approval": STANDING, "tenants": batch}
        yield dg.RunRequest(run_key=f"{moment}/{start}", run_config={"ops": {step_of(dataset): {"config": config}}})


def _whose(
    product: ProductResource, dataset: str, ask: Callable[[Passes], tuple[TenantId, ...]]
) -> tuple[TenantId, ...]:
    try:
        with product.open() as app:
            return ask(Passes(app=app, name=dataset))
    except RetentionError as error:
        failure = error
    except Exception as error:  # noqa: BLE001  the boundary
        failure = unforeseen(error)
    raise dg.Failure(description=str(failure)) from None
