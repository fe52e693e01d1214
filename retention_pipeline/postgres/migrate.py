"""Brings the product's schema to this version, with the owner's login (SPEC C `migrate`)."""

from importlib import resources

import psycopg
import sqlalchemy
from alembic import command
from alembic.config import Config
from psycopg import sql

from retention_pipeline.catalog.loader import Catalog
from retention_pipeline.clock import sleep
from retention_pipeline.errors import Code, Refused
from retention_pipeline.postgres import install, sweep_indexes
from retention_pipeline.postgres.session import translate, translated

LATEST = "0012"
_COME_BY_SECONDS = 0.2
_MIGRATIONS = resources.files("retention_pipeline.postgres")


def migrate(owner_url: str, catalog: Catalog) -> str:
    """Make roles where they are missing, run every migration that was not run, and install the catalog's functions.

    Safe to run twice and on two machines: an advisory lock makes the second wait, and come by again and again: whoever waits
    inside a statement would keep an index from being built concurrently.

    Returns:
        The schema's version.
    """
    with translated(), psycopg.connect(owner_url, autocommit=True, application_name="retention migrate") as lock:
        while lock.execute("SELECT pg_try_advisory_lock(hashtext('retention.migrate'))").fetchone() != (True,):
            sleep(_COME_BY_SECONDS)
        _make_roles(lock)
        lock.execute("SET lock_timeout = '5s'")
        _run_alembic(owner_url)
        install.install(lock, catalog)
        sweep_indexes.build(lock, catalog)
    return LATEST


def install_reference_platform(owner_url: str) -> None:
    """Create the reference platform's schema in an empty database: for the demo, `retention dev` and tests."""
    with translated(), psycopg.connect(owner_url, autocommit=True) as connection, connection.transaction():
        connection.execute(_MIGRATIONS.joinpath("reference/schema.sql").read_text(encoding="utf-8").encode())


def bootstrap(owner_url: str, first_administrator: str) -> None:
    """Give one login every permission, once, while nobody has any (G3)."""
    with translated(), psycopg.connect(owner_url, autocommit=True) as connection, connection.transaction():
        connection.execute("SELECT retention.bootstrap(%s)", [first_administrator])


def _make_roles(connection: psycopg.Connection) -> None:
    wanted = connection.execute(
        "SELECT count(*) FROM pg_roles WHERE rolname IN ('retention_owner', 'retention_worker',"
        " 'retention_operator', 'retention_counter', 'retention_reader')"
    ).fetchone()
    try:
        if wanted != (5,):
            connection.execute(_MIGRATIONS.joinpath("roles.sql").read_text(encoding="utf-8").encode())
        connection.execute(sql.SQL("GRANT retention_owner TO {}").format(sql.Identifier(connection.info.user)))
        connection.execute(
            sql.SQL("GRANT CREATE ON DATABASE {} TO retention_owner").format(sql.Identifier(connection.info.dbname))
        )
    except psycopg.errors.InsufficientPrivilege:
        if wanted == (5,):
            return  # made by an administrator; the migration itself says what is still missing
        raise Refused(
            Code.ROLE_UNSAFE,
            "This login may not create the product's roles.",
            remedy="Let a database administrator run retention_pipeline/postgres/roles.sql, then run this again.",
        ) from None


def _run_alembic(owner_url: str) -> None:
    engine = sqlalchemy.create_engine(
        sqlalchemy.make_url(owner_url).set(drivername="postgresql+psycopg"), poolclass=sqlalchemy.NullPool
    )
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS.joinpath("migrations")))
    try:
        with engine.begin() as connection:
            connection.exec_driver_sql("SET LOCAL lock_timeout = '5s'")
            connection.exec_driver_sql("SET LOCAL ROLE retention_owner")
            connection.exec_driver_sql("CREATE SCHEMA IF NOT EXISTS retention")
            config.attributes["connection"] = connection
            command.upgrade(config, LATEST)
    except sqlalchemy.exc.DBAPIError as error:
        original = error.orig
        if isinstance(original, psycopg.Error):
            raise translate(original) from None
        raise
