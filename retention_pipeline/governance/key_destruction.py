"""May a tenant's keys be destroyed? A pure answer with every reason; the database asks again when it is done (SPEC A18, G1)."""

from retention_pipeline.errors import Code
from retention_pipeline.model.tenant_keys import Stakes


def obstacles(stakes: Stakes, *, archives_too: bool) -> tuple[Code, ...]:
    """Every reason to keep them, not only the first; none once a destruction was begun, which can only be finished."""
    if stakes.begun_at is not None:
        return ()
    found = []
    if stakes.holds:
        found.append(Code.KEY_HELD)
    if stakes.in_flight:
        found.append(Code.KEY_IN_USE)
    if stakes.kept and not archives_too:
        found.append(Code.KEY_ARCHIVES_KEPT)
    return tuple(found)
