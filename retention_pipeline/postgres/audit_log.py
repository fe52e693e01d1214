"""Reads one chain of the audit record, a block at a time, and what no block has (SPEC G5).

Everything is read by key or in the order of keys: no reader holds more than a block.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, LiteralString

from psycopg import sql
from psycopg.rows import TupleRow

from retention_pipeline.errors import Code
from retention_pipeline.governance.audit import BLOCK_EVENTS
from retention_pipeline.governance.audit_chain import late_before
from retention_pipeline.model.audit import AuditFinding, Event, Head, Seal, Waiting
from retention_pipeline.model.ids import TenantId
from retention_pipeline.postgres.session import Cursor, Session, one, rows

_NAMED: Final = 10_001
TEXT: LiteralString = (
    "e.id::text, e.tenant_id, e.at::text, e.actor, e.session_role, e.kind, e.subject, e.outcome, e.code, e.reason,"
    " e.correlation, e.run, e.details::text"
)
# One by one, by key. A planner that does not know yet how many events a tenant has would read all of them for each block.
_EVENTS = sql.SQL(f"""
SELECT {TEXT} FROM unnest(%(ids)s::bigint[]) AS wanted (id)
CROSS JOIN LATERAL (SELECT * FROM retention.audit_events WHERE id = wanted.id AND tenant_id = %(tenant)s LIMIT 1) AS e
""")
_IN_ORDER = sql.SQL("SELECT set_config('enable_bitmapscan', 'off', true), set_config('enable_sort', 'off', true)")
# Flat, whatever somebody made of the array.
_SEAL: LiteralString = "block, previous, sealed_at::text, ARRAY(SELECT unnest(event_ids)), leaves, mac"
HEAD = sql.SQL("""
SELECT block, mac, sealed_at::text, cardinality(event_ids) FROM retention.audit_seals
WHERE tenant_id = %(tenant)s ORDER BY block DESC LIMIT 1
""")
_NEXT = sql.SQL("""
SELECT event_id FROM retention.audit_unsealed
WHERE tenant_id = %(tenant)s AND event_id > %(after)s ORDER BY event_id LIMIT %(limit)s
""")
_BLOCKS = sql.SQL(f"""
SELECT {_SEAL} FROM retention.audit_seals WHERE tenant_id = %(tenant)s AND block > %(after)s ORDER BY block LIMIT 1
""")
# A look-up for each, not a join: one that believes in few rows goes through the whole record for each of them.
_WAITING = sql.SQL("""
SELECT count(*), extract(epoch FROM clock_timestamp() - min((
  SELECT e.at FROM retention.audit_events AS e WHERE e.id = u.event_id AND e.tenant_id = u.tenant_id)))::double precision
FROM retention.audit_unsealed AS u WHERE u.tenant_id = %(tenant)s
""")
# EXCEPT sorts or hashes whatever the planner believes of the sizes; an anti-join that believes in few rows would never end.
_NOWHERE = sql.SQL("""
SELECT id FROM (
  SELECT id FROM retention.audit_events WHERE tenant_id = %(tenant)s
  EXCEPT SELECT unnest(event_ids) FROM retention.audit_seals WHERE tenant_id = %(tenant)s
  EXCEPT SELECT event_id FROM retention.audit_unsealed WHERE tenant_id = %(tenant)s
) AS nowhere ORDER BY id LIMIT %(limit)s
""")
_GONE = sql.SQL("""
SELECT event_id FROM (
  SELECT event_id FROM retention.audit_unsealed WHERE tenant_id = %(tenant)s
  EXCEPT SELECT id FROM retention.audit_events WHERE tenant_id = %(tenant)s
) AS gone ORDER BY event_id LIMIT %(limit)s
""")
_LAST = sql.SQL("""
SELECT s.sealed_at::text, cardinality(s.event_ids), (SELECT e.at::text FROM retention.audit_events AS e
  WHERE e.tenant_id = s.tenant_id AND e.id = s.event_ids[cardinality(s.event_ids)])
FROM retention.audit_seals AS s WHERE s.tenant_id = %(tenant)s ORDER BY s.block DESC LIMIT 1
""")
_OLD = sql.SQL("""
SELECT u.event_id FROM retention.audit_unsealed AS u
JOIN retention.audit_events AS e ON e.id = u.event_id AND e.tenant_id = u.tenant_id
WHERE u.tenant_id = %(tenant)s AND e.at < %(before)s::timestamptz ORDER BY u.event_id LIMIT %(limit)s
""")


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresAuditLog:
    """Implements `AuditLog`: blocks never change, so that each is read in a transaction of its own."""

    session: Session
    tenant: TenantId

    def blocks(self) -> Iterator[tuple[Seal, Mapping[int, Event]]]:
        """Every block that there is now, in order, with those of its events that are there.

        Not those that come meanwhile: a sealer can be as fast as this.
        """
        with self.session.transaction(self.tenant, read_only=True) as cursor:
            head = head_of(cursor, self.tenant)
        after = -(2**63)  # a block that nobody may have made has a number, too
        while head is not None and after < head.block:
            with self.session.transaction(self.tenant, read_only=True) as cursor:
                found = rows(cursor, _BLOCKS, {"tenant": self.tenant, "after": after})
                if not found:
                    return
                seal = Seal(
                    tenant=self.tenant,
                    block=found[0][0],
                    previous=bytes(found[0][1]),
                    sealed_at=found[0][2],
                    event_ids=tuple(found[0][3]),
                    leaves=bytes(found[0][4]),
                    mac=bytes(found[0][5]),
                )
                events = events_of(cursor, self.tenant, list(seal.event_ids))
            yield seal, events
            after = seal.block

    def waiting(self) -> Waiting:
        """What no block has yet."""
        with self.session.transaction(self.tenant, read_only=True) as cursor:
            cursor.execute(_WAITING, {"tenant": self.tenant})
            events, oldest = one(cursor)
        return Waiting(events=events, oldest_seconds=oldest)

    def suspicious(self) -> Iterator[AuditFinding]:
        """Events that nobody noted, that are gone before they were sealed, or that are older than they can be."""
        wanted = {"tenant": self.tenant, "limit": _NAMED}
        with self.session.transaction(self.tenant, snapshot=True, read_only=True) as cursor:
            found = [
                AuditFinding(code=code, event=row[0])
                for code, statement in ((Code.AUDIT_EVENT_INSERTED, _NOWHERE), (Code.AUDIT_EVENT_REMOVED, _GONE))
                for row in rows(cursor, statement, wanted)
            ]
            before = _oldest_possible(cursor, self.tenant)
            if before is not None:
                found += [
                    AuditFinding(code=Code.AUDIT_EVENT_BACKDATED, event=row[0])
                    for row in rows(cursor, _OLD, {**wanted, "before": before})
                ]
        yield from found

    def unsealed(self) -> Iterator[Event]:
        """Events that wait, in order."""
        after = -(2**63)
        while True:
            with self.session.transaction(self.tenant, read_only=True) as cursor:
                waiting = waiting_ids(cursor, self.tenant, after)
                found = events_of(cursor, self.tenant, waiting)
            yield from found.values()
            if not waiting:
                return
            after = waiting[-1]


def _oldest_possible(cursor: Cursor, tenant: TenantId) -> str | None:
    """How old an event can be that waits: a block that is not full took all that there was; of a full one, what it took last."""
    last = rows(cursor, _LAST, {"tenant": tenant})
    if not last:
        return None
    sealed_at, events, newest = last[0]
    return late_before(sealed_at) if events < BLOCK_EVENTS else late_before(newest or "")


def head_of(cursor: Cursor, tenant: TenantId) -> Head | None:
    """The last block of a chain."""
    found = rows(cursor, HEAD, {"tenant": tenant})
    return as_head(tenant, found[0]) if found else None


def as_head(tenant: TenantId, row: TupleRow) -> Head:
    """A row of `HEAD` as a head."""
    return Head(tenant=tenant, block=row[0], mac=bytes(row[1]), sealed_at=row[2])


def waiting_ids(cursor: Cursor, tenant: TenantId, after: int) -> list[int]:
    """The ids of the next block's events; the rest of this transaction reads along indexes, too."""
    cursor.execute(_IN_ORDER)
    return [row[0] for row in rows(cursor, _NEXT, {"tenant": tenant, "after": after, "limit": BLOCK_EVENTS})]


def events_of(cursor: Cursor, tenant: TenantId, ids: list[int]) -> dict[int, Event]:
    """Those that are there, in the order of the ids."""
    return {int(row[0]): row for row in rows(cursor, _EVENTS, {"tenant": tenant, "ids": ids})}
