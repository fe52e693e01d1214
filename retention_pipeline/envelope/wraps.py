"""Small values sealed under one key: tenant keys, data keys, stored secrets.

- The context is an injective list of strings and numbers whose first part names the use, so that a value that was
  sealed for one purpose, tenant or generation never opens as another's (SPEC A3, A13, A18).
"""

from dataclasses import dataclass, field
from typing import Final

from cryptography.cobblestone import Cobblestone256Decryptor, Cobblestone256Encryptor
from cryptography.exceptions import InvalidTag

from retention_pipeline.envelope.identity import DOMAIN, canonical
from retention_pipeline.errors import Code, Integrity, Refused

KEY_SIZE: Final = 32
"""Bytes in every key."""

Part = str | int


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantKey:
    """A tenant's key of one generation.

    Args:
        id: its opaque public name, at most 255 ASCII characters, such as `"<opaque>/<generation>"`.
        secret: 32 random bytes; never shown.
    """

    id: str
    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if not (
            self.id.isascii() and self.id.isprintable() and 0 < len(self.id) < 256 and len(self.secret) == KEY_SIZE
        ):
            raise Refused(
                Code.KEY_INVALID,
                "A tenant's key has an unusable name or length.",
                remedy="Restore the key from its backup, or rotate it.",
            )


def context(*parts: Part) -> bytes:
    """The bytes that bind a sealed value to its use."""
    return canonical(list(parts))


def seal_value(key: bytes, parts: tuple[Part, ...], data: bytes) -> bytes:
    """Encrypt `data` for exactly the use that `parts` names; 72 bytes longer than what goes in, up to 16 KiB."""
    encryptor = Cobblestone256Encryptor(key, context(*parts))
    return encryptor.update(data) + encryptor.finalize()


def open_value(key: bytes, parts: tuple[Part, ...], sealed: bytes) -> bytes:
    """Decrypt what `seal_value` made with the same key and parts, or raise `Integrity(OBJECT_UNAUTHENTIC)`."""
    try:
        decryptor = Cobblestone256Decryptor(key, context(*parts))
        return decryptor.update(sealed) + decryptor.finalize()
    except InvalidTag:
        raise Integrity(
            Code.OBJECT_UNAUTHENTIC,
            "A sealed value was changed, or belongs elsewhere.",
            remedy="Keep it as it is, and restore the value or its key from a backup.",
        ) from None


def wrap_tenant_key(root: bytes, tenant: str, generation: int, secret: bytes) -> bytes:
    """Encrypt a tenant's key under a root key, bound to tenant and generation (SPEC A18)."""
    return seal_value(root, (DOMAIN, "tenant-kek", tenant, generation), secret)


def unwrap_tenant_key(root: bytes, tenant: str, generation: int, wrapped: bytes) -> bytes:
    """Give the tenant's key back, or raise `Integrity(OBJECT_UNAUTHENTIC)`."""
    return open_value(root, (DOMAIN, "tenant-kek", tenant, generation), wrapped)
