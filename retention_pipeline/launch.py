"""Executes jobs in this process, each as a run of the configured Dagster instance; the demo starts it and reads one line of JSON.

It reads a list of `{job, step, config, partition}` from standard input, the partition being optional, and prints a list of
`{job, run, success}`.
"""

import json
import sys
from typing import Any

import dagster as dg

from retention_pipeline.app import App
from retention_pipeline.definitions import defs
from retention_pipeline.defs.partitions import TENANTS


def job(name: str) -> dg.JobDefinition:
    """A job, by a name that a worker process could import."""
    return defs.get_job_def(name)


def main() -> None:
    """Run every order, one after the other; a run that fails does not stop the next one."""
    orders = json.load(sys.stdin)
    with App.from_environment() as app:
        tenants = [str(tenant.id) for tenant in app.tenants()]
    with dg.DagsterInstance.get() as instance:
        instance.add_dynamic_partitions(str(TENANTS.name), tenants)
        answers = [_run(instance, order) for order in orders]
    sys.stdout.write(json.dumps(answers) + "\n")


def _run(instance: dg.DagsterInstance, order: dict[str, Any]) -> dict[str, Any]:
    result = dg.execute_job(
        dg.build_reconstructable_job("retention_pipeline.launch", "job", reconstructable_args=(order["job"],)),
        instance=instance,
        run_config={"ops": {order["step"]: {"config": order["config"]}}},
        tags={"dagster/partition": order["partition"]} if "partition" in order else {},
        raise_on_error=False,
    )
    return {"job": order["job"], "run": result.run_id, "success": result.success}


if __name__ == "__main__":
    main()
