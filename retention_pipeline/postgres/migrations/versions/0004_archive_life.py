"""What happens to an archive after its source is gone: locks, expiry, tombstones."""

from retention_pipeline.postgres.migrations import files

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Run the file beside this one."""
    files.run(__file__)


def downgrade() -> None:
    """There is no way back."""
    files.refuse()
