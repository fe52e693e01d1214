"""One statement that gives, for a tenant's instances, the facts that `decide` needs. The database compares the instants.

The period is read as text, so that whatever type a platform keeps it in, a value that is no whole number of days from 0 to
999999 is `bad` and protects its rows (W1). Days are counted as 24 hours, so that no time zone moves a boundary.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from psycopg import sql

from retention_pipeline.catalog.model import Blocker, InstanceDataset
from retention_pipeline.model.decision import Facts, Period
from retention_pipeline.postgres import names
from retention_pipeline.postgres.periods import longest_periods, said_period, this_tenant
from retention_pipeline.postgres.shape import SourceShape

BLOCKER_PREFIX = "blocker_"


@dataclass(frozen=True, slots=True, kw_only=True)
class FactStatements:
    """Statements over one dataset of one shape. Parameters: `tenant`, `as_of`, and `ids` where some are asked for."""

    dataset: InstanceDataset
    shape: SourceShape

    def facts(self, *, some: bool) -> sql.Composed:
        """A row for each instance: ids, the facts, the epoch and the instant at which it fell due."""
        root, epochs = self.dataset.root, self.dataset.epochs
        return sql.SQL("""
SELECT i.{key}::text AS instance_id, i.{key} AS instance_key, i.{state}::text AS state, i.{policy_key}::text AS policy_key,
  e.epoch, e.epoch_at,
  d.terminal, d.has_epoch, d.period,
  o.over AND NOT o.cooling AS due,
  o.over AND o.cooling AS cooling_off,
  d.due_at,
  (f.instance_id IS NOT NULL) AS foreign_rows,
  {blockers}
  {held} AS held
FROM {roots} AS i
LEFT JOIN LATERAL (
  SELECT t.{ordinal}::bigint AS epoch, t.{epoch_state}::text AS state, t.{at} AS epoch_at
  FROM {epoch_table} AS t WHERE {epoch_tie} ORDER BY t.{ordinal} DESC LIMIT 1) AS e ON true
CROSS JOIN LATERAL (SELECT {period_text} AS said) AS p
CROSS JOIN LATERAL (SELECT CASE
    WHEN p.said = 'none' THEN 'unlimited'
    WHEN p.said !~ '^[0-9]{{1,6}}([.]0*)?$' THEN 'bad'
    WHEN p.said::numeric = 0 THEN 'unlimited' ELSE 'limited' END AS period) AS k
CROSS JOIN LATERAL (SELECT
    k.period,
    i.{state}::text = ANY({terminal_states}) AS terminal,
    coalesce(e.state = i.{state}::text AND isfinite(e.epoch_at), false) AS has_epoch,
    CASE WHEN k.period = 'limited' AND isfinite(e.epoch_at) AND e.epoch_at < '9000-01-01'
      THEN e.epoch_at + make_interval(hours => 24 * p.said::numeric::integer) END AS due_at) AS d
LEFT JOIN ({longest}) AS l ON l.policy_key = i.{policy_key}::text
CROSS JOIN LATERAL (SELECT
    coalesce(d.terminal AND d.has_epoch AND d.due_at <= %(as_of)s::timestamptz AND NOT {grace}, false) AS over,
    coalesce(CASE WHEN d.due_at IS NOT NULL
      THEN e.epoch_at + make_interval(hours => 24 * l.days) > %(as_of)s::timestamptz END, false) AS cooling) AS o
LEFT JOIN (SELECT DISTINCT instance_id FROM {foreign}) AS f ON f.instance_id = i.{key}::text
WHERE i.{tenant} = {this_tenant}{some}
""").format(
            key=sql.Identifier(root.key),
            state=sql.Identifier(root.state),
            policy_key=sql.Identifier(next(iter(self.dataset.policy.join.values()))),
            grace=self._grace(),
            longest=longest_periods(self.dataset.safety.cooling_off_hours),
            blockers=sql.SQL("").join(self._blocker(blocker) for blocker in self.dataset.blockers),
            held=active_hold(names.column("i", root.key)),
            roots=names.table(root.table),
            ordinal=sql.Identifier(epochs.ordinal),
            epoch_state=sql.Identifier(epochs.state),
            at=sql.Identifier(epochs.at),
            epoch_table=names.table(self.dataset.epoch_table.table),
            epoch_tie=names.reach(self.dataset, self.dataset.epoch_table)[1],
            period_text=self._period_text(),
            terminal_states=sql.Literal(list(root.terminal_states)),
            foreign=sql.SQL("retention.foreign_rows(%(tenant)s::text{})").format(
                sql.SQL(", %(ids)s::text[]" if some else "")
            ),
            tenant=sql.Identifier(root.tenant),
            this_tenant=this_tenant(self.shape, root.table, root.tenant),
            some=sql.SQL(" AND i.{} = ANY(%(ids)s::text[]::{}[])").format(
                sql.Identifier(root.key), sql.SQL(self.shape.type_of(root.table, root.key))
            )
            if some
            else sql.SQL(""),
        )

    def tally(self) -> sql.Composed:
        """How many instances share exactly the same facts."""
        columns = names.comma(sql.Identifier(name) for name in self.fact_columns())
        return sql.SQL("SELECT {columns}, count(*) FROM ({facts}) AS facts GROUP BY {columns}").format(
            columns=columns, facts=self.facts(some=False)
        )

    def some(self) -> sql.Composed:
        """Id, epoch, definition and facts of the instances in `ids`."""
        columns = names.comma(sql.Identifier(name) for name in self.fact_columns())
        return sql.SQL("SELECT instance_id, epoch, policy_key, {} FROM ({}) AS facts").format(
            columns, self.facts(some=True)
        )

    def states(self) -> sql.Composed:
        """How many instances are in each state."""
        root = self.dataset.root
        return sql.SQL(
            "SELECT {state}::text, count(*) FROM {table} WHERE {tenant} = {this} GROUP BY 1 ORDER BY 1"
        ).format(
            state=sql.Identifier(root.state),
            table=names.table(root.table),
            tenant=sql.Identifier(root.tenant),
            this=this_tenant(self.shape, root.table, root.tenant),
        )

    def eligible(self, *, held_too: bool = False) -> sql.Composed:
        """The condition over `facts` that says the same as `decide`: a test holds them together."""
        open_blockers = [
            sql.SQL("NOT {}").format(sql.Identifier(BLOCKER_PREFIX + blocker.name)) for blocker in self.dataset.blockers
        ]
        rule = [sql.SQL("due"), sql.SQL("NOT foreign_rows"), *open_blockers]
        if not held_too:
            rule.append(sql.SQL("NOT held"))
        return names.conjunction(rule)

    def fact_columns(self) -> tuple[str, ...]:
        """The columns that `read_facts` takes, in its order."""
        blockers = (BLOCKER_PREFIX + blocker.name for blocker in self.dataset.blockers)
        return ("foreign_rows", "terminal", "has_epoch", "period", "due", "cooling_off", "held", *blockers)

    def read_facts(self, row: Sequence[object]) -> Facts:
        """Facts from a row of `fact_columns`."""
        foreign, terminal, has_epoch, period, due, cooling_off, held, *blockers = row
        return Facts(
            foreign=bool(foreign),
            terminal=bool(terminal),
            has_epoch=bool(has_epoch),
            period=Period(str(period)),
            due=bool(due),
            cooling_off=bool(cooling_off),
            held=bool(held),
            open_blockers=tuple(
                blocker.name for blocker, applies in zip(self.dataset.blockers, blockers, strict=True) if applies
            ),
        )

    def _period_text(self) -> sql.Composed:
        """The workflow's own period, else the tenant's default, as text; a definition that can't be seen is `bad`."""
        policy = self.dataset.policy
        ties = names.conjunction(
            sql.SQL("w.{} = i.{}").format(sql.Identifier(own), sql.Identifier(theirs))
            for own, theirs in policy.join.items()
        )
        return sql.SQL(
            "coalesce((SELECT {said} FROM {policies} AS w WHERE {ties} AND w.{owner} = i.{tenant}), 'unseen')"
        ).format(
            said=said_period(self.dataset, self.shape),
            policies=names.table(policy.table),
            ties=ties,
            owner=sql.Identifier(policy.tenant),
            tenant=sql.Identifier(self.dataset.root.tenant),
        )

    def _grace(self) -> sql.Composed:
        """A17: a restored instance is not due again at once."""
        return sql.SQL(
            "EXISTS (SELECT FROM retention.restorations AS r WHERE r.tenant_id = %(tenant)s::text"
            " AND r.instance_id = i.{}::text AND r.grace_until > %(as_of)s::timestamptz)"
        ).format(sql.Identifier(self.dataset.root.key))

    def _blocker(self, blocker: Blocker) -> sql.Composed:
        related = self.dataset.by_name[blocker.evidence]
        froms, ties = names.reach(self.dataset, related)
        # Whatever is not known to be closed is open: a new status of a newer platform protects until somebody decides.
        still_open = (
            sql.SQL(" AND ({column} IS NULL OR {column}::text <> ALL({closed}))").format(
                column=names.column("t", blocker.column), closed=sql.Literal(list(blocker.closed))
            )
            if blocker.column
            else sql.SQL("")
        )
        return sql.SQL("EXISTS (SELECT FROM {} WHERE {}{}) AS {},\n  ").format(
            froms, ties, still_open, sql.Identifier(BLOCKER_PREFIX + blocker.name)
        )


def active_hold(instance_key: sql.Composable) -> sql.Composed:
    """Whether any matter's latest event for the instance is a hold."""
    return sql.SQL(
        "EXISTS (SELECT FROM retention.hold_events AS h WHERE h.tenant_id = %(tenant)s::text AND h.instance_id = {key}::text"
        " AND h.action = 'hold' AND NOT EXISTS (SELECT FROM retention.hold_events AS r WHERE r.tenant_id = h.tenant_id"
        " AND r.instance_id = h.instance_id AND r.matter = h.matter AND r.id > h.id AND r.action = 'release'))"
    ).format(key=instance_key)
