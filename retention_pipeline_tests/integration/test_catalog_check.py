"""The catalog against real databases: one change of the schema, one fault with its name (K2, F14, F18)."""

import pytest

from retention_pipeline.catalog.check import FaultCode, Severity, check
from retention_pipeline.catalog.loader import load
from retention_pipeline.postgres.introspection import read_facts
from retention_pipeline.postgres.session import Session


def facts_of(url):
    session = Session(url=url)
    try:
        with session.transaction(None, read_only=True) as cursor:
            return read_facts(cursor, load().instances)
    finally:
        session.close()


def faults(database):
    return check(load(), facts_of(database.worker_url))


def test_the_shipped_catalog_fits_the_reference_platform(database):
    assert faults(database) == ()
