"""Acts on many rows at once, and where the database refuses one of them, on halves, until that one is found (F7)."""

from collections.abc import Callable
from typing import Final, TypeVar

import psycopg

from retention_pipeline.errors import Code
from retention_pipeline.postgres.session import Cursor

WAITED: Final = (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected)
_REFUSALS: Final = (*WAITED, psycopg.IntegrityError, psycopg.DataError, psycopg.errors.RaiseException)
"""What one instance's rows may raise, by a lock, a constraint or a trigger of the platform's, while all others could go."""

_Id = TypeVar("_Id", bound=str)


def by_halves(
    cursor: Cursor, act: Callable[[list[_Id]], list[_Id]], ids: list[_Id], rejected: dict[_Id, Code]
) -> list[_Id]:
    """Act on all ids; those that the database refuses are rejected, each with its code, and the others go.

    Args:
        cursor: of the transaction, in which each attempt is a savepoint.
        act: does it, and gives the ids that are done.
        ids: at most so many as one statement takes.
        rejected: gets the ids that were refused.
    """
    if not ids:
        return []
    cursor.execute("SAVEPOINT halves")
    try:
        done = act(ids)
    except _REFUSALS as error:
        cursor.execute("ROLLBACK TO SAVEPOINT halves")
        cursor.execute("RELEASE SAVEPOINT halves")
        if len(ids) == 1:
            rejected[ids[0]] = _refused_by(error)
            return []
        half = len(ids) // 2
        return [*by_halves(cursor, act, ids[:half], rejected), *by_halves(cursor, act, ids[half:], rejected)]
    cursor.execute("RELEASE SAVEPOINT halves")
    return done


def _refused_by(error: psycopg.Error) -> Code:
    if isinstance(error, WAITED):
        return Code.SOURCE_BUSY
    if isinstance(error, psycopg.errors.ForeignKeyViolation | psycopg.errors.RestrictViolation):
        return Code.UNNAMED_REFERENCE
    return Code.DATABASE_REFUSED
