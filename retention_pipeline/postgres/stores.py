"""Data stores of the platform: how many instances are bound to one, and its detachment when none is (SPEC W9)."""

from dataclasses import dataclass
from datetime import datetime

from psycopg import errors, sql

from retention_pipeline.catalog.model import InstanceDataset
from retention_pipeline.errors import Code, Refused
from retention_pipeline.postgres.session import Cursor, one, rows

_FIND = sql.SQL("SELECT id, detached_at, bound FROM retention.data_store(%(wanted)s)")
_DETACH = sql.SQL("""
SELECT outcome, at, bound FROM retention.detach_store(%(approval)s::uuid, %(store)s, %(correlation)s)
""")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataStore:
    """One data store.

    Args:
        bound: the rows that bind an instance to it, of whatever tenant.
    """

    id: str
    detached_at: datetime | None
    bound: int

    @property
    def refusal(self) -> Refused | None:
        """Why it could not be detached; None where it could, or is."""
        return _bound(self.bound) if self.bound and self.detached_at is None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Detachment:
    """What detaching a store came to; the audit event of it is committed, a refusal's too.

    Args:
        at: since when it is detached.
        already: whether it was before.
        refusal: why nothing was changed.
    """

    at: datetime | None
    already: bool
    refusal: Refused | None


def find(cursor: Cursor, dataset: InstanceDataset, wanted: str) -> DataStore:
    """A store of this tenant, in the database's own spelling.

    Raises:
        Refused: `DATA_STORE_UNKNOWN`; or `CATALOG_SECTION_MISSING`, when the catalog names no stores.
    """
    if dataset.stores is None:
        raise Refused(
            Code.CATALOG_SECTION_MISSING,
            "The catalog does not say which stores there are.",
            remedy="Add its part `stores`, then run `retention migrate`.",
        )
    try:
        found = rows(cursor, _FIND, {"wanted": wanted})
    except errors.DataError:
        found = []
    if not found:
        raise _unknown()
    identifier, detached_at, bound = found[0]
    return DataStore(id=identifier, detached_at=detached_at, bound=bound)


def detach(cursor: Cursor, store: str, *, approval: str, correlation: str) -> Detachment:
    """Detach a store under an approval, as the worker, in one transaction with the approval's use and the audit event.

    Args:
        cursor: of the worker's transaction.
        store: its id, as `find` spells it.
        approval: a single-use one, for exactly this store.
        correlation: ties the event to the call.
    """
    cursor.execute(_DETACH, {"approval": approval, "store": store, "correlation": correlation})
    outcome, at, bound = one(cursor)
    refusals = {"unknown": _unknown(), "bound": _bound(bound or 0)}
    return Detachment(at=at, already=outcome == "already", refusal=refusals.get(outcome))


def _unknown() -> Refused:
    return Refused(
        Code.DATA_STORE_UNKNOWN, "This tenant has no such data store.", remedy="Check the store's id and the tenant."
    )


def _bound(bound: int) -> Refused:
    return Refused(
        Code.DATA_STORE_BOUND,
        f"{bound} instance(s) are bound to the store; nothing was changed.",
        remedy="It detaches once they are archived and gone: `retention reconcile`, or `retention archive ID` for each.",
    )
