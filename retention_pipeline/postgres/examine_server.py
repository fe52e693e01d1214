"""Does the database server keep what it acknowledged, and which time does it have (SPEC O3)?"""

from collections.abc import Iterator
from datetime import datetime
from typing import Final

from psycopg import sql

from retention_pipeline.model.diagnosis import Ailment, Diagnosis, error, warning
from retention_pipeline.postgres.session import Cursor, Session, one, rows

OLDEST: Final = 150000
"""The oldest PostgreSQL that is tried."""

# Our own transactions pin some of these: what they are reset to is what everybody else has.
_SETTINGS = sql.SQL("""
SELECT name, reset_val FROM pg_settings
WHERE name IN ('server_version_num', 'fsync', 'full_page_writes', 'synchronous_commit')
""")
_NOW = sql.SQL("SELECT clock_timestamp()")
_HISTORY = sql.SQL("""
SELECT EXISTS (SELECT FROM pg_class AS c WHERE c.relname = 'runs' AND c.relkind = 'r' AND pg_table_is_visible(c.oid))
""")
_VISIBLE = sql.SQL("SET LOCAL search_path = public")


def settings(cursor: Cursor) -> Iterator[Diagnosis]:
    """Settings under which an acknowledged commit may be lost."""
    found: dict[str, str] = dict(rows(cursor, _SETTINGS))
    if int(found["server_version_num"]) < OLDEST:
        yield error(Ailment.SERVER_OLD, "PostgreSQL is older than 15.", "Upgrade the server.")
    off = [name for name in ("fsync", "full_page_writes") if found[name] == "off"]
    if off:
        sentence = f"{' and '.join(off)} off: a crash of the server may lose records of archives whose source is gone."
        yield error(Ailment.SERVER_NOT_DURABLE, sentence, "Set them on; then reload the server.")
    if found["synchronous_commit"] == "off":
        sentence = (
            "synchronous_commit is off: the product's own commits are safe, the platform's may be lost in a crash."
        )
        remedy = "Set it on for whoever writes terminal epochs; nothing, where that is accepted."
        yield warning(Ailment.SERVER_ASYNCHRONOUS, sentence, remedy)


def now(cursor: Cursor) -> datetime:
    """The database's clock."""
    cursor.execute(_NOW)
    found: datetime = one(cursor)[0]
    return found


def has_history(url: str) -> bool:
    """Whether Dagster's tables are in its database; raises where that does not answer.

    Args:
        url: of Dagster's own database, whoever its login is.
    """
    session = Session(url=url, program="retention doctor", privileged=True)
    try:
        with session.transaction(None, read_only=True) as cursor:
            cursor.execute(_VISIBLE)
            cursor.execute(_HISTORY)
            return bool(one(cursor)[0])
    finally:
        session.close()
