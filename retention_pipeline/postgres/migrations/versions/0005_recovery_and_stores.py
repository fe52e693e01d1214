"""Dead letters that are closed, and data stores that are detached."""

from retention_pipeline.postgres.migrations import files

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Run the file beside this one."""
    files.run(__file__)


def downgrade() -> None:
    """There is no way back."""
    files.refuse()
