"""Killed at every seam of a rotation, a copy, a destruction: everything opens, or nothing does, and the next one ends it (A18, F15)."""

import json
import multiprocessing
import signal
from functools import partial

import pytest

from retention_pipeline.errors import RetentionError
from retention_pipeline.keys.local import LocalKeyring
from retention_pipeline.model.tenant_keys import KEY_COPIES
from retention_pipeline.postgres.tenant_keys import TenantKeys
from retention_pipeline.stages import verification
from retention_pipeline.storage.filesystem import FilesystemStore
from retention_pipeline_tests.faults import key_crash_runner as runner
from retention_pipeline_tests.worlds import Bench

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload([runner.__name__])
ONCE = ("keyring", "begin_destruction", "finish_destruction")


def made(bench: Bench, root) -> "Vault":
    """A tenant with two generations of its key, an archive under each, and copies beside them."""
    root.mkdir(mode=0o700)
    platform = bench.platform()
    bench.store = FilesystemStore(root, platform.tenant)
    platform.run(
        "INSERT INTO retention.grant_events (tenant_id, principal, permission, action)"
        " VALUES ('*', 'admin', 'workflow_retention:key_manage', 'add')"
    )
    vault = Vault(bench, platform, root)
    vault.archive()
    vault.add_generation()
    vault.archive()
    vault.run(runner.copy, "before nothing")
    return vault


@pytest.fixture(scope="module")
def lasting(shared, tmp_path_factory):
    """One for all rotations: each test leaves it whole."""
    return made(shared, tmp_path_factory.mktemp("lasting") / "archives")


@pytest.fixture
def vault(shared, tmp_path):
    return made(shared, tmp_path / "archives")


class Vault:
    def __init__(self, bench, platform, root):
        self.bench, self.platform, self.root, self.store = bench, platform, root, bench.store

    def archive(self):
        self.platform.add(contexts=1)
        self.bench.reconcile(self.platform)

    def told(self, seam, nth=1):
        return {
            "seam": seam,
            "nth": nth,
            "worker": self.bench.database.worker_url,
            "operator": self.bench.database.operator_url,
            "keyring": str(self.bench.keyring),
            "root": str(self.root),
            "tenant": self.platform.tenant,
        }

    def run(self, what, seam):
        return what(self.told(seam))

    def crash(self, what, seam, nth):
        process = PROCESSES.Process(target=what, args=(self.told(seam, nth),))
        process.start()
        process.join(60)
        return process.exitcode

    def add_generation(self):
        from contextlib import ExitStack

        from retention_pipeline.stages.key_rotation import rotate_tenant

        with ExitStack() as stack:
            desk, _, _ = runner.parts(stack, self.told("before nothing"), {})
            how = {"reason": "r", "correlation": "c"}
            assert rotate_tenant(desk, LocalKeyring(self.bench.keyring), self.platform.tenant, **how) == 2

    def opens(self):
        """Whether each archive opens for a process that has nothing in memory."""
        keys = TenantKeys(session=self.bench.session(), provider=LocalKeyring(self.bench.keyring))
        answers = []
        for archive in self.bench.world.records.archives(self.platform.tenant, limit=10):
            try:
                find = partial(keys.find, self.platform.tenant)
                verification.verify(self.store, archive.stored(archive.version), find)
            except RetentionError as error:
                answers.append(error.code)
            else:
                answers.append(True)
        return answers

    def copies(self):
        found = []
        for entry in self.store.walk(KEY_COPIES):
            with self.store.read(entry.key, entry.version) as stream:
                found.append(json.loads(stream.read(10_000)))
        return found

    def wrapped(self):
        return self.platform.connection.execute(
            "SELECT generation, root_key_id, encode(ciphertext, 'hex') FROM retention.tenant_keys WHERE tenant_id = %s"
            " ORDER BY 1",
            [self.platform.tenant],
        ).fetchall()


def nth_of(seam):
    return 1 if seam.split()[1] in ONCE else 2


@pytest.mark.parametrize("seam", runner.ROTATION_SEAMS)
def test_a_rotation_that_is_killed_loses_no_archive_and_the_next_one_ends_it(lasting, seam):
    """F15: every archive opens at every moment, and beside the archives lies what opens them."""
    before = LocalKeyring(lasting.bench.keyring).current()
    assert lasting.crash(runner.rotate, seam, nth_of(seam)) == -signal.SIGKILL
    assert lasting.opens() == [True, True]
    keyring = LocalKeyring(lasting.bench.keyring)
    roots = {keyring.current(), *keyring.roots()[1]}
    assert {copy["generation"] for copy in lasting.copies()} == {1, 2}
    assert {copy["root_key_id"] for copy in lasting.copies()} <= roots
    lasting.run(runner.rotate, "before nothing")
    assert keyring.current() != before
    assert lasting.opens() == [True, True]
    assert [root for _, root, _ in lasting.wrapped()] == [keyring.current()] * 2
    assert sorted((c["generation"], c["root_key_id"], c["ciphertext"]) for c in lasting.copies()) == lasting.wrapped()


@pytest.mark.parametrize("seam", runner.DESTRUCTION_SEAMS)
def test_a_destruction_that_is_killed_is_finished_by_the_next_one(vault, seam):
    """A18: until then the archives open, or do not; never one of two."""
    assert vault.crash(runner.end, seam, nth_of(seam)) == -signal.SIGKILL
    done = seam == "after finish_destruction"
    assert vault.opens() == ["RETENTION_KEY_DESTROYED" if done else True] * 2
    assert vault.run(runner.end, "before nothing") == (0 if done else 2)
    assert vault.opens() == ["RETENTION_KEY_DESTROYED"] * 2
    assert vault.copies() == []
    assert [ciphertext for *_, ciphertext in vault.wrapped()] == [None, None]
    found = vault.platform.connection.execute(
        "SELECT kind, count(*) FROM retention.audit_events WHERE tenant_id = %s AND kind LIKE 'key.destr%%' GROUP BY 1 ORDER BY 1",
        [vault.platform.tenant],
    ).fetchall()
    assert found == [("key.destroyed", 1), ("key.destruction_begun", 1)]
