"""A hold placed at any moment of any run is honoured, or answered as too late (SPEC G1, A9, W8, F5, F20).

A state machine explores the moments: runs of every kind over a few instances, into which somebody breaks who holds, releases,
or kills the run. What a hold promises is kept in the model; after each step the database and the store are asked about it.
"""

from contextlib import suppress
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from retention_pipeline.errors import Code, Refused, RetentionError, Unavailable
from retention_pipeline.model.ids import InstanceId
from retention_pipeline.postgres import holds
from retention_pipeline.postgres.session import Limits, Session
from retention_pipeline.stages import restoration
from retention_pipeline_tests.expiring import Vault
from retention_pipeline_tests.fakes import MemoryStore
from retention_pipeline_tests.seams import Seams

AT_MOST = 4
MATTERS = ("M-1", "M-2")
RECONCILE = {
    "before the selection": ("records", "before", "select"),
    "after the selection": ("records", "after", "select"),
    "before the record": ("records", "before", "intend"),
    "during the upload": ("store", "after", "put_once"),
    "after the upload": ("records", "after", "mark_stored"),
    "during verification": ("store", "before", "read"),
    "after verification": ("records", "after", "mark_verified"),
    "just before the swap": ("source", "before", "swap"),
    "after the swap": ("source", "after", "swap"),
}
EXPIRE = {
    "before the selection": ("archives", "before", "due"),
    "before the mark": ("archives", "before", "mark"),
    "after the mark": ("archives", "after", "mark"),
    "just before the deletion": ("store", "before", "delete"),
    "just after the deletion": ("store", "after", "delete"),
}
which = st.integers(0, AT_MOST - 1)
matters = st.sampled_from(MATTERS)
deeds = st.sampled_from(("hold", "release", "kill", "nothing"))


class KilledError(BaseException):
    """The process ends here."""


@dataclass
class Known:
    """What the model knows of an instance: the matters that stand, and whether the row itself was promised."""

    instance: InstanceId
    standing: set[str] = field(default_factory=set)
    row_promised: bool = False


class HoldMachine(RuleBasedStateMachine):
    def __init__(self, bench):
        super().__init__()
        bench.store = MemoryStore()
        self.bench = bench
        self.platform = bench.platform()
        self.vault = Vault(bench=bench, platform=self.platform)
        self.known: list[Known] = []
        self.operator = Session(
            url=bench.database.operator_url, source_setting="nucleus.tenant_id", limits=Limits(lock=200)
        )

    def teardown(self):
        self.operator.close()
        self.vault.expiries.session.close()
        self.platform.connection.close()

    # -- what people do ------------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.known) < AT_MOST)
    @rule()
    def an_instance_ends(self):
        self.known.append(Known(self.platform.add(contexts=0)))

    @precondition(lambda self: self.known)
    @rule(i=which, matter=matters)
    def somebody_holds(self, i, matter):
        self.hold(i, matter)

    @precondition(lambda self: self.known)
    @rule(i=which, matter=matters)
    def somebody_releases(self, i, matter):
        self.release(i, matter)

    # -- what runs do --------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.known)
    @rule(moment=st.sampled_from(sorted(RECONCILE)), deed=deeds, i=which, matter=matters)
    def a_periodic_run(self, moment, deed, i, matter):
        self.prepare()
        world = self.interrupted(RECONCILE[moment], deed, i, matter)
        self.run(lambda: self.bench.reconcile(self.platform, world=world))

    @precondition(lambda self: self.known)
    @rule(moment=st.sampled_from(sorted(RECONCILE)), deed=deeds, i=which, matter=matters, j=which)
    def an_explicit_run(self, moment, deed, i, matter, j):
        self.prepare()
        target = self.at(j)
        there = self.platform.exists(target.instance)
        world = self.interrupted(RECONCILE[moment], deed, i, matter)
        self.run(lambda: self.bench.explicit(self.platform, target.instance, world=world))
        if there and not self.platform.exists(target.instance):
            assert target.standing <= self.bound(target.instance)
            target.row_promised = False

    @precondition(lambda self: self.known)
    @rule(moment=st.sampled_from(sorted(EXPIRE)), deed=deeds, i=which, matter=matters)
    def archives_expire(self, moment, deed, i, matter):
        self.prepare()
        for known in self.known:
            if not self.platform.exists(known.instance):
                self.platform.run(
                    "UPDATE retention.attempts SET source_deleted_at = source_deleted_at - interval '1000 days'"
                    " WHERE instance_id = %s AND state = 'source_deleted'"
                    " AND source_deleted_at > clock_timestamp() - interval '900 days'",
                    known.instance,
                )
        places, when, name = EXPIRE[moment]
        act = self.acting(deed, i, matter)
        seam = {when: {name: act}}
        store = Seams(self.bench.store, **seam) if places == "store" else self.bench.store
        archives = Seams(self.vault.expiries, **seam) if places == "archives" else self.vault.expiries
        self.run(lambda: self.vault.expire(world=self.bench.with_store(store), archives=archives, as_of=None))

    @precondition(lambda self: self.known)
    @rule(i=which)
    def somebody_restores(self, i):
        known = self.at(i)
        archive = self.platform.value(
            "SELECT id::text FROM retention.attempts WHERE instance_id = %s AND state = 'source_deleted'"
            " ORDER BY intended_at DESC LIMIT 1",
            known.instance,
        )
        if archive is None or self.platform.exists(known.instance):
            return
        attempt = self.bench.world.records.attempt(self.platform.tenant, archive)
        opened = restoration.open_archive(
            self.bench.store,
            restoration.restorable(attempt),
            lambda key: self.bench.keys.find(self.platform.tenant, key),
        )
        approval = self.bench.approve(self.platform, job="restore", subject=archive)
        restoration.into_database(
            self.bench.world.records, self.bench.restorer, attempt, opened, approval_id=approval, run="restoring"
        )
        known.row_promised = bool(known.standing)  # F20: a hold survives the round trip

    # -- what must hold ------------------------------------------------------------------------------------------------

    @invariant()
    def what_is_held_is_there(self):
        for known in self.known:
            row, archived = self.platform.exists(known.instance), self.archived(known.instance)
            if known.standing:
                assert row or archived, "what a hold protects is gone"
            if known.standing and known.row_promised:
                assert row, "a periodic run took a held instance"

    @invariant()
    def nothing_is_in_neither_place(self):
        for known in self.known:
            ended = (
                "SELECT count(*) FROM retention.attempts WHERE instance_id = %s AND state IN ('expiring', 'tombstone')"
            )
            assert (
                self.platform.exists(known.instance)
                or self.archived(known.instance)
                or self.platform.value(ended, known.instance)
            )

    # -- helpers -------------------------------------------------------------------------------------------------------

    def at(self, i):
        return self.known[i % len(self.known)]

    def hold(self, i, matter):
        known = self.at(i)
        there = self.platform.exists(known.instance)
        try:
            with self.operator.transaction(self.platform.tenant) as cursor:
                holds.place(
                    cursor, self.platform.tenant, known.instance, matter=matter, reason="a court asks", correlation="c"
                )
        except Refused as refusal:
            if refusal.code is not Code.HOLD_TOO_LATE or there:
                raise  # an instance that stands is never too late to hold
            return
        except Unavailable:
            return  # a deletion in progress has the lock
        known.standing.add(matter)
        known.row_promised = known.row_promised or there

    def release(self, i, matter):
        known = self.at(i)
        with suppress(RetentionError), self.operator.transaction(self.platform.tenant) as cursor:
            holds.release(cursor, self.platform.tenant, known.instance, matter=matter, reason="over", correlation="c")
            known.standing.discard(matter)
        if not known.standing:
            known.row_promised = False

    def acting(self, deed, i, matter):
        done = []

        def act():
            if done:
                return
            done.append(True)
            if deed == "kill":
                raise KilledError
            if deed == "hold":
                self.hold(i, matter)
            if deed == "release":
                self.release(i, matter)

        return act

    def interrupted(self, place, deed, i, matter):
        part, when, name = place
        seam = {when: {name: self.acting(deed, i, matter)}}
        if part == "store":
            return self.bench.with_store(Seams(self.bench.store, **seam))
        world = self.bench.with_store(self.bench.store)
        return replace(world, **{part: Seams(getattr(world, part), **seam)})

    def run(self, call):
        with suppress(KilledError, RetentionError):
            call()

    def prepare(self):
        """Time passes: back-offs, leases and periods of grace are over."""
        self.bench.end_leases(self.platform)
        self.bench.forget_back_offs(self.platform)
        self.platform.run("DELETE FROM retention.expiry_waits WHERE tenant_id = %s", self.platform.tenant)
        self.platform.run(
            "UPDATE retention.restorations SET grace_until = '-infinity' WHERE tenant_id = %s", self.platform.tenant
        )

    def archived(self, instance):
        found = self.platform.connection.execute(
            "SELECT object_key, object_version FROM retention.attempts WHERE instance_id = %s"
            " AND state IN ('source_deleted', 'expiring')",
            [instance],
        ).fetchall()
        return any(v.version == version for key, version in found for v in self.bench.store.versions(key))

    def bound(self, instance):
        found = self.platform.connection.execute(
            "SELECT h.matter FROM retention.hold_bindings AS b JOIN retention.hold_events AS h ON h.id = b.hold_event_id"
            " JOIN retention.attempts AS a ON a.id = b.attempt_id WHERE a.instance_id = %s AND a.state = 'source_deleted'",
            [instance],
        ).fetchall()
        return {row[0] for row in found}


@pytest.mark.parametrize(
    ("examples", "steps"), [(12, 14), pytest.param(150, 40, marks=pytest.mark.slow)], ids=["short", "long"]
)
def test_a_hold_at_any_moment_is_honoured(shared, examples, steps):
    """G1, F5, F20."""
    run_state_machine_as_test(
        lambda: HoldMachine(shared),
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
