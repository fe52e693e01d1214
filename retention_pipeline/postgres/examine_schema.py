"""Is the product's own schema as the migrations made it: version, forced policies, triggers, functions (SPEC O3)?"""

from collections.abc import Iterator
from typing import Final

from psycopg import sql

from retention_pipeline.model.diagnosis import Ailment, Diagnosis, error
from retention_pipeline.postgres.migrate import LATEST
from retention_pipeline.postgres.session import Cursor, one, rows

_MIGRATE: Final = "Run `retention migrate` with the owner's login."

_HAS_VERSION = sql.SQL("SELECT to_regclass('retention.schema_version') IS NOT NULL")
_VERSION = sql.SQL("SELECT version_num FROM retention.schema_version")
_UNFORCED = sql.SQL("""
SELECT relname FROM pg_class WHERE relnamespace = to_regnamespace('retention') AND relkind IN ('r', 'p')
  AND relname <> 'schema_version' AND NOT (relrowsecurity AND relforcerowsecurity) ORDER BY 1
""")
_TRIGGERS = sql.SQL("""
SELECT c.relname, g.tgname, g.tgenabled IN ('O', 'A') FROM pg_trigger AS g JOIN pg_class AS c ON c.oid = g.tgrelid
WHERE c.relnamespace = to_regnamespace('retention') AND NOT g.tgisinternal ORDER BY 1, 2
""")
_FUNCTIONS = sql.SQL("""
SELECT DISTINCT f.proname FROM pg_proc AS f WHERE f.pronamespace = to_regnamespace('retention')
  AND (f.proconfig IS NULL OR NOT 'search_path=pg_catalog, pg_temp' = ANY(f.proconfig)
    OR (f.prosecdef AND f.proowner IS DISTINCT FROM to_regrole('retention_counter')::oid)) ORDER BY 1
""")

_ACTS: Final = (
    "acknowledgements approvals expiry_acknowledgements grant_events hold_events profiles secret_revocations secrets"
    " setting_events"
)
_EVENTS: Final = (
    f"{_ACTS} approval_uses audit_anchors audit_events audit_seals canary_events hold_bindings horizon_observations key_destructions"
    " policy_observations preflights readiness_events receipts restorations root_rotations run_outcomes scrub_runs"
    " sweep_receipts"
)
SAFEGUARDS: Final = {
    "accept_what_is_there": "expiry_acknowledgements",
    "actor": f"{_ACTS} audit_events",
    "append_only": _EVENTS,
    "approved": "attempts receipts restorations sweep_receipts",
    "audit": _ACTS,
    "bind_late_hold": "hold_events",
    "destroyed_keys": "hold_events",
    "follow_generations": "profiles secrets",
    "goes_forward": "attempts",
    "good_approval": "approval_uses",
    "guard_archive_life": "attempts",
    "guard_key": "tenant_keys",
    "guard_unknown_object": "unknown_objects",
    "never_changed": "audit_unsealed",
    "never_truncated": f"{_EVENTS} audit_unsealed",
    "note_unsealed": "audit_events",
    "place_hold": "hold_events",
    "remind_of_locks": "attempts hold_events",
    "stamp": _ACTS,
    "standing_keys": "attempts",
    "take_sealed": "audit_seals",
}
"""Which trigger guards which tables."""


def version(cursor: Cursor) -> Iterator[Diagnosis]:
    """Whether the schema is of this program's version."""
    cursor.execute(_HAS_VERSION)
    found = rows(cursor, _VERSION) if one(cursor)[0] else []
    if not found:
        yield error(Ailment.SCHEMA_VERSION, "The product's schema is not installed.", _MIGRATE)
    elif found[0][0] != LATEST:
        sentence = f"The product's schema is of version {found[0][0]}; this program needs {LATEST}."
        yield error(Ailment.SCHEMA_VERSION, sentence, f"{_MIGRATE[:-1]}, or use the program of that version.")


def tables(cursor: Cursor) -> Iterator[Diagnosis]:
    """Whether row-level security is on, and forced, for each table of ours."""
    names = [row[0] for row in rows(cursor, _UNFORCED)]
    if names:
        sentence = f"Row-level security is off or not forced on {', '.join(names)}: one tenant's rows show to another."
        remedy = "ALTER TABLE ... ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY; then find out who changed it."
        yield error(Ailment.TABLE_UNFORCED, sentence, remedy)


def triggers(cursor: Cursor) -> Iterator[Diagnosis]:
    """Whether each trigger that keeps a record is there and enabled."""
    found = {(table, name): enabled for table, name, enabled in rows(cursor, _TRIGGERS)}
    expected = {(table, name) for name, tables in SAFEGUARDS.items() for table in tables.split()}
    off = sorted({place for place, enabled in found.items() if not enabled} | (expected - found.keys()))
    if off:
        names = ", ".join(f"{name} on {table}" for table, name in off)
        sentence = f"Triggers that guard the record are missing or disabled: {names}."
        remedy = "ALTER TABLE ... ENABLE TRIGGER; then find out since when, and run `retention audit verify`."
        yield error(Ailment.TRIGGER_MISSING, sentence, remedy)


def functions(cursor: Cursor) -> Iterator[Diagnosis]:
    """Whether each function has a pinned search path, and each that sees all tenants its own owner."""
    names = [row[0] for row in rows(cursor, _FUNCTIONS)]
    if names:
        sentence = f"Functions have no pinned search_path, or another owner than retention_counter: {', '.join(names)}."
        yield error(Ailment.FUNCTION_UNSAFE, sentence, f"{_MIGRATE[:-1]}; ALTER FUNCTION what is left.")
