"""The audit record's part of the composition root: from an app to sealing, verifying and exporting (SPEC G5)."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from retention_pipeline.app import App
from retention_pipeline.clock import monotonic
from retention_pipeline.errors import Code, Integrity, Refused, RetentionError
from retention_pipeline.model.audit import INSTALLATION, Anchor, AuditFinding, Head
from retention_pipeline.model.ids import TenantId
from retention_pipeline.model.ports import ObjectStore
from retention_pipeline.postgres import profiles
from retention_pipeline.postgres.audit import PostgresAudit
from retention_pipeline.postgres.session import Limits, Session
from retention_pipeline.stages import audit_file
from retention_pipeline.stages.audit_anchors import newest_anchor
from retention_pipeline.stages.audit_sealing import DAY_SECONDS, Sealing, SealingBounds, SealingReport
from retention_pipeline.stages.audit_verification import Verification, verify
from retention_pipeline.storage.heads import HeadFile

PURPOSE: Final = "audit"
"""What the key is for; it is never in the database."""
_COPYING_SECONDS: Final = 60.0
"""After which no further tenant's keys are copied; the next run goes on."""
_READING: Final = Limits(statement=600_000)
"""One statement compares all ids of a chain."""


@dataclass(slots=True, kw_only=True)
class Verified:
    """A verification, and what it was compared with.

    Args:
        kept: the block of the head that this machine kept.
        anchor: the newest anchor.
        unread: stores whose anchors could not be looked at, by the code of why.
    """

    result: Verification
    kept: int | None = None
    anchor: Anchor | None = None
    unread: list[str]
    read: int = 0


def seal(
    app: App,
    tenant: TenantId | None = None,
    *,
    anchor_now: bool = False,
    restored: str | None = None,
    bounds: SealingBounds = SealingBounds(),  # noqa: B008  a frozen value
) -> SealingReport:
    """Seal what waits, of one chain or of all, and anchor the heads that moved since yesterday; as the worker.

    Args:
        app: the product.
        tenant: whose chain; None means all.
        bounds: how much one run does.
        anchor_now: whether to anchor whatever the age of the last anchor.
        restored: why chains may have lost blocks, in a person's words: the database was restored. It is on record.
    """
    records = PostgresAudit(session=app.worker())
    key = app.key_provider().mac_key(PURPOSE)
    sealing = Sealing(
        records=records,
        heads=HeadFile(app.settings.home, key),
        key=key,
        stores=partial(_ready_store, app),
        bounds=bounds,
        accept=restored is not None,
    )
    if restored is not None:
        records.note_restored(tenant or INSTALLATION, restored)
        sealing.adopt(tenant)
    sealing.seal(tenant)
    now = anchor_now or restored is not None
    sealing.anchor(tenant, age_seconds=0.0 if now else DAY_SECONDS, unmoved=now)
    _copy_keys(app, tenant, sealing.report)
    return sealing.report


def _copy_keys(app: App, tenant: TenantId | None, report: SealingReport) -> None:
    """Beside the archives, with the anchors, lie the wrapped keys (A17): what is missing there is no green run either.

    An older store that is gone for good is not told every five minutes: the doctor says so.
    """
    begun = monotonic()
    for owner in app.key_copies().tenants():
        if monotonic() - begun > _COPYING_SECONDS:
            break
        if tenant is None or owner == tenant:
            done = app.copy_keys(owner)
            if app.records().profile(owner)[0].generation in done.stores:
                report.failures.update(done.failures)


def verify_chain(app: App, tenant: TenantId, *, anchors: bool = True) -> Verified:
    """Follow one chain through the database, and compare it with the heads that were kept outside."""
    key = app.key_provider().mac_key(PURPOSE)
    with reader(app) as records:
        outside = Verified(result=Verification(tenant=tenant), unread=[])
        heads, findings = _kept(app, key, tenant, outside)
        if anchors:
            for owner in _anchor_owners(app, tenant):
                found, missing = _anchored(app, records, owner, key, outside)
                findings += missing
                heads += [head for head in found if head.tenant == tenant]
        outside.result = verify(records.log(tenant), tenant, key, heads)
        outside.result.add(findings)
    return outside


def verify_file(app: App, path: Path) -> Verified:
    """Follow an exported chain, with nothing but the keyring, and this machine's head if it is no newer than the file."""
    key = app.key_provider().mac_key(PURPOSE)
    log = audit_file.FileLog(path=path)
    tenant = log.chain()
    outside = Verified(result=Verification(tenant=tenant), unread=[])
    kept, findings = _kept(app, key, tenant, outside)
    last = max((seal.block for seal, _ in log.blocks()), default=0)
    outside.result = verify(log, tenant, key, [head for head in kept if head.block <= last])
    outside.result.add(findings)
    return outside


def export(app: App, tenant: TenantId, path: Path) -> audit_file.Exported:
    """Write one chain to a new file; needs no key."""
    with reader(app) as records:
        log = records.log(tenant)
        return audit_file.export(log, log.unsealed(), tenant, records.now(), path)


@contextmanager
def reader(app: App) -> Iterator[PostgresAudit]:
    """The record, as the person who calls, or as the worker where this machine has no operator."""
    url = app.settings.operator_url or app.settings.need_worker_url()
    setting = app.catalog.instances.tenants.setting
    session = Session(url=url, source_setting=setting, program="retention audit", limits=_READING)
    try:
        yield PostgresAudit(session=session)
    finally:
        session.close()


def _ready_store(app: App, tenant: TenantId) -> tuple[int, ObjectStore]:
    profile, readiness = app.records().profile(tenant)
    if not readiness.ready:
        raise Refused(
            Code.PROFILE_NOT_READY,
            "The archive store is not proven, so the audit record's head is not anchored there.",
            remedy="Run `retention profile readiness`, and mend what it names.",
        )
    return profile.generation, app.store(tenant, profile.generation)


def _kept(app: App, key: bytes, tenant: TenantId, outside: Verified) -> tuple[list[Head], list[AuditFinding]]:
    """This machine's head; a file that somebody changed is a finding, and no reason to look no further."""
    try:
        head = HeadFile(app.settings.home, key).read().get(tenant)
    except Integrity as error:
        return [], [AuditFinding(code=error.code)]
    outside.kept = head.block if head else None
    return ([head] if head else []), []


def _anchor_owners(app: App, tenant: TenantId) -> list[TenantId]:
    """In whose stores to look: the installation's head is beside each tenant's."""
    return [t.id for t in app.tenants()] if tenant == INSTALLATION else [tenant]


def _anchored(
    app: App, records: PostgresAudit, owner: TenantId, key: bytes, outside: Verified
) -> tuple[list[Head], list[AuditFinding]]:
    """The heads of a tenant's newest anchor; where the record notes one that the store lacks, that is a finding."""
    heads: list[Head] = []
    findings: list[AuditFinding] = []
    try:
        noted = records.noted_anchor(owner)
        with records.session.transaction(owner, read_only=True) as cursor:
            status = profiles.status(cursor)
        names = {noted[0]} if noted else set()
        generations = {status.generation} if status else set()
        for generation in generations | ({noted[1]} if noted else set()):
            store = app.store(owner, generation)
            try:
                found = newest_anchor(store, key)
            finally:
                store.close()
            outside.read += 1
            findings += [AuditFinding(code=Code.AUDIT_HEAD_INVALID)] * found.false
            if found.anchor is None:
                continue
            names = {name for name in names if name > found.name}
            heads += [found.anchor.head, *([found.anchor.installation] if found.anchor.installation else [])]
            if outside.anchor is None or found.anchor.at > outside.anchor.at:
                outside.anchor = found.anchor
        findings += [AuditFinding(code=Code.AUDIT_ANCHOR_MISSING) for _ in names]
    except RetentionError as error:
        outside.unread.append(str(error.code))
    return heads, findings
