"""Positions, receipts, what is set aside, and the jobs that sweeps are approved as."""

from retention_pipeline.postgres.migrations import files

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Run the file beside this one."""
    files.run(__file__)


def downgrade() -> None:
    """There is no way back."""
    files.refuse()
