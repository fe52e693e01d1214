"""Functions that act as the role that sees all tenants, and the policies that bind it and the product's other roles."""

from dataclasses import dataclass
from typing import Final, LiteralString

from psycopg import sql

from retention_pipeline.postgres import names

COUNTER = sql.Identifier("retention_counter")
WORKER = sql.Identifier("retention_worker")
OPERATOR = sql.Identifier("retention_operator")


@dataclass(frozen=True, slots=True, kw_only=True)
class DefinerFunction:
    """A function of the product's schema that runs as the counter, with a pinned search path.

    Args:
        arguments: names and types, in their order.
        readers: who may call it, and nobody else.
        volatile: whether it locks or changes rows.
        language: `sql`, or `plpgsql` where one step depends on another.
    """

    name: str
    arguments: tuple[tuple[str, str], ...]
    returns: str
    body: sql.Composed
    readers: tuple[sql.Identifier, ...]
    volatile: bool = False
    language: LiteralString = "sql"

    def statements(self) -> list[sql.Composed]:
        """Drop it where it is, make it, and give it to its owner and its readers."""
        types = sql.SQL(", ".join(kind for _, kind in self.arguments))
        bare = sql.SQL("retention.{}({})").format(sql.Identifier(self.name), types)
        arguments = sql.SQL(", ".join(f"{name} {kind}" for name, kind in self.arguments))
        return [
            sql.SQL("DROP FUNCTION IF EXISTS {}").format(bare),
            sql.SQL(
                "CREATE FUNCTION retention.{}({}) RETURNS {} LANGUAGE {} {} SECURITY DEFINER"
                " SET search_path = pg_catalog, pg_temp AS {}"
            ).format(
                sql.Identifier(self.name),
                arguments,
                sql.SQL(self.returns),
                sql.SQL(self.language),
                sql.SQL("VOLATILE" if self.volatile else "STABLE"),
                sql.Literal(self.body.as_string(None)),
            ),
            sql.SQL("ALTER FUNCTION {} OWNER TO {}").format(bare, COUNTER),
            sql.SQL("REVOKE EXECUTE ON FUNCTION {} FROM PUBLIC").format(bare),
            sql.SQL("GRANT EXECUTE ON FUNCTION {} TO {}").format(bare, names.comma(self.readers)),
        ]


PIN: Final = sql.SQL("""
DO $$
DECLARE
  known record;
BEGIN
  FOR known IN
    SELECT f.oid::regprocedure AS signature FROM pg_proc AS f
    WHERE f.pronamespace = 'retention'::regnamespace AND NOT 'search_path=pg_catalog, pg_temp' = ANY(coalesce(f.proconfig, '{{}}'))
      AND f.proowner IN ('retention_owner'::regrole, 'retention_counter'::regrole)
  LOOP
    EXECUTE format('ALTER FUNCTION %s SET search_path = pg_catalog, pg_temp', known.signature);
  END LOOP;
END $$
""")
"""Pins the search path of every function of the product's.

Where a path does not name `pg_temp`, PostgreSQL looks there first for tables and types: a caller's own `jsonb` would run the
caller's code as the role that sees all tenants.
"""


def policy(
    name: str, table: str, rule: LiteralString, role: sql.Identifier, **parts: sql.Composable
) -> list[sql.Composed]:
    """Make a policy anew. Without effect where row-level security is off.

    Args:
        name: the policy's.
        table: with its schema.
        rule: what follows ON the table, with `{role}` and the other parts.
        role: whom it binds.
        parts: what else the rule names.
    """
    on = names.table(table)
    return [
        sql.SQL("DROP POLICY IF EXISTS {} ON {}").format(sql.Identifier(name), on),
        sql.SQL("CREATE POLICY {} ON {} {}").format(sql.Identifier(name), on, sql.SQL(rule).format(role=role, **parts)),
    ]
