"""Archives read again, and objects that no record names."""

from retention_pipeline.postgres.migrations import files

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Run the file beside this one."""
    files.run(__file__)


def downgrade() -> None:
    """There is no way back."""
    files.refuse()
