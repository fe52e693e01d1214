"""Makes a database with logins for the demo, for `retention dev` and for tests; production is provisioned by its own people."""

import psycopg
from psycopg import sql

from retention_pipeline.catalog.loader import Catalog
from retention_pipeline.postgres.migrate import bootstrap, install_reference_platform, migrate
from retention_pipeline.postgres.session import translated


def make_logins(superuser_url: str, passwords: dict[str, str], owner: str) -> None:
    """Create logins, or set their passwords anew.

    Args:
        superuser_url: an embedded server's superuser.
        passwords: password by login.
        owner: the login that migrates, and so makes roles.
    """
    with translated(), psycopg.connect(superuser_url, autocommit=True) as connection:
        for login, password in passwords.items():
            rights = sql.SQL("CREATEROLE" if login == owner else "NOCREATEROLE")
            found = connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [login]).fetchone()
            verb = sql.SQL("ALTER" if found else "CREATE")
            connection.execute(
                sql.SQL("{} ROLE {} LOGIN {} PASSWORD {}").format(
                    verb, sql.Identifier(login), rights, sql.Literal(password)
                )
            )


def join_groups(superuser_url: str, groups: dict[str, str]) -> None:
    """Make each login a member of its group, once the migration has made the groups."""
    with translated(), psycopg.connect(superuser_url, autocommit=True) as connection:
        for login, group in groups.items():
            connection.execute(sql.SQL("GRANT {} TO {}").format(sql.Identifier(group), sql.Identifier(login)))


def make_database(superuser_url: str, name: str, owner: str, *, template: str | None = None) -> None:
    """Create a database; from a template, it is a copy with all the template's rows."""
    statement = sql.SQL("CREATE DATABASE {} OWNER {}").format(sql.Identifier(name), sql.Identifier(owner))
    if template is not None:
        statement += sql.SQL(" TEMPLATE {}").format(sql.Identifier(template))
    with translated(), psycopg.connect(superuser_url, autocommit=True) as connection:
        connection.execute(statement)


def drop_database(superuser_url: str, name: str) -> None:
    """Drop a database with whoever is still connected to it."""
    with translated(), psycopg.connect(superuser_url, autocommit=True) as connection:
        connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))


def has_database(superuser_url: str, name: str) -> bool:
    """Whether the server has a database of this name."""
    with translated(), psycopg.connect(superuser_url, autocommit=True) as connection:
        return connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [name]).fetchone() is not None


def make_platform(owner_url: str, catalog: Catalog, first_administrator: str) -> None:
    """Fill an empty database with the reference platform and the product's schema."""
    install_reference_platform(owner_url)
    migrate(owner_url, catalog)
    bootstrap(owner_url, first_administrator)
