"""The check as a pure function: facts that fit, and one difference at a time."""

from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import get_args

import pytest

from retention_pipeline.catalog.check import Fault, FaultCode, Severity, check, require_sound
from retention_pipeline.catalog.consistency import related, tables
from retention_pipeline.catalog.loader import parse
from retention_pipeline.catalog.model import (
    Blocker,
    Ephemeral,
    Epochs,
    Evidence,
    InstanceDataset,
    Recovery,
    Root,
    Section,
    Shared,
    Stores,
    Tenants,
)
from retention_pipeline.catalog.schema import (
    Column,
    DatabaseFacts,
    ForeignKey,
    Index,
    OnDelete,
    Policy,
    TableFacts,
    TableKind,
)
from retention_pipeline.errors import Code, Refused

CATALOG = parse("""
version: 1
dataset: cases
ends: archive
tenants: {table: app.tenants, key: id, alias: alias, retention_days: days}
root:
  table: app.cases
  key: id
  tenant: tenant
  state: state
  terminal_states: [closed]
  policy: kind
  guard: true
epochs: {evidence: ends, ordinal: n, state: state, at: at}
evidence:
  - {name: ends, table: app.ends, key: [case_id, n], tenant: tenant, join: {case_id: id}, section: terminal_epochs}
  - name: jobs
    table: app.jobs
    key: [id]
    tenant: tenant
    join: {case_id: id}
    section: executions
    ephemeral: {payload: payload, mirrors: [mirror]}
  - name: steps
    table: app.steps
    key: [id]
    tenant: tenant
    parent: jobs
    join: {job_id: id}
    section: action_checkpoints
  - {name: letters, table: app.letters, key: [id], tenant: tenant, join: {case_id: id}, section: recovery}
  - {name: bindings, table: app.bindings, key: [id], tenant: tenant, join: {case_id: id}, section: store_bindings}
shared:
  - name: kind
    table: app.kinds
    key: [id]
    tenant: tenant
    join: {id: kind_id}
    section: definition
    retention_days: days
blockers:
  - {name: open_job, evidence: jobs, column: status, closed: [done]}
recovery: {evidence: letters, key: id, fence: fence, status: status, open: [open], cancelled: dead, closed_at: closed}
stores: {table: app.stores, key: id, tenant: tenant, detached_at: detached, bindings: bindings, store: store_id}
""")

UUID, TEXT, INTEGER = "uuid", "text", "integer"
COLUMNS = {
    "app.tenants": {"id": UUID, "alias": TEXT, "days": INTEGER},
    "app.cases": {"id": UUID, "tenant": UUID, "state": TEXT, "kind_id": UUID},
    "app.ends": {"case_id": UUID, "n": INTEGER, "tenant": UUID, "state": TEXT, "at": "timestamp with time zone"},
    "app.jobs": {
        "id": UUID,
        "tenant": UUID,
        "case_id": UUID,
        "status": TEXT,
        "payload": "jsonb",
        "mirror": "jsonb",
    },
    "app.steps": {"id": UUID, "tenant": UUID, "job_id": UUID},
    "app.kinds": {"id": UUID, "tenant": UUID, "days": INTEGER},
    "app.letters": {
        "id": UUID,
        "tenant": UUID,
        "case_id": UUID,
        "fence": "bigint",
        "status": TEXT,
        "closed": "timestamp with time zone",
    },
    "app.bindings": {"id": UUID, "tenant": UUID, "case_id": UUID, "store_id": UUID},
    "app.stores": {"id": UUID, "tenant": UUID, "detached": "timestamp with time zone"},
}
KEYS = {
    "app.tenants": [("id",), ("alias",)],
    "app.cases": [("id",)],
    "app.ends": [("case_id", "n")],
    "app.jobs": [("id",)],
    "app.steps": [("id",)],
    "app.kinds": [("id",)],
    "app.letters": [("id",)],
    "app.bindings": [("id",)],
    "app.stores": [("id",)],
}
SEARCHES = {
    "app.cases": [("tenant", "state")],
    "app.jobs": [("case_id",)],
    "app.steps": [("job_id",)],
    "app.letters": [("case_id",)],
    "app.bindings": [("case_id",), ("store_id",)],
}
MODELS = (InstanceDataset, Tenants, Root, Epochs, Evidence, Shared, Ephemeral, Blocker, Recovery, Stores)
EVERYBODY = Policy(command="ALL", roles=frozenset({"retention_worker", "retention_operator"}))


def column(name, base, **others):
    return Column(**{"name": name, "type": base, "base": base, "not_null": True, **others})


def table(name):
    keys = [Index(name=f"key_{n}", columns=columns, unique=True) for n, columns in enumerate(KEYS[name])]
    searches = [Index(name=f"search_{n}", columns=columns) for n, columns in enumerate(SEARCHES.get(name, []))]
    return TableFacts(
        kind=TableKind.ORDINARY,
        columns={n: column(n, base) for n, base in COLUMNS[name].items()},
        indexes=(*keys, *searches),
        row_security=True,
        row_security_forced=True,
        policies=(EVERYBODY,),
        worker_policies=frozenset({"retention_worker_tenant"}),
        worker_privileges=frozenset({"SELECT", "INSERT", "DELETE"}),
        guarded=name == "app.cases",
    )


def link(child, own, parent, **others):
    facts = {
        "name": f"{child}_{own}",
        "table": child,
        "belongs_to": child,
        "pairs": ((own, "id"),),
        "parent": parent,
        "on_delete": OnDelete.NO_ACTION,
    }
    return ForeignKey(**{**facts, **others})


FITTING = DatabaseFacts(
    tables={name: table(name) for name in COLUMNS},
    foreign_keys=(
        link("app.ends", "case_id", "app.cases"),
        link("app.jobs", "case_id", "app.cases"),
        link("app.steps", "job_id", "app.jobs"),
        link("app.cases", "kind_id", "app.kinds"),
        link("app.letters", "case_id", "app.cases"),
        link("app.bindings", "case_id", "app.cases"),
        link("app.bindings", "store_id", "app.stores"),
    ),
    installed="catalog 1",
    expected="catalog 1",
)


def with_table(name, **changes):
    return replace(FITTING, tables={**FITTING.tables, name: replace(FITTING.tables[name], **changes)})


def with_column(name, column_name, **changes):
    columns = FITTING.tables[name].columns
    return with_table(name, columns={**columns, column_name: replace(columns[column_name], **changes)})


def with_link(new):
    return replace(FITTING, foreign_keys=(*FITTING.foreign_keys, new))


def with_action(child, action):
    changed = (replace(k, on_delete=action) if k.table == child else k for k in FITTING.foreign_keys)
    return replace(FITTING, foreign_keys=tuple(changed))


def only(facts):
    (fault,) = check(CATALOG, facts)
    return fault


def line(*path):
    assert path in CATALOG.lines
    return CATALOG.lines[path]


def test_facts_that_fit_have_no_fault():
    assert check(CATALOG, FITTING) == ()
    require_sound(())


def test_an_empty_database_lacks_each_table_and_nothing_else():
    found = check(CATALOG, DatabaseFacts(tables={}, installed="x", expected=None))
    assert [fault.code for fault in found] == [FaultCode.CATALOG_TABLE_MISSING] * 9
    assert [fault.line for fault in found] == sorted(
        CATALOG.line(*path, "table") for path, _, _ in tables(CATALOG.instances)
    )


@pytest.mark.parametrize("name", COLUMNS)
def test_each_table_that_is_missing_is_told_once(name):
    facts = replace(FITTING, tables={n: t for n, t in FITTING.tables.items() if n != name})
    assert only(facts).code is FaultCode.CATALOG_TABLE_MISSING


@pytest.mark.parametrize(("name", "lost"), [(name, lost) for name, columns in COLUMNS.items() for lost in columns])
def test_each_column_that_is_missing_is_told_once(name, lost):
    columns = {n: c for n, c in FITTING.tables[name].columns.items() if n != lost}
    keys = tuple(k for k in FITTING.foreign_keys if not (k.table == name and lost in k.columns))
    fault = only(replace(with_table(name, columns=columns), foreign_keys=keys))
    assert fault.code is FaultCode.CATALOG_COLUMN_MISSING
    assert fault.sentence == f"{name} has no column {lost}."


def test_two_differences_are_two_faults():
    lost = [set(pair) for pair in combinations(COLUMNS, 2)]
    for names in lost:
        facts = replace(FITTING, tables={n: t for n, t in FITTING.tables.items() if n not in names})
        assert len(check(CATALOG, facts)) == 2


@pytest.mark.parametrize("kind", [TableKind.VIEW, TableKind.OTHER, TableKind.PARTITION])
def test_only_tables_hold_rows_that_can_be_locked(kind):
    fault = only(with_table("app.jobs", kind=kind))
    assert fault.code is FaultCode.CATALOG_TABLE_KIND
    assert str(kind) in fault.sentence


@pytest.mark.parametrize(
    ("name", "changed", "base", "path"),
    [
        ("app.ends", "at", "timestamp without time zone", ("epochs", "at")),
        ("app.ends", "at", "date", ("epochs", "at")),
        ("app.ends", "n", "numeric", ("epochs", "ordinal")),
        ("app.jobs", "payload", "text", ("evidence", 1, "ephemeral", "payload")),
        ("app.kinds", "days", "interval", ("shared", 0, "retention_days")),
        ("app.tenants", "days", "double precision", ("tenants", "retention_days")),
        ("app.jobs", "tenant", "text", ("evidence", 1, "tenant")),
        ("app.jobs", "case_id", "text", ("evidence", 1, "join", "case_id")),
        ("app.cases", "kind_id", "bigint", ("shared", 0, "join", "id")),
        ("app.letters", "fence", "text", ("recovery", "fence")),
        ("app.letters", "closed", "timestamp without time zone", ("recovery", "closed_at")),
        ("app.stores", "detached", "boolean", ("stores", "detached_at")),
        ("app.bindings", "store_id", "text", ("stores", "store")),
        ("app.stores", "tenant", "text", ("stores", "tenant")),
    ],
)
def test_a_wrong_type_is_told_with_its_line(name, changed, base, path):
    fault = only(with_column(name, changed, type=base, base=base))
    assert fault.code is FaultCode.CATALOG_COLUMN_TYPE
    assert fault.line == line(*path)


@pytest.mark.parametrize("base", ["smallint", "bigint", "numeric", "text", "character varying"])
def test_days_may_be_numbers_or_text(base):
    assert check(CATALOG, with_column("app.kinds", "days", type=base, base=base)) == ()


def texts(child, parent):
    facts = with_column("app.jobs", "id", type=parent, base=parent.split("(")[0])
    columns = {**facts.tables["app.steps"].columns, "job_id": column("job_id", child.split("(")[0], type=child)}
    return replace(facts, tables={**facts.tables, "app.steps": replace(facts.tables["app.steps"], columns=columns)})


@pytest.mark.parametrize(
    ("child", "parent", "fits"),
    [
        ("text", "character varying(36)", True),
        ("character varying(36)", "character varying(36)", True),
        ("character varying(40)", "character varying(36)", True),
        ("character varying(20)", "character varying(36)", False),
        ("character varying(36)", "text", False),
        ("character(36)", "text", False),
        ("integer", "bigint", False),
        ("bigint", "integer", False),
        ("numeric(5,0)", "numeric", False),
        ("numeric", "numeric(5,0)", True),
    ],
)
def test_a_link_must_hold_every_id_of_its_parent(child, parent, fits):
    assert (check(CATALOG, texts(child, parent)) == ()) is fits


@pytest.mark.parametrize(
    ("name", "changed", "labels", "wrong"),
    [
        ("app.cases", "state", ("open", "done"), ("root", "terminal_states", 0)),
        ("app.ends", "state", ("Closed",), ("root", "terminal_states", 0)),
        ("app.jobs", "status", ("open", "finished"), ("blockers", 0, "closed", 0)),
    ],
)
def test_a_value_that_an_enumeration_lacks_is_told(name, changed, labels, wrong):
    fault = only(with_column(name, changed, type="app.enum", base="app.enum", labels=labels))
    assert fault.code is FaultCode.CATALOG_VALUE_UNKNOWN
    assert fault.line == line(*wrong)


def test_a_truth_is_true_or_false():
    fault = only(with_column("app.jobs", "status", type="boolean", base="boolean"))
    assert fault.code is FaultCode.CATALOG_VALUE_UNKNOWN


@pytest.mark.parametrize("name", [n for n in COLUMNS if n != "app.tenants"])
def test_a_tenant_that_may_be_absent_is_a_warning(name):
    fault = only(with_column(name, "tenant", not_null=False))
    assert (fault.code, fault.severity) == (FaultCode.CATALOG_TENANT_NULLABLE, Severity.WARNING)


def with_index(name, **changes):
    indexes = FITTING.tables[name].indexes
    return with_table(name, indexes=(replace(indexes[0], **changes), *indexes[1:]))


@pytest.mark.parametrize("name", COLUMNS)
def test_each_key_must_be_unique(name):
    codes = {fault.code for fault in check(CATALOG, with_index(name, unique=False))}
    assert codes == {FaultCode.CATALOG_KEY_NOT_UNIQUE}


def test_a_key_with_a_column_that_may_be_null_is_unique_only_where_nulls_are_alike():
    nullable = with_column("app.tenants", "alias", not_null=False)
    assert only(nullable).code is FaultCode.CATALOG_KEY_NOT_UNIQUE
    found = nullable.tables["app.tenants"]
    alike = tuple(replace(index, nulls_distinct=False) for index in found.indexes)
    facts = replace(nullable, tables={**nullable.tables, "app.tenants": replace(found, indexes=alike)})
    assert check(CATALOG, facts) == ()


@pytest.mark.parametrize("path_and_child", list(related(CATALOG.instances))[:3], ids=lambda pair: pair[1].name)
def test_each_child_needs_its_foreign_key(path_and_child):
    path, child = path_and_child
    facts = replace(FITTING, foreign_keys=tuple(k for k in FITTING.foreign_keys if k.table != child.table))
    fault = only(facts)
    assert (fault.code, fault.severity) == (FaultCode.CATALOG_FOREIGN_KEY_MISSING, Severity.ERROR)
    assert fault.line == line(*path, "join")
    assert fault.remedy.startswith(f'ALTER TABLE "app"."{child.name}" ADD CONSTRAINT')


def test_a_foreign_key_of_a_partition_alone_binds_not_all():
    keys = tuple(replace(k, whole=False) if k.table == "app.steps" else k for k in FITTING.foreign_keys)
    assert only(replace(FITTING, foreign_keys=keys)).code is FaultCode.CATALOG_FOREIGN_KEY_MISSING


def composite(match_full, not_null):
    pairs = (("tenant", "tenant"), ("job_id", "id"))
    keys = tuple(
        replace(k, pairs=pairs, match_full=match_full) if k.table == "app.steps" else k for k in FITTING.foreign_keys
    )
    facts = replace(with_column("app.steps", "tenant", not_null=not_null), foreign_keys=keys)
    return {fault.code for fault in check(CATALOG, facts)} - {FaultCode.CATALOG_TENANT_NULLABLE}


def test_a_foreign_key_with_more_columns_binds_where_no_null_frees_a_row():
    assert composite(match_full=False, not_null=True) == set()
    assert composite(match_full=True, not_null=False) == set()
    assert composite(match_full=False, not_null=False) == {FaultCode.CATALOG_FOREIGN_KEY_MISSING}


@pytest.mark.parametrize("action", OnDelete)
@pytest.mark.parametrize("parent", ["app.cases", "app.jobs"])
def test_an_unnamed_table_is_refused_whatever_its_action(action, parent):
    fault = only(with_link(link("crm.deals", "x", parent, on_delete=action)))
    assert (fault.code, fault.severity) == (FaultCode.CATALOG_FOREIGN_KEY_UNNAMED, Severity.ERROR)
    assert "crm.deals (x)" in fault.sentence
    assert str(action) in fault.sentence
    assert fault.line == line(*({"app.cases": ("root", "table"), "app.jobs": ("evidence", 1, "table")}[parent]))


@pytest.mark.parametrize("parent", ["app.kinds", "app.tenants"])
def test_what_refers_to_rows_that_stay_is_nobodys_concern(parent):
    assert check(CATALOG, with_link(link("crm.deals", "x", parent, on_delete=OnDelete.CASCADE))) == ()


@pytest.mark.parametrize(
    ("child", "action", "severity"),
    [
        ("app.jobs", OnDelete.NO_ACTION, None),
        ("app.jobs", OnDelete.RESTRICT, None),
        ("app.jobs", OnDelete.CASCADE, None),
        ("app.jobs", OnDelete.SET_NULL, Severity.WARNING),
        ("app.jobs", OnDelete.SET_DEFAULT, Severity.WARNING),
        ("app.steps", OnDelete.NO_ACTION, None),
        ("app.steps", OnDelete.RESTRICT, None),
        ("app.steps", OnDelete.CASCADE, None),
        ("app.steps", OnDelete.SET_NULL, Severity.WARNING),
        ("app.steps", OnDelete.SET_DEFAULT, Severity.WARNING),
    ],
)
def test_what_a_named_childs_own_link_may_do(child, action, severity):
    found = check(CATALOG, with_action(child, action))
    wanted = [(FaultCode.CATALOG_FOREIGN_KEY_ACTION, severity)] if severity else []
    assert [(fault.code, fault.severity) for fault in found] == wanted


def indexed_link(child, parent, **others):
    """A second link between named tables, with its column and its index."""
    found = FITTING.tables[child]
    facts = with_table(
        child,
        columns={**found.columns, "also": column("also", UUID)},
        indexes=(*found.indexes, Index(name="also", columns=("also",))),
    )
    return replace(facts, foreign_keys=(*FITTING.foreign_keys, link(child, "also", parent, **others)))


@pytest.mark.parametrize("child", COLUMNS)
@pytest.mark.parametrize("parent", ["app.cases", "app.ends", "app.jobs", "app.steps"])
@pytest.mark.parametrize("action", [OnDelete.CASCADE, OnDelete.SET_NULL, OnDelete.SET_DEFAULT])
def test_a_second_link_that_changes_rows_is_refused(child, parent, action):
    fault = only(indexed_link(child, parent, on_delete=action))
    assert (fault.code, fault.severity) == (FaultCode.CATALOG_FOREIGN_KEY_ACTION, Severity.ERROR)


@pytest.mark.parametrize(
    ("child", "parent", "code"),
    [
        ("app.steps", "app.jobs", None),
        ("app.jobs", "app.jobs", None),
        ("app.steps", "app.ends", None),
        ("app.jobs", "app.steps", "CATALOG_FOREIGN_KEY_ORDER"),
        ("app.ends", "app.jobs", "CATALOG_FOREIGN_KEY_ORDER"),
        ("app.cases", "app.jobs", "CATALOG_FOREIGN_KEY_ORDER"),
        ("app.cases", "app.cases", "CATALOG_FOREIGN_KEY_ACTION"),
        ("app.jobs", "app.cases", "CATALOG_FOREIGN_KEY_ACTION"),
        ("app.kinds", "app.jobs", "CATALOG_FOREIGN_KEY_ACTION"),
        ("app.tenants", "app.cases", "CATALOG_FOREIGN_KEY_ACTION"),
    ],
)
def test_a_second_link_that_refuses_has_to_go_in_order(child, parent, code):
    found = check(CATALOG, indexed_link(child, parent))
    assert [fault.code.name for fault in found] == ([code] if code else [])
    deferred = check(CATALOG, indexed_link(child, parent, deferred=True))
    assert not [fault for fault in deferred if fault.severity is Severity.ERROR]


def without_search(name):
    return with_table(name, indexes=FITTING.tables[name].indexes[: len(KEYS[name])])


@pytest.mark.parametrize(
    ("name", "columns", "severity"),
    [("app.jobs", "case_id", "error"), ("app.steps", "job_id", "error"), ("app.cases", "tenant", "warning")],
)
def test_a_missing_index_comes_with_its_statement(name, columns, severity):
    fault = only(without_search(name))
    assert (fault.code, fault.severity) == (FaultCode.CATALOG_INDEX_MISSING, severity)
    schema, plain = name.split(".")
    assert fault.remedy == f'CREATE INDEX CONCURRENTLY ON "{schema}"."{plain}" ("{columns}");'


def test_one_index_is_asked_for_once():
    facts = replace(without_search("app.jobs"), foreign_keys=(*FITTING.foreign_keys, *FITTING.foreign_keys[1:2]))
    assert only(facts).code is FaultCode.CATALOG_INDEX_MISSING


def test_a_shared_table_without_an_index_is_a_warning():
    facts = with_index("app.kinds", usable=False)
    assert (only(facts).code, only(facts).severity) == (FaultCode.CATALOG_INDEX_MISSING, Severity.WARNING)


def test_row_security_that_is_weak_is_a_warning():
    for changes in ({"row_security": False, "row_security_forced": False}, {"row_security_forced": False}):
        fault = only(with_table("app.steps", **changes))
        assert (fault.code, fault.severity) == (FaultCode.CATALOG_ROW_SECURITY_WEAK, Severity.WARNING)


@pytest.mark.parametrize(
    ("name", "commands"), [("app.tenants", 2), ("app.kinds", 2), ("app.jobs", 3), ("app.cases", 4)]
)
def test_row_security_without_a_policy_for_us_shows_nothing(name, commands):
    found = check(CATALOG, with_table(name, policies=()))
    assert [fault.code for fault in found] == [FaultCode.CATALOG_ROW_SECURITY_BLIND] * commands
    assert check(CATALOG, replace(with_table(name, policies=()), installed=None))[0].code is (
        FaultCode.CATALOG_NOT_INSTALLED
    )


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        (replace(FITTING, installed=None), "are not installed"),
        (replace(FITTING, installed="catalog 2"), "another catalog"),
        (replace(FITTING, missing_functions=("foreign_rows",)), "foreign_rows"),
        (with_table("app.cases", guarded=False), "app.cases lacks an enabled guard"),
        (with_table("app.jobs", worker_privileges=frozenset({"SELECT"})), "the worker's DELETE and INSERT"),
        (with_table("app.kinds", worker_policies=frozenset()), "app.kinds lacks the worker's policy"),
    ],
)
def test_what_is_not_installed_is_told(facts, says):
    fault = only(facts)
    assert fault.code is FaultCode.CATALOG_NOT_INSTALLED
    assert says in fault.sentence
    assert "retention migrate" in fault.remedy


def test_faults_come_in_the_order_of_the_lines():
    found = check(CATALOG, DatabaseFacts(tables={}))
    assert [fault.line for fault in found] == sorted(fault.line for fault in found)


def test_codes_are_stable_and_safe():
    assert all(code.value == f"RETENTION_{code.name}" for code in FaultCode)


def test_the_reference_has_every_code_and_every_key():
    reference = Path(__file__).resolve().parents[3].joinpath("docs", "catalog.md").read_text(encoding="utf-8")
    keys = {key for model in MODELS for key in model.model_fields}
    assert {name for name in (*FaultCode.__members__, *keys) if f"`{name}`" not in reference} == {"payload", "mirrors"}
    assert all(f"`{section}`" in reference for section in get_args(Section))
    assert "`{payload: column, mirrors: [columns]}`" in reference


def test_a_binding_without_a_foreign_key_to_its_store_is_told_with_the_statement():
    """W9: it would be added while the store is detached, and nobody would wait for anybody."""
    keys = tuple(key for key in FITTING.foreign_keys if key.parent != "app.stores")
    fault = only(replace(FITTING, foreign_keys=keys))
    assert (fault.code, fault.line) == (FaultCode.CATALOG_FOREIGN_KEY_MISSING, line("stores", "store"))
    assert 'FOREIGN KEY ("store_id") REFERENCES "app"."stores" ("id")' in fault.remedy


def test_a_binding_that_no_index_finds_is_a_warning():
    indexes = tuple(i for i in FITTING.tables["app.bindings"].indexes if i.columns != ("store_id",))
    fault = only(with_table("app.bindings", indexes=indexes))
    assert (fault.code, fault.severity) == (FaultCode.CATALOG_INDEX_MISSING, Severity.WARNING)


def test_a_status_that_a_dead_letter_never_has_is_told():
    fault = only(with_column("app.letters", "status", labels=("open", "resolved")))
    assert (fault.code, fault.line) == (FaultCode.CATALOG_VALUE_UNKNOWN, line("recovery", "cancelled"))


def test_nobody_of_ours_need_see_the_stores():
    """The function that detaches has policies of its own."""
    bare = with_table("app.stores", policies=(), worker_policies=frozenset(), worker_privileges=frozenset())
    assert check(CATALOG, bare) == ()


def test_an_error_stops_and_a_warning_does_not():
    warning = Fault(
        code=FaultCode.CATALOG_ROW_SECURITY_WEAK, severity=Severity.WARNING, line=1, sentence="w", remedy="r"
    )
    error = replace(warning, code=FaultCode.CATALOG_TABLE_MISSING, severity=Severity.ERROR, line=7, sentence="No x.")
    require_sound([warning])
    with pytest.raises(Refused, match=r"RETENTION_CATALOG_TABLE_MISSING, line 7: No x\. \(and 1 more\)") as caught:
        require_sound([warning, error, error])
    assert caught.value.code is Code.CATALOG_INVALID
