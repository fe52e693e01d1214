"""Reads due instances whole, in one snapshot, in batches that are bounded in bytes (DESIGN section 4)."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
import psycopg
from psycopg import sql

from retention_pipeline.catalog.loader import Catalog
from retention_pipeline.errors import Code, Refused
from retention_pipeline.model.archive import Candidate, Export, Rejected, TableRows
from retention_pipeline.model.decision import Facts, decide
from retention_pipeline.model.ids import InstanceId, TenantId
from retention_pipeline.postgres.content import EMPTY_HASH, ContentStatements, places
from retention_pipeline.postgres.facts import FactStatements
from retention_pipeline.postgres.session import Cursor, one
from retention_pipeline.postgres.shape import SourceShape, read_shape, tables_of
from retention_pipeline.postgres.vanished import receipted_lately

BATCH_BYTES = 32 << 20
PLAINTEXT_LIMIT = 512 << 20
SLOW_ENOUGH = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Exporter:
    """Reads instances of one dataset, under the shape that the catalog was checked against."""

    catalog: Catalog
    shape: SourceShape
    held_too: bool = False

    def export(
        self, cursor: Cursor, tenant: TenantId, candidates: Sequence[Candidate], as_of: object
    ) -> Iterator[Export | Rejected]:
        """Give each candidate's export, or why there is none; `cursor` is in a read-only snapshot.

        Candidates that another run deleted, or that have another epoch by now, are left out without a word: they are not
        failures. One that is protected by now is named: the refusal goes on record (F5). So is one that a stranger deleted.
        """
        require_shape(cursor, self.catalog, self.shape)
        parameters = {"tenant": tenant, "ids": [c.instance for c in candidates], "as_of": as_of}
        usable, rejected = self._still_eligible(cursor, candidates, parameters)
        yield from rejected
        content = ContentStatements(dataset=self.catalog.instances, shape=self.shape)
        stamp = one(cursor.execute("SELECT now()::text, current_setting('server_version')"))
        reading = _Reading(cursor=cursor, parameters=parameters)
        kept: dict[str, int] = {}
        for size in reading.rows(content.sizes(), list(usable)):
            if isinstance(size, Rejected):
                yield size
            elif size[2] > PLAINTEXT_LIMIT:
                yield Rejected(instance=InstanceId(size[0]), code=Code.PLAINTEXT_LIMIT_EXCEEDED)
            else:
                kept[size[0]] = size[1]
        for batch in _by_bytes(kept):
            for row in reading.rows(content.rows(), batch):
                if isinstance(row, Rejected):
                    yield row
                else:
                    yield self._assemble(tenant, usable[row[0]], row[1:], stamp)

    def _still_eligible(
        self, cursor: Cursor, candidates: Sequence[Candidate], parameters: dict[str, Any]
    ) -> tuple[dict[str, Candidate], list[Rejected]]:
        facts = FactStatements(dataset=self.catalog.instances, shape=self.shape)
        by_id = {c.instance: c for c in candidates}
        usable: dict[str, Candidate] = {}
        rejected: list[Rejected] = []
        seen = set[InstanceId]()
        for row in read_some(cursor, facts, parameters):
            candidate = by_id[row.instance]
            seen.add(row.instance)
            if row.facts.foreign:
                rejected.append(Rejected(instance=row.instance, code=Code.FOREIGN_ROW))
            elif not row.may_go(held_too=self.held_too):
                rejected.append(Rejected(instance=row.instance, code=Code.NOT_ELIGIBLE))
            elif row.epoch == candidate.epoch:
                usable[row.instance] = candidate
        gone = [i for i in by_id if i not in seen]
        ours = receipted_lately(cursor, parameters["tenant"], gone)
        rejected += [Rejected(instance=i, code=Code.FOREIGN_DELETER) for i in gone if i not in ours]  # W11
        return usable, rejected

    def _assemble(self, tenant: TenantId, candidate: Candidate, texts: Sequence[str], stamp: Sequence[str]) -> Export:
        tables: list[TableRows] = []
        versions: list[tuple[str, int, str]] = []
        contents: list[tuple[str, int, str]] = []
        for place, text in zip(places(self.catalog.instances), texts, strict=True):
            count, version_hash, content_hash, values = orjson.loads(text)
            columns = tuple(column.recorded() for column in self.shape.columns(place.table))
            tables.append(
                TableRows(
                    name=place.name,
                    section=place.section,
                    table=place.table,
                    columns=columns,
                    rows=tuple(tuple(row) for row in values),
                )
            )
            (contents if place.shared else versions).append((place.name, count, content_hash or version_hash))
        return Export(
            tenant=tenant,
            candidate=candidate,
            captured_at=stamp[0],
            server_version=stamp[1],
            catalog_digest=self.catalog.digest,
            tables=tuple(tables),
            fingerprint=digest_of(versions, self.shape.digest()),
            shared_digest=digest_of(contents),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """Reads many instances with one statement; where one of them makes it fail, the others are read without it (F7)."""

    cursor: Cursor
    parameters: dict[str, Any]
    slow: list[str] = field(default_factory=list)

    def rows(self, statement: sql.Composed, ids: list[str]) -> Iterator[Sequence[Any] | Rejected]:
        """A row for each instance, or why there is none."""
        if not ids:
            return
        # Another cursor holds the savepoint, so that this one's rows are not lost with its release.
        control = self.cursor.connection
        control.execute("SAVEPOINT reading")
        try:
            self.cursor.execute(statement, {**self.parameters, "ids": ids})
        except psycopg.Error as error:
            code = self._of_one_instance(error, ids)
            if code is None:
                raise
            control.execute("ROLLBACK TO SAVEPOINT reading")
            control.execute("RELEASE SAVEPOINT reading")
            if len(ids) == 1:
                yield Rejected(instance=InstanceId(ids[0]), code=code)
                return
            half = len(ids) // 2
            yield from self.rows(statement, ids[:half])
            yield from self.rows(statement, ids[half:])
            return
        control.execute("RELEASE SAVEPOINT reading")
        yield from self.cursor

    def _of_one_instance(self, error: psycopg.Error, ids: list[str]) -> Code | None:
        state = error.sqlstate or ""
        if state == "57014":  # took too long: of many it may be one; three single ones say that it is the database
            self.slow.extend(ids if len(ids) == 1 else ())
            return Code.DATABASE_TIMEOUT if len(self.slow) < SLOW_ENOUGH else None
        if state.startswith("54"):
            return Code.PLAINTEXT_LIMIT_EXCEEDED  # more than the server can put into one value
        return Code.DATABASE_REFUSED if state.startswith(("22", "P0", "XX")) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceFacts:
    """Facts of one instance, with what names it."""

    instance: InstanceId
    epoch: int | None
    policy_key: str | None
    facts: Facts

    def may_go(self, *, held_too: bool) -> bool:
        """Whether nothing protects it; on the explicit path a hold does not (W8), it is bound instead (A9)."""
        decision = decide(self.facts)
        return decision.go or (held_too and self.facts.due and set(decision.blockers) == {"legal_hold"})


def read_some(cursor: Cursor, facts: FactStatements, parameters: dict[str, Any]) -> list[InstanceFacts]:
    """The facts of the instances named in `ids`, as this transaction sees them now."""
    cursor.execute(facts.some(), parameters)
    return [
        InstanceFacts(instance=InstanceId(row[0]), epoch=row[1], policy_key=row[2], facts=facts.read_facts(row[3:]))
        for row in cursor
    ]


def digest_of(parts: Sequence[tuple[str, int, str]], shape: str = "") -> bytes:
    """One digest over tables: name, number of rows, hash. The swap computes the same from what it deletes.

    Args:
        parts: each table's name, number of rows and hash.
        shape: of the tables when they were read. A column that is added with a default leaves every row version as it was,
            and yet an archive from before lacks its values (F19).
    """
    text = "\n".join((*(f"{name} {count} {found if count else EMPTY_HASH}" for name, count, found in parts), shape))
    return hashlib.sha256(text.encode()).digest()


def require_shape(cursor: Cursor, catalog: Catalog, shape: SourceShape) -> None:
    """Refuse to work on a table that was changed since the catalog was checked (F19)."""
    if read_shape(cursor, tables_of(catalog.instances)).digest() != shape.digest():
        raise Refused(
            Code.CATALOG_INVALID,
            "A source table changed its columns during the run; nothing was deleted.",
            remedy="Run `retention catalog check`, then run again.",
        )


def _by_bytes(sizes: dict[str, int]) -> Iterator[list[str]]:
    batch: list[str] = []
    total = 0
    for instance, size in sizes.items():
        if batch and total + size > BATCH_BYTES:
            yield batch
            batch, total = [], 0
        batch.append(instance)
        total += size
    if batch:
        yield batch
