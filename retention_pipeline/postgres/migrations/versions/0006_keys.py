"""The life of keys: rotation, copies beside the archives, destruction."""

from retention_pipeline.postgres.migrations import files

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Run the file beside this one."""
    files.run(__file__)


def downgrade() -> None:
    """There is no way back."""
    files.refuse()
