"""Small pieces of SQL that every statement over a catalog is made of: names, joins, keys. All quoting happens here."""

from collections.abc import Iterable

from psycopg import sql

from retention_pipeline.catalog.model import InstanceDataset, Related

Piece = sql.Composable


def table(name: str) -> sql.Identifier:
    """A qualified table name."""
    return sql.Identifier(*name.split(".", 1))


def column(alias: str, name: str) -> sql.Identifier:
    """A column of an aliased table."""
    return sql.Identifier(alias, name)


def comma(pieces: Iterable[Piece]) -> sql.Composed:
    """Pieces with commas between them."""
    return sql.SQL(", ").join(pieces)


def conjunction(pieces: Iterable[Piece]) -> sql.Composed:
    """Pieces that must all hold."""
    return sql.SQL(" AND ").join(pieces)


def key_text(alias: str, key: tuple[str, ...]) -> sql.Composed:
    """A primary key as one text, the same in every statement: `ROW(...)::text`."""
    return sql.SQL("ROW({})::text").format(comma(column(alias, name) for name in key))


def reach(dataset: InstanceDataset, related: Related, *, alias: str = "t", root: str = "i") -> tuple[Piece, Piece]:
    """How a related table's rows are reached from one instance.

    Returns:
        The FROM items of the table (as `alias`) and of the tables between it and the root, and the condition that ties
        them to the root (as `root`), which the surrounding statement provides.
    """
    steps = list(dataset.path(related))
    aliases = [alias, *(f"{alias}{depth}" for depth in range(1, len(steps))), root]
    froms = comma(
        sql.SQL("{} AS {}").format(table(step.table), sql.Identifier(name))
        for step, name in zip(steps, aliases, strict=False)
    )
    ties = conjunction(
        sql.SQL("{} = {}").format(column(child, own), column(parent, theirs))
        for step, child, parent in zip(steps, aliases, aliases[1:], strict=False)
        for own, theirs in step.join.items()
    )
    return froms, ties
