"""The statements that read, compare and delete one instance's rows, table by table, always in the same form.

A table's content of one instance is one JSON array `[rows, hash of key and xmin, hash of content, [row, …]]`, in which every
value is text as PostgreSQL prints it under pinned settings (lossless, DESIGN section 5). The swap deletes with the same hash.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from psycopg import sql

from retention_pipeline.catalog.model import ROOT, Evidence, InstanceDataset, Related
from retention_pipeline.postgres import names
from retention_pipeline.postgres.shape import SourceColumn, SourceShape

EPHEMERAL_MARKER = '{"retention": "ephemeral payload, never archived"}'
EPHEMERAL_MODE = "ephemeral_hosted"
EMPTY_HASH = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
"""SHA-256 of nothing: what a table without rows hashes to."""

_HASH = (
    "encode(sha256(convert_to(coalesce(string_agg({what}, chr(10) ORDER BY s.k COLLATE \"C\"), ''), 'UTF8')), 'hex')"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One table of the manifest: the root, an evidence table or a shared one."""

    name: str
    section: str
    table: str
    key: tuple[str, ...]
    related: Related | None

    @property
    def shared(self) -> bool:
        """Whether the rows stay when the instance goes."""
        return self.related is not None and not isinstance(self.related, Evidence)


def places(dataset: InstanceDataset) -> tuple[Place, ...]:
    """Every table of the manifest, the root first, parents before children."""
    root = Place(
        name=ROOT, section=dataset.root.section, table=dataset.root.table, key=(dataset.root.key,), related=None
    )
    others = (
        Place(name=t.name, section=t.section, table=t.table, key=t.key, related=t) for t in dataset.by_name.values()
    )
    return (root, *others)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentStatements:
    """Statements over one dataset of one shape. Parameters: `tenant` and `ids`."""

    dataset: InstanceDataset
    shape: SourceShape

    def sizes(self) -> sql.Composed:
        """About how many bytes each instance's archive will have in clear, and how many it has at least.

        Nothing large is read to say so. The first number packs batches; only the second may refuse an instance unread.
        """
        guesses = [self._size(place, map(_size_of, self.shape.columns(place.table))) for place in places(self.dataset)]
        floors = [self._size(place, map(_size_at_least, self._surely_kept(place))) for place in places(self.dataset)]
        return self._per_instance(
            names.comma(sql.SQL("({})::bigint").format(sql.SQL(" + ").join(parts)) for parts in (guesses, floors))
        )

    def rows(self) -> sql.Composed:
        """Each instance with one JSON text for each place, in the order of `places`."""
        return self._per_instance(names.comma(self._content(place, with_rows=True) for place in places(self.dataset)))

    def shared_content(self) -> sql.Composed:
        """Each instance with the content of its shared rows alone: compared once more before the instance goes."""
        shared = [place for place in places(self.dataset) if place.shared]
        return self._per_instance(names.comma(self._content(place, with_rows=False) for place in shared))

    def lock_roots(self) -> sql.Composed:
        """Lock the instances that nobody else has; an insert of a child waits, or is seen by what follows."""
        root = self.dataset.root
        return sql.SQL(
            "SELECT i.{key}::text, i.{policy}::text FROM {table} AS i WHERE {mine} ORDER BY i.{key} FOR UPDATE SKIP LOCKED"
        ).format(
            key=sql.Identifier(root.key),
            policy=sql.Identifier(next(iter(self.dataset.policy.join.values()))),
            table=names.table(root.table),
            mine=self._mine("i"),
        )

    def lock_parents(self) -> tuple[sql.Composed, ...]:
        """Lock evidence rows that have children of their own, so that no grandchild comes while its siblings go."""
        parents = {evidence.parent for evidence in self.dataset.evidence}
        statements = []
        for evidence in self.dataset.evidence:
            if evidence.name not in parents:
                continue
            froms, ties = names.reach(self.dataset, evidence)
            root = self.dataset.root
            statements.append(
                sql.SQL("SELECT 1 FROM {} AS i, {} WHERE {} AND {} ORDER BY {} FOR UPDATE OF t").format(
                    names.table(root.table),
                    froms,
                    ties,
                    self._mine("i"),
                    names.comma(names.column("t", name) for name in evidence.key),
                )
            )
        return tuple(statements)

    def present(self) -> sql.Composed:
        """Which of the instances exist, locked or not."""
        root = self.dataset.root
        return sql.SQL("SELECT i.{}::text FROM {} AS i WHERE {}").format(
            sql.Identifier(root.key), names.table(root.table), self._mine("i")
        )

    def delete_evidence(self, evidence: Evidence) -> sql.Composed:
        """Delete a table's rows of the instances, and say for each instance how many went and what they hash to."""
        steps = list(self.dataset.path(evidence))
        aliases = ["t", *(f"t{depth}" for depth in range(1, len(steps)))]
        using = names.comma(
            sql.SQL("{} AS {}").format(names.table(step.table), sql.Identifier(alias))
            for step, alias in zip(steps[1:], aliases[1:], strict=True)
        )
        ties = [
            sql.SQL("{} = {}").format(names.column(child, own), names.column(parent, theirs))
            for step, child, parent in zip(steps, aliases, aliases[1:], strict=False)
            for own, theirs in step.join.items()
        ]
        top, top_alias = steps[-1], aliases[-1]
        own = next(child for child, parent in top.join.items() if parent == self.dataset.root.key)
        instance = names.column(top_alias, own)
        conditions = [
            *ties,
            sql.SQL("{} = ANY(%(ids)s::text[]::{}[])").format(instance, sql.SQL(self.shape.type_of(top.table, own))),
            sql.SQL("{} = {}").format(
                names.column("t", evidence.tenant), self._tenant(evidence.table, evidence.tenant)
            ),
        ]
        return self._delete(evidence.table, evidence.key, using if len(steps) > 1 else None, conditions, instance)

    def delete_roots(self) -> sql.Composed:
        """Delete the instances themselves, in the form of `delete_evidence`."""
        root = self.dataset.root
        return self._delete(root.table, (root.key,), None, [self._mine("t")], names.column("t", root.key))

    def _delete(
        self,
        table: str,
        key: tuple[str, ...],
        using: sql.Composed | None,
        conditions: list[sql.Composed],
        instance: sql.Identifier,
    ) -> sql.Composed:
        return sql.SQL(
            "WITH s AS (DELETE FROM {table} AS t{using} WHERE {conditions}"
            " RETURNING {instance}::text AS instance, {key} AS k, t.xmin::text AS x)"
            " SELECT s.instance, count(*), {hash} FROM s GROUP BY s.instance"
        ).format(
            table=names.table(table),
            using=sql.SQL(" USING {}").format(using) if using else sql.SQL(""),
            conditions=names.conjunction(conditions),
            instance=instance,
            key=names.key_text("t", key),
            hash=sql.SQL(_HASH.format(what="s.k || ' ' || s.x")),
        )

    def _per_instance(self, selected: sql.Composable) -> sql.Composed:
        root = self.dataset.root
        return sql.SQL("SELECT i.{}::text, {} FROM {} AS i WHERE {}").format(
            sql.Identifier(root.key), selected, names.table(root.table), self._mine("i")
        )

    def _mine(self, alias: str) -> sql.Composed:
        root = self.dataset.root
        return sql.SQL("{tenant} = {this} AND {key} = ANY(%(ids)s::text[]::{type}[])").format(
            tenant=names.column(alias, root.tenant),
            this=self._tenant(root.table, root.tenant),
            key=names.column(alias, root.key),
            type=sql.SQL(self.shape.type_of(root.table, root.key)),
        )

    def _tenant(self, table: str, column: str) -> sql.Composed:
        return sql.SQL("%(tenant)s::text::{}").format(sql.SQL(self.shape.type_of(table, column)))

    def _from(self, place: Place) -> sql.Composed:
        """The rows of one place as `t`: the root row itself, evidence, or shared rows, each once."""
        if place.related is None:
            root = self.dataset.root
            return sql.SQL("FROM {} AS t WHERE t.{key} = i.{key}").format(
                names.table(root.table), key=sql.Identifier(root.key)
            )
        if place.shared and place.related.parent != ROOT:
            # Two targets of one instance may stand for one occurrence: its row is taken once.
            inner = names.conjunction(
                sql.SQL("{} = {}").format(names.column("t", own), names.column("u", theirs))
                for own, theirs in place.related.join.items()
            )
            froms, ties = names.reach(self.dataset, self.dataset.by_name[place.related.parent], alias="u")
            return sql.SQL("FROM {} AS t WHERE EXISTS (SELECT FROM {} WHERE {} AND {})").format(
                names.table(place.table), froms, ties, inner
            )
        froms, ties = names.reach(self.dataset, place.related)
        return sql.SQL("FROM {} WHERE {}").format(froms, ties)

    def _content(self, place: Place, *, with_rows: bool) -> sql.Composed:
        columns = self.shape.columns(place.table)
        values = names.comma(self._value(place, column) for column in columns)
        order = names.comma(names.column("t", name) for name in place.key)
        rows = sql.SQL("coalesce(json_agg(s.r ORDER BY s.n), '[]')") if with_rows else sql.SQL("'[]'::json")
        return sql.SQL(
            "(SELECT json_build_array(count(*), {version_hash}, {content_hash}, {rows})::text FROM (SELECT {key} AS k,"
            " t.xmin::text AS x, to_json(ARRAY[{values}]::text[]) AS r, row_number() OVER (ORDER BY {order}) AS n {source}) AS s)"
        ).format(
            # Others may touch a shared row without changing it, so only its content counts; of our own rows, only the version.
            version_hash=sql.SQL("''" if place.shared else _HASH.format(what="s.k || ' ' || s.x")),
            content_hash=sql.SQL(_HASH.format(what="s.k || ' ' || s.r::text") if place.shared else "''"),
            rows=rows,
            key=names.key_text("t", place.key),
            values=values,
            order=order,
            source=self._from(place),
        )

    def _value(self, place: Place, column: SourceColumn) -> sql.Composed:
        plain = _as_text(column)
        ephemeral = place.related.ephemeral if isinstance(place.related, Evidence) else None
        if ephemeral is None or column.name not in {ephemeral.payload, *ephemeral.mirrors}:
            return plain
        return sql.SQL("CASE WHEN {} THEN {} ELSE {} END").format(
            is_ephemeral(names.column("t", ephemeral.payload), self.shape.type_of(place.table, ephemeral.payload)),
            sql.Literal(EPHEMERAL_MARKER),
            plain,
        )

    def _size(self, place: Place, measures: Iterable[sql.Composed]) -> sql.Composed:
        return sql.SQL("(SELECT coalesce(sum({}), 0) {})").format(
            sql.SQL(" + ").join([sql.SQL("0"), *measures]), self._from(place)
        )

    def _surely_kept(self, place: Place) -> list[SourceColumn]:
        """The columns in whose stead no marker ever stands."""
        ephemeral = place.related.ephemeral if isinstance(place.related, Evidence) else None
        replaced = {ephemeral.payload, *ephemeral.mirrors} if ephemeral else set()
        return [column for column in self.shape.columns(place.table) if column.name not in replaced]


def is_ephemeral(payload: sql.Composable, kind: str) -> sql.Composed:
    r"""Whether a payload says of itself that it is short-lived, expired or not (A1); a text that mentions it is not.

    Args:
        payload: the column.
        kind: its type. `json` keeps escapes that `jsonb` and `->>` refuse, `\u0000` and half surrogates: they are left out
            before the mode is read, or one such payload would fail the whole batch. A doubled backslash begins no escape.
    """
    if kind == "jsonb":
        typeof, value = sql.SQL("jsonb_typeof"), sql.SQL("{}").format(payload)
    else:
        typeof = sql.SQL("json_typeof")
        value = sql.SQL("regexp_replace({}::text, {}, {}, 'g')::json").format(
            payload, sql.Literal(r"\\u(?:0000|[dD][89a-fA-F][0-9a-fA-F]{2})|(\\.)"), sql.Literal(r"\1")
        )
    return sql.SQL("({typeof}({value}) = 'object' AND {value} ->> 'mode' = {mode}) IS TRUE").format(
        typeof=typeof, value=value, mode=sql.Literal(EPHEMERAL_MODE)
    )


def _as_text(column: SourceColumn) -> sql.Composed:
    """A value as its own type prints it. A cast is not always that: it drops a `bpchar`'s trailing blanks.

    A type that somebody made may be a domain over such a one, or may bring a cast of its own: `format` asks neither.
    """
    name = names.column("t", column.name)
    made_by_somebody = "." in column.type  # the path holds nothing but pg_catalog, so all others are qualified
    if made_by_somebody or column.type == "bpchar" or column.type.startswith(("character(", "character[]")):
        return sql.SQL("CASE WHEN ({n}) IS DISTINCT FROM NULL THEN format('%%s', {n}) END").format(n=name)
    return sql.SQL("{}::text").format(name)


def _size_of(column: SourceColumn) -> sql.Composed:
    """An upper guess at a value's length as text; for large texts and bytea the server knows it without reading them."""
    name = names.column("t", column.name)
    if column.type in {"text", "character varying"} or column.type.startswith("character varying("):
        return sql.SQL("coalesce(octet_length({}), 0) + 4").format(name)
    if column.type == "bytea":
        return sql.SQL("coalesce(octet_length({}), 0) * 2 + 8").format(name)
    return sql.SQL(
        "CASE WHEN pg_column_size({n}) > 2000 THEN octet_length({n}::text) ELSE coalesce(pg_column_size({n}), 0) * 3 + 8 END"
    ).format(n=name)


def _size_at_least(column: SourceColumn) -> sql.Composed:
    """What a value surely takes: of the large ones the length itself, of the others nothing."""
    name = names.column("t", column.name)
    if column.type in {"text", "character varying"} or column.type.startswith("character varying("):
        return sql.SQL("coalesce(octet_length({}), 0)").format(name)
    if column.type == "bytea":
        return sql.SQL("coalesce(octet_length({}), 0) * 2").format(name)
    return sql.SQL("CASE WHEN pg_column_size({n}) > 2000 THEN octet_length({n}::text) ELSE 0 END").format(n=name)
