"""What an archive store's credentials look like, wherever they were read from (SPEC A13)."""

import json
from typing import Final

from retention_pipeline.errors import Code, Refused
from retention_pipeline.model.credentials import Credentials

MAX_BYTES: Final = 12 << 10
"""All of it together; a sealed value holds 16 KiB."""

_NAMES: Final = frozenset({"access_key", "secret_key", "session_token"})
_REQUIRED: Final = frozenset({"access_key", "secret_key"})


def parse_credentials(data: bytes) -> Credentials:
    """Read `{"access_key": …, "secret_key": …, "session_token": …}`; the token is optional.

    Raises:
        Refused: `SECRET_INVALID`; its text repeats nothing of what was read.
    """
    if len(data) > MAX_BYTES:
        raise _invalid("The credentials are too long.")
    try:
        read = json.loads(data)
    except (ValueError, RecursionError):
        raise _invalid("The credentials are not JSON.") from None
    if not isinstance(read, dict):
        raise _invalid("The credentials are not one JSON object.")
    values = {name: value for name, value in read.items() if value is not None}
    if not _REQUIRED <= values.keys() <= _NAMES:
        raise _invalid("The credentials lack a key, or have one too many.")
    if not all(map(_is_usable, values.values())):
        raise _invalid("A part of the credentials is empty, or is not a text of printable ASCII without blanks.")
    return Credentials(
        access_key=values["access_key"],
        secret_key=values["secret_key"],
        session_token=values.get("session_token"),
    )


def _is_usable(value: object) -> bool:
    """What can stand in a signed header."""
    return isinstance(value, str) and value.isascii() and value.isprintable() and bool(value) and " " not in value


def _invalid(message: str) -> Refused:
    return Refused(
        Code.SECRET_INVALID,
        message,
        remedy='Give {"access_key": "…", "secret_key": "…"} and, for a temporary key, "session_token".',
    )
