"""Submission ledgers end when they are older than 30 days, and nothing else does (SPEC L1-L4)."""

import pytest

from retention_pipeline.errors import Refused
from retention_pipeline.model.outcome import Outcome
from retention_pipeline_tests.databases import template
from retention_pipeline_tests.sweeping import broom, ledger_row, module_database, shared

__all__ = ["broom", "module_database", "shared", "template"]

LEDGERS = ("crm_submission_ledger", "platform_submission_ledger")
EXACTLY = "2026-05-02 12:00:00+00"
JUST_OLDER = "2026-05-02 11:59:59.999999+00"


def keys(platform, table):
    found = platform.connection.execute(
        f"SELECT idempotency_key FROM nucleus.{table} WHERE tenant_id = %s", [platform.tenant]
    ).fetchall()
    return {row[0] for row in found}


@pytest.mark.parametrize("table", LEDGERS)
def test_the_row_exactly_30_days_old_stays_and_one_microsecond_older_goes(broom, table):
    """L2."""
    platform = broom.platform()
    stays, goes = ledger_row(platform, table, EXACTLY), ledger_row(platform, table, JUST_OLDER)
    result = broom.sweep(platform, "submission_ledgers")
    assert keys(platform, table) == {stays} != {goes}
    assert result.report.outcome is Outcome.COMPLETED
    assert result.report.counts.purged == 1


def test_a_preflight_deletes_nothing(broom):
    """C, W6."""
    platform = broom.platform()
    ledger_row(platform, LEDGERS[0], JUST_OLDER)
    result = broom.sweep(platform, "submission_ledgers", apply=False)
    assert (result.report.outcome, result.report.backlog) == (Outcome.PREFLIGHT, 1)
    assert len(keys(platform, LEDGERS[0])) == 1


def test_without_an_approval_nothing_goes(broom):
    """G4."""
    platform = broom.platform()
    ledger_row(platform, LEDGERS[0], JUST_OLDER)
    with pytest.raises(Refused, match="RETENTION_APPROVAL_INVALID"):
        broom.sweep(platform, "submission_ledgers", approval="00000000-0000-4000-8000-000000000000")
    assert len(keys(platform, LEDGERS[0])) == 1


def test_a_pass_stops_at_its_bound_says_so_and_the_next_goes_on(broom):
    """L2: at most so many rows a transaction, and so many transactions."""
    platform = broom.platform()
    for n in range(25):
        ledger_row(platform, LEDGERS[n % 2], f"2026-05-02 11:59:59.{n:06}+00")
    first = broom.sweep(platform, "submission_ledgers", batch=5, batches=4)
    assert (first.report.counts.purged, first.report.backlog, first.report.reason) == (20, 5, "batch_bound")
    assert first.report.outcome is Outcome.WORK_REMAINS
    second = broom.sweep(platform, "submission_ledgers", batch=5, batches=4)
    assert (second.report.counts.purged, second.report.outcome) == (5, Outcome.COMPLETED)
    receipts = platform.connection.execute(
        "SELECT max(items), sum(items) FROM retention.sweep_receipts WHERE tenant_id = %s", [platform.tenant]
    ).fetchone()
    assert receipts == (5, 25)
