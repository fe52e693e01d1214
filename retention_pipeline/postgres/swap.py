"""Deletes verified instances by compare-and-swap, with receipt, hold binding and audit event in one transaction (SPEC A7).

In this order, all in one READ COMMITTED transaction, each statement with its own fresh snapshot:

1. lock the roots that nobody else has, then evidence rows that others may refer to, and take the lock that a hold takes;
2. hold the rows that carry retention periods still;
3. the attempts: verified, ours by fence, verified at most an hour ago by the database's clock;
4. decide again, foreign rows over all tenants included;
5. compare the shared rows by content;
6. delete children, then prove over all tenants that nothing refers to the roots, then delete the roots, each returning what
   went; a difference from the fingerprint undoes it all, and the rest is tried again without the one that differs; what
   would fail only at the commit fails here, and a foreign key that the catalog does not name stops the run;
7. receipts, attempts, hold bindings, audit events.

A fingerprint that is read before the deletion is not enough: an update that is not yet committed is not in it, and the
deletion then waits and removes the newer version. What the deletion returns is what really went.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from psycopg import sql
from psycopg.types.json import Jsonb

from retention_pipeline.catalog.loader import Catalog
from retention_pipeline.catalog.model import ROOT
from retention_pipeline.errors import Code, Integrity, Refused
from retention_pipeline.model.archive import DeletionReceipt, Rejected, StoredObject, VerifiedObject
from retention_pipeline.model.ids import InstanceId, TenantId
from retention_pipeline.model.people import Approval
from retention_pipeline.postgres import names
from retention_pipeline.postgres.content import ContentStatements, places
from retention_pipeline.postgres.export import InstanceFacts, digest_of, read_some, require_shape
from retention_pipeline.postgres.facts import FactStatements
from retention_pipeline.postgres.halves import WAITED, by_halves
from retention_pipeline.postgres.introspection import read_foreign_keys
from retention_pipeline.postgres.oversight import clear_set_aside
from retention_pipeline.postgres.session import Cursor, rows
from retention_pipeline.postgres.shape import SourceShape, named_tables
from retention_pipeline.postgres.vanished import BIND_HOLDS, Vanished
from retention_pipeline.postgres.worker_rules import RECEIPT_TRIGGER

_WAIT_LIKE_A_HOLD = sql.SQL(
    "SELECT pg_advisory_xact_lock(retention.instance_lock(%(tenant)s::text, id))"
    " FROM (SELECT unnest(%(ids)s::text[]) AS id ORDER BY 1) AS ordered"
)
_LOCK_LIKE_A_HOLD = sql.SQL(
    "SELECT id FROM (SELECT unnest(%(ids)s::text[]) AS id ORDER BY 1) AS ordered"
    " WHERE pg_try_advisory_xact_lock(retention.instance_lock(%(tenant)s::text, id))"
)
_ATTEMPTS = sql.SQL("""
SELECT a.instance_id, a.fingerprint, a.shared_digest FROM retention.attempts AS a
JOIN unnest(%(attempts)s::uuid[], %(fences)s::bigint[]) AS mine (id, fence) ON mine.id = a.id AND mine.fence = a.fence
WHERE a.tenant_id = %(tenant)s::text AND a.state = 'verified' AND a.verified_at > clock_timestamp() - interval '1 hour'
ORDER BY a.id FOR UPDATE OF a
""")
_FINISH = sql.SQL("""
UPDATE retention.attempts SET state = 'source_deleted', source_deleted_at = clock_timestamp()
WHERE tenant_id = %(tenant)s::text AND id = ANY(%(attempts)s::uuid[]) AND state = 'verified'
""")
_RECEIPTS = sql.SQL("""
INSERT INTO retention.receipts (attempt_id, tenant_id, instance_id, epoch, approval_id, actor, run, rows_by_table)
SELECT r.attempt, %(tenant)s::text, r.instance, r.epoch, %(approval)s::uuid, %(actor)s::text, %(run)s::text, r.tables
FROM unnest(%(attempts)s::uuid[], %(instances)s::text[], %(epochs)s::integer[], %(tables)s::jsonb[])
  AS r (attempt, instance, epoch, tables)
""")
_AUDIT = sql.SQL("""
INSERT INTO retention.audit_events (tenant_id, actor, kind, subject, outcome, correlation, run, details)
SELECT %(tenant)s::text, %(actor)s::text, 'instance.deleted', r.instance, 'done', r.attempt::text, %(run)s::text,
  jsonb_build_object('epoch', r.epoch, 'approval', %(approval)s::text, 'rows', r.tables)
FROM unnest(%(attempts)s::uuid[], %(instances)s::text[], %(epochs)s::integer[], %(tables)s::jsonb[])
  AS r (attempt, instance, epoch, tables)
""")

_DEFERRABLE = sql.SQL("""
SELECT DISTINCT n.nspname, c.conname FROM pg_constraint AS c JOIN pg_namespace AS n ON n.oid = c.connamespace
WHERE c.condeferrable AND c.conname <> %(receipt)s AND has_schema_privilege(n.oid, 'USAGE')
""")

_WAIT_BRIEFLY = sql.SQL("SET LOCAL lock_timeout = '250ms'")
"""Once roots are locked, others may wait for us while we wait for them. We give way long before the server looks for a
deadlock (after 1 s), so that none of the platform's own transactions is ever chosen to fail for our sake."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """One transaction's work for one tenant."""

    catalog: Catalog
    shape: SourceShape
    tenant: TenantId
    as_of: Any
    approval: Approval
    run: str
    held_too: bool = False

    def delete(
        self, cursor: Cursor, verified: Sequence[VerifiedObject]
    ) -> tuple[list[DeletionReceipt], list[Rejected]]:
        """Delete what is unchanged and still eligible; name the rest, and why it stays."""
        by_id = {v.stored.instance: v.stored for v in verified}
        require_shape(cursor, self.catalog, self.shape)
        rejected: dict[InstanceId, Code] = {}
        locked = self._lock(cursor, by_id, rejected)
        recorded = self._attempts(cursor, verified, locked, rejected)
        going = self._still_eligible(cursor, by_id, list(recorded), rejected)
        going = self._same_shared_rows(cursor, going, recorded, rejected)
        require_shape(
            cursor, self.catalog, self.shape
        )  # again: by now every table was read, and no shape changes any more
        going = self._delete_unchanged(cursor, going, recorded, rejected)
        receipts = [
            DeletionReceipt(
                attempt=by_id[i].attempt,
                instance=i,
                epoch=by_id[i].epoch,
                rows=sum(self._deleted_rows(by_id[i].rows_by_table).values()),
            )
            for i in going
        ]
        if going:
            self._record(cursor, [by_id[i] for i in going])
        return receipts, [
            Rejected(instance=InstanceId(i), code=code, attempt=by_id[InstanceId(i)].attempt)
            for i, code in rejected.items()
        ]

    def _parameters(self, ids: Sequence[str]) -> dict[str, Any]:
        return {"tenant": self.tenant, "ids": list(ids), "as_of": self.as_of}

    def _content(self) -> ContentStatements:
        return ContentStatements(dataset=self.catalog.instances, shape=self.shape)

    def _lock(
        self, cursor: Cursor, by_id: dict[InstanceId, StoredObject], rejected: dict[InstanceId, Code]
    ) -> list[InstanceId]:
        content = self._content()
        policies: dict[InstanceId, str] = dict(rows(cursor, content.lock_roots(), self._parameters(list(by_id))))
        missing = set(by_id) - set(policies)
        if missing:
            present = {InstanceId(row[0]) for row in rows(cursor, content.present(), self._parameters(sorted(missing)))}
            # Locked by somebody else: no failure, its turn comes.
            rejected.update(dict.fromkeys(present, Code.SOURCE_BUSY))
            vanished = Vanished(tenant=self.tenant, actor=self.approval.actor, run=self.run)
            rejected.update(vanished.explain(cursor, [by_id[i] for i in missing - present]))
        cursor.execute(_WAIT_BRIEFLY)
        locked = self._lock_parents(cursor, list(policies), rejected)
        locked = self._lock_like_a_hold(cursor, locked, rejected)
        return self._lock_policies(cursor, {i: policies[i] for i in locked}, rejected)

    def _lock_like_a_hold(
        self, cursor: Cursor, ids: list[InstanceId], rejected: dict[InstanceId, Code]
    ) -> list[InstanceId]:
        """Take the lock that a hold takes; where a hold is being placed that does not end soon, the instance is left to it."""
        free = {row[0] for row in rows(cursor, _LOCK_LIKE_A_HOLD, self._parameters(ids))}
        busy = [i for i in ids if i not in free]
        if busy:  # another worker may look at them just now: wait for it once, briefly, for all of them together
            cursor.execute("SAVEPOINT waiting")
            try:
                cursor.execute(_WAIT_LIKE_A_HOLD, self._parameters(busy))
            except WAITED:
                cursor.execute("ROLLBACK TO SAVEPOINT waiting")
            cursor.execute("RELEASE SAVEPOINT waiting")
            free.update(row[0] for row in rows(cursor, _LOCK_LIKE_A_HOLD, self._parameters(busy)))
        rejected.update({i: Code.SOURCE_BUSY for i in ids if i not in free})
        return [i for i in ids if i in free]

    def _lock_policies(
        self, cursor: Cursor, policies: dict[InstanceId, str], rejected: dict[InstanceId, Code]
    ) -> list[InstanceId]:
        """Hold still what carries the periods; where one is just being changed, its instances wait for the next run."""

        def lock(keys: list[str]) -> list[str]:
            cursor.execute(
                sql.SQL("SELECT retention.lock_policies(%(tenant)s::text, %(ids)s::text[])"), self._parameters(keys)
            )
            return keys

        lock([])  # the tenant's own period; while that is being changed, nobody goes, and the run says so
        busy: dict[str, Code] = {}
        free = set(by_halves(cursor, lock, sorted(set(policies.values())), busy))
        rejected.update({i: busy[key] for i, key in policies.items() if key not in free})
        return [i for i, key in policies.items() if key in free]

    def _lock_parents(
        self, cursor: Cursor, ids: list[InstanceId], rejected: dict[InstanceId, Code]
    ) -> list[InstanceId]:
        def lock(some: list[InstanceId]) -> list[InstanceId]:
            for statement in self._content().lock_parents():
                cursor.execute(statement, self._parameters(some))
            return some

        return by_halves(cursor, lock, ids, rejected)

    def _attempts(
        self,
        cursor: Cursor,
        verified: Sequence[VerifiedObject],
        locked: list[InstanceId],
        rejected: dict[InstanceId, Code],
    ) -> dict[InstanceId, tuple[bytes, bytes]]:
        mine = [v.stored for v in verified if v.stored.instance in set(locked)]
        parameters = {
            "tenant": self.tenant,
            "attempts": [s.attempt for s in mine],
            "fences": [s.fence for s in mine],
        }
        found = {InstanceId(row[0]): (bytes(row[1]), bytes(row[2])) for row in rows(cursor, _ATTEMPTS, parameters)}
        rejected.update({i: Code.LEASE_LOST for i in locked if i not in found})
        return found

    def _still_eligible(
        self, cursor: Cursor, by_id: dict[InstanceId, Any], ids: list[InstanceId], rejected: dict[InstanceId, Code]
    ) -> list[InstanceId]:
        facts = FactStatements(dataset=self.catalog.instances, shape=self.shape)
        going = []
        for found in read_some(cursor, facts, self._parameters(ids)):
            code = self._refusal(found, by_id[found.instance].epoch)
            if code is None:
                going.append(found.instance)
            else:
                rejected[found.instance] = code
        return going

    def _refusal(self, found: InstanceFacts, epoch: int) -> Code | None:
        if found.facts.foreign:
            return Code.FOREIGN_ROW
        if found.epoch != epoch:
            return Code.SOURCE_CHANGED
        return None if found.may_go(held_too=self.held_too) else Code.NOT_ELIGIBLE

    def _same_shared_rows(
        self,
        cursor: Cursor,
        going: list[InstanceId],
        recorded: dict[InstanceId, tuple[bytes, bytes]],
        rejected: dict[InstanceId, Code],
    ) -> list[InstanceId]:

        shared = [place.name for place in places(self.catalog.instances) if place.shared]
        same = []
        for row in rows(cursor, self._content().shared_content(), self._parameters(going)):
            parts = [
                (name, *_count_and_content(orjson.loads(text))) for name, text in zip(shared, row[1:], strict=True)
            ]
            if digest_of(parts) == recorded[row[0]][1]:
                same.append(InstanceId(row[0]))
            else:
                rejected[row[0]] = Code.SOURCE_CHANGED
        return same

    def _delete_unchanged(
        self,
        cursor: Cursor,
        going: list[InstanceId],
        recorded: dict[InstanceId, tuple[bytes, bytes]],
        rejected: dict[InstanceId, Code],
    ) -> list[InstanceId]:
        """Delete, compare what went, and where anything differs undo it all and go on without the ones that differ."""

        def delete(some: list[InstanceId]) -> list[InstanceId]:
            while some:
                cursor.execute("SAVEPOINT compared")
                wrong = self._try(cursor, some, recorded)
                if not wrong:
                    break
                cursor.execute("ROLLBACK TO SAVEPOINT compared")
                rejected.update(wrong)
                some = [i for i in some if i not in wrong]
            return some

        return by_halves(cursor, delete, going, rejected)

    def _try(
        self, cursor: Cursor, going: list[InstanceId], recorded: dict[InstanceId, tuple[bytes, bytes]]
    ) -> dict[InstanceId, Code]:
        """Delete all of them, and name those that must not have gone."""
        content = self._content()
        cursor.execute("SET CONSTRAINTS ALL DEFERRED")
        parameters = self._parameters(going)
        gone: dict[str, dict[str, tuple[int, str]]] = {}
        for evidence in self.catalog.instances.deletion_order():
            statement = content.delete_evidence(evidence)
            gone[evidence.name] = {r[0]: (r[1], r[2]) for r in rows(cursor, statement, parameters)}
        left = rows(cursor, sql.SQL("SELECT * FROM retention.references_left(%(ids)s::text[])"), parameters)
        if left:
            return {InstanceId(r[0]): Code.FOREIGN_ROW for r in left}
        gone["root"] = {r[0]: (r[1], r[2]) for r in rows(cursor, content.delete_roots(), parameters)}
        self._fail_now(cursor)  # what would fail at the commit fails for its own instance
        self._require_declared_references(cursor)
        own = [place.name for place in places(self.catalog.instances) if not place.shared]
        shape = self.shape.digest()
        return {
            i: Code.SOURCE_CHANGED
            for i in going
            if digest_of([(name, *gone[name].get(i, (0, ""))) for name in own], shape) != recorded[i][0]
        }

    @staticmethod
    def _fail_now(cursor: Cursor) -> None:
        """Check whatever could be put off to the commit, but for our own trigger, whose receipts follow."""
        deferred = [sql.Identifier(*row) for row in rows(cursor, _DEFERRABLE, {"receipt": RECEIPT_TRIGGER})]
        if deferred:
            cursor.execute(sql.SQL("SET CONSTRAINTS {} IMMEDIATE").format(names.comma(deferred)))

    def _require_declared_references(self, cursor: Cursor) -> None:
        """Refuse where rows may have gone or changed unarchived, by a foreign key made since the catalog was checked.

        Read after the deletion, whose locks keep a new foreign key off until the transaction ends (F18).
        """
        dataset = self.catalog.instances
        parents = {ROOT: dataset.root.table, **{e.name: e.table for e in dataset.evidence}}
        declared = [(e.table, parents[e.parent], set(e.join.items())) for e in dataset.evidence]
        for key in read_foreign_keys(cursor, named_tables(dataset)):
            known = any(
                (table, parent) == (key.belongs_to, key.parent) and join <= set(key.pairs)
                for table, parent, join in declared
            )
            if key.parent in parents.values() and not key.on_delete.refuses and not known:
                raise Refused(
                    Code.CATALOG_INVALID,
                    f"{key.table} refers to {key.parent} with ON DELETE {key.on_delete}, and the catalog doesn't say so:"
                    " its rows would go or change unarchived. Nothing was deleted.",
                    remedy="Run `retention catalog check`, and do what it says.",
                )

    def _deleted_rows(self, rows_by_table: dict[str, int]) -> dict[str, int]:
        own = {place.name for place in places(self.catalog.instances) if not place.shared}
        return {name: n for name, n in rows_by_table.items() if name in own}

    def _record(self, cursor: Cursor, gone: Sequence[Any]) -> None:
        parameters = {
            "tenant": self.tenant,
            "attempts": [s.attempt for s in gone],
            "instances": [s.instance for s in gone],
            "epochs": [s.epoch for s in gone],
            "tables": [Jsonb(self._deleted_rows(s.rows_by_table)) for s in gone],
            "approval": self.approval.id,
            "actor": self.approval.actor,
            "run": self.run,
        }
        clear_set_aside(cursor, self.tenant, parameters["instances"])
        cursor.execute(BIND_HOLDS, parameters)
        for statement in (_FINISH, _RECEIPTS, _AUDIT):
            cursor.execute(statement, parameters)
            if cursor.rowcount != len(gone):
                raise Integrity(
                    Code.LEASE_LOST,
                    "An attempt changed hands during the deletion; nothing was deleted.",
                    remedy="Run again; the next run takes what is still due.",
                )


def _count_and_content(content: list[Any]) -> tuple[int, str]:
    return int(content[0]), str(content[2])
