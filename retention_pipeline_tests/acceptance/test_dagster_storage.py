"""Where the run history lives: files on a laptop, PostgreSQL where it is named, never files in production (SPEC D6)."""

import logging
from contextlib import contextmanager

import dagster as dg
import pytest
from dagster._core.storage.base_storage import DagsterStorage
from dagster._core.storage.event_log import SqliteEventLogStorage
from dagster._utils.tags import TagConcurrencyLimitsCounter
from dagster_postgres import PostgresEventLogStorage

from retention_pipeline.definitions import defs
from retention_pipeline.defs.config import ReconcileConfig
from retention_pipeline.defs.instance import RetentionStorage
from retention_pipeline.defs.instances import RUN_SECONDS
from retention_pipeline.defs.partitions import TENANTS
from retention_pipeline.errors import UsageFault
from retention_pipeline_tests.acceptance.conftest import AURORA, Office


@contextmanager
def opened():
    with dg.DagsterInstance.get() as instance:
        instance.add_dynamic_partitions(str(TENANTS.name), [str(AURORA.id)])
        yield instance


def test_without_a_database_the_history_is_in_the_home(installation, dagster_home):
    with opened() as instance:
        assert isinstance(instance.event_log_storage, SqliteEventLogStorage)
        assert Office(installation=installation, instance=instance).run(AURORA).success
        assert instance.get_materialized_partitions(dg.AssetKey("inventory")) == {str(AURORA.id)}
    assert list(dagster_home.rglob("*.db"))


@pytest.mark.parametrize("scheme", ["postgresql://", "postgres://"])
def test_with_a_database_the_history_is_there(installation, dagster_home, history_url, scheme):
    installation.configure(RETENTION_DAGSTER_STORAGE_URL=history_url.replace("postgresql://", scheme))
    with opened() as instance:
        assert isinstance(instance.event_log_storage, PostgresEventLogStorage)
        # Under SQLAlchemy 2.1 a bare postgresql:// means a driver that Dagster's notifications can't use.
        assert instance.event_log_storage.postgres_url.startswith("postgresql+psycopg2://")
        assert Office(installation=installation, instance=instance).run(AURORA).success
        assert instance.get_materialized_partitions(dg.AssetKey("inventory")) == {str(AURORA.id)}
    assert not list(dagster_home.rglob("*.db"))


def test_production_without_a_database_is_refused_by_the_name_of_the_setting(installation, dagster_home):
    installation.configure(RETENTION_ENVIRONMENT="production")
    with pytest.raises(UsageFault, match="RETENTION_SETTING_MISSING: RETENTION_DAGSTER_STORAGE_URL"), opened():
        pass


def test_it_says_which_of_them_it_is_and_not_where(installation, dagster_home, history_url, caplog):
    caplog.set_level(logging.INFO, logger="dagster")
    with opened():
        assert "The run history is in files, for this machine alone." in caplog.messages
    installation.configure(RETENTION_DAGSTER_STORAGE_URL=history_url)
    with opened():
        assert "The run history is in PostgreSQL." in caplog.messages
    assert history_url.rpartition("@")[2] not in caplog.text


def test_production_with_a_database_is_well(installation, dagster_home, history_url):
    installation.configure(RETENTION_ENVIRONMENT="production", RETENTION_DAGSTER_STORAGE_URL=history_url)
    with opened() as instance:
        assert isinstance(instance.event_log_storage, PostgresEventLogStorage)


def test_the_class_is_a_storage_as_dagster_demands_of_a_custom_one():
    assert issubclass(RetentionStorage, DagsterStorage)


def test_the_file_that_ships_keeps_runs_apart_and_retries_nothing(installation, dagster_home):
    with opened() as instance:
        assert instance.run_retries_max_retries == 0
        assert instance.run_monitoring_enabled
        assert instance.run_monitoring_max_runtime_seconds == 7200
        assert not instance.telemetry_enabled
        limits = instance.get_concurrency_config().run_queue_config.tag_concurrency_limits
        assert [(limit["key"], limit["limit"]) for limit in limits] == [("retention/job", 1), ("dagster/partition", 1)]
        assert all(limit["value"] == {"applyLimitPerUniqueValue": True} for limit in limits)
        assert RUN_SECONDS + 2 * ReconcileConfig().seconds < instance.run_monitoring_max_runtime_seconds


def test_a_second_run_of_the_job_waits_in_the_queue(installation, dagster_home):
    """A list and a range have no tag for each of their tenants: the job's own tag keeps them apart (G7)."""
    job = defs.resolve_job_def("reconcile_tenants")
    with opened() as instance:
        limits = instance.get_concurrency_config().run_queue_config.tag_concurrency_limits
    running, queued = (dg.DagsterRun(job_name=job.name, tags=dict(job.run_tags)) for _ in range(2))
    counter = TagConcurrencyLimitsCounter(limits, [running])
    assert counter.is_blocked(queued)
    assert not counter.is_blocked(dg.DagsterRun(job_name="another", tags={"retention/job": "another"}))
