"""Wakes a sweep at its next deadline, and costs nothing until then (SPEC J3, J6, J7; F16).

The cursor holds the next deadline and when to look again, at most a minute ahead. Until either is due a tick opens no connection. A look
reads one row of the product's own; only a deadline that has come asks which tenants have work.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Self

import dagster as dg

from retention_pipeline import clock
from retention_pipeline.defs.instances import unforeseen
from retention_pipeline.defs.resources import ProductResource
from retention_pipeline.defs.sweeps import lists
from retention_pipeline.errors import RetentionError
from retention_pipeline.model.ids import TenantId
from retention_pipeline.passes import Passes

LOOK_EVERY: Final = timedelta(minutes=1)
AGAIN: Final = timedelta(minutes=10)
"""While one deadline stands in the past (its run was blocked, or found nobody's yes), a run is asked for so often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wake:
    """What the cursor says: when the next deadline is, as far as was seen, and when to look again."""

    next_due: datetime | None
    revalidate_at: datetime | None

    @classmethod
    def read(cls, cursor: str | None) -> Self:
        """A cursor that is none, or that can't be read, means: look now."""
        try:
            found = json.loads(cursor or "{}")
            due, again = (
                datetime.fromisoformat(found[name]) if found.get(name) else None
                for name in ("next_due", "revalidate_at")
            )
        except (ValueError, TypeError, AttributeError):
            return cls(next_due=None, revalidate_at=None)
        return cls(next_due=due, revalidate_at=again)

    def sleeps(self, now: datetime) -> bool:
        """Whether there is nothing to look at yet. A clock that was set back does not put it to sleep for long."""
        if self.revalidate_at is None or not now < self.revalidate_at <= now + LOOK_EVERY:
            return False
        return self.next_due is None or now < self.next_due

    def written(self) -> str:
        """As the cursor keeps it."""
        return json.dumps(
            {
                "next_due": self.next_due and self.next_due.isoformat(),
                "revalidate_at": self.revalidate_at and self.revalidate_at.isoformat(),
            }
        )


def sensor(dataset: str, job: Any, now: Callable[[], datetime] = clock.utc_now) -> dg.SensorDefinition:
    """The sensor of one sweep with deadlines.

    Args:
        dataset: the sweep's name.
        job: what it starts.
        now: this machine's clock: it decides when to look, the database's decides what is due.
    """

    @dg.sensor(
        name=f"{dataset}_deadline",
        job=job,
        minimum_interval_seconds=30,
        default_status=dg.DefaultSensorStatus.STOPPED,
        description=f"Starts a pass of `{dataset}` when the next deadline has come, for each tenant that has due work and a standing "
        "approval. Between deadlines it reads one row a minute, and nothing of the platform's.",
    )
    def at_deadline(context: dg.SensorEvaluationContext, product: ProductResource) -> dg.SensorResult:
        moment = now()
        wake = Wake.read(context.cursor)
        if wake.sleeps(moment):
            return dg.SensorResult(skip_reason="Nothing is due yet.", cursor=wake.written())
        return _look(dataset, product, moment)

    return at_deadline


def _look(dataset: str, product: ProductResource, moment: datetime) -> dg.SensorResult:
    try:
        with product.open() as app:
            passes = Passes(app=app, name=dataset)
            due, database_now = passes.next_deadline()
            wake = Wake(next_due=due, revalidate_at=moment + LOOK_EVERY)
            if due is None or database_now is None or database_now < due:
                return dg.SensorResult(skip_reason="Nothing is due yet.", cursor=wake.written())
            tenants = passes.due()
            ready = tuple(tenant for tenant in tenants if passes.standing_approval(tenant))
            if not tenants:
                passes.recompute_deadline()
            return _asked(dataset, wake, due, database_now, tenants, ready)
    except RetentionError as error:
        failure = error
    except Exception as error:  # noqa: BLE001  the boundary
        failure = unforeseen(error)
    raise dg.Failure(description=str(failure)) from None


def _asked(
    dataset: str,
    wake: Wake,
    due: datetime,
    moment: datetime,
    tenants: tuple[TenantId, ...],
    ready: tuple[TenantId, ...],
) -> dg.SensorResult:
    if not ready:
        why = f"{len(tenants)} tenants have requests that are due, and none of them a standing approval."
        return dg.SensorResult(
            skip_reason=why if tenants else "Nobody had anything due after all.", cursor=wake.written()
        )
    # A run's key is asked for once, ever: the slice of time makes a further try of the same deadline possible.
    slice_of_time = int(moment.timestamp() // AGAIN.total_seconds())
    requests = list(lists(dataset, ready, f"{due.isoformat()}/{slice_of_time}"))
    return dg.SensorResult(run_requests=requests, cursor=wake.written())
