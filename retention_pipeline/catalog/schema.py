"""What a database says of itself: the facts that a catalog is checked against, as pure values."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum


class TableKind(StrEnum):
    """What a name stands for in the database."""

    ORDINARY = "ordinary table"
    PARTITIONED = "partitioned table"
    PARTITION = "partition of another table"
    VIEW = "view"
    OTHER = "something else than a table"


class OnDelete(StrEnum):
    """What a foreign key does with the rows that refer to a deleted row."""

    NO_ACTION = "NO ACTION"
    RESTRICT = "RESTRICT"
    CASCADE = "CASCADE"
    SET_NULL = "SET NULL"
    SET_DEFAULT = "SET DEFAULT"

    @property
    def refuses(self) -> bool:
        """Whether the row that is referred to stays, and the deletion fails."""
        return self in {OnDelete.NO_ACTION, OnDelete.RESTRICT}


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column.

    Args:
        type: as PostgreSQL names it, with modifiers and domains.
        base: the type below domains, without modifiers.
        labels: the values of an enumeration, in their order.
        made_of: the columns that a generated one is computed from.
    """

    name: str
    type: str
    base: str
    not_null: bool = False
    generated: bool = False
    identity: bool = False
    labels: tuple[str, ...] = ()
    made_of: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """One index.

    Args:
        columns: its leading columns, up to the first expression.
        unique: whether no two rows have the same values in `columns`, taking NULLs as `nulls_distinct` says.
        primary: whether it is the primary key's.
        usable: whether it finds equal values in all rows: a valid B-tree or hash index without a condition.
        nulls_distinct: whether two NULLs are two values.
    """

    name: str
    columns: tuple[str, ...]
    unique: bool = False
    primary: bool = False
    usable: bool = True
    nulls_distinct: bool = True

    def leads_with(self, wanted: Collection[str]) -> bool:
        """Whether it finds rows by these columns, in whatever order it has them."""
        return self.usable and set(self.columns[: len(wanted)]) == set(wanted)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A permissive policy of row-level security.

    Args:
        command: `SELECT`, `INSERT`, `UPDATE`, `DELETE` or `ALL`.
        roles: the product's roles to which it applies, itself or by a login that is a member.
    """

    command: str
    roles: frozenset[str]

    def admits(self, role: str, command: str) -> bool:
        """Whether it lets a role see rows for a command."""
        return role in self.roles and self.command in {command, "ALL"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFacts:
    """One table that the catalog names.

    Args:
        heirs: tables that inherit from it without being its partitions.
        row_security: whether row-level security is enabled.
        row_security_forced: whether it binds the table's owner too.
        policies: the permissive ones; the product's own for the worker and the operators only restrict.
        worker_policies: the product's own restrictive policies for the worker, by name.
        worker_privileges: what the worker's role may do with the whole table; `UPDATE` where it may with one column at least.
        guarded: whether the product's own guard stands and is enabled.
    """

    kind: TableKind
    columns: Mapping[str, Column]
    indexes: tuple[Index, ...] = ()
    heirs: tuple[str, ...] = ()
    row_security: bool = False
    row_security_forced: bool = False
    policies: tuple[Policy, ...] = ()
    worker_policies: frozenset[str] = frozenset()
    worker_privileges: frozenset[str] = frozenset()
    guarded: bool = False

    def is_unique(self, columns: Collection[str]) -> bool:
        """Whether no two rows have the same values in these columns, and NULL is none of them."""
        return any(
            index.unique
            and set(index.columns) <= set(columns)
            and (not index.nulls_distinct or all(self._has_value(column) for column in index.columns))
            for index in self.indexes
        )

    def is_found_by(self, columns: Collection[str]) -> bool:
        """Whether an index finds rows by these columns."""
        return any(index.leads_with(columns) for index in self.indexes)

    def is_found_apart(self, columns: Collection[str], tenant: str) -> bool:
        """Whether one does, by all of them or by all but the tenant, which picks out too little to matter."""
        fewer = [column for column in columns if column != tenant]
        return self.is_found_by(columns) or bool(fewer and self.is_found_by(fewer))

    def is_paged_by(self, *columns: str) -> bool:
        """Whether an index has the rows in this very order."""
        return any(index.usable and index.columns[: len(columns)] == columns for index in self.indexes)

    def _has_value(self, column: str) -> bool:
        return column in self.columns and self.columns[column].not_null


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignKey:
    """A foreign key to a table of the catalog, from whatever table of the database.

    Args:
        table: the table that refers, with its schema.
        belongs_to: the table of the catalog that it is a partition or an heir of; else the table itself.
        pairs: its column, and the parent's.
        parent: the table of the catalog that it refers to, itself or by a partition or an heir of it.
        whole: whether it stands between the two tables of the catalog themselves, and is enforced.
        match_full: whether a NULL in one of its columns is refused instead of freeing the row.
        deferred: whether it is checked at the end of the transaction alone.
    """

    name: str
    table: str
    belongs_to: str
    pairs: tuple[tuple[str, str], ...]
    parent: str
    on_delete: OnDelete
    whole: bool = True
    match_full: bool = False
    deferred: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that refer."""
        return tuple(own for own, _ in self.pairs)


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseFacts:
    """Everything that the check asks of a database.

    Args:
        tables: those of the catalog that are there, by name.
        foreign_keys: from any table to one of the catalog's.
        installed: the note that `retention migrate` left of what it installed; None where it left none.
        expected: the note that this catalog would leave; None where its tables or columns are not all there.
        missing_functions: functions that the product needs and the database has not.
        missing_parts: what a sweep has on a table beside policies, an index or a trigger, and is not there: table, and what.
    """

    tables: Mapping[str, TableFacts]
    foreign_keys: tuple[ForeignKey, ...] = ()
    installed: str | None = None
    expected: str | None = None
    missing_functions: tuple[str, ...] = ()
    missing_parts: tuple[tuple[str, str], ...] = ()

    def column(self, table: str, column: str) -> Column | None:
        """A column, or None where it or its table is not there."""
        found = self.tables.get(table)
        return found.columns.get(column) if found else None

    def links(self, child: str, parent: str) -> Iterator[ForeignKey]:
        """Foreign keys from one table of the catalog to another."""
        return (key for key in self.foreign_keys if key.belongs_to == child and key.parent == parent)
