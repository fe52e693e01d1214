"""The next deadline of a dataset: read for almost nothing, and recomputed by the worker alone (SPEC J2, J3)."""

from datetime import datetime
from typing import Final

from psycopg import sql

from retention_pipeline import clock
from retention_pipeline.catalog.sweep_model import ShelveDataset
from retention_pipeline.postgres import deadline_rules
from retention_pipeline.postgres.session import Session, one, rows

TRIES: Final = 20
BETWEEN_TRIES: Final = 0.05
"""In seconds. A recomputation never queues for its lock: writers would queue behind it."""

# `infinity` is no instant that Python has: nothing waits.
_NEXT = sql.SQL("""
SELECT nullif(least(d.next_due, (SELECT min(w.due) FROM retention.deadline_wakes AS w WHERE w.dataset = d.dataset)), 'infinity'),
  clock_timestamp()
FROM retention.deadlines AS d WHERE d.dataset = %(dataset)s
""")


def next_due(session: Session, dataset: str) -> tuple[datetime | None, datetime | None]:
    """The next deadline over all tenants, None where nothing waits, and the database's own now; reads one row of ours.

    A dataset that was never computed has neither.
    """
    with session.transaction(None, read_only=True) as cursor:
        found = rows(cursor, _NEXT, {"dataset": dataset})
    return (found[0][0], found[0][1]) if found else (None, None)


def recompute(session: Session, dataset: ShelveDataset) -> bool:
    """Set it to what the rows say; False where writers were under way all the time: then it stays early, which is harmless."""
    statement = sql.SQL("SELECT retention.{}()").format(
        sql.Identifier(deadline_rules.function_name("compute_deadline", dataset))
    )
    for _ in range(TRIES):
        with session.transaction(None) as cursor:
            cursor.execute(statement)
            if one(cursor)[0]:
                return True
        clock.sleep(BETWEEN_TRIES)
    return False
