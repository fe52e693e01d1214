"""What a manager of keys asks of the database and has it do, by functions that ask for the permission and audit the act (SPEC A18, G3)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from psycopg import sql

from retention_pipeline.model.ids import TenantId
from retention_pipeline.model.ports import WrappedKey
from retention_pipeline.model.tenant_keys import KeptKey, KeyUse, Stakes
from retention_pipeline.postgres.session import Session, one, rows

_KEYS = sql.SQL("""
SELECT key_id, generation, revision, root_key_id, ciphertext FROM retention.tenant_keys
WHERE tenant_id = %(tenant)s AND ciphertext IS NOT NULL ORDER BY generation
""")
_NEWEST = sql.SQL("SELECT coalesce(max(generation), 0) FROM retention.key_usage()")
_USAGE = sql.SQL("""
SELECT generation, made_at, days, root_key_id, destroyed_at, doomed, archives, in_flight, secrets, copies
FROM retention.key_usage()
""")
_STAKES = sql.SQL("""
SELECT generations, in_flight, holds, kept, archives, secrets, copies, begun_at, destroyed FROM retention.key_stakes()
""")
_REWRAP = sql.SQL("SELECT retention.rewrap_key(%(generation)s, %(revision)s, %(root)s, %(wrapped)s)")
_ALLOW = sql.SQL("SELECT retention.allow_root_rotation(%(root)s, %(reason)s, %(correlation)s)")
_ADD = sql.SQL("""
SELECT retention.add_key(%(generation)s, %(id)s, %(root)s, %(wrapped)s, %(reason)s, %(correlation)s)
""")
_OTHER_ROOTS = sql.SQL("SELECT tenant FROM retention.tenants_under_other_roots(%(root)s) AS t (tenant)")
_ROOTS = sql.SQL("SELECT root FROM retention.roots_in_use() AS r (root)")
_NOTE = sql.SQL("SELECT retention.note_roots(%(what)s, %(roots)s, %(reason)s, %(correlation)s)")
_BEGIN = sql.SQL("SELECT retention.begin_key_destruction(%(archives_too)s, %(reason)s, %(correlation)s)")
_FINISH = sql.SQL("SELECT retention.finish_key_destruction(%(without_store)s, %(correlation)s)")


@dataclass(slots=True, kw_only=True)
class PostgresRewrapping:
    """Implements `Rewrapping`.

    Args:
        session: the worker's.
    """

    session: Session

    def keys(self, tenant: TenantId) -> Sequence[KeptKey]:
        """Every key that is not destroyed, the oldest first."""
        with self.session.transaction(tenant, read_only=True) as cursor:
            return [
                KeptKey(
                    tenant=tenant,
                    id=key,
                    generation=generation,
                    revision=revision,
                    wrapped=WrappedKey(root_key_id=root, ciphertext=bytes(ciphertext)),
                )
                for key, generation, revision, root, ciphertext in rows(cursor, _KEYS, {"tenant": tenant})
            ]

    def rewrap(self, kept: KeptKey, wrapped: WrappedKey) -> bool:
        """Replace the wrapped key in one transaction; False where another rotation was first."""
        values = {
            "generation": kept.generation,
            "revision": kept.revision,
            "root": wrapped.root_key_id,
            "wrapped": wrapped.ciphertext,
        }
        with self.session.transaction(kept.tenant) as cursor:
            cursor.execute(_REWRAP, values)
            return bool(one(cursor)[0])

    def under_other_roots(self, root: str) -> Sequence[TenantId]:
        """Tenants with a key that another root wraps."""
        with self.session.transaction(None, read_only=True) as cursor:
            return [TenantId(row[0]) for row in rows(cursor, _OTHER_ROOTS, {"root": root})]


@dataclass(slots=True, kw_only=True)
class PostgresKeyDesk:
    """Implements `KeyDesk` and `DestructionDesk`.

    Args:
        session: the operator's.
    """

    session: Session

    def newest_generation(self, tenant: TenantId) -> int:
        """The newest generation, destroyed ones included; 0 where there is none."""
        with self.session.transaction(tenant, read_only=True) as cursor:
            cursor.execute(_NEWEST)
            return int(one(cursor)[0])

    def add(
        self, tenant: TenantId, generation: int, wrapped: WrappedKey, *, key_id: str, reason: str, correlation: str
    ) -> bool:
        """Make a new generation; False where another rotation was first."""
        values = {
            "generation": generation,
            "id": key_id,
            "root": wrapped.root_key_id,
            "wrapped": wrapped.ciphertext,
            "reason": reason,
            "correlation": correlation,
        }
        with self.session.transaction(tenant) as cursor:
            cursor.execute(_ADD, values)
            return bool(one(cursor)[0])

    def allow_rotation(self, root: str, *, reason: str, correlation: str) -> None:
        """Let the worker wrap every key anew under this root, for a day."""
        with self.session.transaction(None) as cursor:
            cursor.execute(_ALLOW, {"root": root, "reason": reason, "correlation": correlation})

    def roots_in_use(self) -> frozenset[str]:
        """Roots that a key, or a copy of one beside the archives, still needs."""
        with self.session.transaction(None, read_only=True) as cursor:
            return frozenset(str(row[0]) for row in rows(cursor, _ROOTS))

    def note_roots(self, what: str, roots: int, *, reason: str, correlation: str) -> None:
        """Have it on record that root keys came, went, or wrap everything now."""
        with self.session.transaction(None) as cursor:
            cursor.execute(_NOTE, {"what": what, "roots": roots, "reason": reason, "correlation": correlation})

    def usage(self, tenant: TenantId) -> Sequence[KeyUse]:
        """Every generation with what depends on it, the oldest first."""
        with self.session.transaction(tenant, read_only=True) as cursor:
            return [_use(row) for row in rows(cursor, _USAGE)]

    def stakes(self, tenant: TenantId) -> Stakes:
        """What a destruction would take, and what stands in its way."""
        with self.session.transaction(tenant, read_only=True) as cursor:
            cursor.execute(_STAKES)
            generations, in_flight, holds, kept, archives, secrets, copies, begun_at, destroyed = one(cursor)
        return Stakes(
            generations=int(generations),
            in_flight=int(in_flight),
            holds=int(holds),
            kept=int(kept),
            archives={str(state): int(number) for state, number in archives.items()},
            secrets=int(secrets),
            copies=int(copies),
            begun_at=begun_at,
            destroyed=int(destroyed),
        )

    def begin_destruction(self, tenant: TenantId, *, archives_too: bool, reason: str, correlation: str) -> int | None:
        """The point of no return, or a refusal; gives the last generation that goes, None where there is none.

        Raises:
            Refused: `KEY_HELD`, `KEY_IN_USE` or `KEY_ARCHIVES_KEPT`.
        """
        with self.session.transaction(tenant) as cursor:
            cursor.execute(_BEGIN, {"archives_too": archives_too, "reason": reason, "correlation": correlation})
            last = one(cursor)[0]
            return None if last is None else int(last)

    def finish_destruction(self, tenant: TenantId, *, without_store: bool, correlation: str) -> int:
        """Destroy the keys whose destruction was begun; gives how many.

        Raises:
            Refused: `KEY_COPIES_LEFT`.
        """
        with self.session.transaction(tenant) as cursor:
            cursor.execute(_FINISH, {"without_store": without_store, "correlation": correlation})
            return int(one(cursor)[0])


def _use(row: tuple[Any, ...]) -> KeyUse:
    generation, made_at, days, root, destroyed_at, doomed, archives, in_flight, secrets, copies = row
    return KeyUse(
        generation=generation,
        made_at=made_at,
        days=days,
        root=root,
        destroyed_at=destroyed_at,
        doomed=doomed,
        archives=archives,
        in_flight=in_flight,
        secrets=secrets,
        copies=copies,
    )
