"""Stand-ins that pass the same suite as the real thing."""

import hmac
import io
import secrets
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256 as new_sha256

from retention_pipeline import clock
from retention_pipeline.envelope.wraps import KEY_SIZE, unwrap_tenant_key, wrap_tenant_key
from retention_pipeline.errors import Code, Integrity, Refused, Unavailable
from retention_pipeline.model.ids import ObjectVersion
from retention_pipeline.model.ports import Deletion, ObjectLock, StoredVersion, WrappedKey
from retention_pipeline.storage.keys import checked_folder, checked_key


@dataclass
class Kept:
    """One version in memory."""

    version: ObjectVersion
    body: bytes
    lock_until: object = None
    held: bool = False


class MemoryStore:
    """Implements `ObjectStore` in this process's memory. A test may look into `kept`, and change it."""

    def __init__(self, *, locks=False, findings=(), now=clock.utc_now):
        self.kept: dict[str, list[Kept]] = {}
        self._locks, self._findings, self._now = locks, findings, now

    def put_once(self, key, body, *, sha256, lock_until=None):
        if lock_until is not None and not self._locks:
            raise Refused(Code.USAGE, "This store has no object lock.", remedy="Ask `locks` first.")
        if new_sha256(body).digest() != sha256:
            raise Integrity(Code.OBJECT_DIGEST_MISMATCH, "Other bytes arrived.", remedy="Try again.")
        kept = Kept(ObjectVersion(secrets.token_hex(16)), bytes(body), lock_until)
        if self.kept.setdefault(checked_key(key), [kept]) != [kept]:
            raise Refused(Code.OBJECT_EXISTS, "An object has that key already.", remedy="Read it back.")
        return kept.version

    @contextmanager
    def read(self, key, version):
        found = self._find(key, version)
        if found is None:
            raise Integrity(Code.OBJECT_MISSING, "There is no such version.", remedy="Find out who removed it.")
        yield io.BytesIO(found.body)

    def versions(self, key):
        return tuple(
            StoredVersion(key=key, version=kept.version, size=len(kept.body))
            for kept in self.kept.get(checked_key(key), ())
        )

    def walk(self, below=""):
        for key in sorted(self.kept):
            if key.startswith(checked_folder(below)):
                yield from self.versions(key)

    def delete(self, key, version):
        found = self._find(key, version)
        if found is None:
            return Deletion.GONE
        if found.held or (found.lock_until is not None and found.lock_until > self._now()):
            return Deletion.LOCKED
        self.kept[key].remove(found)
        if not self.kept[key]:
            del self.kept[key]
        return Deletion.DELETED

    def lock(self, key, version, *, until):
        self._lockable(key, version).lock_until = until

    def hold(self, key, version, *, on):
        self._lockable(key, version).held = on

    def lock_state(self, key, version):
        found = self._find(key, version)
        return ObjectLock(until=found and found.lock_until, held=bool(found and found.held))

    def _lockable(self, key, version):
        found = self._find(key, version)
        if not self._locks:
            raise Refused(Code.USAGE, "This store has no object lock.", remedy="Ask `locks` first.")
        if found is None:
            raise Integrity(Code.OBJECT_MISSING, "There is no such version.", remedy="Find out who removed it.")
        return found

    def locks(self):
        return self._locks

    def findings(self):
        return tuple(self._findings)

    def close(self):
        """Nothing to release."""

    def _find(self, key, version):
        return next((kept for kept in self.kept.get(checked_key(key), ()) if kept.version == version), None)


class MemoryKeys:
    """Implements `KeyProvider` in this process's memory."""

    def __init__(self):
        self._roots: dict[str, bytes] = {}
        self._mac = secrets.token_bytes(KEY_SIZE)
        self.add_root()

    def add_root(self):
        self._current = f"memory-{secrets.token_hex(8)}"
        self._roots[self._current] = secrets.token_bytes(KEY_SIZE)
        return self._current

    def drop(self, name):
        del self._roots[name]

    def current(self):
        return self._current

    def wrap(self, tenant, generation, key):
        sealed = wrap_tenant_key(self._roots[self._current], tenant, generation, key)
        return WrappedKey(root_key_id=self._current, ciphertext=sealed)

    def unwrap(self, tenant, generation, wrapped):
        if wrapped.root_key_id not in self._roots:
            raise Unavailable(Code.KEY_UNAVAILABLE, "The root key is gone.", remedy="Restore it.")
        return unwrap_tenant_key(self._roots[wrapped.root_key_id], tenant, generation, wrapped.ciphertext)

    def mac_key(self, purpose):
        return hmac.digest(self._mac, purpose.encode(), "sha256")
