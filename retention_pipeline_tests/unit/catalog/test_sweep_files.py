"""What the file of a sweep may say, and how it is told that it may not (K1, L2, L5, J2, W4)."""

from importlib import resources

import pytest

from retention_pipeline.catalog.loader import load, parse_sweep
from retention_pipeline.errors import Code, UsageFault

FOLDER = resources.files("retention_pipeline.catalog")
FILES = sorted(file.name for file in FOLDER.iterdir() if file.name.endswith(".yaml"))
LEDGERS, JOBS, HISTORY = "submission_ledgers.yaml", "job_evidence.yaml", "workflow_history.yaml"
PAYLOADS, REQUESTS = "ephemeral_payloads.yaml", "join_requests.yaml"


def text_of(name):
    return FOLDER.joinpath(name).read_text()


def test_the_shipped_sweeps_are_the_four_systems_and_the_horizons_of_history():
    assert {rules.dataset.dataset: rules.dataset.ends for rules in load().sweeps} == {
        "ephemeral_payloads": "clear",
        "submission_ledgers": "purge",
        "job_evidence": "purge",
        "workflow_history": "purge",
        "join_requests": "shelve",
    }


@pytest.mark.parametrize(
    ("file", "old", "new", "says"),
    [
        (LEDGERS, "older_than_days: 30", "older_than_days: 29", "ledger stays 30 days at least"),
        (JOBS, "older_than_days: 90", "older_than_days: 89", "evidence stays 90 days at least"),
        (HISTORY, "older_than_days: 365", "older_than_days: 364", "history stays 365 days at least"),
        (HISTORY, "older_than_days: 30", "older_than_days: 29", "replays stays 30 days at least"),
        (REQUESTS, "idle_days: 90", "idle_days: 89", "greater than or equal to 90"),
        (LEDGERS, "older_than_days: 30", "older_than_days: 0", "greater than or equal to 1"),
        (LEDGERS, "batch: 1000", "batch: 1001", "less than or equal to 1000"),
        (LEDGERS, "batches: 50", "batches: 0", "greater than or equal to 1"),
        (LEDGERS, "batches: 50", "batches: 51", "one pass ends 50000 rows at most"),
        (PAYLOADS, "batch: 500", "batch: 501", "has 500 at most"),
        (REQUESTS, "batch: 100\n", "batch: 101\n", "has 100 at most"),
        (REQUESTS, "key: [id]", "key: [id, tenant_id]", "a request has a key of one column"),
        (REQUESTS, "every: deadline", "every: day", "`shelve` for `deadline`"),
        (LEDGERS, "every: day", "every: deadline", "`deadline` is for `shelve`"),
        (
            HISTORY,
            "    join: {target_id: id}\n",
            (
                "    join: {target_id: id}\n  - {name: deeper, table: a.b, key: [id], tenant: t, purpose: history, age: at,"
                " older_than_days: 365, parent: action_checkpoints, join: {a: id}}\n"
            ),
            "a hold that keeps rows of executions would not reach it",
        ),
        (LEDGERS, "every: day", "every: day\nhour: 24", "less than or equal to 23"),
        (LEDGERS, "every: day", "every: week", "'hour', 'day' or 'deadline'"),
        (LEDGERS, "purpose: ledger", "purpose: evidences", "Input should be"),
        (LEDGERS, "age: created_at", "age: created_at\n    ages: 1", "this key is unknown"),
        (LEDGERS, "table: nucleus.crm", "table: retention.crm", "not the platform's"),
        (LEDGERS, "name: platform_ledger", "name: crm_ledger", "stands twice"),
        (JOBS, "    closed: [succeeded, failed, cancelled]\n", "", "`status` and `closed` go together"),
        (JOBS, "    join: {job_id: id}\n", "", "`parent` and `join` go together"),
        (JOBS, "parent: jobs", "parent: works", "the parent works must stand above"),
        (PAYLOADS, "marker: payload_expired_at", "marker: data", "data stands twice"),
        (PAYLOADS, "mirrors: [data]", "mirrors: [tenant_id]", "never cleared"),
        (PAYLOADS, "every: hour", "every: hour\nholds_extend: 1", "must be true or false"),
    ],
)
def test_a_rule_that_can_not_stand_is_refused(file, old, new, says):
    text = text_of(file)
    assert old in text
    with pytest.raises(UsageFault) as caught:
        parse_sweep(text.replace(old, new, 1), file)
    assert caught.value.code is Code.CATALOG_INVALID
    assert says in caught.value.message
    assert "line " in caught.value.message


def test_payloads_that_a_hold_extends_need_their_instance():
    """E7: without it, nobody could tell which hold is meant."""
    text = text_of(PAYLOADS).replace("every: hour", "every: hour\nholds_extend: true")
    assert parse_sweep(text).dataset.holds_extend
    with pytest.raises(UsageFault, match="`holds_extend` needs each table's `instance`"):
        parse_sweep(text.replace("    instance: instance_id\n", "", 1))


@pytest.mark.parametrize(
    ("file", "old", "new", "says"),
    [
        (
            JOBS,
            "table: nucleus.jobs",
            "table: nucleus.workflow_executions",
            "only a file with `history: true` may purge it",
        ),
        (LEDGERS, "every: day", "every: day\nhistory: true", "is no evidence of an instance"),
        (
            PAYLOADS,
            "table: nucleus.workflow_central_tasks",
            "table: nucleus.jobs",
            "is purged, or has evidence below it",
        ),
        (
            PAYLOADS,
            "table: nucleus.workflow_central_tasks",
            "table: nucleus.workflow_executions",
            "is purged, or has evidence below it",
        ),
        (HISTORY, "dataset: workflow_history", "dataset: job_evidence", "stands in another file too"),
        (HISTORY, "tenant: tenant_id", "tenant: owner_id", "its tenant column is tenant_id elsewhere"),
    ],
)
def test_files_that_do_not_fit_together_are_refused_with_file_and_line(tmp_path, file, old, new, says):
    """W4: a row of an instance goes with its instance, or by its rules of history, and by no other file's."""
    for name in FILES:
        (tmp_path / name).write_text(text_of(name).replace(old, new, 1) if name == file else text_of(name))
    assert old in text_of(file)
    with pytest.raises(UsageFault, match=rf"{file}, line \d+: .*{says}"):
        load(tmp_path)
