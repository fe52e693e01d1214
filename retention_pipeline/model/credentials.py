"""What an S3-compatible store asks for before it answers (SPEC A13)."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """An access key, its secret, and the session token of a temporary one. No part of it is ever shown."""

    access_key: str = field(repr=False)
    secret_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)
