"""Rotates keys without touching an object: a new root wraps every tenant's keys again, or a tenant gets a new key (SPEC A18).

- Each key is wrapped anew in a transaction of its own, and only if it is what was read: at every moment the database has one
  wrapped copy that opens. Killed anywhere, run again goes on; two at once do each key once.
- What was wrapped is opened before it takes the old one's place.
"""

import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

from retention_pipeline.envelope.wraps import KEY_SIZE
from retention_pipeline.errors import Code, Integrity, RetentionError, Unavailable
from retention_pipeline.model.ids import TenantId
from retention_pipeline.model.ports import KeyProvider, WrappedKey
from retention_pipeline.model.tenant_keys import KeptKey, KeyDesk, Rewrapping

_TRIES = 5


@dataclass(slots=True, kw_only=True)
class Rewrapped:
    """What a rotation of the root came to.

    Args:
        failures: tenants whose keys were not all wrapped anew, by the code of why.
    """

    tenants: int = 0
    keys: int = 0
    failures: dict[str, int] = field(default_factory=dict)


def rewrap_all(desk: Rewrapping, provider: KeyProvider, allow: Callable[[str], None]) -> Rewrapped:
    """Wrap every key that another root wraps under the current one; one tenant's failure does not stop the others.

    Args:
        desk: the worker's.
        provider: holds the root keys.
        allow: says yes to one root, as a manager of keys; asked again where another rotation adds a root meanwhile.
    """
    done = Rewrapped()
    failed: set[TenantId] = set()
    for _ in range(_TRIES):  # a key may be made, or another root be added, while this goes on
        root = provider.current()
        waiting = [t for t in desk.under_other_roots(root) if t not in failed]
        if not waiting:
            break
        allow(root)
        for tenant in waiting:
            try:
                done.keys += _rewrap_tenant(desk, provider, tenant)
                done.tenants += 1
            except RetentionError as error:
                if provider.current() != root:
                    continue  # not allowed yet: the next round is for the newest root
                failed.add(tenant)
                done.failures[str(error.code)] = done.failures.get(str(error.code), 0) + 1
    return done


def rotate_tenant(desk: KeyDesk, provider: KeyProvider, tenant: TenantId, *, reason: str, correlation: str) -> int:
    """Make a new generation, for new objects and secrets; gives its number. The older ones stay, for what they sealed.

    Raises:
        Refused: `KEY_DESTROYED`, while a destruction is not finished.
    """
    for _ in range(_TRIES):
        generation = desk.newest_generation(tenant) + 1
        secret = secrets.token_bytes(KEY_SIZE)
        wrapped = _wrapped(provider, tenant, generation, secret)
        if desk.add(
            tenant,
            generation,
            wrapped,
            key_id=f"{secrets.token_hex(12)}/{generation}",
            reason=reason,
            correlation=correlation,
        ):
            return generation
    raise Unavailable(
        Code.KEY_UNAVAILABLE,
        "Other rotations of this tenant's key were faster, again and again.",
        remedy="Look at `retention keys list`, and run it again if a new generation is still wanted.",
    )


def _rewrap_tenant(desk: Rewrapping, provider: KeyProvider, tenant: TenantId) -> int:
    root = provider.current()
    done = 0
    for kept in desk.keys(tenant):
        if kept.wrapped.root_key_id != root:
            done += desk.rewrap(kept, _again(provider, kept))
    return done


def _again(provider: KeyProvider, kept: KeptKey) -> WrappedKey:
    secret = provider.unwrap(kept.tenant, kept.generation, kept.wrapped)
    return _wrapped(provider, kept.tenant, kept.generation, secret)


def _wrapped(provider: KeyProvider, tenant: TenantId, generation: int, secret: bytes) -> WrappedKey:
    wrapped = provider.wrap(tenant, generation, secret)
    if not hmac.compare_digest(provider.unwrap(tenant, generation, wrapped), secret):
        raise Integrity(
            Code.KEY_INVALID,
            "A key that was wrapped anew does not open as what it was.",
            remedy="Nothing was changed; look at the key service or at this machine's memory.",
        )
    return wrapped
