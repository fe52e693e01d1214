"""Whether the runs that people promised came, looked at every hour: a schedule that should run and did not is an alert too (SPEC O2)."""

from collections import Counter

import dagster as dg

from retention_pipeline.defs.instances import unforeseen
from retention_pipeline.defs.resources import ProductResource
from retention_pipeline.defs.specs import CODE_VERSION, OWNERS
from retention_pipeline.errors import RetentionError
from retention_pipeline.model.promises import BrokenPromise
from retention_pipeline.punctuality import Punctuality

MOST_SHOWN = 1000


@dg.asset(
    name="promised_runs",
    group_name="governance",
    kinds={"postgres"},
    owners=OWNERS,
    tags={"retention/effect": "reads"},
    code_version=CODE_VERSION,
    description="Each standing approval is a promise: a job of a tenant is run on schedule. This looks at what is due and at what was "
    "done, and not at the scheduler.\n\n"
    "**Red** means that work which should be done is not: no run came, runs came and did not do it, or the approval ended. An approval "
    "that ends within a week is told, and is not red. A scheduler that is dead can't tell of itself: call `retention late` from outside "
    "as well.",
)
def promised_runs(context: dg.AssetExecutionContext, product: ProductResource) -> dg.MaterializeResult:  # type: ignore[type-arg]
    """Look at every promise."""
    failure = None
    found: tuple[BrokenPromise, ...] = ()
    try:
        with product.open() as app:
            found = Punctuality(app=app).broken()
    except RetentionError as error:
        failure = str(error)
    except Exception as error:  # noqa: BLE001  the boundary
        failure = str(unforeseen(error))
    late = Counter(f"{broken.promise.job}: {broken.trouble}" for broken in found if broken.trouble.late)
    if failure is None and late:
        failure = f"Promised runs are late: {', '.join(f'{what} {number}' for what, number in sorted(late.items()))}."
        context.log.error(failure)
    if failure is not None:
        raise dg.Failure(description=failure, metadata=_metadata(found), allow_retries=False) from None
    return dg.MaterializeResult(metadata=_metadata(found))


def _metadata(found: tuple[BrokenPromise, ...]) -> dict[str, dg.MetadataValue]:
    columns = [dg.TableColumn(name) for name in ("tenant", "job", "trouble", "since", "last_outcome")]
    records = [
        dg.TableRecord(
            {
                "tenant": str(broken.promise.tenant),
                "job": broken.promise.job,
                "trouble": str(broken.trouble),
                "since": broken.at.isoformat(timespec="seconds"),
                "last_outcome": broken.promise.outcome or "",
            }
        )
        for broken in found[:MOST_SHOWN]
    ]
    return {
        "late": dg.MetadataValue.int(sum(broken.trouble.late for broken in found)),
        "approvals_that_end_soon": dg.MetadataValue.int(sum(not broken.trouble.late for broken in found)),
        "by_tenant": dg.MetadataValue.table(records, schema=dg.TableSchema(columns=columns)),
    }


watch_promises = dg.define_asset_job(
    "watch_promises",
    selection=dg.AssetSelection.assets("promised_runs"),
    executor_def=dg.in_process_executor,
    tags={"retention/job": "watch_promises"},
    description="Looks whether each run that a standing approval promises did its work in time. It changes nothing.",
)

hourly_watch = dg.ScheduleDefinition(
    name="hourly_watch",
    job=watch_promises,
    cron_schedule="37 * * * *",
    execution_timezone="UTC",
    default_status=dg.DefaultScheduleStatus.STOPPED,
    description="Every hour, at 37 minutes past: is red where a promised run is late, or where a standing approval ended.",
)
