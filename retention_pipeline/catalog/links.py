"""Rules of the check: does a foreign key bind every child, and what else refers to rows that go (F18)?

What a foreign key to a row that the product deletes may do with the rows that refer to it:

- From a table that the catalog doesn't name: nothing, whatever its action. CASCADE would destroy rows that no archive
  holds, SET NULL and SET DEFAULT would change them, RESTRICT and NO ACTION would keep the instance for ever.
- From evidence to its parent, as the catalog says: the swap deletes children itself before their parent, so no action
  fires there. NO ACTION and RESTRICT are best. CASCADE is allowed: the swap locks the root and every evidence row that
  has children before any child goes, and proves over all tenants that nothing refers to the root any more (without the
  lock on a parent, a row that is inserted meanwhile cascades away unarchived: tried). SET NULL and SET DEFAULT are a
  warning: whoever deletes outside the product leaves evidence behind that no instance, and so no archive, will hold.
- From evidence, the root, a shared table or the tenants by any other link: only an action that refuses; the others
  would destroy or change rows of another instance. Where it refuses, evidence has to go before what it refers to.
"""

from collections.abc import Iterator

from retention_pipeline.catalog import requirements as req
from retention_pipeline.catalog.comparison import Comparison, column_list, names, quoted
from retention_pipeline.catalog.consistency import related, tables
from retention_pipeline.catalog.document import EntryPath
from retention_pipeline.catalog.fault import Fault, FaultCode
from retention_pipeline.catalog.model import Evidence, Related
from retention_pipeline.catalog.schema import ForeignKey, OnDelete, TableKind

_REFUSING = "Make the foreign key again with ON DELETE NO ACTION."


def children_are_bound(seen: Comparison) -> Iterator[Fault]:
    """Each evidence table has a foreign key to its parent, over the columns of the join.

    Without one, a row that is inserted while its instance is deleted is left behind, in no archive (DESIGN section 4).
    """
    for path, child in related(seen.dataset):
        parent = seen.parent_table(child)
        ready = seen.have(child.table, child.join) and seen.have(parent, child.join.values())
        if (
            isinstance(child, Evidence)
            and ready
            and not any(_binds(seen, key, child) for key in seen.facts.foreign_keys)
        ):
            own, theirs = names(child.join), names(child.join.values())
            sentence = f"No foreign key binds every row of {child.table} {own} to {parent} {theirs}."
            remedy = _foreign_key_statement(seen, child)
            yield seen.error(FaultCode.CATALOG_FOREIGN_KEY_MISSING, (*path, "join"), sentence, remedy)


def bindings_are_bound(seen: Comparison) -> Iterator[Fault]:
    """A foreign key binds each binding to its store: it makes one wait that is added while its store is detached."""
    stores = seen.dataset.stores
    if stores is None:
        return
    child = seen.dataset.by_name[stores.bindings].table
    wanted = (stores.store, stores.key)
    ready = seen.have(child, [stores.store]) and seen.have(stores.table, [stores.key])
    if ready and not any(key.whole and wanted in key.pairs for key in seen.facts.links(child, stores.table)):
        sentence = f"No foreign key binds {child} ({stores.store}) to {stores.table} ({stores.key})."
        link = f"FOREIGN KEY ({quoted(stores.store)}) REFERENCES {quoted(stores.table)} ({quoted(stores.key)})"
        remedy = f"ALTER TABLE {quoted(child)} ADD {link};"
        yield seen.error(FaultCode.CATALOG_FOREIGN_KEY_MISSING, ("stores", "store"), sentence, remedy)


def _binds(seen: Comparison, key: ForeignKey, child: Related) -> bool:
    """Whether a child's row can't be there without its parent."""
    if not key.whole or not is_declared(seen, key, child):
        return False
    # With a NULL in one of its columns, a row is free of a foreign key that does not say MATCH FULL.
    beside = set(key.columns) - set(child.join)
    found = seen.facts.tables[child.table].columns
    return key.match_full or all(found[column].not_null for column in beside)


def is_declared(seen: Comparison, key: ForeignKey, child: Related) -> bool:
    """Whether the foreign key is the child's link to its parent; it may take the tenant along."""
    own = key.belongs_to == child.table and key.parent == seen.parent_table(child)
    return own and set(child.join.items()) <= set(key.pairs)


def nothing_else_refers(seen: Comparison) -> Iterator[Fault]:
    """Each foreign key to a row that goes is one that the catalog knows, with an action that destroys nothing."""
    deleted = seen.deleted()
    named = {table: path for path, table, _ in tables(seen.dataset)}
    for key in seen.facts.foreign_keys:
        if key.parent not in deleted:
            continue
        if key.belongs_to not in named:
            yield _unnamed(seen, key, (*deleted[key.parent], "table"))
            continue
        path = named[key.belongs_to]
        child = next((t for _, t in related(seen.dataset) if t.table == key.belongs_to), None)
        if child and not seen.have(child.table, child.join):
            continue  # its join is another fault; nobody can say yet which link this is
        if isinstance(child, Evidence) and is_declared(seen, key, child):
            yield from _declared_action(seen, key, (*path, "join"))
        else:
            yield from _other_link(seen, key, (*path, "table"))


def _unnamed(seen: Comparison, key: ForeignKey, path: EntryPath) -> Fault:
    effect = {
        OnDelete.CASCADE: "its rows would vanish unarchived",
        OnDelete.SET_NULL: "its rows would be changed",
        OnDelete.SET_DEFAULT: "its rows would be changed",
    }.get(key.on_delete, "an instance with such a row could never go")
    sentence = f"{req.said(key)}, and the catalog doesn't name {key.table}: {effect}."
    remedy = f"Name {key.belongs_to} as evidence (its rows go with the instance), or drop the foreign key."
    return seen.error(FaultCode.CATALOG_FOREIGN_KEY_UNNAMED, path, sentence, remedy)


def _declared_action(seen: Comparison, key: ForeignKey, path: EntryPath) -> Iterator[Fault]:
    code = FaultCode.CATALOG_FOREIGN_KEY_ACTION
    if key.on_delete in {OnDelete.SET_NULL, OnDelete.SET_DEFAULT}:
        sentence = f"{req.said(key)}: a deletion outside the product leaves evidence that belongs to no instance."
        yield seen.warning(code, path, sentence, _REFUSING)


def _other_link(seen: Comparison, key: ForeignKey, path: EntryPath) -> Iterator[Fault]:
    if not key.on_delete.refuses:
        sentence = (
            f"{req.said(key)} beside the catalog's joins: rows of another instance would be destroyed or changed."
        )
        yield seen.error(FaultCode.CATALOG_FOREIGN_KEY_ACTION, path, sentence, _REFUSING)
    elif _goes_too_late(seen, key):
        sentence = f"{req.said(key)}, but its rows go later: the deletion would always fail."
        yield seen.error(FaultCode.CATALOG_FOREIGN_KEY_ORDER, path, sentence, _order_remedy(seen, key))
    elif key.parent == seen.dataset.root.table or key.belongs_to not in seen.deleted():
        sentence = f"{req.said(key)} beside the catalog's joins: an instance stays as long as such a row refers to it."
        remedy = "Nothing, if that is meant; else clear the column when the instance ends, or drop the foreign key."
        yield seen.warning(FaultCode.CATALOG_FOREIGN_KEY_ACTION, path, sentence, remedy)


def _goes_too_late(seen: Comparison, key: ForeignKey) -> bool:
    """Whether rows would be deleted while others of the same instance still refer to them."""
    order = [*(table.table for table in seen.dataset.deletion_order()), seen.dataset.root.table]
    if key.deferred or key.belongs_to not in order:
        return False
    return order.index(key.belongs_to) > order.index(key.parent)


def _order_remedy(seen: Comparison, key: ForeignKey) -> str:
    if key.belongs_to == seen.dataset.root.table:
        return "Make the foreign key again with DEFERRABLE INITIALLY DEFERRED, or drop it."
    below = f"Let {key.belongs_to} stand below {key.parent} in the catalog"
    return f"{below}, or make the foreign key again with DEFERRABLE INITIALLY DEFERRED."


def _foreign_key_statement(seen: Comparison, child: Related) -> str:
    table, parent = quoted(child.table), quoted(seen.parent_table(child))
    name = quoted(f"{child.table.split('.', 1)[1][:30]}_{child.parent[:30]}")
    link = f"FOREIGN KEY {column_list(child.join)} REFERENCES {parent} {column_list(child.join.values())}"
    add = f"ALTER TABLE {table} ADD CONSTRAINT {name} {link}"
    if seen.facts.tables[child.table].kind is TableKind.PARTITIONED:
        return f"{add};"
    return f"{add} NOT VALID; ALTER TABLE {table} VALIDATE CONSTRAINT {name};"
