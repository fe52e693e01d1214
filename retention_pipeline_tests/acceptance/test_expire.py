"""Archives end as operators and schedules see it: at the command line and through Dagster (SPEC A10, G1, G3, O1, D1, D3)."""

import threading
from datetime import timedelta

import dagster as dg
import pytest

from retention_pipeline.definitions import defs
from retention_pipeline.defs.expiry import ASSET
from retention_pipeline.governance.approval import ApprovalRequest, Kind
from retention_pipeline.model.people import Job
from retention_pipeline.postgres import approvals
from retention_pipeline_tests.acceptance.conftest import AURORA, BOREALIS


def over(installation, archive):
    installation.change(
        "UPDATE retention.attempts SET source_deleted_at = now() - make_interval(hours => 24 * archive_retention_days)"
        " WHERE id = %s",
        archive,
    )


def shown_life(installation, archive):
    return next(entry for entry in installation.done("inspect")["archives"] if entry["archive"] == archive)


def test_an_archive_is_looked_at_held_released_and_ended(installation):
    """A10, G1: each answer says what is so."""
    instance, other = installation.due(AURORA)[:2]
    archive = installation.archive(AURORA, instance)
    installation.archive(AURORA, other)
    life = shown_life(installation, archive)
    assert (life["state"], life["kept_by"], life["lock_pending"]) == ("source_deleted", [], False)
    assert life["expires_at"] > "2030"
    assert installation.done("expire")["stays"] == {"not_yet_due": 2}
    over(installation, archive)
    installation.done("hold", instance, "--reason", "a court asks")
    told = installation.done("expire")
    assert (told["outcome"], told["due"], told["stays"]) == ("preflight", 0, {"not_yet_due": 1, "legal_hold": 1})
    assert installation.done("expire", "--apply", "--reason", "yearly")["expired"] == 0
    assert shown_life(installation, archive)["kept_by"] == ["legal_hold"]
    installation.done("hold", instance, "--release", "--reason", "settled")
    assert installation.done("expire")["due"] == 1
    told = installation.done("expire", "--apply", "--reason", "yearly")
    assert (told["outcome"], told["expired"], told["archives"]) == ("completed", 1, 1)
    assert shown_life(installation, archive)["state"] == "tombstone"
    late = installation.call("hold", instance, "--reason", "too late")
    assert (late.code, late.error) == (3, "RETENTION_HOLD_TOO_LATE")
    for command in (("inspect", archive), ("restore", archive, "--into-database")):
        assert installation.call(*command).error == "RETENTION_ARCHIVE_UNKNOWN"
    shown = installation.call("expire", as_json=False).out
    assert "nothing was changed" in shown
    assert archive[:8] not in shown
    [(actor, role)] = installation.rows(
        "SELECT actor, session_role FROM retention.audit_events WHERE kind = 'archive.expired'"
    )
    assert (actor, role) == ("admin", "worker")


def test_who_may_not_archive_may_not_end_archives(installation):
    """G3."""
    answer = installation.call("expire", "--apply", login="clerk")
    assert (answer.code, answer.error) == (3, "RETENTION_PERMISSION_DENIED")


@pytest.mark.parametrize("reason", [(), ("--reason", " ")])
def test_an_acknowledgement_of_what_is_due_needs_a_reason(installation, reason):
    assert installation.call("expire", "--acknowledge", *reason).code == 2


def test_what_is_due_is_accepted_by_name(installation):
    """G8."""
    assert installation.done("expire", "--acknowledge", "--reason", "looked at")["acknowledged"] is True
    assert installation.rows("SELECT due, reason, actor FROM retention.expiry_acknowledgements") == [
        (0, "looked at", "admin")
    ]
    assert installation.rows("SELECT actor FROM retention.audit_events WHERE kind = 'expiry_acknowledgement'") == [
        ("admin",)
    ]


def test_expiry_waits_for_a_restore_that_is_open(installation, monkeypatch):
    """F20: an archive that is being read does not go, by whatever process it is read."""
    instance = installation.due(AURORA)[0]
    archive = installation.archive(AURORA, instance)
    over(installation, archive)
    opened, finish = threading.Event(), threading.Event()

    def read_slowly():
        with installation.app() as app:
            inner = app._read

            def slow(attempt):
                opened.set()
                finish.wait(30)
                return inner(attempt)

            app._read = slow
            app.open_archive(AURORA.id, archive)

    reader = threading.Thread(target=read_slowly)
    reader.start()
    assert opened.wait(30)
    try:
        told = installation.done("expire", "--apply", "--reason", "yearly")
        assert (told["expired"], told["skipped"], told["due"]) == (0, 1, 1)
    finally:
        finish.set()
        reader.join()
    assert installation.done("expire", "--apply", "--reason", "yearly")["expired"] == 1


def test_a_bucket_that_locks_is_told_of_the_period_at_once_and_of_a_hold_too(installation, s3, make_bucket, admin):
    """A11: as the bucket's owner sees it."""
    bucket = make_bucket(lock=True)
    assert installation.use_bucket(AURORA, s3, bucket).json["ready"]
    instance = installation.due(AURORA)[0]
    archive = installation.archive(AURORA, instance)
    # Beside it lie wrapped keys, which no lock holds: a destroyed key must be able to go.
    listed = admin.list_object_versions(Bucket=bucket)["Versions"]
    [version] = [v for v in listed if "/keys/" not in f"/{v['Key']}" and "/audit/" not in f"/{v['Key']}"]
    place = {"Bucket": bucket, "Key": version["Key"], "VersionId": version["VersionId"]}
    retention = admin.get_object_retention(**place)["Retention"]
    life = shown_life(installation, archive)
    assert (retention["Mode"], life["lock_pending"]) == ("GOVERNANCE", False)
    assert retention["RetainUntilDate"].isoformat()[:19] == life["expires_at"][:19]
    for words, status in ((("--reason", "a court asks"), "ON"), (("--release", "--reason", "settled"), "OFF")):
        assert installation.done("hold", instance, *words)["locks_to_tell"] == 0
        assert admin.get_object_legal_hold(**place)["LegalHold"]["Status"] == status


def run(office, *tenants, **config):
    how = {"partition_key": str(tenants[0].id)} if len(tenants) == 1 else {}
    if len(tenants) > 1:
        config["tenants"] = [str(t.id) for t in tenants]
    return defs.resolve_job_def("expire_archives").execute_in_process(
        instance=office.instance,
        run_config={"ops": {"archive_life": {"config": config}}},
        raise_on_error=False,
        **how,
    )


def approve(office, tenant, kind):
    with office.installation.app() as app, app.operator().transaction(tenant.id) as cursor:
        request = ApprovalRequest(
            job=Job.EXPIRE, kind=kind, subject=None, max_items=10, lasts=timedelta(hours=1), reason="asked for"
        )
        return approvals.approve(cursor, tenant.id, request).id


def test_in_dagster_a_run_counts_unless_somebody_approved_and_a_schedule_needs_the_gates_too(office):
    """D1, D3, G4."""
    installation = office.installation
    archive = installation.archive(AURORA, installation.due(AURORA)[1])
    over(installation, archive)
    assert run(office, AURORA).success
    assert office.marked(ASSET) == set()
    assert not run(office, AURORA, apply=True).success  # without an approval
    assert run(office, AURORA, BOREALIS, apply=True, approval="standing").success
    assert (office.marked(ASSET), shown_life(installation, archive)["state"]) == (set(), "source_deleted")
    installation.open_gates(AURORA)
    approve(office, AURORA, Kind.STANDING)
    scheduled = run(office, AURORA, BOREALIS, apply=True, approval="standing")
    assert scheduled.success
    assert office.marked(ASSET) == {str(AURORA.id)}
    assert shown_life(installation, archive)["state"] == "tombstone"
    assert "preflight only. " in office.log(scheduled)  # for the other tenant, and why
    [event] = office.instance.fetch_materializations(dg.AssetKey(ASSET), limit=1).records
    assert event.asset_materialization.metadata["expired"].value == 1
