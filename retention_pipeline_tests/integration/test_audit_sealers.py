"""Sealing beside writers and other sealers, killed at any moment, and as much memory for a million events as for one (SPEC G5)."""

import multiprocessing
import os
import resource
import signal
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from retention_pipeline import audit
from retention_pipeline.app import App
from retention_pipeline.postgres.audit import PostgresAudit
from retention_pipeline.settings import Settings
from retention_pipeline_tests.databases import Database
from retention_pipeline_tests.ledgers import WRITE, Ledger, ledger

__all__ = ["ledger"]

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload([__name__])
MIB = 1 << 20


def told(ledger) -> dict:
    return {"worker": ledger.database.worker_url, "operator": ledger.database.operator_url, "home": str(ledger.home)}


def opened(told: dict) -> App:
    home = Path(told["home"])
    return App(
        Settings(
            home=home,
            worker_url=told["worker"],
            operator_url=told["operator"],
            keyring=home / "keyring.json",
            data_root=home / "archives",
        )
    )


def in_a_process(run, *arguments) -> int | None:
    process = PROCESSES.Process(target=run, args=arguments)
    process.start()
    process.join(280)
    return process.exitcode


# -- killed ------------------------------------------------------------------------------------------------------------


def sealing_that_dies(told: dict, tenant, after_blocks, inside) -> None:
    """Dies before the commit of the block after these, or once these are committed."""
    seal_next = PostgresAudit.seal_next
    done = []

    def deadly(self, *arguments):
        if len(done) == after_blocks:
            if not inside:
                os.kill(os.getpid(), signal.SIGKILL)
            with self.session.transaction(tenant) as cursor:  # an open transaction, in which the block is
                self.session = Joined(cursor)
                assert seal_next(self, *arguments)
                os.kill(os.getpid(), signal.SIGKILL)
        done.append(True)
        return seal_next(self, *arguments)

    PostgresAudit.seal_next = deadly
    audit.seal(opened(told), tenant)


class Joined:
    """A session whose transaction is another's, which never commits."""

    def __init__(self, cursor):
        self.cursor = cursor

    def transaction(self, *_, **__):
        return self

    def __enter__(self):
        return self.cursor

    def __exit__(self, *_):
        return None


@pytest.mark.parametrize(("blocks", "inside"), [(1, False), (0, True), (2, True)])
def test_a_sealer_that_is_killed_between_blocks_or_inside_one_loses_nothing(ledger, blocks, inside):
    ledger.write(2500)
    ended = in_a_process(sealing_that_dies, told(ledger), ledger.tenant, blocks, inside)
    assert ended == -signal.SIGKILL
    seen = ledger.verify()
    assert (seen.result.findings, seen.result.blocks) == ([], blocks)
    assert ledger.seal().events == 2500 - 1000 * blocks
    seen = ledger.verify()
    assert (seen.result.findings, seen.result.sealed, seen.kept) == ([], 2500, 3)


# -- beside others -----------------------------------------------------------------------------------------------------


def test_two_sealers_at_once_seal_each_event_once(ledger):
    ledger.write(4000)
    machines = [ledger.machine(ledger.home) for _ in range(3)]
    reports = []
    threads = [
        threading.Thread(target=lambda app=app: reports.append(audit.seal(app, ledger.tenant))) for app in machines
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(not report.failures for report in reports)
    ledger.seal()
    ids = [i for seal, _ in ledger.log().blocks() for i in seal.event_ids]
    assert (len(ids), len(set(ids)), ledger.found()) == (4000, 4000, [])


def test_a_sealer_of_another_machine_keeps_heads_of_its_own(ledger, tmp_path):
    ledger.sealed(1)
    elsewhere = ledger.machine(tmp_path / "elsewhere")
    ledger.write(1)
    assert audit.seal(elsewhere, ledger.tenant).blocks == 1
    assert (ledger.verify().kept, ledger.found()) == (1, [])
    assert audit.verify_chain(elsewhere, ledger.tenant).kept == 2


def test_a_verification_beside_writers_and_a_sealer_finds_nothing(ledger):
    ledger.sealed(1500)
    stop = threading.Event()
    failed = []

    def busily(act) -> None:
        try:
            # So often at most: on a busy machine a look takes longer than what is written meanwhile takes to write.
            for _ in range(60):
                if stop.wait(0.02):
                    return
                act()
        except Exception as error:  # noqa: BLE001  told below
            failed.append(error)

    writer, sealer = ledger.writer(), ledger.machine(ledger.home)
    other = ledger.writer()

    def write(connection, events):
        connection.execute(WRITE, [events])
        connection.commit()

    threads = [
        threading.Thread(target=busily, args=(act,))
        for act in (
            lambda: write(writer, 7),
            lambda: write(other, 100),
            lambda: audit.seal(sealer, ledger.tenant),
        )
    ]
    for thread in threads:
        thread.start()
    try:
        seen = [ledger.verify() for _ in range(8)]
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert failed == []
    assert [v.result.findings + v.result.warnings for v in seen] == [[]] * 8
    assert seen[-1].result.blocks > seen[0].result.blocks


def test_sealing_takes_only_so_much_at_a_time(ledger):
    ledger.write(2500)
    report = ledger.seal(bounds=ledger.one_block)
    assert (report.blocks, report.left) == (1, 1500)
    assert report.oldest_seconds >= 0


# -- large -------------------------------------------------------------------------------------------------------------


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def verify_and_measure(told: dict, small, large, answer) -> None:
    with opened(told) as app:
        assert audit.verify_chain(app, small).result.sound
        before = peak()
        seen = audit.verify_chain(app, large).result
        answer.put((seen.sealed, seen.sound, peak() - before, peak()))


def measured(ledger, large) -> tuple[int, bool, int, int]:
    with ExitStack() as closing:
        database = Database(server=ledger.database.server, name=ledger.database.name, closing=closing)
        small = Ledger(database=database, home=ledger.home)
        small.sealed(1000)
        answer = PROCESSES.Queue()
        process = PROCESSES.Process(target=verify_and_measure, args=(told(ledger), small.tenant, large, answer))
        process.start()
        given = answer.get(timeout=280)
        process.join(10)
        return given


def test_the_memory_of_a_verification_does_not_grow_with_its_events(ledger):
    ledger.write(30_000)
    ledger.seal()
    sealed, sound, growth, _ = measured(ledger, ledger.tenant)
    assert (sealed, sound) == (30_000, True)
    assert growth < 6 * MIB


@pytest.mark.slow
def test_a_million_events_are_verified_within_256_mib(ledger):
    for _ in range(10):
        ledger.write(100_000)
    report = ledger.seal()
    assert (report.events, report.left) == (1_000_000, 0)
    sealed, sound, _, most = measured(ledger, ledger.tenant)
    assert (sealed, sound) == (1_000_000, True)
    assert most < 256 * MIB
