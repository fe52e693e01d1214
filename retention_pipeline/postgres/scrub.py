"""The records of scrubbing, behind the port `ScrubRecords` (SPEC A19).

A reader shares an archive's lock: its object does not go while it is read, and an end that began is no finding (F15, F20).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from psycopg import sql
from psycopg.types.json import Jsonb

from retention_pipeline.errors import Code, Unavailable
from retention_pipeline.model.ids import AttemptId, ObjectKey, TenantId
from retention_pipeline.model.outcome import RunReport
from retention_pipeline.model.ports import StoredVersion
from retention_pipeline.model.scrub import (
    SCRUB,
    START,
    Compared,
    Integrity,
    Place,
    Position,
    Reading,
    Slice,
    StoredArchive,
    Tally,
    Verdict,
)
from retention_pipeline.postgres import attempts, integrity, oversight, store_lists
from retention_pipeline.postgres.session import Cursor, Session, one, rows
from retention_pipeline.postgres.store_lists import STANDING

LEASE_SECONDS: Final = 900
_NOW = sql.SQL("SELECT clock_timestamp()")
_POSITION = sql.SQL("SELECT point, archive::text FROM retention.scrub_positions WHERE tenant_id = %(tenant)s::text")
_MOVE = sql.SQL("""
INSERT INTO retention.scrub_positions AS p (tenant_id, point, archive)
VALUES (%(tenant)s::text, %(point)s::bigint, %(archive)s::uuid)
ON CONFLICT (tenant_id) DO UPDATE SET point = EXCLUDED.point, archive = EXCLUDED.archive, at = clock_timestamp()
""")
_NEXT = sql.SQL(
    "SELECT a.scrub_point, a.id::text FROM retention.attempts AS a WHERE "
    + STANDING
    + """ AND (a.scrub_point, a.id) > (%(point)s::bigint, %(archive)s::uuid)
  AND a.scrub_point < %(end)s::bigint
ORDER BY a.scrub_point, a.id LIMIT %(limit)s::bigint"""
)
_SHARE = sql.SQL("SELECT pg_try_advisory_xact_lock_shared(retention.archive_lock(%(tenant)s::text, %(archive)s::uuid))")
# What the store has not been told yet is no finding: the reminder shows elsewhere, and is told again.
_STANDS = sql.SQL(
    """
SELECT CASE WHEN l.locks AND a.state = 'source_deleted' AND a.archive_retention_days > 0 AND p.until > clock_timestamp()
    THEN p.until END,
  l.locks AND (a.source_deleted_at IS NOT NULL AND a.archive_retention_days = 0 OR retention.is_held(a.tenant_id, a.instance_id))
FROM retention.attempts AS a
CROSS JOIN LATERAL (SELECT a.source_deleted_at + make_interval(hours => 24 * a.archive_retention_days) AS until) AS p
CROSS JOIN LATERAL (SELECT EXISTS (SELECT FROM retention.readiness_events AS r WHERE r.tenant_id = a.tenant_id
    AND r.profile_generation = a.profile_generation AND r.locks)
  AND NOT EXISTS (SELECT FROM retention.object_lock_tasks AS t WHERE t.attempt_id = a.id) AS locks) AS l
WHERE a.id = %(archive)s::uuid AND """
    + STANDING
)
_FOUND = sql.SQL("""
WITH before AS (SELECT verdict, code FROM retention.scrub_results WHERE attempt_id = %(archive)s::uuid)
INSERT INTO retention.scrub_results AS s (attempt_id, tenant_id, verdict, code, proven_at, run)
VALUES (%(archive)s::uuid, %(tenant)s::text, %(verdict)s::text, %(code)s::text,
  CASE WHEN %(proven)s THEN clock_timestamp() END, %(run)s::text)
ON CONFLICT (attempt_id) DO UPDATE SET verdict = EXCLUDED.verdict, code = EXCLUDED.code, run = EXCLUDED.run,
  at = clock_timestamp(), proven_at = coalesce(EXCLUDED.proven_at, s.proven_at),
  since = CASE WHEN s.verdict = EXCLUDED.verdict THEN s.since ELSE clock_timestamp() END
RETURNING (SELECT verdict FROM before)
""")
_RUN = sql.SQL("""
INSERT INTO retention.scrub_runs (tenant_id, run, slice, slices, finished, archives, bytes, verdicts, listed, listed_whole,
  unknown, started_at)
VALUES (%(tenant)s, %(run)s, %(slice)s, %(slices)s, %(finished)s, %(archives)s, %(bytes)s, %(verdicts)s, %(listed)s,
  %(listed_whole)s, %(unknown)s, %(started)s)
""")


@dataclass(slots=True, kw_only=True)
class PostgresScrub:
    """Keeps the records through one session, as the worker.

    Args:
        readers: a session of its own, whose transaction stays open while an archive is read.
    """

    session: Session
    readers: Session

    def now(self, tenant: TenantId) -> datetime:
        """The database's clock."""
        with self.session.transaction(tenant, read_only=True) as cursor:
            cursor.execute(_NOW)
            at: datetime = one(cursor)[0]
            return at

    def take_lease(self, tenant: TenantId, holder: str) -> int | None:
        """The fencing token, or None while another run scrubs this tenant (G7)."""
        with self.session.transaction(tenant) as cursor:
            return oversight.take_lease(cursor, tenant, SCRUB, holder, LEASE_SECONDS)

    def keep_lease(self, tenant: TenantId, holder: str, fence: int) -> None:
        """Extend the lease, or raise `Unavailable(LEASE_LOST)`."""
        with self.session.transaction(tenant) as cursor:
            if not oversight.keep_lease(cursor, tenant, SCRUB, holder, fence, LEASE_SECONDS):
                raise Unavailable(
                    Code.LEASE_LOST,
                    "Another run took this scrub over; this one stops.",
                    remedy="See the other run; it goes on where this one stopped.",
                )

    def drop_lease(self, tenant: TenantId, holder: str, fence: int) -> None:
        """End the lease."""
        with self.session.transaction(tenant) as cursor:
            oversight.drop_lease(cursor, tenant, SCRUB, holder, fence)

    # -- reading ----------------------------------------------------------------------------------------------------------

    def position(self, tenant: TenantId) -> Position:
        """Where the last run stopped."""
        with self.session.transaction(tenant, read_only=True) as cursor:
            found = rows(cursor, _POSITION, {"tenant": tenant})
        return Position(point=found[0][0], archive=AttemptId(found[0][1])) if found else START

    def move(self, tenant: TenantId, position: Position) -> None:
        """The next run begins here."""
        with self.session.transaction(tenant) as cursor:
            _move(cursor, tenant, position)

    def next(self, tenant: TenantId, after: Position, end: int, limit: int) -> list[Position]:
        """The archives that stand behind a position and before the end of its slice, in order."""
        wanted = {"tenant": tenant, "point": after.point, "archive": after.archive, "end": end, "limit": limit}
        with self.session.transaction(tenant, read_only=True) as cursor:
            return [Position(point=row[0], archive=AttemptId(row[1])) for row in rows(cursor, _NEXT, wanted)]

    @contextmanager
    def reading(self, tenant: TenantId, archive: AttemptId) -> Iterator[StoredArchive | None]:
        """Take an archive among its readers; None where it is ending, or its end began."""
        with self.readers.transaction(tenant, read_only=True) as cursor:
            parameters = {"tenant": tenant, "archive": archive}
            cursor.execute(_SHARE, parameters)
            found = rows(cursor, _STANDS, parameters) if one(cursor)[0] else []
            if not found:
                yield None
                return
            attempt = attempts.by_id(cursor, tenant, archive)
            assert attempt.version is not None
            yield StoredArchive(stored=attempt.stored(attempt.version), until=found[0][0], hold=found[0][1])

    def found(
        self, tenant: TenantId, archive: StoredArchive, reading: Reading, *, run: str, position: Position | None
    ) -> bool:
        """Record what was found, and with it where the next run begins; audited where it is another finding than before."""
        with self.session.transaction(tenant) as cursor:
            cursor.execute(
                _FOUND,
                {
                    "tenant": tenant,
                    "archive": archive.stored.attempt,
                    "verdict": reading.verdict,
                    "code": reading.code,
                    "proven": reading.proven,
                    "run": run,
                },
            )
            before = one(cursor)[0]
            if position is not None:
                _move(cursor, tenant, position)
            fresh = reading.verdict.is_finding and before != reading.verdict
            mended = reading.verdict is Verdict.INTACT and before is not None and Verdict(before).is_finding
            if fresh or mended:
                oversight.audit(
                    cursor,
                    tenant,
                    actor="worker",
                    kind=f"scrub.{reading.verdict}",
                    outcome="integrity" if fresh else "done",
                    run=run,
                    subjects=[(archive.stored.instance, reading.code)],
                    details={"archive": archive.stored.attempt},
                )
        return fresh

    # -- listing ----------------------------------------------------------------------------------------------------------

    def places(self, tenant: TenantId) -> list[Place]:
        """Every store in which the tenant has objects, and the newest."""
        with self.session.transaction(tenant, read_only=True) as cursor:
            return store_lists.places(cursor, tenant)

    def compare(
        self, tenant: TenantId, place: Place, page: Sequence[StoredVersion], after: ObjectKey | None, *, run: str
    ) -> Compared:
        """Set a page of a store's list beside the records, both ways, and keep what no record names, audited once."""
        with self.session.transaction(tenant) as cursor:
            return store_lists.compare(cursor, tenant, place, page, after, run=run)

    def behind(
        self, tenant: TenantId, place: Place, after: ObjectKey | None, limit: int
    ) -> list[tuple[AttemptId, ObjectKey]]:
        """Archives whose keys come after the last one that a store listed, in order."""
        with self.session.transaction(tenant, read_only=True) as cursor:
            return store_lists.behind(cursor, tenant, place, after, limit)

    def forget_gone(self, tenant: TenantId, place: Place, *, run: str) -> None:
        """Unknown objects that the run did not see are not there any more."""
        with self.session.transaction(tenant) as cursor:
            store_lists.forget_gone(cursor, tenant, place, run=run)

    # -- the end ----------------------------------------------------------------------------------------------------------

    def finish(self, report: RunReport, tally: Tally, part: Slice, *, started: datetime, finished: bool) -> None:
        """Keep how the run ended."""
        with self.session.transaction(TenantId(report.tenant)) as cursor:
            oversight.record_outcome(cursor, report, started)
            cursor.execute(
                _RUN,
                {
                    "tenant": report.tenant,
                    "run": report.run,
                    "slice": part.number,
                    "slices": part.of,
                    "finished": finished,
                    "archives": tally.archives,
                    "bytes": tally.bytes,
                    "verdicts": Jsonb(dict(tally.verdicts)),
                    "listed": tally.listed,
                    "listed_whole": tally.listed_whole,
                    "unknown": tally.unknown,
                    "started": started,
                },
            )

    def integrity(self, tenant: TenantId) -> Integrity:
        """How sure one may be of the archives."""
        with self.session.transaction(tenant, snapshot=True, read_only=True) as cursor:
            return integrity.report(cursor, tenant)


def _move(cursor: Cursor, tenant: TenantId, position: Position) -> None:
    cursor.execute(_MOVE, {"tenant": tenant, "point": position.point, "archive": position.archive})
