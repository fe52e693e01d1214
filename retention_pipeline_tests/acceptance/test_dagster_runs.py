"""The chain through Dagster: what a run does, what it marks, and what it says where it did nothing (SPEC D1-D4, G4, O1)."""

import base64
import subprocess
import sys
from xml.etree import ElementTree as ET

import dagster as dg
import pytest
from dagster._core.event_api import PartitionKeyFilter
from dagster._utils.error import serializable_error_info_from_exc_info

from retention_pipeline import clock
from retention_pipeline.app import App
from retention_pipeline.definitions import defs
from retention_pipeline.defs import instances
from retention_pipeline.defs.partitions import TENANTS
from retention_pipeline.defs.resources import ProductResource
from retention_pipeline.governance.approval import Kind
from retention_pipeline.model.people import Job
from retention_pipeline_tests.acceptance.conftest import AURORA, BOREALIS, CASCADE, TENANTS_OF_THE_SAMPLE

PREFLIGHT = ("inventory", "eligible_set")
WORK = ("encrypted_manifests", "verified_objects", "deletions")
CHECKS = [key for key in defs.resolve_asset_graph().asset_check_keys if key.asset_key == dg.AssetKey("inventory")]
PRODUCT = {"product": ProductResource()}
KEYS = {tenant: str(tenant.id) for tenant in TENANTS_OF_THE_SAMPLE}


def checked(office, tenant):
    """The newest answer of each check for one tenant, as the history has it."""
    found = office.instance.event_log_storage.get_latest_asset_check_execution_by_key(
        CHECKS, partition_filter=PartitionKeyFilter(key=KEYS[tenant])
    )
    return {key.name: record.status.value for key, record in found.items()}


def metadata(office, asset, tenant):
    records = office.instance.fetch_materializations(
        dg.AssetRecordsFilter(asset_key=dg.AssetKey(asset), asset_partitions=[KEYS[tenant]]), limit=1
    ).records
    return {name: value.value for name, value in records[0].asset_materialization.metadata.items()}


# -- a preflight


def test_a_run_that_nobody_changed_is_a_preflight_of_exactly_the_chosen_tenant(installation, office):
    before = installation.picture()
    result = office.run(AURORA)
    assert result.success
    assert [office.marked(name) for name in PREFLIGHT] == [{KEYS[AURORA]}] * 2
    assert [office.marked(name) for name in WORK] == [set()] * 3
    assert installation.picture() == before
    seen = metadata(office, "inventory", AURORA)
    assert seen["instances"] == AURORA.instances
    assert seen["eligible"] + seen["protected"] == AURORA.instances
    assert metadata(office, "eligible_set", AURORA)["instances"] == seen["eligible"]


def test_checks_are_recorded_for_the_tenant_that_they_are_about(installation, office):
    installation.acknowledge(BOREALIS)
    assert office.run(AURORA).success
    assert checked(office, AURORA) == {
        "every_instance_accounted": "SUCCEEDED",
        "no_foreign_rows": "SUCCEEDED",
        "catalog_fits_database": "SUCCEEDED",
        "preflight_acknowledged": "FAILED",
        "provider_ready": "SUCCEEDED",
        "canary_proven": "FAILED",
    }
    assert checked(office, BOREALIS) == {}
    assert office.run(tenants=[KEYS[AURORA], KEYS[BOREALIS]]).success
    assert checked(office, AURORA)["preflight_acknowledged"] == "FAILED"
    assert checked(office, BOREALIS)["preflight_acknowledged"] == "SUCCEEDED"


def test_no_check_stays_planned_when_partitions_were_chosen(installation, office):
    assert office.run(spread=(AURORA, BOREALIS)).success
    for key in CHECKS:
        history = office.instance.event_log_storage.get_asset_check_execution_history(key, limit=10)
        assert {record.status.value for record in history} <= {"SUCCEEDED", "FAILED"}
        assert {record.partition for record in history} == {KEYS[AURORA], KEYS[BOREALIS]}


def test_a_foreign_row_fails_its_check_and_stays_an_answer(installation, office):
    installation.change(
        "UPDATE nucleus.workflow_contexts SET tenant_id = %s WHERE id = (SELECT c.id FROM nucleus.workflow_contexts AS c"
        " WHERE c.tenant_id = %s ORDER BY c.id LIMIT 1)",
        BOREALIS.id,
        AURORA.id,
    )
    assert office.run(AURORA).success
    assert checked(office, AURORA)["no_foreign_rows"] == "FAILED"


def test_a_check_that_fails_says_what_to_do_and_one_that_passes_does_not(installation, office):
    result = office.run(AURORA)
    found = {check.check_name: check for check in result.get_asset_check_evaluations()}
    assert set(found) == {key.name for key in CHECKS}
    for name, check in found.items():
        assert ("what_to_do" in check.metadata) is not check.passed, name
    assert "retention reconcile --acknowledge" in found["preflight_acknowledged"].metadata["what_to_do"].value
    severe = {name for name, check in found.items() if check.severity is dg.AssetCheckSeverity.ERROR}
    assert severe == {"every_instance_accounted"}


def test_a_tenant_leaves_a_few_kilobytes_in_the_history_and_no_more(installation, office):
    """Every tenant, every night: a plot of 12 KB would be most of it (DESIGN 8)."""
    assert office.run(AURORA).success
    kept = office.instance.all_logs(office.instance.get_runs()[0].run_id)
    events = [e for e in kept if e.dagster_event and e.dagster_event.asset_key]
    assert sum(len(dg.serialize_value(event)) for event in events) < 20_000
    chart = metadata(office, "inventory", AURORA)["chart"]
    picture = base64.b64decode(chart.partition("base64,")[2].rstrip(")")).decode()
    bars = ET.fromstring(picture).findall("{http://www.w3.org/2000/svg}text")
    assert {"eligible", "not yet due"} <= {text.text for text in bars}
    assert len(chart) < 6_000


# -- an approved run


def test_without_an_approval_nothing_is_applied_and_the_run_is_red(installation, office):
    installation.acknowledge(AURORA)
    before = installation.picture()
    result = office.run(AURORA, apply=True)
    assert not result.success
    assert "RETENTION_APPROVAL_REQUIRED 1" in office.why(result)
    assert [office.marked(name) for name in WORK] == [set()] * 3
    assert installation.picture() == before


def test_an_approved_run_does_the_whole_chain_in_the_name_of_who_approved(installation, office):
    installation.acknowledge(AURORA)
    due, there = installation.eligible(AURORA), installation.instances(AURORA)
    result = office.run(AURORA, apply=True, approval=installation.approve(AURORA))
    assert result.success
    assert [office.marked(name) for name in (*PREFLIGHT, *WORK)] == [{KEYS[AURORA]}] * 5
    gone = there - installation.instances(AURORA)
    assert len(gone) == due > 0
    assert installation.states(AURORA) == {"source_deleted": due}
    events = installation.rows(
        "SELECT DISTINCT kind, actor, run FROM retention.audit_events WHERE subject = ANY(%s)", list(gone)
    )
    assert events
    assert {(actor, run) for _, actor, run in events} == {("admin", result.run_id)}
    assert metadata(office, "deletions", AURORA)["deleted"] == due


def test_an_approval_serves_one_run(installation, office):
    installation.acknowledge(AURORA)
    approval = installation.approve(AURORA)
    assert office.run(AURORA, apply=True, approval=approval).success
    assert "RETENTION_APPROVAL_INVALID 1" in office.why(office.run(AURORA, apply=True, approval=approval))


def test_an_approval_of_another_tenant_is_none(installation, office):
    installation.acknowledge(AURORA)
    result = office.run(AURORA, apply=True, approval=installation.approve(BOREALIS))
    assert "RETENTION_APPROVAL_INVALID 1" in office.why(result)


# -- several tenants


@pytest.mark.parametrize("how", ["a list", "a range"])
def test_one_tenant_that_is_blocked_neither_stops_nor_marks_the_others(installation, office, how):
    installation.open_gates(*TENANTS_OF_THE_SAMPLE)
    for tenant in TENANTS_OF_THE_SAMPLE:
        installation.approve(tenant, kind=Kind.STANDING)
    lose_an_epoch(installation, BOREALIS)
    stays, due = installation.instances(BOREALIS), installation.eligible(AURORA) + installation.eligible(CASCADE)
    which = {"tenants": list(KEYS.values())} if how == "a list" else {"spread": spread(office)}
    result = office.run(**which, apply=True, approval="standing")
    assert not result.success
    assert office.why(result) == (
        "1 of 3 tenants did not get their work done: RETENTION_MISSING_EPOCHS_UNACKNOWLEDGED 1."
    )
    others = {KEYS[AURORA], KEYS[CASCADE]}
    assert [office.marked(name) for name in WORK] == [others] * 3
    # Its inventory was truly taken, and says what stopped the rest.
    assert [office.marked(name) for name in PREFLIGHT] == [{*others, KEYS[BOREALIS]}] * 2
    assert (
        "RETENTION_MISSING_EPOCHS_UNACKNOWLEDGED"
        in metadata(office, "eligible_set", BOREALIS)["what_would_stop_an_apply"]
    )
    assert installation.instances(BOREALIS) == stays
    assert due > 0
    assert installation.eligible(AURORA) + installation.eligible(CASCADE) == 0


def test_one_tenant_that_fails_unforeseen_neither_stops_nor_marks_the_others(installation, office, monkeypatch):
    whole = App.reconcile

    def reconcile(app, tenant, **how):
        if tenant == BOREALIS.id:
            raise ValueError("a library's text with hidden/borealis in it")
        return whole(app, tenant, **how)

    monkeypatch.setattr(App, "reconcile", reconcile)
    result = office.run(tenants=list(KEYS.values()))
    assert office.why(result) == "1 of 3 tenants did not get their work done: RETENTION_INTERNAL 1."
    assert office.marked("inventory") == {KEYS[AURORA], KEYS[CASCADE]}
    assert "hidden/borealis" not in office.log(result)


def test_a_run_that_is_out_of_time_begins_no_further_tenant_and_the_next_begins_with_those(
    installation, office, monkeypatch
):
    """W7: it is red, so that a backfill's retry takes them."""
    listed = [KEYS[CASCADE], KEYS[AURORA], KEYS[BOREALIS]]
    readings = iter([0.0, 0.0, instances.RUN_SECONDS + 1])
    with monkeypatch.context() as patched:
        patched.setattr(instances, "monotonic", lambda: next(readings))
        result = office.run(tenants=listed)
    assert office.why(result) == "2 of 3 tenants did not get their work done: not_reached 2."
    assert [office.marked(name) for name in PREFLIGHT] == [{KEYS[CASCADE]}] * 2
    result = office.run(tenants=listed)
    assert result.success
    order = [event.partition for event in result.all_events if event.is_step_materialization]
    assert list(dict.fromkeys(order)) == [KEYS[AURORA], KEYS[BOREALIS], KEYS[CASCADE]]


def test_what_was_done_is_told_though_the_tenant_can_not_be_looked_at_afterwards(installation, office, monkeypatch):
    installation.acknowledge(AURORA)
    due = installation.eligible(AURORA)
    whole = App.reconcile

    def reconcile(app, tenant, **how):
        result = whole(app, tenant, **how)
        monkeypatch.setattr(App, "worker", None)
        return result

    monkeypatch.setattr(App, "reconcile", reconcile)
    approval = installation.approve(AURORA)
    assert office.run(AURORA, apply=True, approval=approval).success
    assert metadata(office, "deletions", AURORA)["deleted"] == due


@pytest.mark.parametrize(
    ("config", "code"),
    [
        ({}, "RETENTION_USAGE"),
        ({"tenants": []}, "RETENTION_USAGE"),
        ({"tenants": [""]}, "RETENTION_TENANT_UNKNOWN"),
        ({"tenants": ["*"]}, "RETENTION_TENANT_UNKNOWN"),
        ({"tenants": ["aurora"]}, "RETENTION_TENANT_UNKNOWN"),  # an alias is no id
        ({"tenants": [KEYS[AURORA], KEYS[AURORA].upper()]}, "RETENTION_TENANT_UNKNOWN"),
    ],
)
def test_a_selector_that_is_empty_or_mistyped_is_refused(office, config, code):
    result = office.run(**config)
    assert not result.success
    assert office.why(result).startswith(f"{code}: ")
    assert office.marked("inventory") == set()


def test_partitions_and_a_list_together_are_refused(office):
    assert office.why(office.run(AURORA, tenants=[KEYS[BOREALIS]])).startswith("RETENTION_USAGE: ")
    assert office.marked("inventory") == set()


def test_a_partition_that_the_platform_does_not_know_is_refused(office):
    office.instance.add_dynamic_partitions(str(TENANTS.name), ["stranger"])
    result = defs.resolve_job_def("reconcile_tenants").execute_in_process(
        instance=office.instance, partition_key="stranger", raise_on_error=False
    )
    assert office.why(result).startswith("RETENTION_TENANT_UNKNOWN: ")


def test_a_tenant_that_is_named_twice_runs_once(installation, office):
    assert office.run(tenants=[KEYS[AURORA]] * 2).success
    assert installation.rows("SELECT count(*) FROM retention.run_outcomes WHERE tenant_id = %s", AURORA.id) == [(1,)]


@pytest.mark.parametrize(
    "bounds", [{"batches": 21}, {"batches": 0}, {"batch": 501}, {"batch": -1}, {"seconds": 301.0}, {"seconds": 0.0}]
)
def test_bounds_out_of_range_are_refused_in_the_step(installation, office, bounds):
    """The launchpad lets them pass (W7)."""
    result = office.run(AURORA, **bounds)
    assert office.why(result).startswith("RETENTION_USAGE: ")
    assert installation.rows("SELECT count(*) FROM retention.preflights") == [(0,)]


def test_bounds_below_what_is_due_leave_the_rest_and_say_so(installation, office):
    installation.acknowledge(AURORA)
    due = installation.eligible(AURORA)
    office.run(AURORA, apply=True, approval=installation.approve(AURORA), batches=1, batch=2)
    assert installation.eligible(AURORA) == due - 2
    assert metadata(office, "deletions", AURORA)["why_it_ended"] == "batch_bound"
    assert metadata(office, "deletions", AURORA)["backlog"] == due - 2
    assert metadata(office, "deletions", AURORA)["runs_to_catch_up"] == str(-(-(due - 2) // 2))


# -- a part of the chain


def test_each_step_can_be_chosen_alone_and_goes_on_from_what_is_recorded(installation, office):
    installation.acknowledge(AURORA)
    due = installation.eligible(AURORA)
    for chosen, state in (
        ("encrypted_manifests", "stored"),
        ("verified_objects", "verified"),
        ("deletions", "source_deleted"),
    ):
        assert installation.eligible(AURORA) == due
        result = office.run(AURORA, assets=(chosen,), apply=True, approval=installation.approve(AURORA))
        assert [name for name in WORK if office.marked(name)] == list(WORK[: WORK.index(chosen) + 1]), office.log(
            result
        )
        assert installation.states(AURORA) == {state: due}
    assert installation.eligible(AURORA) == 0
    assert office.marked("inventory") == set()  # nobody asked for it


def test_deletions_alone_without_anything_verified_delete_nothing(installation, office):
    installation.acknowledge(AURORA)
    before = installation.picture()
    office.run(AURORA, assets=("deletions",), apply=True, approval=installation.approve(AURORA))
    assert installation.picture() == before


# -- schedules


def test_with_closed_gates_a_standing_approval_gives_a_preflight_that_says_why(installation, office):
    installation.approve(AURORA, kind=Kind.STANDING)
    before = installation.picture()
    result = office.run(tenants=[KEYS[AURORA]], apply=True, approval="standing")
    assert result.success
    assert installation.picture() == before
    assert [office.marked(name) for name in WORK] == [set()] * 3
    why = metadata(office, "eligible_set", AURORA)["why_only_a_preflight"]
    assert "retention reconcile --acknowledge" in why
    assert "retention restore" in why
    assert f"preflight only. {why}" in office.log(result)


def test_with_open_gates_and_no_standing_approval_too(installation, office):
    installation.open_gates(AURORA)
    assert office.run(tenants=[KEYS[AURORA]], apply=True, approval="standing").success
    assert "standing" in metadata(office, "eligible_set", AURORA)["why_only_a_preflight"]
    assert office.marked("deletions") == set()


def test_with_open_gates_and_a_standing_approval_a_schedule_applies_night_after_night(installation, office):
    installation.open_gates(AURORA)
    installation.approve(AURORA, kind=Kind.STANDING)
    due = installation.eligible(AURORA)
    assert due > 0
    assert office.run(tenants=[KEYS[AURORA]], apply=True, approval="standing").success
    assert metadata(office, "deletions", AURORA)["deleted"] == due
    assert office.run(tenants=[KEYS[AURORA]], apply=True, approval="standing").success
    assert metadata(office, "deletions", AURORA)["deleted"] == 0


def test_a_lease_that_another_run_holds_is_skipped_and_green(installation, office):
    installation.acknowledge(AURORA)
    installation.change(
        "INSERT INTO retention.leases (tenant_id, job, holder, fence, expires_at)"
        " VALUES (%s, %s, 'another', 1, now() + interval '1 minute')",
        AURORA.id,
        Job.RECONCILE,
    )
    before = installation.picture()
    result = office.run(AURORA, apply=True, approval=installation.approve(AURORA))
    assert result.success
    assert "skipped (RETENTION_RUN_OVERLAPS)" in office.log(result)
    assert [office.marked(name) for name in WORK] == [set()] * 3
    assert installation.picture() == before


@pytest.mark.parametrize(("name", "apply"), [("daily_preflight", False), ("nightly_reconcile", True)])
def test_a_tick_asks_for_lists_of_at_most_fifty_without_a_partition(installation, office, name, apply):
    installation.change(
        "INSERT INTO nucleus.tenants (id, alias) SELECT gen_random_uuid(), 'more-' || n FROM generate_series(1, 60) AS n"
    )
    schedule = defs.get_repository_def().get_schedule_def(name)
    with dg.build_schedule_context(
        instance=office.instance, scheduled_execution_time=clock.utc_now(), resources=PRODUCT
    ) as context:
        requests = schedule.evaluate_tick(context).run_requests
    lists = [r.run_config["ops"]["instance_archive"]["config"]["tenants"] for r in requests]
    assert [len(tenants) for tenants in lists] == [50, 13]
    assert len({tenant for tenants in lists for tenant in tenants}) == 63
    for request in requests:
        assert "dagster/partition" not in request.tags
        assert request.partition_key is None
        assert request.run_config["ops"]["instance_archive"]["config"]["apply"] is apply
    assert len({request.run_key for request in requests}) == 2


def test_the_sensor_adds_what_is_missing_and_never_removes(installation, office):
    name = str(TENANTS.name)
    office.instance.delete_dynamic_partition(name, KEYS[CASCADE])
    office.instance.add_dynamic_partitions(name, ["a tenant that left"])
    sensor = defs.get_repository_def().get_sensor_def("tenant_partitions")

    def tick():
        with dg.build_sensor_context(instance=office.instance, resources=PRODUCT) as context:
            return sensor.evaluate_tick(context)

    [request] = tick().dynamic_partitions_requests
    assert isinstance(request, dg.AddDynamicPartitionsRequest)
    assert list(request.partition_keys) == [KEYS[CASCADE]]
    office.instance.add_dynamic_partitions(name, request.partition_keys)
    again = tick()
    assert not again.dynamic_partitions_requests
    assert again.skip_message == "All 3 tenants are partitions."


def test_a_tick_without_a_database_says_so_by_its_code(installation, office):
    installation.configure(RETENTION_WORKER_URL="postgresql://worker:hidden@127.0.0.1:1/gone")
    schedule = defs.get_repository_def().get_schedule_def("daily_preflight")
    with (
        dg.build_schedule_context(
            instance=office.instance, scheduled_execution_time=clock.utc_now(), resources=PRODUCT
        ) as context,
        pytest.raises(dg.DagsterError) as caught,
    ):
        schedule.evaluate_tick(context)
    kept = serializable_error_info_from_exc_info((caught.type, caught.value, caught.tb)).to_string()
    assert "RETENTION_DATABASE_UNAVAILABLE" in kept
    assert "hidden" not in kept


def test_loading_opens_no_connection():
    words = (
        "import socket\n"
        "def refuse(*_): raise SystemExit('a connection was opened')\n"
        "socket.socket.connect = refuse\n"
        "import psycopg; psycopg.connect = refuse\n"
        "from retention_pipeline.definitions import defs\n"
        "defs.get_repository_def().load_all_definitions()\n"
    )
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def lose_an_epoch(installation, tenant):
    installation.change(
        "DELETE FROM nucleus.workflow_terminal_epochs WHERE instance_id = %s",
        installation.due(tenant)[0],
    )


def spread(office):
    """The first and the last partition, in the order that a range goes by."""
    keys = office.instance.get_dynamic_partitions(str(TENANTS.name))
    by_key = {key: tenant for tenant, key in KEYS.items()}
    return by_key[keys[0]], by_key[keys[-1]]
