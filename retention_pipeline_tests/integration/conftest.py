"""What integration tests share."""

from retention_pipeline_tests.conformance.conftest import admin, make_bucket
from retention_pipeline_tests.databases import database, template
from retention_pipeline_tests.desks import desk
from retention_pipeline_tests.seams import module_database, shared
from retention_pipeline_tests.worlds import bench

__all__ = ["admin", "bench", "database", "desk", "make_bucket", "module_database", "shared", "template"]
