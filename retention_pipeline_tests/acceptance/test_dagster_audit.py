"""The sealing job: one run for everybody, counts only, red when something was not done (SPEC G5, A16, D3)."""

import json

import dagster as dg
import pytest

from retention_pipeline.definitions import defs
from retention_pipeline_tests.acceptance.conftest import AURORA

COUNTS = {"tenants", "blocks", "events", "anchors", "backdated", "left", "oldest_unsealed_seconds"}


@pytest.fixture
def sealing(installation):
    with dg.DagsterInstance.ephemeral() as instance:

        def run():
            return defs.resolve_job_def("seal_audit").execute_in_process(instance=instance, raise_on_error=False)

        run.instance = instance
        yield run


def test_a_run_seals_every_chain_and_the_next_has_nothing_to_do(installation, sealing):
    installation.done("reconcile")
    assert sealing().success
    [event] = sealing.instance.fetch_materializations(dg.AssetKey("audit_seals"), limit=1).records
    counts = {name: value.value for name, value in event.asset_materialization.metadata.items()}
    assert set(counts) >= COUNTS
    assert counts["events"] > counts["tenants"] >= 2  # a tenant's, and the installation's own
    assert (counts["left"], counts["backdated"]) == (0, 0)
    assert counts["anchors"] >= 1
    told = installation.done("audit", "verify")
    assert (told["sound"], told["unsealed"]) == (True, 0)
    assert told["anchored_at"]
    assert sealing().success
    [event] = sealing.instance.fetch_materializations(dg.AssetKey("audit_seals"), limit=1).records
    assert event.asset_materialization.metadata["events"].value == 0


def test_a_store_that_fails_makes_the_run_red_and_the_blocks_stand(installation, sealing):
    """It says the code and counts, and neither a tenant nor a place."""
    installation.done("reconcile")
    (installation.home / "archives").rename(installation.home / "away")
    result = sealing()
    assert not result.success
    [failed] = [e for e in result.all_events if e.is_step_failure]
    told = failed.step_failure_data.user_failure_data
    assert "WORKFLOW_ARCHIVE_STORE_MISSING" in told.description
    assert told.metadata["events"].value > 0
    assert installation.done("audit", "verify", "--without-anchors")["unsealed"] == 0
    history = json.dumps([str(entry) for entry in sealing.instance.all_logs(result.run_id)])
    assert str(AURORA.id) not in history
    assert str(installation.home / "archives") not in history
    assert "audit/" not in history


def test_a_run_without_a_keyring_fails_by_name(installation, sealing):
    (installation.home / "keyring.json").unlink()
    result = sealing()
    [failed] = [e for e in result.all_events if e.is_step_failure]
    assert "RETENTION_KEYRING_MISSING" in failed.step_failure_data.user_failure_data.description
