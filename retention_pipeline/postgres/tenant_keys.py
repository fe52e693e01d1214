"""A tenant's keys: made at first use, kept wrapped in the database, unwrapped once per process (SPEC A18).

A key that was destroyed is known as such in every process within a minute, also where it is in memory still.
"""

import secrets
import threading
from dataclasses import dataclass, field
from typing import Any

from psycopg import sql

from retention_pipeline.clock import Stopwatch, monotonic
from retention_pipeline.envelope.wraps import KEY_SIZE, TenantKey
from retention_pipeline.errors import Code, Refused, Unavailable
from retention_pipeline.model.ids import TenantId
from retention_pipeline.model.ports import KeyProvider, WrappedKey
from retention_pipeline.postgres.session import Session, rows

FIRST_GENERATION = 1
TRUSTED_SECONDS = 60.0
"""How long a key in memory is used before the database is asked whether it stands."""

_COLUMNS = "SELECT key_id, generation, root_key_id, ciphertext FROM retention.tenant_keys WHERE tenant_id = %(tenant)s"
_NEWEST = sql.SQL(_COLUMNS + " ORDER BY generation DESC LIMIT 1")
_BY_ID = sql.SQL(_COLUMNS + " AND key_id = %(id)s")
_CREATE = sql.SQL("""
INSERT INTO retention.tenant_keys (tenant_id, generation, key_id, root_key_id, ciphertext)
VALUES (%(tenant)s, %(generation)s, %(id)s, %(root)s, %(ciphertext)s) ON CONFLICT (tenant_id, generation) DO NOTHING
""")


@dataclass(slots=True, kw_only=True)
class TenantKeys:
    """Safe to share between threads, if nobody else uses its session.

    Args:
        session: the worker's, or that of an operator who may manage profiles.
        provider: holds the root keys.
        stopwatch: says how long ago a key was looked at.
    """

    session: Session
    provider: KeyProvider
    stopwatch: Stopwatch = monotonic
    _known: dict[tuple[TenantId, str], TenantKey] = field(default_factory=dict, repr=False)
    _seen: dict[tuple[TenantId, str], float] = field(default_factory=dict, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def current(self, tenant: TenantId) -> TenantKey:
        """The newest key, made at first use. The database is asked each time: another process may have rotated it.

        Raises:
            Refused: `KEY_DESTROYED`; whoever manages keys makes a new one, by `retention keys rotate tenant`.
        """
        with self._lock:
            found = self._read(tenant, _NEWEST)
            if found is None:
                self._create(tenant)
                found = self._read(tenant, _NEWEST)
            if found is None:
                raise _unavailable()
            return self._unwrapped(tenant, found)

    def find(self, tenant: TenantId, key_id: str) -> bytes:
        """The key of this id, for an archive that was sealed under it.

        Raises:
            Refused: `KEY_DESTROYED`.
            Unavailable: `KEY_UNAVAILABLE`.
        """
        with self._lock:
            known = self._known.get((tenant, key_id))
            if known is None or self.stopwatch() - self._seen[tenant, key_id] > TRUSTED_SECONDS:
                found = self._read(tenant, _BY_ID, id=key_id)
                if found is None:
                    raise _unavailable()
                known = self._unwrapped(tenant, found)
            return known.secret

    def _read(self, tenant: TenantId, statement: sql.SQL, **values: Any) -> tuple[Any, ...] | None:
        with self.session.transaction(tenant, read_only=True) as cursor:
            found = rows(cursor, statement, {"tenant": tenant, **values})
        return found[0] if found else None

    def _create(self, tenant: TenantId) -> None:
        """Of two processes that do this at once, one key stays: the second insert waits for the first, and does nothing.

        The root key is used before the transaction begins, since a key service may take its time to answer.
        """
        wrapped = self.provider.wrap(tenant, FIRST_GENERATION, secrets.token_bytes(KEY_SIZE))
        values = {
            "tenant": tenant,
            "generation": FIRST_GENERATION,
            "id": f"{secrets.token_hex(12)}/{FIRST_GENERATION}",
            "root": wrapped.root_key_id,
            "ciphertext": wrapped.ciphertext,
        }
        with self.session.transaction(tenant) as cursor:
            cursor.execute(_CREATE, values)

    def _unwrapped(self, tenant: TenantId, row: tuple[Any, ...]) -> TenantKey:
        key_id, generation, root, ciphertext = row
        if ciphertext is None:
            self._known.pop((tenant, key_id), None)
            raise _destroyed()
        self._seen[tenant, key_id] = self.stopwatch()
        known = self._known.get((tenant, key_id))
        if known is None:
            wrapped = WrappedKey(root_key_id=root, ciphertext=bytes(ciphertext))
            known = TenantKey(id=key_id, secret=self.provider.unwrap(tenant, generation, wrapped))
            self._known[tenant, key_id] = known
        return known


def _destroyed() -> Refused:
    return Refused(
        Code.KEY_DESTROYED,
        "This tenant's key was destroyed: nobody can read what it sealed.",
        remedy="The tombstones and receipts say what there was; `retention keys rotate tenant` makes a key for new archives.",
    )


def _unavailable() -> Unavailable:
    return Unavailable(
        Code.KEY_UNAVAILABLE,
        "This tenant's key is not in the database.",
        remedy="Restore it from the wrapped keys that are exported beside the archives, unless it was destroyed.",
    )
