"""Whose turn it is in a pass over many tenants: in order, from where the last pass stopped (SPEC L1)."""

from collections.abc import Iterable

from retention_pipeline.model.ids import TenantId


def in_turn(tenants: Iterable[TenantId], last: TenantId | None) -> tuple[TenantId, ...]:
    """The tenants in the order of their ids, beginning behind the one that was handled last, so that each gets its turn.

    Args:
        tenants: those that have work.
        last: whom the last pass handled last, whether or not it is among them; None where there was none.
    """
    ordered = sorted(set(tenants))
    if last is None:
        return tuple(ordered)
    return (*(tenant for tenant in ordered if tenant > last), *(tenant for tenant in ordered if tenant <= last))
