"""What may this secret do in this bucket, one permission at a time, and what does the bucket do by itself (SPEC O3, A11, A15)?

An object that nobody needs is written, written again, read, listed and deleted; it is gone afterwards, unless that was refused.
"""

import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final, TypeVar

from retention_pipeline.egress.s3_probe import Checksum, S3Probe
from retention_pipeline.errors import Code, RetentionError
from retention_pipeline.model.diagnosis import Ailment, Diagnosis, error, untried, warning
from retention_pipeline.storage.keys import checked_prefix
from retention_pipeline.storage.s3 import S3Store

_SIZE: Final = 4096
_ALLOWED: Final = {
    Ailment.STORE_WRITE: "s3:PutObject",
    Ailment.STORE_READ: "s3:GetObjectVersion",
    Ailment.STORE_LIST: "s3:ListBucketVersions",
    Ailment.STORE_DELETE: "s3:DeleteObjectVersion",
}

T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class S3Examination:
    """One examination; it cleans up after itself.

    Args:
        bucket: what is examined.
        prefix: the profile's.
    """

    bucket: S3Probe
    prefix: str
    found: list[Diagnosis] = field(default_factory=list)
    _written: list[tuple[str, str]] = field(default_factory=list)

    def __call__(self) -> Iterator[Diagnosis]:
        """Everything that is wrong."""
        self._settings()
        key, body = self._name(), secrets.token_bytes(_SIZE)
        version = self._may(Ailment.STORE_WRITE, "Writing an object", lambda: self._put(key, body))
        if version is not None:
            self._second_write(key)
            self._checksums()
            self._read_back(key, version, body)
        self._may(Ailment.STORE_LIST, "Listing object versions", lambda: list(self.bucket.versions(key)))
        self._clear()
        yield from self.found

    def _may(self, ailment: Ailment, name: str, call: Callable[[], T]) -> T | None:
        """The call's answer; None where it failed, which is then among what was found."""
        try:
            return call()
        except RetentionError as failed:
            if failed.code is Code.STORE_DENIED:
                sentence = f"{name} was denied."
                self.found.append(error(ailment, sentence, f"Allow the secret's owner {_ALLOWED[ailment]}."))
            else:
                self.found.append(untried(name, failed))
            return None

    def _name(self) -> str:
        bare = checked_prefix(self.prefix)
        return f"{bare}/readiness/{secrets.token_hex(16)}".removeprefix("/")

    def _put(self, key: str, body: bytes) -> str:
        version = self.bucket.put(key, body, digest=sha256(body).digest())
        self._written.append((key, version))
        return version

    def _second_write(self, key: str) -> None:
        try:
            self._put(key, secrets.token_bytes(_SIZE))
        except RetentionError as refused:
            if refused.code is not Code.OBJECT_EXISTS:
                self.found.append(untried("A second write of one name", refused))
            return
        sentence = "The store let a second write replace an object."
        remedy = "Use a store that honours conditional writes (If-None-Match)."
        self.found.append(error(Code.READINESS_NO_CONDITIONAL_CREATE, sentence, remedy))

    def _checksums(self) -> None:
        accepted = []
        for checksum in Checksum:
            key = self._name()
            try:
                kept = self.bucket.accepts_wrong(key, secrets.token_bytes(_SIZE), checksum)
            except RetentionError as failed:
                self.found.append(untried(f"A write with a false {checksum}", failed))
                return
            if kept is not None:
                accepted.append(checksum)
                self._written.append((key, kept))
        if len(accepted) == len(Checksum):
            sentence = "The store keeps objects whose checksums are false: it looks at none of those that are sent."
            remedy = "Nothing is lost, because everything is read back; but a store that checks fails earlier."
            self.found.append(error(Ailment.STORE_UNCHECKED, sentence, remedy))

    def _read_back(self, key: str, version: str, body: bytes) -> None:
        def read() -> bytes:
            back = bytearray()
            with self.bucket.get(key, version) as stream:
                while len(back) <= _SIZE and (piece := stream.read(_SIZE + 1)):
                    back += piece
            return bytes(back)

        back = self._may(Ailment.STORE_READ, "Reading an object version", read)
        if back is not None and back != body:
            remedy = "Don't use this store; look at the network between, and at the store's own checks."
            self.found.append(error(Code.READINESS_PROBE_CHANGED, "An object came back changed.", remedy))

    def _settings(self) -> None:
        try:
            findings = S3Store(self.bucket, self.prefix).findings()
        except RetentionError as failed:
            self.found.append(untried("The bucket's settings", failed))
            return
        self.found += [error(finding.code, finding.message, finding.remedy) for finding in findings]
        try:
            locks = self.bucket.object_lock()
        except RetentionError as failed:
            sentence = f"The bucket's object lock can't be read ({failed.code})."
            remedy = "Allow the secret's owner s3:GetBucketObjectLockConfiguration."
            self.found.append(error(Code.READINESS_UNREADABLE, sentence, remedy))
            return
        if not locks:
            sentence = "The bucket has no object lock: whoever has the secret can delete archives."
            remedy = "Make a bucket with object lock where archives must outlive a stolen secret; else nothing."
            self.found.append(warning(Ailment.STORE_UNLOCKED, sentence, remedy))

    def _clear(self) -> None:
        for key, version in self._written:
            if not self._deleted(key, version):
                return

    def _deleted(self, key: str, version: str) -> bool:
        name = "Deleting an object version"
        try:
            self.bucket.delete(key, version)
        except RetentionError as failed:
            if failed.code is Code.STORE_DENIED and self._is_locked(key, version):
                sentence = "The probe's object version is locked and could not be deleted."
                remedy = "Remove the default retention from the bucket; archives are locked one by one."
                self.found.append(error(Code.OBJECT_LOCKED, sentence, remedy))
            elif failed.code is Code.STORE_DENIED:
                remedy = f"Allow the secret's owner {_ALLOWED[Ailment.STORE_DELETE]}; one probe object is left."
                self.found.append(error(Ailment.STORE_DELETE, f"{name} was denied.", remedy))
            else:
                self.found.append(untried(name, failed))
            return False
        return True

    def _is_locked(self, key: str, version: str) -> bool:
        try:
            return self.bucket.is_locked(key, version)
        except RetentionError:
            return False
