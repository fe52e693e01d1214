"""Deletes rows that are older than their days, a page at a time (SPEC L2, L4, L5, W4): the verb `purge` over one sweep.

A page is picked by index and locked, whatever becomes of its rows, so that no number of rows that stay is ever read for one that
goes. The condition is repeated where the rows are deleted (F6), and the row-level policy asks it again by the database's own clock.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import orjson
from psycopg.rows import TupleRow

from retention_pipeline.catalog.loader import Catalog
from retention_pipeline.catalog.sweep_model import PurgeDataset, PurgedTable
from retention_pipeline.errors import Code
from retention_pipeline.model.ids import TenantId
from retention_pipeline.model.sweep import Batch, Place, SweepFound, TableFound, Turn, Verb
from retention_pipeline.postgres import history, horizons
from retention_pipeline.postgres.history import History
from retention_pipeline.postgres.purge_rule import PurgeRule
from retention_pipeline.postgres.session import Cursor, Session, one, rows
from retention_pipeline.postgres.shape import read_shape
from retention_pipeline.postgres.sweep_paging import by_index
from retention_pipeline.postgres.sweep_records import SweepRecords, look_at_each


@dataclass(slots=True, kw_only=True)
class PostgresPurge:
    """Purges through one session, as the worker.

    Args:
        catalog: for the rules of the instances, which history obeys, and for how long a shortened period cools off.
    """

    session: Session
    dataset: PurgeDataset
    catalog: Catalog
    verb: Verb = Verb.PURGED
    _records: SweepRecords = field(init=False)

    def __post_init__(self) -> None:
        self._records = SweepRecords(dataset=self.dataset.dataset)

    @property
    def tables(self) -> tuple[str, ...]:
        """Children before their parents."""
        return tuple(table.name for table in reversed(self.dataset.tables))

    def look(self, tenant: TenantId, as_of: datetime) -> SweepFound:
        """Count what is due and what keeps the rest, each table in a transaction of its own (E5)."""

        def look(table: PurgedTable) -> TableFound:
            with self.session.transaction(tenant) as cursor:
                horizons.observe(cursor, tenant, self.dataset.dataset, table)
            with self.session.transaction(tenant, read_only=True) as cursor:
                by_index(cursor)
                return self._look(cursor, table, tenant, as_of)

        found, unread = look_at_each(self.dataset.tables, look)
        return SweepFound(tenant=tenant, as_of=as_of, tables=found, unread=unread)

    def place(self, tenant: TenantId, table: str) -> Place | None:
        """Where the last batch of this table stopped."""
        with self.session.transaction(tenant, read_only=True) as cursor:
            return self._records.place(cursor, tenant, table)

    def batch(self, turn: Turn, after: Place | None, limit: int) -> Batch:
        """Delete what may go of the next rows that are over their time."""
        table = self._table(turn.table)
        with self.session.transaction(turn.tenant) as cursor:
            by_index(cursor)
            self._records.require_approved(cursor, turn)
            rule = self._rule(cursor, table, turn.tenant)
            act = self._page_of_instances if rule.reaches_instances else self._page
            seen, gone, oldest, newest, place = act(cursor, rule, turn, after, limit)
            if gone:
                details = {"older_than_days": rule.days, "oldest": oldest, "newest": newest}
                self._records.receipt(cursor, turn, self.verb, gone, details)
            if place is not None:
                self._records.save(cursor, turn.tenant, turn.table, Place(place))
        return Batch(done=gone, passed=seen - gone, place=None if place is None else Place(place), last=seen < limit)

    def rewind(self, tenant: TenantId, table: str) -> None:
        """The next batch begins at the beginning."""
        with self.session.transaction(tenant) as cursor:
            self._records.rewind(cursor, tenant, table)

    def pass_by(self, turn: Turn, after: Place | None, code: Code) -> Place | None:
        """Set the next row aside, and go behind it."""
        with self.session.transaction(turn.tenant) as cursor:
            by_index(cursor)
            rule = self._rule(cursor, self._table(turn.table), turn.tenant)
            found = rows(cursor, rule.head(after), _values(turn, limit=1))
            if not found:
                return None
            key, place = found[0]
            self._records.set_aside(cursor, turn, key, code)
            self._records.save(cursor, turn.tenant, turn.table, Place(place))
            return Place(place)

    def _page(self, cursor: Cursor, rule: PurgeRule, turn: Turn, after: Place | None, limit: int) -> TupleRow:
        cursor.execute(rule.batch(after), _values(turn, limit=limit))
        return one(cursor)

    def _page_of_instances(
        self, cursor: Cursor, rule: PurgeRule, turn: Turn, after: Place | None, limit: int
    ) -> TupleRow:
        """The same, where holds and the instances' own rules have a say: they are asked under the lock that a hold takes."""
        page = rows(cursor, rule.page(after), _values(turn, limit=limit))
        if not page:
            return (0, 0, None, None, None)
        going = self._going(cursor, rule, turn, page)
        cursor.execute(rule.delete(), _values(turn, page=orjson.dumps(going).decode()))
        gone, oldest, newest = one(cursor)
        return (len(page), gone, oldest, newest, page[-1][1])

    def _going(self, cursor: Cursor, rule: PurgeRule, turn: Turn, page: Sequence[TupleRow]) -> list[Any]:
        """Keys of the rows whose instances let them go, as far as can be told before they are deleted."""
        instances = {instance for _, _, instance in page if instance is not None}
        ours = history.lock(cursor, turn.tenant, instances)
        if self.dataset.history:
            asks = History(instances=self.catalog.instances)
            ours -= set(asks.keeping(cursor, turn.tenant, ours, turn.as_of, rule.table.purpose))
        return [key for key, _, instance in page if instance is None or instance in ours]

    def _look(self, cursor: Cursor, table: PurgedTable, tenant: TenantId, as_of: datetime) -> TableFound:
        rule = self._rule(cursor, table, tenant)
        values = {"tenant": tenant, "as_of": as_of}
        count = self._count_each if self.dataset.history else self._count
        kept, due, overdue = count(cursor, rule, tenant, as_of)
        more = due + sum(kept.values()) >= rule.counted
        cursor.execute(rule.inflow(), values)
        inflow = one(cursor)[0]
        if rule.days > table.older_than_days:
            cursor.execute(rule.cooling(), values)
            kept["cooling_off"] = one(cursor)[0]
        cursor.execute(rule.odd(), values)
        odd = dict(zip(("instant_is_minus_infinity", "closed_without_an_instant"), one(cursor), strict=True))
        return TableFound(
            name=table.name,
            due=due,
            overdue_seconds=overdue,
            kept={reason: number for reason, number in kept.items() if number},
            inflow=inflow,
            findings={flaw: number for flaw, number in odd.items() if number},
            more=more,
        )

    def _count(
        self, cursor: Cursor, rule: PurgeRule, tenant: TenantId, as_of: datetime
    ) -> tuple[dict[str, int], int, float | None]:
        found = {row[0]: row[1:] for row in rows(cursor, rule.look(), {"tenant": tenant, "as_of": as_of})}
        due, overdue = found.pop(None, (0, None))
        return {reason: number for reason, (number, _) in found.items()}, due, overdue

    def _count_each(
        self, cursor: Cursor, rule: PurgeRule, tenant: TenantId, as_of: datetime
    ) -> tuple[dict[str, int], int, float | None]:
        """One by one, since the instances' own rules have a say."""
        found = rows(cursor, rule.each(), {"tenant": tenant, "as_of": as_of})
        instances = {instance for _, reason, instance in found if reason is None and instance is not None}
        asks = History(instances=self.catalog.instances)
        keeping = asks.keeping(cursor, tenant, instances, as_of, rule.table.purpose)
        reasons = [(over, reason or keeping.get(instance)) for over, reason, instance in found]
        due = [over for over, reason in reasons if reason is None]
        return dict(Counter(reason for _, reason in reasons if reason)), len(due), max(due, default=None)

    def _table(self, name: str) -> PurgedTable:
        return next(table for table in self.dataset.tables if table.name == name)

    def _rule(self, cursor: Cursor, table: PurgedTable, tenant: TenantId) -> PurgeRule:
        hours = self.catalog.instances.safety.cooling_off_hours
        return PurgeRule(
            table=table,
            dataset=self.dataset,
            records=self._records,
            shape=read_shape(cursor, {table.table for table in self.dataset.tables}),
            days=horizons.days(cursor, tenant, self.dataset.dataset, table, cooling_off_hours=hours),
        )


def _values(turn: Turn, **more: Any) -> dict[str, Any]:
    return {"tenant": turn.tenant, "as_of": turn.as_of, **more}
