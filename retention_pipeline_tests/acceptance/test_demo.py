"""`make demo`, as a newcomer runs it: it ends well, its figures add up, and it tells nobody what it must not tell."""

import json
import subprocess
import sys

import pytest

from retention_pipeline.settings import inherited
from retention_pipeline_tests.acceptance.discretion import scan

KEYS = {
    "instances",
    "eligible",
    "archived",
    "verified",
    "deleted",
    "protected",
    "foreign_rows_blocked",
    "remaining",
    "lost",
    "sweeps",
    "restored_identical",
    "refusals",
    "audit_events_sealed",
    "audit_chains_verified",
    "tampering_found",
    "seconds",
}


@pytest.fixture(scope="module")
def demo(states):
    home = states / "demo"
    done = subprocess.run(
        [sys.executable, "-m", "retention_pipeline", "demo"],
        env=inherited() | {"RETENTION_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return home, done


def test_the_demo_ends_well_and_accounts_for_every_instance(demo):
    home, done = demo
    assert done.returncode == 0, done.stdout + done.stderr
    proof = json.loads((home / "demo.json").read_text())
    assert proof.keys() == KEYS
    protected = sum(proof["protected"].values())
    assert proof["instances"] == proof["deleted"] + protected + proof["remaining"] + proof["lost"] == 3000
    assert (proof["lost"], proof["remaining"], proof["restored_identical"]) == (0, 0, True)
    assert proof["eligible"] == proof["archived"] == proof["verified"] == proof["deleted"] + 1  # one was restored
    assert proof["foreign_rows_blocked"] == 1
    assert proof["protected"]["legal_hold"] == 1
    assert proof["refusals"] == ["RETENTION_PREFLIGHT_UNACKNOWLEDGED", "RT003"]
    assert proof["audit_chains_verified"] == 4
    assert proof["audit_events_sealed"] > proof["deleted"]
    assert proof["tampering_found"] is True


def test_the_demo_accounts_for_every_row_of_every_sweep(demo):
    """E, L, J, W4: each one did its work, and no row is lost or left."""
    home, _ = demo
    sweeps = json.loads((home / "demo.json").read_text())["sweeps"]
    assert set(sweeps) == {
        "ephemeral_payloads",
        "job_evidence",
        "join_requests",
        "submission_ledgers",
        "workflow_history",
    }
    for account in sweeps.values():
        assert account["rows"] == account["ended"] + account["stayed"]
        assert account["ended"] > 0 < account["stayed"]
        assert (account["left"], account["lost"]) == (0, 0)


def test_nothing_of_the_whole_demo_tells_a_place_a_secret_or_a_payload(demo):
    """A16."""
    home, done = demo
    assert scan(home, done.stdout + done.stderr) == []
