"""HTTP to approved destinations only, over connections whose peer was checked for this very operation (SPEC A14).

- Each operation resolves the host again and checks every address; no answer is kept.
- The connection goes to a checked address. TLS, the Host header and the signature keep the host's name.
- An open connection is reused only if its peer is in the fresh answer.
- Redirects are never followed. No proxy, no environment, no certificate store but the system's or the one given.
- Another address is tried only while nothing was sent.
"""

import logging
import socket
import ssl
import threading
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from urllib3 import BaseHTTPResponse, HTTPConnectionPool, HTTPSConnectionPool, Timeout
from urllib3 import exceptions as faults
from urllib3.util.ssl_match_hostname import CertificateError

from retention_pipeline.egress.networks import Address
from retention_pipeline.egress.policy import Destination, EgressPolicy
from retention_pipeline.errors import Code, Refused

Resolver = Callable[[str, int], Iterable[str]]
"""From host and port to every address, as text; raises OSError where there is none."""

_LIBRARIES: Final = ("boto3", "botocore", "urllib3", "s3transfer")
_UNSENT: Final = (faults.NewConnectionError, faults.ConnectTimeoutError, faults.ClosedPoolError)
_MAX_POOLS: Final = 64


class Loss(StrEnum):
    """How an operation got no answer."""

    UNRESOLVED = "the host has no address"
    UNREACHED = "no connection was made"
    UNTRUSTED = "the certificate was not accepted"
    UNANSWERED = "the answer did not come in time"
    CUT = "the connection ended early"


class TransportError(Exception):
    """No whole answer came; unless the loss is one of connecting, whether the request took effect is not known."""

    def __init__(self, loss: Loss) -> None:
        super().__init__(loss.value)
        self.loss = loss


def resolve(host: str, port: int) -> tuple[str, ...]:
    """Ask the system for every address of a host."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    return tuple(str(entry[4][0]) for entry in found)


class PinnedTransport:
    """Sends requests under an egress policy. Safe to share between threads.

    Args:
        policy: gives the policy that is in force now; asked for each operation.
        resolver: finds a host's addresses.
        ca_file: certificates to trust instead of the system's.
        connect_timeout: seconds.
        read_timeout: seconds without a byte; at least 15, because the losers of contended conditional writes wait.
        connections: kept open for each address.
    """

    def __init__(
        self,
        policy: Callable[[], EgressPolicy],
        *,
        resolver: Resolver = resolve,
        ca_file: Path | None = None,
        connect_timeout: float = 5.0,
        read_timeout: float = 60.0,
        connections: int = 16,
    ) -> None:
        self._policy = policy
        self._resolver = resolver
        self._tls = _tls(ca_file)
        self._timeout = Timeout(connect=connect_timeout, read=read_timeout)
        self._connections = connections
        self._lock = threading.Lock()
        self._pools: dict[Destination, dict[Address, HTTPConnectionPool]] = {}
        _silence()

    def send(self, method: str, url: str, *, headers: Mapping[str, str], body: bytes | None = None) -> BaseHTTPResponse:
        """Make one request and give back its answer, whatever its status, with the body still to be read.

        Args:
            method: such as GET.
            url: whole, with a destination of the policy.
            headers: as they were signed; Host is set from the URL.
            body: what to send.

        Raises:
            Refused: `EGRESS_NOT_APPROVED` (also for a redirect), `EGRESS_ADDRESS_REFUSED` or `EGRESS_INVALID`.
            TransportError: there was no answer.
        """
        parts = urlsplit(url)
        destination = Destination.parse(f"{parts.scheme}://{parts.netloc}")
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        sent = {name: value for name, value in headers.items() if name.lower() not in {"host", "expect"}}
        sent["Host"] = destination.authority
        *others, last = self._pools_for(destination, self._addresses(destination))
        for pool in others:
            try:
                return self._once(pool, method, target, sent, body)
            except TransportError as error:
                if error.loss is not Loss.UNREACHED:
                    raise
        return self._once(last, method, target, sent, body)

    def close(self) -> None:
        """Close idle connections; those in use close when they end."""
        with self._lock:
            pools = [pool for by_address in self._pools.values() for pool in by_address.values()]
            self._pools.clear()
        for pool in pools:
            pool.close()

    def _addresses(self, destination: Destination) -> tuple[Address, ...]:
        policy = self._policy()
        policy.networks(destination)  # no name is looked up for what is not approved
        if destination.address is not None:
            return policy.check(destination, (destination.host,))
        try:
            answers = tuple(self._resolver(destination.host, destination.port))
        except (OSError, UnicodeError):
            raise TransportError(Loss.UNRESOLVED) from None
        return policy.check(destination, answers)

    def _pools_for(self, destination: Destination, addresses: tuple[Address, ...]) -> list[HTTPConnectionPool]:
        """One pool for each address of the fresh answer, those with open connections first.

        Pools of other addresses stay for a while, unused: name servers hand out a large host's addresses by turns.
        """
        with self._lock:
            known = self._pools.setdefault(destination, {})
            used = {address: known.pop(address) for address in addresses if address in known}
            used |= {address: self._pool(destination, address) for address in addresses if address not in used}
            known.update(used)  # the least recently used stand first
            idle = [known.pop(address) for address in tuple(known)[:-_MAX_POOLS]]
        for pool in idle:
            pool.close()
        return list(used.values())

    def _pool(self, destination: Destination, address: Address) -> HTTPConnectionPool:
        if destination.scheme == "http":
            return HTTPConnectionPool(str(address), destination.port, timeout=self._timeout, maxsize=self._connections)
        return HTTPSConnectionPool(
            str(address),
            destination.port,
            timeout=self._timeout,
            maxsize=self._connections,
            ssl_context=self._tls,
            server_hostname=destination.host,
            assert_hostname=destination.host,
        )

    @staticmethod
    def _once(
        pool: HTTPConnectionPool, method: str, target: str, headers: Mapping[str, str], body: bytes | None
    ) -> BaseHTTPResponse:
        try:
            answer = pool.urlopen(
                method,
                target,
                body=body,
                headers=headers,
                retries=False,
                redirect=False,
                assert_same_host=False,
                preload_content=False,
                decode_content=False,
            )
        except (faults.HTTPError, OSError) as error:
            raise TransportError(loss_of(error)) from None
        if 300 <= answer.status < 400 and answer.status != 304:
            answer.close()
            raise Refused(
                Code.EGRESS_NOT_APPROVED,
                f"The other side answered with a redirect ({answer.status}), which is never followed.",
                remedy="Name the final endpoint and its region in the configuration.",
            )
        return answer


def loss_of(error: Exception) -> Loss:
    """Say what a library's exception means, before it is dropped (SPEC A16)."""
    if isinstance(error, faults.SSLError) and isinstance(
        error.args[0], ssl.SSLCertVerificationError | CertificateError
    ):
        return Loss.UNTRUSTED
    if isinstance(error, _UNSENT):
        return Loss.UNREACHED
    if isinstance(error, faults.ReadTimeoutError | TimeoutError):
        return Loss.UNANSWERED
    return Loss.CUT


def _tls(ca_file: Path | None) -> ssl.SSLContext:
    """Not `create_default_context`, which writes session keys to a file that the environment names."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if ca_file is None:
        context.load_default_certs()
    else:
        context.load_verify_locations(cafile=ca_file)
    return context


def _silence() -> None:
    """These libraries log endpoints and signatures at every level (SPEC A16)."""
    for name in _LIBRARIES:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
