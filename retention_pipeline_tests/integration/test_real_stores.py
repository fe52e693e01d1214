"""The whole chain on the stores that people use: a file system, and a versioned bucket of a real server (SPEC A5, A6, F1)."""

import pytest

from retention_pipeline.errors import Code
from retention_pipeline.model.outcome import Outcome
from retention_pipeline.stages import restoration
from retention_pipeline.storage.filesystem import FilesystemStore
from retention_pipeline_tests.conformance.conftest import make_store, transport
from retention_pipeline_tests.faulty import Altering, CuttingReads, Dropping, FlippingReads, LosingAnswers, flipped
from retention_pipeline_tests.seams import STORED, VERIFIED, acting

__all__ = ["make_store", "transport"]  # fixtures
INSTANCES = 4
LIES = {
    "dropped": (Dropping, Code.OBJECT_MISSING),
    "flipped": (lambda store: Altering(store, flipped), Code.OBJECT_DIGEST_MISMATCH),
    "flipped on the way back": (FlippingReads, Code.OBJECT_DIGEST_MISMATCH),
}


@pytest.fixture(params=["filesystem", "s3"])
def real(request, shared, tmp_path):
    """The bench on a real store."""
    if request.param == "filesystem":
        tmp_path.joinpath("data").mkdir(mode=0o700)
        shared.store = FilesystemStore(tmp_path / "data", "archives")
    else:
        shared.store = request.getfixturevalue("make_store")(request.getfixturevalue("make_bucket")())
    return shared


def due(bench):
    platform = bench.platform()
    return platform, [platform.add(contexts=1) for _ in range(INSTANCES)]


def test_each_instance_goes_and_its_archive_opens(real):
    """A5, A6."""
    platform, instances = due(real)
    report = real.reconcile(platform).report
    assert (report.outcome, report.counts.deleted) == (Outcome.COMPLETED, INSTANCES)
    opened = set()
    for attempt in real.world.records.archives(platform.tenant, limit=10):
        stored = restoration.restorable(attempt)
        manifest = restoration.open_archive(real.store, stored, lambda key: real.keys.find(platform.tenant, key))
        opened.add(manifest.instance)
    assert opened == set(instances)
    assert len(list(real.store.walk())) == INSTANCES


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_about_any_object_keeps_its_row(real, lie):
    """F1, A8."""
    wrap, code = LIES[lie]
    platform, instances = due(real)
    before = {i: real.rows(platform, i) for i in instances}
    report = real.reconcile(platform, world=real.with_store(wrap(real.store))).report
    assert not report.outcome.green
    assert set(report.counts.failures) <= {code, Code.OBJECT_UNAUTHENTIC, Code.OBJECT_MALFORMED, Code.IDENTITY_INVALID}
    assert {i: real.rows(platform, i) for i in instances} == before
    real.forget_back_offs(platform)
    assert real.reconcile(platform).report.outcome is Outcome.COMPLETED


def test_lost_answers_are_settled_without_a_second_object(real):
    """A5, F9: the conditional write itself refuses a second one."""
    platform, _ = due(real)
    report = real.reconcile(platform, world=real.with_store(LosingAnswers(real.store))).report
    assert (report.outcome, report.counts.deleted) == (Outcome.COMPLETED, INSTANCES)
    assert len(list(real.store.walk())) == INSTANCES


def test_a_connection_that_breaks_while_reading_loses_nothing(real):
    """A6, A8: read again by the next run, not written again."""
    platform, instances = due(real)
    report = real.reconcile(platform, world=real.with_store(CuttingReads(real.store))).report
    assert report.outcome is Outcome.FAILED
    assert all(platform.exists(i) for i in instances)
    again = real.reconcile(platform).report
    assert (again.outcome, again.counts.archived) == (Outcome.COMPLETED, 0)


@pytest.mark.parametrize(("moment", "goes"), [(STORED, False), (VERIFIED, True)])
def test_an_object_that_vanishes_keeps_its_row_unless_it_was_proven_a_moment_ago(real, moment, goes):
    """A6, A7: what was proven less than an hour ago is the proof."""
    platform, instances = due(real)

    def vanish():
        first = next(iter(real.store.walk()))
        real.store.delete(first.key, first.version)

    report = real.reconcile(platform, world=acting(real.world, moment, vanish)).report
    assert report.counts.failures == ({} if goes else {Code.OBJECT_MISSING: 1})
    assert sum(platform.exists(i) for i in instances) == (0 if goes else 1)
