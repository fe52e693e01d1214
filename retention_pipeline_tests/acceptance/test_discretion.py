"""Nothing that must stay inside is shown: not by the command line, Dagster, events or logs, and least of all by errors (SPEC A16)."""

from contextlib import contextmanager

import dagster as dg

from retention_pipeline import clock
from retention_pipeline.defs.partitions import TENANTS
from retention_pipeline_tests.acceptance.conftest import AURORA, BOREALIS, CASCADE, TENANTS_OF_THE_SAMPLE, Office
from retention_pipeline_tests.acceptance.discretion import events, files, forbidden, history, sightings

MARKER = "MARKER-OF-A-PAYLOAD"


@contextmanager
def opened(installation):
    """A Dagster instance as it ships."""
    with dg.DagsterInstance.get() as instance:
        instance.add_dynamic_partitions(str(TENANTS.name), [str(tenant.id) for tenant in TENANTS_OF_THE_SAMPLE])
        yield Office(installation=installation, instance=instance)


def mark_payloads(installation):
    """The same words in every place where a tenant's data lies."""
    installation.change(
        "UPDATE nucleus.workflow_instances SET title = %s, variables = %s", MARKER, f'{{"x": "{MARKER}"}}'
    )
    installation.change("UPDATE nucleus.workflow_contexts SET payload = %s", f'{{"note": "{MARKER}"}}')
    installation.change("UPDATE nucleus.workflow_executions SET log = %s", MARKER)
    installation.change("UPDATE nucleus.workflows SET definition = %s", f'{{"steps": ["{MARKER}"]}}')


def say_ready(installation, tenant):
    """As if the newest profile and secret had been tried: what a store does that fails later."""
    installation.change(
        "INSERT INTO retention.readiness_events (tenant_id, profile_generation, secret_generation, ready, codes)"
        " SELECT p.tenant_id, p.generation, (SELECT max(s.generation) FROM retention.secrets AS s WHERE s.id = p.secret_id),"
        " true, '{}' FROM retention.profiles AS p WHERE p.tenant_id = %s ORDER BY p.generation DESC LIMIT 1",
        tenant.id,
    )


def apply(office, tenant, **how):
    return office.run(tenant, apply=True, approval=office.installation.approve(tenant), **how)


def everything_that_goes_well(installation, office, s3, make_bucket):
    bucket = make_bucket()
    assert installation.use_bucket(AURORA, s3, bucket).json["ready"]
    assert office.run(AURORA).success
    installation.open_gates(AURORA)
    apply(office, AURORA, batches=1, batch=3)
    [archive, *_] = [entry["archive"] for entry in installation.done("inspect")["archives"]]
    for as_json in (True, False):
        for words in (
            ("inventory",),
            ("reconcile",),
            ("archive", installation.due(AURORA)[0]),
            ("inspect",),
            ("inspect", archive),
            ("restore", archive, "--into-database"),
            ("expire",),
            ("expire", "--apply"),
            ("profile", "show"),
            ("profile", "readiness"),
            ("catalog", "check"),
        ):
            installation.call(*words, as_json=as_json)
    return bucket


def everything_that_fails(installation, office, s3, bucket):
    # a file that was changed below the data root, between writing and reading back
    installation.acknowledge(BOREALIS)
    apply(office, BOREALIS, assets=("encrypted_manifests",))
    for path in (installation.home / "archives").rglob("*"):
        if path.is_file():
            path.chmod(0o600)
            path.write_bytes(path.read_bytes()[:-20])
    result = apply(office, BOREALIS, assets=("verified_objects", "deletions"))
    assert "WORKFLOW_ARCHIVE_OBJECT" in office.why(result)
    # a credential that the store refuses
    assert installation.use_bucket(CASCADE, s3, bucket, secret_key="not-the-key-of-this-server").code == 3
    say_ready(installation, CASCADE)
    installation.acknowledge(CASCADE)
    assert not apply(office, CASCADE).success
    both(installation, "reconcile", "--apply", "--reason", "try", tenant=CASCADE)
    both(installation, "archive", installation.due(CASCADE)[0], "--apply", tenant=CASCADE)
    # a store that is down
    gone = "http://127.0.0.1:9"
    installation.done("egress", "allow", gone, "--network", "127.0.0.1/32", "--reason", "gone", tenant=None)
    installation.change(
        "UPDATE retention.profiles SET configuration = jsonb_set(configuration, '{endpoint}', %s) WHERE tenant_id = %s",
        f'"{gone}"',
        AURORA.id,
    )
    say_ready(installation, AURORA)
    result = apply(office, AURORA, batches=1, batch=1)
    assert "WORKFLOW_ARCHIVE_STORE_UNAVAILABLE" in office.why(result)
    [archive, *_] = [entry["archive"] for entry in installation.done("inspect")["archives"]]
    both(installation, "profile", "readiness")
    both(installation, "inspect", archive)
    both(installation, "restore", archive, "--to", str(installation.home / "restored.json"))
    both(installation, "reconcile", "--apply", "--reason", "try", "--batches", "1", "--batch", "1")
    # a store that nobody approved any more
    installation.done("egress", "remove", gone, "--reason", "gone", tenant=None)
    assert not apply(office, AURORA).success
    # no data root, no keyring, no database
    (installation.home / "archives").rename(installation.home / "elsewhere")
    both(installation, "profile", "readiness", tenant=BOREALIS)
    apply(office, BOREALIS)
    (installation.home / "elsewhere").rename(installation.home / "archives")
    (installation.home / "keyring.json").rename(installation.home / "put-away.json")
    apply(office, BOREALIS)
    both(installation, "inspect", archive)
    (installation.home / "put-away.json").rename(installation.home / "keyring.json")
    well = installation.variables["RETENTION_WORKER_URL"]
    for url in ("postgresql://worker:hidden-password@127.0.0.1:9/hidden-name", well.replace("worker:", "worker:wrong")):
        installation.configure(RETENTION_WORKER_URL=url)
        assert not office.run(AURORA).success
        both(installation, "reconcile")
    installation.configure(RETENTION_WORKER_URL=well)


def both(installation, *words, **how):
    assert installation.call(*words, **how).code != 0
    assert installation.call(*words, as_json=False, **how).code != 0


def test_nothing_that_must_stay_inside_is_shown(
    installation, dagster_home, history_url, s3, make_bucket, capfd, monkeypatch
):
    monkeypatch.setattr(clock, "sleep", lambda _: None)  # a store that is down is asked again, without the pauses
    mark_payloads(installation)
    installation.configure(RETENTION_DAGSTER_STORAGE_URL=history_url)
    with opened(installation) as office:
        bucket = everything_that_goes_well(installation, office, s3, make_bucket)
        words = forbidden(installation.database.superuser_url, installation.home)
        everything_that_fails(installation, office, s3, bucket)
    for kind, more in forbidden(installation.database.superuser_url, installation.home).items():
        words.setdefault(kind, set()).update(more)
    words["payload"] = {MARKER}
    words["credential"] = {s3.access_key, s3.secret_key, "not-the-key-of-this-server"}
    words["database"] |= {"hidden-password", "hidden-name", "postgresql://"}
    assert all(
        words[kind] for kind in ("endpoint", "bucket", "prefix", "object key", "object version", "digest", "key id")
    )
    # `secret put` and `secret list` show secret ids and `egress show` shows destinations, each by name.
    shown = [entry for entry in installation.transcript if entry[0].split()[0] not in {"secret", "egress"}]
    assert len(shown) > 40
    texts = [*shown, ("captured", "\n".join(capfd.readouterr())), *events(installation.database.superuser_url)]
    texts += [*history(history_url), *files(dagster_home)]
    assert sightings(texts, words) == []


def test_the_scan_sees_what_it_looks_for(installation, dagster_home):
    """Else its silence would mean nothing."""
    with opened(installation) as office:
        office.run(AURORA)
    texts = list(files(dagster_home))
    assert sightings(texts, {"a partition": {str(AURORA.id)}, "an asset": {"inventory"}, "absent": {"is-not-there"}})
    assert {where.split(": ")[1] for where in sightings(texts, {"x": {str(AURORA.id)}, "y": {"nowhere-at-all"}})} == {
        "x"
    }
