"""Answers a reader's question: is this payload there, did it expire, or was there never one (SPEC E6)?"""

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from psycopg import sql

from retention_pipeline.postgres.session import Cursor, rows

_ONE = sql.SQL("SELECT state, http_status, expires_at, payload FROM retention.live_payload_of(%(table)s, %(key)s)")


class PayloadState(StrEnum):
    """What became of a payload."""

    LIVE = "live"
    EXPIRED = "expired"
    NEVER = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class LivePayload:
    """A row's payload, as a reader may see it.

    Args:
        http_status: what an API answers: 200, 410 (gone) or 404.
        expires_at: when it will expire, or did; None where it does not.
        payload: what is in it; None unless it is live.
    """

    state: PayloadState
    http_status: int
    expires_at: datetime | None
    payload: Any = field(repr=False)


def read(cursor: Cursor, table: str, key: str) -> LivePayload:
    """One row's payload, by the name that the catalog gives its table, in a transaction of the tenant's.

    A row that is not there is `never`. The same answer before and after the sweep.
    """
    found = rows(cursor, _ONE, {"table": table, "key": key})
    if not found:
        return LivePayload(state=PayloadState.NEVER, http_status=404, expires_at=None, payload=None)
    state, status, expires_at, payload = found[0]
    return LivePayload(state=PayloadState(state), http_status=status, expires_at=expires_at, payload=payload)
