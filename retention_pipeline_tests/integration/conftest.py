"""What integration tests share."""

from retention_pipeline_tests.databases import database, template

__all__ = ["database", "template"]
