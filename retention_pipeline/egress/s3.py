"""The S3 operations that an archive store needs, each one a signed request over the pinned transport.

- Writes are conditional and never retried here: after a lost answer the caller looks what became of it (SPEC A5).
- Reads, lists and settings are asked again where the store was unavailable.
- Every failure leaves as one of our errors, without cause, endpoint, bucket, key or credential (SPEC A16).
"""

from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import md5, sha256
from typing import Any, Final, TypeVar
from urllib.parse import unquote_plus

from urllib3 import BaseHTTPResponse
from urllib3.exceptions import HTTPError

from retention_pipeline import clock
from retention_pipeline.egress.s3_faults import Action, Unset, code_in, fault, protocol, unavailable
from retention_pipeline.egress.s3_wire import EMPTY_SHA256, Bucket, Signer, parse
from retention_pipeline.egress.transport import PinnedTransport, TransportError, loss_of
from retention_pipeline.errors import Code, Integrity, Refused, Unavailable
from retention_pipeline.model.credentials import Credentials
from retention_pipeline.model.ports import ByteStream, ObjectLock
from retention_pipeline.model.profile import LockMode

_ERROR_BODY: Final = 64 << 10
_ANSWER_BODY: Final = 32 << 20
_PAUSES: Final = (0.2, 1.0)
"""Seconds before an operation that changes nothing is asked again."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """One object version, as the bucket lists it; the size is a claim."""

    key: str
    version: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LifecycleRule:
    """What a bucket's lifecycle rule may end, and where.

    Args:
        prefix: keys that it applies to begin with this; it may be narrowed by tags and sizes besides.
        ends_objects: whether it expires current or non-current versions. Aborting uploads and removing left-over
            delete markers end nothing.
    """

    prefix: str
    ends_objects: bool


class S3Api:
    """One bucket, with one set of credentials. Safe to share between threads.

    Args:
        transport: shared by all buckets.
        bucket: where.
        credentials: who.
        lock_mode: how object locks are made. Nobody lifts one of compliance mode before its end, and we never lift any.
    """

    def __init__(
        self,
        transport: PinnedTransport,
        bucket: Bucket,
        credentials: Credentials,
        *,
        lock_mode: LockMode = LockMode.GOVERNANCE,
    ) -> None:
        self._transport = transport
        self._lock_mode = lock_mode.value.upper()
        self._bucket = bucket
        self._signer = Signer(bucket, credentials)

    def put(self, key: str, body: bytes, *, digest: bytes, lock_until: datetime | None = None) -> str:
        """Create an object, or raise `Refused(OBJECT_EXISTS)`; gives back the version's id.

        Both checksums are sent, because servers check different ones. A store without versioning calls its version
        `null`.

        Args:
            key: the whole key.
            body: the object.
            digest: the body's SHA-256, as bytes.
            lock_until: an object lock's end.
        """
        headers = {
            "If-None-Match": "*",
            "Content-Type": "application/octet-stream",
            "Content-MD5": _base64(md5(body, usedforsecurity=False).digest()),
            "x-amz-checksum-sha256": _base64(digest),
        }
        if lock_until is not None:
            headers["x-amz-object-lock-mode"] = self._lock_mode
            headers["x-amz-object-lock-retain-until-date"] = _instant(lock_until)
        answer = self._send("PUT", key, {}, Action.WRITE, headers=headers, body=body, digest=digest.hex())
        version = answer.headers.get("x-amz-version-id") or "null"
        _whole(answer)
        return version

    @contextmanager
    def get(self, key: str, version: str) -> Iterator[ByteStream]:
        """Open one version as a stream, or raise `Integrity(OBJECT_MISSING)`."""
        answer = _again(lambda: self._send("GET", key, {"versionId": version}, Action.READ))
        try:
            yield _Body(answer)
        finally:
            answer.close()  # a body that was read to its end has given its connection back already

    def versions(self, prefix: str) -> Iterator[Listed]:
        """Every version whose key begins with `prefix`, newest first within a key, a page at a time."""
        query = {"versions": "", "prefix": prefix, "encoding-type": "url"}
        while True:
            page = self._ask("ListObjectVersions", query, Action.LIST)
            decode: Callable[[str], str] = unquote_plus if page.get("EncodingType") == "url" else str
            for entry in page.get("Versions", ()):
                version = entry.get("VersionId") or "null"
                yield Listed(key=decode(entry["Key"]), version=version, size=entry.get("Size", 0))
            if not page.get("IsTruncated"):
                return
            marker = {"key-marker": decode(page.get("NextKeyMarker", ""))}
            if after := page.get("NextVersionIdMarker"):
                marker["version-id-marker"] = after
            if not marker["key-marker"] or marker.items() <= query.items():
                raise protocol()  # the same page would come for ever
            query = {**query, "version-id-marker": "", **marker}

    def delete(self, key: str, version: str) -> None:
        """Delete one version; S3 gives the same answer where there was none."""
        _again(lambda: _whole(self._send("DELETE", key, {"versionId": version}, Action.DELETE)))

    def is_locked(self, key: str, version: str) -> bool:
        """Whether a retention period or a legal hold protects a version now."""
        state = self.lock_state(key, version)
        return state.held or (state.until is not None and state.until > clock.utc_now())

    def lock_state(self, key: str, version: str) -> ObjectLock:
        """A version's retention and legal hold."""
        retention = self._about("GetObjectRetention", key, {"retention": "", "versionId": version}).get("Retention", {})
        hold = self._about("GetObjectLegalHold", key, {"legal-hold": "", "versionId": version}).get("LegalHold", {})
        return ObjectLock(until=retention.get("RetainUntilDate"), held=hold.get("Status") == "ON")

    def lock(self, key: str, version: str, until: datetime) -> None:
        """Lock a version until an instant (SPEC A11); `Refused(STORE_DENIED)` if it is locked for longer already."""
        text = (
            f"<Retention><Mode>{self._lock_mode}</Mode><RetainUntilDate>{_instant(until)}</RetainUntilDate></Retention>"
        )
        self._change(key, {"retention": "", "versionId": version}, text)

    def hold(self, key: str, version: str, *, on: bool) -> None:
        """Set or lift the one legal hold that a version can have."""
        text = f"<LegalHold><Status>{'ON' if on else 'OFF'}</Status></LegalHold>"
        self._change(key, {"legal-hold": "", "versionId": version}, text)

    def create_bucket(self) -> None:
        """Create the bucket with versioning on: for a laptop's own server; elsewhere a bucket has its own keepers."""
        self._change("", {}, "")
        self._change(
            "", {"versioning": ""}, "<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>"
        )

    def versioning(self) -> bool:
        """Whether the bucket keeps every version."""
        return bool(self._ask("GetBucketVersioning", {"versioning": ""}, Action.SETTINGS).get("Status") == "Enabled")

    def object_lock(self) -> bool:
        """Whether the bucket can lock versions."""
        try:
            answer = self._ask("GetObjectLockConfiguration", {"object-lock": ""}, Action.SETTINGS)
        except Unset:
            return False
        return bool(answer.get("ObjectLockConfiguration", {}).get("ObjectLockEnabled") == "Enabled")

    def lifecycle(self) -> tuple[LifecycleRule, ...]:
        """The bucket's lifecycle rules that are switched on."""
        try:
            answer = self._ask("GetBucketLifecycleConfiguration", {"lifecycle": ""}, Action.SETTINGS)
        except Unset:
            return ()
        return tuple(_rule(rule) for rule in answer.get("Rules", ()) if rule.get("Status") != "Disabled")

    def _ask(self, operation: str, query: Mapping[str, str], action: Action, key: str = "") -> dict[str, Any]:
        def once() -> dict[str, Any]:
            answer = self._send("GET", key, query, action)
            return parse(operation, answer.status, answer.headers, _whole(answer))

        return _again(once)

    def _about(self, operation: str, key: str, query: Mapping[str, str]) -> dict[str, Any]:
        try:
            return self._ask(operation, query, Action.READ, key)
        except Integrity:
            return {}  # stores name the absence of a lock in several ways; all of them are a 404

    def _change(self, key: str, query: Mapping[str, str], text: str) -> None:
        body = text.encode("ascii")
        digest = sha256(body)
        headers = {
            "Content-MD5": _base64(md5(body, usedforsecurity=False).digest()),
            "x-amz-checksum-sha256": _base64(digest.digest()),
        }
        _whole(self._send("PUT", key, query, Action.LOCK, headers=headers, body=body, digest=digest.hexdigest()))

    def _send(
        self,
        method: str,
        key: str,
        query: Mapping[str, str],
        action: Action,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        digest: str = EMPTY_SHA256,
    ) -> BaseHTTPResponse:
        url = self._bucket.url(key, query)
        signed = self._signer.headers(method, url, headers or {}, digest)
        try:
            answer = self._transport.send(method, url, headers=signed, body=body)
        except TransportError as error:
            raise unavailable(error.loss.value) from None
        if answer.status in {200, 204}:
            return answer
        raise fault(action, answer.status, code_in(_some(answer))) from None


class _Body:
    """An object's bytes as they come; the connection's failures leave as ours."""

    def __init__(self, answer: BaseHTTPResponse) -> None:
        self._answer = answer

    def read(self, size: int, /) -> bytes:
        try:
            return self._answer.read(size)
        except (HTTPError, OSError) as error:
            raise unavailable(loss_of(error).value) from None


def _again(call: Callable[[], T]) -> T:
    for pause in _PAUSES:
        try:
            return call()
        except Unavailable as error:
            if error.code is not Code.STORE_UNAVAILABLE:
                raise
        clock.sleep(pause)
    return call()


def _whole(answer: BaseHTTPResponse) -> bytes:
    """A short answer's body; reading it gives the connection back."""
    data = _Body(answer).read(_ANSWER_BODY + 1)
    if len(data) > _ANSWER_BODY:
        answer.close()
        raise protocol()
    return data


def _some(answer: BaseHTTPResponse) -> bytes:
    """The beginning of an error's body, or nothing where even that fails: the status says enough."""
    try:
        return answer.read(_ERROR_BODY)
    except (HTTPError, OSError):
        return b""
    finally:
        answer.close()


def _rule(rule: Mapping[str, Any]) -> LifecycleRule:
    chosen = rule.get("Filter", {})
    prefix = rule.get("Prefix") or chosen.get("Prefix") or chosen.get("And", {}).get("Prefix") or ""
    expiration = rule.get("Expiration", {})
    ends = "Days" in expiration or "Date" in expiration or "NoncurrentVersionExpiration" in rule
    return LifecycleRule(prefix=prefix, ends_objects=ends)


def _base64(data: bytes) -> str:
    return b64encode(data).decode("ascii")


def _instant(moment: datetime) -> str:
    if moment.tzinfo is None:
        raise Refused(Code.USAGE, "A lock's end has no time zone.", remedy="Report this as a fault of the program.")
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
