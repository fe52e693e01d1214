"""A horizon that was shortened cools off; one that was lengthened applies at once (SPEC G8)."""

import psycopg
import pytest

from retention_pipeline.catalog.loader import load
from retention_pipeline_tests.databases import template
from retention_pipeline_tests.sweeping import broom, ledger_row, module_database, shared

__all__ = ["broom", "module_database", "shared", "template"]

LEDGER = "crm_submission_ledger"
SWEEP = "submission_ledgers"
OVER_30 = "2026-05-02 11:59:59.999999+00"
OVER_60 = "2026-04-02 11:59:59.999999+00"


def seen(platform, table, days, ago):
    """A run read so many days in the catalog, so long ago."""
    platform.run(
        "INSERT INTO retention.horizon_observations (tenant_id, dataset, table_name, days, at)"
        " VALUES (%s, %s, %s, %s, clock_timestamp() - %s::interval)",
        platform.tenant,
        SWEEP,
        table,
        days,
        ago,
    )


def name_of(table):
    return next(t.name for t in load().sweep(SWEEP).dataset.tables if str(t.table).endswith(table))


def left(platform):
    return platform.value(f"SELECT count(*) FROM nucleus.{LEDGER} WHERE tenant_id = %s", platform.tenant)


@pytest.mark.parametrize(("ago", "stay"), [("71 hours 55 minutes", 1), ("72 hours 1 second", 0)])
def test_a_shortened_horizon_applies_72_hours_after_a_run_saw_it(broom, ago, stay):
    """G8: until then the longer one does, and what it alone keeps is told."""
    platform = broom.platform()
    ledger_row(platform, LEDGER, OVER_30)
    ledger_row(platform, LEDGER, OVER_60)
    name = name_of(LEDGER)
    seen(platform, name, 60, "100 hours")
    seen(platform, name, 30, ago)
    result = broom.sweep(platform, SWEEP)
    assert left(platform) == stay
    kept = next(table.kept for table in result.found.tables if table.name == name)
    assert kept.get("cooling_off", 0) == stay


def test_a_horizon_shortened_since_the_last_run_deletes_nothing_more_at_first(broom):
    """G8, F13: a mistake in the catalog is no order to delete."""
    platform = broom.platform()
    ledger_row(platform, LEDGER, OVER_30)
    seen(platform, name_of(LEDGER), 60, "100 days")
    broom.sweep(platform, SWEEP)
    assert left(platform) == 1


def test_a_lengthened_horizon_applies_at_once(broom):
    """G8: the catalog says 60 days where the last run saw 30."""
    platform = broom.platform()
    ledger_row(platform, LEDGER, OVER_30)
    seen(platform, name_of(LEDGER), 30, "100 hours")
    shipped = load().sweep(SWEEP).dataset
    tables = tuple(table.model_copy(update={"older_than_days": 60}) for table in shipped.tables)
    longer = shipped.model_copy(update={"tables": tables})
    broom.sweep(platform, SWEEP, sweeper=broom.sweeper(longer))
    assert left(platform) == 1


def test_the_worker_cannot_say_when_it_saw_a_horizon(broom):
    """G8: else its login could end a cooling-off."""
    platform = broom.platform()
    with psycopg.connect(broom.bench.database.worker_url, autocommit=True) as worker:
        worker.execute("SELECT set_config('retention.tenant_id', %s, false)", [platform.tenant])
        said = "INSERT INTO retention.horizon_observations (tenant_id, dataset, table_name, days%s) VALUES (%%s, 'd', 't', 1%s)"
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="permission denied"):
            worker.execute(said % (", at", ", '2020-01-01Z'"), [platform.tenant])
        assert worker.execute(said % ("", ""), [platform.tenant]).rowcount == 1
