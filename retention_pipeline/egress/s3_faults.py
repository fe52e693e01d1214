"""What an S3 answer that is no success means: the boundary at which a library's words end (SPEC A16, F9)."""

import re
from enum import StrEnum
from typing import Final

from retention_pipeline.errors import Code, Integrity, Refused, RetentionError, Unavailable

_CODE: Final = re.compile(rb"<Code>\s*([A-Za-z0-9.]{1,64})\s*</Code>")
_FULL: Final = frozenset(
    {"InsufficientStorage", "InsufficientCapacity", "StorageFull", "XMinioStorageFull", "DiskFull", "QuotaExceeded"}
)
_DAMAGED: Final = frozenset(
    {"BadDigest", "InvalidDigest", "XAmzContentSHA256Mismatch", "XAmzContentChecksumMismatch", "IncompleteBody"}
)
_DENIED: Final = frozenset({"ExpiredToken", "InvalidToken", "TokenRefreshRequired"})
_SKEWED: Final = frozenset({"RequestTimeTooSkewed", "RequestExpired"})
_UNSET: Final = frozenset(
    {"NoSuchLifecycleConfiguration", "ObjectLockConfigurationNotFoundError", "NoSuchObjectLockConfiguration"}
)


class Action(StrEnum):
    """What was asked of the store."""

    WRITE = "write"
    READ = "read"
    LIST = "list"
    DELETE = "delete"
    LOCK = "lock"
    SETTINGS = "settings"


class Unset(Exception):
    """The setting that was asked for was never made."""


def code_in(body: bytes) -> str:
    """The error code that an S3 answer names; empty where it names none."""
    match = _CODE.search(body)
    return match[1].decode("ascii") if match else ""


def fault(action: Action, status: int, code: str) -> RetentionError | Unset:
    """Give an unsuccessful answer its name and a way on.

    Args:
        action: what was asked.
        status: the HTTP status.
        code: S3's own error code, or nothing.
    """
    if code in _UNSET and action is Action.SETTINGS:
        return Unset()
    if code in _FULL or status == 507:
        return full()
    if code in _SKEWED:
        return Unavailable(
            Code.STORE_CLOCK_SKEW,
            "The store refuses requests because its clock and this machine's differ.",
            remedy="Set both by a time server, then try again.",
        )
    if code in _DAMAGED:
        return Integrity(
            Code.OBJECT_DIGEST_MISMATCH,
            "The store received other bytes than were sent, and kept none.",
            remedy="Try again; if it repeats, look at the network between.",
        )
    return _by_status(action, status, code)


def _by_status(action: Action, status: int, code: str) -> RetentionError:
    if status in {401, 403} or code in _DENIED:
        return _denied(action)
    if status == 404 or code in {"NoSuchVersion", "NoSuchKey"} or (status == 405 and action is Action.READ):
        return _missing(action, code)
    if status == 412:
        return Refused(
            Code.OBJECT_EXISTS,
            "An object has that key already; it was left as it is.",
            remedy="Read it back: it may be one's own, from a write whose answer was lost.",
        )
    if status == 409:
        return Unavailable(
            Code.STORE_CONTENDED,
            "The store was busy with another write of the same key.",
            remedy="Try again; look what became of the other write first.",
        )
    if status in {408, 429, 500, 502, 503, 504} or code in {"RequestTimeout", "SlowDown"}:
        return unavailable()
    return protocol()


def _missing(action: Action, code: str) -> RetentionError:
    if code == "NoSuchBucket" or action not in {Action.READ, Action.DELETE, Action.LOCK}:
        return Refused(
            Code.STORE_MISSING,
            "The store has no such bucket.",
            remedy="Make it, with versioning, or correct the profile.",
        )
    return Integrity(
        Code.OBJECT_MISSING,
        "The store has no such object version.",
        remedy="Keep the source; find out who removed it.",
    )


def _denied(action: Action) -> RetentionError:
    doubt = (
        " A store that may not be listed says the same of an object that is missing." if action is Action.READ else ""
    )
    return Refused(
        Code.STORE_DENIED,
        f"The store denied the permission to {_PERMISSIONS[action]}.{doubt}",
        remedy="Check the secret, and what its owner may do in the bucket: read, write, list and delete versions.",
    )


_PERMISSIONS: Final = {
    Action.WRITE: "write an object",
    Action.READ: "read an object version",
    Action.LIST: "list object versions",
    Action.DELETE: "delete an object version",
    Action.LOCK: "lock an object version",
    Action.SETTINGS: "read the bucket's settings",
}


def full() -> RetentionError:
    """There is no room for an object."""
    return Unavailable(
        Code.STORE_FULL,
        "The store has no room left; nothing was kept.",
        remedy="Make room or raise the quota, then try again.",
    )


def unavailable(why: str = "it answered that it can't at the moment") -> RetentionError:
    """The store did not do it now; a write may have landed all the same."""
    return Unavailable(
        Code.STORE_UNAVAILABLE,
        f"The store is unavailable: {why}.",
        remedy="Try again later; the next run goes on from here.",
    )


def protocol() -> RetentionError:
    """The store said something that S3 does not say."""
    return Unavailable(
        Code.STORE_PROTOCOL,
        "The store gave an answer that is not understood.",
        remedy="Check that the endpoint is an S3 store of the configured region that knows conditional writes.",
    )
