"""Gives each sample tenant an archive of its own in the laptop's S3 server, by the steps that an operator takes."""

from retention_pipeline.app import PROFILE_GRAMMAR, App
from retention_pipeline.dev.seaweed import EmbeddedS3
from retention_pipeline.egress.policy import Destination
from retention_pipeline.egress.s3 import S3Api
from retention_pipeline.egress.s3_wire import Bucket
from retention_pipeline.governance.profile import parse_profile
from retention_pipeline.model.credentials import Credentials
from retention_pipeline.model.people import Tenant
from retention_pipeline.model.profile import Readiness
from retention_pipeline.postgres import credentials, egress_settings, profiles

BUCKET = "workflow-archives"
LOOPBACK = ("127.0.0.1/32",)
ARCHIVE_RETENTION_DAYS = 3650


def approve_egress(app: App, s3: EmbeddedS3) -> None:
    """Let the installation connect to the laptop's S3 server, at the loopback address alone (A14)."""
    with app.operator().transaction(None) as cursor:
        egress_settings.allow(cursor, s3.endpoint, LOOPBACK, "the laptop's own archive store")


def bucket_api(app: App, s3: EmbeddedS3) -> S3Api:
    """The bucket, with the laptop server's own credentials."""
    bucket = Bucket(endpoint=Destination.parse(s3.endpoint), name=BUCKET, region=s3.region)
    return S3Api(app.transport(), bucket, _credentials(s3))


def set_up(app: App, s3: EmbeddedS3, tenant: Tenant, run: str) -> Readiness:
    """Store the tenant's secret, write its profile, and prove that its store keeps what it is given (A12-A15)."""
    key = app.operator_keys().current(tenant.id)
    with app.operator().transaction(tenant.id) as cursor:
        secret_id, _ = credentials.put(cursor, tenant.id, _credentials(s3), key)
        draft = parse_profile(
            "s3-compatible",
            {"endpoint": s3.endpoint, "bucket": BUCKET, "region": s3.region, "prefix": f"tenants/{tenant.id}"},
            secret_id=secret_id,
            archive_retention_days=ARCHIVE_RETENTION_DAYS,
            grammar=PROFILE_GRAMMAR,
        )
        profiles.put(cursor, tenant.id, draft)
    return app.check_readiness(tenant.id, run=run)


def _credentials(s3: EmbeddedS3) -> Credentials:
    return Credentials(access_key=s3.access_key, secret_key=s3.secret_key)
