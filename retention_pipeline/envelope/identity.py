"""Whose archive an envelope is: the one part of it that is in clear, and bound to everything that is not (SPEC A3).

- Canonical JSON (RFC 8785) with exactly the keys ctx, suite, tenant, instance, epoch, manifest, zip, zlen, plain.
- It must re-encode to itself, so that one archive has one spelling.
- Strings are non-empty, numbers are integers from 0 to 2^53 - 1; the epoch's ordinal starts at 1.
"""

from dataclasses import dataclass
from typing import Final

import orjson

from retention_pipeline.errors import Code, Integrity, Refused

DOMAIN: Final = "nucleus/workflow-archive.v1"
MAX_IDENT: Final = 4096
"""Bytes; ids are short."""

_SUITE: Final = "cobblestone-256"
_ZIP: Final = "zstd"
_KEYS: Final = frozenset({"ctx", "suite", "tenant", "instance", "epoch", "manifest", "zip", "zlen", "plain"})
_EXACT: Final = 2**53


def canonical(value: object) -> bytes:
    """Encode ASCII keys, strings, null and integers below 2^53 as RFC 8785 does."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What an envelope belongs to; all of it is associated data of the encryption.

    Args:
        tenant: the tenant's id.
        instance: the instance's primary key.
        epoch: the terminal epoch's ordinal, from 1.
        manifest: the manifest's schema version.
    """

    tenant: str
    instance: str
    epoch: int
    manifest: str

    def __post_init__(self) -> None:
        if not _is_identity(self.tenant, self.instance, self.epoch, self.manifest):
            raise Refused(
                Code.IDENTITY_INVALID,
                "An instance's ids can't name an archive.",
                remedy="Check the catalog's key columns: ids are non-empty text, and epochs are counted from 1.",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ident:
    """An identity with the two lengths that bound what opening may read.

    Args:
        identity: whose archive it is.
        zlen: the compressed manifest's size in bytes.
        plain: the manifest's size in bytes.
    """

    identity: Identity
    zlen: int
    plain: int

    def encode(self) -> bytes:
        """The bytes that stand in the object; `Refused(IDENTITY_INVALID)` where the ids are too long."""
        encoded = canonical(
            {
                "ctx": DOMAIN,
                "suite": _SUITE,
                "tenant": self.identity.tenant,
                "instance": self.identity.instance,
                "epoch": self.identity.epoch,
                "manifest": self.identity.manifest,
                "zip": _ZIP,
                "zlen": self.zlen,
                "plain": self.plain,
            }
        )
        if len(encoded) > MAX_IDENT:
            raise Refused(
                Code.IDENTITY_INVALID,
                f"An instance's ids need {len(encoded)} bytes; an archive holds {MAX_IDENT}.",
                remedy="Name a shorter key column in the catalog.",
            )
        return encoded


def parse_ident(data: bytes) -> Ident:
    """Read IDENT strictly, or raise `Integrity(OBJECT_MALFORMED)`."""
    try:
        fields = orjson.loads(data)
    except orjson.JSONDecodeError:
        raise _malformed() from None
    if not isinstance(fields, dict) or fields.keys() != _KEYS or canonical(fields) != data:
        raise _malformed()
    tenant, instance, epoch, manifest = (fields[name] for name in ("tenant", "instance", "epoch", "manifest"))
    fixed = (fields["ctx"], fields["suite"], fields["zip"]) == (DOMAIN, _SUITE, _ZIP)
    sizes = _is_count(fields["zlen"]) and _is_count(fields["plain"])
    if not (fixed and sizes and _is_identity(tenant, instance, epoch, manifest)):
        raise _malformed()
    identity = Identity(tenant=tenant, instance=instance, epoch=epoch, manifest=manifest)
    return Ident(identity=identity, zlen=fields["zlen"], plain=fields["plain"])


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < _EXACT  # a bool is an int to isinstance


def _is_text(value: object) -> bool:
    if not isinstance(value, str) or not value:
        return False
    return not any("\ud800" <= char <= "\udfff" for char in value) if not value.isascii() else True


def _is_identity(tenant: object, instance: object, epoch: object, manifest: object) -> bool:
    return _is_text(tenant) and _is_text(instance) and _is_text(manifest) and _is_count(epoch) and epoch != 0


def _malformed() -> Integrity:
    return Integrity(
        Code.OBJECT_MALFORMED,
        "The object's identity is not written as the format says.",
        remedy="Keep the object and the source; look for another program that writes under the prefix.",
    )
