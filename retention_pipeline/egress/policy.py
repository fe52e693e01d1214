"""Where this installation may connect to: pure decisions, closed unless all of it parses (SPEC A14).

- A destination is a scheme, a host and a port, written `https://host[:port]` and nothing more.
- An approval may name networks; then every address of the host must lie in them. Without them, every address must be
  public. One bad address among good ones refuses them all.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from types import MappingProxyType
from typing import Final, Self

from retention_pipeline.egress.networks import Address, Network, effective, is_approvable, is_approved, is_public
from retention_pipeline.errors import Code, Refused

ALLOWLIST_ONLY: Final = "allowlist_only"
"""The only mode there is; anything else is closed."""

_PORTS: Final = {"https": 443, "http": 80}
_WRITTEN: Final = re.compile(r"(?P<scheme>https?)://(?P<host>\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::(?P<port>[0-9]{1,5}))?")
_LABEL: Final = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """A place to connect to, in the only spelling it has."""

    scheme: str
    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `https://host[:port]`, or raise `Refused(EGRESS_INVALID)`.

        Letter case and a default port are normalized. A path, user, trailing dot, zone or other alphabet is refused:
        two programs may read those in two ways. An internationalized name is written in its `xn--` form.
        """
        match = _WRITTEN.fullmatch(text.lower()) if text.isascii() else None
        if match is None:
            raise _invalid()
        port = int(match["port"] or _PORTS[match["scheme"]])
        if not 0 < port < 65536:
            raise _invalid()
        return cls(scheme=match["scheme"], host=_host(match["host"]), port=port)

    @property
    def authority(self) -> str:
        """Host and port as the Host header and a signature have them: a default port is left out."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def address(self) -> Address | None:
        """The address, where the host is written as one."""
        try:
            return ip_address(self.host)
        except ValueError:
            return None

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressPolicy:
    """What was approved for the whole installation.

    Args:
        approved: from each destination to the networks it may resolve into; none means public addresses only.
        valid: false where the configuration did not parse; then nothing is approved.
    """

    approved: Mapping[Destination, tuple[Network, ...]] = field(default_factory=lambda: MappingProxyType({}))
    valid: bool = True

    @classmethod
    def load(cls, mode: object = ALLOWLIST_ONLY, entries: object = ()) -> Self:
        """Read the two settings; whatever does not parse closes everything, and raises nothing.

        Args:
            mode: the value of `workflow.archive.egress.mode`.
            entries: the value of `workflow.archive.egress.allowed_destinations`: each a destination, or a mapping of
                `destination` and `networks` (CIDRs).
        """
        try:
            if mode != ALLOWLIST_ONLY or not isinstance(entries, list | tuple):
                return cls(valid=False)
            approved = dict(map(parse_entry, entries))
            if len(approved) != len(entries):
                return cls(valid=False)  # which of two approvals of one destination was meant?
            return cls(approved=MappingProxyType(approved))
        except Refused:
            return cls(valid=False)

    def check(self, destination: Destination, answers: Iterable[str]) -> tuple[Address, ...]:
        """Give back the addresses to dial, in the resolver's order, or refuse.

        Args:
            destination: where an operation wants to go.
            answers: every address that its host resolved to just now.

        Raises:
            Refused: `EGRESS_NOT_APPROVED`, or `EGRESS_ADDRESS_REFUSED` if any one of the answers may not be dialled.
        """
        networks = self.networks(destination)
        addresses = tuple(dict.fromkeys(map(_address, answers)))
        if not addresses or not all(_may_dial(address, networks) for address in addresses):
            raise _address_refused()
        return addresses

    def networks(self, destination: Destination) -> tuple[Network, ...]:
        """The networks of a destination's approval, or `Refused(EGRESS_NOT_APPROVED)`."""
        if destination not in self.approved:
            raise _not_approved(valid=self.valid)
        return self.approved[destination]


def parse_entry(entry: object) -> tuple[Destination, tuple[Network, ...]]:
    """Read one approval, or raise `Refused(EGRESS_INVALID)`."""
    if isinstance(entry, str):
        return Destination.parse(entry), ()
    if not isinstance(entry, Mapping) or not entry.keys() <= {"destination", "networks"}:
        raise _invalid()
    destination, networks = entry.get("destination"), entry.get("networks", ())
    if not isinstance(destination, str) or not isinstance(networks, list | tuple):
        raise _invalid()
    return Destination.parse(destination), tuple(map(_network, networks))


def _host(written: str) -> str:
    if written.startswith("["):
        try:
            return str(IPv6Address(written[1:-1]))
        except ValueError:
            raise _invalid() from None
    labels = written.split(".")
    if len(written) > 253 or not all(map(_LABEL.fullmatch, labels)):
        raise _invalid()
    if not _is_number(labels[-1]):
        return written
    try:
        return str(IPv4Address(written))  # 127.1 and 0x7f.1 are addresses to some programs only
    except ValueError:
        raise _invalid() from None


def _is_number(label: str) -> bool:
    return label.isdigit() or re.fullmatch(r"0x[0-9a-f]*", label) is not None


def _network(text: object) -> Network:
    try:
        network = ip_network(text) if isinstance(text, str) else None
    except ValueError:
        network = None
    if network is None or not is_approvable(network):
        raise _invalid()
    return network


def _address(answer: str) -> Address:
    try:
        address = ip_address(answer)
    except ValueError:
        raise _address_refused() from None
    if isinstance(address, IPv6Address):
        if address.scope_id is not None:  # the same address on another link
            raise _address_refused()
        return address.ipv4_mapped or address
    return address


def _may_dial(address: Address, networks: tuple[Network, ...]) -> bool:
    end = effective(address)
    return is_approved(end, networks) if networks else is_public(end)


def _invalid() -> Refused:
    return Refused(
        Code.EGRESS_INVALID,
        "An egress destination or network is not written as it must be.",
        remedy="Write https://host[:port], and networks as CIDRs that don't mix private and public addresses.",
    )


def _not_approved(*, valid: bool) -> Refused:
    reason = "is not approved" if valid else "is refused because the egress settings don't parse"
    return Refused(
        Code.EGRESS_NOT_APPROVED,
        f"A connection to this destination {reason}.",
        remedy="Someone with the permission approves it with `retention egress allow`.",
    )


def _address_refused() -> Refused:
    return Refused(
        Code.EGRESS_ADDRESS_REFUSED,
        "The destination's host resolves to an address that is not approved for it.",
        remedy="Check the name server's answer; an internal address needs an approval with its network.",
    )
