"""`retention grant`: who may do what (SPEC G3)."""

import click

from retention_pipeline.cli.common import Call, pass_call, table
from retention_pipeline.model.ids import TenantId
from retention_pipeline.model.people import Permission
from retention_pipeline.postgres import people

_SHORT = {permission.partition(":")[2]: permission for permission in Permission}


class _PermissionType(click.ParamType[Permission]):
    """A permission by its whole name, or by what stands after the colon."""

    name = "permission: one of " + ", ".join(_SHORT)

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Permission:
        try:
            return _SHORT.get(str(value)) or Permission(str(value))
        except ValueError:
            self.fail("not a permission", param, ctx)


_login = click.argument("login")
_permission = click.argument("permission", type=_PermissionType())
_everywhere = click.option("--everywhere", is_flag=True, help="For every tenant, and for the installation.")
_reason = click.option("--reason", help="For the record.")


@click.group()
def grant() -> None:
    """Who may do what, per tenant.

    A person is a database login of their own.

    \b
    Permissions: read, reconcile, archive, profile_manage, legal_hold, cancel, restore, key_manage, grant, egress
    """


@grant.command()
@_login
@_permission
@_everywhere
@_reason
@pass_call
def add(call: Call, login: str, permission: Permission, everywhere: bool, reason: str | None) -> None:
    """Give a login a permission.

    \b
    Examples:
      retention --tenant acme grant add bob legal_hold --reason "Legal department"
      retention grant add carol egress --everywhere
    """
    scope = _scope(call, everywhere=everywhere)
    with call.app.operator().transaction(scope) as cursor:
        people.add(cursor, scope, login, permission, reason)
    _emit(call, login, permission, everywhere=everywhere, granted=True)


@grant.command()
@_login
@_permission
@_everywhere
@_reason
@pass_call
def remove(call: Call, login: str, permission: Permission, everywhere: bool, reason: str | None) -> None:
    """Take a permission away; one that the login has for the whole installation stays.

    \b
    Example:
      retention --tenant acme grant remove bob legal_hold
    """
    scope = _scope(call, everywhere=everywhere)
    with call.app.operator().transaction(scope) as cursor:
        people.remove(cursor, scope, login, permission, reason)
    _emit(call, login, permission, everywhere=everywhere, granted=False)


@grant.command("list")
@pass_call
def show(call: Call) -> None:
    """List the permissions that stand for a tenant.

    \b
    Example:
      retention --tenant acme grant list
    """
    call.require(Permission.GRANT)
    with call.app.operator().transaction(call.tenant.id, read_only=True) as cursor:
        found = people.grants(cursor, call.tenant.id)
    told = [{"login": g.principal, "permission": g.permission, "everywhere": g.everywhere} for g in found]
    call.emit(
        {"tenant": call.tenant.alias, "grants": told},
        table(("login", "permission", "everywhere"), [list(entry.values()) for entry in told]),
    )


def _scope(call: Call, *, everywhere: bool) -> TenantId | None:
    if everywhere:
        call.require_everywhere(Permission.GRANT)
        return None
    call.require(Permission.GRANT)
    return call.tenant.id


def _emit(call: Call, login: str, permission: Permission, *, everywhere: bool, granted: bool) -> None:
    scope = None if everywhere else call.tenant.alias
    call.emit({"tenant": scope, "login": login, "permission": permission, "everywhere": everywhere, "granted": granted})
