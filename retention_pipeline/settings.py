"""The one reader of the environment.

- What is not in the environment is read from `settings.env` in the product's home, which `retention dev` and
  `make demo` write, so that a second terminal just works. It holds passwords: only its owner may be able to read it.
- A fault names the variable, never its value (SPEC A16).
"""

import os
import re
import secrets
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self
from urllib.parse import urlsplit

from retention_pipeline.errors import Code, Refused, UsageFault

FILE_NAME: Final = "settings.env"
_MAX_BYTES: Final = 64 << 10
_LINE: Final = re.compile(r"(?P<name>RETENTION_[A-Z0-9_]{1,60}|WORKFLOW_ALLOW_EPHEMERAL_PAYLOAD)=(?P<value>.*)")

HOME: Final = "RETENTION_HOME"
WORKER_URL: Final = "RETENTION_WORKER_URL"
OPERATOR_URL: Final = "RETENTION_OPERATOR_URL"
OWNER_URL: Final = "RETENTION_OWNER_URL"
CATALOG: Final = "RETENTION_CATALOG"
KEYRING: Final = "RETENTION_KEYRING"
DATA_ROOT: Final = "RETENTION_DATA_ROOT"
CA_FILE: Final = "RETENTION_CA_FILE"
DAGSTER_URL: Final = "RETENTION_DAGSTER_URL"
ENVIRONMENT: Final = "RETENTION_ENVIRONMENT"
DAGSTER_STORAGE_URL: Final = "RETENTION_DAGSTER_STORAGE_URL"
KEY_PROVIDER: Final = "RETENTION_KEY_PROVIDER"
ALLOW_EPHEMERAL_PAYLOAD: Final = "WORKFLOW_ALLOW_EPHEMERAL_PAYLOAD"
"""The platform's own variable: whether every tenant may have short-lived payloads (SPEC E7)."""
KMS_KEY_ID: Final = "RETENTION_KMS_KEY_ID"
KMS_MAC_KEY_ID: Final = "RETENTION_KMS_MAC_KEY_ID"
KMS_REGION: Final = "RETENTION_KMS_REGION"
KMS_ENDPOINT: Final = "RETENTION_KMS_ENDPOINT"
KMS_CREDENTIALS: Final = "RETENTION_KMS_CREDENTIALS"

_KMS_KEY: Final = re.compile(
    r"arn:[a-z0-9-]+:kms:[a-z0-9-]+:[0-9]{12}:key/[A-Za-z0-9-]{1,64}|(?!alias/)[A-Za-z0-9-]{1,64}"
)
_REGION: Final = re.compile(r"[a-z0-9-]{2,32}")


@dataclass(frozen=True, slots=True, kw_only=True)
class KmsSettings:
    """How AWS KMS is reached; nothing of it is shown.

    Args:
        key: the key that wraps tenant keys.
        mac: the HMAC key of the audit record; None where that stays in the keyring file.
        endpoint: None means the region's own.
        credentials: the file that they are in.
    """

    key: str = field(repr=False)
    mac: str | None = field(default=None, repr=False)
    region: str = field(repr=False)
    endpoint: str | None = field(default=None, repr=False)
    credentials: Path = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What this installation was told.

    Args:
        home: where the product keeps what belongs to this machine.
        worker_url: the login that changes data, under approvals.
        operator_url: the login of the person at this terminal.
        owner_url: the login that migrates.
        catalog: the rules; None means the shipped ones.
        keyring: root keys.
        data_root: what the filesystem provider's prefixes lie below.
        ca_file: certificates to trust for archive stores instead of the system's.
        dagster_url: the web server, for what the command line launches there.
        production: whether files are no place for the run history.
        dagster_storage_url: where Dagster keeps its run history; None means files in the home, for a laptop alone.
        wrap_by_kms: whether AWS KMS wraps new tenant keys, and not the keyring.
        allow_ephemeral_payload: whether every tenant of the platform may have short-lived payloads.
        kms: how it is reached; also while an installation moves back to its keyring.
    """

    home: Path
    worker_url: str | None = field(default=None, repr=False)
    operator_url: str | None = field(default=None, repr=False)
    owner_url: str | None = field(default=None, repr=False)
    catalog: Path | None = None
    keyring: Path
    data_root: Path
    ca_file: Path | None = None
    dagster_url: str | None = field(default=None, repr=False)
    dagster_storage_url: str | None = field(default=None, repr=False)
    production: bool = False
    wrap_by_kms: bool = False
    allow_ephemeral_payload: bool = False
    kms: KmsSettings | None = None

    @classmethod
    def load(cls, environment: Mapping[str, str] | None = None) -> Self:
        """Read the environment, and `settings.env` for what is not in it.

        Args:
            environment: this process's, unless another is given.

        Raises:
            UsageFault: `RETENTION_SETTING_INVALID`, naming the variable.
            Refused: `RETENTION_SETTING_INVALID`, when others could read or write `settings.env`.
        """
        given = os.environ if environment is None else environment  # noqa: TID251  this is the one place
        home = _path(given, HOME) or Path.cwd() / ".retention"
        found = {**read_file(home), **{name: value for name, value in given.items() if value}}
        return cls(
            home=home,
            worker_url=_database(found, WORKER_URL),
            operator_url=_database(found, OPERATOR_URL),
            owner_url=_database(found, OWNER_URL),
            catalog=_path(found, CATALOG),
            keyring=_path(found, KEYRING) or home / "keyring.json",
            data_root=_path(found, DATA_ROOT) or home / "archives",
            ca_file=_path(found, CA_FILE),
            dagster_url=_web(found, DAGSTER_URL),
            dagster_storage_url=_database(found, DAGSTER_STORAGE_URL),
            production=_environment(found),
            wrap_by_kms=_key_provider(found),
            allow_ephemeral_payload=_truth(found, ALLOW_EPHEMERAL_PAYLOAD),
            kms=_kms(found),
        )

    def need_worker_url(self) -> str:
        """The worker's login, or `UsageFault(SETTING_MISSING)`."""
        return _need(self.worker_url, WORKER_URL, "a login that is a member of retention_worker")

    def need_operator_url(self) -> str:
        """The operator's login, or `UsageFault(SETTING_MISSING)`."""
        return _need(self.operator_url, OPERATOR_URL, "your own login, a member of retention_operator")

    def need_owner_url(self) -> str:
        """The owner's login, or `UsageFault(SETTING_MISSING)`."""
        return _need(self.owner_url, OWNER_URL, "the login that owns the database's schemas")

    def need_dagster_storage_url(self) -> str:
        """Where Dagster's history is, or `UsageFault(SETTING_MISSING)`."""
        return _need(self.dagster_storage_url, DAGSTER_STORAGE_URL, "Dagster's own database")


def inherited() -> dict[str, str]:
    """What a process that we start may know of this one's environment: nothing that is secret."""
    return {name: os.environ[name] for name in ("HOME", "LANG", "TMPDIR") if name in os.environ}  # noqa: TID251


def read_private(path: Path, name: str, limit: int) -> bytes:
    """A file that nobody but this process's user can read, at most `limit` bytes and one.

    Args:
        path: where it is.
        name: the variable that names it, for a refusal.
        limit: in bytes.

    Raises:
        Refused: `RETENTION_SETTING_INVALID`, naming the variable.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        raise _unsafe_private(name) from None
    return _read_own(handle, limit, _unsafe_private(name))


def read_file(home: Path) -> dict[str, str]:
    """The variables in a home's `settings.env`; none where there is no such file.

    Raises:
        Refused: `RETENTION_SETTING_INVALID`, when somebody else could read or write it.
        UsageFault: `RETENTION_SETTING_INVALID`, naming the line that is none.
    """
    try:
        # Without O_NONBLOCK a pipe in the file's place would wait for ever.
        handle = os.open(home / FILE_NAME, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError:
        raise _unsafe_file() from None
    return dict(_lines(_read_own(handle, _MAX_BYTES, _unsafe_file())))


def _read_own(handle: int, limit: int, unsafe: Refused) -> bytes:
    """What is in a regular file of this user's alone, at most `limit` bytes and one; closes it."""
    facts = os.fstat(handle)
    if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.geteuid() or facts.st_mode & 0o177:
        os.close(handle)
        raise unsafe
    with os.fdopen(handle, "rb") as file:  # of a folder it would be an error of its own
        return file.read(limit + 1)


def write_file(home: Path, values: Mapping[str, str]) -> None:
    """Replace a home's `settings.env`, whole, for its owner alone."""
    home.mkdir(parents=True, exist_ok=True)
    draft = home / f".{FILE_NAME}-{secrets.token_hex(8)}"
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            os.fchmod(handle, 0o600)
            file.write("".join(f"{name}={value}\n" for name, value in values.items()))
        draft.replace(home / FILE_NAME)
    finally:
        with suppress(FileNotFoundError):  # it was moved into place
            draft.unlink()


def _lines(data: bytes) -> list[tuple[str, str]]:
    found = []
    for number, line in enumerate(data.decode("utf-8", "replace").splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise UsageFault(
                Code.SETTING_INVALID,
                f"Line {number} of settings.env is not NAME=VALUE, with the name of a setting.",
                remedy="Mend it, or let `retention dev` write the file anew.",
            )
        found.append((match["name"], match["value"]))
    return found


def _database(found: Mapping[str, str], name: str) -> str | None:
    value = found.get(name)
    if value is not None and not value.startswith(("postgresql://", "postgres://")):
        raise _invalid(name, "must be a URL that begins with postgresql://")
    return value


def _environment(found: Mapping[str, str]) -> bool:
    value = found.get(ENVIRONMENT, "laptop")
    if value not in {"laptop", "production"}:
        raise _invalid(ENVIRONMENT, "must be laptop or production")
    return value == "production"


def _truth(found: Mapping[str, str], name: str) -> bool:
    value = found.get(name, "false").lower()
    if value not in {"true", "false", "1", "0"}:
        raise _invalid(name, "must be true or false")
    return value in {"true", "1"}


def _key_provider(found: Mapping[str, str]) -> bool:
    value = found.get(KEY_PROVIDER, "keyring")
    if value not in {"keyring", "aws-kms"}:
        raise _invalid(KEY_PROVIDER, "must be keyring or aws-kms")
    if value == "aws-kms" and KMS_KEY_ID not in found:
        raise _invalid(KMS_KEY_ID, "must name a key, where aws-kms wraps the tenants' keys")
    return value == "aws-kms"


def _kms(found: Mapping[str, str]) -> KmsSettings | None:
    if KMS_KEY_ID not in found:
        return None
    for name in (KMS_KEY_ID, KMS_MAC_KEY_ID):
        if name in found and not _KMS_KEY.fullmatch(found[name]):
            raise _invalid(name, "must be a key's id or ARN, and no alias")
    region, credentials = found.get(KMS_REGION, ""), _path(found, KMS_CREDENTIALS)
    if not _REGION.fullmatch(region):
        raise _invalid(KMS_REGION, "must be a region, such as eu-central-1")
    if credentials is None:
        raise _invalid(KMS_CREDENTIALS, "must be the path of a file with credentials")
    return KmsSettings(
        key=found[KMS_KEY_ID],
        mac=found.get(KMS_MAC_KEY_ID),
        region=region,
        endpoint=_web(found, KMS_ENDPOINT),
        credentials=credentials,
    )


def _web(found: Mapping[str, str], name: str) -> str | None:
    value = found.get(name)
    if value is None:
        return None
    try:
        parts = urlsplit(value)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise _invalid(name, "must be a URL that begins with http:// or https://")
    return value


def _path(found: Mapping[str, str], name: str) -> Path | None:
    value = found.get(name)
    if not value:
        return None
    try:
        path = Path(value).expanduser().absolute()
    except RuntimeError:  # a user's home that is not there
        path = None
    if path is None or "\0" in value:
        raise _invalid(name, "must be a path")
    return path


def _need(value: str | None, name: str, what: str) -> str:
    if value is None:
        raise UsageFault(
            Code.SETTING_MISSING, f"{name} is not set.", remedy=f"Set it in the environment to the URL of {what}."
        )
    return value


def _invalid(name: str, rule: str) -> UsageFault:
    return UsageFault(Code.SETTING_INVALID, f"{name} {rule}.", remedy=f"Correct {name} in the environment.")


def _unsafe_private(name: str) -> Refused:
    return Refused(
        Code.SETTING_INVALID,
        f"The file that {name} names is not there, or could be read by others, so it is not used.",
        remedy="Give it to the user that runs this, as a regular file with mode 0600.",
    )


def _unsafe_file() -> Refused:
    return Refused(
        Code.SETTING_INVALID,
        "The file settings.env could be read or written by others, so it is not used.",
        remedy="Give it to the user that runs this, as a regular file with mode 0600.",
    )
