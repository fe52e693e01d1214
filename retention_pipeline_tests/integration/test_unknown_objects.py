"""What no record names goes on request alone, a day after it was first seen, and never what may be an archive (SPEC A19, F15, G4)."""

from hashlib import sha256

import psycopg
import pytest

from retention_pipeline.errors import Code, Refused
from retention_pipeline.model.ids import InstanceId
from retention_pipeline.model.outcome import Outcome
from retention_pipeline.model.scrub import Verdict
from retention_pipeline.postgres.unknown_objects import PostgresUnknownObjects
from retention_pipeline.stages.unknown_objects import Removal
from retention_pipeline.storage.filesystem import FilesystemStore
from retention_pipeline_tests.conformance.conftest import make_store, transport
from retention_pipeline_tests.fakes import MemoryStore
from retention_pipeline_tests.faulty import Around, lost
from retention_pipeline_tests.scrubbing import Keep

__all__ = ["make_store", "transport"]  # fixtures


@pytest.fixture
def keep(shared):
    shared.store = MemoryStore()
    return Keep(bench=shared, platform=shared.platform())


@pytest.fixture
def unknown(keep):
    return PostgresUnknownObjects(session=keep.bench.session())


def put(store, key, body=b"a stranger's"):
    return store.put_once(key, body, sha256=sha256(body).digest())


def days_ago(keep, days):
    keep.platform.run(
        "UPDATE retention.unknown_objects SET first_seen = now() - make_interval(hours => 24 * %s) WHERE tenant_id = %s",
        days,
        keep.platform.tenant,
    )


def remove(keep, *, apply=True, approval=None, store=None, **how):
    keep.runs += 1
    return Removal(
        scrub=keep.records,
        unknown=PostgresUnknownObjects(session=keep.bench.session()),
        records=keep.bench.world.records,
        stores=lambda _tenant, _generation: store or keep.bench.store,
        tenant=keep.platform.tenant,
        run=f"removal-{keep.runs}",
        apply=apply,
        approval=approval or (keep.bench.approve(keep.platform, job="scrub_remove") if apply else None),
        **how,
    )()


def test_an_unknown_object_goes_on_request_a_day_after_it_was_first_seen(keep):
    """A19: not by itself, not at once, and nothing else with it."""
    keep.archive(2)
    put(keep.bench.store, "00/stranger")
    keep.scrub()
    young = remove(keep)
    assert (young.report.outcome, young.found.all, young.found.removable) == (Outcome.COMPLETED, 1, 0)
    days_ago(keep, 1)
    keep.scrub()  # seen again: since when does not change
    looked = remove(keep, apply=False)
    assert (looked.report.outcome, looked.found.removable) == (Outcome.PREFLIGHT, 1)
    assert len(keep.bench.store.kept) == 3
    done = remove(keep)
    assert (done.report.outcome, done.report.counts.removed, done.found.all) == (Outcome.COMPLETED, 1, 0)
    assert "00/stranger" not in keep.bench.store.kept
    assert keep.scrub().tally.verdicts == {Verdict.INTACT: 2}
    assert keep.events()[-2:] == ["scrub.removing", "scrub.removed"]
    actor = "SELECT actor FROM retention.audit_events WHERE tenant_id = %s AND kind = 'scrub.removed'"
    assert keep.platform.value(actor, keep.platform.tenant) == "postgres"  # who approved


def test_what_looks_like_an_archive_stays_for_a_person_to_decide(keep):
    """F15: after a restore of the database, what it does not know may be the only copy."""
    [instance] = keep.archive()
    key, version = keep.place(instance)
    keep.platform.run("DELETE FROM retention.receipts WHERE tenant_id = %s", keep.platform.tenant)
    keep.platform.run("DELETE FROM retention.attempts WHERE tenant_id = %s", keep.platform.tenant)
    keep.scrub()
    days_ago(keep, 9)
    result = remove(keep)
    assert (result.report.outcome, result.report.counts.failures) == (Outcome.PARTIAL, {Code.OBJECT_IS_ARCHIVE: 1})
    assert [kept.version for kept in keep.bench.store.kept[key]] == [version]
    assert keep.events()[-1] == f"scrub.kept {Code.OBJECT_IS_ARCHIVE}"


def test_what_an_abandoned_attempt_left_late_is_removable(keep):
    """A5, F15: it was never the only copy."""
    [instance] = keep.archive()
    key, _ = keep.place(instance)
    keep.platform.run(
        "UPDATE retention.attempts SET state = 'abandoned', object_version = NULL, verified_at = NULL,"
        " source_deleted_at = NULL WHERE instance_id = %s",
        instance,
    )
    assert keep.scrub().tally.unknown == 1
    days_ago(keep, 1)
    assert remove(keep).report.counts.removed == 1
    assert key not in keep.bench.store.kept


def test_what_a_record_names_by_now_is_refused_by_the_database(keep, unknown):
    """A19: whatever the program believes."""
    [instance] = keep.archive()
    key, version = keep.place(instance)
    keep.platform.run(
        "INSERT INTO retention.unknown_objects (tenant_id, profile_generation, object_key, object_version, object_size, last_run,"
        " first_seen) VALUES (%s, 1, %s, %s, 1, 'r', '2020-01-01')",
        keep.platform.tenant,
        key,
        version,
    )
    result = remove(keep)
    assert result.report.counts.failures == {Code.OBJECT_NAMED: 1}
    assert key in keep.bench.store.kept


@pytest.fixture
def worker(keep):
    with psycopg.connect(keep.bench.database.worker_url, autocommit=True) as connection:
        connection.execute("SELECT set_config('retention.tenant_id', %s, false)", [keep.platform.tenant])
        yield connection


@pytest.mark.parametrize(
    ("statement", "state"),
    [
        ("UPDATE retention.unknown_objects SET removing_at = now()", "RT060"),
        ("UPDATE retention.unknown_objects SET first_seen = '2020-01-01'", "42501"),
        (
            (
                "INSERT INTO retention.unknown_objects (tenant_id, profile_generation, object_key, object_version, object_size,"
                " last_run, first_seen) VALUES (retention.current_tenant(), 1, 'x', 'v', 1, 'r', '2020-01-01')"
            ),
            "42501",
        ),
    ],
)
def test_the_workers_login_alone_makes_no_object_older(keep, worker, statement, state):
    """G4: since when it was seen is the database's to say."""
    put(keep.bench.store, "stranger")
    keep.scrub()
    with pytest.raises(psycopg.Error) as refused:
        worker.execute(statement)
    assert refused.value.sqlstate == state


def test_nothing_goes_without_an_approval_for_this_very_job(keep, worker):
    """G4: of the program, and of the database."""
    put(keep.bench.store, "stranger")
    keep.scrub()
    days_ago(keep, 1)
    with pytest.raises(psycopg.Error) as refused:
        worker.execute("UPDATE retention.unknown_objects SET removing_at = now()")
    assert refused.value.sqlstate == "RT010"
    with pytest.raises(Refused) as told:
        remove(keep, approval=keep.bench.approve(keep.platform, job="expire"))
    assert told.value.code is Code.APPROVAL_INVALID
    assert "stranger" in keep.bench.store.kept


def test_an_approval_bounds_how_many_go(keep):
    """G4."""
    for number in range(3):
        put(keep.bench.store, f"stranger-{number}")
    keep.scrub()
    days_ago(keep, 1)
    result = remove(keep, approval=keep.bench.approve(keep.platform, job="scrub_remove", items=2))
    assert (result.report.outcome, result.report.counts.removed, result.found.removable) == (Outcome.WORK_REMAINS, 2, 1)


class Deaf(Around):
    def delete(self, key, version):
        raise lost()


def test_a_store_that_does_not_answer_is_asked_again_another_time(keep):
    """A8: the mark stays, and the next request goes on."""
    put(keep.bench.store, "stranger")
    keep.scrub()
    days_ago(keep, 1)
    result = remove(keep, store=Deaf(keep.bench.store))
    assert (result.report.outcome, result.found.all) == (Outcome.PARTIAL, 1)
    assert remove(keep).report.counts.removed == 1


def test_what_the_store_locks_stays(shared):
    shared.store = MemoryStore(locks=True)
    keep = Keep(bench=shared, platform=shared.platform())
    put(shared.store, "stranger")
    shared.store.kept["stranger"][0].held = True
    keep.scrub()
    days_ago(keep, 1)
    assert remove(keep).report.counts.failures == {Code.OBJECT_LOCKED: 1}
    assert "stranger" in shared.store.kept


@pytest.mark.parametrize("kind", ["filesystem", "s3"])
def test_a_real_store_is_scrubbed_and_cleared(shared, kind, request, tmp_path):
    """A19, F1: missing, changed and unknown, on disk and in a bucket."""
    if kind == "filesystem":
        shared.store = FilesystemStore(tmp_path, "p")
    else:
        shared.store = request.getfixturevalue("make_store")(request.getfixturevalue("make_bucket")())
    keep = Keep(bench=shared, platform=shared.platform())
    good, gone, replaced = keep.archive(3)
    put(shared.store, "00/stranger")
    if kind == "filesystem":
        (tmp_path / "p" / "note.txt").write_text("plain")
        (tmp_path / "p" / "strange name@").write_text("plain")
        (tmp_path / "p" / b"\xff\xfe".decode(errors="surrogateescape")).write_text("no text")
    assert keep.scrub().tally.verdicts == {Verdict.INTACT: 3}
    for instance in (gone, replaced):
        shared.store.delete(*keep.place(instance))
    put(shared.store, keep.place(replaced)[0], b"other bytes")
    result = keep.scrub()
    strangers = 5 if kind == "filesystem" else 2
    assert (result.tally.verdicts, result.tally.unknown) == ({Verdict.INTACT: 1, Verdict.MISSING: 2}, strangers)
    days_ago(keep, 1)
    done = remove(keep)
    left = {Code.STORE_PATH_UNSAFE: 1} if kind == "filesystem" else {}
    assert (done.report.counts.removed, done.report.counts.failures) == (strangers - 2 if left else 2, left)
    assert keep.scrub().tally.unknown == (2 if left else 0)
    assert [stored.key for stored in shared.store.walk() if stored.key == keep.place(InstanceId(good))[0]]
