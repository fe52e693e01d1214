"""The seal's format holds for ever: what was sealed by this release is proven by every later one (SPEC G5)."""

import pytest

from retention_pipeline.errors import Code
from retention_pipeline.governance.audit import block_mac, leaf, sealed, write_head
from retention_pipeline.governance.audit_chain import ChainCheck, late_before
from retention_pipeline.model.audit import Head
from retention_pipeline.model.ids import TenantId

KEY = bytes(range(32))
TENANT = TenantId("a-tenant")
THEN = "2026-06-01 12:00:00.5+00"


def event(number, at="2026-06-01 11:59:58.25+00"):
    return (str(number), TENANT, at, "ü", "worker", "k", "s", "done", None, "", "c", None, '{"n": 1}')


def chain(*sizes, at=THEN):
    """Blocks of these sizes, with their events."""
    blocks, head, number = [], None, 0
    for size in sizes:
        events = [event(number + n) for n in range(size)]
        seal = sealed(KEY, TENANT, head, at, events)
        blocks.append((seal, {int(e[0]): e for e in events}))
        head, number = seal.head, number + size
    return blocks


def found(blocks, heads=()):
    check = ChainCheck(tenant=TENANT, key=KEY, heads=heads)
    told = [finding for seal, events in blocks for finding in check.block(seal, events)]
    return [(f.code, f.block, f.through, f.event) for f in (*told, *check.end())]


def test_the_hashes_are_those_of_the_first_release():
    [(one, _), (two, _)] = chain(1, 2)
    assert leaf(KEY, event(0)).hex() == "295176a9307febac572b30c1f6556f27"
    assert one.mac.hex() == "a5ceb1dc90237f3db18d13fc08f5edff18e9363dfa7d111bae764f7057de270e"
    assert two.mac.hex() == "f6a26d2e7b191c1e0d6a1060493fb30df23d8200c2677febb2f0b50a1492ea8d"
    assert write_head(KEY, two.head)["signature"] == "71269e505430379a163d89be20da4a4bd4477ea6cb6b93d273b8c242139d1a4e"
    assert block_mac(KEY, two) == two.mac


def test_an_untouched_chain_has_no_finding():
    blocks = chain(1, 3, 2)
    assert found(blocks, [blocks[0][0].head, blocks[2][0].head]) == []
    assert found([]) == []


def test_every_fault_is_named_not_only_the_first():
    blocks = chain(2, 2, 2, 2)
    del blocks[1]
    blocks[0][1][0] = event(0, at="2026-06-01 11:59:58.250001+00")
    del blocks[2][1][7]
    lost = Head(tenant=TENANT, block=6, mac=bytes(32), sealed_at=THEN)
    other = Head(tenant=TENANT, block=3, mac=bytes(32), sealed_at=THEN)
    assert found(blocks, [lost, other]) == [
        (Code.AUDIT_EVENT_CHANGED, 1, None, 0),
        (Code.AUDIT_BLOCK_MISSING, 2, None, None),
        (Code.AUDIT_HEAD_DIFFERS, 3, None, None),
        (Code.AUDIT_EVENT_REMOVED, 4, None, 7),
        (Code.AUDIT_CHAIN_SHORTER, 5, 6, None),
    ]


@pytest.mark.parametrize(
    ("at", "late"),
    [
        ("2026-06-01 11:45:00.5+00", False),
        ("2026-06-01 11:45:00.499999+00", True),
        ("2026-06-01 11:45:00+00", True),
        ("2026-06-01 11:45:01+00", False),
        ("2025-12-31 23:59:59+00", True),
        ("infinity", False),
        ("-infinity", True),
    ],
)
def test_an_event_is_late_one_microsecond_before_a_quarter_of_an_hour(at, late):
    assert (at < late_before(THEN)) is late


def test_what_is_no_instant_gives_no_horizon():
    assert late_before("infinity") is None
    assert late_before("") is None
    assert late_before("0001-01-01 00:00:00+00") is None
