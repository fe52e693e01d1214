"""Killed at every seam of an archive's end: what is gone is on record, what is not can still be read or ended (SPEC A10, F2)."""

import multiprocessing
import signal
from datetime import timedelta
from functools import partial

import pytest

from retention_pipeline.model.outcome import Outcome
from retention_pipeline.stages import verification
from retention_pipeline.storage.filesystem import FilesystemStore
from retention_pipeline_tests.expiring import Vault
from retention_pipeline_tests.faults import crash_runner

ARCHIVES = 3
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload([crash_runner.__name__])
ONCE = ("due", "drop_lease")
SEAMS = [(seam, 1 if seam.split()[1] in ONCE else 1 + n % 2) for n, seam in enumerate(crash_runner.EXPIRY_SEAMS)]


@pytest.fixture
def vault(shared, tmp_path):
    root = tmp_path / "archives"
    root.mkdir(mode=0o700)
    platform = shared.platform()
    shared.store = FilesystemStore(root, platform.tenant)
    vault = Vault(bench=shared, platform=platform)
    vault.root = root
    vault.archives = vault.archive(ARCHIVES, over_by=timedelta(hours=1))
    return vault


def crash(vault, seam, nth):
    told = {
        "seam": seam,
        "nth": nth,
        "worker": vault.bench.database.worker_url,
        "keyring": str(vault.bench.keyring),
        "root": str(vault.root),
        "tenant": vault.platform.tenant,
        "approval": vault.bench.approve(vault.platform, job="expire"),
    }
    process = PROCESSES.Process(target=crash_runner.run_expiry, args=(told,))
    process.start()
    process.join(60)
    return process.exitcode


def nothing_is_forgotten(vault):
    """An object that is gone was marked before; a tombstone has none; whatever was not marked opens."""
    for archive in vault.archives:
        state, there = vault.state(archive), vault.has_object(archive)
        assert (state, there) in {
            ("source_deleted", True),
            ("expiring", True),
            ("expiring", False),
            ("tombstone", False),
        }
        if there:
            found = vault.bench.world.records.attempt(vault.platform.tenant, archive)
            keys = partial(vault.bench.keys.find, vault.platform.tenant)
            assert verification.verify(vault.bench.store, found.stored(found.version), keys)


@pytest.mark.parametrize(("seam", "nth"), SEAMS)
def test_a_run_that_is_killed_forgets_nothing_and_the_next_one_ends_it(vault, seam, nth):
    """F2: no false alarm either."""
    assert crash(vault, seam, nth) == -signal.SIGKILL
    nothing_is_forgotten(vault)
    vault.bench.end_leases(vault.platform)
    report = vault.expire().report
    assert (report.outcome, report.counts.failures) == (Outcome.COMPLETED, {})
    assert vault.bench.states(vault.platform) == {"tombstone": ARCHIVES}
    assert list(vault.bench.store.walk()) == []
    for instance in vault.instances:
        assert [event for event in vault.events(instance) if event == "archive.expired"] == ["archive.expired"]
