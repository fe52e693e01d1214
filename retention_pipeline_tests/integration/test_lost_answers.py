"""A commit whose answer is lost, or a backend that ends: nothing is in neither place, nothing happens twice (SPEC A5, A8, F2)."""

import socket
import threading
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

import pytest

from retention_pipeline.errors import Code
from retention_pipeline.model.archive import AttemptState
from retention_pipeline.model.outcome import Outcome
from retention_pipeline.postgres.swap import Swap
from retention_pipeline.stages import restoration
from retention_pipeline.stages.world import Step
from retention_pipeline.storage.filesystem import FilesystemStore
from retention_pipeline_tests.databases import Database
from retention_pipeline_tests.seams import Seams
from retention_pipeline_tests.worlds import Bench

INSTANCES = 3


@pytest.fixture
def durable(shared, tmp_path):
    """The bench on a store that outlives a process."""
    (tmp_path / "data").mkdir(mode=0o700)
    shared.store = FilesystemStore(tmp_path / "data", "archives")
    return shared


@pytest.fixture
def due(durable):
    """A tenant with instances that are due, and how they look."""
    platform = durable.platform()
    return platform, {i: durable.rows(platform, i) for i in [platform.add(contexts=1) for _ in range(INSTANCES)]}


def nothing_is_lost(bench, platform, looked):
    """Each instance is whole in the source, or its archive is proven, recorded, receipted, and opens as that instance."""
    recorded = {a.instance: a for a in bench.world.records.archives(platform.tenant, limit=100)}
    for instance, before in looked.items():
        if platform.exists(instance):
            assert bench.rows(platform, instance) == before
            continue
        attempt = recorded[instance]
        assert attempt.state is AttemptState.SOURCE_DELETED
        manifest = restoration.open_archive(
            bench.store, restoration.restorable(attempt), lambda key: bench.keys.find(platform.tenant, key)
        )
        assert manifest.instance == instance
    known = {
        row[0]
        for row in platform.connection.execute(
            "SELECT object_key FROM retention.attempts WHERE tenant_id = %s", [platform.tenant]
        ).fetchall()
    }
    assert {found.key for found in bench.store.walk()} <= known


def everything_happened_once(bench, platform, looked):
    """One receipt, one event and one object for each instance, and none of them in the source any more."""
    assert not any(platform.exists(instance) for instance in looked)
    for counted in (
        "SELECT instance_id, count(*) FROM retention.receipts WHERE tenant_id = %s GROUP BY 1",
        "SELECT subject, count(*) FROM retention.audit_events WHERE tenant_id = %s AND kind = 'instance.deleted' GROUP BY 1",
    ):
        assert dict(platform.connection.execute(counted, [platform.tenant]).fetchall()) == dict.fromkeys(looked, 1)
    assert bench.states(platform)["source_deleted"] == len(looked)
    assert len(list(bench.store.walk())) == len(looked)


def test_until_a_dead_workers_lease_has_ended_nobody_else_takes_its_work(durable, due):
    """G7: it might be alive."""
    platform, looked = due
    durable.reconcile(platform, steps=frozenset({Step.ENCRYPTED_MANIFESTS}))
    platform.run("UPDATE retention.attempts SET leased_until = 'infinity' WHERE tenant_id = %s", platform.tenant)
    report = durable.reconcile(platform).report
    assert (report.counts.archived, report.counts.deleted) == (0, 0)
    assert durable.states(platform) == {"stored": INSTANCES}
    durable.end_leases(platform)
    assert durable.reconcile(platform).report.outcome is Outcome.COMPLETED
    everything_happened_once(durable, platform, looked)


class LosingCommits:
    """A door between a client and the server; once armed, the next commit is done, and its answer is lost."""

    def __init__(self, port):
        self.target, self.armed, self.lost = port, False, 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.threads = [threading.Thread(target=self._accept)]
        self.threads[0].start()

    def _accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self.target))
            doomed = threading.Event()
            for ends in ((client, server, doomed, True), (server, client, doomed, False)):
                self.threads.append(threading.Thread(target=self._pump, args=ends))
                self.threads[-1].start()

    def _pump(self, source, sink, doomed, asks):
        with source, sink:
            while True:
                try:
                    data = source.recv(65536)
                    if not data:
                        break
                    if asks and self.armed and b"COMMIT" in data:
                        self.armed = False
                        doomed.set()
                    elif not asks and doomed.is_set():
                        self.lost += 1  # the server has answered: it is committed
                        break
                    sink.sendall(data)
                except OSError:
                    break
            for end in (source, sink):
                try:
                    end.shutdown(socket.SHUT_RDWR)
                except OSError:
                    continue

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for thread in self.threads:
            thread.join(5)


@dataclass(frozen=True, kw_only=True)
class Behind(Database):
    """The same database, reached through a door."""

    port: int

    @property
    def worker_url(self):
        return super().worker_url.replace(f":{self.server.port}/", f":{self.port}/")


@contextmanager
def through_a_door(bench):
    door = LosingCommits(bench.database.server.port)
    database = Behind(
        server=bench.database.server, name=bench.database.name, closing=bench.database.closing, port=door.port
    )
    with ExitStack() as closing:
        closing.callback(door.close)
        with ExitStack() as sessions:
            yield door, Bench(database=database, keyring=bench.keyring, store=bench.store, closing=sessions)


@pytest.mark.parametrize(
    ("part", "call"),
    [("records", "intend"), ("records", "mark_stored"), ("records", "mark_verified"), ("source", "swap")],
)
def test_a_commit_whose_answer_is_lost_costs_nothing_and_happens_once(durable, due, part, call):
    """F2: committed, and nobody was told."""
    platform, looked = due
    with through_a_door(durable) as (door, far):

        def arm():
            door.armed = True

        hooked = Seams(getattr(far.world, part), before={call: arm})
        report = far.reconcile(platform, world=replace(far.world, **{part: hooked})).report
        assert door.lost == 1
    assert (report.outcome, report.reason) == (Outcome.FAILED, Code.DATABASE_UNAVAILABLE)
    nothing_is_lost(durable, platform, looked)
    assert durable.reconcile(platform).report.outcome is Outcome.COMPLETED
    nothing_is_lost(durable, platform, looked)
    everything_happened_once(durable, platform, looked)


def test_a_backend_that_is_terminated_in_the_middle_of_a_swap_changes_nothing(durable, due, monkeypatch):
    """F2, A8: the rows stay, the run says that it failed, and the same archives are used by the next one."""
    platform, looked = due
    record = Swap._record

    def terminated(self, cursor, gone):
        record(self, cursor, gone)
        platform.run("SELECT pg_terminate_backend(%s, 5000)", cursor.connection.info.backend_pid)

    with monkeypatch.context() as patched:
        patched.setattr(Swap, "_record", terminated)
        report = durable.reconcile(platform).report
    assert (report.outcome, report.reason, report.counts.deleted) == (Outcome.FAILED, Code.DATABASE_UNAVAILABLE, 0)
    assert all(durable.rows(platform, instance) == before for instance, before in looked.items())
    again = durable.reconcile(platform).report
    assert (again.outcome, again.counts.archived) == (Outcome.COMPLETED, 0)
    everything_happened_once(durable, platform, looked)
