"""Tells stores that can lock how long, and for which hold, they shall hold archives; asked again until they took it (SPEC A11).

- The period is only ever made longer, and no lock is ever bypassed.
- The one legal hold of a version goes with the last matter, and never where the archive is kept without limit.
- A store that does not take it fails nothing: the reminder stays, and shows.
"""

from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from datetime import timedelta

from retention_pipeline.errors import Code, Refused, RetentionError
from retention_pipeline.model.ids import TenantId
from retention_pipeline.model.object_locks import LockReminders, WantedLock
from retention_pipeline.model.ports import ObjectStore

AT_ONCE = 1_000
"""Archives of one round; a run has a round after each of its batches."""
TOO_MANY = 3
"""After so many failures in a row the rest waits for the next round."""
_WHOLE_SECONDS = timedelta(seconds=1)
"""Stores keep a lock's end in whole seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """What one round came to.

    Args:
        told: archives that the store took.
        pending: archives that it still has to be told of.
        failures: why it did not take them, by code.
    """

    told: int = 0
    pending: int = 0
    failures: dict[str, int] = field(default_factory=dict)


def settle(
    reminders: LockReminders, stores: Callable[[TenantId, int], ObjectStore], tenant: TenantId, *, limit: int = AT_ONCE
) -> Settled:
    """Work through the outbox, one archive after the other."""
    told, in_a_row = 0, 0
    failures: dict[str, int] = {}
    opened: dict[int, ObjectStore] = {}
    with ExitStack() as stack:

        def store_of(generation: int) -> ObjectStore:
            if generation not in opened:
                opened[generation] = stack.enter_context(closing(stores(tenant, generation)))
            return opened[generation]

        for archive in reminders.waiting(tenant, limit):
            with reminders.telling(tenant, archive) as telling:
                if telling is None:
                    continue
                code = None if telling.wanted is None else _tell(store_of, telling.wanted)
                if code is None:
                    telling.done()
                    told, in_a_row = told + 1, 0
                    continue
                telling.failed(code)
            failures[code] = failures.get(code, 0) + 1
            in_a_row += 1
            if in_a_row == TOO_MANY:
                break
    return Settled(told=told, pending=reminders.pending(tenant), failures=failures)


def _tell(store_of: Callable[[int], ObjectStore], wanted: WantedLock) -> Code | None:
    """Tell one store of one object; the code of what kept it from taking it."""
    try:
        store = store_of(wanted.profile_generation)
        if wanted.until is not None:
            _lengthen(store, wanted)
        if wanted.hold or wanted.lift:
            store.hold(wanted.key, wanted.version, on=wanted.hold)
    except RetentionError as error:
        return error.code
    return None


def _lengthen(store: ObjectStore, wanted: WantedLock) -> None:
    """Lock until the end of the period; one that is locked for longer already is left as it is."""
    assert wanted.until is not None
    try:
        store.lock(wanted.key, wanted.version, until=wanted.until)
    except Refused as error:
        if error.code is not Code.STORE_DENIED:
            raise
        present = store.lock_state(wanted.key, wanted.version).until
        if present is None or present < wanted.until - _WHOLE_SECONDS:
            raise
