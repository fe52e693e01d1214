"""The one place where a statement meets the database: one connection, one tenant, one transaction at a time.

- The tenant is set for the transaction alone; without one the database refuses, it never answers "0 rows" (SPEC L3).
- Every output setting is pinned, so that a value is printed the same way on every server and machine (DESIGN section 5).
- A library's exception ends here, without its cause: it may quote a row, a host or a password (A16).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, LiteralString

import psycopg
from psycopg import sql
from psycopg.rows import TupleRow

from retention_pipeline.errors import Code, Integrity, Refused, RetentionError, Unavailable, UsageFault
from retention_pipeline.model.ids import TenantId

Cursor = psycopg.Cursor[TupleRow]
Statement = sql.SQL | sql.Composed

PINNED = {
    "TimeZone": "UTC",
    "DateStyle": "ISO, YMD",
    "IntervalStyle": "postgres",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "xmloption": "content",
    "lc_monetary": "C",
    "search_path": "pg_catalog",
    "row_security": "on",
    "synchronous_commit": "on",
}
"""Settings that decide how a value is printed, or whether a commit is durable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long a transaction may wait or work before it gives up, in milliseconds."""

    lock: int = 5_000
    statement: int = 60_000
    idle: int = 120_000


@dataclass(slots=True, kw_only=True)
class Session:
    """A lazily opened connection under one role.

    Args:
        url: where and as whom; never shown.
        source_setting: the setting that the source's own row-level security reads, if it has one.
        program: shown in `pg_stat_activity`.
        privileged: whether a superuser, or a role that bypasses row-level security, may use it (migrations alone).
    """

    url: str = field(repr=False)
    source_setting: str | None = None
    program: str = "retention"
    privileged: bool = False
    limits: Limits = Limits()
    _connection: psycopg.Connection[TupleRow] | None = field(default=None, repr=False)

    @contextmanager
    def transaction(
        self, tenant: TenantId | None, *, snapshot: bool = False, read_only: bool = False
    ) -> Iterator[Cursor]:
        """One transaction for one tenant (or for none, where only installation-wide tables are read).

        Args:
            tenant: whose rows; an empty id is an error.
            snapshot: whether every statement sees the same instant (`REPEATABLE READ`).
            read_only: whether the database shall refuse any change.
        """
        if tenant is not None and not tenant:
            raise UsageFault(Code.TENANT_UNKNOWN, "The tenant is empty.", remedy="Name one tenant.")
        with translated():
            connection = self._open()
            with connection.transaction(), connection.cursor() as cursor:
                cursor.execute(_begin(snapshot=snapshot, read_only=read_only))
                cursor.execute(_context(self.source_setting, tenant, self.limits))
                yield cursor

    def principal(self) -> str:
        """The authenticated role: what the database says, never what a caller types (G3)."""
        with self.transaction(None, read_only=True) as cursor:
            cursor.execute(sql.SQL("SELECT session_user"))
            return str(one(cursor)[0])

    def close(self) -> None:
        """Close the connection, if it was ever opened."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _open(self) -> psycopg.Connection[TupleRow]:
        if self._connection is not None and self._connection.closed:
            self._connection = None
        if self._connection is None:
            connection = psycopg.connect(
                self.url, autocommit=True, prepare_threshold=None, connect_timeout=10, application_name=self.program
            )
            try:
                if not self.privileged:
                    _refuse_unsafe_role(connection)
                _refuse_other_encodings(connection)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection


def _begin(*, snapshot: bool, read_only: bool) -> Statement:
    level: LiteralString = "REPEATABLE READ" if snapshot else "READ COMMITTED"
    access: LiteralString = "READ ONLY" if read_only else "READ WRITE"
    return sql.SQL("SET TRANSACTION ISOLATION LEVEL {}, {}").format(sql.SQL(level), sql.SQL(access))


def _context(source_setting: str | None, tenant: TenantId | None, limits: Limits) -> Statement:
    settings = dict(PINNED)
    settings["lock_timeout"] = str(limits.lock)
    settings["statement_timeout"] = str(limits.statement)
    settings["idle_in_transaction_session_timeout"] = str(limits.idle)
    settings["retention.tenant_id"] = tenant or ""
    if source_setting:
        settings[source_setting] = tenant or ""
    calls = [
        sql.SQL("set_config({}, {}, true)").format(sql.Literal(name), sql.Literal(value))
        for name, value in settings.items()
    ]
    return sql.SQL("SELECT {}").format(sql.SQL(", ").join(calls))


def _refuse_other_encodings(connection: psycopg.Connection[TupleRow]) -> None:
    if connection.execute("SHOW server_encoding").fetchone() != ("UTF8",):
        raise Refused(
            Code.ENCODING_UNSUPPORTED,
            "The database's encoding is not UTF8.",
            remedy="Archives are exact only from UTF8; convert the database by dump and restore.",
        )


def _refuse_unsafe_role(connection: psycopg.Connection[TupleRow]) -> None:
    """F11: a role to which row-level security does not apply must not run the pipeline."""
    row = connection.execute(
        "SELECT rolsuper OR rolbypassrls, pg_has_role(session_user, 'retention_owner', 'MEMBER')"
        " FROM pg_roles WHERE rolname = session_user"
        " AND EXISTS (SELECT FROM pg_roles WHERE rolname = 'retention_owner')"
    ).fetchone()
    if row is None:
        raise Refused(
            Code.SCHEMA_OUTDATED,
            "The product's roles don't exist in this database.",
            remedy="Run `retention migrate` with the owner's login.",
        )
    if row[0] or row[1]:
        raise Refused(
            Code.ROLE_UNSAFE,
            "This login is a superuser, bypasses row-level security, or owns the product's tables.",
            remedy="Use a login that is a member of retention_worker or retention_operator alone.",
        )


def one(cursor: Cursor) -> TupleRow:
    """The one row that a statement must give."""
    row = cursor.fetchone()
    if row is None:
        raise Integrity(
            Code.INTERNAL, "A statement that must give a row gave none.", remedy="Report this; nothing was changed."
        )
    return row


def rows(cursor: Cursor, statement: Statement, parameters: dict[str, Any] | None = None) -> Sequence[TupleRow]:
    """Run a statement and give all its rows; for answers that are bounded by their statement."""
    cursor.execute(statement, parameters)
    return cursor.fetchall()


_PRODUCT_STATES = {
    "RT001": Refused(
        Code.HOLD_TOO_LATE,
        "The hold comes too late: the archive's deletion has begun or is done.",
        remedy="See `retention inspect` for what is left; the tombstone stays.",
    ),
    "RT042": Refused(
        Code.INSTANCE_UNKNOWN,
        "This tenant has no such instance, neither here nor archived, in exactly this spelling.",
        remedy="Check the instance's id and the tenant.",
    ),
    "RT002": Refused(
        Code.PERMISSION_DENIED,
        "Permissions exist already; the first administrator is made once.",
        remedy="Ask someone with workflow_retention:grant.",
    ),
    "RT003": Integrity(
        Code.SOURCE_CHANGED,
        "The database refused a deletion without a verified archive.",
        remedy="Nothing was deleted; run the preflight again.",
    ),
    "RT010": Refused(
        Code.APPROVAL_INVALID,
        "The database found no approval for this change: none was taken by this run, or it does not last or reach any more.",
        remedy="Make a new one: `retention approve`, or `--apply` at the command line.",
    ),
    "RT040": Refused(
        Code.ARCHIVE_HELD,
        "A legal hold keeps the archive.",
        remedy="It may go when the last matter is released: `retention hold ID --list`.",
    ),
    "RT041": Refused(
        Code.ARCHIVE_PERIOD,
        "The archive's captured period is not over, or never changes again.",
        remedy="Report this: no run should ask for it. The archive stays.",
    ),
    "RT051": Refused(
        Code.KEY_DESTROYED,
        "The tenant's keys are destroyed, or being destroyed: nothing is sealed under them.",
        remedy="Finish with `retention keys destroy`; `retention keys rotate tenant` then makes a key for new archives.",
    ),
    "RT052": Refused(
        Code.KEY_HELD,
        "A legal hold of this tenant stands, so its keys are not destroyed.",
        remedy="They may go when the last matter of the tenant is released.",
    ),
    "RT053": Refused(
        Code.KEY_IN_USE,
        "Archives of this tenant are in flight, so its keys are not destroyed.",
        remedy="Let a run finish them, and switch the tenant's schedules off first.",
    ),
    "RT054": Refused(
        Code.KEY_ARCHIVES_KEPT,
        "Archives of this tenant are within their own period, so its keys are not destroyed.",
        remedy="Wait until it is over, or say --archives-too: they can never be read again.",
    ),
    "RT055": Refused(
        Code.KEY_COPIES_LEFT,
        "Copies of the keys are left beside the archives.",
        remedy="Run it again when the store answers; where there is no store any more, say --without-store.",
    ),
    "RT060": Refused(
        Code.OBJECT_SEEN_LATELY,
        "The object was first seen unknown less than a day ago.",
        remedy="Ask again tomorrow; nothing was removed.",
    ),
    "RT061": Refused(
        Code.OBJECT_NAMED,
        "A record names the object by now, so it stays.",
        remedy="Nothing was removed; the next scrub counts it no more.",
    ),
    **dict.fromkeys(
        ("RT020", "RT021"),
        Unavailable(
            Code.AUDIT_SEAL_REFUSED,
            "The database refused a block that does not follow its chain, or whose events no longer wait.",
            remedy="Run it again; if it repeats, run `retention audit verify`.",
        ),
    ),
}
"""Refusals that our own triggers raise."""


@contextmanager
def translated() -> Iterator[None]:
    """Turn the driver's exceptions into ours, by SQLSTATE, keeping none of their text."""
    try:
        yield
    except psycopg.Error as error:
        raise translate(error) from None


def translate(error: psycopg.Error) -> RetentionError:
    """The named failure that a driver's exception stands for."""
    state = error.sqlstate or ""
    if state in _PRODUCT_STATES:
        known = _PRODUCT_STATES[state]
        return type(known)(known.code, known.message, remedy=known.remedy)
    if state in {"57014", "55P03", "40P01", "40001", "25P03"}:
        return Unavailable(
            Code.DATABASE_TIMEOUT,
            f"The database gave up waiting or working (SQLSTATE {state}).",
            remedy="Nothing of this transaction stays; try again, or look for long transactions.",
        )
    if state in {"28P01", "28000"} or (not state and _login_was_refused(error)):
        return Refused(
            Code.DATABASE_REFUSED, "The database refused the login.", remedy="Check the login's URL and password."
        )
    if state == "42501":
        return Refused(
            Code.PERMISSION_DENIED,
            "The database refused: this login lacks the privilege or the permission.",
            remedy="Ask someone with workflow_retention:grant, or check that `retention migrate` was run.",
        )
    if state in {"3F000", "42P01", "42703", "42883"}:
        return Refused(
            Code.SCHEMA_OUTDATED,
            f"A table, column or function is not there (SQLSTATE {state}).",
            remedy="Run `retention migrate`, then `retention catalog check`.",
        )
    if not state or state.startswith(("08", "53", "57P")):
        return Unavailable(
            Code.DATABASE_UNAVAILABLE,
            f"The database did not answer{f' (SQLSTATE {state})' if state else ''}.",
            remedy="Check that it runs and that its URL is right; nothing was changed by a transaction that did not commit.",
        )
    if state.startswith(("22", "23")):
        return Refused(
            Code.DATABASE_REFUSED,
            f"The database refused a value (SQLSTATE {state}).",
            remedy="Check the ids and values of the call.",
        )
    return RetentionError(
        Code.INTERNAL, f"The database raised SQLSTATE {state}.", remedy="Report this; the transaction was rolled back."
    )


def _login_was_refused(error: psycopg.Error) -> bool:
    """Whether a server asked for the password and then refused; for a failed login the library keeps no SQLSTATE."""
    connection = error.pgconn
    if connection is None or not connection.used_password:
        return False
    return not any(words in connection.error_message for words in (b"connection slots", b"too many connections"))
