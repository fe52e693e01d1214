"""Schedules, installed stopped; one that is switched on applies only for tenants whose gates are open (SPEC D3)."""

from collections.abc import Iterator

import dagster as dg

from retention_pipeline.defs.config import STANDING
from retention_pipeline.defs.instances import TENANTS_IN_A_RUN, unforeseen
from retention_pipeline.defs.jobs import expire_archives, reconcile_tenants, scrub_archives
from retention_pipeline.defs.resources import ProductResource
from retention_pipeline.errors import RetentionError


@dg.schedule(
    name="daily_preflight",
    job=reconcile_tenants,
    cron_schedule="0 6 * * *",
    execution_timezone="UTC",
    default_status=dg.DefaultScheduleStatus.STOPPED,
    description="Every morning at 06:00 UTC: counts and selects for every tenant, and changes nothing.",
)
def daily_preflight(context: dg.ScheduleEvaluationContext, product: ProductResource) -> Iterator[dg.RunRequest]:
    """A preflight of every tenant, in lists."""
    yield from _lists(context, product, {"apply": False})


@dg.schedule(
    name="nightly_reconcile",
    job=reconcile_tenants,
    cron_schedule="0 2 * * *",
    execution_timezone="UTC",
    default_status=dg.DefaultScheduleStatus.STOPPED,
    description="Every night at 02:00 UTC: archives, verifies and deletes for each tenant whose four gates are open and that has a "
    "standing approval. For any other it runs a preflight only, and the run says why.",
)
def nightly_reconcile(context: dg.ScheduleEvaluationContext, product: ProductResource) -> Iterator[dg.RunRequest]:
    """A run of every tenant, in lists; the step decides for each whether it may apply."""
    yield from _lists(context, product, {"apply": True, "approval": STANDING})


@dg.schedule(
    name="nightly_archive_retention",
    job=expire_archives,
    cron_schedule="0 4 * * *",
    execution_timezone="UTC",
    default_status=dg.DefaultScheduleStatus.STOPPED,
    description="Every night at 04:00 UTC: ends archives whose own retention is over, for each tenant whose four gates are open and that "
    "has a standing approval of `expire`. For any other it counts only, and the run says why.",
)
def nightly_archive_retention(
    context: dg.ScheduleEvaluationContext, product: ProductResource
) -> Iterator[dg.RunRequest]:
    """A run over every tenant's archives, in lists; the step decides for each whether it may apply."""
    yield from _lists(context, product, {"apply": True, "approval": STANDING}, "archive_life")


@dg.schedule(
    name="daily_archive_scrub",
    job=scrub_archives,
    cron_schedule="0 5 * * *",
    execution_timezone="UTC",
    default_status=dg.DefaultScheduleStatus.STOPPED,
    description="Every morning at 05:00 UTC: reads a thirtieth of each tenant's archives again, so that each one is read once a month, "
    "and lists the stores. It changes nothing.",
)
def daily_archive_scrub(context: dg.ScheduleEvaluationContext, product: ProductResource) -> Iterator[dg.RunRequest]:
    """A scrub of every tenant, in lists."""
    yield from _lists(context, product, {}, "archive_care")


def _lists(
    context: dg.ScheduleEvaluationContext,
    product: ProductResource,
    config: dict[str, object],
    step: str = "instance_archive",
) -> Iterator[dg.RunRequest]:
    failure = None
    tenants: list[str] = []
    try:
        with product.open() as app:
            tenants = [str(tenant.id) for tenant in app.tenants()]
    except RetentionError as error:
        failure = error
    except Exception as error:  # noqa: BLE001  the boundary
        failure = unforeseen(error)
    if failure is not None:
        raise dg.Failure(description=str(failure)) from None
    for start in range(0, len(tenants), TENANTS_IN_A_RUN):
        batch = tenants[start : start + TENANTS_IN_A_RUN]
        yield dg.RunRequest(
            run_key=f"{context.scheduled_execution_time.isoformat()}/{start}",
            run_config={"ops": {step: {"config": {**config, "tenants": batch}}}},
        )
