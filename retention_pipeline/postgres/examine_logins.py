"""May the logins and roles do no more than they must? What PostgreSQL's own catalog says of them (SPEC O3, F11)."""

from collections.abc import Iterator
from typing import Final

from psycopg import sql

from retention_pipeline.catalog.model import InstanceDataset
from retention_pipeline.model.diagnosis import Ailment, Diagnosis, error
from retention_pipeline.postgres.session import Cursor, one, rows
from retention_pipeline.postgres.shape import named_tables

WORKER: Final = "retention_worker"
OPERATOR: Final = "retention_operator"
ROLES: Final = ("retention_owner", WORKER, OPERATOR, "retention_counter")

_LOGIN = sql.SQL("""
SELECT r.rolname, r.rolsuper, r.rolbypassrls, r.rolcreaterole,
  coalesce(pg_has_role(r.oid, to_regrole('retention_owner')::oid, 'MEMBER'), false)
    OR coalesce(pg_has_role(r.oid, to_regrole('retention_counter')::oid, 'MEMBER'), false),
  coalesce(pg_has_role(r.oid, to_regrole('retention_worker')::oid, 'MEMBER'), false),
  coalesce(pg_has_role(r.oid, to_regrole('retention_operator')::oid, 'MEMBER'), false),
  EXISTS (SELECT FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE c.relowner = r.oid
    AND (n.nspname = 'retention' OR n.nspname || '.' || c.relname = ANY(%(tables)s)))
FROM pg_roles AS r WHERE r.rolname = session_user
""")
# Whoever made the roles is a member of them, and so of the owner, on PostgreSQL 16 and later.
_ROLES = sql.SQL("""
SELECT n.name, r.oid IS NOT NULL,
  coalesce(r.rolcanlogin OR r.rolsuper OR r.rolbypassrls OR r.rolcreaterole OR r.rolcreatedb OR r.rolreplication, false),
  n.name = 'retention_counter' AND EXISTS (SELECT FROM pg_auth_members AS m JOIN pg_roles AS w ON w.oid = m.member
    WHERE m.roleid = r.oid AND NOT w.rolsuper AND NOT pg_has_role(w.oid, to_regrole('retention_owner')::oid, 'MEMBER'))
FROM unnest(%(roles)s::text[]) AS n (name) LEFT JOIN pg_roles AS r ON r.rolname = n.name ORDER BY 1
""")


def login(cursor: Cursor, dataset: InstanceDataset, wanted: str) -> Iterator[Diagnosis]:
    """Whether a session's own login is bound by row-level security, and has this one role of ours."""
    cursor.execute(_LOGIN, {"tables": list(named_tables(dataset))})
    name, superuser, bypasses, creates, owner, worker, operator, owns = one(cursor)
    mighty = {
        "is a superuser": superuser,
        "bypasses row-level security": bypasses,
        "may create roles": creates and not superuser,
        "is a member of the owner or of the counting role": owner and not superuser,
        "owns tables of the product or of the catalog": owns,
    }
    if any(mighty.values()):
        sentence = f"The login {name} {' and '.join(what for what, true in mighty.items() if true)}."
        remedy = f"Use a login of its own, with no other right than to be a member of {wanted}."
        yield error(Ailment.LOGIN_UNSAFE, sentence, remedy)
        return
    has = {WORKER: worker, OPERATOR: operator}
    if has != {role: role == wanted for role in has}:
        roles = " and ".join(role for role, true in has.items() if true) or "neither of the product's roles"
        sentence = f"The login {name} has {roles}; here it must have {wanted} alone."
        yield error(Ailment.LOGIN_ROLE, sentence, f"GRANT {wanted} to it and REVOKE the other one.")


def roles(cursor: Cursor) -> Iterator[Diagnosis]:
    """Whether the product's roles are there, in their least form."""
    for name, there, mighty, lent in rows(cursor, _ROLES, {"roles": list(ROLES)}):
        if not there:
            yield error(Ailment.ROLE_UNSAFE, f"The role {name} is not there.", "Run `retention migrate`.")
        if mighty:
            sentence = f"The role {name} may log in, or has a right that goes beyond row-level security."
            yield error(Ailment.ROLE_UNSAFE, sentence, f"ALTER ROLE {name} as postgres/roles.sql makes it.")
        if lent:
            sentence = f"The role {name} sees all tenants, and was given to somebody who is not the owner."
            yield error(Ailment.ROLE_UNSAFE, sentence, f"REVOKE {name} from whoever has it beside retention_owner.")
