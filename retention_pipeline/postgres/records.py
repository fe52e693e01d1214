"""The product's own records, behind the port `Records`: each method is one transaction."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from psycopg import sql

from retention_pipeline.catalog.loader import Catalog
from retention_pipeline.errors import Code, Unavailable
from retention_pipeline.model.archive import MANIFEST_FORMAT, Attempt, AttemptState, Candidate, Intention, Rejected
from retention_pipeline.model.ids import AttemptId, InstanceId, TenantId
from retention_pipeline.model.inventory import Inventory
from retention_pipeline.model.outcome import RunReport
from retention_pipeline.model.people import AnyJob, Approval
from retention_pipeline.model.profile import Profile, Readiness
from retention_pipeline.model.work import Acknowledged, EligibleSet, Moved
from retention_pipeline.postgres import attempts, oversight, profiles
from retention_pipeline.postgres.facts import FactStatements
from retention_pipeline.postgres.periods import observe
from retention_pipeline.postgres.session import Cursor, Session, one, rows
from retention_pipeline.postgres.shape import read_shape, tables_of

JOB_LEASE_SECONDS = 900
"""Longer than a run's time budget and its longest single step; a killed run's job is free again after this."""

_SELECT = """
WITH made AS (
  INSERT INTO retention.eligible_sets (tenant_id, preflight_id, as_of, run, items, remaining)
  SELECT %(tenant)s::text, %(preflight)s::uuid, %(as_of)s::timestamptz, %(run)s::text,
    least(count(*), %(limit)s::bigint), greatest(count(*) - %(limit)s::bigint, 0)
  FROM ({facts}) AS facts WHERE {free} RETURNING id, items, remaining
), filled AS (
  INSERT INTO retention.eligible_items (set_id, position, tenant_id, instance_id, epoch, epoch_at)
  SELECT made.id, row_number() OVER (ORDER BY f.due_at, f.instance_id), %(tenant)s::text, f.instance_id, f.epoch, f.epoch_at
  FROM made, LATERAL (SELECT * FROM ({facts}) AS facts WHERE {free} ORDER BY due_at, instance_id LIMIT %(limit)s::bigint) AS f
)
SELECT id::text, items, remaining FROM made
"""
_FREE = """{eligible}
  AND NOT EXISTS (SELECT FROM retention.set_asides AS s WHERE s.tenant_id = %(tenant)s::text
    AND s.instance_id = facts.instance_id AND s.not_before > clock_timestamp())
  AND NOT EXISTS (SELECT FROM retention.attempts AS a WHERE a.tenant_id = %(tenant)s::text
    AND a.instance_id = facts.instance_id AND (a.state IN ('stored', 'verified')
      OR (a.state = 'intended' AND a.leased_until > clock_timestamp())))"""
_FORGET = sql.SQL("""
WITH old AS MATERIALIZED (SELECT id FROM retention.eligible_sets
  WHERE tenant_id = %(tenant)s::text AND at < clock_timestamp() - make_interval(hours => 24 * %(days)s) ORDER BY at LIMIT 5),
items AS (DELETE FROM retention.eligible_items AS i USING old WHERE i.set_id = old.id)
DELETE FROM retention.eligible_sets AS s USING old WHERE s.id = old.id
""")
KEEP_SETS_DAYS = 7
"""An eligible set is what one run works through; its numbers stay with its preflight. Five old ones go with each new one."""
_CANDIDATES = sql.SQL("""
SELECT position, instance_id, epoch, epoch_at::text FROM retention.eligible_items AS i
WHERE set_id = %(set)s::uuid AND tenant_id = %(tenant)s::text AND position > %(after)s::bigint
  AND NOT EXISTS (SELECT FROM retention.set_asides AS s WHERE s.tenant_id = i.tenant_id AND s.instance_id = i.instance_id
    AND s.not_before > clock_timestamp())
ORDER BY position LIMIT %(limit)s::bigint
""")
_PREVIOUS = sql.SQL("""
SELECT (counts ->> 'backlog')::bigint FROM retention.run_outcomes
WHERE tenant_id = %(tenant)s AND job = %(job)s AND outcome NOT IN ('preflight', 'skipped') ORDER BY id DESC LIMIT 1
""")


@dataclass(slots=True, kw_only=True)
class PostgresRecords:
    """Keeps the records through one session, as the worker."""

    session: Session
    catalog: Catalog

    def take_lease(self, tenant: TenantId, job: AnyJob, holder: str) -> int | None:
        """The fencing token, or None while another run has the job (G7)."""
        with self.session.transaction(tenant) as cursor:
            return oversight.take_lease(cursor, tenant, job, holder, JOB_LEASE_SECONDS)

    def keep_lease(self, tenant: TenantId, job: AnyJob, holder: str, fence: int) -> None:
        """Extend the lease, or raise `Unavailable(LEASE_LOST)`."""
        with self.session.transaction(tenant) as cursor:
            if not oversight.keep_lease(cursor, tenant, job, holder, fence, JOB_LEASE_SECONDS):
                raise Unavailable(
                    Code.LEASE_LOST,
                    "Another run took this job over; this one stops before anything further.",
                    remedy="See the other run; what this one verified is picked up by it.",
                )

    def drop_lease(self, tenant: TenantId, job: AnyJob, holder: str, fence: int) -> None:
        """End the lease, and let go of every attempt of this holder."""
        with self.session.transaction(tenant) as cursor:
            attempts.release(cursor, tenant, holder)
            oversight.drop_lease(cursor, tenant, job, holder, fence)

    def use_approval(self, tenant: TenantId, approval_id: str, job: AnyJob, run: str, subject: str | None) -> Approval:
        """Take an approval for this run (G4)."""
        with self.session.transaction(tenant) as cursor:
            approval = oversight.use_approval(cursor, tenant, approval_id, job, run, subject)
            oversight.audit(
                cursor,
                tenant,
                actor=approval.actor,
                kind="approval.used",
                outcome="done",
                run=run,
                subjects=[(approval_id, None)],
                details={"job": job, "subject": subject},
            )
            return approval

    def standing_approval(self, tenant: TenantId, job: AnyJob) -> str | None:
        """The newest standing approval that is good now."""
        with self.session.transaction(tenant, read_only=True) as cursor:
            return oversight.standing_approval(cursor, tenant, job)

    def profile(self, tenant: TenantId) -> tuple[Profile, Readiness]:
        """The newest archive profile and whether it is ready (A15)."""
        with self.session.transaction(tenant, read_only=True) as cursor:
            return profiles.newest(cursor, tenant), profiles.readiness(cursor)

    def acknowledged(self, tenant: TenantId) -> Acknowledged | None:
        """The preflight that was acknowledged last."""
        with self.session.transaction(tenant, read_only=True) as cursor:
            return oversight.acknowledged(cursor, tenant)

    def record_preflight(self, inventory: Inventory, run: str) -> str:
        """Keep a preflight's numbers, audited, and the periods as they are written now (G8)."""
        tenant = inventory.tenant
        with self.session.transaction(tenant) as cursor:
            shape = read_shape(cursor, tables_of(self.catalog.instances))
            cursor.execute(observe(self.catalog.instances, shape), {"tenant": tenant})
            preflight = oversight.record_preflight(cursor, inventory, run)
            oversight.audit(
                cursor,
                tenant,
                actor=self._worker(cursor),
                kind="preflight.recorded",
                outcome="done",
                run=run,
                subjects=[(preflight, None)],
                details={"total": inventory.total, "eligible": inventory.eligible},
            )
            return preflight

    def select(self, tenant: TenantId, preflight: str, as_of: datetime, run: str, limit: int) -> EligibleSet:
        """Materialize the eligible set, without what is set aside, in another worker's hands or already stored.

        What an earlier run stored is resumed, not archived again: else, a step at a time, it would stand before all others.
        """
        with self.session.transaction(tenant) as cursor:
            cursor.execute(_FORGET, {"tenant": tenant, "days": KEEP_SETS_DAYS})
            shape = read_shape(cursor, tables_of(self.catalog.instances))
            statements = FactStatements(dataset=self.catalog.instances, shape=shape)
            free = sql.SQL(_FREE).format(eligible=statements.eligible())
            cursor.execute(
                sql.SQL(_SELECT).format(facts=statements.facts(some=False), free=free),
                {"tenant": tenant, "preflight": preflight, "as_of": as_of, "run": run, "limit": limit},
            )
            set_id, items, remaining = one(cursor)
        return EligibleSet(id=set_id, tenant=tenant, items=items, remaining=remaining)

    def candidates(self, eligible: EligibleSet, after: int, limit: int) -> list[tuple[int, Candidate]]:
        """The next candidates of the set, with their positions."""
        parameters = {"set": eligible.id, "tenant": eligible.tenant, "after": after, "limit": limit}
        with self.session.transaction(eligible.tenant, read_only=True) as cursor:
            return [
                (row[0], Candidate(instance=InstanceId(row[1]), epoch=row[2], epoch_at=row[3]))
                for row in rows(cursor, _CANDIDATES, parameters)
            ]

    def intend(
        self,
        tenant: TenantId,
        intentions: Sequence[Intention],
        *,
        approval: Approval,
        run: str,
        holder: str,
        profile: Profile,
    ) -> set[AttemptId]:
        """Record attempts before their objects are written (A5)."""
        with self.session.transaction(tenant) as cursor:
            return attempts.intend(
                cursor,
                tenant,
                intentions,
                approval=approval,
                run=run,
                holder=holder,
                profile=profile,
                manifest_format=MANIFEST_FORMAT,
            )

    def mark_stored(self, tenant: TenantId, written: Sequence[Moved]) -> set[AttemptId]:
        """Record what was written; gives those that are still ours."""
        with self.session.transaction(tenant) as cursor:
            return attempts.mark_stored(cursor, tenant, written)

    def mark_verified(self, tenant: TenantId, proven: Sequence[Moved]) -> set[AttemptId]:
        """Record what was proven; gives those that are still ours."""
        with self.session.transaction(tenant) as cursor:
            return attempts.mark_verified(cursor, tenant, proven)

    def claim(
        self,
        tenant: TenantId,
        *,
        holder: str,
        states: Sequence[AttemptState],
        limit: int,
        instance: InstanceId | None,
    ) -> list[Attempt]:
        """Take over attempts that nobody works on any more."""
        with self.session.transaction(tenant) as cursor:
            return attempts.claim(cursor, tenant, holder=holder, states=states, limit=limit, instance=instance)

    def attempt(self, tenant: TenantId, attempt: AttemptId) -> Attempt:
        """One attempt of this tenant."""
        with self.session.transaction(tenant, read_only=True) as cursor:
            return attempts.by_id(cursor, tenant, attempt)

    def archives(self, tenant: TenantId, *, limit: int) -> list[Attempt]:
        """Attempts that have an object, the newest first."""
        with self.session.transaction(tenant, read_only=True) as cursor:
            return attempts.archives(cursor, tenant, limit)

    def retire(
        self,
        tenant: TenantId,
        attempt: AttemptId,
        fence: int,
        instance: InstanceId,
        *,
        state: AttemptState,
        code: Code,
        run: str,
        actor: str,
    ) -> None:
        """End an attempt off its path, audited."""
        with self.session.transaction(tenant) as cursor:
            attempts.retire(cursor, tenant, attempt, fence, state=state, code=code)
            oversight.audit(
                cursor,
                tenant,
                actor=actor,
                kind=f"archive.{state}",
                outcome="done",
                run=run,
                subjects=[(instance, code)],
                details={"attempt": attempt},
            )

    def reject(self, tenant: TenantId, rejected: Iterable[Rejected], *, run: str, actor: str) -> None:
        """Set instances aside with a back-off, audited."""
        refused = list(rejected)
        if not refused:
            return
        with self.session.transaction(tenant) as cursor:
            oversight.set_aside(cursor, tenant, refused)
            oversight.audit(
                cursor,
                tenant,
                actor=actor,
                kind="instance.set_aside",
                outcome="refused",
                run=run,
                subjects=[(r.instance, r.code) for r in refused],
            )

    def audit(
        self, tenant: TenantId, *, actor: str, kind: str, outcome: str, run: str, subject: str, code: Code | None
    ) -> None:
        """Append one event."""
        with self.session.transaction(tenant) as cursor:
            oversight.audit(
                cursor, tenant, actor=actor, kind=kind, outcome=outcome, run=run, subjects=[(subject, code)]
            )

    def previous_backlog(self, tenant: TenantId, job: AnyJob) -> int | None:
        """The backlog that the last run of this job left."""
        with self.session.transaction(tenant, read_only=True) as cursor:
            found = rows(cursor, _PREVIOUS, {"tenant": tenant, "job": job})
        return int(found[0][0]) if found else None

    def finish(self, report: RunReport, started: datetime) -> None:
        """Keep how the run ended."""
        with self.session.transaction(TenantId(report.tenant)) as cursor:
            oversight.record_outcome(cursor, report, started)

    @staticmethod
    def _worker(cursor: Cursor) -> str:
        cursor.execute(sql.SQL("SELECT session_user"))
        return str(one(cursor)[0])
