"""Root keys in a file that only its owner may read (SPEC A18).

- A regular file of this process's user, mode 0600, no symlink: anything else is `KEYRING_UNSAFE`, and is not read.
- It appears whole or not at all, and is replaced whole; file and folder are synced before an answer is given.
- It is read on every call, so that a root key that another process added is known at once; calls are rare, because a
  tenant's key is unwrapped once per process.
"""

import fcntl
import json
import os
import secrets
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Self

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from retention_pipeline.envelope.wraps import KEY_SIZE, context, unwrap_tenant_key, wrap_tenant_key
from retention_pipeline.errors import Code, Refused, RetentionError, Unavailable
from retention_pipeline.model.ids import TenantId
from retention_pipeline.model.ports import WrappedKey

_FORMAT: Final = "nucleus/keyring.v1"
_MAX_SIZE: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _Roots:
    """What the file holds."""

    current: str
    roots: dict[str, bytes] = field(repr=False)
    mac: bytes = field(repr=False)

    @classmethod
    def parse(cls, data: bytes) -> Self:
        try:
            document = json.loads(data)
            roots = {str(name): bytes.fromhex(value) for name, value in document["roots"].items()}
            parsed = cls(current=document["current"], roots=roots, mac=bytes.fromhex(document["mac"]))
        except (ValueError, TypeError, KeyError, AttributeError):
            raise _unsafe("is not written as it should be") from None
        whole = all(len(value) == KEY_SIZE for value in (*roots.values(), parsed.mac))
        if document.get("format") != _FORMAT or parsed.current not in roots or not whole:
            raise _unsafe("is not written as it should be")
        return parsed

    def encode(self) -> bytes:
        roots = {name: value.hex() for name, value in self.roots.items()}
        document = {"format": _FORMAT, "current": self.current, "roots": roots, "mac": self.mac.hex()}
        return json.dumps(document, indent=1).encode("ascii") + b"\n"

    def with_new_root(self) -> Self:
        name = f"local-{secrets.token_hex(8)}"
        return replace(self, current=name, roots={**self.roots, name: secrets.token_bytes(KEY_SIZE)})


class LocalKeyring:
    """Implements `KeyProvider` on a keyring file.

    Args:
        path: the file; it is opened when a key is asked for.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def __repr__(self) -> str:
        return "LocalKeyring()"

    @classmethod
    def create(cls, path: Path) -> Self:
        """Make a keyring with one root key, durably, or raise `Refused(KEYRING_EXISTS)`.

        Losing this file loses every archive that was sealed under it: back it up apart from the database.
        """
        empty = _Roots(current="", roots={}, mac=secrets.token_bytes(KEY_SIZE))
        with _folder(path) as folder, _written(folder, empty.with_new_root().encode()) as temporary:
            try:
                os.link(temporary, path.name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
            except FileExistsError:
                raise Refused(
                    Code.KEYRING_EXISTS,
                    "A keyring is there already; it was left as it is.",
                    remedy="Use it, or name another file.",
                ) from None
        return cls(path)

    def current(self) -> str:
        """The id of the root key that wraps new tenant keys."""
        return self._load().current

    def wrap(self, tenant: TenantId, generation: int, key: bytes) -> WrappedKey:
        """Encrypt a tenant key under the current root key, bound to tenant and generation."""
        loaded = self._load()
        ciphertext = wrap_tenant_key(loaded.roots[loaded.current], tenant, generation, key)
        return WrappedKey(root_key_id=loaded.current, ciphertext=ciphertext)

    def unwrap(self, tenant: TenantId, generation: int, wrapped: WrappedKey) -> bytes:
        """Give the tenant key back, or raise `Unavailable(KEY_UNAVAILABLE)` or `Integrity(OBJECT_UNAUTHENTIC)`."""
        root = self._load().roots.get(wrapped.root_key_id)
        if root is None:
            raise Unavailable(
                Code.KEY_UNAVAILABLE,
                "The keyring has no root key for this tenant's key.",
                remedy="Restore the keyring that the key was wrapped under.",
            )
        return unwrap_tenant_key(root, tenant, generation, wrapped.ciphertext)

    def add_root(self) -> str:
        """Add a root key and make it the current one; the others stay, for what they wrapped. Returns its id."""
        with _folder(self._path) as folder:
            fcntl.flock(folder, fcntl.LOCK_EX)  # two rotations at once would lose one of the keys
            grown = _Roots.parse(_read(folder, self._path.name)).with_new_root()
            with _written(folder, grown.encode()) as temporary:
                os.rename(temporary, self._path.name, src_dir_fd=folder, dst_dir_fd=folder)
        return grown.current

    def roots(self) -> tuple[str, frozenset[str]]:
        """The id of the current root key, and the ids of the others."""
        loaded = self._load()
        return loaded.current, frozenset(loaded.roots) - {loaded.current}

    def drop_roots(self, names: Collection[str]) -> int:
        """Forget root keys for good, never the current one; gives how many there were.

        The caller has made sure that nothing which they wrapped is needed.
        """
        with _folder(self._path) as folder:
            fcntl.flock(folder, fcntl.LOCK_EX)
            loaded = _Roots.parse(_read(folder, self._path.name))
            kept = {name: root for name, root in loaded.roots.items() if name == loaded.current or name not in names}
            with _written(folder, replace(loaded, roots=kept).encode()) as temporary:
                os.rename(temporary, self._path.name, src_dir_fd=folder, dst_dir_fd=folder)
        return len(loaded.roots) - len(kept)

    def mac_key(self, purpose: str) -> bytes:
        """A 32-byte key for one named purpose, such as sealing audit blocks (SPEC G5); it survives rotation."""
        return HKDFExpand(SHA256(), KEY_SIZE, context(_FORMAT, "mac", purpose)).derive(self._load().mac)

    def _load(self) -> _Roots:
        with _folder(self._path) as folder:
            return _Roots.parse(_read(folder, self._path.name))


@contextmanager
def _folder(path: Path) -> Iterator[int]:
    try:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        raise _missing() from None
    except OSError:
        raise _unsafe("can't be reached by this user") from None
    try:
        yield folder
    finally:
        os.close(folder)


def _read(folder: int, name: str) -> bytes:
    try:
        # Without O_NONBLOCK a pipe in the file's place would wait for ever.
        handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError:
        raise _missing() from None
    except OSError:
        raise _unsafe("is a symlink, or can't be opened by this user") from None
    with os.fdopen(handle, "rb") as file:
        facts = os.fstat(handle)
        if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.geteuid() or facts.st_mode & 0o177:
            raise _unsafe("must be a regular file of this user with mode 0600")
        return file.read(_MAX_SIZE)


@contextmanager
def _written(folder: int, data: bytes) -> Iterator[str]:
    """A synced temporary file in the folder, for the caller to give its name; the folder is synced after that."""
    temporary = f".keyring-{secrets.token_hex(8)}"
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
        with os.fdopen(handle, "wb") as file:
            os.fchmod(handle, 0o600)  # a umask may have taken the owner's own rights away
            file.write(data)
            file.flush()
            os.fsync(handle)
        yield temporary
        os.fsync(folder)
    except OSError:
        raise _unsafe("can't be written by this user") from None
    finally:
        with suppress(FileNotFoundError):  # it was renamed
            os.unlink(temporary, dir_fd=folder)


def _missing() -> RetentionError:
    return Unavailable(
        Code.KEYRING_MISSING,
        "There is no keyring.",
        remedy="Mount or restore it; make a new one only for an installation without archives.",
    )


def _unsafe(what: str) -> RetentionError:
    return Refused(
        Code.KEYRING_UNSAFE,
        f"The keyring {what}.",
        remedy="Give the file to the user that runs the pipeline, with mode 0600, in a folder of its own.",
    )
