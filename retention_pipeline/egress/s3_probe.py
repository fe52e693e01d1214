"""Questions to a bucket that only an examination asks: its clock, and whether it looks at checksums (SPEC O3)."""

from base64 import b64encode
from datetime import datetime
from email.utils import parsedate_to_datetime
from enum import StrEnum
from hashlib import md5, sha256

from retention_pipeline.egress.policy import Destination
from retention_pipeline.egress.s3 import S3Api
from retention_pipeline.egress.s3_faults import Action
from retention_pipeline.errors import Code, RetentionError


class Checksum(StrEnum):
    """The two that every write carries."""

    SHA256 = "x-amz-checksum-sha256"
    MD5 = "Content-MD5"


class S3Probe(S3Api):
    """A bucket that is examined."""

    @property
    def destination(self) -> Destination:
        """Where it is, to be looked for among the approvals; never shown."""
        return self._bucket.endpoint

    def now(self) -> datetime | None:
        """The store's clock, to the second; None where it does not say.

        Raises:
            RetentionError: the store did not answer, or not to this secret.
        """
        answer = self._send("GET", "", {"versioning": ""}, Action.SETTINGS)
        told = answer.headers.get("date")
        answer.drain_conn()
        try:
            return parsedate_to_datetime(told) if told else None
        except ValueError:
            return None

    def accepts_wrong(self, key: str, body: bytes, checksum: Checksum) -> str | None:
        """Write an object under a false checksum: the version that was kept, or None where the store refused it.

        Raises:
            RetentionError: the store did not answer, or may not be written to.
        """
        headers = {
            "If-None-Match": "*",
            "Content-Type": "application/octet-stream",
            Checksum.MD5: _base64(md5(body, usedforsecurity=False).digest()),
            Checksum.SHA256: _base64(sha256(body).digest()),
        }
        other = b"not " + body
        false = sha256(other) if checksum is Checksum.SHA256 else md5(other, usedforsecurity=False)
        headers[checksum] = _base64(false.digest())
        digest = sha256(body).hexdigest()  # the signature's own checksum is the right one
        try:
            answer = self._send("PUT", key, {}, Action.WRITE, headers=headers, body=body, digest=digest)
        except RetentionError as refused:
            if refused.code in {Code.STORE_UNAVAILABLE, Code.STORE_DENIED, Code.STORE_MISSING}:
                raise
            return None
        answer.drain_conn()
        return answer.headers.get("x-amz-version-id") or "null"


def _base64(data: bytes) -> str:
    return b64encode(data).decode("ascii")
