"""What every command shares: who calls, for which tenant, and how an answer is shown."""

import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any, cast

import click
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from retention_pipeline.app import App
from retention_pipeline.errors import Code, UsageFault
from retention_pipeline.model.outcome import Counts, Outcome
from retention_pipeline.model.people import Permission, Tenant
from retention_pipeline.postgres import people
from retention_pipeline.settings import Settings

_PLAIN_WIDTH = 160
"""Columns of a table that goes into a file or a pipe."""


@dataclass(kw_only=True)
class Call:
    """One call of the program.

    Args:
        alias: whose rows, as `--tenant` names them.
        as_json: whether a program reads the answer.
        correlation: ties everything that this call leaves behind.
    """

    alias: str | None = None
    as_json: bool = False
    correlation: str = field(default_factory=lambda: str(uuid.uuid4()))

    @cached_property
    def app(self) -> App:
        """The product's parts, made when a command first needs one."""
        return App(Settings.load())

    @cached_property
    def tenant(self) -> Tenant:
        """The tenant that `--tenant` names, or `UsageFault`: a selector is never guessed."""
        if not self.alias:
            raise UsageFault(
                Code.USAGE, "This command needs a tenant.", remedy="Name one: `retention --tenant ALIAS …`."
            )
        return self.app.tenant(self.alias)

    def require(self, *permissions: Permission) -> None:
        """Go on only if this login has one of the permissions for the tenant; a denial is audited."""
        people.require(
            self.app.operator(), self.tenant.id, *permissions, command=self._command, correlation=self.correlation
        )

    def require_everywhere(self, permission: Permission) -> None:
        """Go on only if this login has the permission for the whole installation; a denial is audited."""
        people.require(self.app.operator(), None, permission, command=self._command, correlation=self.correlation)

    def emit(self, result: Mapping[str, Any], shown: RenderableType | None = None) -> None:
        """Show an answer: JSON for a program; for a person `shown`, or else the answer as lines."""
        if self.as_json:
            click.echo(json.dumps(result, indent=2, default=_plain))
        else:
            console = Console(markup=False, highlight=False, soft_wrap=True)
            if not console.is_terminal:
                console = Console(markup=False, highlight=False, width=_PLAIN_WIDTH)
            console.print(lines(result) if shown is None else shown)

    @contextmanager
    def progress(self, label: str) -> Iterator[Callable[[Counts], None]]:
        """Show how long work gets on, to a person at a terminal; gives what a run tells its counts."""
        console = Console(stderr=True, markup=False, highlight=False)
        if self.as_json or not console.is_terminal:
            yield lambda _: None
            return
        with console.status(Text(label)) as status:
            yield lambda c: status.update(Text(f"{label}: {_so_far(c)}"))

    @contextmanager
    def steps(self, label: str) -> Iterator[Callable[[int], None]]:
        """Show to a person at a terminal how many are through."""
        console = Console(stderr=True, markup=False, highlight=False)
        if self.as_json or not console.is_terminal:
            yield lambda _: None
            return
        with console.status(Text(label)) as status:
            yield lambda number: status.update(Text(f"{label}: {number}"))

    def finish(self, outcome: Outcome) -> None:
        """End with the outcome's exit code (O1)."""
        if outcome.exit_code:
            raise click.exceptions.Exit(outcome.exit_code)

    def close(self) -> None:
        """Close what was opened."""
        if "app" in self.__dict__:
            self.app.close()

    @property
    def _command(self) -> str:
        return " ".join(click.get_current_context().command_path.split()[1:])


class _Instant(click.ParamType[datetime]):
    """An instant with its offset; one without is no instant."""

    name = "instant with an offset, such as 2027-01-01T00:00:00Z"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """Read ISO 8601 with an offset."""
        try:
            read = datetime.fromisoformat(str(value))
        except ValueError:
            self.fail("not ISO 8601", param, ctx)
        if read.tzinfo is None:
            self.fail("without an offset", param, ctx)
        return read


instant = _Instant()
"""For options that name an instant."""

pass_call = click.make_pass_decorator(Call)
"""Gives a command its `Call`."""


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """A table for people; a cell's text is never read as markup."""
    made = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        made.add_row(*(Text(_cell(value)) for value in row))
    return made


def lines(result: Mapping[str, Any]) -> Text:
    """An answer as lines of name and value."""
    width = max(map(len, result), default=0)
    return Text("\n".join(f"{name.replace('_', ' '):<{width}}  {_cell(value)}" for name, value in result.items()))


def _so_far(counts: Counts) -> str:
    done = {
        "archived": counts.archived,
        "verified": counts.verified,
        "deleted": counts.deleted,
        "ended": counts.expired + counts.removed + counts.cleared + counts.purged + counts.shelved,
        "set aside": counts.failed,
    }
    return ", ".join(f"{number} {what}" for what, number in done.items() if number) or "nothing yet"


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="seconds")
    if isinstance(value, list | tuple):
        return ", ".join(map(_cell, cast("Iterable[object]", value))) or "-"
    return str(value)


def _plain(value: object) -> str:
    """What JSON has no form for."""
    return value.isoformat() if isinstance(value, datetime) else str(value)
