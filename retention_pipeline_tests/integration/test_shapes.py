"""No row is deleted under a shape of its table that its archive does not know (SPEC A7, F19)."""

from dataclasses import replace

import pytest

from retention_pipeline.errors import Code
from retention_pipeline.model.outcome import Outcome
from retention_pipeline.stages.world import Step
from retention_pipeline_tests.seams import Seams

ARCHIVED = frozenset({Step.INVENTORY, Step.ELIGIBLE_SET, Step.ENCRYPTED_MANIFESTS, Step.VERIFIED_OBJECTS})
CHANGES = {
    "column added with a default": "ALTER TABLE nucleus.workflow_contexts ADD COLUMN verdict text NOT NULL DEFAULT 'guilty'",
    "column added": "ALTER TABLE nucleus.workflow_instances ADD COLUMN verdict text",
    "column renamed": "ALTER TABLE nucleus.workflow_contexts RENAME COLUMN name TO title",
    "column dropped": "ALTER TABLE nucleus.workflow_executions DROP COLUMN cost",
    "column of a shared table added": "ALTER TABLE nucleus.workflows ADD COLUMN verdict text NOT NULL DEFAULT 'guilty'",
}


@pytest.mark.parametrize("change", CHANGES)
def test_an_archive_from_before_the_tables_changed_deletes_nothing_in_a_later_run(bench, change):
    """F19: adding a column leaves every row version as it was, and yet the archive lacks its value."""
    platform = bench.platform()
    instance = platform.add()
    bench.reconcile(platform, steps=ARCHIVED)
    platform.run(CHANGES[change])
    later = replace(bench)  # a new process, which sees the new shape from its beginning
    report = later.reconcile(platform).report
    assert platform.exists(instance)
    assert bench.states(platform) == {"superseded": 1}
    assert report.counts.failures == {Code.SOURCE_CHANGED: 1}
    bench.forget_back_offs(platform)
    assert later.reconcile(platform).report.outcome is Outcome.COMPLETED
    assert not platform.exists(instance)


@pytest.mark.parametrize("change", CHANGES)
def test_a_table_that_changes_during_a_run_stops_it(bench, change):
    """F19: the run says so, and the next one begins with the new shape."""
    platform = bench.platform()
    instance = platform.add()
    world = replace(
        bench.world, source=Seams(bench.world.source, before={"swap": lambda: platform.run(CHANGES[change])})
    )
    report = bench.reconcile(platform, world=world).report
    assert (report.outcome, report.reason) == (Outcome.BLOCKED, Code.CATALOG_INVALID)
    assert platform.exists(instance)
