"""Audit events sealed in keyed blocks."""

from retention_pipeline.postgres.migrations import files

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Run the file beside this one."""
    files.run(__file__)


def downgrade() -> None:
    """There is no way back."""
    files.refuse()
