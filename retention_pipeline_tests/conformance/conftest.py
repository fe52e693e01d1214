"""One fresh, empty store of each kind."""

import secrets

import boto3
import pytest
from botocore.config import Config

from retention_pipeline.egress.policy import Destination, EgressPolicy
from retention_pipeline.egress.s3 import S3Api
from retention_pipeline.egress.s3_wire import Bucket
from retention_pipeline.egress.transport import PinnedTransport
from retention_pipeline.model.credentials import Credentials
from retention_pipeline.storage.filesystem import FilesystemStore
from retention_pipeline.storage.s3 import S3Store
from retention_pipeline_tests.fakes import MemoryStore


@pytest.fixture(scope="session")
def admin(s3):
    """A bucket's owner, who is not the product."""
    client = boto3.client(
        "s3",
        endpoint_url=s3.endpoint,
        aws_access_key_id=s3.access_key,
        aws_secret_access_key=s3.secret_key,
        region_name=s3.region,
        config=Config(s3={"addressing_style": "path"}),
    )
    yield client
    client.close()


@pytest.fixture(scope="session")
def make_bucket(admin):
    def make(*, versioning=True, lock=False):
        name = f"bucket-{secrets.token_hex(4)}"
        admin.create_bucket(Bucket=name, ObjectLockEnabledForBucket=lock)
        if versioning and not lock:
            admin.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
        return name

    return make


@pytest.fixture(scope="session")
def versioned(make_bucket):
    return make_bucket()


@pytest.fixture(scope="session")
def locking(make_bucket):
    return make_bucket(lock=True)


@pytest.fixture
def transport(s3):
    approved = EgressPolicy.load(entries=[{"destination": s3.endpoint, "networks": ["127.0.0.1/32"]}])
    shared = PinnedTransport(lambda: approved)
    yield shared
    shared.close()


@pytest.fixture
def make_store(s3, transport):
    def make(bucket, *, prefix=None, secret_key=None):
        place = Bucket(endpoint=Destination.parse(s3.endpoint), name=bucket, region=s3.region)
        credentials = Credentials(access_key=s3.access_key, secret_key=secret_key or s3.secret_key)
        return S3Store(S3Api(transport, place, credentials), prefix or f"test/{secrets.token_hex(8)}")

    return make


@pytest.fixture(params=["memory", "filesystem", "s3"])
def store(request, tmp_path):
    if request.param == "memory":
        made = MemoryStore()
    elif request.param == "filesystem":
        made = FilesystemStore(tmp_path, "tenants/t-1")
    else:
        made = request.getfixturevalue("make_store")(request.getfixturevalue("versioned"))
    yield made
    made.close()


@pytest.fixture(params=["memory", "s3"])
def locking_store(request):
    if request.param == "memory":
        return MemoryStore(locks=True)
    return request.getfixturevalue("make_store")(request.getfixturevalue("locking"))
