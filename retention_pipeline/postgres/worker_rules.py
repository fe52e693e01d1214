"""What the worker's login may do to a source row by itself: nothing, unless its instance is proven archived or being restored.

The steps ask for an approval, and so does the database (SPEC G4): a row goes only while its instance has an archive that was
read back and proven, and comes only while an approved restore of its instance is under way. An instance's own row goes only
in a transaction that leaves its receipt.
"""

from typing import Final, LiteralString

from psycopg import sql

from retention_pipeline.catalog.loader import Catalog
from retention_pipeline.catalog.model import InstanceDataset, Related
from retention_pipeline.postgres import names, sweep_rules
from retention_pipeline.postgres.definer import WORKER, policy

_PROVEN: Final = (
    "{}::text IN (SELECT a.instance_id FROM retention.attempts AS a WHERE a.tenant_id = (SELECT retention.current_tenant())"
    " AND a.state = 'verified' AND a.verified_at > clock_timestamp() - interval '1 hour')"
)
_RESTORING: Final = "retention.restoring({}::text)"

RECEIPT_TRIGGER: Final = "retention_receipt"
"""The one constraint that a deletion puts off to its commit."""


def policies(catalog: Catalog) -> list[sql.Composed]:
    """Restrictive policies for the worker on the root and all evidence; without effect where row-level security is off.

    A row of evidence may also go as history, by a rule that names exactly this row (W4).
    """
    dataset = catalog.instances
    root = dataset.root
    histories = sweep_rules.histories(catalog)
    rules = [(root.table, _of_root(dataset, _PROVEN), _of_root(dataset, _RESTORING))]
    rules += [
        (e.table, _of_evidence(dataset, e, _PROVEN), _of_evidence(dataset, e, _RESTORING)) for e in dataset.evidence
    ]
    made = []
    for table, proven, restoring in rules:
        going, coming = (
            "AS RESTRICTIVE FOR DELETE TO {role} USING ({said})",
            "AS RESTRICTIVE FOR INSERT TO {role} WITH CHECK ({said})",
        )
        said = sql.SQL(" OR ").join(sql.SQL("({})").format(rule) for rule in [proven, *histories.get(table, [])])
        made += policy("retention_worker_deletes", table, going, WORKER, said=said)
        made += policy("retention_worker_restores", table, coming, WORKER, said=restoring)
    return made


def receipt_guard(dataset: InstanceDataset) -> list[sql.Composed]:
    """Where the catalog asks for a guard: at the end of a transaction that deleted a root, its receipt must stand."""
    root = dataset.root
    if not root.guard:
        return []
    on, trigger = names.table(root.table), sql.Identifier(RECEIPT_TRIGGER)
    return [
        sql.SQL("DROP TRIGGER IF EXISTS {} ON {}").format(trigger, on),
        sql.SQL(
            "CREATE CONSTRAINT TRIGGER {} AFTER DELETE ON {} DEFERRABLE INITIALLY DEFERRED FOR EACH ROW"
            " EXECUTE FUNCTION retention.require_receipt({}, {})"
        ).format(trigger, on, sql.Literal(root.tenant), sql.Literal(root.key)),
        sql.SQL("DROP TRIGGER IF EXISTS retention_never_truncated ON {}").format(on),
        sql.SQL(
            "CREATE TRIGGER retention_never_truncated BEFORE TRUNCATE ON {} FOR EACH STATEMENT"
            " EXECUTE FUNCTION retention.refuse_truncation()"
        ).format(on),
    ]


def _of_root(dataset: InstanceDataset, rule: LiteralString) -> sql.Composed:
    return sql.SQL(rule).format(names.column(_bare(dataset.root.table), dataset.root.key))


def _of_evidence(dataset: InstanceDataset, related: Related, rule: LiteralString) -> sql.Composed:
    """The rule about the instance of a row, which a row of a deeper table reaches through its parents."""
    steps = list(dataset.path(related))
    aliases = [_bare(related.table), *(f"p{depth}" for depth in range(1, len(steps)))]
    own = next(child for child, parent in steps[-1].join.items() if parent == dataset.root.key)
    said = sql.SQL(rule).format(names.column(aliases[-1], own))
    if len(steps) == 1:
        return said
    froms = names.comma(
        sql.SQL("{} AS {}").format(names.table(step.table), sql.Identifier(alias))
        for step, alias in zip(steps[1:], aliases[1:], strict=True)
    )
    ties = names.conjunction(
        sql.SQL("{} = {}").format(names.column(child, mine), names.column(parent, theirs))
        for step, child, parent in zip(steps, aliases, aliases[1:], strict=False)
        for mine, theirs in step.join.items()
    )
    return sql.SQL("EXISTS (SELECT FROM {} WHERE {} AND {})").format(froms, ties, said)


def _bare(table: str) -> str:
    """A policy's own table goes by its name without the schema."""
    return table.partition(".")[2]
