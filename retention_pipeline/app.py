"""The composition root: from settings to the parts that the command line and Dagster share. Nothing is opened before it is used."""

import hashlib
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Final, Self

from retention_pipeline.catalog.check import Severity, check, concerning, require_sound
from retention_pipeline.catalog.loader import Catalog, load
from retention_pipeline.egress.kms import KmsApi, KmsPlace
from retention_pipeline.egress.policy import Destination, EgressPolicy
from retention_pipeline.egress.s3 import S3Api
from retention_pipeline.egress.s3_probe import S3Probe
from retention_pipeline.egress.s3_wire import Bucket
from retention_pipeline.egress.transport import PinnedTransport
from retention_pipeline.errors import RetentionError
from retention_pipeline.governance.profile import Grammar, ProfileDraft, parse_profile
from retention_pipeline.governance.secret import MAX_BYTES, parse_credentials
from retention_pipeline.keys.aws_kms import AwsKms
from retention_pipeline.keys.local import LocalKeyring
from retention_pipeline.keys.several import KmsAndKeyring
from retention_pipeline.model.archive import Attempt
from retention_pipeline.model.credentials import Credentials
from retention_pipeline.model.expiry import ArchiveLife
from retention_pipeline.model.gates import Gates
from retention_pipeline.model.ids import AttemptId, InstanceId, TenantId
from retention_pipeline.model.inventory import Inventory
from retention_pipeline.model.outcome import Counts
from retention_pipeline.model.people import Tenant, TenantCount
from retention_pipeline.model.ports import KeyProvider, ObjectStore
from retention_pipeline.model.profile import LockMode, Profile, Provider, Readiness
from retention_pipeline.model.scrub import SLICES, Integrity, ScrubResult
from retention_pipeline.postgres import (
    archive_lives,
    attempts,
    credentials,
    egress_settings,
    integrity,
    oversight,
    people,
    profiles,
)
from retention_pipeline.postgres.credentials import SealedSecret
from retention_pipeline.postgres.expiry import PostgresExpiries
from retention_pipeline.postgres.introspection import read_facts
from retention_pipeline.postgres.key_copies import PostgresKeyCopies
from retention_pipeline.postgres.key_desk import PostgresKeyDesk, PostgresRewrapping
from retention_pipeline.postgres.object_locks import PostgresLockReminders
from retention_pipeline.postgres.records import PostgresRecords
from retention_pipeline.postgres.restore import PostgresRestorer
from retention_pipeline.postgres.scrub import PostgresScrub
from retention_pipeline.postgres.session import Cursor, Limits, Session
from retention_pipeline.postgres.source import PostgresSource
from retention_pipeline.postgres.tenant_keys import TenantKeys
from retention_pipeline.postgres.unknown_objects import PostgresUnknownObjects
from retention_pipeline.settings import KMS_CREDENTIALS, KmsSettings, Settings, read_private
from retention_pipeline.stages import restoration
from retention_pipeline.stages.eligibility import Brake
from retention_pipeline.stages.expiry import Expiry, ExpiryResult
from retention_pipeline.stages.explicit import ExplicitArchive, ExplicitResult
from retention_pipeline.stages.key_copies import CopyReport, copy_keys
from retention_pipeline.stages.manifest import ReadManifest
from retention_pipeline.stages.object_locks import AT_ONCE, Settled, settle
from retention_pipeline.stages.reconcile import Bounds, Reconciliation, RunResult
from retention_pipeline.stages.scrub import Scrub, ScrubBounds
from retention_pipeline.stages.unknown_objects import Removal, RemovalResult
from retention_pipeline.stages.world import EVERY_STEP, Step, World
from retention_pipeline.storage.filesystem import FilesystemStore
from retention_pipeline.storage.keys import checked_prefix
from retention_pipeline.storage.readiness import probe
from retention_pipeline.storage.s3 import S3Store

PROFILE_GRAMMAR: Final = Grammar(endpoint=lambda text: str(Destination.parse(text)), prefix=checked_prefix)
"""How those who connect to a profile's places read them."""

READING_MS: Final = 3_600_000
"""How long reading one archive may keep it from its end, in milliseconds."""

_FOLDER_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


class App:
    """The product's parts, each made at first use, closed together.

    A session is one thread's at a time. What several threads share (keys, egress approvals, stores) has a session and a
    lock of its own.

    Args:
        settings: what this installation was told.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._sessions: dict[str, Session] = {}
        self._keys: dict[str, TenantKeys] = {}
        self._transport: PinnedTransport | None = None
        self._kms: AwsKms | None = None
        self._lookup = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @cached_property
    def catalog(self) -> Catalog:
        """The rules."""
        return load(self.settings.catalog)

    def worker(self) -> Session:
        """The session that changes data, under approvals."""
        return self._session("worker", self.settings.need_worker_url)

    def operator(self) -> Session:
        """The session of the person who calls."""
        return self._session("operator", self.settings.need_operator_url)

    def tenant(self, alias: str) -> Tenant:
        """The tenant of an alias, or `UsageFault(TENANT_UNKNOWN)`; asked by whichever login this machine has."""
        return people.resolve(self.operator() if self.settings.operator_url else self.worker(), alias)

    def keyring(self) -> LocalKeyring:
        """The root keys."""
        return LocalKeyring(self.settings.keyring)

    def key_provider(self) -> KeyProvider:
        """Whoever holds the root keys here: the keyring file, AWS KMS, or both while one gives way to the other (A18)."""
        kms = self.settings.kms
        if kms is None:
            return self.keyring()
        if self._kms is None:
            self._kms = AwsKms(service=self._kms_api(kms), key=kms.key, mac=kms.mac)
        return KmsAndKeyring(
            kms=self._kms,
            keyring=self.keyring(),
            by_kms=self.settings.wrap_by_kms,
            mac_by_kms=kms.mac is not None,
        )

    def _kms_api(self, kms: KmsSettings) -> KmsApi:
        endpoint = Destination.parse(kms.endpoint or f"https://kms.{kms.region}.amazonaws.com")
        credentials = parse_credentials(read_private(kms.credentials, KMS_CREDENTIALS, MAX_BYTES))
        return KmsApi(self.transport(), KmsPlace(endpoint=endpoint, region=kms.region), credentials)

    def key_desk(self) -> PostgresKeyDesk:
        """What a manager of keys does, as the person who calls."""
        return PostgresKeyDesk(session=self.operator())

    def rewrapping(self) -> PostgresRewrapping:
        """What wraps keys anew, as the worker."""
        return PostgresRewrapping(session=self._session("rewrapping", self.settings.need_worker_url))

    def key_copies(self) -> PostgresKeyCopies:
        """The record of wrapped keys beside the archives, as the worker."""
        return PostgresKeyCopies(session=self._session("copies", self.settings.need_worker_url))

    def copy_keys(self, tenant: TenantId) -> CopyReport:
        """Keep a copy of each wrapped key beside the archives; opens no store where nothing changed (A17)."""
        return copy_keys(self.key_copies(), self.store, tenant)

    def tenant_keys(self) -> TenantKeys:
        """Tenants' keys, as the worker; threads may share them."""
        return self._tenant_keys("keys", self._session("keys", self.settings.need_worker_url))

    def operator_keys(self) -> TenantKeys:
        """Tenants' keys, as the person who calls: to seal a secret."""
        return self._tenant_keys("operator", self.operator())

    def egress_policy(self) -> EgressPolicy:
        """What is approved at this moment; read from the database each time. No answer, no connection (A14)."""
        with self._look(None) as cursor:
            return egress_settings.policy(cursor)

    def transport(self) -> PinnedTransport:
        """The one way out, which all stores share."""
        if self._transport is None:
            self._transport = PinnedTransport(self.egress_policy, ca_file=self.settings.ca_file)
        return self._transport

    def store(self, tenant: TenantId, generation: int) -> ObjectStore:
        """The archive store that one generation of a tenant's profile names, with the newest of its secret."""
        with self._look(tenant) as cursor:
            profile = profiles.of_generation(cursor, tenant, generation)
            secret = _secret(cursor, profile)
        return self._open(profile, secret)

    def check_readiness(self, tenant: TenantId, *, run: str) -> Readiness:
        """Try the newest profile for real, and keep what was found for exactly these generations (A15).

        Raises:
            Refused: `PROFILE_UNKNOWN`. Whatever else is wrong with the store is a code of the answer.
        """
        with self._look(tenant) as cursor:
            profile = profiles.newest(cursor, tenant)
        secret: SealedSecret | None = None
        try:
            with self._look(tenant) as cursor:
                secret = _secret(cursor, profile)
            tried = _try(self._open(profile, secret))
        except RetentionError as error:
            tried = Readiness(ready=False, codes=(error.code,))
        worker = self.worker()
        actor = worker.principal()
        with worker.transaction(tenant) as cursor:
            generation = secret.generation if secret else None
            profiles.record_readiness(cursor, profile, generation, tried, actor=actor, run=run)
        return tried

    # -- the jobs ---------------------------------------------------------------------------------------------------

    @classmethod
    def from_environment(cls) -> Self:
        """An app of this process's settings."""
        return cls(Settings.load())

    def source(self) -> PostgresSource:
        """The platform's rows, as the worker, in a session of their own: a snapshot may be open beside the records."""
        return PostgresSource(session=self._session("source", self.settings.need_worker_url), catalog=self.catalog)

    def records(self) -> PostgresRecords:
        """The product's records, as the worker."""
        return PostgresRecords(session=self.worker(), catalog=self.catalog)

    def restorer(self) -> PostgresRestorer:
        """Puts archived instances back, as the worker."""
        return PostgresRestorer(session=self.worker(), catalog=self.catalog)

    def world(self, progress: Callable[[Counts], None] = lambda _: None) -> World:
        """Everything that a run needs."""
        safety = self.catalog.instances.safety
        return World(
            source=self.source(),
            records=self.records(),
            keys=self.tenant_keys(),
            stores=self.store,
            brake=Brake(instances=safety.brake_instances, share=safety.brake_share, blocked_share=safety.blocked_share),
            progress=progress,
            settle=self.settle_locks,
        )

    def settle_locks(self, tenant: TenantId, *, limit: int = AT_ONCE) -> Settled:
        """Tell stores that can lock how long, and for which hold, they shall hold the tenant's archives (A11)."""
        session = self._session("locks", self.settings.need_worker_url)
        return settle(PostgresLockReminders(session=session), self.store, tenant, limit=limit)

    def tenants(self) -> tuple[Tenant, ...]:
        """All tenants of the platform, as the worker."""
        return people.directory(self.worker())

    def overview(self) -> tuple[TenantCount, ...]:
        """Every tenant with its number of instances, and of those that have ended."""
        return people.overview(self.worker())

    def inventory(self, tenant: TenantId, as_of: datetime | None = None) -> Inventory:
        """Count everything and change nothing (W5); as the operator where this machine has that login."""
        name, url = ("operator", self.settings.need_operator_url)
        if self.settings.operator_url is None:
            name, url = ("source", self.settings.need_worker_url)
        source = PostgresSource(session=self._session(name, url), catalog=self.catalog)
        return source.inventory(tenant, as_of or source.now(tenant))

    def reconcile(
        self,
        tenant: TenantId,
        *,
        run: str,
        apply: bool = False,
        approval: str | None = None,
        steps: frozenset[Step] = EVERY_STEP,
        bounds: Bounds = Bounds(),  # noqa: B008  a frozen value
        as_of: datetime | None = None,
        progress: Callable[[Counts], None] = lambda _: None,
    ) -> RunResult:
        """The periodic run of one tenant: a preflight, and with `apply` and an approval the bounded work (W6, W7).

        Raises:
            Refused: `CATALOG_INVALID`, with `apply`, when the catalog no longer fits the database (F18).
        """
        if apply:
            self.require_sound_catalog()
        result = Reconciliation(
            world=self.world(progress),
            tenant=tenant,
            run=run,
            apply=apply,
            approval=approval,
            steps=steps,
            bounds=bounds,
            as_of=as_of,
        )()
        if apply:
            self._copy_keys_after(tenant)
        return result

    def archive_one(
        self,
        tenant: TenantId,
        instance: InstanceId,
        *,
        run: str,
        apply: bool = False,
        approval: str | None = None,
        as_of: datetime | None = None,
    ) -> ExplicitResult:
        """The explicit archive of one instance (W8); the catalog must fit the database before anything is applied (F18)."""
        if apply:
            self.require_sound_catalog()
        result = ExplicitArchive(
            world=self.world(),
            tenant=tenant,
            instance=instance,
            run=run,
            apply=apply,
            approval=approval,
            as_of=as_of,
        )()
        if apply:
            self._copy_keys_after(tenant)
        return result

    def archives(self, tenant: TenantId) -> list[Attempt]:
        """A tenant's archives, the newest first, at most 1,000."""
        return self.records().archives(tenant, limit=1000)

    def open_archive(self, tenant: TenantId, archive: AttemptId) -> tuple[Attempt, ReadManifest]:
        """Verify one archive and read its manifest (A17)."""
        with self._reading(tenant, archive) as attempt:
            return attempt, self._read(attempt)

    def own_rows(self, manifest: ReadManifest) -> dict[str, int]:
        """How many rows of each table a restore puts back: shared rows stayed where they were."""
        shared = {table.name for table in self.catalog.instances.shared}
        return {table.name: len(table.rows) for table in manifest.tables if table.name not in shared}

    def restore_to_file(self, tenant: TenantId, archive: AttemptId, path: Path) -> None:
        """Write one archive's manifest to a new, private file; it appears only when it is proven whole."""
        with self._reading(tenant, archive) as attempt:
            stored = restoration.restorable(attempt)
            with closing(self.store(tenant, stored.profile_generation)) as store:
                restoration.to_file(store, stored, partial(self.tenant_keys().find, tenant), path)

    def restore_into_database(
        self, tenant: TenantId, archive: AttemptId, *, approval: str, run: str
    ) -> restoration.Restored:
        """Put one archive's instance back exactly as it was archived, under an approval for this archive."""
        with self._reading(tenant, archive) as attempt:
            manifest = self._read(attempt)
            restorer = self.restorer()
            if restorer.is_back(tenant, archive, manifest):
                return restoration.Restored(
                    archive=archive,
                    instance=manifest.instance,
                    rows_by_table=self.own_rows(manifest),
                    identical=True,
                    already=True,
                )
            return restoration.into_database(self.records(), restorer, attempt, manifest, approval_id=approval, run=run)

    def expire(
        self,
        tenant: TenantId,
        *,
        run: str,
        apply: bool = False,
        approval: str | None = None,
        bounds: Bounds = Bounds(),  # noqa: B008  a frozen value
        as_of: datetime | None = None,
        progress: Callable[[Counts], None] = lambda _: None,
    ) -> ExpiryResult:
        """Look which archives' own period is over; with `apply` and an approval, end them (A10)."""
        expiries = PostgresExpiries(session=self._session("expiry", self.settings.need_worker_url))
        return Expiry(
            world=self.world(progress),
            archives=expiries,
            tenant=tenant,
            run=run,
            apply=apply,
            approval=approval,
            bounds=bounds,
            as_of=as_of,
        )()

    def scrub(
        self,
        tenant: TenantId,
        *,
        run: str,
        slices: int = SLICES,
        only: int | None = None,
        bounds: ScrubBounds = ScrubBounds(),  # noqa: B008  a frozen value
        progress: Callable[[Counts], None] = lambda _: None,
    ) -> ScrubResult:
        """List a tenant's stores, read a part of its archives again, and say what is not what it must be (A19)."""
        return Scrub(
            records=self._scrub_records(),
            stores=self.store,
            keys=self.tenant_keys(),
            tenant=tenant,
            run=run,
            slices=slices,
            only=only,
            bounds=bounds,
            progress=progress,
        )()

    def remove_unknown(
        self, tenant: TenantId, *, run: str, apply: bool = False, approval: str | None = None, limit: int = 10_000
    ) -> RemovalResult:
        """Count the objects that no record names; with `apply` and an approval, remove those that were seen a day ago (A19)."""
        return Removal(
            scrub=self._scrub_records(),
            unknown=PostgresUnknownObjects(session=self._session("scrub", self.settings.need_worker_url)),
            records=self.records(),
            stores=self.store,
            tenant=tenant,
            run=run,
            apply=apply,
            approval=approval,
            limit=limit,
        )()

    def integrity(self, tenant: TenantId) -> Integrity:
        """How sure one may be of a tenant's archives, as the person who calls (A19)."""
        with self.operator().transaction(tenant, snapshot=True, read_only=True) as cursor:
            return integrity.report(cursor, tenant)

    def _scrub_records(self) -> PostgresScrub:
        readers = self._session("reading", self.settings.need_worker_url, Limits(idle=READING_MS))
        return PostgresScrub(session=self._session("scrub", self.settings.need_worker_url), readers=readers)

    def archive_lives(self, tenant: TenantId) -> list[ArchiveLife]:
        """A tenant's archives, the newest first, at most 1,000: until when each stays, and what keeps it."""
        now = self.source().now(tenant)
        with self.worker().transaction(tenant, read_only=True) as cursor:
            return archive_lives.lives(cursor, tenant, now, limit=1000)

    def gates(self, tenant: TenantId) -> Gates:
        """What must hold before a schedule may apply anything for a tenant (D3)."""
        with self.worker().transaction(tenant, read_only=True) as cursor:
            schema = self._fits(cursor)
            status = profiles.status(cursor)
            canary = oversight.canary_proven(cursor, tenant)
            acknowledged = oversight.acknowledged(cursor, tenant)
        return Gates(
            schema=schema,
            inventory=acknowledged is not None,
            provider=status is not None and status.readiness.ready,
            canary=canary,
        )

    def schema_gate(self, sweep: str) -> Gates:
        """What must hold before a schedule may apply a sweep: its file and the instances' fit the database (D3)."""
        with self.worker().transaction(None, read_only=True) as cursor:
            return Gates.of_schema(schema=self._fits(cursor, self.catalog.sweep(sweep).file))

    def _fits(self, cursor: Cursor, file: str | None = None) -> bool:
        faults = concerning(check(self.catalog, read_facts(cursor, self.catalog)), file)
        return not any(fault.severity is Severity.ERROR for fault in faults)

    @contextmanager
    def _reading(self, tenant: TenantId, archive: AttemptId) -> Iterator[Attempt]:
        """One archive, whose object does not go as long as this lasts (F20)."""
        session = self._session("reading", self.settings.need_worker_url, Limits(idle=READING_MS))
        with session.transaction(tenant, read_only=True) as cursor:
            archive_lives.share(cursor, tenant, archive)
            yield attempts.by_id(cursor, tenant, archive)

    def _read(self, attempt: Attempt) -> ReadManifest:
        stored = restoration.restorable(attempt)
        with closing(self.store(attempt.tenant, stored.profile_generation)) as store:
            return restoration.open_archive(store, stored, partial(self.tenant_keys().find, attempt.tenant))

    def _copy_keys_after(self, tenant: TenantId) -> None:
        """A run is what it is without the copies: the sealing of the audit record tries again, and is red while they are missing."""
        with suppress(RetentionError):
            self.copy_keys(tenant)

    def worker_session(self, name: str) -> Session:
        """A session of the worker's for one use of several; the worker's own may be in the middle of something."""
        return self._session(name, self.settings.need_worker_url)

    def require_sound_catalog(self, sweep: str | None = None) -> None:
        """The instances' file fits the database, and the sweep's where one is named, or `Refused(CATALOG_INVALID)` (F18)."""
        file = None if sweep is None else self.catalog.sweep(sweep).file
        with self.worker().transaction(None, read_only=True) as cursor:
            require_sound(concerning(check(self.catalog, read_facts(cursor, self.catalog)), file))

    def close(self) -> None:
        """Close whatever was opened. Safe to call twice."""
        if self._transport is not None:
            self._transport.close()
            self._transport = None
        self._kms = None
        for session in self._sessions.values():
            session.close()
        self._sessions.clear()
        self._keys.clear()

    def bucket(self, profile: Profile) -> tuple[S3Probe, str]:
        """The bucket of an S3 profile, with the newest of its secret and the profile's prefix: to be examined."""
        with self._look(profile.tenant) as cursor:
            secret = _secret(cursor, profile)
        assert secret is not None
        draft = _read_again(profile)
        return S3Probe(self.transport(), *self._place(draft, profile.tenant, secret)), draft.configuration["prefix"]

    def _open(self, profile: Profile, secret: SealedSecret | None) -> ObjectStore:
        draft = _read_again(profile)
        prefix = draft.configuration["prefix"]
        if draft.provider is Provider.FILESYSTEM:
            return FilesystemStore(self.settings.data_root, f"{_folder(profile.tenant)}/{prefix}")
        assert secret is not None
        mode = LockMode(draft.configuration.get("lock_mode", LockMode.GOVERNANCE))
        return S3Store(S3Api(self.transport(), *self._place(draft, profile.tenant, secret), lock_mode=mode), prefix)

    def _place(self, draft: ProfileDraft, tenant: TenantId, secret: SealedSecret) -> tuple[Bucket, Credentials]:
        bucket = Bucket(
            endpoint=Destination.parse(draft.configuration["endpoint"]),
            name=draft.configuration["bucket"],
            region=draft.configuration["region"],
        )
        return bucket, secret.open(self.tenant_keys().find(tenant, secret.key_id))

    def _session(self, name: str, url: Callable[[], str], limits: Limits = Limits()) -> Session:  # noqa: B008  a frozen value
        if name not in self._sessions:
            setting = self.catalog.instances.tenants.setting
            self._sessions[name] = Session(
                url=url(), source_setting=setting, program=f"retention {name}", limits=limits
            )
        return self._sessions[name]

    def _tenant_keys(self, name: str, session: Session) -> TenantKeys:
        if name not in self._keys:
            self._keys[name] = TenantKeys(session=session, provider=self.key_provider())
        return self._keys[name]

    @contextmanager
    def _look(self, tenant: TenantId | None) -> Iterator[Cursor]:
        """A short read for whichever thread asks, as the worker where this machine has its login."""
        has_worker = self.settings.worker_url is not None
        url = self.settings.need_worker_url if has_worker else self.settings.need_operator_url
        with self._lookup, self._session("lookup", url).transaction(tenant, read_only=True) as cursor:
            yield cursor


def _secret(cursor: Cursor, profile: Profile) -> SealedSecret | None:
    return credentials.newest(cursor, profile.tenant, profile.secret_id) if profile.secret_id else None


def _read_again(profile: Profile) -> ProfileDraft:
    """The configuration is read by the rules again: the database keeps it, but did not check it."""
    return parse_profile(
        profile.provider,
        profile.configuration,
        secret_id=profile.secret_id,
        archive_retention_days=profile.archive_retention_days,
        grammar=PROFILE_GRAMMAR,
    )


def _try(store: ObjectStore) -> Readiness:
    try:
        codes = tuple(dict.fromkeys(str(finding.code) for finding in probe(store)))
        return Readiness(ready=not codes, codes=codes, locks=store.locks())
    finally:
        store.close()


def _folder(tenant: TenantId) -> str:
    """A folder of the tenant's own below the data root: no prefix of one tenant reaches another's archives."""
    if _FOLDER_NAME.fullmatch(tenant):
        return tenant
    return f"tenant={hashlib.sha256(tenant.encode()).hexdigest()}"
