"""Where the installation may connect to: two settings, whose latest event counts (SPEC A14)."""

from collections.abc import Callable
from typing import Any

from psycopg import sql
from psycopg.types.json import Jsonb

from retention_pipeline.egress.policy import ALLOWLIST_ONLY, Destination, EgressPolicy, parse_entry
from retention_pipeline.errors import Code, Refused
from retention_pipeline.postgres.session import Cursor, rows

MODE = "workflow.archive.egress.mode"
DESTINATIONS = "workflow.archive.egress.allowed_destinations"

_LATEST = sql.SQL("""
SELECT DISTINCT ON (name) name, value FROM retention.setting_events
WHERE name = ANY(%(names)s) ORDER BY name, id DESC
""")
_LOCK = sql.SQL("SELECT pg_advisory_xact_lock(hashtextextended('retention.setting_events', 0))")
_PUT = sql.SQL("INSERT INTO retention.setting_events (name, value, reason) VALUES (%(name)s, %(value)s, %(reason)s)")


def policy(cursor: Cursor) -> EgressPolicy:
    """What is approved now; by default, and wherever a setting does not parse, nothing."""
    mode, entries = _read(cursor)
    return EgressPolicy.load(mode, entries)


def allow(cursor: Cursor, destination: str, networks: tuple[str, ...], reason: str) -> EgressPolicy:
    """Approve a destination, or replace its approval, as an operator; gives what is approved then.

    Raises:
        Refused: `EGRESS_INVALID`, for the destination, a network, or settings that are broken already.
    """
    entry = {"destination": destination, "networks": list(networks)}
    wanted, _ = parse_entry(entry)
    return _change(cursor, reason, lambda entries: [*_without(entries, wanted), _written(wanted, networks)])


def remove(cursor: Cursor, destination: str, reason: str) -> EgressPolicy:
    """Take an approval away, as an operator; gives what is approved then.

    Raises:
        Refused: `EGRESS_NOT_APPROVED`, where it was not approved.
    """
    wanted = Destination.parse(destination)

    def without(entries: list[Any]) -> list[Any]:
        left = _without(entries, wanted)
        if len(left) == len(entries):
            raise Refused(
                Code.EGRESS_NOT_APPROVED,
                "This destination is not approved; nothing was changed.",
                remedy="See `retention egress show` for those that are.",
            )
        return left

    return _change(cursor, reason, without)


def close(cursor: Cursor, reason: str) -> None:
    """Take every approval away, as an operator; mends settings that don't parse."""
    cursor.execute(_LOCK)
    cursor.execute(_PUT, {"name": DESTINATIONS, "value": Jsonb([]), "reason": reason})
    cursor.execute(_PUT, {"name": MODE, "value": Jsonb(ALLOWLIST_ONLY), "reason": reason})


def _change(cursor: Cursor, reason: str, edit: Callable[[list[Any]], list[Any]]) -> EgressPolicy:
    cursor.execute(_LOCK)  # of two people who add at once, neither loses what the other one added
    mode, entries = _read(cursor)
    if not EgressPolicy.load(mode, entries).valid:
        raise Refused(
            Code.EGRESS_INVALID,
            "The egress settings don't parse, so everything is closed; they were left as they are.",
            remedy="Close them with `retention egress remove --all`, then allow what is needed.",
        )
    changed = edit(list(entries))
    cursor.execute(_PUT, {"name": DESTINATIONS, "value": Jsonb(changed), "reason": reason})
    return EgressPolicy.load(mode, changed)


def _read(cursor: Cursor) -> tuple[Any, Any]:
    found: dict[str, Any] = dict(rows(cursor, _LATEST, {"names": [MODE, DESTINATIONS]}))
    return found.get(MODE, ALLOWLIST_ONLY), found.get(DESTINATIONS, [])


def _without(entries: list[Any], destination: Destination) -> list[Any]:
    return [entry for entry in entries if parse_entry(entry)[0] != destination]


def _written(destination: Destination, networks: tuple[str, ...]) -> Any:
    return {"destination": str(destination), "networks": list(networks)} if networks else str(destination)
