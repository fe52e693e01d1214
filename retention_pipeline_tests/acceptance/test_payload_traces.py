"""An expired payload lives on in no copy (SPEC A1, E1, E2, A16; F12)."""

import psycopg

from retention_pipeline.definitions import defs
from retention_pipeline_tests.acceptance.conftest import AURORA
from retention_pipeline_tests.payloads import TABLES, ephemeral
from retention_pipeline_tests.rows import new_id

MARK = "FIND-ME-NOWHERE-71c3"
LIVE = "STILL-HERE-71c3"


def add(installation, table, instance, expires, mark):
    installation.change(
        f"INSERT INTO nucleus.workflow_{table} (id, tenant_id, instance_id, payload, {TABLES[table]}) VALUES (%s, %s, %s, %s, %s)",
        new_id(),
        AURORA.id,
        instance,
        ephemeral(expires, secret=mark),
        f'{{"mirror": "{mark}"}}',
    )


def dump(url):
    """Every row of every table of every schema of the platform's and the product's, as text."""
    parts = []
    with psycopg.connect(url) as connection:
        tables = connection.execute(
            "SELECT format('%I.%I', schemaname, tablename) FROM pg_tables WHERE schemaname NOT IN ('pg_catalog', 'information_schema')"
        ).fetchall()
        for (name,) in tables:
            with connection.cursor().copy(f"COPY {name} TO STDOUT".encode()) as copy:
                parts += [bytes(chunk) for chunk in copy]
    return b"".join(parts)


def test_a_payload_that_expired_is_in_no_dump_archive_export_log_or_metadata(installation, office, caplog):
    """F12: the instance is archived after the expiry and before the sweep ran."""
    gone, held = installation.due(AURORA)[:2]
    for table in TABLES:
        for instance in (gone, held):
            add(installation, table, instance, "2026-01-01T00:00:00Z", MARK)
        add(installation, table, held, "2099-01-01T00:00:00Z", LIVE)
    told = []
    archive = installation.archive(AURORA, gone)
    assert MARK.encode() in dump(installation.database.superuser_url)
    told.append(str(installation.done("sweep", "ephemeral_payloads")))
    told.append(installation.call("sweep", "ephemeral_payloads", "--apply", as_json=False).out)
    result = defs.resolve_job_def("sweep_ephemeral_payloads").execute_in_process(
        instance=office.instance, partition_key=str(AURORA.id), raise_on_error=False
    )
    assert result.success
    told += [str(entry) for entry in office.instance.all_logs(result.run_id)]
    whole = dump(installation.database.superuser_url)
    assert MARK.encode() not in whole
    assert LIVE.encode() in whole  # an unexpired one stays
    restored, exported = installation.home / "restored.json", installation.home / "audit.jsonl"
    installation.done("restore", archive, "--to", str(restored))
    installation.done("audit", "export", "--to", str(exported))
    texts = [restored.read_bytes(), exported.read_bytes(), "\n".join(told).encode(), caplog.text.encode()]
    assert all(MARK.encode() not in text and LIVE.encode() not in text for text in texts)
    assert b"never archived" in texts[0]
    objects = [path.read_bytes() for path in (installation.home / "archives").rglob("*") if path.is_file()]
    assert objects
    assert all(MARK.encode() not in content for content in objects)
