"""Statements over pg_catalog, each of which asks once for all tables of a dataset. Parameter: `tables`, their names."""

from psycopg import sql

_NAMED = """
named AS (
  SELECT c.oid, c.relname, c.relkind, c.relispartition, c.relrowsecurity, c.relforcerowsecurity,
         n.nspname || '.' || c.relname AS name
  FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
  WHERE n.nspname || '.' || c.relname = ANY(%(tables)s) AND c.relkind IN ('r', 'p', 'v', 'm', 'f'))
"""

TABLES = sql.SQL(f"""
WITH {_NAMED}, worker AS (SELECT oid FROM pg_roles WHERE rolname = 'retention_worker')
SELECT t.name,
  CASE WHEN t.relispartition THEN 'PARTITION'
    WHEN t.relkind = 'r' THEN 'ORDINARY' WHEN t.relkind = 'p' THEN 'PARTITIONED'
    WHEN t.relkind IN ('v', 'm') THEN 'VIEW' ELSE 'OTHER' END,
  t.relrowsecurity, t.relforcerowsecurity,
  ARRAY(SELECT i.inhrelid::regclass::text FROM pg_inherits AS i JOIN pg_class AS h ON h.oid = i.inhrelid
    WHERE i.inhparent = t.oid AND NOT h.relispartition ORDER BY 1),
  ARRAY(SELECT p.polname::text FROM pg_policy AS p
    WHERE p.polrelid = t.oid AND p.polname LIKE 'retention\\_worker\\_%%' AND NOT p.polpermissive ORDER BY 1),
  ARRAY(SELECT v.name FROM worker AS w, unnest(ARRAY['SELECT', 'INSERT', 'DELETE', 'UPDATE']) AS v (name)
    WHERE CASE v.name WHEN 'UPDATE' THEN has_any_column_privilege(w.oid, t.oid, v.name)
      ELSE has_table_privilege(w.oid, t.oid, v.name) END),
  EXISTS (SELECT FROM pg_trigger AS g JOIN pg_proc AS f ON f.oid = g.tgfoid
    JOIN pg_namespace AS n ON n.oid = f.pronamespace
    WHERE g.tgrelid = t.oid AND g.tgname = 'retention_guard' AND g.tgenabled IN ('O', 'A')
      AND n.nspname = 'retention' AND f.proname = 'guard_archived')
FROM named AS t
""")

# A NOT NULL constraint that was added as NOT VALID (PostgreSQL 18) says nothing of the rows that were there.
COLUMNS = sql.SQL(f"""
WITH RECURSIVE {_NAMED}, found AS (
  SELECT t.name AS tab, a.* FROM named AS t JOIN pg_attribute AS a ON a.attrelid = t.oid
  WHERE a.attnum > 0 AND NOT a.attisdropped),
tower (type, below, not_null) AS (
  SELECT DISTINCT f.atttypid, f.atttypid, false FROM found AS f
  UNION ALL
  SELECT w.type, t.typbasetype, w.not_null OR t.typnotnull FROM tower AS w JOIN pg_type AS t ON t.oid = w.below
  WHERE t.typtype = 'd')
SELECT f.tab, f.attname, format_type(f.atttypid, f.atttypmod), format_type(w.below, NULL),
  w.not_null OR (f.attnotnull AND NOT EXISTS (SELECT FROM pg_constraint AS c
    WHERE c.conrelid = f.attrelid AND c.contype = 'n' AND c.conkey = ARRAY[f.attnum] AND NOT c.convalidated)),
  f.attgenerated <> '', f.attidentity <> '',
  ARRAY(SELECT e.enumlabel FROM pg_enum AS e WHERE e.enumtypid = w.below ORDER BY e.enumsortorder),
  ARRAY(SELECT m.attname::text FROM pg_attrdef AS d
    JOIN pg_depend AS p ON p.classid = 'pg_attrdef'::regclass AND p.objid = d.oid AND p.refclassid = 'pg_class'::regclass
      AND p.refobjid = f.attrelid AND p.refobjsubid NOT IN (0, f.attnum)
    JOIN pg_attribute AS m ON m.attrelid = f.attrelid AND m.attnum = p.refobjsubid
    WHERE d.adrelid = f.attrelid AND d.adnum = f.attnum AND f.attgenerated <> '' ORDER BY m.attnum)
FROM found AS f JOIN tower AS w ON w.type = f.atttypid JOIN pg_type AS b ON b.oid = w.below AND b.typtype <> 'd'
ORDER BY f.tab, f.attnum
""")

INDEXES = sql.SQL(f"""
WITH {_NAMED}
SELECT t.name, c.relname,
  ARRAY(SELECT a.attname::text FROM unnest(i.indkey::smallint[]) WITH ORDINALITY AS k (num, place)
    LEFT JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = k.num AND k.num > 0
    WHERE k.place <= i.indnkeyatts ORDER BY k.place),
  i.indisunique AND NOT i.indisexclusion AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL,
  i.indisprimary,
  i.indisvalid AND i.indisready AND i.indpred IS NULL AND m.amname IN ('btree', 'hash'),
  NOT i.indnullsnotdistinct
FROM named AS t JOIN pg_index AS i ON i.indrelid = t.oid JOIN pg_class AS c ON c.oid = i.indexrelid
JOIN pg_am AS m ON m.oid = c.relam
WHERE i.indislive
ORDER BY t.name, c.relname
""")

# A policy may name the product's role, or a login that is a member of it.
POLICIES = sql.SQL(f"""
WITH {_NAMED}, members AS (
  SELECT r.rolname, m.oid FROM pg_roles AS r
  JOIN pg_roles AS m ON m.oid = r.oid OR (NOT m.rolsuper AND pg_has_role(m.oid, r.oid, 'USAGE'))
  WHERE r.rolname IN ('retention_worker', 'retention_operator'))
SELECT t.name,
  CASE p.polcmd WHEN 'r' THEN 'SELECT' WHEN 'a' THEN 'INSERT' WHEN 'w' THEN 'UPDATE' WHEN 'd' THEN 'DELETE'
    ELSE 'ALL' END,
  ARRAY(SELECT DISTINCT m.rolname::text FROM members AS m, unnest(p.polroles) AS r (oid)
    WHERE r.oid = 0 OR pg_has_role(m.oid, r.oid, 'USAGE'))
FROM named AS t JOIN pg_policy AS p ON p.polrelid = t.oid
WHERE p.polpermissive
ORDER BY t.name, p.polname
""")

# Partitions inherit their table's foreign keys as constraints with a parent: those are told once, by the table's own.
# The column conenforced came with PostgreSQL 18.
FOREIGN_KEYS = sql.SQL(f"""
WITH RECURSIVE {_NAMED}, family (top, name, member) AS (
  SELECT t.oid, t.name, t.oid FROM named AS t
  UNION
  SELECT f.top, f.name, i.inhrelid FROM family AS f JOIN pg_inherits AS i ON i.inhparent = f.member)
SELECT c.conname, n.nspname || '.' || r.relname, coalesce(own.name, n.nspname || '.' || r.relname),
  ARRAY(SELECT ARRAY[a.attname::text, b.attname::text]
    FROM unnest(c.conkey, c.confkey) WITH ORDINALITY AS k (own, theirs, place)
    JOIN pg_attribute AS a ON a.attrelid = c.conrelid AND a.attnum = k.own
    JOIN pg_attribute AS b ON b.attrelid = c.confrelid AND b.attnum = k.theirs ORDER BY k.place),
  p.name,
  CASE c.confdeltype WHEN 'r' THEN 'RESTRICT' WHEN 'c' THEN 'CASCADE' WHEN 'n' THEN 'SET NULL'
    WHEN 'd' THEN 'SET DEFAULT' ELSE 'NO ACTION' END,
  p.top = c.confrelid AND own.top IS NOT DISTINCT FROM c.conrelid
    AND coalesce((to_jsonb(c) ->> 'conenforced')::boolean, true)
    AND NOT EXISTS (SELECT FROM pg_trigger AS g WHERE g.tgconstraint = c.oid AND g.tgenabled NOT IN ('O', 'A')),
  c.confmatchtype = 'f', c.condeferrable AND c.condeferred
FROM pg_constraint AS c JOIN family AS p ON p.member = c.confrelid
JOIN pg_class AS r ON r.oid = c.conrelid JOIN pg_namespace AS n ON n.oid = r.relnamespace
LEFT JOIN family AS own ON own.member = c.conrelid
WHERE c.contype = 'f' AND c.conparentid = 0
ORDER BY 2, 1, p.name
""")

FUNCTIONS = sql.SQL("""
SELECT f.proname, d.description FROM pg_proc AS f JOIN pg_namespace AS n ON n.oid = f.pronamespace
LEFT JOIN pg_description AS d ON d.objoid = f.oid AND d.classoid = 'pg_proc'::regclass AND d.objsubid = 0
WHERE n.nspname = 'retention'
""")

TRIGGERS = sql.SQL(f"""
WITH {_NAMED}
SELECT t.name, g.tgname::text FROM named AS t JOIN pg_trigger AS g ON g.tgrelid = t.oid JOIN pg_proc AS f ON f.oid = g.tgfoid
JOIN pg_namespace AS n ON n.oid = f.pronamespace
WHERE n.nspname = 'retention' AND g.tgenabled IN ('O', 'A')
""")
