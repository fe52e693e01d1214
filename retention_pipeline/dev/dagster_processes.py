"""Starts Dagster as processes of its own, for the demo and for `retention dev`; the product's command line never loads it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from retention_pipeline.dev.stack import Stack
from retention_pipeline.errors import Code, Unavailable
from retention_pipeline.settings import HOME, inherited


def project_file(name: str) -> bytes:
    """`dagster.yaml` or `workspace.yaml`: at the top of a checkout, or where an installed package keeps them."""
    checkout = Path(__file__).resolve().parents[2] / name
    return (checkout if checkout.exists() else Path(__file__).with_name(name)).read_bytes()


def home(stack: Stack) -> Path:
    """Dagster's home, with the project's `dagster.yaml` in it."""
    folder = stack.home / "dagster"
    folder.mkdir(mode=0o700, exist_ok=True)
    (folder / "dagster.yaml").write_bytes(project_file("dagster.yaml"))
    return folder


def environment(stack: Stack) -> dict[str, str]:
    """What a Dagster process of this installation needs to know; passwords stay in `settings.env`."""
    return {
        **inherited(),
        HOME: str(stack.home),
        "DAGSTER_HOME": str(home(stack)),
        "PYTHONUNBUFFERED": "1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.defpath}",
    }


def register_tenants(stack: Stack) -> None:
    """Make every tenant a partition of the Dagster instance, so that the UI knows them from the start."""
    run_jobs(stack, [])


def run_jobs(stack: Stack, orders: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Execute jobs in a real Dagster instance, one run each, and give what became of them.

    Args:
        stack: the installation.
        orders: for each run `job`, `step`, its `config`, and the `partition` where it is for one.

    Raises:
        Unavailable: `EMBEDDED_FAILED`, when Dagster itself did not work; its log is in the home.
    """
    log = home(stack) / "runs.log"
    with log.open("ab") as errors:
        done = subprocess.run(
            [sys.executable, "-m", "retention_pipeline.launch"],
            input=json.dumps(orders).encode(),
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment(stack),
            cwd=stack.home,
            check=False,
        )
    if done.returncode != 0:
        raise Unavailable(
            Code.EMBEDDED_FAILED, "Dagster could not run the jobs.", remedy="Read dagster/runs.log in the state folder."
        )
    answers: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return answers
