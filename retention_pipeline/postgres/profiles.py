"""Archive profiles: generations that are never changed, and whether the newest one was proven (SPEC A12, A15)."""

from dataclasses import dataclass
from datetime import datetime

from psycopg import sql
from psycopg.types.json import Jsonb

from retention_pipeline.errors import Code, Refused
from retention_pipeline.governance.profile import ProfileDraft
from retention_pipeline.model.ids import TenantId
from retention_pipeline.model.profile import Profile, Provider, Readiness
from retention_pipeline.postgres import credentials, oversight
from retention_pipeline.postgres.session import Cursor, one, rows

_LOCK = sql.SQL("SELECT pg_advisory_xact_lock(hashtextextended('retention.profiles' || chr(31) || %(tenant)s, 0))")
_PUT = sql.SQL("""
INSERT INTO retention.profiles (tenant_id, generation, provider, configuration, secret_id, archive_retention_days)
SELECT %(tenant)s::text, coalesce(max(generation), 0) + 1, %(provider)s::text, %(configuration)s::jsonb,
  %(secret)s::uuid, %(days)s::integer
FROM retention.profiles WHERE tenant_id = %(tenant)s::text
RETURNING generation
""")
_COLUMNS = "SELECT generation, provider, configuration, secret_id::text, archive_retention_days FROM retention.profiles"
_NEWEST = sql.SQL(_COLUMNS + " WHERE tenant_id = %(tenant)s ORDER BY generation DESC LIMIT 1")
_GENERATION = sql.SQL(_COLUMNS + " WHERE tenant_id = %(tenant)s AND generation = %(generation)s")
_STATUS = sql.SQL("""
SELECT generation, provider, archive_retention_days, secret_generation, revoked, checked_at, ready, codes, locks
FROM retention.profile_status()
""")
_RECORD = sql.SQL("""
INSERT INTO retention.readiness_events (tenant_id, profile_generation, secret_generation, ready, codes, locks)
VALUES (%(tenant)s, %(profile)s, %(secret)s, %(ready)s, %(codes)s, %(locks)s)
""")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileStatus:
    """What may be shown of the newest profile: no place and no secret (A16).

    Args:
        secret_generation: the newest generation of its secret; None where it has none.
        checked_at: when the readiness that still counts was tried; None where there is none.
    """

    generation: int
    provider: Provider
    archive_retention_days: int
    secret_generation: int | None
    readiness: Readiness
    checked_at: datetime | None


def put(cursor: Cursor, tenant: TenantId, draft: ProfileDraft) -> int:
    """Add a generation, as an operator; gives its number. Readiness is gone until it is tried again.

    Raises:
        Refused: `SECRET_UNKNOWN` or `SECRET_REVOKED`, when the secret is not one of this tenant's.
    """
    if draft.secret_id is not None:
        credentials.newest(cursor, tenant, draft.secret_id)
    cursor.execute(_LOCK, {"tenant": tenant})
    cursor.execute(
        _PUT,
        {
            "tenant": tenant,
            "provider": draft.provider,
            "configuration": Jsonb(draft.configuration),
            "secret": draft.secret_id,
            "days": draft.archive_retention_days,
        },
    )
    return int(one(cursor)[0])


def newest(cursor: Cursor, tenant: TenantId) -> Profile:
    """The newest generation, or `Refused(PROFILE_UNKNOWN)`."""
    return _profile(cursor, _NEWEST, tenant, None)


def of_generation(cursor: Cursor, tenant: TenantId, generation: int) -> Profile:
    """One generation: older archives lie where it says. `Refused(PROFILE_UNKNOWN)` where there is none."""
    return _profile(cursor, _GENERATION, tenant, generation)


def status(cursor: Cursor) -> ProfileStatus | None:
    """The newest profile of the transaction's tenant; None where there is none, or where this login may not know."""
    found = rows(cursor, _STATUS)
    if not found:
        return None
    generation, provider, days, secret_generation, revoked, checked_at, ready, codes, locks = found[0]
    if revoked:
        codes = [Code.SECRET_REVOKED]
    elif checked_at is None:
        codes = [Code.READINESS_UNPROVEN]
    return ProfileStatus(
        generation=generation,
        provider=Provider(provider),
        archive_retention_days=days,
        secret_generation=secret_generation,
        readiness=Readiness(ready=ready, codes=tuple(codes), locks=locks),
        checked_at=checked_at,
    )


def readiness(cursor: Cursor) -> Readiness:
    """Whether the newest generations of profile and secret were proven, or `Refused(PROFILE_UNKNOWN)`."""
    found = status(cursor)
    if found is None:
        raise unknown()
    return found.readiness


def record_readiness(
    cursor: Cursor, profile: Profile, secret_generation: int | None, tried: Readiness, *, actor: str, run: str
) -> None:
    """Keep what a probe of exactly these generations found, as the worker, with its audit event."""
    values = {"tenant": profile.tenant, "profile": profile.generation, "secret": secret_generation}
    cursor.execute(_RECORD, {**values, "ready": tried.ready, "codes": list(tried.codes), "locks": tried.locks})
    oversight.audit(
        cursor,
        profile.tenant,
        actor=actor,
        kind="profile.readiness",
        outcome="ready" if tried.ready else "not_ready",
        run=run,
        subjects=[(str(profile.generation), code) for code in tried.codes or (None,)],
    )


def _profile(cursor: Cursor, statement: sql.SQL, tenant: TenantId, generation: int | None) -> Profile:
    found = rows(cursor, statement, {"tenant": tenant, "generation": generation})
    if not found:
        raise unknown()
    number, provider, configuration, secret_id, days = found[0]
    return Profile(
        tenant=tenant,
        generation=number,
        provider=Provider(provider),
        configuration=configuration,
        secret_id=secret_id,
        archive_retention_days=days,
    )


def unknown() -> Refused:
    """Nobody said where this tenant's archives go."""
    return Refused(
        Code.PROFILE_UNKNOWN, "This tenant has no archive profile.", remedy="Make one with `retention profile set`."
    )
