"""Which addresses are public: an explicit table, because Python's own differs between releases (SPEC A14).

- IPv4 is public unless a row below has it. IPv6 is public only inside 2000::/3, unless a row below has it.
- An IPv6 address that carries an IPv4 address to its destination (mapped, NAT64) is judged as that one. Those that
  carry it through a relay somewhere else (6to4, Teredo, ISATAP, compatible) are refused.
"""

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network


def _rows(*texts: str) -> tuple[Network, ...]:
    return tuple(ip_network(text) for text in texts)


APPROVABLE: Final = _rows(
    "127.0.0.0/8",  # loopback
    "::1/128",
    "10.0.0.0/8",  # private
    "172.16.0.0/12",
    "192.168.0.0/16",
    "100.64.0.0/10",  # shared by a provider's customers
    "fc00::/7",
    "169.254.0.0/16",  # link-local
    "fe80::/10",
)
"""Addresses that an approval may name."""

METADATA: Final = frozenset(
    ip_address(text)
    for text in (
        "169.254.169.254",  # most clouds
        "169.254.170.2",  # containers' credentials
        "169.254.170.23",
        "169.254.169.123",
        "100.100.100.200",
        "192.0.0.192",
        "168.63.129.16",  # looks public
        "fd00:ec2::254",
        "fd00:ec2::23",
        "fd20:ce::254",
    )
)
"""Services that hand credentials to whoever asks: an approval must name the very address."""

NEVER: Final = _rows(
    "0.0.0.0/8",  # reaches this machine
    "192.0.0.0/24",
    "192.0.2.0/24",
    "192.31.196.0/24",
    "192.52.193.0/24",
    "192.88.99.0/24",
    "192.175.48.0/24",
    "198.18.0.0/15",
    "198.51.100.0/24",
    "203.0.113.0/24",
    "224.0.0.0/4",
    "240.0.0.0/4",
    "2001::/23",  # Teredo and other protocols
    "2001:db8::/32",
    "2002::/16",  # 6to4
    "2620:4f:8000::/48",
    "3fff::/20",
)
"""Addresses that no store has."""

_UNICAST: Final = ip_network("2000::/3")
_NAT64: Final = ip_network("64:ff9b::/96")
_ISATAP: Final = frozenset({0x00005EFE, 0x02005EFE})


def effective(address: Address) -> Address:
    """The address that a packet ends at."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address in _NAT64:
            return IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def is_public(address: Address) -> bool:
    """Whether an address that `effective` gave needs no approval beside its destination's."""
    if address in METADATA or within(address, NEVER) or within(address, APPROVABLE):
        return False
    if isinstance(address, IPv6Address):
        return address in _UNICAST and (int(address) >> 32) & 0xFFFFFFFF not in _ISATAP
    return True


def is_approved(address: Address, networks: tuple[Network, ...]) -> bool:
    """Whether the networks of an approval cover an address that `effective` gave."""
    if address in METADATA:
        return any(network.num_addresses == 1 and address in network for network in networks)
    return within(address, networks) and (is_public(address) or within(address, APPROVABLE))


def is_approvable(network: Network) -> bool:
    """Whether an approval may name a network: all of it public, all of it inside one row, or one metadata address.

    So no approval reaches from public addresses into private ones by being written too wide.
    """
    if network.num_addresses == 1 and network[0] in METADATA:
        return True
    if any(_covers(row, network) for row in APPROVABLE):
        return True
    return is_public(network[0]) and not any(row.overlaps(network) for row in (*APPROVABLE, *NEVER))


def within(address: Address, networks: tuple[Network, ...]) -> bool:
    """Whether any of the networks has the address; the two families never match each other."""
    return any(address in network for network in networks)


def _covers(row: Network, network: Network) -> bool:
    return network[0] in row and network[-1] in row
