"""The manifest's digest: keyed, so that what the database keeps tells nothing of a shredded archive (SPEC A18)."""

import hmac
from hashlib import sha256
from typing import Final

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from retention_pipeline.envelope.identity import DOMAIN
from retention_pipeline.envelope.wraps import KEY_SIZE, context

_PURPOSE: Final = context(DOMAIN, "manifest-digest")


def manifest_mac(tenant_key: bytes) -> hmac.HMAC:
    """An HMAC-SHA256 to feed a manifest's bytes to, under a subkey of the tenant's key that has no other use."""
    subkey = HKDFExpand(SHA256(), KEY_SIZE, _PURPOSE).derive(tenant_key)
    return hmac.new(subkey, digestmod=sha256)


def manifest_digest(manifest: bytes, *, tenant_key: bytes) -> bytes:
    """The 32-byte digest of a whole manifest."""
    mac = manifest_mac(tenant_key)
    mac.update(manifest)
    return mac.digest()
