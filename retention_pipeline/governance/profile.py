"""What an archive profile may say: places, never credentials (SPEC A12). Pure rules, no I/O."""

import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from retention_pipeline.errors import Code, Refused
from retention_pipeline.model.profile import LockMode, Provider

MIN_ARCHIVE_RETENTION_DAYS: Final = 365
MAX_ARCHIVE_RETENTION_DAYS: Final = 36_500

_WORDS: Final[Mapping[Provider, frozenset[str]]] = {
    Provider.FILESYSTEM: frozenset({"prefix"}),
    Provider.S3: frozenset({"endpoint", "bucket", "region", "prefix", "lock_mode"}),
}
_OPTIONAL: Final = frozenset({"prefix", "lock_mode"})
_CREDENTIAL_NAME: Final = re.compile(
    r"secret|passw|passphrase|token|credential|session|signature|auth|(access|private|api|account)[_-]?key|key[_-]?id",
    re.IGNORECASE,
)
_CREDENTIAL_VALUES: Final = (
    re.compile(r"(?<![A-Z0-9])A[A-Z]{2}A[A-Z0-9]{16}(?![A-Z0-9])"),  # an access key's id
    re.compile(r"://[^/]*@"),  # a user in a URL
    re.compile(r"-----BEGIN"),
    re.compile(r"eyJ[A-Za-z0-9_-]{8,}"),  # a signed token
    re.compile(r"(?i)(password|secret|token|signature)="),
    re.compile(r"(?<![0-9A-Fa-f])[0-9A-Fa-f]{40,}(?![0-9A-Fa-f])"),
)
_LONG_RUN: Final = re.compile(r"[A-Za-z0-9+/=_]{32,}")
_BUCKET: Final = re.compile(r"(?!.*\.\.)[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_REGION: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_MAX_VALUE: Final = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Grammar:
    """How places are written, as those who connect to them read it. Each gives the normal spelling, or refuses.

    Args:
        endpoint: reads an S3 endpoint.
        prefix: reads a prefix.
    """

    endpoint: Callable[[str], str]
    prefix: Callable[[str], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileDraft:
    """A profile that may be written as a tenant's next generation."""

    provider: Provider
    configuration: dict[str, str] = field(repr=False)
    secret_id: str | None = field(repr=False)
    archive_retention_days: int


def parse_profile(
    provider: str,
    configuration: Mapping[str, object],
    *,
    secret_id: str | None,
    archive_retention_days: int,
    grammar: Grammar,
) -> ProfileDraft:
    """Read a profile, or refuse it whole. No text of a refusal repeats what was given.

    Raises:
        Refused: `PROFILE_INVALID`.
    """
    kind = _provider(provider)
    given = {name: _text(name, value) for name, value in configuration.items()}
    known = _WORDS[kind]
    if set(given) - known:
        raise _invalid(
            f"The configuration of {kind} has a word that it doesn't know.",
            f"Its words are: {', '.join(sorted(known))}.",
        )
    if missing := sorted(known - _OPTIONAL - set(given)):
        raise _invalid(f"The configuration of {kind} lacks: {', '.join(missing)}.", "Add what is missing.")
    normal = {"prefix": _asked(grammar.prefix, given.get("prefix", ""), "The prefix")}
    if kind is Provider.S3:
        normal["endpoint"] = _asked(grammar.endpoint, given["endpoint"], "The endpoint")
        normal["bucket"] = _matching(_BUCKET, given["bucket"], "The bucket")
        normal["region"] = _matching(_REGION, given["region"], "The region")
        if "lock_mode" in given:
            normal["lock_mode"] = _lock_mode(given["lock_mode"])
    return ProfileDraft(
        provider=kind,
        configuration=normal,
        secret_id=_secret(kind, secret_id),
        archive_retention_days=_days(archive_retention_days),
    )


def looks_like_credential(name: str, value: str) -> bool:
    """Whether a word or its value is what a credential looks like. Rather once too often than once too seldom."""
    if _CREDENTIAL_NAME.search(name) or any(pattern.search(value) for pattern in _CREDENTIAL_VALUES):
        return True
    return any(_is_mixed(run) for run in _LONG_RUN.findall(value))


def _is_mixed(run: str) -> bool:
    return all(any(test(letter) for letter in run) for test in (str.isupper, str.islower, str.isdigit))


def _provider(text: str) -> Provider:
    try:
        return Provider(text)
    except ValueError:
        raise _invalid("There is no such provider.", f"Use one of: {', '.join(Provider)}.") from None


def _lock_mode(text: str) -> str:
    try:
        return LockMode(text)
    except ValueError:
        raise _invalid("There is no such lock mode.", f"Use one of: {', '.join(LockMode)}.") from None


def _text(name: str, value: object) -> str:
    if not isinstance(value, str) or len(value) > _MAX_VALUE or not value.isprintable():
        raise _invalid("A value of the configuration is not a short text.", "Give texts without control characters.")
    if looks_like_credential(name, value):
        raise _invalid(
            "The configuration holds something that looks like a credential; nothing was stored.",
            "Store it with `retention secret put` and name the secret's id; renew it, if it was a real one.",
        )
    return value


def _asked(read: Callable[[str], str], text: str, what: str) -> str:
    try:
        return read(text)
    except Refused as error:
        raise _invalid(f"{what} is not written as it must be.", error.remedy) from None


def _matching(pattern: re.Pattern[str], text: str, what: str) -> str:
    if pattern.fullmatch(text) is None:
        raise _invalid(f"{what} is not written as it must be.", "Use lower-case letters, digits and hyphens.")
    return text


def _secret(kind: Provider, secret_id: str | None) -> str | None:
    if kind is Provider.FILESYSTEM:
        if secret_id is not None:
            raise _invalid("A filesystem profile has no secret.", "Leave the secret's id out.")
        return None
    try:
        return str(uuid.UUID(secret_id or ""))
    except ValueError:
        raise _invalid(
            "An s3-compatible profile needs the id of a secret.",
            "Make one with `retention secret put`, and name its id.",
        ) from None


def _days(days: int) -> int:
    if days != 0 and not MIN_ARCHIVE_RETENTION_DAYS <= days <= MAX_ARCHIVE_RETENTION_DAYS:
        raise _invalid(
            "The archive's retention is neither 0 nor between 365 and 36500 days.", "0 keeps archives without limit."
        )
    return days


def _invalid(message: str, remedy: str) -> Refused:
    return Refused(Code.PROFILE_INVALID, message, remedy=remedy)
