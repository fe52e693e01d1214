"""A sealed value opens for its own use alone (A13, A18)."""

import pytest

from retention_pipeline.envelope.wraps import open_value, seal_value, unwrap_tenant_key, wrap_tenant_key
from retention_pipeline.errors import Code, Integrity

ROOT, OTHER = bytes(32), b"1" * 32
WRAPPED = wrap_tenant_key(ROOT, "t-1", 3, b"k" * 32)


def test_a_tenant_key_comes_back_a18():
    assert unwrap_tenant_key(ROOT, "t-1", 3, WRAPPED) == b"k" * 32


@pytest.mark.parametrize(
    "where", [(OTHER, "t-1", 3, WRAPPED), (ROOT, "t-2", 3, WRAPPED), (ROOT, "t-1", 4, WRAPPED), (ROOT, "t-1", 3, b"")]
)
def test_a_tenant_key_never_opens_as_another_s_a18(where):
    with pytest.raises(Integrity) as raised:
        unwrap_tenant_key(*where)
    assert raised.value.code is Code.OBJECT_UNAUTHENTIC


@pytest.mark.parametrize(
    "parts", [("use", "a", "b"), ("use", 'a","b'), ("use", "ab"), ("use", "a", 1), ("use", "a", "1", "")]
)
def test_no_two_lists_of_parts_are_one_context_a13(parts):
    sealed = seal_value(ROOT, ("use", "a", "1"), b"secret")
    with pytest.raises(Integrity):
        open_value(ROOT, parts, sealed)
