"""Seals the audit record in the database, one chain at a time, and looks things up in it (SPEC G5)."""

from dataclasses import dataclass
from datetime import datetime

from psycopg import sql

from retention_pipeline.governance.audit import sealed
from retention_pipeline.governance.audit_chain import late_after
from retention_pipeline.model.audit import AT, Backlog, Event, Head, Seal
from retention_pipeline.model.ids import ObjectKey, ObjectVersion, TenantId
from retention_pipeline.postgres.audit_log import HEAD, TEXT, PostgresAuditLog, as_head, events_of, head_of, waiting_ids
from retention_pipeline.postgres.session import Session, one, rows

_BACKLOG = sql.SQL("SELECT tenant_id, unsealed, oldest_seconds FROM retention.audit_backlog()")
_TRY = sql.SQL("SELECT pg_try_advisory_xact_lock(hashtextextended('retention.audit:' || %(tenant)s, 20260103))")
_MAC = sql.SQL("SELECT mac FROM retention.audit_seals WHERE tenant_id = %(tenant)s AND block = %(block)s")
_NOW = sql.SQL("SELECT clock_timestamp()::text")
_INSERT = sql.SQL("""
INSERT INTO retention.audit_seals (tenant_id, block, event_ids, leaves, previous, mac, sealed_at)
VALUES (%(tenant)s, %(block)s, %(ids)s, %(leaves)s, %(previous)s, %(mac)s, %(sealed_at)s::timestamptz)
""")
_SHOW = sql.SQL(f"""
SELECT {TEXT} FROM retention.audit_events AS e
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
                waiting = waiting_ids(cursor, tenant, after)
                if not waiting:
                    return None
                events = events_of(cursor, tenant, waiting)
                after = waiting[
                    -1
                ]  # a whole block of events that are gone is no reason to stop; `audit verify` names them
            found = rows(cursor, HEAD, {"tenant": tenant})
            head = as_head(tenant, found[0]) if found else None
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
            return head_of(cursor, tenant)

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

    def log(self, tenant: TenantId) -> PostgresAuditLog:
        """One chain, to be read."""
        return PostgresAuditLog(session=self.session, tenant=tenant)
