"""S3 requests signed by botocore's signer, answers parsed by its model, and nothing else of it in between.

- No client, so no profile, environment, metadata service, region redirector or retry of a write exists to be switched
  off; and a request costs a third of the processor time (DESIGN §8).
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final
from urllib.parse import quote, urlencode

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as Signing
from botocore.loaders import Loader
from botocore.model import OperationModel, ServiceModel
from botocore.parsers import ResponseParserError, create_parser

from retention_pipeline.egress.policy import Destination
from retention_pipeline.egress.s3_faults import protocol
from retention_pipeline.model.credentials import Credentials

EMPTY_SHA256: Final = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Where a profile's objects are; never shown (SPEC A16).

    Args:
        endpoint: an approved destination.
        name: the bucket's name; it stands in the path.
        region: what the signature is made for.
    """

    endpoint: Destination = field(repr=False)
    name: str = field(repr=False)
    region: str = field(repr=False)

    def url(self, key: str, query: Mapping[str, str]) -> str:
        """An object's address, or the bucket's for an empty key."""
        path = f"{self.endpoint}/{quote(self.name)}" + (f"/{quote(key, safe='/~')}" if key else "")
        return f"{path}?{urlencode(query, quote_via=quote)}" if query else path


class _Signature(S3SigV4Auth):
    """Signs the digest that the caller has already."""

    def payload(self, request: Any) -> str:
        return str(request.context["payload_sha256"])


class Signer:
    """Signs requests for one bucket with one set of credentials."""

    def __init__(self, bucket: Bucket, credentials: Credentials) -> None:
        signing = Signing(credentials.access_key, credentials.secret_key, credentials.session_token)
        self._auth = _Signature(signing, "s3", bucket.region)
        for library in ("botocore.auth", "botocore.parsers"):
            logging.getLogger(library).setLevel(logging.CRITICAL + 1)  # they log signatures

    def headers(self, method: str, url: str, headers: Mapping[str, str], payload_sha256: str) -> dict[str, str]:
        """The headers to send, signature included."""
        request = AWSRequest(method=method, url=url, headers={"User-Agent": "retention-pipeline", **headers})
        request.context["payload_sha256"] = payload_sha256
        self._auth.add_auth(request)
        return {name: str(value) for name, value in request.headers.items()}


def parse(operation: str, status: int, headers: Mapping[str, str], body: bytes) -> dict[str, Any]:
    """Read a successful answer as S3's own model describes it, or raise `Unavailable(STORE_PROTOCOL)`."""
    response = {
        "status_code": status,
        "headers": {name.lower(): value for name, value in headers.items()},
        "body": body,
    }
    shape = _operation(operation).output_shape
    assert shape is not None
    try:
        parsed: dict[str, Any] = create_parser("rest-xml").parse(response, shape)
    except (ResponseParserError, ValueError, TypeError, KeyError):
        raise protocol() from None
    return parsed


@lru_cache
def _service() -> ServiceModel:
    loader = Loader(extra_search_paths=[Loader.BUILTIN_DATA_PATH], include_default_search_paths=False)
    return ServiceModel(loader.load_service_model("s3", "service-2"), "s3")


@lru_cache
def _operation(name: str) -> OperationModel:
    return _service().operation_model(name)
