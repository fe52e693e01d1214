"""Counts what the sweeps did, afterwards and from outside: as a superuser, by statements of its own, not by the product's."""

from dataclasses import dataclass

import psycopg

from retention_pipeline.postgres.sample_sweeps import TABLES
from retention_pipeline.postgres.session import translated

# What each end looks like: whether a row that should have ended did. A purged row is not there.
_ENDED = {
    "workflow_central_tasks": "t.payload IS NULL AND t.data = '{}' AND t.payload_expired_at IS NOT NULL",
    "workflow_central_instances": "t.payload IS NULL AND t.variables = '{}' AND t.payload_expired_at IS NOT NULL",
    "join_requests": "t.archived_at IS NOT NULL AND t.status = 'pending_approval' AND t.version = 2",
}
_COUNT = """
SELECT f.system, count(*), count(*) FILTER (WHERE f.ends AND {ended}), count(*) FILTER (WHERE f.ends AND NOT {ended}),
  count(*) FILTER (WHERE NOT f.ends AND t.id IS NOT NULL AND md5(t::text) = f.picture),
  count(*) FILTER (WHERE NOT f.ends AND (t.id IS NULL OR md5(t::text) <> f.picture))
FROM sample.fates AS f LEFT JOIN nucleus.{table} AS t ON t.id::text = f.row_id WHERE f.table_name = '{table}' GROUP BY 1
"""
_HISTORY = {
    "workflow_transition_requests": "t.instance_id, t.finished_at, t.status IN ('completed', 'failed', 'cancelled'),"
    " CASE WHEN t.replay_of IS NOT NULL AND t.status = 'completed' THEN 30 ELSE 365 END",
    "workflow_executions": "t.instance_id, t.finished_at, t.status IN ('succeeded', 'failed', 'cancelled'), 365",
    "workflow_action_checkpoints": "(SELECT e.instance_id FROM nucleus.workflow_executions AS e WHERE e.id = t.execution_id), t.at,"
    " (SELECT e.status <> 'running' FROM nucleus.workflow_executions AS e WHERE e.id = t.execution_id), 365",
    "workflow_dead_letters": "t.instance_id, t.closed_at, t.status IN ('resolved', 'not_replayable'), 30",
    "workflow_occurrence_targets": "t.instance_id, t.created_at, t.status IN ('completed', 'failed', 'skipped'), 365",
    "workflow_trigger_deliveries": "(SELECT o.instance_id FROM nucleus.workflow_occurrence_targets AS o WHERE o.id = t.target_id),"
    " t.at, t.status IN ('delivered', 'failed'), 365",
    "workflow_trigger_occurrences": "NULL::uuid, t.occurred_at, true, 365",
}
_TAKE = """
INSERT INTO sample.history SELECT '{table}', t.id::text, s.* FROM nucleus.{table} AS t
CROSS JOIN LATERAL (SELECT {what}) AS s (instance_id, at, closed, days)
"""
_GONE = """
SELECT count(*), count(*) FILTER (WHERE t.id IS NULL),
  count(*) FILTER (WHERE t.id IS NULL AND NOT (coalesce(h.closed, false) AND h.at < %(as_of)s::timestamptz - h.days * interval '24 hours'
    AND (h.instance_id IS NULL OR EXISTS (SELECT FROM nucleus.workflow_instances AS i WHERE i.id = h.instance_id)))),
  count(*) FILTER (WHERE t.id IS NOT NULL AND coalesce(h.closed, false) AND h.at < %(as_of)s::timestamptz - h.days * interval '24 hours'
    AND EXISTS (SELECT FROM nucleus.workflow_instances AS i WHERE i.id = h.instance_id AND i.state = 'running'))
FROM sample.history AS h LEFT JOIN nucleus.{table} AS t ON t.id::text = h.row_id WHERE h.table_name = '{table}'
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What became of the rows of one system; every row is in exactly one place.

    Args:
        ended: rows that had to end, and did.
        left: rows that had to end, and are as they were.
        stayed: rows that had to stay, and are byte for byte as they were.
        lost: rows that had to stay, and are gone or changed.
    """

    rows: int
    ended: int
    left: int
    stayed: int
    lost: int

    def adds_up(self) -> bool:
        """Whether every row is accounted for."""
        return self.rows == self.ended + self.left + self.stayed + self.lost

    def __add__(self, other: "Account") -> "Account":
        return Account(
            rows=self.rows + other.rows,
            ended=self.ended + other.ended,
            left=self.left + other.left,
            stayed=self.stayed + other.stayed,
            lost=self.lost + other.lost,
        )


def account(superuser_url: str) -> dict[str, Account]:
    """Each system's rows by what became of them, and one more loss for each row that no fate knows of."""
    found: dict[str, Account] = {}
    with translated(), psycopg.connect(superuser_url) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for table in TABLES:
            ended = f"coalesce({_ENDED.get(table, 't.id IS NULL')}, false)"
            statement = _COUNT.format(table=table, ended=ended)
            for system, *counts in connection.execute(statement.encode()).fetchall():
                rows, done, left, stayed, lost = counts
                one = Account(rows=rows, ended=done, left=left, stayed=stayed, lost=lost)
                found[system] = found[system] + one if system in found else one
    return found


def remember_history(superuser_url: str) -> None:
    """Note what history there is just before it is swept: rows go with their instances too, which is no sweep."""
    with translated(), psycopg.connect(superuser_url) as connection:
        connection.execute(
            "CREATE TABLE sample.history (table_name text, row_id text, instance_id uuid, at timestamptz, closed boolean,"
            " days integer)"
        )
        for table, what in _HISTORY.items():
            connection.execute(_TAKE.format(table=table, what=what).encode())
        connection.execute("CREATE INDEX ON sample.history (table_name, row_id)")
        connection.execute("ANALYZE sample.history")


def account_history(superuser_url: str, as_of: str) -> Account:
    """What became of the history: gone rows had to be closed and past their horizon, and none of a working instance is left."""
    total = Account(rows=0, ended=0, left=0, stayed=0, lost=0)
    with translated(), psycopg.connect(superuser_url) as connection:
        for table in _HISTORY:
            row = connection.execute(_GONE.format(table=table).encode(), {"as_of": as_of}).fetchone()
            rows, gone, wrong, left = row or (0, 0, 0, 0)
            total += Account(rows=rows, ended=gone - wrong, left=left, stayed=rows - gone - left, lost=wrong)
    return total


def swept(superuser_url: str) -> dict[str, int]:
    """What the receipts say of each sweep."""
    with translated(), psycopg.connect(superuser_url) as connection:
        found = connection.execute(
            "SELECT dataset, sum(items)::bigint FROM retention.sweep_receipts GROUP BY 1 ORDER BY 1"
        ).fetchall()
    return dict(found)
