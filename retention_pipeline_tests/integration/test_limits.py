"""An archive that is too large, or a value that can't be read, keeps its own instance and nobody else's (SPEC A4, W10, F7)."""

from contextlib import contextmanager
from dataclasses import replace

import pytest

from retention_pipeline.errors import Code
from retention_pipeline.model.archive import Export
from retention_pipeline.model.outcome import Outcome
from retention_pipeline.postgres import content, export
from retention_pipeline.stages import archive, manifest
from retention_pipeline.stages.archive import Limits
from retention_pipeline_tests.faulty import Around
from retention_pipeline_tests.seams import Seams
from retention_pipeline_tests.worlds import NOW


class Stamped(Around):
    """Exports the same bytes whenever it is asked, so that a limit can be set to the byte."""

    @contextmanager
    def export(self, tenant, candidates, as_of, *, held_too):
        with self.inner.export(tenant, candidates, as_of, held_too=held_too) as exports:
            yield (replace(e, captured_at="2026-06-01 12:00:00+00") if isinstance(e, Export) else e for e in exports)


def large(platform):
    instance = platform.add(contexts=1)
    platform.run(
        "UPDATE nucleus.workflow_executions SET log = repeat('many words ', 20000) WHERE instance_id = %s", instance
    )
    return instance


def weight(bench, platform, instance):
    """What the instance's archive weighs, in clear and sealed."""
    source = Stamped(bench.world.source)
    _, candidate = source.facts(platform.tenant, instance, NOW)
    with source.export(platform.tenant, [candidate], NOW, held_too=False) as exports:
        written = manifest.build(next(exports))
    sealed = archive.encrypt(written, bench.keys.current(platform.tenant), Limits())
    return {"plaintext": len(written.body), "envelope": len(sealed.body)}


@pytest.mark.parametrize(
    ("limit", "code"),
    [("envelope", Code.OBJECT_LIMIT_EXCEEDED), ("plaintext", Code.PLAINTEXT_LIMIT_EXCEEDED)],
)
def test_an_archive_of_exactly_the_limit_passes_and_one_byte_more_writes_nothing(shared, limit, code):
    """A4: the source stays, the others go, and the run is partial."""
    shared.store.kept.clear()
    platform = shared.platform()
    instance = large(platform)
    small = platform.add(contexts=0)
    before = shared.rows(platform, instance)
    exact = weight(shared, platform, instance)[limit]
    world = replace(shared.world, source=Stamped(shared.world.source), limits=Limits(**{limit: exact - 1}))
    report = shared.reconcile(platform, world=world).report
    assert (report.outcome, report.counts.failures, report.counts.deleted) == (Outcome.PARTIAL, {code: 1}, 1)
    assert not platform.exists(small)
    assert shared.rows(platform, instance) == before
    assert shared.states(platform) == {"source_deleted": 1}  # of the large one nothing was intended, nothing written
    assert len(shared.store.kept) == 1
    assert shared.audit_kinds(platform, instance) == [f"instance.set_aside {code}"]

    shared.forget_back_offs(platform)
    world = replace(world, limits=Limits(**{limit: exact}))
    assert shared.reconcile(platform, world=world).report.outcome is Outcome.COMPLETED
    assert not platform.exists(instance)


def test_an_instance_is_refused_unread_only_when_it_is_surely_too_large(shared, monkeypatch):
    """A4: a guess that is too high keeps nobody."""
    platform = shared.platform()
    instance = large(platform)
    for number in range(50):
        platform.child("contexts", instance, name=f"n{number}")
    exact = weight(shared, platform, instance)["plaintext"]
    monkeypatch.setattr(export, "PLAINTEXT_LIMIT", 219_999)
    refused = shared.reconcile(platform).report
    assert refused.counts.failures == {Code.PLAINTEXT_LIMIT_EXCEEDED: 1}
    monkeypatch.setattr(export, "PLAINTEXT_LIMIT", exact)
    shared.forget_back_offs(platform)
    assert shared.reconcile(platform).report.outcome is Outcome.COMPLETED


def test_what_is_never_archived_weighs_nothing(shared, monkeypatch):
    """A1, A4: large ephemeral payloads keep no instance."""
    platform = shared.platform()
    instance = platform.add(contexts=0)
    for _ in range(4):
        platform.child(
            "contexts",
            instance,
            name="c",
            payload=f'{{"mode": "ephemeral_hosted", "text": "{"x1y" * 40_000}"}}',
            data="{}",
        )
    monkeypatch.setattr(export, "PLAINTEXT_LIMIT", 100_000)
    assert shared.reconcile(platform).report.outcome is Outcome.COMPLETED


def test_what_was_guessed_is_never_less_than_what_it_surely_is(shared):
    """DESIGN section 4: batches are bounded in bytes by the guess, refusals are by the floor."""
    platform = shared.platform()
    instance = large(platform)
    with shared.world.source.session.transaction(platform.tenant, read_only=True) as cursor:
        statements = content.ContentStatements(
            dataset=shared.world.source.catalog.instances, shape=shared.world.source.shape(cursor)
        )
        cursor.execute(statements.sizes(), {"tenant": platform.tenant, "ids": [instance]})
        _, guess, floor = cursor.fetchone()
    form = 8 << 10  # names and types of columns, which every manifest repeats
    assert floor <= weight(shared, platform, instance)["plaintext"] <= guess + form


def test_a_value_that_cannot_be_read_sets_its_own_instance_aside(bench):
    """F7: here a virtual column whose expression fails for one row among twelve."""
    platform = bench.platform()
    if platform.connection.info.server_version < 180000:
        pytest.skip("virtual columns came with PostgreSQL 18")
    platform.run(
        "ALTER TABLE nucleus.workflow_instances ADD COLUMN share integer GENERATED ALWAYS AS (1 / priority) VIRTUAL"
    )
    instances = [platform.add(contexts=0) for _ in range(12)]
    platform.run("UPDATE nucleus.workflow_instances SET priority = 1")
    platform.run("UPDATE nucleus.workflow_instances SET priority = 0 WHERE id = %s", instances[7])
    report = bench.reconcile(platform).report
    assert (report.outcome, report.counts.deleted) == (Outcome.PARTIAL, 11)
    assert report.counts.failures == {Code.DATABASE_REFUSED: 1}
    assert platform.exists(instances[7])
    assert bench.audit_kinds(platform, instances[7]) == [f"instance.set_aside {Code.DATABASE_REFUSED}"]

    late = platform.add(contexts=0)
    platform.run("UPDATE nucleus.workflow_instances SET priority = 1 WHERE id = %s", late)
    assert bench.reconcile(platform).report.counts.deleted == 1


@pytest.mark.parametrize(
    ("payload", "ephemeral"),
    [
        ('{"mode": "ephemeral_hosted", "text": "SECRET-MARKER \\u0000"}', True),
        ('{"text": "SECRET-MARKER \\ud800", "mode": "ephemeral_hosted"}', True),
        ('{"text": "SECRET-MARKER \\\\u0000", "mode": "ephemeral_hosted"}', True),
        ('{"text": "SECRET-MARKER \\\\\\u0000 \\"", "mode": "ephemeral_hosted", "number": 1e999999}', True),
        ('{"text": "SECRET-MARKER \\u0000 ephemeral_hosted", "mode": "hosted"}', False),
        ('["SECRET-MARKER \\u0000", {"mode": "ephemeral_hosted"}]', False),
        ('"SECRET-MARKER \\u0000 ephemeral_hosted"', False),
    ],
)
def test_a_payload_in_json_is_recognized_whatever_escapes_it_keeps(bench, payload, ephemeral):
    """A1, F10, F12: what jsonb refuses, json keeps; the batch does not fail over it, and the secret is not archived."""
    platform = bench.platform()
    platform.run("ALTER TABLE nucleus.workflow_contexts ALTER payload TYPE json USING payload::text::json")
    instance, other = platform.add(contexts=0), platform.add(contexts=0)
    platform.child("contexts", instance, name="c", payload=payload, data='{"copy": "SECRET-MARKER"}')
    seen = []

    class Looking(Around):
        @contextmanager
        def export(self, tenant, candidates, as_of, *, held_too):
            with self.inner.export(tenant, candidates, as_of, held_too=held_too) as exports:
                yield (seen.append(manifest.build(e).body) or e for e in exports)

    world = replace(bench.world, source=Looking(bench.world.source))
    assert bench.reconcile(platform, world=world).report.outcome is Outcome.COMPLETED
    assert (platform.exists(instance), platform.exists(other)) == (False, False)
    assert any(b"SECRET-MARKER" in body for body in seen) != ephemeral
    assert any(b"never archived" in body for body in seen) == ephemeral


def test_a_hold_between_selection_and_export_is_told(shared):
    """F5: nothing is written, and the refusal is on record."""
    platform = shared.platform()
    instance, free = platform.add(), platform.add()
    before = shared.rows(platform, instance)
    world = replace(shared.world, source=Seams(shared.world.source, before={"export": lambda: platform.hold(instance)}))
    report = shared.reconcile(platform, world=world).report
    assert (report.counts.skipped, report.counts.failures, report.counts.deleted) == (1, {}, 1)
    assert not platform.exists(free)
    assert shared.rows(platform, instance) == before
    assert shared.states(platform) == {"source_deleted": 1}
    assert shared.audit_kinds(platform, instance) == [f"instance.set_aside {Code.NOT_ELIGIBLE}"]
