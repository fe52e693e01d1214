"""What people see of the chain before anything has run: order, words, and everything switched off (SPEC D1, D3, D4)."""

from itertools import pairwise

import dagster as dg
import pytest
from dagster._core.definitions.data_version import CachingStaleStatusResolver, StaleStatus
from dagster._core.loader import LoadingContextForTest

from retention_pipeline.definitions import defs
from retention_pipeline.defs.config import ExpiryConfig, ReconcileConfig, ScrubConfig, SweepConfig
from retention_pipeline.defs.partitions import TENANTS
from retention_pipeline_tests.acceptance.conftest import AURORA

CHAIN = ["inventory", "eligible_set", "encrypted_manifests", "verified_objects", "deletions", "archive_retention"]
SCRUB = "archive_scrub"
"""Beside the end of archives: it reads what the deletions rely on."""
GATES = {"catalog_fits_database", "preflight_acknowledged", "provider_ready", "canary_proven"}
SWEEPS = ["ephemeral_payloads", "job_evidence", "join_requests", "submission_ledgers", "workflow_history"]
BESIDE = {"tenant_overview": "workflow_instances", "audit_seals": "governance", "promised_runs": "governance"}
"""Assets that are no tenant's, with their groups."""
EFFECTS = {
    "reads",
    "writes-archives",
    "reads-archives",
    "deletes-source-rows",
    "deletes-archives",
    "seals-records",
    "clears-payloads",
    "archives-requests",
}
JOBS = ("reconcile_tenants", "expire_archives", "scrub_archives", *(f"sweep_{name}" for name in SWEEPS))
GRAPH = defs.resolve_asset_graph()


def node(name):
    return GRAPH.get(dg.AssetKey(name))


def test_the_definitions_load():
    dg.Definitions.validate_loadable(defs)


def test_the_lineage_is_the_order_of_the_work():
    for before, after in pairwise(CHAIN):
        assert node(after).parent_keys == {dg.AssetKey(before)}
    assert node("inventory").parent_keys == set()
    assert {key.to_user_string() for key in GRAPH.get_all_asset_keys()} == {*CHAIN, SCRUB, *SWEEPS, *BESIDE}
    assert node(SCRUB).parent_keys == {dg.AssetKey("deletions")}


def test_each_asset_of_the_chain_has_a_partition_for_each_tenant():
    for name in (*CHAIN, SCRUB, *SWEEPS):
        assert node(name).partitions_def == TENANTS
    for name in BESIDE:
        assert node(name).partitions_def is None


@pytest.mark.parametrize("name", [*CHAIN, SCRUB, *SWEEPS, *BESIDE])
def test_each_asset_says_what_it_is_and_whose(name):
    asset = node(name)
    assert len(asset.description) > 80
    assert asset.owners
    assert asset.kinds
    assert asset.tags.get("retention/effect") in EFFECTS
    assert asset.group_name == ("sweeps" if name in SWEEPS else BESIDE.get(name, "workflow_instances"))


def test_the_gates_are_checks_beside_the_inventory_that_say_what_to_do():
    found = {key.name: GRAPH.get(key) for key in GRAPH.asset_check_keys}
    assert set(found) > GATES
    assert {key.asset_key for key in GRAPH.asset_check_keys} == {dg.AssetKey("inventory"), dg.AssetKey(SCRUB)}
    assert " Else: " in found["archives_intact"].description
    for name in GATES:
        assert " Else: " in found[name].description, name
    assert all(check.description for check in found.values())
    assert not any(check.blocking for check in found.values())  # the lock is in the steps, and in the database


def test_jobs_schedules_and_sensors_say_what_they_do():
    repository = defs.get_repository_def()
    assert all(repository.get_job(name).description for name in JOBS)
    assert {schedule.name for schedule in repository.schedule_defs} == {
        "daily_preflight",
        "nightly_reconcile",
        "nightly_archive_retention",
        "daily_archive_scrub",
        "audit_sealing",
        "hourly_watch",
        *(f"{name}_schedule" for name in SWEEPS),
    }
    assert {sensor.name for sensor in repository.sensor_defs} == {"tenant_partitions", "join_requests_deadline"}
    assert all(made.description for made in (*repository.schedule_defs, *repository.sensor_defs))


@pytest.mark.parametrize("config", [ReconcileConfig, ExpiryConfig, ScrubConfig, SweepConfig])
def test_every_field_of_the_launchpad_is_explained(config):
    for name, field in config.to_config_schema().as_field().config_type.fields.items():
        assert len(field.description or "") > 20, name


def test_schedules_and_sensors_are_installed_stopped():
    repository = defs.get_repository_def()
    for schedule in repository.schedule_defs:
        assert schedule.default_status == dg.DefaultScheduleStatus.STOPPED
    for sensor in repository.sensor_defs:
        assert sensor.default_status == dg.DefaultSensorStatus.STOPPED


@pytest.mark.parametrize("kind", [ReconcileConfig, ExpiryConfig, SweepConfig])
def test_the_launchpad_unchanged_applies_nothing(kind):
    config = kind()
    assert (config.apply, config.approval, config.tenants) == (False, None, [])


def test_a_run_is_one_process_a_backfills_too():
    for job in (*map(defs.resolve_job_def, JOBS), defs.resolve_implicit_global_asset_job_def()):
        assert job.executor_def.name == "in_process"


@pytest.mark.parametrize("name", JOBS)
def test_no_run_is_retried_by_itself(name):
    job = defs.resolve_job_def(name)
    assert job.get_subset().op_retry_policy is None
    assert "dagster/max_retries" not in job.tags


def test_a_look_at_the_overview_makes_no_inventory_seem_out_of_date(installation, office):
    assert office.run(AURORA).success
    assert dg.materialize([defs.resolve_assets_def("tenant_overview")], instance=office.instance).success
    seen = CachingStaleStatusResolver(
        instance=office.instance, asset_graph=GRAPH, loading_context=LoadingContextForTest(office.instance)
    )
    assert seen.get_status(dg.AssetKey("inventory"), str(AURORA.id)) == StaleStatus.FRESH
    [event] = office.instance.fetch_materializations(dg.AssetKey("tenant_overview"), limit=1).records
    assert event.asset_materialization.metadata["tenants"].value == 3
