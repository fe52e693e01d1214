"""How a call that failed is told: one line or one JSON object, and an exit code (SPEC O1, G6).

- Words of the call are not repeated: somebody may have typed a secret where it does not belong (SPEC A13).
- What nobody foresaw is told without its text: a library's message may quote a row, a host or a password (SPEC A16).
"""

import json

import click

from retention_pipeline.errors import Code, RetentionError, UsageFault


def told(error: BaseException) -> RetentionError:
    """The named failure that an exception stands for."""
    if isinstance(error, RetentionError):
        return error
    if isinstance(error, click.UsageError):
        return UsageFault(Code.USAGE, _sentence(error), remedy=f"See `{_path(error)} --help`.")
    if isinstance(error, click.Abort | KeyboardInterrupt):
        return RetentionError(
            Code.INTERRUPTED, "The command was interrupted.", remedy="Run it again: what was begun is picked up."
        )
    return RetentionError(
        Code.INTERNAL,
        f"Something happened that nobody foresaw ({type(error).__name__}).",
        remedy="Report it with the command's name; whatever was not committed was not changed.",
    )


def report(error: RetentionError, *, as_json: bool) -> None:
    """Tell a program on standard output, a person on standard error."""
    if as_json:
        click.echo(
            json.dumps({"error": {"code": error.code, "message": error.message, "remedy": error.remedy}}, indent=2)
        )
    else:
        click.echo(str(error), err=True)


def _sentence(error: click.UsageError) -> str:
    match error:
        case click.MissingParameter():
            return f"{_hint(error)} is missing."
        case click.BadParameter():
            return f"{_hint(error)} can't be read{_expected(error)}."
        case click.NoSuchOption() | click.BadOptionUsage():
            return f"The option {error.option_name} does not exist here, or lacks its value."
        case click.NoSuchCommand():
            return "There is no such command."
        case _:
            return "The call has a word too many or too few."


def _hint(error: click.BadParameter) -> str:
    if error.param is None:
        return "A value"
    if isinstance(error.param, click.Option):
        return f"The option {error.param.opts[0]}"
    return f"The argument {error.param.human_readable_name}"


def _expected(error: click.BadParameter) -> str:
    kind = error.param.type if error.param else None
    if isinstance(kind, click.Choice):
        return f": it is one of {', '.join(map(str, kind.choices))}"
    if isinstance(kind, click.IntRange | click.FloatRange):
        return f": it is a number from {kind.min} to {kind.max}"
    return f": it is no {kind.name}" if kind else ""


def _path(error: click.UsageError) -> str:
    return error.ctx.command_path if error.ctx else "retention"
