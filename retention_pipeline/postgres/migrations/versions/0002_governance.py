"""Approvals that bind the worker, the brake's limits, and the deletion guard."""

from retention_pipeline.postgres.migrations import files

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Run the file beside this one."""
    files.run(__file__)


def downgrade() -> None:
    """There is no way back."""
    files.refuse()
