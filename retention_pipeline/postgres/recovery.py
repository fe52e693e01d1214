"""Dead letters that must not be replayed: seen, and closed under their fence by the one function that may (SPEC G2)."""

from dataclasses import dataclass

from psycopg import errors, sql

from retention_pipeline.catalog.model import InstanceDataset
from retention_pipeline.errors import Code, Refused
from retention_pipeline.postgres.session import Cursor, one, rows

_FIND = sql.SQL("SELECT id, status, fence, open FROM retention.dead_letter(%(wanted)s)")
_CANCEL = sql.SQL("""
SELECT outcome, was, now_fence FROM retention.cancel_recovery(%(approval)s::uuid, %(letter)s, %(fence)s, %(correlation)s)
""")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """One dead letter, as the platform's table has it now.

    Args:
        open: whether it might still be replayed.
    """

    id: str
    status: str | None
    fence: int | None
    open: bool

    def refusal(self, expected_fence: int) -> Refused | None:
        """Why it could not be closed under this fence; None where it could."""
        if not self.open:
            return _closed(self.status)
        return _stale(self.fence) if self.fence != expected_fence else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancellation:
    """What closing a dead letter came to; the audit event of it is committed, a refusal's too.

    Args:
        status: what it has now.
        fence: what it has now; one more than before, where it was closed.
        refusal: why nothing was changed; None where it was closed.
    """

    status: str | None
    fence: int | None
    refusal: Refused | None


def find(cursor: Cursor, dataset: InstanceDataset, wanted: str) -> DeadLetter:
    """A dead letter of this tenant, in the database's own spelling.

    Raises:
        Refused: `RECOVERY_UNKNOWN`; or `CATALOG_SECTION_MISSING`, when the catalog names no dead letters.
    """
    if dataset.recovery is None:
        raise Refused(
            Code.CATALOG_SECTION_MISSING,
            "The catalog does not say which dead letters may be closed.",
            remedy="Add its part `recovery`, then run `retention migrate`.",
        )
    try:
        found = rows(cursor, _FIND, {"wanted": wanted})
    except errors.DataError:
        found = []
    if not found:
        raise _unknown()
    identifier, status, fence, is_open = found[0]
    return DeadLetter(id=identifier, status=status, fence=fence, open=is_open)


def cancel(cursor: Cursor, letter: str, *, expected_fence: int, approval: str, correlation: str) -> Cancellation:
    """Close a dead letter under an approval, as the worker, in one transaction with the approval's use and the audit event.

    A refusal is an answer and not an exception, so that its event is committed.

    Args:
        cursor: of the worker's transaction.
        letter: its id, as `find` spells it.
        expected_fence: the fence that it must still have.
        approval: a single-use one, for exactly this dead letter.
        correlation: ties the event to the call.
    """
    values = {"approval": approval, "letter": letter, "fence": expected_fence, "correlation": correlation}
    cursor.execute(_CANCEL, values)
    outcome, status, fence = one(cursor)
    refusals = {"unknown": _unknown(), "stale": _stale(fence), "not_open": _closed(status)}
    return Cancellation(status=status, fence=fence, refusal=refusals.get(outcome))


def _unknown() -> Refused:
    return Refused(
        Code.RECOVERY_UNKNOWN,
        "This tenant has no such dead letter.",
        remedy="Check the dead letter's id and the tenant.",
    )


def _stale(fence: int | None) -> Refused:
    return Refused(
        Code.FENCE_STALE,
        f"The dead letter's fence is {fence} now; nothing was changed.",
        remedy="Somebody else took it over: look at what became of it, then decide again with this fence.",
    )


def _closed(status: str | None) -> Refused:
    return Refused(
        Code.RECOVERY_CLOSED,
        f"The dead letter is closed already ({status}); nothing was changed.",
        remedy="Nothing is left to do: it is not replayed, and blocks its instance until its horizon is over.",
    )
