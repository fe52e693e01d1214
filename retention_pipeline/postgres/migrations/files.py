"""Runs a migration's SQL, which stands in a file beside its revision."""

from pathlib import Path
from typing import Never

from alembic import op


def run(revision: str) -> None:
    """Run the file of the same name, given the revision's own `__file__`."""
    # The driver's own connection: the file holds many statements, and its percent signs are no parameters.
    driver = op.get_bind().connection.driver_connection
    assert driver is not None
    driver.execute(Path(revision).with_suffix(".sql").read_text(encoding="utf-8"))


def refuse() -> Never:
    """Evidence has no way back."""
    raise RuntimeError("evidence is never dropped by a migration")
