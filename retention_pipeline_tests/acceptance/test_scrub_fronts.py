"""Archives are read again as operators and schedules see it: at the command line and through Dagster (SPEC A19, O1, D1, D4, A16)."""

import json

import dagster as dg
import pytest

from retention_pipeline.definitions import defs
from retention_pipeline.defs.scrub import ASSET, CHECK
from retention_pipeline_tests.acceptance.conftest import AURORA, BOREALIS


def file_of(installation, archive):
    [(key,)] = installation.rows("SELECT object_key FROM retention.attempts WHERE id = %s", archive)
    [folder] = (installation.home / "archives").rglob(key.split("/")[-1] + "@")
    [file] = folder.iterdir()
    return file


def damage(installation, archive):
    file = file_of(installation, archive)
    body = bytearray(file.read_bytes())
    body[-1] ^= 1
    file.write_bytes(body)


def test_archives_are_read_again_damaged_told_and_cleared(installation):
    """A19, O1: integrity ends with 4, and nothing that was shown names a place."""
    first, second = (installation.archive(AURORA, instance) for instance in installation.due(AURORA)[:2])
    told = installation.done("scrub", "--all")
    assert (told["outcome"], told["intact"], told["integrity"]["coverage_percent"]) == ("completed", 2, 100.0)
    assert told["listed"] == 3  # with the copy of their key
    damage(installation, first)
    file_of(installation, second).unlink()
    stranger = installation.home / "archives" / str(AURORA.id) / "archives" / "left-here.txt"
    stranger.write_text("by somebody")
    answer = installation.call("scrub", "--all")
    assert (answer.code, answer.json["outcome"]) == (4, "failed")
    assert [answer.json[name] for name in ("changed", "missing", "unknown")] == [1, 1, 1]
    report = installation.done("integrity")
    assert (report["findings"], report["unknown_objects"], report["findings_open"]) == (
        {"changed": 1, "missing": 1},
        1,
        3,
    )
    assert report["next_expiry"] > "2030"
    installation.change("UPDATE retention.unknown_objects SET first_seen = now() - interval '2 days'")
    remove = ("scrub", "--remove-unknown", "--reason", "left by a copy")
    assert (installation.done(*remove)["removable"], stranger.exists()) == (1, True)
    assert (installation.done(*remove, "--apply")["removed"], stranger.exists()) == (1, False)
    [(actor,)] = installation.rows("SELECT actor FROM retention.audit_events WHERE kind = 'scrub.removed'")
    assert actor == "admin"
    shown = (
        installation.call("scrub", "--percent", "50", as_json=False).out
        + installation.call("integrity", as_json=False).out
    )
    assert "coverage percent" in shown
    everything = json.dumps(installation.transcript)
    for place in ("left-here", file_of(installation, first).name, file_of(installation, first).parent.name):
        assert place not in everything


@pytest.mark.parametrize(
    "words",
    [
        ("--all", "--percent", "3"),
        ("--slices", "4/3"),
        ("--slices", "0/3"),
        ("--apply",),
        ("--remove-unknown",),
        ("--reason", "r"),
    ],
)
def test_what_does_not_go_together_is_refused(installation, words):
    """F17."""
    assert installation.call("scrub", *words).code == 2


def run(office, *tenants, **config):
    how = {"partition_key": str(tenants[0].id)} if len(tenants) == 1 else {}
    if len(tenants) > 1:
        config["tenants"] = [str(t.id) for t in tenants]
    return defs.resolve_job_def("scrub_archives").execute_in_process(
        instance=office.instance,
        run_config={"ops": {"archive_care": {"config": config}}},
        raise_on_error=False,
        **how,
    )


def test_in_dagster_a_sound_tenant_is_marked_and_the_check_says_what_to_do_about_the_other(office):
    """D1, D4, D5: one tenant's findings neither stop nor mark the others."""
    installation = office.installation
    archive = installation.archive(AURORA, installation.due(AURORA)[0])
    assert run(office, AURORA, BOREALIS, slices=1).success
    assert office.marked(ASSET) == {str(AURORA.id), str(BOREALIS.id)}
    [event] = office.instance.fetch_materializations(
        dg.AssetRecordsFilter(asset_key=dg.AssetKey(ASSET), asset_partitions=[str(AURORA.id)]), limit=1
    ).records
    assert event.asset_materialization.metadata["read"].value == 1
    assert event.asset_materialization.metadata["coverage_percent"].value == 100.0
    damage(installation, archive)
    result = run(office, AURORA, BOREALIS, slices=1)
    assert not result.success
    assert "findings (changed) 1" in office.why(result)
    checks = {e.partition: e for e in result.get_asset_check_evaluations()}
    assert checks[str(BOREALIS.id)].passed
    failed = checks[str(AURORA.id)]
    assert (failed.check_name, failed.passed, failed.metadata["changed"].value) == (CHECK, False, 1)
    assert "retention integrity" in failed.metadata["what_to_do"].value
    marked = [e.partition for e in result.get_asset_materialization_events()]
    assert marked == [str(BOREALIS.id)]


def test_bounds_that_are_none_are_refused(office):
    """W7."""
    assert not run(office, AURORA, slices=0).success
