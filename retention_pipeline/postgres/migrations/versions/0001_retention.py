"""The product's own schema, its policies and privileges."""

from pathlib import Path

from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Run the file beside this one."""
    # The driver's own connection: the file holds many statements, and its percent signs are no parameters.
    driver = op.get_bind().connection.driver_connection
    assert driver is not None
    driver.execute(Path(__file__).with_suffix(".sql").read_text(encoding="utf-8"))


def downgrade() -> None:
    """There is no way back."""
    raise RuntimeError("evidence is never dropped by a migration")
