"""What Dagster loads: the catalog goes in, and assets, jobs, schedules and sensors come out."""

import dagster as dg

from retention_pipeline.catalog.loader import load
from retention_pipeline.catalog.sweep_model import Every
from retention_pipeline.defs.audit import audit_sealing, audit_seals, seal_audit
from retention_pipeline.defs.deadline_sensor import sensor
from retention_pipeline.defs.expiry import archive_life
from retention_pipeline.defs.instances import instance_archive
from retention_pipeline.defs.jobs import expire_archives, reconcile_tenants, scrub_archives
from retention_pipeline.defs.overview import tenant_overview
from retention_pipeline.defs.punctuality import hourly_watch, promised_runs, watch_promises
from retention_pipeline.defs.resources import ProductResource
from retention_pipeline.defs.schedules import (
    daily_archive_scrub,
    daily_preflight,
    nightly_archive_retention,
    nightly_reconcile,
)
from retention_pipeline.defs.scrub import archive_care
from retention_pipeline.defs.sensors import tenant_partitions
from retention_pipeline.defs.sweeps import define
from retention_pipeline.settings import Settings

SWEEPS = [define(rules.dataset) for rules in load(Settings.load().catalog).sweeps]

defs = dg.Definitions(
    assets=[
        tenant_overview,
        instance_archive,
        archive_life,
        archive_care,
        audit_seals,
        promised_runs,
        *(sweep.asset for sweep in SWEEPS),
    ],
    jobs=[
        reconcile_tenants,
        expire_archives,
        scrub_archives,
        seal_audit,
        watch_promises,
        *(sweep.job for sweep in SWEEPS),
    ],
    schedules=[
        daily_preflight,
        nightly_reconcile,
        nightly_archive_retention,
        daily_archive_scrub,
        audit_sealing,
        hourly_watch,
        *(sweep.schedule for sweep in SWEEPS),
    ],
    sensors=[
        tenant_partitions,
        *(sensor(made.name, made.job) for made in SWEEPS if made.every is Every.DEADLINE),
    ],
    resources={"product": ProductResource()},
    executor=dg.in_process_executor,  # a backfill takes no job of ours; a process for its one step would double its cost
)
