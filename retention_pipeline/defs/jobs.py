"""Jobs that people launch and schedules start."""

import dagster as dg

from retention_pipeline.defs.expiry import archive_life
from retention_pipeline.defs.instances import instance_archive
from retention_pipeline.defs.scrub import archive_care

reconcile_tenants = dg.define_asset_job(
    "reconcile_tenants",
    selection=dg.AssetSelection.assets(*instance_archive.keys),
    executor_def=dg.in_process_executor,
    tags={"retention/job": "reconcile"},
    description="The whole chain for workflow instances. Launched without a change it is a preflight: it counts and selects, and changes "
    "nothing. To apply, set `apply: true` and give an approval's id.",
)

expire_archives = dg.define_asset_job(
    "expire_archives",
    selection=dg.AssetSelection.assets(*archive_life.keys),
    executor_def=dg.in_process_executor,
    tags={"retention/job": "expire"},
    description="Ends archives whose own retention is over. Launched without a change it is a preflight: it counts, and ends nothing. To "
    "apply, set `apply: true` and give the id of an approval of `expire`.",
)

scrub_archives = dg.define_asset_job(
    "scrub_archives",
    selection=dg.AssetSelection.assets(*archive_care.keys),
    executor_def=dg.in_process_executor,
    tags={"retention/job": "scrub"},
    description="Reads a part of the stored archives again, lists the stores, and reports what is not what it must be. It changes nothing "
    "and needs no approval.",
)
