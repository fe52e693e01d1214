"""`retention demo` and `retention dev`: the product on one laptop, with servers of its own."""

import click
from rich.console import Console

from retention_pipeline.cli.common import Call, pass_call
from retention_pipeline.settings import Settings


@click.command()
@pass_call
def demo(call: Call) -> None:
    """Start afresh, and do the whole job on a sample.

    Archives, verifies and deletes through Dagster, restores one, and counts the proof. Writes demo.json into the
    product's home, and leaves a history that `retention dev` opens.

    \b
    Example:
      retention demo
    """
    from retention_pipeline.dev import demo as story  # noqa: PLC0415  only this command needs the servers' packages

    proof = story.run(Settings.load().home, Console(stderr=call.as_json))
    if call.as_json:
        call.emit(story.as_json(proof))


@click.command()
@click.option("--port", type=click.IntRange(1024, 65535), default=3000, show_default=True, help="Where the UI answers.")
@click.option("--read-only", is_flag=True, help="Open the UI for looking alone: nothing can be launched.")
@pass_call
def dev(call: Call, port: int, read_only: bool) -> None:
    """Open the Dagster UI with servers of its own.

    PostgreSQL, S3, the UI and its daemon start together; Ctrl-C stops them together.

    \b
    Examples:
      retention dev
      retention dev --port 3001 --read-only
    """
    from retention_pipeline.dev import serve  # noqa: PLC0415

    del call
    serve.run(Settings.load().home, Console(), port=port, read_only=read_only)
