"""Rules of the check: is row-level security strong and not blinding, and is what this catalog installs in place?"""

from collections.abc import Iterator

from retention_pipeline.catalog import requirements as req
from retention_pipeline.catalog.comparison import Comparison
from retention_pipeline.catalog.consistency import tables
from retention_pipeline.catalog.document import EntryPath
from retention_pipeline.catalog.fault import Fault, FaultCode
from retention_pipeline.catalog.schema import TableFacts
from retention_pipeline.catalog.sweep_needs import TENANT_POLICY

WORKER = "retention_worker"
OPERATOR = "retention_operator"
MIGRATE = "Run `retention migrate` with the owner's login."


def row_security_is_strong(seen: Comparison) -> Iterator[Fault]:
    """Row-level security is enabled and forced on each table: a second wall, behind the statements' own conditions."""
    for path, table, _ in tables(seen.dataset):
        yield from req.walled(seen, (*path, "table"), table)


def row_security_blinds_nobody(seen: Comparison) -> Iterator[Fault]:
    """Where it is enabled, a policy of the platform's lets our roles see rows; else they see none, and call it done."""
    if seen.facts.installed is None:
        return  # without our roles, no policy can name them
    for path, table, _ in tables(seen.dataset):
        yield from req.sighted(seen, (*path, "table"), table, _needed(path))


def _needed(path: EntryPath) -> Iterator[tuple[str, str]]:
    if path == ("stores",):
        return  # neither reads them: the functions that do have policies of their own
    yield WORKER, "SELECT"
    yield OPERATOR, "SELECT"
    if path[0] in {"root", "evidence"}:
        yield WORKER, "DELETE"
    if path[0] == "root":
        yield WORKER, "UPDATE"  # a row lock needs it; our own policy lets nothing be updated


def catalog_is_installed(seen: Comparison) -> Iterator[Fault]:
    """What `retention migrate` makes from this very catalog over these very tables is there."""
    code, facts = FaultCode.CATALOG_NOT_INSTALLED, seen.facts
    if facts.installed is None:
        yield seen.error(code, (), "The product's functions over these tables are not installed.", MIGRATE)
        return
    if facts.expected is not None and facts.installed != facts.expected:
        sentence = "What is installed was made from another catalog, or before a table changed."
        yield seen.error(code, (), sentence, MIGRATE)
    if facts.missing_functions:
        sentence = f"Functions are missing: {', '.join(facts.missing_functions)}."
        yield seen.error(code, (), sentence, MIGRATE)
    for path, table, _ in tables(seen.dataset):
        found = facts.tables.get(table)
        lacking = list(_lacking(seen, path, found)) if found else []
        if lacking:
            sentence = f"{table} lacks {', '.join(lacking)}: it was made or changed after the installation."
            yield seen.error(code, (*path, "table"), sentence, MIGRATE)


def _lacking(seen: Comparison, path: EntryPath, found: TableFacts) -> Iterator[str]:
    if path == ("stores",):
        return
    needed = {"SELECT", "INSERT", "DELETE"} if path[0] in {"root", "evidence"} else {"SELECT"}
    missing = needed - found.worker_privileges
    if missing:
        yield f"the worker's {' and '.join(sorted(missing))}"
    if TENANT_POLICY not in found.worker_policies:
        yield "the worker's policy"
    if _wants_guard(seen, path) and not found.guarded:
        yield "an enabled guard"


def _wants_guard(seen: Comparison, path: EntryPath) -> bool:
    if path == ("root",):
        return seen.dataset.root.guard
    return path[0] == "evidence" and seen.dataset.evidence[int(path[1])].guard
