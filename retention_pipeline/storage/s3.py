"""An archive store in a versioned S3 bucket (SPEC A5, A6, A10, A11)."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Final

from retention_pipeline.egress.s3 import LifecycleRule, Listed, S3Api
from retention_pipeline.errors import Code, Integrity, RetentionError, Unavailable
from retention_pipeline.model.ids import ObjectKey, ObjectVersion
from retention_pipeline.model.ports import ByteStream, Deletion, Finding, ObjectLock, StoredVersion
from retention_pipeline.storage.keys import checked_folder, checked_key, checked_prefix

_MAYBE_LOCKED: Final = frozenset({Code.STORE_DENIED, Code.STORE_PROTOCOL, Code.STORE_CONTENDED})
"""How stores answer to the deletion of a version that they hold; none of them is proof of it."""


class S3Store:
    """Implements `ObjectStore`.

    `put_once` never decides what an object under its key is: after a lost answer or `OBJECT_EXISTS` the caller lists
    `versions` and opens them, and adopts the one that verifies as the intended object (DESIGN §5).

    Args:
        api: the bucket.
        prefix: what every key of the profile begins with.
    """

    def __init__(self, api: S3Api, prefix: str) -> None:
        self._api = api
        bare = checked_prefix(prefix)
        self._prefix = f"{bare}/" if bare else ""

    def put_once(
        self, key: ObjectKey, body: bytes, *, sha256: bytes, lock_until: datetime | None = None
    ) -> ObjectVersion:
        """Create the object; the server refuses a second one, and a body that is not what its digest says."""
        return ObjectVersion(self._api.put(self._name(key), body, digest=sha256, lock_until=lock_until))

    def read(self, key: ObjectKey, version: ObjectVersion) -> AbstractContextManager[ByteStream]:
        """Open exactly this version as a stream."""
        return self._api.get(self._name(key), version)

    def versions(self, key: ObjectKey) -> tuple[StoredVersion, ...]:
        """Every version under exactly this key, oldest first."""
        name = self._name(key)
        found = [self._stored(entry) for entry in self._api.versions(name) if entry.key == name]
        return tuple(reversed(found))

    def walk(self, below: str = "") -> Iterator[StoredVersion]:
        """Every version of every object under the prefix, or under a folder of it."""
        return map(self._stored, self._api.versions(self._prefix + checked_folder(below)))

    def delete(self, key: ObjectKey, version: ObjectVersion) -> Deletion:
        """Delete exactly this version. A listing says that it is gone, never a denied or failed request."""
        if all(version != found.version for found in self.versions(key)):
            return Deletion.GONE
        name = self._name(key)
        try:
            self._api.delete(name, version)
        except Integrity as error:
            if error.code is not Code.OBJECT_MISSING:
                raise
            return Deletion.GONE
        except RetentionError as error:
            if error.code in _MAYBE_LOCKED and self._is_locked(name, version):
                return Deletion.LOCKED
            raise
        return Deletion.DELETED

    def lock(self, key: ObjectKey, version: ObjectVersion, *, until: datetime) -> None:
        """Hold a version against deletion until an instant that is later than that of its present lock (SPEC A11)."""
        self._api.lock(self._name(key), version, until)

    def hold(self, key: ObjectKey, version: ObjectVersion, *, on: bool) -> None:
        """Set or lift the version's one legal hold; it is lifted only with the last matter."""
        self._api.hold(self._name(key), version, on=on)

    def lock_state(self, key: ObjectKey, version: ObjectVersion) -> ObjectLock:
        """The version's retention and legal hold, as the bucket says."""
        return self._api.lock_state(self._name(key), version)

    def locks(self) -> bool:
        """Whether the bucket has object lock."""
        return self._api.object_lock()

    def findings(self) -> tuple[Finding, ...]:
        """Versioning that is off, lifecycle rules that could end an object, and settings that can't be read."""
        return (*self._versioning(), *self._lifecycle())

    def close(self) -> None:
        """Nothing to release: connections belong to the transport, which all stores share."""

    def _versioning(self) -> Iterator[Finding]:
        try:
            enabled = self._api.versioning()
        except RetentionError as error:
            yield _unreadable(error, "versioning")
            return
        if not enabled:
            yield Finding(
                code=Code.READINESS_VERSIONING_OFF,
                message="The bucket does not keep versions.",
                remedy="Enable versioning on the bucket.",
            )

    def _lifecycle(self) -> Iterator[Finding]:
        try:
            rules = self._api.lifecycle()
        except RetentionError as error:
            yield _unreadable(error, "lifecycle rules")
            return
        touching = sum(map(self._endangers, rules))
        if touching:
            yield Finding(
                code=Code.READINESS_LIFECYCLE_RULE,
                message=f"{touching} lifecycle rule(s) of the bucket could end an archive.",
                remedy="Remove expiration and non-current expiration from rules that touch the profile's prefix.",
            )

    def _endangers(self, rule: LifecycleRule) -> bool:
        overlaps = rule.prefix.startswith(self._prefix) or self._prefix.startswith(rule.prefix)
        return rule.ends_objects and overlaps

    def _is_locked(self, name: str, version: str) -> bool:
        try:
            return self._api.is_locked(name, version)
        except RetentionError:
            return False  # the refusal itself is what the caller must see

    def _name(self, key: str) -> str:
        return self._prefix + checked_key(key)

    def _stored(self, entry: Listed) -> StoredVersion:
        key = ObjectKey(entry.key.removeprefix(self._prefix))
        return StoredVersion(key=key, version=ObjectVersion(entry.version), size=entry.size)


def _unreadable(error: RetentionError, what: str) -> Finding:
    """A setting that can't be read is a finding; a store that does not answer is not."""
    if isinstance(error, Unavailable) and error.code is Code.STORE_UNAVAILABLE:
        raise error
    return Finding(
        code=Code.READINESS_UNREADABLE,
        message=f"The bucket's {what} can't be read ({error.code}).",
        remedy="Allow the secret's owner to read the bucket's versioning and lifecycle settings.",
    )
