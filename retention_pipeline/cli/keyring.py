"""`retention keyring`: the file that root keys are in."""

import click

from retention_pipeline.cli.common import Call, pass_call
from retention_pipeline.errors import Code, Refused
from retention_pipeline.keys.local import LocalKeyring


@click.group()
def keyring() -> None:
    """The file that root keys are in."""


@keyring.command()
@pass_call
def create(call: Call) -> None:
    """Make a keyring with one root key, for an installation that has none.

    A keyring that is there is left as it is. Losing it loses every archive that was sealed under it: back it up, apart
    from the database.

    \b
    Example:
      retention keyring create
    """
    path = call.app.settings.keyring
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        raise Refused(
            Code.KEYRING_UNSAFE, "The keyring's folder can't be made.", remedy="Check RETENTION_KEYRING and its folder."
        ) from None
    LocalKeyring.create(path)
    call.emit({"created": True}, "The keyring was made. Back it up now, apart from the database.")
