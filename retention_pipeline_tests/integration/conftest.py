"""What integration tests share."""

from retention_pipeline_tests.databases import database, template
from retention_pipeline_tests.worlds import bench

__all__ = ["bench", "database", "template"]
