"""A tenant's secrets: sealed under the tenant's key, bound to tenant, id and generation (SPEC A13)."""

import json
import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from psycopg import sql

from retention_pipeline.envelope.wraps import TenantKey, open_value, seal_value
from retention_pipeline.errors import Code, Refused
from retention_pipeline.governance.secret import parse_credentials
from retention_pipeline.model.credentials import Credentials
from retention_pipeline.model.ids import TenantId
from retention_pipeline.postgres.session import Cursor, rows

_PURPOSE: Final = "nucleus/archive-secret.v1"

_LOCK = sql.SQL("SELECT pg_advisory_xact_lock(hashtextextended('retention.secrets' || chr(31) || %(tenant)s, 0))")
_NEWEST = sql.SQL("""
SELECT s.generation, s.key_id, s.ciphertext,
  EXISTS (SELECT FROM retention.secret_revocations AS r WHERE r.tenant_id = s.tenant_id AND r.id = s.id)
FROM retention.secrets AS s WHERE s.tenant_id = %(tenant)s AND s.id = %(id)s::uuid ORDER BY s.generation DESC LIMIT 1
""")
_PUT = sql.SQL("""
INSERT INTO retention.secrets (tenant_id, id, generation, key_id, ciphertext)
VALUES (%(tenant)s, %(id)s::uuid, %(generation)s, %(key)s, %(ciphertext)s)
""")
_REVOKE = sql.SQL(
    "INSERT INTO retention.secret_revocations (tenant_id, id, reason) VALUES (%(tenant)s, %(id)s::uuid, %(reason)s)"
)
_LIST = sql.SQL("""
SELECT DISTINCT ON (s.id) s.id::text, s.generation, s.at, extract(day FROM clock_timestamp() - s.at)::integer,
  r.id IS NOT NULL,
  ARRAY(SELECT p.generation FROM retention.profiles AS p
    WHERE p.tenant_id = s.tenant_id AND p.secret_id = s.id ORDER BY p.generation),
  s.id IS NOT DISTINCT FROM (SELECT p.secret_id FROM retention.profiles AS p
    WHERE p.tenant_id = s.tenant_id ORDER BY p.generation DESC LIMIT 1)
FROM retention.secrets AS s LEFT JOIN retention.secret_revocations AS r ON r.tenant_id = s.tenant_id AND r.id = s.id
WHERE s.tenant_id = %(tenant)s ORDER BY s.id, s.generation DESC
""")


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretEntry:
    """What may be shown of a secret to whoever manages profiles.

    Args:
        id: names it in a profile.
        generation: the newest.
        at: when that was stored.
        days: its age.
        revoked: whether it was ended for good.
        profiles: generations of the tenant's profile that name it; archives written under them are read with it.
        current: whether the newest profile names it.
    """

    id: str
    generation: int
    at: datetime
    days: int
    revoked: bool
    profiles: tuple[int, ...]
    current: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedSecret:
    """A secret's newest generation, still closed."""

    tenant: TenantId
    id: str
    generation: int
    key_id: str
    ciphertext: bytes

    def open(self, key: bytes) -> Credentials:
        """Decrypt with the tenant's key of `key_id`."""
        return parse_credentials(open_value(key, _parts(self.tenant, self.id, self.generation), self.ciphertext))


def put(
    cursor: Cursor, tenant: TenantId, credentials: Credentials, key: TenantKey, secret_id: str | None = None
) -> tuple[str, int]:
    """Store credentials, as an operator; gives the secret's id and its generation.

    Args:
        cursor: of the operator's transaction.
        tenant: whose.
        credentials: what to seal.
        key: the tenant's current key.
        secret_id: the secret that gets a new generation; None makes a new secret.
    """
    generation = 1
    if secret_id is None:
        secret_id = str(uuid.uuid4())
    else:
        secret_id = canonical_id(secret_id)
        cursor.execute(_LOCK, {"tenant": tenant})
        generation = newest(cursor, tenant, secret_id).generation + 1
    sealed = seal_value(key.secret, _parts(tenant, secret_id, generation), _plain(credentials))
    values = {"tenant": tenant, "id": secret_id, "generation": generation, "key": key.id, "ciphertext": sealed}
    cursor.execute(_PUT, values)
    return secret_id, generation


def newest(cursor: Cursor, tenant: TenantId, secret_id: str) -> SealedSecret:
    """A secret's newest generation; another tenant's id does not resolve.

    Raises:
        Refused: `SECRET_UNKNOWN` or `SECRET_REVOKED`.
    """
    secret_id = canonical_id(secret_id)
    found = rows(cursor, _NEWEST, {"tenant": tenant, "id": secret_id})
    if not found:
        raise _unknown()
    generation, key_id, ciphertext, revoked = found[0]
    if revoked:
        raise Refused(
            Code.SECRET_REVOKED,
            "The secret was revoked.",
            remedy="Store a new one with `retention secret put`, and name it in the profile.",
        )
    return SealedSecret(tenant=tenant, id=secret_id, generation=generation, key_id=key_id, ciphertext=bytes(ciphertext))


def revoke(cursor: Cursor, tenant: TenantId, secret_id: str, reason: str) -> None:
    """End a secret for good, as an operator; the profile that names it is no longer ready."""
    secret_id = canonical_id(secret_id)
    cursor.execute(_LOCK, {"tenant": tenant})
    newest(cursor, tenant, secret_id)
    cursor.execute(_REVOKE, {"tenant": tenant, "id": secret_id, "reason": reason})


def entries(cursor: Cursor, tenant: TenantId) -> tuple[SecretEntry, ...]:
    """Every secret of a tenant, without what is in it."""
    return tuple(
        SecretEntry(
            id=secret_id,
            generation=generation,
            at=at,
            days=days,
            revoked=revoked,
            profiles=tuple(profiles),
            current=current,
        )
        for secret_id, generation, at, days, revoked, profiles, current in rows(cursor, _LIST, {"tenant": tenant})
    )


def canonical_id(text: str) -> str:
    """A secret's id in its only spelling, or `Refused(SECRET_UNKNOWN)`."""
    try:
        return str(uuid.UUID(text))
    except ValueError:
        raise _unknown() from None


def _parts(tenant: TenantId, secret_id: str, generation: int) -> tuple[str | int, ...]:
    return (_PURPOSE, tenant, secret_id, generation)


def _plain(credentials: Credentials) -> bytes:
    values = {"access_key": credentials.access_key, "secret_key": credentials.secret_key}
    if credentials.session_token is not None:
        values["session_token"] = credentials.session_token
    return json.dumps(values).encode("ascii")


def _unknown() -> Refused:
    return Refused(
        Code.SECRET_UNKNOWN, "This tenant has no such secret.", remedy="See `retention secret list` for its secrets."
    )
