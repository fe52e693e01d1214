"""Short-lived payloads and their expiry."""

from retention_pipeline.postgres.migrations import files

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    """Run the file beside this one."""
    files.run(__file__)


def downgrade() -> None:
    """There is no way back."""
    files.refuse()
