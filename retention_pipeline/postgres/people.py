"""Tenants by their alias, and who may do what for them: decided by the database for the login itself (SPEC G3)."""

from dataclasses import dataclass

from psycopg import sql

from retention_pipeline.errors import Code, Refused, UsageFault
from retention_pipeline.model.ids import TenantId
from retention_pipeline.model.people import Permission, Tenant, TenantCount
from retention_pipeline.postgres.session import Cursor, Session, one, rows

EVERYWHERE = "*"
"""The scope of a grant for the whole installation."""

_RESOLVE = sql.SQL("SELECT retention.resolve_tenant(%(alias)s)")
_PERMITTED = sql.SQL("SELECT retention.permitted(%(permission)s)")
_PERMITTED_EVERYWHERE = sql.SQL("SELECT retention.permitted_everywhere(%(permission)s)")
_DENIAL = sql.SQL("SELECT retention.audit_denial(%(scope)s, %(permission)s, %(command)s, %(correlation)s)")
_LOGIN = sql.SQL("SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = %(name)s AND rolcanlogin), session_user")
_CHANGE = sql.SQL("""
INSERT INTO retention.grant_events (tenant_id, principal, permission, action, reason)
VALUES (%(scope)s, %(principal)s, %(permission)s, %(action)s, %(reason)s)
""")
_LIST = sql.SQL("""
SELECT principal, permission, tenant_id FROM (
  SELECT DISTINCT ON (principal, permission, tenant_id) principal, permission, tenant_id, action
  FROM retention.grant_events WHERE tenant_id IN (%(tenant)s, '*')
  ORDER BY principal, permission, tenant_id, id DESC
) AS latest WHERE action = 'add' ORDER BY principal, permission, tenant_id
""")


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """A permission that stands.

    Args:
        everywhere: for every tenant, and for what belongs to the installation.
    """

    principal: str
    permission: Permission
    everywhere: bool


def resolve(session: Session, alias: str) -> Tenant:
    """The tenant of an alias, or `UsageFault(TENANT_UNKNOWN)`."""
    with session.transaction(None, read_only=True) as cursor:
        cursor.execute(_RESOLVE, {"alias": alias})
        found = one(cursor)[0]
    if not found:
        raise UsageFault(
            Code.TENANT_UNKNOWN,
            "There is no tenant of this alias.",
            remedy="Check the alias in the platform's records.",
        )
    return Tenant(id=TenantId(found), alias=alias)


def permitted(cursor: Cursor, permission: Permission) -> bool:
    """Whether this login has the permission, for the transaction's tenant or for all."""
    cursor.execute(_PERMITTED, {"permission": permission})
    return bool(one(cursor)[0])


def permitted_everywhere(cursor: Cursor, permission: Permission) -> bool:
    """Whether this login has the permission for the whole installation."""
    cursor.execute(_PERMITTED_EVERYWHERE, {"permission": permission})
    return bool(one(cursor)[0])


def require(
    session: Session, tenant: TenantId | None, *permissions: Permission, command: str, correlation: str
) -> None:
    """Go on only with one of the permissions; a denial is audited in a transaction of its own.

    Args:
        session: the operator's.
        tenant: for whom; None asks for a permission for the whole installation.
        permissions: any of them will do.
        command: its name, for the audit event.
        correlation: ties the event to this call.

    Raises:
        Refused: `PERMISSION_DENIED`, naming the permissions and who gives them.
    """
    ask = permitted_everywhere if tenant is None else permitted
    with session.transaction(tenant, read_only=True) as cursor:
        if any(ask(cursor, permission) for permission in permissions):
            return
    wanted = " or ".join(permissions)
    denied = {"scope": tenant or EVERYWHERE, "permission": wanted, "command": command, "correlation": correlation}
    with session.transaction(tenant) as cursor:
        cursor.execute(_DENIAL, denied)
    scope = "for the whole installation" if tenant is None else "for this tenant"
    raise Refused(
        Code.PERMISSION_DENIED,
        f"This login lacks {wanted} {scope}; the denial was recorded.",
        remedy=f"Someone with {Permission.GRANT} {scope} can give it with `retention grant add`.",
    )


def add(cursor: Cursor, tenant: TenantId | None, principal: str, permission: Permission, reason: str | None) -> None:
    """Give a login a permission, for one tenant or (None) for the whole installation.

    Raises:
        UsageFault: there is no such login; a misspelt one would wait for whoever makes it.
    """
    if permission is Permission.EGRESS and tenant is not None:
        raise UsageFault(
            Code.USAGE,
            f"{Permission.EGRESS} is not a tenant's to have.",
            remedy="Give it for the whole installation, or not at all.",
        )
    cursor.execute(_LOGIN, {"name": principal})
    if not one(cursor)[0]:
        raise UsageFault(
            Code.USAGE, "There is no login of this name.", remedy="Let a database administrator create it first."
        )
    _change(cursor, tenant, principal, permission, "add", reason)


def remove(cursor: Cursor, tenant: TenantId | None, principal: str, permission: Permission, reason: str | None) -> None:
    """Take a permission away, for one tenant or (None) for the whole installation.

    Raises:
        Refused: who gives permissions may not take that one from themselves: somebody must be left who can.
    """
    cursor.execute(_LOGIN, {"name": principal})
    if permission is Permission.GRANT and one(cursor)[1] == principal:
        raise Refused(
            Code.USAGE,
            f"Nobody takes {Permission.GRANT} from themselves.",
            remedy="Let another administrator do it, so that one is left.",
        )
    _change(cursor, tenant, principal, permission, "remove", reason)


def grants(cursor: Cursor, tenant: TenantId) -> tuple[Grant, ...]:
    """Every permission that stands for a tenant, those for the whole installation among them."""
    return tuple(
        Grant(principal=principal, permission=Permission(permission), everywhere=scope == EVERYWHERE)
        for principal, permission, scope in rows(cursor, _LIST, {"tenant": tenant})
    )


def _change(
    cursor: Cursor, tenant: TenantId | None, principal: str, permission: Permission, action: str, reason: str | None
) -> None:
    values = {"scope": tenant or EVERYWHERE, "principal": principal, "permission": permission}
    cursor.execute(_CHANGE, {**values, "action": action, "reason": reason})


def directory(session: Session) -> tuple[Tenant, ...]:
    """Every tenant of the platform, by id; for the worker alone."""
    with session.transaction(None, read_only=True) as cursor:
        found = rows(cursor, sql.SQL("SELECT id, alias FROM retention.tenant_directory()"))
    return tuple(Tenant(id=TenantId(row[0]), alias=row[1]) for row in found)


def overview(session: Session) -> tuple[TenantCount, ...]:
    """Every tenant with its counts, in one statement; for the worker alone."""
    with session.transaction(None, read_only=True) as cursor:
        found = rows(cursor, sql.SQL("SELECT id, alias, instances, ended FROM retention.tenant_overview()"))
    return tuple(TenantCount(tenant=TenantId(r[0]), alias=r[1], instances=r[2], ended=r[3]) for r in found)
