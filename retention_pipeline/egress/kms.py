"""The three operations of AWS KMS that keys need, each one a signed request over the pinned transport (SPEC A14, A18).

- Signed by botocore's signer; no client, and so no profile, environment or metadata service to be switched off.
- What changes nothing is asked again where the service was unavailable; here that is all of it.
- Every failure leaves as one of our errors, without cause, endpoint, key id or credential (SPEC A16).
"""

import binascii
import json
import logging
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as Signing
from urllib3 import BaseHTTPResponse
from urllib3.exceptions import HTTPError

from retention_pipeline import clock
from retention_pipeline.egress.policy import Destination
from retention_pipeline.egress.transport import PinnedTransport, TransportError
from retention_pipeline.errors import Code, Integrity, Refused, RetentionError, Unavailable
from retention_pipeline.model.credentials import Credentials

_TARGET: Final = "TrentService"
_MAX_ANSWER: Final = 256 << 10
_PAUSES: Final = (0.2, 1.0)
_FOREIGN: Final = frozenset({"InvalidCiphertextException", "IncorrectKeyException"})
_ABSENT: Final = frozenset(
    {"NotFoundException", "DisabledException", "KMSInvalidStateException", "InvalidKeyUsageException"}
)
_DENIED: Final = frozenset(
    {
        "AccessDeniedException",
        "UnrecognizedClientException",
        "InvalidSignatureException",
        "SignatureDoesNotMatch",
        "IncompleteSignature",
        "InvalidClientTokenId",
        "MissingAuthenticationTokenException",
        "MissingAuthenticationToken",
        "ExpiredTokenException",
        "ExpiredToken",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KmsPlace:
    """Where the key service is; never shown (SPEC A16).

    Args:
        endpoint: an approved destination.
        region: what signatures are made for.
    """

    endpoint: Destination = field(repr=False)
    region: str = field(repr=False)


class KmsApi:
    """The key service, with one set of credentials. Safe to share between threads."""

    def __init__(self, transport: PinnedTransport, place: KmsPlace, credentials: Credentials) -> None:
        self._transport = transport
        self._url = f"{place.endpoint}/"
        signing = Signing(credentials.access_key, credentials.secret_key, credentials.session_token)
        self._auth = SigV4Auth(signing, "kms", place.region)
        logging.getLogger("botocore.auth").setLevel(logging.CRITICAL + 1)  # it logs signatures

    def encrypt(self, key: str, plaintext: bytes, context: Mapping[str, str]) -> bytes:
        """Encrypt at most 4 KiB under a key of the service, bound to the context."""
        asked = {"KeyId": key, "Plaintext": _text(plaintext), "EncryptionContext": dict(context)}
        return self._ask("Encrypt", asked, "CiphertextBlob")

    def decrypt(self, key: str, ciphertext: bytes, context: Mapping[str, str]) -> bytes:
        """Decrypt what exactly this key encrypted for exactly this context.

        Raises:
            Integrity: `OBJECT_UNAUTHENTIC`.
            Unavailable: `KEY_UNAVAILABLE`, where the key is disabled, deleted or unknown; or the service did not answer.
        """
        asked = {"KeyId": key, "CiphertextBlob": _text(ciphertext), "EncryptionContext": dict(context)}
        return self._ask("Decrypt", asked, "Plaintext")

    def mac(self, key: str, message: bytes) -> bytes:
        """The HMAC-SHA256 of a message under a key that never leaves the service."""
        return self._ask(
            "GenerateMac", {"KeyId": key, "Message": _text(message), "MacAlgorithm": "HMAC_SHA_256"}, "Mac"
        )

    def _ask(self, operation: str, asked: Mapping[str, Any], wanted: str) -> bytes:
        body = json.dumps(asked).encode()
        for pause in _PAUSES:
            try:
                return self._once(operation, body, wanted)
            except Unavailable as error:
                if error.code is not Code.KEY_SERVICE_UNAVAILABLE:
                    raise
            clock.sleep(pause)
        return self._once(operation, body, wanted)

    def _once(self, operation: str, body: bytes, wanted: str) -> bytes:
        request = AWSRequest(
            method="POST",
            url=self._url,
            data=body,
            headers={
                "User-Agent": "retention-pipeline",
                "Content-Type": "application/x-amz-json-1.1",
                "X-Amz-Target": f"{_TARGET}.{operation}",
            },
        )
        self._auth.add_auth(request)
        headers = {name: str(value) for name, value in request.headers.items()}
        try:
            answer = self._transport.send("POST", self._url, headers=headers, body=body)
        except TransportError as error:
            raise _unavailable(error.loss.value) from None
        read = _document(answer)
        if answer.status == 200 and isinstance(read.get(wanted), str):
            try:
                return b64decode(read[wanted], validate=True)
            except (binascii.Error, ValueError):
                raise _unavailable("its answer is not understood") from None
        raise _fault(answer.status, str(read.get("__type", "")).rpartition("#")[2])


def _document(answer: BaseHTTPResponse) -> dict[str, Any]:
    try:
        data = answer.read(_MAX_ANSWER)
    except (HTTPError, OSError):
        raise _unavailable("the connection ended early") from None
    finally:
        answer.close()
    try:
        read = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return read if isinstance(read, dict) else {}


def _fault(status: int, name: str) -> RetentionError:
    if name in _FOREIGN:
        return Integrity(
            Code.OBJECT_UNAUTHENTIC,
            "A wrapped key was changed, or belongs elsewhere.",
            remedy="Keep it as it is, and restore it from a backup or from beside the archives.",
        )
    if name in _ABSENT:
        return Unavailable(
            Code.KEY_UNAVAILABLE,
            "The key service has no such key, or it is disabled or waits for its deletion.",
            remedy="Enable it, or cancel its deletion: what it wrapped can't be read without it.",
        )
    if name in _DENIED or status in {401, 403}:
        return Refused(
            Code.KEY_SERVICE_DENIED,
            "The key service denied this machine's credentials the use of the key.",
            remedy="Check the credentials file, and that the key's policy allows Encrypt, Decrypt and GenerateMac.",
        )
    return _unavailable("it answered that it can't at the moment")


def _unavailable(why: str) -> Unavailable:
    return Unavailable(
        Code.KEY_SERVICE_UNAVAILABLE,
        f"The key service is unavailable: {why}.",
        remedy="Try again later; nothing was changed.",
    )


def _text(data: bytes) -> str:
    return b64encode(data).decode("ascii")
