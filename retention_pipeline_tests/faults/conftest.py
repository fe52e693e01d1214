"""What the tests of crashes share."""

from retention_pipeline_tests.databases import database, template
from retention_pipeline_tests.seams import module_database, shared

__all__ = ["database", "module_database", "shared", "template"]
