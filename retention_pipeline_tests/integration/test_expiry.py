"""An archive ends when its own period is over, by the version that was verified, and while nothing keeps it (SPEC A10, F5, F8, F20)."""

from dataclasses import replace
from datetime import timedelta

import psycopg
import pytest

from retention_pipeline.errors import Code, Refused, RetentionError, Unavailable
from retention_pipeline.model.expiry import Stay
from retention_pipeline.model.outcome import Outcome
from retention_pipeline.model.ports import Deletion
from retention_pipeline.postgres import archive_lives
from retention_pipeline.postgres.expiry import PostgresExpiries
from retention_pipeline.stages import restoration
from retention_pipeline.stages.expiry import brake_signals
from retention_pipeline.stages.reconcile import Bounds
from retention_pipeline_tests.conformance.conftest import make_store, transport
from retention_pipeline_tests.expiring import AT, Vault
from retention_pipeline_tests.fakes import MemoryStore
from retention_pipeline_tests.faulty import Around
from retention_pipeline_tests.seams import Seams

__all__ = ["make_store", "transport"]  # fixtures
MICROSECOND = timedelta(microseconds=1)


@pytest.fixture
def vault(shared):
    shared.store = MemoryStore()
    return Vault(bench=shared, platform=shared.platform())


def test_an_archive_goes_when_its_period_is_over_and_leaves_its_record(vault):
    """A10: a tombstone with the verification's record, one audit event, no object."""
    [archive] = vault.archive()
    report = vault.expire().report
    assert (report.outcome, report.reason, report.counts.expired) == (Outcome.COMPLETED, "exhausted", 1)
    assert (vault.state(archive), vault.has_object(archive)) == ("tombstone", False)
    assert vault.events(vault.instances[0]) == ["archive.expiring", "archive.expired"]
    kept = "SELECT verified_at IS NOT NULL AND object_deleted_at IS NOT NULL FROM retention.attempts WHERE id = %s"
    assert vault.platform.value(kept, archive)
    assert vault.expire().report.counts.selected == 0


@pytest.mark.parametrize(("by", "goes"), [(-MICROSECOND, False), (timedelta(0), True), (MICROSECOND, True)])
def test_it_stays_one_microsecond_before(vault, by, goes):
    """A10, F13."""
    [archive] = vault.archive(over_by=by)
    found = vault.expire(apply=False).found
    assert (found.due, found.stays) == ((1, {}) if goes else (0, {Stay.NOT_YET_DUE: 1}))
    vault.expire()
    assert vault.state(archive) == ("tombstone" if goes else "source_deleted")


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/Los_Angeles"])
def test_no_time_zone_moves_the_boundary(vault, zone):
    """F13: a period over two changes of the clocks is so many times 24 hours."""
    early, late = vault.archive(2)
    vault.over(late, by=-MICROSECOND)
    vault.platform.run(f"ALTER ROLE worker IN DATABASE {vault.bench.database.name} SET TimeZone = '{zone}'")
    try:
        vault.expiries = PostgresExpiries(session=vault.bench.session())
        assert vault.expire(as_of=AT.astimezone()).report.counts.expired == 1
    finally:
        vault.platform.run(f"ALTER ROLE worker IN DATABASE {vault.bench.database.name} RESET TimeZone")
    assert (vault.state(early), vault.state(late)) == ("tombstone", "source_deleted")


def test_a_preflight_changes_nothing(vault):
    [archive] = vault.archive()
    result = vault.expire(apply=False)
    assert (result.report.outcome, result.found.due, result.found.archives) == (Outcome.PREFLIGHT, 1, 1)
    assert (vault.state(archive), vault.has_object(archive)) == ("source_deleted", True)


def test_unlimited_retention_never_ends(vault):
    """A10."""
    [archive] = vault.archive(over_by=timedelta(days=9000))
    vault.platform.run("UPDATE retention.attempts SET archive_retention_days = 0 WHERE id = %s", archive)
    result = vault.expire()
    assert (result.report.outcome, result.found.stays) == (Outcome.COMPLETED, {Stay.UNLIMITED: 1})
    assert vault.has_object(archive)


def test_a_later_profile_does_not_shorten_what_was_captured(vault):
    """A10: the captured period counts; the profile's newest one is for archives to come."""
    [archive] = vault.archive()
    vault.platform.run("UPDATE retention.attempts SET archive_retention_days = 3650 WHERE id = %s", archive)
    vault.platform.run(
        "INSERT INTO retention.profiles (tenant_id, generation, provider, configuration, archive_retention_days)"
        " VALUES (%s, 2, 'filesystem', '{\"prefix\": \"p\"}', 365)",
        vault.platform.tenant,
    )
    assert vault.expire().found.stays == {Stay.NOT_YET_DUE: 1}
    assert vault.has_object(archive)


def test_a_hold_keeps_the_archive_the_refusal_is_audited_once_and_a_release_lets_it_go(vault):
    """A10, F5, G1."""
    [archive] = vault.archive()
    [instance] = vault.instances
    vault.hold(instance)
    for _ in range(2):
        result = vault.expire()
        assert (result.report.outcome, result.found.stays) == (Outcome.COMPLETED, {Stay.LEGAL_HOLD: 1})
    assert vault.events(instance) == [f"archive.kept {Code.ARCHIVE_HELD}"]
    assert vault.has_object(archive)
    vault.hold(instance, "release")
    assert vault.expire().report.counts.expired == 1


def acting(vault, method, act, *, before=True):
    return Seams(vault.expiries, **{"before" if before else "after": {method: act}})


def test_a_hold_after_the_selection_and_before_the_mark_keeps_it(vault):
    """F5."""
    [archive] = vault.archive()
    [instance] = vault.instances
    report = vault.expire(archives=acting(vault, "mark", lambda: vault.hold(instance))).report
    assert (report.outcome, report.counts.skipped) == (Outcome.COMPLETED, 1)
    assert (vault.state(archive), vault.has_object(archive)) == ("source_deleted", True)
    assert vault.events(instance) == [f"archive.kept {Code.ARCHIVE_HELD}"]


def test_a_hold_after_the_mark_is_told_that_it_comes_too_late(vault):
    """G1: never "OK"."""
    [archive] = vault.archive()
    told = []

    def late():
        with pytest.raises(psycopg.Error) as refusal:
            vault.hold(vault.instances[0])
        told.append(refusal.value.sqlstate)

    assert vault.expire(archives=acting(vault, "mark", late, before=False)).report.counts.expired == 1
    assert (told, vault.state(archive)) == (["RT001"], "tombstone")


def test_a_hold_on_an_instance_that_stands_again_is_never_too_late_and_saves_what_is_left(vault):
    """G1, F5: it came after the mark, and the object was there still."""
    [archive] = vault.archive()
    [instance] = vault.instances

    def back_and_held():
        vault.platform.run(
            "INSERT INTO nucleus.workflow_instances (id, tenant_id, workflow_id, state, title)"
            " VALUES (%s, %s, %s, 'running', 'brought back')",
            instance,
            vault.platform.tenant,
            vault.platform.workflow,
        )
        vault.hold(instance)

    report = vault.expire(archives=acting(vault, "mark", back_and_held, before=False)).report
    assert (report.counts.expired, report.counts.skipped) == (0, 1)
    assert (vault.state(archive), vault.has_object(archive)) == ("source_deleted", True)
    bound = "SELECT count(*) FROM retention.hold_bindings WHERE attempt_id = %s"
    assert vault.platform.value(bound, archive) == 1


def test_a_hold_waits_for_a_deletion_in_progress_and_is_told_how_it_ended(vault):
    """G1: between the last look at the holds and the store's answer there is no gap."""
    vault.archive()
    [instance] = vault.instances
    answers = []

    class Slow(Around):
        def delete(self, key, version):
            with vault.bench.database.superuser() as other:
                other.execute("SET lock_timeout = '100ms'")
                try:
                    other.execute(
                        "INSERT INTO retention.hold_events (tenant_id, instance_id, matter, action, reason, correlation)"
                        " VALUES (%s, %s, 'm', 'hold', 'r', 'c')",
                        [vault.platform.tenant, instance],
                    )
                except psycopg.errors.LockNotAvailable:
                    answers.append("waits")
            return self.inner.delete(key, version)

    assert vault.expire(world=vault.bench.with_store(Slow(vault.bench.store))).report.counts.expired == 1
    assert answers == ["waits"]


def test_what_the_provider_holds_stays_and_can_be_held_again(vault):
    """F8, A11: blocked until then; it was not deleted, so a hold is not too late."""
    vault.bench.store = MemoryStore(locks=True)
    [archive] = vault.archive()
    [instance] = vault.instances
    key = vault.platform.value("SELECT object_key FROM retention.attempts WHERE id = %s", archive)
    version = vault.platform.value("SELECT object_version FROM retention.attempts WHERE id = %s", archive)
    until = vault.platform.value("SELECT now() + interval '9 days'")
    vault.bench.store.lock(key, version, until=until)
    report = vault.expire().report
    assert (report.outcome, report.counts.expired, report.counts.failed) == (Outcome.WORK_REMAINS, 0, 0)
    assert (vault.state(archive), vault.has_object(archive)) == ("source_deleted", True)
    waits = "SELECT not_before FROM retention.expiry_waits WHERE attempt_id = %s"
    assert vault.platform.value(waits, archive) == until
    result = vault.expire(as_of=AT + timedelta(days=8))
    assert result.report.outcome is Outcome.BEHIND
    assert (result.found.stays, result.found.waiting_for) == ({Stay.WAITING: 1}, {Code.OBJECT_LOCKED: 1})
    vault.hold(instance)
    vault.hold(instance, "release")
    vault.bench.store.lock(key, version, until=AT)
    vault.platform.run("UPDATE retention.expiry_waits SET not_before = now() WHERE attempt_id = %s", archive)
    assert vault.expire().report.counts.expired == 1


def test_what_vanished_before_our_mark_is_done_with_an_alarm(vault):
    """F8: somebody else deletes archives; the run is not green."""
    archive, other = vault.archive(2)
    key = vault.platform.value("SELECT object_key FROM retention.attempts WHERE id = %s", archive)
    del vault.bench.store.kept[key]
    report = vault.expire().report
    assert (report.outcome, report.counts.expired) == (Outcome.PARTIAL, 2)
    assert report.counts.failures == {Code.OBJECT_MISSING: 1}
    assert (vault.state(archive), vault.state(other)) == ("tombstone", "tombstone")
    assert vault.events(vault.instances[0])[-1] == f"archive.expired {Code.OBJECT_MISSING}"
    assert vault.expire().report.outcome is Outcome.COMPLETED


def test_what_is_gone_after_our_own_mark_is_no_alarm(vault):
    """F8, F2: the answer was lost, and the object went."""
    [archive] = vault.archive()

    class Losing(Around):
        def delete(self, key, version):
            self.inner.delete(key, version)
            raise Unavailable(Code.STORE_UNAVAILABLE, "The answer was lost.", remedy="Again.")

    report = vault.expire(world=vault.bench.with_store(Losing(vault.bench.store))).report
    assert report.outcome is Outcome.PARTIAL
    assert vault.state(archive) == "expiring"
    vault.platform.run("UPDATE retention.expiry_waits SET not_before = now() WHERE attempt_id = %s", archive)
    again = vault.expire().report
    assert (again.outcome, again.counts.expired, again.counts.failures) == (Outcome.COMPLETED, 1, {})
    assert vault.state(archive) == "tombstone"


def test_a_store_that_does_not_answer_begins_nothing(vault):
    """A8, F4: nothing is marked, a hold can still come, the run has failed."""
    vault.archive(4)

    class Dark(Around):
        def versions(self, key):
            raise Unavailable(Code.STORE_UNAVAILABLE, "No answer.", remedy="Again.")

    report = vault.expire(world=vault.bench.with_store(Dark(vault.bench.store))).report
    assert (report.outcome, report.reason) == (Outcome.FAILED, Code.STORE_UNAVAILABLE)
    assert vault.bench.states(vault.platform) == {"source_deleted": 4}
    vault.hold(vault.instances[0])


def test_a_store_that_says_deleted_and_lists_it_still_is_not_believed(vault):
    """F1."""
    [archive] = vault.archive()

    class Lying(Around):
        def delete(self, key, version):
            return Deletion.DELETED

    report = vault.expire(world=vault.bench.with_store(Lying(vault.bench.store))).report
    assert (report.outcome.green, report.counts.failures) == (False, {Code.STORE_PROTOCOL: 1})
    assert vault.state(archive) == "expiring"


def test_only_the_verified_version_goes(vault):
    """A10: by the opaque version and by no other name."""
    [archive] = vault.archive()
    key = vault.platform.value("SELECT object_key FROM retention.attempts WHERE id = %s", archive)
    stranger = type(vault.bench.store.kept[key][0])(version="somebody-else", body=b"x")
    vault.bench.store.kept[key].append(stranger)
    assert vault.expire().report.outcome is Outcome.COMPLETED
    assert vault.bench.store.kept[key] == [stranger]


def test_an_archive_that_somebody_reads_waits(vault):
    """F20."""
    [archive] = vault.archive()
    reader = vault.bench.session()
    with reader.transaction(vault.platform.tenant, read_only=True) as cursor:
        archive_lives.share(cursor, vault.platform.tenant, archive)
        report = vault.expire().report
        assert (report.counts.expired, report.counts.skipped) == (0, 1)
    assert vault.has_object(archive)
    assert vault.expire().report.counts.expired == 1


def test_a_restore_that_comes_after_the_mark_is_refused_and_one_before_it_keeps_the_archive(vault):
    """F20: nobody puts back what is going, or loses what was put back."""
    early, late = vault.archive(2)
    bench, tenant = vault.bench, vault.platform.tenant
    read = {}
    for archive in (early, late):
        attempt = bench.world.records.attempt(tenant, archive)
        stored = restoration.restorable(attempt)
        read[archive] = attempt, restoration.open_archive(bench.store, stored, lambda key: bench.keys.find(tenant, key))

    def put_back(archive):
        approval = bench.approve(vault.platform, job="restore", subject=archive)
        attempt, manifest = read[archive]
        return restoration.into_database(
            bench.world.records, bench.restorer, attempt, manifest, approval_id=approval, run="restoring"
        )

    assert put_back(early).identical
    told = []

    def too_late():
        with pytest.raises(Refused) as refusal:
            put_back(late)
        told.append(refusal.value.code)

    report = vault.expire(as_of=None, archives=acting(vault, "mark", too_late, before=False)).report
    assert (report.counts.expired, told) == (1, [Code.ARCHIVE_UNKNOWN])
    assert (vault.state(early), vault.state(late)) == ("source_deleted", "tombstone")
    assert vault.expire(as_of=None, apply=False).found.stays == {Stay.RESTORED: 1}


def test_an_archive_that_was_put_back_lately_waits_for_its_grace(vault):
    """F20, A17."""
    [archive] = vault.archive()
    vault.platform.run(
        "INSERT INTO retention.restorations (tenant_id, instance_id, attempt_id, approval_id, grace_until)"
        " SELECT tenant_id, instance_id, id, approval_id, %s::timestamptz + interval '1 microsecond'"
        " FROM retention.attempts WHERE id = %s",
        AT,
        archive,
    )
    assert vault.expire().found.stays == {Stay.RESTORED: 1}
    assert vault.expire(as_of=AT + MICROSECOND).report.counts.expired == 1


@pytest.mark.parametrize("state", ["superseded", "conflict", "abandoned"])
def test_objects_of_attempts_off_the_path_go_after_thirty_days(vault, state):
    """DESIGN 4: by the recorded version; the attempt keeps its state."""
    early, late, unknown = vault.archive(3, over_by=timedelta(days=-300))
    ended = (
        "UPDATE retention.attempts SET state = %s, source_deleted_at = NULL,"
        " ended_at = %s::timestamptz - interval '30 days' WHERE id = %s"
    )
    vault.platform.run(ended, state, AT, early)
    vault.platform.run(ended, state, AT + MICROSECOND, late)
    vault.platform.run(ended, state, AT, unknown)
    vault.platform.run("UPDATE retention.attempts SET object_version = NULL WHERE id = %s", unknown)
    report = vault.expire().report
    assert (report.outcome, report.counts.removed, report.counts.expired) == (Outcome.COMPLETED, 1, 0)
    assert [vault.state(a) for a in (early, late)] == [state, state]
    assert [vault.has_object(a) for a in (early, late)] == [False, True]
    assert len(vault.bench.store.kept) == 2  # what no record names by its version stays
    vault.hold(vault.instances[1])
    assert vault.expire(as_of=AT + timedelta(days=1)).found.leftovers_held == 1
    assert vault.has_object(late)


def test_a_run_keeps_its_bounds_and_the_next_goes_on(vault):
    """W7, G4."""
    vault.archive(5)
    assert vault.expire(bounds=Bounds(batches=1, batch=2)).report.reason == "batch_bound"
    limited = vault.bench.approve(vault.platform, job="expire", items=1)
    assert vault.expire(approval=limited).report.reason == "approval_bound"
    assert vault.bench.states(vault.platform) == {"tombstone": 3, "source_deleted": 2}
    assert vault.expire().report.outcome is Outcome.COMPLETED


def test_one_archive_that_can_not_be_deleted_stops_no_other(vault):
    """F7: it waits, longer each time."""
    archives = vault.archive(3)
    key = vault.platform.value("SELECT object_key FROM retention.attempts WHERE id = %s", archives[0])

    class Denying(Around):
        def delete(self, name, version):
            if name == key:
                raise Refused(Code.STORE_DENIED, "Denied.", remedy="Allow it.")
            return self.inner.delete(name, version)

    report = vault.expire(world=vault.bench.with_store(Denying(vault.bench.store))).report
    assert (report.outcome, report.counts.expired) == (Outcome.PARTIAL, 2)
    assert report.counts.failures == {Code.STORE_DENIED: 1}
    assert vault.expire().report.counts.selected == 0
    assert (vault.state(archives[0]), vault.has_object(archives[0])) == ("source_deleted", True)
    vault.hold(vault.instances[0])  # what could not be deleted may be held again


def test_far_more_than_was_accepted_stops_before_anything_is_touched(vault):
    """G8, F17."""
    vault.archive(1)
    found = vault.expire(apply=False).found
    brake = vault.bench.world.brake
    many = replace(found, archives=5000, due=501)
    nothing = vault.expiries.acknowledged(vault.platform.tenant)
    assert [s.code for s in brake_signals(many, nothing, brake)] == [Code.BRAKE]
    assert brake_signals(replace(many, due=500), nothing, brake) == ()
    tight = replace(vault.bench.world, brake=replace(brake, instances=0, share=0.0))
    result = vault.expire(world=tight)
    assert (result.report.outcome, result.report.reason) == (Outcome.BLOCKED, Code.BRAKE)
    assert vault.bench.states(vault.platform) == {"source_deleted": 1}
    with vault.bench.database.superuser() as admin, admin.transaction(), admin.cursor() as cursor:
        archive_lives.acknowledge(cursor, vault.platform.tenant, found, "looked at")
    assert vault.expire(world=tight).report.outcome is Outcome.COMPLETED


def test_two_runs_of_one_tenant_never_overlap(vault):
    """G7."""
    vault.archive()
    assert vault.bench.world.records.take_lease(vault.platform.tenant, "expire", "somebody") is not None
    assert vault.expire().report.outcome is Outcome.SKIPPED


def test_two_workers_end_an_archive_once(vault):
    """G7: should both have it in their hands all the same."""
    [archive] = vault.archive()
    due = vault.expiries.due(vault.platform.tenant, AT, 10)
    vault.expire()
    [taken] = due
    approval = vault.bench.world.records.use_approval(
        vault.platform.tenant, vault.bench.approve(vault.platform, job="expire"), "expire", "other", None
    )
    assert vault.expiries.mark(taken, as_of=AT, approval=approval, run="other") is Code.ARCHIVE_IN_USE
    assert vault.state(archive) == "tombstone"
    assert vault.events(vault.instances[0]).count("archive.expired") == 1


@pytest.mark.parametrize(
    "change",
    [
        "state = 'expiring', expiring_at = now()",
        "archive_retention_days = 365",
        "source_deleted_at = now() - interval '9 years'",
        "state = 'tombstone', object_deleted_at = now()",
        "expiring_at = now()",
    ],
)
def test_the_database_itself_refuses_an_early_end(vault, change):
    """A10: whatever the worker's login asks for."""
    [archive] = vault.archive()
    vault.platform.run(
        "UPDATE retention.attempts SET archive_retention_days = 3650, source_deleted_at = now() WHERE id = %s", archive
    )
    change = f"UPDATE retention.attempts SET {change} WHERE id = %s"
    with pytest.raises(RetentionError), vault.bench.session().transaction(vault.platform.tenant) as cursor:
        cursor.execute(change.encode(), [archive])
    assert (vault.state(archive), vault.expire().found.stays) == ("source_deleted", {Stay.NOT_YET_DUE: 1})


def test_the_database_itself_refuses_an_end_without_an_approval(vault):
    """G4."""
    [archive] = vault.archive(over_by=timedelta(days=1))
    worker = vault.bench.session()
    with pytest.raises(Refused, match=Code.APPROVAL_INVALID), worker.transaction(vault.platform.tenant) as cursor:
        cursor.execute("UPDATE retention.attempts SET state = 'expiring', expiring_at = now() WHERE id = %s", [archive])


def test_on_a_real_bucket_the_exact_version_goes_and_no_delete_marker_stays(vault, make_bucket, make_store, admin):
    """F8: and a version that somebody else removed is an alarm there, too."""
    bucket = make_bucket()
    vault.bench.store = make_store(bucket)
    gone, going = vault.archive(2)
    key = str(vault.platform.value("SELECT object_key FROM retention.attempts WHERE id = %s", gone))
    versions = admin.list_object_versions(Bucket=bucket)["Versions"]
    [name] = [found["Key"] for found in versions if found["Key"].endswith(key)]
    admin.delete_object(Bucket=bucket, Key=name, VersionId=next(v["VersionId"] for v in versions if v["Key"] == name))
    report = vault.expire().report
    assert (report.counts.expired, report.counts.failures) == (2, {Code.OBJECT_MISSING: 1})
    left = admin.list_object_versions(Bucket=bucket)
    assert (left.get("Versions", []), left.get("DeleteMarkers", [])) == ([], [])
    assert vault.state(going) == "tombstone"
