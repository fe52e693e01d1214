"""The heads of audit chains in a file of this machine, which a change of the database does not reach (SPEC G5).

- A regular file of this process's user, mode 0600, replaced whole; file and folder are synced before an answer is given.
- Each head is signed with the key of the audit record; what is not is `AUDIT_HEAD_INVALID`, and is never overwritten.
"""

import fcntl
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from retention_pipeline.errors import Code, RetentionError, Unavailable
from retention_pipeline.governance.audit import invalid, read_head, write_head
from retention_pipeline.model.audit import Head
from retention_pipeline.model.ids import TenantId

FILE_NAME: Final = "audit-heads.json"
_FORMAT: Final = "nucleus/audit-heads.v1"
_MAX_BYTES: Final = 64 << 20


class HeadFile:
    """Implements `Heads`.

    Args:
        home: the folder; it is made where it is missing.
        key: of the audit record.
    """

    def __init__(self, home: Path, key: bytes) -> None:
        self._home = home
        self._key = key

    def __repr__(self) -> str:
        return "HeadFile()"

    def read(self) -> Mapping[TenantId, Head]:
        """All heads, none where there is no file, or `Integrity(AUDIT_HEAD_INVALID)`."""
        try:
            handle = os.open(self._home / FILE_NAME, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except OSError:
            raise invalid() from None
        with os.fdopen(handle, "rb") as file:
            data = file.read(_MAX_BYTES)
        try:
            document = json.loads(data)
            good = document["format"] == _FORMAT
            entries: list[dict[str, Any]] = document["heads"]
            heads = [read_head(self._key, entry) for entry in entries]
        except (ValueError, KeyError, TypeError):
            good, heads = False, []
        if not good:
            raise invalid()
        return {head.tenant: head for head in heads}

    def keep(self, head: Head) -> None:
        """Keep a head; never in the place of a later one."""
        with _kept(self._home) as folder:
            heads = dict(self.read())
            known = heads.get(head.tenant)
            if known is None or known.block < head.block:
                _replace(folder, self._encoded({**heads, head.tenant: head}))

    def forget(self, tenant: TenantId) -> None:
        """Let a chain's head go."""
        with _kept(self._home) as folder:
            _replace(folder, self._encoded({name: head for name, head in self.read().items() if name != tenant}))

    def _encoded(self, heads: Mapping[TenantId, Head]) -> bytes:
        entries = [write_head(self._key, heads[tenant]) for tenant in sorted(heads)]
        return json.dumps({"format": _FORMAT, "heads": entries}, indent=1).encode()


@contextmanager
def _kept(home: Path) -> Iterator[int]:
    """The home, for one writer at a time: two sealers of one machine would lose each other's heads."""
    try:
        home.mkdir(parents=True, exist_ok=True)
        folder = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        raise _unwritable() from None
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield folder
    finally:
        os.close(folder)


def _replace(folder: int, data: bytes) -> None:
    temporary = f".{FILE_NAME}-{secrets.token_hex(8)}"
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
        with os.fdopen(handle, "wb") as file:
            os.fchmod(handle, 0o600)
            file.write(data)
            file.flush()
            os.fsync(handle)
        os.rename(temporary, FILE_NAME, src_dir_fd=folder, dst_dir_fd=folder)
        os.fsync(folder)
    except OSError:
        raise _unwritable() from None
    finally:
        with suppress(OSError):  # it was renamed
            os.unlink(temporary, dir_fd=folder)


def _unwritable() -> RetentionError:
    return Unavailable(
        Code.AUDIT_HEAD_UNWRITABLE,
        "This machine's heads of the audit record can't be kept: the home can't be written.",
        remedy="Make room, and give the home to the user that seals.",
    )
