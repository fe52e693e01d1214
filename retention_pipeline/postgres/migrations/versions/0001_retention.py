"""The product's own schema, its policies and privileges."""

from retention_pipeline.postgres.migrations import files

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Run the file beside this one."""
    files.run(__file__)


def downgrade() -> None:
    """There is no way back."""
    files.refuse()
