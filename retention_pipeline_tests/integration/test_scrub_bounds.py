"""A scrub reads everything once in so many runs, within its bounds, and goes on after a crash (SPEC A19, W7, G7)."""

import itertools
import re
import threading
import tracemalloc
from collections import Counter
from contextlib import contextmanager

import pytest
from psycopg import sql

from retention_pipeline.errors import Code
from retention_pipeline.model.outcome import Outcome
from retention_pipeline.model.ports import StoredVersion
from retention_pipeline.model.scrub import CIRCLE, START, Position, Slice, Verdict
from retention_pipeline.postgres import scrub, store_lists
from retention_pipeline.stages.scrub import ScrubBounds
from retention_pipeline_tests.expiring import Vault
from retention_pipeline_tests.fakes import MemoryStore
from retention_pipeline_tests.faulty import Around
from retention_pipeline_tests.scrubbing import Keep


@pytest.fixture
def keep(shared):
    shared.store = MemoryStore()
    return Keep(bench=shared, platform=shared.platform())


class Counting(Around):
    """Counts how often each object is read, and may fail at one of them."""

    def __init__(self, inner, fail_at=None):
        super().__init__(inner)
        self.reads, self.fail_at = Counter(), fail_at

    @contextmanager
    def read(self, key, version):
        if sum(self.reads.values()) == self.fail_at:
            raise KeyboardInterrupt
        self.reads[key] += 1
        with self.inner.read(key, version) as stream:
            yield stream


@pytest.mark.parametrize("of", [1, 2, 3, 7, 30, 365, 9999])
def test_slices_follow_each_other_round_the_circle(of):
    """No point is left out, none is in two."""
    parts = [Slice(number=number, of=of) for number in range(1, of + 1)]
    assert (parts[0].first.point, parts[-1].end) == (0, CIRCLE)
    for one, next_one in itertools.pairwise(parts):
        assert one.end == next_one.first.point
        assert one.next == next_one.first
        assert Slice.at(one.next, of) == next_one
    assert parts[-1].next == START
    for part in (parts[0], parts[of // 2], parts[-1]):
        assert Slice.at(Position(point=part.end - 1, archive=START.archive), of) == part


def test_so_many_runs_read_everything_exactly_once_whatever_is_added_between_them(keep):
    """A19: and the runs after them go round again."""
    first = {keep.place(instance)[0] for instance in keep.archive(12)}
    store = Counting(keep.bench.store)
    for run in range(5):
        result = keep.scrub(slices=5, store=store)
        assert (result.part.number, result.report.outcome) == (run + 1, Outcome.COMPLETED)
        if run == 2:
            keep.archive(6)
    assert {key: n for key, n in store.reads.items() if key in first} == dict.fromkeys(first, 1)
    assert set(store.reads.values()) == {1}
    for _ in range(5):
        keep.scrub(slices=5, store=store)
    assert len(store.reads) == 18
    assert {store.reads[key] for key in first} == {2}


def test_a_slice_of_ones_own_leaves_the_position_alone(keep):
    keep.archive(6)
    assert keep.scrub(slices=4).part.number == 1
    store = Counting(keep.bench.store)
    for number in (1, 2, 3, 4):
        keep.scrub(slices=4, only=number, store=store)
    assert sorted(store.reads.values()) == [1] * 6
    assert keep.scrub(slices=4).part.number == 2


def test_a_bound_of_bytes_ends_a_run_and_the_next_one_goes_on(keep):
    """W7."""
    keep.archive(5)
    store = Counting(keep.bench.store)
    bounds = ScrubBounds(bytes=1)
    keep.records.move(keep.platform.tenant, START)
    seen = []
    while not seen or seen[-1].report.outcome is Outcome.WORK_REMAINS:
        seen.append(keep.scrub(slices=2, bounds=bounds, store=store))
        assert len(seen) < 10
    assert {result.report.reason for result in seen[:-1]} <= {"byte_bound"}
    assert all(result.tally.archives <= 1 for result in seen)
    while seen[-1].part.number == 1 or seen[-1].report.outcome is not Outcome.COMPLETED:
        seen.append(keep.scrub(slices=2, bounds=bounds, store=store))
    assert sorted(store.reads.values()) == [1] * 5


def test_a_bound_of_time_ends_a_run_and_says_so(keep):
    """W7, O1: what is left is the next run's, and the list was not whole."""
    keep.archive(3)
    ticks = iter(range(0, 100_000, 200))
    result = keep.scrub(slices=1, stopwatch=lambda: float(next(ticks)))
    assert (result.report.outcome, result.report.reason) == (Outcome.WORK_REMAINS, "time_bound")
    assert (result.tally.archives, result.tally.listed_whole) == (0, False)


def test_a_run_that_is_killed_half_way_is_gone_on_with(keep):
    """A8: what was read is not read again."""
    half = "SELECT count(*) FROM retention.attempts WHERE tenant_id = %s AND scrub_point < %s"
    while keep.platform.value(half, keep.platform.tenant, CIRCLE // 2) < 3:
        keep.archive(4)
    killed = Counting(keep.bench.store, fail_at=2)
    with pytest.raises(KeyboardInterrupt):
        keep.scrub(slices=2, store=killed)
    store = Counting(keep.bench.store)
    assert keep.scrub(slices=2, store=store).part.number == 1
    assert set((killed.reads + store.reads).values()) == {1}
    assert len(killed.reads + store.reads) == keep.platform.value(half, keep.platform.tenant, CIRCLE // 2)


def test_two_at_once_skip_each_other(keep):
    """G7."""
    keep.archive(2)
    entered, leave = threading.Event(), threading.Event()

    class Waiting(Around):
        def walk(self, below=""):
            entered.set()
            leave.wait(30)
            return self.inner.walk(below)

    results = []
    first = threading.Thread(target=lambda: results.append(keep.scrub(store=Waiting(keep.bench.store))))
    first.start()
    assert entered.wait(30)
    second = keep.scrub(records=keep.new_records())
    leave.set()
    first.join()
    assert (second.report.outcome, second.report.reason) == (Outcome.SKIPPED, Code.RUN_OVERLAPS)
    assert [r.report.outcome for r in results] == [Outcome.COMPLETED]


def test_scrubbing_beside_archiving_finds_nothing_that_is_not_so(keep):
    """F15: objects in flight are no strangers, and no record is missed."""
    results, done = [], threading.Event()
    records = keep.new_records()

    def scrub():
        while not done.is_set():
            results.append(keep.scrub(records=records))

    scrubber = threading.Thread(target=scrub)
    scrubber.start()
    try:
        for _ in range(4):
            keep.archive(5)
    finally:
        done.set()
        scrubber.join()
    assert len(results) > 2
    assert {result.report.outcome for result in results} == {Outcome.COMPLETED}
    assert (keep.events(), keep.scrub().tally.verdicts) == ([], {Verdict.INTACT: 20})


def test_scrubbing_beside_the_end_of_archives_misses_none(keep):
    """F15, F20: what goes by our own hand is no finding, at whatever moment it is looked for."""
    vault = Vault(bench=keep.bench, platform=keep.platform)
    archives = vault.archive(12)
    results, done = [], threading.Event()
    records = keep.new_records()

    def scrub():
        while not done.is_set():
            results.append(keep.scrub(records=records))

    scrubber = threading.Thread(target=scrub)
    scrubber.start()
    try:
        for _ in range(20):  # what is being read is passed by
            vault.expire()
            if all(vault.state(archive) == "tombstone" for archive in archives):
                break
    finally:
        done.set()
        scrubber.join()
    assert {vault.state(archive) for archive in archives} == {"tombstone"}
    assert {result.report.outcome for result in results} == {Outcome.COMPLETED}
    assert keep.events() == []


def test_memory_stays_flat_however_many_objects_there_are(keep, monkeypatch):
    """Neither list is ever held whole."""
    monkeypatch.setattr("retention_pipeline.postgres.store_lists.KEEP_UNKNOWN", 100)

    class Crowd(Around):
        def __init__(self, inner, number):
            super().__init__(inner)
            self.number = number

        def walk(self, below=""):
            for number in range(self.number):
                yield StoredVersion(key=f"crowd/{number:08d}", version="v", size=1)

    def peak(number):
        tracemalloc.start()
        try:
            assert keep.scrub(store=Crowd(keep.bench.store, number)).tally.unknown == number
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(1_000)
    assert peak(8_000) < 1.5 * peak(2_000)
    assert keep.scrub(store=Crowd(keep.bench.store, 200)).integrity.unknown <= 100


def test_the_next_page_and_what_a_page_lacks_are_found_by_an_index_however_many_archives_there_are(keep):
    """Under row-level security, too: a condition that could leak would be asked of every row."""
    tenant = keep.platform.tenant
    keep.archive(1)
    keep.platform.run(
        "INSERT INTO retention.attempts (id, tenant_id, instance_id, epoch, epoch_at, state, approval_id, job, run, holder,"
        " leased_until, profile_generation, archive_retention_days, key_id, object_key, object_version, object_size, object_sha256,"
        " plaintext_size, manifest_digest, manifest_format, fingerprint, shared_digest, rows_by_table, verified_at, source_deleted_at)"
        " SELECT gen_random_uuid(), tenant_id, n::text, epoch, epoch_at, state, approval_id, job, run, holder, leased_until,"
        " profile_generation, archive_retention_days, key_id, left(md5(n::text), 2) || '/' || md5(n::text), object_version,"
        " object_size, object_sha256, plaintext_size, manifest_digest, manifest_format, fingerprint, shared_digest, rows_by_table,"
        " verified_at, source_deleted_at FROM retention.attempts, generate_series(1, 20000) AS n WHERE tenant_id = %s",
        tenant,
    )
    keep.platform.run("ANALYZE retention.attempts")
    wanted = {"tenant": tenant, "point": CIRCLE // 2, "archive": START.archive, "end": CIRCLE, "limit": 100}
    page = {"after": "80", "through": "81", "generations": [1], "keys": [], "versions": [], "sizes": []}
    for statement, index in ((scrub._NEXT, "archives_by_point"), (store_lists._BETWEEN, "archives_by_name")):
        with keep.bench.session().transaction(tenant, read_only=True) as cursor:
            cursor.execute(sql.SQL("EXPLAIN (ANALYZE, FORMAT JSON) ") + statement, {**wanted, **page})
            plan = str(cursor.fetchone()[0])
        assert f"'Index Name': '{index}'" in plan
        assert int(re.search(r"'Rows Removed by Filter': (\d+)", plan + "'Rows Removed by Filter': 0")[1]) < 100, plan
