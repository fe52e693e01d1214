"""A catalog against a database that was changed, and is as it was afterwards: a change in a transaction that ends undone."""

from contextlib import closing, suppress

from retention_pipeline.catalog.check import Fault, check
from retention_pipeline.catalog.loader import Catalog
from retention_pipeline.postgres.introspection import read_facts
from retention_pipeline.postgres.session import Session
from retention_pipeline_tests.databases import Database


class Undone(Exception):
    """Ends the transaction."""


def changed(database: Database, catalog: Catalog, *statements: str) -> tuple[Fault, ...]:
    """What the check tells after these statements of a superuser's; the database keeps none of them."""
    found: tuple[Fault, ...] = ()
    with (
        closing(Session(url=database.superuser_url, privileged=True)) as session,
        suppress(Undone),
        session.transaction(None) as cursor,
    ):
        for statement in statements:
            cursor.execute(statement.encode())
        found = check(catalog, read_facts(cursor, catalog))
        raise Undone
    return found
