"""One tenant, one key, one instance."""

import pytest

from retention_pipeline.envelope.identity import Identity
from retention_pipeline.envelope.wraps import TenantKey


@pytest.fixture
def identity():
    return Identity(tenant="t-1", instance="i-1", epoch=2, manifest="nucleus/workflow-manifest.v1")


@pytest.fixture
def key():
    return TenantKey(id="k/1", secret=bytes(range(32)))
