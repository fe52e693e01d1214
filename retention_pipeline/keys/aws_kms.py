"""Root keys that never leave AWS KMS: tenant keys are encrypted and decrypted there, under an encryption context (SPEC A18).

- The context binds a wrapped key to tenant, generation and purpose; KMS refuses it for any other.
- A key is named by its id or ARN, never by an alias: an alias can be pointed at another key without anybody noticing.
- The key of the audit record is what KMS's own HMAC key makes of its purpose: nothing of it lies in the database, in whose
  sight it would be worthless, and nothing has to be carried from one machine to another.
"""

import threading
from dataclasses import dataclass, field
from typing import Final, Protocol

from retention_pipeline.envelope.wraps import KEY_SIZE, context
from retention_pipeline.errors import Code, Integrity, Unavailable
from retention_pipeline.model.ids import TenantId
from retention_pipeline.model.ports import WrappedKey

PREFIX: Final = "aws-kms:"
"""What the id of each root key of this provider begins with."""
_PURPOSE: Final = "nucleus/tenant-key.v1"
_MAC: Final = "nucleus/kms-mac.v1"


class Service(Protocol):
    """What is needed of the key service; `egress` implements it."""

    def encrypt(self, key: str, plaintext: bytes, context: dict[str, str], /) -> bytes:
        """Encrypt under a key of the service, bound to the context."""
        ...

    def decrypt(self, key: str, ciphertext: bytes, context: dict[str, str], /) -> bytes:
        """Decrypt what exactly this key encrypted for exactly this context."""
        ...

    def mac(self, key: str, message: bytes, /) -> bytes:
        """The HMAC-SHA256 of a message."""
        ...


@dataclass(slots=True, kw_only=True)
class AwsKms:
    """Implements `KeyProvider`. Safe to share between threads.

    Args:
        service: the key service.
        key: the id or ARN of the key that wraps new tenant keys.
        mac: the id or ARN of the HMAC key; None where the audit record's key is elsewhere.
    """

    service: Service = field(repr=False)
    key: str = field(repr=False)
    mac: str | None = field(default=None, repr=False)
    _macs: dict[str, bytes] = field(default_factory=dict, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def current(self) -> str:
        """The id of the root key that wraps new tenant keys."""
        return PREFIX + self.key

    def wrap(self, tenant: TenantId, generation: int, key: bytes) -> WrappedKey:
        """Encrypt a tenant key under the current root key, bound to tenant and generation."""
        return WrappedKey(
            root_key_id=self.current(), ciphertext=self.service.encrypt(self.key, key, _bound(tenant, generation))
        )

    def unwrap(self, tenant: TenantId, generation: int, wrapped: WrappedKey) -> bytes:
        """Give the tenant key back, or raise `Unavailable(KEY_UNAVAILABLE)` or `Integrity(OBJECT_UNAUTHENTIC)`."""
        if not wrapped.root_key_id.startswith(PREFIX):
            raise Unavailable(
                Code.KEY_UNAVAILABLE,
                "The key service has no root key for this tenant's key.",
                remedy="Restore the keyring that the key was wrapped under.",
            )
        root = wrapped.root_key_id.removeprefix(PREFIX)
        return _key(self.service.decrypt(root, wrapped.ciphertext, _bound(tenant, generation)))

    def mac_key(self, purpose: str) -> bytes:
        """A 32-byte key for one named purpose; it is asked for once in a process, and survives rotation."""
        if self.mac is None:
            raise Unavailable(
                Code.KEY_UNAVAILABLE,
                "No HMAC key of the key service is configured.",
                remedy="Set RETENTION_KMS_MAC_KEY_ID, or keep the keyring file whose key seals the audit record.",
            )
        with self._lock:
            if purpose not in self._macs:
                self._macs[purpose] = _key(self.service.mac(self.mac, context(_MAC, purpose)))
            return self._macs[purpose]


def _bound(tenant: TenantId, generation: int) -> dict[str, str]:
    return {"tenant": tenant, "generation": str(generation), "purpose": _PURPOSE}


def _key(data: bytes) -> bytes:
    if len(data) != KEY_SIZE:
        raise Integrity(
            Code.KEY_INVALID, "The key service gave a key of another length.", remedy="Check which keys are configured."
        )
    return data
