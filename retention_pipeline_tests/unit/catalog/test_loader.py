"""What a catalog file may say, and how it is told that it may not."""

import re
from importlib import resources

import pytest

from retention_pipeline.catalog.loader import MAX_BYTES, load, parse
from retention_pipeline.errors import Code, UsageFault

FOLDER = resources.files("retention_pipeline.catalog")
SHIPPED = resources.files("retention_pipeline.catalog").joinpath("workflow_instances.yaml").read_text()


def line_of(text, part):
    """The line on which a part of the text first stands."""
    return text[: text.index(part)].count("\n") + 1


def refusal(text):
    with pytest.raises(UsageFault) as caught:
        parse(text)
    assert caught.value.code is Code.CATALOG_INVALID
    assert caught.value.__cause__ is None
    return caught.value.message


def change(old, new, text=SHIPPED):
    assert old in text
    return text.replace(old, new, 1)


def test_the_shipped_catalog_loads_and_knows_its_lines():
    catalog = load()
    assert catalog.instances.dataset == "workflow_instances"
    assert catalog.line("root", "policy") == line_of(SHIPPED, "policy: workflow")
    assert catalog.line("evidence", 0, "join", "instance_id") == line_of(SHIPPED, "join: {instance_id")
    assert catalog.line("evidence", 0, "ephemeral", "payload") == line_of(SHIPPED, "- name: terminal_epochs")
    assert catalog.line("nothing", "of", "the", "kind") == line_of(SHIPPED, "version: 1")


def test_the_digest_names_the_very_text():
    assert parse(SHIPPED + "# a remark\n").digest != parse(SHIPPED).digest


def test_the_digest_names_the_sweeps_too(tmp_path):
    for file in FOLDER.iterdir():
        if file.name.endswith(".yaml"):
            (tmp_path / file.name).write_bytes(file.read_bytes())
    assert load(tmp_path).digest == load().digest
    (tmp_path / "job_evidence.yaml").write_text((tmp_path / "job_evidence.yaml").read_text() + "# a remark\n")
    assert load(tmp_path).digest != load().digest


def test_a_folder_has_one_file_of_instances(tmp_path):
    (tmp_path / "a.yaml").write_text(FOLDER.joinpath("job_evidence.yaml").read_text())
    with pytest.raises(UsageFault, match="0 of its files say `ends: archive`"):
        load(tmp_path)


def test_a_fault_of_a_sweep_names_its_file_and_line(tmp_path):
    for file in FOLDER.iterdir():
        if file.name.endswith(".yaml"):
            (tmp_path / file.name).write_bytes(file.read_bytes())
    text = FOLDER.joinpath("job_evidence.yaml").read_text()
    (tmp_path / "job_evidence.yaml").write_text(text.replace("older_than_days: 90", "older_than_days: 89", 1))
    line = line_of(text, "older_than_days: 90")
    with pytest.raises(UsageFault, match=rf"job_evidence.yaml: line {line}: .*evidence stays 90 days at least"):
        load(tmp_path)


def test_children_go_before_their_parents():
    order = [table.name for table in load().instances.deletion_order()]
    assert order.index("action_checkpoints") < order.index("executions")
    assert order.index("trigger_deliveries") < order.index("occurrence_targets")


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("", 1, "nothing in it"),
        ("# only a remark\n", 1, "nothing in it"),
        ("version: [1", 1, "line 1"),
        ("version: 1\n\tdataset: x", 2, "line 2"),
        ("version: 1\nversion: 1", 2, "the key version stands twice"),
        ("a: 1\nb: &x 1", 2, "anchors and aliases"),
        ("a: *x", 1, "anchors and aliases"),
        ("a: 1\nb: !!python/object/apply:os.system [true]", 2, "tags are not used"),
        ("a: !!str b", 1, "tags are not used"),
        ("a: !mine {b: c}", 1, "tags are not used"),
        ("a: 1\n<<: {b: c}", 2, "put << in quotes"),
        ("a: 1\n? [b]\n: c", 2, "a key is text"),
        ("a: 1\n2: b", 2, "a key is text"),
        ("a: no", 1, "put no in quotes"),
        ("a: True", 1, "put True in quotes"),
        ("a: 010", 1, "put 010 in quotes"),
        ("a: 1:30", 1, "put 1:30 in quotes"),
        ("a: 0x10", 1, "in quotes"),
        ("a: 1_000", 1, "in quotes"),
        ("a: 1.5", 1, "in quotes"),
        ("a: .inf", 1, "in quotes"),
        ("a: 2026-01-01", 1, "in quotes"),
        ("a: " + "9" * 5000, 1, "in quotes"),
        ("a: 1\n---\nb: 2", 2, "another document"),
        ("a: 1\nb: \x00", 2, "not text"),
        ("a: 1\nb: \x1b[2J", 2, "not text"),
        ("- a\n- b", 1, "keys and values"),
        ("just words", 1, "keys and values"),
    ],
)
def test_what_is_not_plain_yaml_is_refused_with_its_line(text, line, says):
    message = refusal(text)
    assert f"line {line}:" in message
    assert says in message


def test_deep_nesting_is_refused_before_it_is_read():
    assert "nested too deep" in refusal("[" * 100_000)
    assert "nested too deep" in refusal("".join(f"{' ' * depth}a:\n" for depth in range(200)))


def test_a_bomb_of_aliases_is_refused_at_its_first_anchor():
    bomb = "a: &a [x, x]\n" + "".join(
        f"{new}: &{new} [*{old}, *{old}]\n" for old, new in zip("abcdefg", "bcdefgh", strict=True)
    )
    assert "line 1: anchors and aliases" in refusal(bomb)


def test_a_message_shows_no_control_characters_and_stays_short():
    message = refusal(SHIPPED + f'"\\e[2J{"x" * 500}": 1\n')
    assert "this key is unknown" in message
    assert message.isprintable()
    assert len(message) < 200


def test_of_a_thousand_faults_ten_are_told():
    message = refusal(SHIPPED + "".join(f"unknown_{n}: 1\n" for n in range(1000)))
    assert message.count("this key is unknown") == 10
    assert message.endswith("And 990 more.")


def test_a_file_that_cannot_be_read_is_refused_without_its_path(tmp_path):
    with pytest.raises(UsageFault, match=r"can't be read") as caught:
        load(tmp_path / "missing.yaml")
    assert str(tmp_path) not in str(caught.value)


def test_a_huge_or_binary_file_is_refused(tmp_path):
    path = tmp_path / "catalog.yaml"
    path.write_bytes(b"#" * (MAX_BYTES + 1))
    with pytest.raises(UsageFault, match="larger than 1 MiB"):
        load(path)
    path.write_bytes(b"version: 1\ndataset: \xff\xfe\x00")
    with pytest.raises(UsageFault, match="line 2: this is not UTF-8"):
        load(path)
    path.write_bytes(SHIPPED.encode("utf-16"))
    with pytest.raises(UsageFault, match="line 1: this is not UTF-8"):
        load(path)


def test_a_file_loads_as_the_shipped_one_does(tmp_path):
    path = tmp_path / "catalog.yaml"
    path.write_text("\ufeff" + SHIPPED, encoding="utf-8")
    assert load(path).instances == load().instances


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("version: 1", "version: 2", "version: Input should be 1"),
        ("version: 1", 'version: "1"', "version: Input should be 1"),
        ("ends: archive", "ends: delete", "ends: Input should be 'archive'"),
        ("  alias: alias", "  aliass: alias", "tenants.aliass: this key is unknown"),
        ("  alias: alias\n", "", "tenants.alias: this key is missing"),
        ("  guard: true", "  guard: 1", "root.guard: this must be true or false"),
        ("  guard: true", '  guard: "true"', "root.guard: this must be true or false"),
        ("  state: state", "  state: 7", "root.state: this must be text"),
        ("[completed, failed, cancelled]", "[]", "root.terminal_states: there must be one at least"),
        ("[completed, failed, cancelled]", "completed", "root.terminal_states: this must be a list"),
        ("[completed, failed, cancelled]", '["completed\\0"]', "root.terminal_states.0"),
        ("[completed, failed, cancelled]", '["\\uD800"]', "root.terminal_states.0: this is not text"),
        ("[completed, failed, cancelled]", '[""]', "root.terminal_states.0"),
        ("[completed, failed, cancelled]", "[failed, failed]", "root.terminal_states: failed stands twice"),
        ("{instance_id: id}", "{}", "evidence.0.join: there must be one at least"),
        ("{instance_id: id}", "[instance_id, id]", "evidence.0.join: this must hold keys and values"),
        ("section: context", "section: contexts", "evidence.1.section: Input should be"),
        ("    key: [id]", "    key: [id, id]", "evidence.1.key: id stands twice"),
    ],
)
def test_a_wrong_entry_is_named(old, new, says):
    assert says in refusal(change(old, new))


@pytest.mark.parametrize(
    "name",
    [
        "nucleus.tenants; DROP TABLE x",
        'nucleus."tenants"',
        "nucleus.tenants--",
        "nucleus.tenants\n",
        "tenants",
        "a.nucleus.tenants",
        "nucleus.",
        "nucleus.1st",
        "nucleus.ten ants",
        f"nucleus.{'x' * 64}",
        "nucleus.ténants",
    ],
)
def test_only_a_plain_name_is_a_table(name):
    message = refusal(change("nucleus.tenants", f'"{name}"'.replace("\n", "\\n") if '"' not in name else f"'{name}'"))
    assert "tenants.table: this is not a name that can stand here" in message


@pytest.mark.parametrize("name", ["id)", "id = id OR true", "'id'", "%(ids)s", "id::text", ""])
def test_only_a_plain_name_is_a_column(name):
    for place in ("  key: id", "  state: state", "{instance_id: id}", "default_retention_days"):
        key = place.split(":")[0]
        new = f'{{"{name}": id}}' if place.startswith("{") else f'"{name}"' if ":" not in place else f'{key}: "{name}"'
        assert "this is not a name that can stand here" in refusal(change(place, new))


def test_a_child_may_not_stand_above_its_parent():
    text = change("    join: {execution_id: id}", "    join: {execution_id: id}", SHIPPED)
    text = change("    parent: executions", "    parent: occurrence_targets", text)
    message = refusal(text)
    assert f"line {line_of(text, 'parent: occurrence_targets')}: evidence.5.parent" in message
    assert "must be root or the name of a table that stands above" in message


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("name: contexts", "name: transitions", "evidence.2.name: the name transitions stands twice"),
        ("name: contexts", "name: root", "evidence.1.name: the name root stands twice"),
        ("name: triggers", "name: contexts", "shared.2.name: the name contexts stands twice"),
        ("nucleus.workflow_contexts", "nucleus.workflow_instances", "stands under `root` already"),
        ("nucleus.workflow_contexts", "nucleus.workflow_transitions", "stands under `evidence` already"),
        ("nucleus.workflow_triggers", "nucleus.workflow_contexts", "stands under `evidence` already"),
        ("nucleus.workflow_contexts", "retention.audit_events", "tables of the schema retention"),
        ("nucleus.workflow_contexts", "pg_catalog.pg_authid", "tables of the schema pg_catalog"),
        ("evidence: terminal_epochs", "evidence: epochs", "epochs.evidence: there is no evidence named epochs"),
        ("evidence: terminal_epochs", "evidence: action_checkpoints", "epochs are children of the root itself"),
        ("evidence: dead_letters", "evidence: workflow", "blockers.0.evidence: there is no evidence named workflow"),
        ("name: running_execution", "name: dead_letter", "blockers.2.name: the name dead_letter stands twice"),
        ("name: running_execution", "name: legal_hold", "legal_hold is the name of a disposition"),
        ("name: running_execution", f"name: {'x' * 56}", "blockers.2.name: this is not a name"),
        ("    closed: [done, failed, cancelled]\n", "", "`column` and `closed` go together"),
        ("policy: workflow", "policy: flow", "root.policy: there is no shared table named flow"),
        ("policy: workflow", "policy: contexts", "root.policy: there is no shared table named contexts"),
        ("policy: workflow", "policy: triggers", "the policy is a shared table of the root itself"),
        ("    retention_days: retention_days\n", "", "the policy says its `retention_days`"),
        ("{id: workflow_id}", "{name: workflow_id}", "the policy's join begins with its key's column id"),
        ("{instance_id: id}", "{instance_id: title}", "a child of the root joins on the root's key id"),
        ("    parent: executions", "    guard: true\n    parent: executions", "can be guarded"),
        ("payload: payload", "payload: instance_id", "the column instance_id is needed elsewhere"),
        ("mirrors: [data]", "mirrors: [payload]", "payload stands twice"),
        ("nucleus.tenant_id", "retention.tenant_id", "settings that begin with `retention.`"),
        ("nucleus.tenant_id", "work_mem", "tenants.setting: this is not a name"),
        (
            "evidence: dead_letters\n  key",
            "evidence: workflow\n  key",
            "recovery.evidence: there is no evidence named workflow",
        ),
        (
            "key: id\n  fence",
            "key: fence\n  fence",
            "recovery.key: a dead letter is named by the one key of dead_letters",
        ),
        ("cancelled: not_replayable", "cancelled: open", "recovery.cancelled: open is open as well"),
        ("  fence: fence", "  fence: instance_id", "recovery: the column instance_id ties rows together"),
        ("  fence: fence", "  fence: status", "recovery: status stands twice"),
        ("bindings: store_bindings", "bindings: triggers", "stores.bindings: there is no evidence named triggers"),
        ("detached_at: detached_at", "detached_at: id", "stores.detached_at: the column id names the store already"),
    ],
)
def test_parts_that_do_not_fit_together_are_named_with_their_line(old, new, says):
    text = change(old, new)
    message = refusal(text)
    assert says in message
    told = [int(line) for line in re.findall(r"line (\d+):", message)]
    assert told
    assert all(line > 1 for line in told)


def test_a_line_is_that_of_the_entry_itself():
    text = change("evidence: dead_letters", "evidence: nothing")
    assert refusal(text) == (
        f"line {line_of(text, 'evidence: nothing')}: blockers.0.evidence: there is no evidence named nothing."
    )


def test_a_shared_table_may_be_reached_in_two_ways():
    again = """  - name: trigger_workflows
    table: nucleus.workflows
    key: [id]
    tenant: tenant_id
    parent: triggers
    join: {id: workflow_id}
    section: definition
"""
    text = change("# What protects", again + "\n# What protects")
    assert parse(text).instances.by_name["trigger_workflows"].table == "nucleus.workflows"
    text = change(again, again.replace("tenant_id", "owner_id"), text)
    assert "shared.3.tenant: nucleus.workflows has the tenant column tenant_id above" in refusal(text)


def test_who_closes_and_detaches_nothing_leaves_both_parts_out():
    """G2 and W9 are asked of those who have dead letters and stores."""
    text = SHIPPED[: SHIPPED.index("# Dead letters that `recovery cancel`")]
    assert (parse(text).instances.recovery, parse(text).instances.stores) == (None, None)
