"""Deadlines of join requests, and what people do with one."""

from retention_pipeline.postgres.migrations import files

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    """Run the file beside this one."""
    files.run(__file__)


def downgrade() -> None:
    """There is no way back."""
    files.refuse()
