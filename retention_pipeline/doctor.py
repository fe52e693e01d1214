"""The doctor's rounds: everything that an installation, or a tenant of it, needs to be well (SPEC O3).

It changes nothing but one probe object, which it takes away again. It looks with whichever logins this machine has, also with
one that the product itself would refuse, and says so.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Final

from retention_pipeline import clock
from retention_pipeline.app import App
from retention_pipeline.audit import PURPOSE
from retention_pipeline.catalog.check import Severity as FaultSeverity
from retention_pipeline.catalog.check import check as compare
from retention_pipeline.envelope.wraps import KEY_SIZE
from retention_pipeline.errors import Code, RetentionError
from retention_pipeline.model.diagnosis import Ailment, Check, Diagnosis, Severity, error, failure, warning
from retention_pipeline.model.ids import TenantId
from retention_pipeline.model.profile import Profile, Provider
from retention_pipeline.postgres import (
    examine_logins,
    examine_schema,
    examine_server,
    examine_tenant,
    profiles,
)
from retention_pipeline.postgres.introspection import read_facts
from retention_pipeline.postgres.session import Cursor, Session
from retention_pipeline.settings import DAGSTER_STORAGE_URL, OPERATOR_URL, WORKER_URL
from retention_pipeline.storage.readiness import probe
from retention_pipeline.storage.s3_examination import S3Examination

SKEW_WARNS: Final = 5.0
SKEW_FAILS: Final = 60.0
"""Seconds between two clocks: rules use the database's alone, but people, signatures and certificates use the others."""

_NOBODY: Final = TenantId("nobody")
"""Whose key is wrapped to see whether that works."""
_ELSEWHERE: Final = "Nothing, where another machine has it; run `retention doctor` there."


@dataclass(slots=True, kw_only=True)
class Doctor:
    """Makes the rounds with the parts of an installation.

    Args:
        app: the parts.
    """

    app: App
    _eyes: Session | None = field(default=None, repr=False)
    _blind: RetentionError | None = field(default=None, repr=False)

    def installation(self) -> Iterator[Check]:
        """What concerns every tenant."""
        settings = self.app.settings
        roles = (examine_logins.WORKER, examine_logins.OPERATOR)
        for variable, url, role in zip(
            (WORKER_URL, OPERATOR_URL), (settings.worker_url, settings.operator_url), roles, strict=True
        ):
            yield Check(name=f"The login of {variable}", look=partial(self._login, variable, url, role))
        yield self._seen("The product's roles", examine_logins.roles)
        yield self._seen("The schema's version", examine_schema.version)
        yield self._seen("Row-level security of the product's tables", examine_schema.tables)
        yield self._seen("Triggers that guard the record", examine_schema.triggers)
        yield self._seen("Functions that see all tenants", examine_schema.functions)
        yield self._seen("The catalog and the source's tables", self._catalog)
        yield self._seen("The server's settings", examine_server.settings)
        yield self._seen("The database's clock", self._database_clock)
        yield Check(name="The keyring", look=self._keyring)
        yield Check(name="Egress approvals", look=self._egress)
        kind = "files" if settings.dagster_storage_url is None else "PostgreSQL"
        yield Check(name=f"Dagster's run history, in {kind}", look=self._history)
        yield Check(name="Seals of the audit record", look=partial(self._unsealed, None))

    def tenant(self, tenant: TenantId) -> Iterator[Check]:
        """What concerns one tenant alone."""
        yield Check(name="Attempts", look=partial(self._of_tenant, examine_tenant.attempts, tenant))
        yield Check(name="Leases", look=partial(self._of_tenant, examine_tenant.leases, tenant))
        yield Check(name="The tenant's keys", look=partial(self._keys, tenant))
        yield Check(name="The archive profile and its store", look=partial(self._profile, tenant))
        yield Check(name="Seals of the tenant's audit record", look=partial(self._unsealed, tenant))

    def close(self) -> None:
        """Close what was opened for looking."""
        if self._eyes is not None:
            self._eyes.close()

    # -- the database -----------------------------------------------------------------------------------------------

    def _login(self, variable: str, url: str | None, role: str) -> Iterator[Diagnosis]:
        if url is None:
            yield warning(Ailment.NOT_HERE, f"This machine has no {variable}.", _ELSEWHERE)
            return
        with closing(_looking(url)) as session, session.transaction(None, read_only=True) as cursor:
            yield from examine_logins.login(cursor, self.app.catalog.instances, role)

    def _seen(self, name: str, look: Callable[[Cursor], Iterator[Diagnosis]]) -> Check:
        """A check of what every login may read."""

        def looked() -> Iterator[Diagnosis]:
            with self._sight().transaction(None, read_only=True) as cursor:
                yield from look(cursor)

        return Check(name=name, look=looked)

    def _sight(self) -> Session:
        """A session of the first login that gets in; where none does, that is waited for once."""
        if self._eyes is None and self._blind is None:
            settings = self.app.settings
            urls = [url for url in (settings.worker_url, settings.operator_url) if url]
            for url in urls or [settings.need_worker_url()]:
                session = _looking(url)
                try:
                    session.principal()
                except RetentionError as failed:
                    self._blind = failed
                else:
                    self._eyes, self._blind = session, None
                    break
        if self._eyes is None:
            assert self._blind is not None
            raise self._blind
        return self._eyes

    def _catalog(self, cursor: Cursor) -> Iterator[Diagnosis]:
        catalog = self.app.catalog
        for fault in compare(catalog, read_facts(cursor, catalog)):
            severity = Severity.ERROR if fault.severity is FaultSeverity.ERROR else Severity.WARNING
            sentence = f"The catalog, {fault.where}: {fault.sentence}"
            yield Diagnosis(code=fault.code, severity=severity, sentence=sentence, remedy=fault.remedy)

    def _database_clock(self, cursor: Cursor) -> Iterator[Diagnosis]:
        before = clock.utc_now()
        now = examine_server.now(cursor)
        yield from _skew("The database's clock", before, now, clock.utc_now())

    def _history(self) -> Iterator[Diagnosis]:
        settings = self.app.settings
        if settings.dagster_storage_url is None:
            if settings.production:
                sentence = (
                    f"{DAGSTER_STORAGE_URL} is not set: the run history would be in files, and Dagster won't start."
                )
                yield error(Ailment.HISTORY_IN_FILES, sentence, "Set it to the URL of Dagster's own database.")
            return
        try:
            there = examine_server.has_history(settings.dagster_storage_url)
        except RetentionError as failed:
            sentence = f"Dagster's database can't be reached: {failed.code}: {failed.message}"
            yield error(Ailment.HISTORY_UNREACHABLE, sentence, failed.remedy)
            return
        if not there:
            sentence = "Dagster's database has none of its tables yet."
            yield warning(
                Ailment.HISTORY_EMPTY, sentence, "Start Dagster once; if it ran before, the URL is another's."
            )

    def _unsealed(self, tenant: TenantId | None) -> Iterator[Diagnosis]:
        if self.app.settings.worker_url is None:
            yield _not_here("The audit record's seals", WORKER_URL)
            return
        with self.app.worker().transaction(tenant, read_only=True) as cursor:
            yield from examine_tenant.unsealed(cursor, tenant)

    def _of_tenant(
        self, look: Callable[[Cursor, TenantId], Iterator[Diagnosis]], tenant: TenantId
    ) -> Iterator[Diagnosis]:
        has_worker = self.app.settings.worker_url is not None
        session = self.app.worker() if has_worker else self.app.operator()
        with session.transaction(tenant, read_only=True) as cursor:
            yield from look(cursor, tenant)

    # -- keys and stores --------------------------------------------------------------------------------------------

    def _keyring(self) -> Iterator[Diagnosis]:
        try:
            provider = self.app.key_provider()
            provider.unwrap(_NOBODY, 1, provider.wrap(_NOBODY, 1, bytes(KEY_SIZE)))
            provider.mac_key(PURPOSE)
        except RetentionError as failed:
            if failed.code is Code.KEYRING_MISSING and self.app.settings.worker_url is None:
                yield _not_here("The keyring", "keyring")
            else:
                yield failure(failed)

    def _keys(self, tenant: TenantId) -> Iterator[Diagnosis]:
        if self.app.settings.worker_url is None:
            yield _not_here("The tenant's keys", WORKER_URL)
            return
        with self.app.worker().transaction(tenant, read_only=True) as cursor:
            ids = examine_tenant.key_ids(cursor, tenant)
        lost: list[str] = []
        for key in ids:
            try:
                self.app.tenant_keys().find(tenant, key)
            except RetentionError as failed:
                lost.append(failed.code)
        if lost:
            sentence = (
                f"{len(lost)} of {len(ids)} keys of this tenant can't be opened ({', '.join(sorted(set(lost)))})."
            )
            remedy = "Restore the keyring that was in use when they were made: their archives can't be read without."
            yield error(Ailment.KEY_UNUSABLE, sentence, remedy)
        yield from self._of_tenant(examine_tenant.keys, tenant)

    def _egress(self) -> Iterator[Diagnosis]:
        if self.app.settings.worker_url is None:
            yield _not_here("Egress approvals", WORKER_URL)
        elif not self.app.egress_policy().valid:
            sentence = "The egress settings don't parse: every connection to an archive store is refused."
            yield error(Code.EGRESS_INVALID, sentence, "`retention egress show`, then allow or remove what is wrong.")

    def _profile(self, tenant: TenantId) -> Iterator[Diagnosis]:
        has_worker = self.app.settings.worker_url is not None
        session = self.app.worker() if has_worker else self.app.operator()
        with session.transaction(tenant, read_only=True) as cursor:
            status = profiles.status(cursor)
        if status is None:
            yield failure(profiles.unknown())
            return
        if not status.readiness.ready:
            sentence = f"The archive profile is not ready: {', '.join(status.readiness.codes)}."
            yield error(
                Code.PROFILE_NOT_READY, sentence, "Mend what the code says; then `retention profile readiness`."
            )
        if not has_worker:
            yield _not_here("The archive store", WORKER_URL)
            return
        with session.transaction(tenant, read_only=True) as cursor:
            profile = profiles.newest(cursor, tenant)
        yield from self._store(tenant, profile)

    def _store(self, tenant: TenantId, profile: Profile) -> Iterator[Diagnosis]:
        if profile.provider is Provider.FILESYSTEM:
            with closing(self.app.store(tenant, profile.generation)) as store:
                yield from (error(found.code, found.message, found.remedy) for found in probe(store))
            return
        bucket, prefix = self.app.bucket(profile)
        try:
            self.app.egress_policy().networks(bucket.destination)
            before = clock.utc_now()
            now = bucket.now()
        except RetentionError as failed:
            yield failure(failed)  # nothing else would be answered
            return
        if now is not None:
            yield from _skew("The archive store's clock", before, now, clock.utc_now(), granularity=1.0)
        yield from S3Examination(bucket=bucket, prefix=prefix)()


def _looking(url: str) -> Session:
    """A session that also a login gets which the product refuses: to say what is wrong with it."""
    return Session(url=url, program="retention doctor", privileged=True)


def _not_here(what: str, lacks: str) -> Diagnosis:
    return warning(Ailment.NOT_HERE, f"{what} can't be examined here: this machine has no {lacks}.", _ELSEWHERE)


def _skew(
    name: str, before: datetime, other: datetime, after: datetime, *, granularity: float = 0.0
) -> Iterator[Diagnosis]:
    """How far another clock is from this machine's, beyond what the journey and its own ticks explain."""
    ahead = max((other - after).total_seconds(), (before - other).total_seconds() - granularity)
    if ahead > SKEW_WARNS:
        tell = error if ahead > SKEW_FAILS else warning
        sentence = f"{name} and this machine's differ by {ahead:.0f} seconds at least."
        yield tell(Ailment.CLOCK_SKEW, sentence, "Set both by a time server.")
