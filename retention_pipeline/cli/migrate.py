"""`retention migrate`: the product's schema, brought to this version."""

import click

from retention_pipeline.cli.common import Call, pass_call
from retention_pipeline.postgres.migrate import bootstrap
from retention_pipeline.postgres.migrate import migrate as run


@click.command()
@click.option(
    "--bootstrap-admin", metavar="LOGIN", help="Give this login every permission; once, while nobody has any."
)
@pass_call
def migrate(call: Call, bootstrap_admin: str | None) -> None:
    """Bring the schema to this version.

    Makes roles and tables where they are missing, and installs the catalog's functions.
    Runs with the login of RETENTION_OWNER_URL. Safe to run again, and on two machines at once.

    \b
    Examples:
      retention migrate
      retention migrate --bootstrap-admin alice
    """
    owner = call.app.settings.need_owner_url()
    version = run(owner, call.app.catalog)
    if bootstrap_admin is not None:
        bootstrap(owner, bootstrap_admin)
    call.emit({"version": version, "administrator": bootstrap_admin})
