"""Reads how large swept tables are, how many of their rows are dead, and when autovacuum would begin."""

from collections.abc import Sequence

from psycopg import sql

from retention_pipeline.model.table_health import TableHealth
from retention_pipeline.postgres.session import Session, rows

_FLUSH = sql.SQL("SELECT pg_stat_force_next_flush()")
# To measure a table waits for whoever has it locked whole; its pages by the last statistics then stand for it (E5).
_HEALTH = sql.SQL("""
SELECT n.nspname || '.' || c.relname, greatest(s.n_live_tup, c.reltuples::bigint, 0), s.n_dead_tup,
  CASE WHEN EXISTS (SELECT FROM pg_locks AS l WHERE l.relation = c.oid AND l.mode = 'AccessExclusiveLock')
    THEN c.relpages * current_setting('block_size')::bigint ELSE pg_total_relation_size(c.oid) END,
  CASE WHEN current_setting('autovacuum')::boolean AND coalesce(o.said ->> 'autovacuum_enabled', 'true')::boolean
    THEN coalesce((o.said ->> 'autovacuum_vacuum_threshold')::float8, current_setting('autovacuum_vacuum_threshold')::float8)
      + coalesce((o.said ->> 'autovacuum_vacuum_scale_factor')::float8, current_setting('autovacuum_vacuum_scale_factor')::float8)
        * greatest(s.n_live_tup, c.reltuples, 0) END::bigint,
  greatest(s.last_vacuum, s.last_autovacuum)
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace JOIN pg_stat_all_tables AS s ON s.relid = c.oid
CROSS JOIN LATERAL (SELECT coalesce(jsonb_object_agg(split_part(r, '=', 1), split_part(r, '=', 2)), '{}') AS said
  FROM unnest(c.reloptions) AS r) AS o
WHERE n.nspname || '.' || c.relname = ANY(%(tables)s)
ORDER BY 1
""")


def read(session: Session, tables: Sequence[str]) -> tuple[TableHealth, ...]:
    """The health of these tables, this session's own changes included; the server's statistics are estimates."""
    with session.transaction(None, read_only=True) as cursor:
        cursor.execute(_FLUSH)
    with session.transaction(None, read_only=True) as cursor:
        found = rows(cursor, _HEALTH, {"tables": list(tables)})
    return tuple(
        TableHealth(table=table, live=live, dead=dead, bytes=size, threshold=threshold, vacuumed_at=at)
        for table, live, dead, size, threshold, at in found
    )
