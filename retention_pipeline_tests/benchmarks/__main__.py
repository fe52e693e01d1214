"""Ratios measured in one run, interleaved, the median of several rounds; never an absolute time as a verdict.

Writes `.retention/bench.json` and prints the same as a table. `--short` only shows that it runs.
"""

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from retention_pipeline.catalog.loader import load
from retention_pipeline.clock import utc_now
from retention_pipeline.dev.postgres import EmbeddedPostgres
from retention_pipeline.model.archive import Candidate, Export
from retention_pipeline.model.ids import InstanceId
from retention_pipeline.postgres import provision, sample
from retention_pipeline.postgres.content import ContentStatements, places
from retention_pipeline.postgres.export import Exporter
from retention_pipeline.postgres.session import Session
from retention_pipeline.postgres.shape import read_shape, tables_of
from retention_pipeline.stages import manifest

ROOT = Path(__file__).resolve().parents[2]
PASSWORD = "a password of a throw-away server"
GROUPS = {"worker": "retention_worker", "admin": "retention_operator"}
EXPORT_TARGET = 6.0


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--short", action="store_true")
    short = parser.parse_args().short
    with ExitStack() as stack:
        database = stack.enter_context(Prepared(60 if short else 600))
        results = [export_ratio(database, rounds=1 if short else 5)]
    target = ROOT / ".retention" / "bench.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(results, indent=2) + "\n")
    for result in results:
        verdict = "ok" if result["ok"] else "BELOW TARGET"
        print(f"{result['name']:<60} {result['ratio']:>6.2f}  target {result['target']:>5.2f}  {verdict}")
    return 0 if short or all(result["ok"] for result in results) else 1


class Prepared:
    """A seeded database on an embedded server, gone afterwards."""

    def __init__(self, instances: int) -> None:
        self.instances = instances

    def __enter__(self) -> Self:
        (ROOT / ".retention").mkdir(exist_ok=True)
        self.folder = Path(tempfile.mkdtemp(prefix="bench-", dir=ROOT / ".retention"))
        self.server = EmbeddedPostgres(self.folder, durable=False).start()
        superuser = self.server.superuser_url()
        provision.make_logins(superuser, dict.fromkeys(["owner", *GROUPS], PASSWORD), "owner")
        provision.make_database(superuser, "bench", "owner")
        provision.make_platform(self.server.url("owner", PASSWORD, "bench"), load(), "admin")
        provision.join_groups(superuser, GROUPS)
        self.tenant = sample.SampleTenant(alias="bench", default_retention_days=1, instances=self.instances)
        sample.seed(self.server.superuser_url("bench"), (self.tenant,), utc_now())
        self.session = Session(
            url=self.server.url("worker", PASSWORD, "bench"), source_setting="nucleus.tenant_id", program="bench"
        )
        return self

    def __exit__(self, *_: object) -> None:
        self.session.close()
        self.server.stop()
        shutil.rmtree(self.folder)


def export_ratio(database: Prepared, rounds: int) -> dict:
    """DESIGN §8: one query for a batch, against one query for each table of each instance."""
    catalog, tenant = load(), database.tenant.id
    with database.session.transaction(tenant, read_only=True) as cursor:
        shape = read_shape(cursor, tables_of(catalog.instances))
        cursor.execute(
            "SELECT i.id::text, e.epoch, e.entered_at::text FROM nucleus.workflow_instances AS i"
            " JOIN LATERAL (SELECT * FROM nucleus.workflow_terminal_epochs AS e WHERE e.instance_id = i.id"
            " ORDER BY epoch DESC LIMIT 1) AS e ON true WHERE i.state <> 'running' ORDER BY 1 LIMIT 300"
        )
        candidates = [Candidate(instance=InstanceId(r[0]), epoch=r[1], epoch_at=r[2]) for r in cursor]
    exporter = Exporter(catalog=catalog, shape=shape)
    content = ContentStatements(dataset=catalog.instances, shape=shape)
    now = utc_now()

    def batched() -> int:
        with database.session.transaction(tenant, snapshot=True, read_only=True) as cursor:
            found = [e for e in exporter.export(cursor, tenant, candidates, now) if isinstance(e, Export)]
        return sum(len(manifest.build(e).body) for e in found) and len(found)

    def one_by_one() -> int:
        done = 0
        with database.session.transaction(tenant, snapshot=True, read_only=True) as cursor:
            for candidate in candidates:
                for place in places(catalog.instances):
                    statement = content._per_instance(content._content(place, with_rows=True))
                    cursor.execute(statement, {"tenant": tenant, "ids": [candidate.instance]})
                    cursor.fetchall()
                done += 1
        return done

    fast, slow = [], []
    for _ in range(rounds):
        fast.append(per_instance(batched))
        slow.append(per_instance(one_by_one))
    ratio = statistics.median(slow) / statistics.median(fast)
    return {
        "name": "export in batches against one query per table per instance",
        "ratio": round(ratio, 2),
        "target": EXPORT_TARGET,
        "ok": ratio >= EXPORT_TARGET,
        "parts": {"batched_ms": statistics.median(fast) * 1000, "one_by_one_ms": statistics.median(slow) * 1000},
    }


def per_instance(call) -> float:
    begun = time.perf_counter()
    return (time.perf_counter() - begun) / done if (done := call()) else float("inf")


if __name__ == "__main__":
    sys.exit(main())
