"""Indexes that the catalog's sweeps need and no platform has: built concurrently, again and again without harm (SPEC E4, J2).

An index that a killed build left invalid, or that was made from other rules, is dropped and built anew. Each carries a note of what it
was made from. A purge's index, over plain columns, is the platform's own: the catalog's check asks for it.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import psycopg
from psycopg import sql

from retention_pipeline.catalog.loader import Catalog
from retention_pipeline.catalog.sweep_model import ClearDataset, ClearedTable, ShelveDataset
from retention_pipeline.postgres import names
from retention_pipeline.postgres.session import Cursor, rows

_STANDING = sql.SQL("""
SELECT obj_description(i.indexrelid, 'pg_class') FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid
JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = %(schema)s AND c.relname = %(name)s AND i.indisvalid AND i.indisready
""")


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedIndex:
    """An index, as it must be.

    Args:
        table: with its schema, which is the index's too.
        over: what stands behind `ON table`.
    """

    name: str
    table: str
    over: sql.Composed

    @property
    def note(self) -> str:
        """Names what it is made from."""
        return f"retention {hashlib.sha256(self.over.as_string(None).encode()).hexdigest()[:16]}"

    @property
    def path(self) -> sql.Identifier:
        """Its own name with the schema."""
        return sql.Identifier(self.table.split(".", 1)[0], self.name)


def wanted(catalog: Catalog) -> tuple[WantedIndex, ...]:
    """Every index that the sweeps of a catalog need built."""
    return tuple(index for rules in catalog.sweeps for index in _of(rules.dataset))


def standing(cursor: Cursor, index: WantedIndex) -> bool:
    """Whether it is there, valid, and made from these very rules."""
    found = rows(cursor, _STANDING, {"schema": index.table.split(".", 1)[0], "name": index.name})
    return bool(found) and found[0][0] == index.note


def build(connection: psycopg.Connection, catalog: Catalog) -> None:
    """Build what is missing, without a lock that keeps writers waiting.

    Args:
        connection: of a login that owns the tables; in autocommit, since an index is built concurrently outside a transaction.
        catalog: the rules.
    """
    connection.execute("SET lock_timeout = 0")
    connection.execute("SET search_path = pg_catalog")
    for index in wanted(catalog):
        with connection.cursor() as cursor:
            if standing(cursor, index):
                continue
        connection.execute(sql.SQL("DROP INDEX CONCURRENTLY IF EXISTS {}").format(index.path))
        made = sql.SQL("CREATE INDEX CONCURRENTLY {} ON {} {}")
        connection.execute(made.format(sql.Identifier(index.name), names.table(index.table), index.over))
        connection.execute(sql.SQL("COMMENT ON INDEX {} IS {}").format(index.path, sql.Literal(index.note)))


def _of(dataset: object) -> Iterator[WantedIndex]:
    if isinstance(dataset, ClearDataset):
        for table in dataset.tables:
            yield from _cleared(dataset.dataset, table)
    elif isinstance(dataset, ShelveDataset):
        yield from _shelved(dataset)


def _cleared(dataset: str, table: ClearedTable) -> Iterator[WantedIndex]:
    parts = {
        "tenant": sql.Identifier(table.tenant),
        "payload": sql.Identifier(table.payload),
        "key": names.comma(map(sql.Identifier, table.key)),
    }
    over = (
        "({tenant}, retention.payload_expiry({payload}), {key}) WHERE retention.payload_expiry({payload}) IS NOT NULL"
    )
    name = _name(dataset, table.name, "expiry")
    yield WantedIndex(name=name, table=table.table, over=sql.SQL(over).format(**parts))
    # What calls itself short-lived and can't be read: found by index, since it is counted each time.
    over = "({tenant}, {key}) WHERE retention.payload_expiry({payload}) IS NULL AND {payload} ->> 'mode' = 'ephemeral_hosted'"
    name = _name(dataset, table.name, "flaw")
    yield WantedIndex(name=name, table=table.table, over=sql.SQL(over).format(**parts))


def _shelved(dataset: ShelveDataset) -> Iterator[WantedIndex]:
    """Two: the next deadline of all tenants, and the pages of one."""
    requests = dataset.requests
    parts = {
        "tenant": sql.Identifier(requests.tenant),
        "at": sql.Identifier(requests.active_at),
        "key": names.comma(map(sql.Identifier, requests.key)),
        "status": sql.Identifier(requests.status),
        "pending": sql.Literal(requests.pending),
        "kept": sql.Identifier(requests.kept_at),
        "archived": sql.Identifier(requests.archived_at),
    }
    waiting = " WHERE {status} = {pending} AND {kept} IS NULL AND {archived} IS NULL"
    for what, over in (("deadline", "({at}, {key})"), ("pages", "({tenant}, {at}, {key})")):
        name = _name(dataset.dataset, requests.name, what)
        yield WantedIndex(name=name, table=requests.table, over=sql.SQL(over + waiting).format(**parts))


def _name(*parts: str) -> str:
    """A name of at most 63 bytes, the same each time."""
    name = "_".join(("retention", *parts))
    return name if len(name) <= 63 else f"{name[:54]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"
