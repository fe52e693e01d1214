"""Where the installation may connect to (A14)."""

import pytest

from retention_pipeline.egress.policy import Destination, EgressPolicy
from retention_pipeline.errors import Code, Refused

HOST = "https://store.example"


def policy(*networks, host=HOST):
    return EgressPolicy.load(entries=[{"destination": host, "networks": list(networks)}])


def refusal(approved, *answers, host=HOST):
    with pytest.raises(Refused) as raised:
        approved.check(Destination.parse(host), answers)
    return raised.value.code


def dialled(approved, *answers, host=HOST):
    return [str(address) for address in approved.check(Destination.parse(host), answers)]


@pytest.mark.parametrize(
    ("written", "normal"),
    [
        ("https://store.example", "https://store.example"),
        ("HTTPS://Store.EXAMPLE:443", "https://store.example"),
        ("http://store.example:80", "http://store.example"),
        ("https://store.example:8443", "https://store.example:8443"),
        ("http://127.0.0.1:9000", "http://127.0.0.1:9000"),
        ("https://[2001:DB8:0::1]", "https://[2001:db8::1]"),
        ("https://xn--bcher-kva.example", "https://xn--bcher-kva.example"),
        ("https://my_store", "https://my_store"),
    ],
)
def test_a_destination_has_one_spelling_a14(written, normal):
    assert str(Destination.parse(written)) == normal


@pytest.mark.parametrize(
    "written",
    [
        "",
        "store.example",
        "//store.example",
        "ftp://store.example",
        "https://",
        "https://store.example/",
        "https://store.example/path",
        "https://store.example?x",
        "https://store.example#x",
        "https://user@store.example",
        "https://user:secret@store.example",
        "https://store.example.",
        "https://.store.example",
        "https://store..example",
        "https://-store.example",
        "https://store.example:",
        "https://store.example:0",
        "https://store.example:65536",
        "https://store.example:443x",
        "https://bücher.example",
        "https://store。example",
        "https://ﬆore.example",
        "https://127.1",
        "https://0x7f.0.0.1",
        "https://0x7f000001",
        "https://2130706433",
        "https://0177.0.0.1",
        "https://1.2.3.4.5",
        "https://[fe80::1%25eth0]",
        "https://[::1",
        "https://::1",
        "https://store.example\\@evil.example",
        "https://store.example\n",
        " https://store.example",
        "https://*.example",
        "https://store.example,https://evil.example",
        f"https://{'a' * 64}.example",
        f"https://{'a.' * 127}example",
    ],
)
def test_a_destination_that_two_programs_could_read_in_two_ways_is_refused_a14(written):
    with pytest.raises(Refused) as raised:
        Destination.parse(written)
    assert raised.value.code is Code.EGRESS_INVALID
    assert EgressPolicy.load(entries=[HOST, written]) == EgressPolicy(valid=False)


@pytest.mark.parametrize("mode", ["", "open", "ALLOWLIST_ONLY", None, True, ["allowlist_only"]])
def test_an_unknown_mode_is_closed_a14(mode):
    assert refusal(EgressPolicy.load(mode, [HOST]), "8.8.8.8") is Code.EGRESS_NOT_APPROVED


@pytest.mark.parametrize(
    "entries",
    [
        None,
        HOST,
        {HOST: []},
        [HOST, None],
        [HOST, 1],
        [HOST, {}],
        [{"destination": HOST}, HOST],
        [{"destination": HOST, "networks": "10.0.0.0/8"}],
        [{"destination": HOST, "networks": [10]}],
        [{"destination": HOST, "networks": ["ten"]}],
        [{"destination": HOST, "networks": ["10.0.0.1/8"]}],
        [{"destination": HOST, "network": ["10.0.0.0/8"]}],
    ],
)
def test_settings_that_don_t_parse_close_everything_a14(entries):
    assert refusal(EgressPolicy.load(entries=entries), "8.8.8.8") is Code.EGRESS_NOT_APPROVED


def test_by_default_nothing_is_approved_a14():
    assert refusal(EgressPolicy.load(), "8.8.8.8") is Code.EGRESS_NOT_APPROVED
    assert refusal(EgressPolicy(), "8.8.8.8") is Code.EGRESS_NOT_APPROVED


@pytest.mark.parametrize("other", ["http://store.example", "https://store.example:444", "https://other.example"])
def test_scheme_host_and_port_must_all_match_a14(other):
    assert refusal(policy(), "8.8.8.8", host=other) is Code.EGRESS_NOT_APPROVED


PUBLIC = ["8.8.8.8", "1.1.1.1", "52.219.0.1", "2a05:d018::1", "2606:4700::1111", "64:ff9b::808:808", "::ffff:8.8.8.8"]
INTERNAL = [
    "0.0.0.0",
    "10.0.0.1",
    "100.64.0.1",
    "127.0.0.1",
    "127.255.255.254",
    "169.254.169.254",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.8",
    "192.168.0.1",
    "192.88.99.1",
    "198.18.0.1",
    "203.0.113.1",
    "224.0.0.1",
    "255.255.255.255",
    "168.63.129.16",
    "::",
    "::1",
    "::7f00:1",
    "::ffff:127.0.0.1",
    "::ffff:a9fe:a9fe",
    "64:ff9b::7f00:1",
    "64:ff9b::a00:1",
    "64:ff9b:1::1",
    "100::1",
    "2001::1",
    "2001:db8::1",
    "2002:7f00:1::",
    "2002:808:808::1",
    "2a05:d018::5efe:10.0.0.1",
    "fc00::1",
    "fd00:ec2::254",
    "fe80::1",
    "fe80::1%eth0",
    "2a05:d018::1%eth0",
    "fec0::1",
    "ff02::1",
    "4000::1",
]


@pytest.mark.parametrize("address", PUBLIC)
def test_a_public_address_of_an_approved_host_is_dialled_a14(address):
    assert dialled(policy(), address) == [address.removeprefix("::ffff:")]


@pytest.mark.parametrize("address", INTERNAL)
def test_no_other_address_is_without_its_own_approval_a14(address):
    assert refusal(policy(), address) is Code.EGRESS_ADDRESS_REFUSED


@pytest.mark.parametrize("address", INTERNAL)
@pytest.mark.parametrize("order", [1, -1])
def test_one_bad_address_among_good_ones_refuses_them_all_a14(address, order):
    assert refusal(policy(), *["8.8.8.8", address][::order]) is Code.EGRESS_ADDRESS_REFUSED


def test_no_address_and_no_sense_are_refused_a14():
    assert refusal(policy()) is Code.EGRESS_ADDRESS_REFUSED
    assert refusal(policy(), "store.example") is Code.EGRESS_ADDRESS_REFUSED
    assert refusal(policy(), "127.1") is Code.EGRESS_ADDRESS_REFUSED


@pytest.mark.parametrize(
    ("network", "inside", "outside"),
    [
        ("127.0.0.0/8", "127.0.0.1", "10.0.0.1"),
        ("10.1.0.0/16", "10.1.2.3", "10.2.0.1"),
        ("169.254.10.0/24", "169.254.10.7", "169.254.11.1"),
        ("fd00::/8", "fd00::1", "fc00::1"),
        ("::1/128", "::1", "127.0.0.1"),
        ("52.0.0.0/8", "52.1.1.1", "8.8.8.8"),
        ("10.0.0.0/8", "::ffff:10.0.0.1", "2a05:d018::1"),
    ],
)
def test_an_approval_with_networks_is_for_those_alone_a14(network, inside, outside):
    assert len(dialled(policy(network), inside)) == 1
    assert refusal(policy(network), outside) is Code.EGRESS_ADDRESS_REFUSED
    assert refusal(policy(network), inside, outside) is Code.EGRESS_ADDRESS_REFUSED


@pytest.mark.parametrize(
    ("wide", "exact"),
    [("169.254.0.0/16", "169.254.169.254"), ("fd00::/8", "fd00:ec2::254"), ("168.63.0.0/16", "168.63.129.16")],
)
def test_a_metadata_address_is_approved_by_its_very_name_only_a14(wide, exact):
    assert refusal(policy(wide), exact) is Code.EGRESS_ADDRESS_REFUSED
    prefix = 128 if ":" in exact else 32
    assert dialled(policy(f"{exact}/{prefix}"), exact) == [exact]


@pytest.mark.parametrize(
    "network",
    [
        "0.0.0.0/0",
        "::/0",
        "0.0.0.0/1",
        "8.0.0.0/6",
        "128.0.0.0/1",
        "2000::/3",
        "224.0.0.0/4",
        "0.0.0.0/8",
        "2002::/16",
        "::/96",
    ],
)
def test_an_approval_can_t_reach_from_public_into_internal_addresses_a14(network):
    assert not policy(network).valid


def test_errors_name_no_destination_a16():
    for code, call in (
        (Code.EGRESS_NOT_APPROVED, lambda: policy().networks(Destination.parse("https://other.example"))),
        (Code.EGRESS_ADDRESS_REFUSED, lambda: policy().check(Destination.parse(HOST), ["10.0.0.1"])),
        (Code.EGRESS_INVALID, lambda: Destination.parse("https://user:secret@store.example")),
    ):
        with pytest.raises(Refused) as raised:
            call()
        assert raised.value.code is code
        assert not any(part in str(raised.value) for part in ("example", "10.0", "secret"))
