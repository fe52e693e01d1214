"""What runs saw of the periods of purges."""

from retention_pipeline.postgres.migrations import files

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    """Run the file beside this one."""
    files.run(__file__)


def downgrade() -> None:
    """There is no way back."""
    files.refuse()
