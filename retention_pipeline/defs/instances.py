"""The chain for workflow instances: one body for a single partition, a range, and a list of tenants (SPEC D1, D2).

For each tenant it runs the selected steps and yields what really happened; a tenant that failed is never marked, the others go
on, and the run fails at the end.
"""

from collections import Counter
from collections.abc import Callable, Iterator

import dagster as dg

from retention_pipeline.app import App
from retention_pipeline.clock import monotonic
from retention_pipeline.defs.config import STANDING, ReconcileConfig, SweepConfig, TenantsConfig
from retention_pipeline.defs.evidence import checks, materializations
from retention_pipeline.defs.partitions import TENANTS, longest_unseen_first
from retention_pipeline.defs.resources import ProductResource
from retention_pipeline.defs.specs import asset_specs, check_specs
from retention_pipeline.errors import Code, RetentionError, UsageFault
from retention_pipeline.model.gates import Gates
from retention_pipeline.model.ids import TenantId
from retention_pipeline.model.outcome import Outcome, RunReport
from retention_pipeline.model.people import AnyJob, Job
from retention_pipeline.stages.reconcile import Bounds
from retention_pipeline.stages.world import Step

TENANTS_IN_A_RUN = 50
RUN_SECONDS = 6000.0
"""No further tenant is begun after this (W7). The monitor in `dagster.yaml` would end the run later, in the middle of one."""
NOT_REACHED = "not_reached"
"""Tenants whose turn did not come: not marked, and first in the next run."""

Event = dg.AssetMaterialization | dg.AssetCheckEvaluation


@dg.multi_asset(
    name="instance_archive",
    specs=asset_specs(),
    check_specs=check_specs(),
    partitions_def=TENANTS,
    can_subset=True,
    backfill_policy=dg.BackfillPolicy.multi_run(TENANTS_IN_A_RUN),
)
def instance_archive(
    context: dg.AssetExecutionContext, config: ReconcileConfig, product: ProductResource
) -> Iterator[Event]:
    """Archive, verify and delete workflow instances, tenant by tenant."""

    def one(app: App, bounds: Bounds, tenant: TenantId, failures: Counter[str]) -> tuple[Event, ...]:
        return run_tenant(context, config, bounds, app, tenant, failures)

    yield from over_tenants(context, config, product, one)


def over_tenants(
    context: dg.AssetExecutionContext,
    config: TenantsConfig,
    product: ProductResource,
    one: Callable[[App, Bounds, TenantId, Counter[str]], tuple[Event, ...]],
    *,
    order: str = Step.INVENTORY.value,
    arrange: Callable[[App, tuple[TenantId, ...]], tuple[TenantId, ...]] | None = None,
    seconds: Callable[[], float] = lambda: RUN_SECONDS,
) -> Iterator[Event]:
    """Run one tenant after the other, whatever becomes of each; fail at the end if any did not get its work done.

    Args:
        context: the run's.
        config: what a person chose.
        product: opens the app.
        one: a tenant's work; it counts a failure by its code instead of raising it.
        order: the asset whose history says whose turn it is.
        arrange: says it instead, where the position is on our own record.
        seconds: no further tenant is begun after this; what is not allowed is a refusal.
    """
    failures: Counter[str] = Counter()
    tenants: tuple[TenantId, ...] = ()
    # Nothing of a library reaches Dagster's event log: it would keep the text, the cause and the source line (A16).
    code = None
    try:
        with product.open() as app:
            bounds = config.bounds()
            chosen = chosen_tenants(context, config, app)
            tenants = arrange(app, chosen) if arrange else longest_unseen_first(context.instance, chosen, order)
            begun, limit = monotonic(), seconds()
            for position, tenant in enumerate(tenants):
                if monotonic() - begun > limit:
                    failures[NOT_REACHED] = len(tenants) - position
                    break
                yield from one(app, bounds, tenant, failures)
    except RetentionError as error:
        code = error
    except Exception as error:  # noqa: BLE001  the boundary
        code = unforeseen(error)
    if code is not None:
        raise dg.Failure(description=str(code), allow_retries=False) from None
    if failures:
        told = ", ".join(f"{name} {number}" for name, number in sorted(failures.items()))
        raise dg.Failure(
            description=f"{failures.total()} of {len(tenants)} tenants did not get their work done: {told}.",
            metadata={"tenants": len(tenants), "not_done": failures.total()},
            allow_retries=False,
        )


def chosen_tenants(context: dg.AssetExecutionContext, config: TenantsConfig, app: App) -> tuple[TenantId, ...]:
    """Whose turn it is: the partitions, or the list; never everybody by accident (F17)."""
    keys = list(context.partition_keys) if context.has_partition_key or context.has_partition_key_range else []
    if bool(keys) == bool(config.tenants):
        raise UsageFault(
            Code.USAGE,
            "A run needs either partitions or a list of tenants, and not both.",
            remedy="Choose partitions in the UI; schedules give a list.",
        )
    wanted = keys or config.tenants
    known = {tenant.id for tenant in app.tenants()}
    strangers = [name for name in wanted if name not in known]
    if strangers:
        raise UsageFault(
            Code.TENANT_UNKNOWN,
            f"{len(strangers)} of {len(wanted)} tenants do not exist.",
            remedy="Choose partitions that the platform knows; `tenant_partitions` keeps them true.",
        )
    return tuple(TenantId(name) for name in dict.fromkeys(wanted))


def run_tenant(
    context: dg.AssetExecutionContext,
    config: ReconcileConfig,
    bounds: Bounds,
    app: App,
    tenant: TenantId,
    failures: Counter[str],
) -> tuple[Event, ...]:
    """One tenant's run and what it leaves; a failure is counted by its code, and the next tenant goes on."""
    selected = {Step(key.to_user_string()) for key in context.selected_asset_keys}
    wanted = {key.name for key in context.selected_asset_check_keys}
    try:
        gates = app.gates(tenant)  # before anything is done: what is done is told, whatever fails afterwards
        apply, approval, why = permission_to_apply(config, app, tenant, gates)
        if why:
            context.log.warning("Tenant %s: preflight only. %s", tenant, why)
        result = app.reconcile(
            tenant,
            run=context.run.run_id,
            apply=apply,
            approval=approval,
            steps=frozenset(selected),
            bounds=bounds,
        )
        events: tuple[Event, ...] = (
            *materializations(tenant, result, selected, why),
            *(check for check in checks(tenant, result, gates) if check.check_name in wanted),
        )
    except RetentionError as error:
        told = error
    except Exception as error:  # noqa: BLE001  the boundary
        told = unforeseen(error)
    else:
        tell = context.log.info if result.report.outcome.green else context.log.error
        tell("Tenant %s: %s", tenant, ending(result.report))
        if not result.report.outcome.green:
            failures[shortfall(result.report)] += 1
        return events
    context.log.error("Tenant %s: %s", tenant, told)
    failures[str(told.code)] += 1
    return ()


def permission_to_apply(
    config: ReconcileConfig | SweepConfig, app: App, tenant: TenantId, gates: Gates, job: AnyJob = Job.RECONCILE
) -> tuple[bool, str | None, str | None]:
    """Whether this tenant's run applies, under which approval, and if a schedule may not, why (D3)."""
    if not config.apply or config.approval != STANDING:
        return config.apply, config.approval, None
    if not gates.open:
        return False, None, " ".join(gates.closed())
    standing = app.records().standing_approval(tenant, job)
    if standing is None:
        return False, None, f"No standing approval: `retention approve {job} --standing`."
    return True, standing, None


def ending(report: RunReport) -> str:
    """How a tenant's run ended, in one line."""
    aside = ", ".join(f"{code} {number}" for code, number in sorted(report.counts.failures.items()))
    return f"{report.outcome} ({report.reason}); {report.counts.deleted} deleted{f'; set aside: {aside}' if aside else ''}."


def shortfall(report: RunReport) -> str:
    """What kept a tenant's work from being done: the codes of what was set aside, or the reason itself."""
    if report.outcome is Outcome.PARTIAL:
        return f"partial ({', '.join(sorted(report.counts.failures))})"
    return f"behind ({report.reason})" if report.outcome is Outcome.BEHIND else str(report.reason)


def unforeseen(error: Exception) -> RetentionError:
    """A named failure for what nobody foresaw, without its text."""
    return RetentionError(
        Code.INTERNAL,
        f"Something happened that nobody foresaw ({type(error).__name__}).",
        remedy="Report it with the run's id; whatever was not committed was not changed.",
    )
