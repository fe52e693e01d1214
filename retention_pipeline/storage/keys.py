"""What may name an object: one grammar for every store, so that a key means the same everywhere (SPEC A12).

- Components of letters, digits, `.`, `_`, `=` and `-`, joined by `/`. No component begins with a dot, none is empty.
- That leaves out `.`, `..`, `//`, a slash at either end, and everything that a store, a shell or a URL reads in its own
  way.
"""

import re
from typing import Final

from retention_pipeline.errors import Code, Refused

_COMPONENT: Final = r"[A-Za-z0-9_=-][A-Za-z0-9._=-]{0,127}"
_KEY: Final = re.compile(f"{_COMPONENT}(/{_COMPONENT})*")
_MAX: Final = 512


def checked_key(key: str) -> str:
    """Give a key back, or raise `Refused(STORE_PATH_UNSAFE)`."""
    if len(key) > _MAX or _KEY.fullmatch(key) is None:
        raise unsafe()
    return key


def checked_prefix(prefix: str) -> str:
    """Give a profile's prefix back without a slash at its end; it may be empty."""
    bare = prefix.removesuffix("/")
    return checked_key(bare) if bare else ""


def checked_folder(below: str) -> str:
    """Give the beginning of keys back, which ends with a slash or is empty."""
    if below and not below.endswith("/"):
        raise unsafe()
    return f"{checked_key(below[:-1])}/" if below else ""


def unsafe() -> Refused:
    """A name that could lead elsewhere."""
    return Refused(
        Code.STORE_PATH_UNSAFE,
        "A key or prefix could lead out of its place in the store.",
        remedy="Use letters, digits, '.', '_', '=' and '-', in components joined by '/'; replace symlinks by folders.",
    )
