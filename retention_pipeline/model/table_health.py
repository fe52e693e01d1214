"""How large a table is, how many of its rows are dead, and whether autovacuum keeps up (SPEC L, issue of bloat F14)."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class TableHealth:
    """One table, as the server's own statistics have it.

    Args:
        live: rows, estimated.
        dead: row versions that nobody sees and that no vacuum has taken away yet.
        bytes: with its indexes and its overflow.
        threshold: dead rows at which autovacuum begins; None where it is off for this table, or altogether.
        vacuumed_at: when autovacuum, or a person, was last through with it.
    """

    table: str
    live: int
    dead: int
    bytes: int
    threshold: int | None
    vacuumed_at: datetime | None

    def note(self, ceiling: int) -> str | None:
        """What a person should know, if autovacuum won't keep up with passes that end so many rows each."""
        if self.threshold is None:
            return (
                "autovacuum is off: the rows that ended keep their space; switch it on, or vacuum this table yourself"
            )
        if self.dead > 2 * self.threshold:
            return (
                f"{self.dead:,} dead rows, and autovacuum begins at {self.threshold:,}: it does not get through. Look for an old"
                " snapshot that keeps them (a transaction, a replication slot), or raise autovacuum_vacuum_cost_limit"
            )
        if self.threshold > 10 * ceiling:
            return (
                f"autovacuum begins at {self.threshold:,} dead rows, more than ten whole passes: set"
                f" autovacuum_vacuum_scale_factor of this table so that {ceiling:,} are enough"
            )
        return None
