"""Puts an archived instance back, in one transaction that commits only what reads back identical (SPEC A17)."""

from dataclasses import dataclass
from typing import Any

import orjson
import psycopg
from psycopg import sql

from retention_pipeline.catalog.loader import Catalog
from retention_pipeline.catalog.model import Evidence
from retention_pipeline.errors import Code, Integrity, Refused
from retention_pipeline.model.archive import ColumnShape, TableRows
from retention_pipeline.model.ids import AttemptId, TenantId
from retention_pipeline.model.people import Approval
from retention_pipeline.postgres import archive_lives, names, oversight
from retention_pipeline.postgres.content import EPHEMERAL_MARKER, ContentStatements, Place, places
from retention_pipeline.postgres.obstacles import Obstacles, own_tables
from retention_pipeline.postgres.session import Cursor, Session, one, rows
from retention_pipeline.postgres.shape import SourceShape, read_shape, tables_of
from retention_pipeline.stages.manifest import ReadManifest
from retention_pipeline.stages.restoration import Obstacle, Restored

GRACE_DAYS = 30
MARKABLE = frozenset({"text", "character varying", "json", "jsonb"})
"""Types of mirrored columns that hold the marker of an ephemeral payload."""

_RESTORED = sql.SQL("""
INSERT INTO retention.restorations (tenant_id, instance_id, attempt_id, approval_id, grace_until)
VALUES (%(tenant)s, %(instance)s, %(attempt)s::uuid, %(approval)s::uuid, clock_timestamp() + make_interval(hours => 24 * %(days)s))
""")
_CANARY = sql.SQL("""
INSERT INTO retention.canary_events (tenant_id, attempt_id, profile_generation, identical)
SELECT a.tenant_id, a.id, a.profile_generation, true FROM retention.attempts AS a
WHERE a.id = %(attempt)s::uuid AND a.tenant_id = %(tenant)s
""")
_WAS_RESTORED = sql.SQL(
    "SELECT EXISTS (SELECT FROM retention.restorations WHERE tenant_id = %(tenant)s AND attempt_id = %(attempt)s::uuid)"
)
_IS_ENDING = sql.SQL("""
SELECT coalesce(bool_or(expiring_at IS NOT NULL OR object_deleted_at IS NOT NULL), false) FROM retention.attempts
WHERE tenant_id = %(tenant)s AND id = %(attempt)s::uuid
""")


@dataclass(slots=True, kw_only=True)
class PostgresRestorer:
    """Restores through the worker's session."""

    session: Session
    catalog: Catalog

    def obstacles(self, tenant: TenantId, manifest: ReadManifest) -> tuple[Obstacle, ...]:
        """Everything that stands in the way, without changing anything."""
        with self.session.transaction(tenant, snapshot=True, read_only=True) as cursor:
            shape = read_shape(cursor, tables_of(self.catalog.instances))
            return tuple(Obstacles(dataset=self.catalog.instances, shape=shape).find(cursor, tenant, manifest))

    def restore(
        self, tenant: TenantId, archive: AttemptId, manifest: ReadManifest, *, approval: Approval, run: str
    ) -> Restored:
        """Insert all rows, read them again, compare, and commit only what is identical."""
        with self.session.transaction(tenant) as cursor:
            _require_living(cursor, tenant, archive)
            shape = read_shape(cursor, tables_of(self.catalog.instances))
            parameters = {
                "tenant": tenant,
                "attempt": archive,
                "instance": manifest.instance,
                "approval": approval.id,
                "days": GRACE_DAYS,
            }
            cursor.execute(sql.SQL("SELECT set_config('retention.restoring', %(instance)s, true)"), parameters)
            for place, table in own_tables(self.catalog.instances, manifest):
                self._insert(cursor, place, table, shape)
            self._compare(cursor, tenant, manifest, shape)
            cursor.execute(_RESTORED, parameters)
            cursor.execute(_CANARY, parameters)
            counts = {table.name: len(table.rows) for _, table in own_tables(self.catalog.instances, manifest)}
            oversight.audit(
                cursor,
                tenant,
                actor=approval.actor,
                kind="instance.restored",
                outcome="done",
                run=run,
                subjects=[(manifest.instance, None)],
                details={"archive": archive, "approval": approval.id, "rows": counts},
            )
        return Restored(
            archive=archive, instance=manifest.instance, rows_by_table=counts, identical=True, already=False
        )

    def is_back(self, tenant: TenantId, archive: AttemptId, manifest: ReadManifest) -> bool:
        """Whether this archive was restored before and the instance still is what it was archived as."""
        with self.session.transaction(tenant, snapshot=True, read_only=True) as cursor:
            cursor.execute(_WAS_RESTORED, {"tenant": tenant, "attempt": archive})
            if not one(cursor)[0]:
                return False
            shape = read_shape(cursor, tables_of(self.catalog.instances))
            try:
                self._compare(cursor, tenant, manifest, shape)
            except Integrity:
                return False
            return True

    def _insert(self, cursor: Cursor, place: Place, table: TableRows, shape: SourceShape) -> None:
        if not table.rows:
            return
        now = {column.name: column for column in shape.columns(place.table)}
        kept = [(n, c) for n, c in enumerate(table.columns) if not now[c.name].generated]
        emptied = _hold_no_marker(place, shape)
        statement = sql.SQL(
            "INSERT INTO {table} ({columns}) OVERRIDING SYSTEM VALUE"
            " SELECT {values} FROM json_array_elements(%(rows)s::text::json) AS e"
        ).format(
            table=names.table(place.table),
            columns=names.comma(sql.Identifier(c.name) for _, c in kept),
            values=names.comma(_read_back(n, c, emptied=c.name in emptied) for n, c in kept),
        )
        try:
            cursor.execute(statement, {"rows": orjson.dumps(table.rows).decode()})
        except psycopg.errors.InsufficientPrivilege:
            raise  # not a matter of the rows
        except (psycopg.IntegrityError, psycopg.DataError, psycopg.ProgrammingError) as error:
            raise Refused(
                Code.RESTORE_CONFLICT,
                f"{place.table}: the database refused the rows (SQLSTATE {error.sqlstate}).",
                remedy="What they refer to is gone, a row with their key is there, or a rule has changed; restore to a file.",
            ) from None

    def _compare(self, cursor: Cursor, tenant: TenantId, manifest: ReadManifest, shape: SourceShape) -> None:
        """Read the instance again, in the archive's own form: each table's rows must be the archived ones."""
        content = ContentStatements(dataset=self.catalog.instances, shape=shape)
        found = rows(cursor, content.rows(), {"tenant": tenant, "ids": [manifest.instance]})
        texts: dict[str, Any] = dict(
            zip([p.name for p in places(self.catalog.instances)], found[0][1:] if found else [], strict=False)
        )
        for place, table in own_tables(self.catalog.instances, manifest):
            now = orjson.loads(texts[place.name])[3] if place.name in texts else None
            positions = {column.name: n for n, column in enumerate(shape.columns(place.table))}
            emptied = [column.name in _hold_no_marker(place, shape) for column in table.columns]
            same = (
                now is not None
                and len(now) == len(table.rows)
                and all(
                    row[positions[column.name]] == kept or (kept == EPHEMERAL_MARKER and empty)
                    for row, archived in zip(now, table.rows, strict=True)
                    for column, kept, empty in zip(table.columns, archived, emptied, strict=True)
                )
            )
            if not same:
                raise Integrity(
                    Code.RESTORE_CONFLICT,
                    f"{place.table}: what was written does not read back as it was archived; nothing was restored.",
                    remedy="Restore to a file, and compare; a trigger of the platform may change rows.",
                )


def _require_living(cursor: Cursor, tenant: TenantId, archive: AttemptId) -> None:
    """The archive does not end before this transaction does; where its end has begun, nothing is restored (F20)."""
    archive_lives.share(cursor, tenant, archive)
    cursor.execute(_IS_ENDING, {"tenant": tenant, "attempt": archive})
    if one(cursor)[0]:
        raise Refused(
            Code.ARCHIVE_UNKNOWN,
            "This archive's own period is over, and its deletion has begun.",
            remedy="`retention inspect` lists what is left.",
        )


def _hold_no_marker(place: Place, shape: SourceShape) -> frozenset[str]:
    """The mirrors of an ephemeral payload whose type or rule has no room for the marker that stands in their place (A1).

    A generated one is made again from the payload's marker, any other becomes NULL.
    """
    ephemeral = place.related.ephemeral if isinstance(place.related, Evidence) else None
    mirrors = ephemeral.mirrors if ephemeral else ()
    return frozenset(
        c.name for c in shape.columns(place.table) if c.name in mirrors and (c.generated or c.type not in MARKABLE)
    )


def _read_back(position: int, column: ColumnShape, *, emptied: bool) -> sql.Composed:
    """A value's text as its type again; a text that means "no table" is one that the cast alone would not know."""
    text = sql.SQL("(e ->> {})").format(sql.Literal(position))
    if emptied:
        text = sql.SQL("nullif({}, {})").format(text, sql.Literal(EPHEMERAL_MARKER))
    value = sql.SQL("{}::{}").format(text, sql.SQL(column.type))
    if column.type == "regclass":
        return sql.SQL("CASE {} WHEN '-' THEN 0::oid::regclass ELSE {} END").format(text, value)
    return value
