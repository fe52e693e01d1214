"""The program `retention`: its options, its commands, and the end of every call."""

import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any, Final

import click

from retention_pipeline.cli import faults
from retention_pipeline.cli.common import Call

COMMANDS: Final = {
    "archive": "retention_pipeline.cli.archive:archive",
    "approve": "retention_pipeline.cli.approve:approve",
    "audit": "retention_pipeline.cli.audit:audit",
    "catalog": "retention_pipeline.cli.catalog:catalog",
    "demo": "retention_pipeline.cli.laptop:demo",
    "dev": "retention_pipeline.cli.laptop:dev",
    "doctor": "retention_pipeline.cli.doctor:doctor",
    "egress": "retention_pipeline.cli.egress:egress",
    "expire": "retention_pipeline.cli.expire:expire",
    "grant": "retention_pipeline.cli.grant:grant",
    "hold": "retention_pipeline.cli.hold:hold",
    "inspect": "retention_pipeline.cli.inspect:inspect",
    "integrity": "retention_pipeline.cli.integrity:integrity",
    "inventory": "retention_pipeline.cli.inventory:inventory",
    "join": "retention_pipeline.cli.join:join",
    "keyring": "retention_pipeline.cli.keyring:keyring",
    "keys": "retention_pipeline.cli.keys:keys",
    "late": "retention_pipeline.cli.late:late",
    "migrate": "retention_pipeline.cli.migrate:migrate",
    "profile": "retention_pipeline.cli.profile:profile",
    "reconcile": "retention_pipeline.cli.reconcile:reconcile",
    "recovery": "retention_pipeline.cli.recovery:recovery",
    "restore": "retention_pipeline.cli.restore:restore",
    "scrub": "retention_pipeline.cli.scrub:scrub",
    "secret": "retention_pipeline.cli.secret:secret",
    "store": "retention_pipeline.cli.store:store",
    "sweep": "retention_pipeline.cli.sweep:sweep",
}
"""Where each command is, so that a call imports no more than its own."""

HELP: Final = """Make a workflow platform's database forget on time, keep what it must keep, and prove both.

\b
Examples:
  retention migrate --bootstrap-admin alice
  retention --tenant acme profile set --provider filesystem --archive-retention-days 3650
  retention --tenant acme hold 0b7c… --matter M-17 --reason "Litigation with X"

Where the database is, and as whom to log in, is in the environment: RETENTION_OPERATOR_URL, RETENTION_WORKER_URL and
RETENTION_OWNER_URL; what is not there is read from settings.env in RETENTION_HOME.

\b
Exit codes:
  0  done; also: work remains for the next run, nothing to do, a preflight
  1  failed
  2  the call or a setting is wrong
  3  refused or blocked: a person decides
  4  integrity: something is not what it must be; everything was kept
  5  unavailable: try again
  6  behind: work remains and grows
  7  partial: some went through, some were set aside
"""


class Program(click.Group):
    """Ends every call the same way, whatever happened in it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Every command, by name."""
        return sorted({*COMMANDS, *super().list_commands(ctx)})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """A command, imported when it is asked for."""
        if cmd_name not in COMMANDS:
            return super().get_command(ctx, cmd_name)
        module, _, name = COMMANDS[cmd_name].partition(":")
        found = getattr(import_module(module), name)
        assert isinstance(found, click.Command)
        return found

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,  # noqa: FBT002  click's own signature
        **extra: Any,
    ) -> Any:
        """Run one call. A command's answer, where it is a number, is the exit code."""
        given = list(sys.argv[1:] if args is None else args)

        def call() -> Any:
            return super(Program, self).main(_hoisted(given), prog_name, complete_var, standalone_mode=False, **extra)

        if not standalone_mode:
            return call()
        try:
            code = call()
        except click.exceptions.NoArgsIsHelpError as error:
            click.echo(error.format_message(), err=True)
            sys.exit(error.exit_code)
        except Exception as error:  # noqa: BLE001  the one boundary
            told = faults.told(error)
            faults.report(told, as_json="--json" in given)
            sys.exit(told.exit_code)
        sys.exit(code if isinstance(code, int) else 0)


def _hoisted(args: Iterable[str]) -> list[str]:
    """The options of the program itself, before the command, wherever they were typed."""
    front: list[str] = []
    others: list[str] = []
    left = iter(args)
    for word in left:
        if word == "--":
            others += [word, *left]
        elif word == "--json" or word.startswith("--tenant="):
            front.append(word)
        elif word == "--tenant" and (alias := next(left, None)) is not None:
            front += [word, alias]
        else:
            others.append(word)
    return [*front, *others]


@click.group(cls=Program, help=HELP, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option("--tenant", "alias", metavar="ALIAS", help="Whose rows: one customer of the platform.")
@click.option("--json", "as_json", is_flag=True, help="Answer in JSON, errors too.")
@click.version_option(package_name="retention-pipeline", message="%(version)s")
@click.pass_context
def cli(context: click.Context, alias: str | None, as_json: bool) -> None:
    """Begin a call; the group's own help text stands in HELP."""
    call = context.ensure_object(Call)
    call.alias, call.as_json = alias, as_json
    context.call_on_close(call.close)
