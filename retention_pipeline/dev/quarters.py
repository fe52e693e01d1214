"""Where a PostgreSQL server lives when its owner is root, which it refuses to run as."""

import os
import secrets
import shutil
import stat
import sys
import tempfile
from pathlib import Path

from retention_pipeline.dev.state import StateFolder
from retention_pipeline.errors import Code, Refused

SERVER_UID = 60_999
"""The user that the server runs as. It needs no name; it lies in a range that neither people nor services are given."""

_RECORD = "private-folder"
_PREFIX = "retention-postgres-"
_UNUSED = shutil.ignore_patterns("*.a", "include", "pgxs", "doc", "man", "locale")


def for_the_server(state: StateFolder) -> Path:
    """Find a folder that the server's user can reach: the state folder, else a private one among temporary files.

    Args:
        state: the claimed state folder; it remembers the private one.

    Raises:
        Refused: `EMBEDDED_INCOMPATIBLE` when someone else's folder has the private one's name.
    """
    if os.geteuid() != 0 or (state.kept(_RECORD) is None and reachable(state.path)):
        return state.path
    known = state.kept(_RECORD)
    if known is None:
        known = str(_temporary() / f"{_PREFIX}{secrets.token_hex(8)}")
        # Recorded before it is made, so that no end, however sudden, leaves one that nobody knows of.
        state.keep(_RECORD, known)
        print(f"PostgreSQL can't reach {state.path} as an ordinary user; it lives in {known}.", file=sys.stderr)
    folder = Path(known)
    folder.mkdir(mode=0o711, exist_ok=True)
    if not _is_private(folder):
        raise Refused(
            Code.EMBEDDED_INCOMPATIBLE,
            "The private folder for temporary files has another owner.",
            remedy="Remove the state folder and start afresh.",
        )
    folder.chmod(0o711)
    return folder


def home(state: StateFolder) -> Path:
    """Where the server of this state folder lives, if it does."""
    return Path(state.kept(_RECORD) or state.path)


def vacate(state: StateFolder) -> None:
    """Remove the private folder, if there is one."""
    known = state.kept(_RECORD)
    if known and Path(known).name.startswith(_PREFIX) and Path(known).exists() and _is_private(Path(known)):
        shutil.rmtree(known)


def binaries(bin_dir: Path, home: Path) -> Path:
    """Programs that the server's user can run: those in `bin_dir`, or a copy of them.

    A copy rather than wider permissions on the folders above them: those belong to somebody else.
    """
    if os.geteuid() != 0 or reachable(bin_dir):
        return bin_dir
    prefix = bin_dir.parent
    copy = home / "programs"
    mark, version = copy / "copied-from", f"{bin_dir} {(bin_dir / 'postgres').stat().st_mtime_ns}"
    if not mark.exists() or mark.read_text(encoding="utf-8") != version:
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(prefix, copy / "package" / prefix.name, ignore=_UNUSED)
        # Wheels keep the libraries that they bring along beside the package.
        for libraries in prefix.parent.parent.glob(f"{prefix.parent.name}.libs"):
            shutil.copytree(libraries, copy / libraries.name)
        for path in (copy, *copy.rglob("*")):
            path.chmod(0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644)
        mark.write_text(version, encoding="utf-8")
    return copy / "package" / prefix.name / bin_dir.name


def give(path: Path, uid: int) -> None:
    """Make everything under `path` belong to `uid`."""
    for item in (path, *path.rglob("*")):
        os.chown(item, uid, uid, follow_symlinks=False)


def reachable(folder: Path) -> bool:
    """Whether any user may pass through a folder and all those above it."""
    path = folder.resolve()
    return all(step.stat().st_mode & stat.S_IXOTH for step in (path, *path.parents))


def _temporary() -> Path:
    places = (Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp"))  # noqa: S108  the private folder is checked
    return next((place for place in places if place.is_dir() and reachable(place)), places[0])


def _is_private(folder: Path) -> bool:
    facts = folder.lstat()
    return stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.geteuid()
