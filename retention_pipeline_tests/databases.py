"""A fresh reference database for each test, cloned from a template that is migrated once."""

import itertools
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import psycopg
import pytest

from retention_pipeline.catalog.loader import load
from retention_pipeline.dev.postgres import EmbeddedPostgres
from retention_pipeline.postgres import provision

PASSWORD = "a password of a throw-away server"
GROUPS = {
    "worker": "retention_worker",
    "admin": "retention_operator",
    "clerk": "retention_operator",  # an operator without any permission, until a test gives one
}
TEMPLATE = "platform_template"
_numbers = itertools.count()


@dataclass(frozen=True, slots=True, kw_only=True)
class Database:
    """One test's own database."""

    server: EmbeddedPostgres
    name: str
    closing: ExitStack

    def url(self, login: str) -> str:
        return self.server.url(login, PASSWORD, self.name)

    @property
    def owner_url(self) -> str:
        return self.url("platform_owner")

    @property
    def worker_url(self) -> str:
        return self.url("worker")

    @property
    def operator_url(self) -> str:
        return self.url("admin")

    @property
    def superuser_url(self) -> str:
        return self.server.superuser_url(self.name)

    def superuser(self) -> psycopg.Connection:
        """A connection that sees everything: what a test looks at, never what the product uses."""
        return psycopg.connect(self.superuser_url, autocommit=True)


@pytest.fixture(scope="session")
def template(pg: EmbeddedPostgres) -> str:
    superuser = pg.superuser_url()
    provision.make_logins(superuser, dict.fromkeys(["platform_owner", *GROUPS], PASSWORD), "platform_owner")
    if not provision.has_database(superuser, TEMPLATE):
        provision.make_database(superuser, TEMPLATE, "platform_owner")
        provision.make_platform(pg.url("platform_owner", PASSWORD, TEMPLATE), load(), "admin")
        provision.join_groups(superuser, GROUPS)
    return TEMPLATE


@contextmanager
def cloned(pg: EmbeddedPostgres, template: str) -> Iterator[Database]:
    name = f"t{os.getpid()}_{next(_numbers)}"
    provision.make_database(pg.superuser_url(), name, "platform_owner", template=template)
    with ExitStack() as closing:
        yield Database(server=pg, name=name, closing=closing)
    provision.drop_database(pg.superuser_url(), name)


@pytest.fixture
def database(pg: EmbeddedPostgres, template: str) -> Iterator[Database]:
    with cloned(pg, template) as made:
        yield made
