"""Runs that a standing approval promises."""

from retention_pipeline.postgres.migrations import files

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    """Run the file beside this one."""
    files.run(__file__)


def downgrade() -> None:
    """There is no way back."""
    files.refuse()
