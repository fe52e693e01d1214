"""What `doctor` finds: a stable code, how bad it is, one sentence, and what to do (SPEC O3)."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from retention_pipeline.errors import RetentionError


class Severity(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


class Ailment(StrEnum):
    """What the doctor alone tells; each has a page in docs/operations.md, and none is ever reused for another meaning."""

    OK = "RETENTION_DOCTOR_OK"
    UNTRIED = "RETENTION_DOCTOR_UNTRIED"
    NOT_HERE = "RETENTION_DOCTOR_NOT_HERE"

    # logins and roles
    LOGIN_UNSAFE = "RETENTION_DOCTOR_LOGIN_UNSAFE"
    LOGIN_ROLE = "RETENTION_DOCTOR_LOGIN_ROLE"
    ROLE_UNSAFE = "RETENTION_DOCTOR_ROLE_UNSAFE"

    # the product's schema
    SCHEMA_VERSION = "RETENTION_DOCTOR_SCHEMA_VERSION"
    TABLE_UNFORCED = "RETENTION_DOCTOR_TABLE_UNFORCED"
    TRIGGER_MISSING = "RETENTION_DOCTOR_TRIGGER_MISSING"
    FUNCTION_UNSAFE = "RETENTION_DOCTOR_FUNCTION_UNSAFE"

    # the server, and clocks
    SERVER_OLD = "RETENTION_DOCTOR_SERVER_OLD"
    SERVER_NOT_DURABLE = "RETENTION_DOCTOR_SERVER_NOT_DURABLE"
    SERVER_ASYNCHRONOUS = "RETENTION_DOCTOR_SERVER_ASYNCHRONOUS"
    CLOCK_SKEW = "RETENTION_DOCTOR_CLOCK_SKEW"

    # run history
    HISTORY_IN_FILES = "RETENTION_DOCTOR_HISTORY_IN_FILES"
    HISTORY_UNREACHABLE = "RETENTION_DOCTOR_HISTORY_UNREACHABLE"
    HISTORY_EMPTY = "RETENTION_DOCTOR_HISTORY_EMPTY"

    # one tenant
    KEY_UNUSABLE = "RETENTION_DOCTOR_KEY_UNUSABLE"
    KEY_UNCOPIED = "RETENTION_DOCTOR_KEY_UNCOPIED"
    KEY_DESTRUCTION_UNFINISHED = "RETENTION_DOCTOR_KEY_DESTRUCTION_UNFINISHED"
    ATTEMPTS_STUCK = "RETENTION_DOCTOR_ATTEMPTS_STUCK"
    LEASE_ABANDONED = "RETENTION_DOCTOR_LEASE_ABANDONED"
    STORE_WRITE = "RETENTION_DOCTOR_STORE_WRITE"
    STORE_READ = "RETENTION_DOCTOR_STORE_READ"
    STORE_LIST = "RETENTION_DOCTOR_STORE_LIST"
    STORE_DELETE = "RETENTION_DOCTOR_STORE_DELETE"
    STORE_UNCHECKED = "RETENTION_DOCTOR_STORE_UNCHECKED"
    STORE_UNLOCKED = "RETENTION_DOCTOR_STORE_UNLOCKED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """One thing that was found, with names of roles, tables and settings, never a place or a row (A16).

    Args:
        code: an `Ailment`, or the code under which the rest of the product tells the same.
    """

    code: StrEnum
    severity: Severity
    sentence: str
    remedy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing to look at.

    Args:
        name: what is looked at, as a sentence begins.
        look: finds what is wrong with it; nothing, where it is well.
    """

    name: str
    look: Callable[[], Iterable[Diagnosis]]


def error(code: StrEnum, sentence: str, remedy: str) -> Diagnosis:
    """Something that has to be mended."""
    return Diagnosis(code=code, severity=Severity.ERROR, sentence=sentence, remedy=remedy)


def warning(code: StrEnum, sentence: str, remedy: str) -> Diagnosis:
    """Something that a person should know of."""
    return Diagnosis(code=code, severity=Severity.WARNING, sentence=sentence, remedy=remedy)


def failure(failed: RetentionError) -> Diagnosis:
    """A failure that is itself what was looked for."""
    return error(failed.code, failed.message, failed.remedy)


def untried(name: str, failed: RetentionError) -> Diagnosis:
    """A check that could not be done is told: silence would read as health."""
    return error(Ailment.UNTRIED, f"{name} could not be examined: {failed.code}: {failed.message}", failed.remedy)


def examine(checks: Iterable[Check]) -> Iterator[Diagnosis]:
    """Make every check; one that fails, in whatever way, hides no other."""
    for check in checks:
        told = False
        for found in _tried(check):
            told = True
            yield found
        if not told:
            yield Diagnosis(code=Ailment.OK, severity=Severity.OK, sentence=f"{check.name}: nothing to mend.")


def _tried(check: Check) -> Iterator[Diagnosis]:
    try:
        yield from check.look()
    except RetentionError as failed:
        yield untried(check.name, failed)
    except Exception as failed:  # noqa: BLE001  a check's own fault must not hide what the others find
        sentence = f"{check.name} could not be examined: something nobody foresaw ({type(failed).__name__})."
        yield error(Ailment.UNTRIED, sentence, "Report it with the command's name; the other findings stand.")
