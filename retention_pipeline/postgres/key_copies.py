"""The record of wrapped keys beside the archives, behind the port `KeyCopies`, as the worker (SPEC A5, A17)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg import sql

from retention_pipeline.errors import Code, Unavailable
from retention_pipeline.model.ids import ObjectKey, ObjectVersion, TenantId
from retention_pipeline.model.ports import WrappedKey
from retention_pipeline.model.tenant_keys import DueCopy, KeptKey, KeyCopy
from retention_pipeline.postgres.session import Session, rows

_DUE = sql.SQL("""
SELECT d.profile_generation, k.key_id, k.generation, k.revision, k.root_key_id, k.ciphertext
FROM retention.key_copies_due AS d JOIN retention.tenant_keys AS k ON k.key_id = d.key_id AND k.revision = d.revision
WHERE d.tenant_id = %(tenant)s AND k.ciphertext IS NOT NULL ORDER BY d.profile_generation DESC, k.generation
""")
_INTEND = sql.SQL("""
INSERT INTO retention.key_copies (tenant_id, key_id, revision, root_key_id, profile_generation, object_key)
VALUES (%(tenant)s, %(key)s, %(revision)s, %(root)s, %(profile)s, %(name)s)
ON CONFLICT (key_id, profile_generation, revision) WHERE ended_at IS NULL DO NOTHING
""")
_COPY = "SELECT id, profile_generation, object_key, object_version FROM "
_INTENDED = sql.SQL(
    _COPY + "retention.key_copies WHERE tenant_id = %(tenant)s AND key_id = %(key)s"
    " AND revision = %(revision)s AND profile_generation = %(profile)s AND ended_at IS NULL"
)
_WRITTEN = sql.SQL("""
UPDATE retention.key_copies AS c SET object_version = %(version)s FROM retention.tenant_keys AS k
WHERE c.tenant_id = %(tenant)s AND c.id = %(id)s AND c.ended_at IS NULL
  AND k.key_id = c.key_id AND k.revision = c.revision AND k.destroyed_at IS NULL
  AND NOT EXISTS (SELECT FROM retention.key_destructions AS d
    WHERE d.tenant_id = k.tenant_id AND d.through_generation >= k.generation)
""")
_STALE = sql.SQL(_COPY + "retention.key_copies_stale WHERE tenant_id = %(tenant)s ORDER BY id")
_ENDED = sql.SQL("""
UPDATE retention.key_copies SET ended_at = clock_timestamp()
WHERE tenant_id = %(tenant)s AND id = ANY (%(ids)s) AND ended_at IS NULL
""")
_STORES = sql.SQL("""
SELECT p.generation, (SELECT count(*) FROM retention.key_copies AS c
  WHERE c.tenant_id = p.tenant_id AND c.profile_generation = p.generation AND c.ended_at IS NULL)
FROM retention.profiles AS p WHERE p.tenant_id = %(tenant)s
  AND EXISTS (SELECT FROM retention.readiness_events AS r
    WHERE r.tenant_id = p.tenant_id AND r.profile_generation = p.generation AND r.ready)
ORDER BY p.generation
""")
_TENANTS = sql.SQL("SELECT tenant FROM retention.tenants_with_key_copies_due() AS t (tenant)")


@dataclass(slots=True, kw_only=True)
class PostgresKeyCopies:
    """Keeps the record through one session, as the worker."""

    session: Session

    def tenants(self) -> list[TenantId]:
        """Whose stores lack a copy, or have one too many."""
        with self.session.transaction(None, read_only=True) as cursor:
            return [TenantId(row[0]) for row in rows(cursor, _TENANTS)]

    def due(self, tenant: TenantId) -> Sequence[DueCopy]:
        """Keys that lack a copy as they are now."""
        with self.session.transaction(tenant, read_only=True) as cursor:
            return [
                DueCopy(
                    profile_generation=profile,
                    kept=KeptKey(
                        tenant=tenant,
                        id=key,
                        generation=generation,
                        revision=revision,
                        wrapped=WrappedKey(root_key_id=root, ciphertext=bytes(ciphertext)),
                    ),
                )
                for profile, key, generation, revision, root, ciphertext in rows(cursor, _DUE, {"tenant": tenant})
            ]

    def intend(self, due: DueCopy, name: ObjectKey) -> KeyCopy:
        """Record a copy before it is written; gives the one that was recorded before, where there is one."""
        kept = due.kept
        values = {
            "tenant": kept.tenant,
            "key": kept.id,
            "revision": kept.revision,
            "root": kept.wrapped.root_key_id,
            "profile": due.profile_generation,
            "name": name,
        }
        with self.session.transaction(kept.tenant) as cursor:
            cursor.execute(_INTEND, values)
            found = rows(cursor, _INTENDED, values)
        if not found:
            raise Unavailable(
                Code.KEY_UNAVAILABLE,
                "The key was wrapped anew or destroyed while it was copied.",
                remedy="Nothing is lost; the next pass copies what there is.",
            )
        return _copy(found[0])

    def written(self, tenant: TenantId, copy: KeyCopy, version: ObjectVersion) -> bool:
        """Record the version; False where the copy is no longer wanted."""
        with self.session.transaction(tenant) as cursor:
            cursor.execute(_WRITTEN, {"tenant": tenant, "id": copy.id, "version": version})
            return cursor.rowcount == 1

    def stale(self, tenant: TenantId) -> Sequence[KeyCopy]:
        """Copies of what the key no longer is."""
        with self.session.transaction(tenant, read_only=True) as cursor:
            return [_copy(row) for row in rows(cursor, _STALE, {"tenant": tenant})]

    def ended(self, tenant: TenantId, copies: Sequence[int]) -> None:
        """Record that they are gone."""
        with self.session.transaction(tenant) as cursor:
            cursor.execute(_ENDED, {"tenant": tenant, "ids": list(copies)})

    def stores(self, tenant: TenantId) -> Mapping[int, int]:
        """Every generation of the profile that was ever proven, with the copies that are on record there."""
        with self.session.transaction(tenant, read_only=True) as cursor:
            return dict(rows(cursor, _STORES, {"tenant": tenant}))


def _copy(row: tuple[Any, ...]) -> KeyCopy:
    identifier, profile, key, version = row
    return KeyCopy(
        id=identifier,
        profile_generation=profile,
        key=ObjectKey(key),
        version=ObjectVersion(version) if version else None,
    )
