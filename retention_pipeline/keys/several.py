"""The configured provider beside the keyring file, while an installation moves from one to the other (SPEC A18)."""

from dataclasses import dataclass

from retention_pipeline.keys.aws_kms import PREFIX
from retention_pipeline.model.ids import TenantId
from retention_pipeline.model.ports import KeyProvider, WrappedKey


@dataclass(frozen=True, slots=True, kw_only=True)
class KmsAndKeyring:
    """Implements `KeyProvider`: new keys are wrapped by one of the two, and what the other wrapped still opens.

    Args:
        by_kms: which of the two wraps what is new.
        mac_by_kms: whether the audit record's key is the service's; else it stays in the keyring file, so that what was sealed
            with it still verifies.
    """

    kms: KeyProvider
    keyring: KeyProvider
    by_kms: bool
    mac_by_kms: bool

    def current(self) -> str:
        """The id of the root key that wraps new tenant keys."""
        return self._newest().current()

    def wrap(self, tenant: TenantId, generation: int, key: bytes) -> WrappedKey:
        """Encrypt a tenant key under the current root key, bound to tenant and generation."""
        return self._newest().wrap(tenant, generation, key)

    def unwrap(self, tenant: TenantId, generation: int, wrapped: WrappedKey) -> bytes:
        """Give the tenant key back, by whichever of the two wrapped it."""
        provider = self.kms if wrapped.root_key_id.startswith(PREFIX) else self.keyring
        return provider.unwrap(tenant, generation, wrapped)

    def mac_key(self, purpose: str) -> bytes:
        """A 32-byte key for one named purpose; it survives rotation."""
        return (self.kms if self.mac_by_kms else self.keyring).mac_key(purpose)

    def _newest(self) -> KeyProvider:
        return self.kms if self.by_kms else self.keyring
