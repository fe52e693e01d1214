"""A whole installation on one laptop: PostgreSQL, S3, the reference platform, and the settings that lead to them."""

import secrets
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from retention_pipeline import settings as names
from retention_pipeline.app import App
from retention_pipeline.catalog.loader import load
from retention_pipeline.dev.cleaning import clean
from retention_pipeline.dev.postgres import EmbeddedPostgres
from retention_pipeline.dev.seaweed import EmbeddedS3
from retention_pipeline.keys.local import LocalKeyring
from retention_pipeline.postgres import provision
from retention_pipeline.settings import Settings, write_file

PLATFORM: Final = "platform"
DAGSTER: Final = "dagster"
OWNER, WORKER, OPERATOR, KEEPER = "platform_owner", "retention_pipeline", "operator", "dagster"
GROUPS: Final = {WORKER: "retention_worker", OPERATOR: "retention_operator"}
_SERVERS = ("postgres", "s3", "dagster-web", "dagster-daemon")
_OURS = ("dagster", "archives", "keyring.json", "settings.env", "demo.json", "restored", "audit-heads.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """What runs.

    Args:
        fresh: whether this start made the database, so that it is empty.
    """

    home: Path
    postgres: EmbeddedPostgres
    s3: EmbeddedS3
    settings: Settings
    fresh: bool

    def superuser_url(self, database: str = PLATFORM) -> str:
        """The embedded server's superuser: for sample data and for counting afterwards, never for the product."""
        return self.postgres.superuser_url(database)


def forget(home: Path) -> None:
    """Remove an earlier installation's state, and nothing else that lies in its home."""
    for name in _SERVERS:
        clean(home / name)
    for name in _OURS:
        path = home / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


@contextmanager
def running(home: Path) -> Iterator[Stack]:
    """Start the servers, make what is missing, write `settings.env`, and stop the servers at the end."""
    home = home.resolve()
    home.mkdir(parents=True, exist_ok=True)
    home.chmod(0o711)  # the database's own user passes through; it sees nothing but its own
    with ExitStack() as stack:
        postgres = stack.enter_context(EmbeddedPostgres(home / "postgres"))
        s3 = stack.enter_context(EmbeddedS3(home / "s3"))
        passwords = {login: secrets.token_urlsafe(24) for login in (OWNER, *GROUPS, KEEPER)}
        fresh = _prepare(postgres, passwords)
        keyring = home / "keyring.json"
        if not keyring.exists():
            LocalKeyring.create(keyring)
        write_file(home, _variables(home, postgres, passwords))
        yield Stack(home=home, postgres=postgres, s3=s3, settings=_settings(home), fresh=fresh)


def open_app(stack: Stack) -> App:
    """The product, pointed at the stack."""
    return App(stack.settings)


def _prepare(postgres: EmbeddedPostgres, passwords: dict[str, str]) -> bool:
    superuser = postgres.superuser_url()
    provision.make_logins(superuser, passwords, OWNER)
    if not provision.has_database(superuser, DAGSTER):
        provision.make_database(superuser, DAGSTER, KEEPER)
    if provision.has_database(superuser, PLATFORM):
        return False
    provision.make_database(superuser, PLATFORM, OWNER)
    provision.make_platform(postgres.url(OWNER, passwords[OWNER], PLATFORM), load(), OPERATOR)
    provision.join_groups(superuser, GROUPS)
    return True


def _variables(home: Path, postgres: EmbeddedPostgres, passwords: dict[str, str]) -> dict[str, str]:
    return {
        names.OWNER_URL: postgres.url(OWNER, passwords[OWNER], PLATFORM),
        names.WORKER_URL: postgres.url(WORKER, passwords[WORKER], PLATFORM),
        names.OPERATOR_URL: postgres.url(OPERATOR, passwords[OPERATOR], PLATFORM),
        names.DAGSTER_STORAGE_URL: postgres.url(KEEPER, passwords[KEEPER], DAGSTER),
        names.KEYRING: str(home / "keyring.json"),
        names.DATA_ROOT: str(home / "archives"),
    }


def _settings(home: Path) -> Settings:
    return Settings.load({names.HOME: str(home)})
