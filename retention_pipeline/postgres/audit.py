"""Seals and reads the audit record in the database, one chain at a time (SPEC G5).

Everything is read by key or in the order of keys, a block at a time: neither sealing nor verifying holds more than that.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final, LiteralString

from psycopg import sql
from psycopg.rows import TupleRow

from retention_pipeline.errors import Code
from retention_pipeline.governance.audit import BLOCK_EVENTS, sealed
from retention_pipeline.governance.audit_chain import late_after, late_before
from retention_pipeline.model.audit import AT, AuditFinding, Backlog, Event, Head, Seal, Waiting
from retention_pipeline.model.ids import ObjectKey, ObjectVersion, TenantId
from retention_pipeline.postgres.session import Cursor, Session, one, rows

_NAMED: Final = 10_001
_TEXT: LiteralString = (
    "e.id::text, e.tenant_id, e.at::text, e.actor, e.session_role, e.kind, e.subject, e.outcome, e.code, e.reason,"
    " e.correlation, e.run, e.details::text"
)
# One by one, by key. A planner that does not know yet how many events a tenant has would read all of them for each block.
_EVENTS = sql.SQL(f"""
SELECT {_TEXT} FROM unnest(%(ids)s::bigint[]) AS wanted (id)
CROSS JOIN LATERAL (SELECT * FROM retention.audit_events WHERE id = wanted.id AND tenant_id = %(tenant)s LIMIT 1) AS e
""")
_IN_ORDER = sql.SQL("SELECT set_config('enable_bitmapscan', 'off', true), set_config('enable_sort', 'off', true)")
_SEAL: LiteralString = "block, previous, sealed_at::text, event_ids, leaves, mac"

_BACKLOG = sql.SQL("SELECT tenant_id, unsealed, oldest_seconds FROM retention.audit_backlog()")
_TRY = sql.SQL("SELECT pg_try_advisory_xact_lock(hashtextextended('retention.audit:' || %(tenant)s, 20260103))")
_HEAD = sql.SQL("""
SELECT block, mac, sealed_at::text, cardinality(event_ids) FROM retention.audit_seals
WHERE tenant_id = %(tenant)s ORDER BY block DESC LIMIT 1
""")
_MAC = sql.SQL("SELECT mac FROM retention.audit_seals WHERE tenant_id = %(tenant)s AND block = %(block)s")
_NEXT = sql.SQL("""
SELECT event_id FROM retention.audit_unsealed
WHERE tenant_id = %(tenant)s AND event_id > %(after)s ORDER BY event_id LIMIT %(limit)s
""")
_NOW = sql.SQL("SELECT clock_timestamp()::text")
_INSERT = sql.SQL("""
INSERT INTO retention.audit_seals (tenant_id, block, event_ids, leaves, previous, mac, sealed_at)
VALUES (%(tenant)s, %(block)s, %(ids)s, %(leaves)s, %(previous)s, %(mac)s, %(sealed_at)s::timestamptz)
""")
_BLOCKS = sql.SQL(f"""
SELECT {_SEAL} FROM retention.audit_seals WHERE tenant_id = %(tenant)s AND block > %(after)s ORDER BY block LIMIT 1
""")
_WAITING = sql.SQL("""
SELECT count(*), extract(epoch FROM clock_timestamp() - min(e.at))::double precision
FROM retention.audit_unsealed AS u LEFT JOIN retention.audit_events AS e ON e.id = u.event_id AND e.tenant_id = u.tenant_id
WHERE u.tenant_id = %(tenant)s
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
_SHOW = sql.SQL(f"""
SELECT {_TEXT} FROM retention.audit_events AS e
WHERE e.tenant_id = %(tenant)s AND (%(since)s::timestamptz IS NULL OR e.at >= %(since)s)
  AND (%(kind)s::text IS NULL OR e.kind = %(kind)s) AND (%(subject)s::text IS NULL OR e.subject = %(subject)s)
  AND (%(run)s::text IS NULL OR e.run = %(run)s) AND (%(correlation)s::text IS NULL OR e.correlation = %(correlation)s)
ORDER BY e.id DESC LIMIT %(limit)s
""")
_DUE = sql.SQL("""
SELECT tenant_id FROM retention.audit_anchors_due(make_interval(secs => %(age)s), %(unmoved)s) ORDER BY tenant_id
""")
_NOTE = sql.SQL("""
INSERT INTO retention.audit_anchors (tenant_id, block, profile_generation, object_key, object_version)
VALUES (%(tenant)s, %(block)s, %(generation)s, %(key)s, %(version)s)
""")
_NOTED = sql.SQL("""
SELECT object_key, profile_generation FROM retention.audit_anchors
WHERE tenant_id = %(tenant)s AND object_version IS NOT NULL ORDER BY id DESC LIMIT 1
""")
_RESTORED = sql.SQL("""
INSERT INTO retention.audit_events (tenant_id, actor, kind, subject, outcome, reason)
VALUES (%(tenant)s, session_user, 'audit.restored', '', 'done', %(reason)s)
""")


@dataclass(slots=True, kw_only=True)
class PostgresAudit:
    """Implements `SealingRecords` as the worker, and reads a chain as whoever may."""

    session: Session

    # -- sealing ---------------------------------------------------------------------------------------------------------

    def backlog(self) -> list[Backlog]:
        """Who has events that wait, the longest waiting first."""
        with self.session.transaction(None, read_only=True) as cursor:
            return [Backlog(tenant=TenantId(r[0]), events=r[1], oldest_seconds=r[2]) for r in rows(cursor, _BACKLOG)]

    def seal_next(self, tenant: TenantId, key: bytes, after: int) -> tuple[Seal, int] | None:
        """Seal the next block in one transaction, and say how many of its events are older than they can be.

        None when nothing waits, or another sealer has this chain.
        """
        with self.session.transaction(tenant) as cursor:
            cursor.execute(_TRY, {"tenant": tenant})
            if not one(cursor)[0]:
                return None
            events: dict[int, Event] = {}
            while not events:
                waiting = _waiting(cursor, tenant, after)
                if not waiting:
                    return None
                events = _events(cursor, tenant, waiting)
                after = waiting[
                    -1
                ]  # a whole block of events that are gone is no reason to stop; `audit verify` names them
            found = rows(cursor, _HEAD, {"tenant": tenant})
            head = _as_head(tenant, found[0]) if found else None
            horizon = late_after(found[0][2], found[0][3]) if found else None
            cursor.execute(_NOW)
            seal = sealed(key, tenant, head, one(cursor)[0], list(events.values()))
            cursor.execute(
                _INSERT,
                {
                    "tenant": tenant,
                    "block": seal.block,
                    "ids": list(seal.event_ids),
                    "leaves": seal.leaves,
                    "previous": seal.previous,
                    "mac": seal.mac,
                    "sealed_at": seal.sealed_at,
                },
            )
            return seal, sum(horizon is not None and str(event[AT]) < horizon for event in events.values())

    def head(self, tenant: TenantId) -> Head | None:
        """The last block."""
        with self.session.transaction(tenant, read_only=True) as cursor:
            return _head(cursor, tenant)

    def block_mac(self, tenant: TenantId, block: int) -> bytes | None:
        """The MAC of one block."""
        with self.session.transaction(tenant, read_only=True) as cursor:
            found = rows(cursor, _MAC, {"tenant": tenant, "block": block})
        return bytes(found[0][0]) if found else None

    def now(self) -> str:
        """The database's clock, as it prints it."""
        with self.session.transaction(None, read_only=True) as cursor:
            cursor.execute(_NOW)
            return str(one(cursor)[0])

    def anchors_due(self, age_seconds: float, *, unmoved: bool) -> list[TenantId]:
        """Whose head moved since an anchor that is older than this."""
        with self.session.transaction(None, read_only=True) as cursor:
            return [TenantId(row[0]) for row in rows(cursor, _DUE, {"age": age_seconds, "unmoved": unmoved})]

    def note_anchor(
        self, tenant: TenantId, block: int, generation: int, key: ObjectKey, version: ObjectVersion | None
    ) -> None:
        """Record an anchor before it is written, and again when it was (A5)."""
        noted = {"tenant": tenant, "block": block, "generation": generation, "key": key, "version": version}
        with self.session.transaction(tenant) as cursor:
            cursor.execute(_NOTE, noted)

    def note_restored(self, tenant: TenantId, reason: str) -> None:
        """Record that a person vouches for a shorter chain: the database was restored."""
        with self.session.transaction(tenant) as cursor:
            cursor.execute(_RESTORED, {"tenant": tenant, "reason": reason})

    # -- reading ---------------------------------------------------------------------------------------------------------

    def noted_anchor(self, tenant: TenantId) -> tuple[ObjectKey, int] | None:
        """The newest anchor that is on record here, with the generation of the profile whose store has it."""
        with self.session.transaction(tenant, read_only=True) as cursor:
            found = rows(cursor, _NOTED, {"tenant": tenant})
        return (ObjectKey(found[0][0]), int(found[0][1])) if found else None

    def show(
        self,
        tenant: TenantId,
        *,
        since: datetime | None,
        kind: str | None,
        subject: str | None,
        run: str | None,
        correlation: str | None,
        limit: int,
    ) -> list[Event]:
        """The newest events that fit, the oldest of them first."""
        wanted = {
            "tenant": tenant,
            "since": since,
            "kind": kind,
            "subject": subject,
            "run": run,
            "correlation": correlation,
            "limit": limit,
        }
        with self.session.transaction(tenant, read_only=True) as cursor:
            return list(reversed(rows(cursor, _SHOW, wanted)))

    def log(self, tenant: TenantId) -> "PostgresAuditLog":
        """One chain, to be read."""
        return PostgresAuditLog(session=self.session, tenant=tenant)


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
            head = _head(cursor, self.tenant)
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
                events = _events(cursor, self.tenant, list(seal.event_ids))
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
                waiting = _waiting(cursor, self.tenant, after)
                found = _events(cursor, self.tenant, waiting)
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


def _head(cursor: Cursor, tenant: TenantId) -> Head | None:
    found = rows(cursor, _HEAD, {"tenant": tenant})
    return _as_head(tenant, found[0]) if found else None


def _as_head(tenant: TenantId, row: TupleRow) -> Head:
    return Head(tenant=tenant, block=row[0], mac=bytes(row[1]), sealed_at=row[2])


def _waiting(cursor: Cursor, tenant: TenantId, after: int) -> list[int]:
    """The ids of the next block's events; the rest of this transaction reads along indexes, too."""
    cursor.execute(_IN_ORDER)
    return [row[0] for row in rows(cursor, _NEXT, {"tenant": tenant, "after": after, "limit": BLOCK_EVENTS})]


def _events(cursor: Cursor, tenant: TenantId, ids: list[int]) -> dict[int, Event]:
    """Those that are there, in the order of the ids."""
    return {int(row[0]): row for row in rows(cursor, _EVENTS, {"tenant": tenant, "ids": ids})}
