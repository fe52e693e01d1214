"""Looks through everything that people and programs are shown for what must stay inside (SPEC A16).

`scan(home)` does it for a finished demo; run it by hand with `python -m retention_pipeline_tests.acceptance.discretion HOME`.
"""

import base64
import json
import re
import sqlite3
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from urllib.parse import unquote, urlsplit

import psycopg

from retention_pipeline.dev import stack
from retention_pipeline.dev.postgres import EmbeddedPostgres
from retention_pipeline.settings import read_file

Words = dict[str, set[str]]
"""What must not be seen, by its kind."""
Text = tuple[str, str]
"""Where it was seen, and what."""

_EVENTS = ("audit_events", "run_outcomes", "readiness_events", "preflights", "set_asides", "canary_events")
_TOKEN = re.compile(r"[A-Za-z0-9+/=_.@-]{8,}")
_PLAIN = re.compile(r"[A-Za-z0-9+/=_.@-]{8,}").fullmatch


def forbidden(platform_url: str, home: Path) -> Words:
    """Every place, id, digest and key of an installation; asked as a superuser."""
    words: Words = {}

    def add(kind: str, *found: object) -> None:
        words.setdefault(kind, set()).update(str(word) for word in found if word is not None and len(str(word)) > 2)

    with psycopg.connect(platform_url) as connection:
        for configuration, secret in connection.execute(
            "SELECT configuration, secret_id::text FROM retention.profiles"
        ):
            add("secret id", secret)
            add("bucket", configuration.get("bucket"))
            add("prefix", configuration["prefix"] if "/" in configuration.get("prefix", "") else None)
            if "endpoint" in configuration:
                place = urlsplit(configuration["endpoint"])
                add("endpoint", configuration["endpoint"], place.netloc, place.hostname, f"port {place.port}")
        for row in connection.execute(
            "SELECT object_key, object_version, key_id, object_sha256, manifest_digest, fingerprint, shared_digest"
            " FROM retention.attempts"
        ):
            key, version, key_id, *digests = row
            add("object key", key)
            add("object version", version)
            add("key id", key_id)
            for digest in map(bytes, digests):
                add(
                    "digest", digest.hex(), base64.b64encode(digest).decode(), base64.urlsafe_b64encode(digest).decode()
                )
        for key, version in connection.execute("SELECT object_key, object_version FROM retention.audit_anchors"):
            add("object key", key)
            add("object version", version)
        for (mac,) in connection.execute("SELECT mac FROM retention.audit_seals"):
            add("digest", bytes(mac).hex(), base64.b64encode(mac).decode())
        for row in connection.execute("SELECT key_id, root_key_id FROM retention.tenant_keys"):
            add("key id", *row)
    add("data root", home / "archives")
    add("keyring", home / "keyring.json")
    for value in read_file(home).values():
        if value.startswith("postgresql://"):
            add("database", value, urlsplit(value).password, unquote(urlsplit(value).password or ""))
    return words


def sightings(texts: Iterable[Text], words: Words) -> list[str]:
    """Where each kind of word was seen; never the word itself."""
    plain = {word: kind for kind, found in words.items() for word in found if _PLAIN(word)}
    others = {word: kind for kind, found in words.items() for word in found if not _PLAIN(word)}
    seen: set[str] = set()
    for where, text in texts:
        # The long ones are many, and a history repeats itself: look through each different token once.
        tokens = "\n".join(set(_TOKEN.findall(text)))
        seen |= {f"{where}: {kind}" for word, kind in plain.items() if word in tokens}
        seen |= {f"{where}: {kind}" for word, kind in others.items() if word in text}
    return sorted(seen)


def events(platform_url: str) -> Iterator[Text]:
    """What the product records for people to read: events and outcomes."""
    with psycopg.connect(platform_url) as connection:
        for table in _EVENTS:
            rows = connection.execute(f"SELECT t::text FROM retention.{table} AS t".encode()).fetchall()
            yield f"retention.{table}", "\n".join(row[0] for row in rows)


def history(storage_url: str) -> Iterator[Text]:
    """Every row of every table of a Dagster history in PostgreSQL."""
    with psycopg.connect(storage_url) as connection:
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
        for (table,) in tables:
            rows = connection.execute(f'SELECT * FROM "{table}"'.encode()).fetchall()
            yield f"dagster {table}", _told(rows)


def files(folder: Path) -> Iterator[Text]:
    """Every file below Dagster's home: histories in files, compute logs, captured output."""
    for path in sorted(folder.rglob("*")):
        if not path.is_file():
            continue
        where = str(path.relative_to(folder))
        if path.suffix == ".db":
            with closing(sqlite3.connect(path)) as connection:
                tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
                for (table,) in tables:
                    yield f"{where} {table}", _told(connection.execute(f'SELECT * FROM "{table}"').fetchall())
        yield where, path.read_bytes().decode("utf-8", "replace")


def scan(home: Path, output: str = "") -> list[str]:
    """Everything that a finished demo shows, its output included; its servers must not be running."""
    with EmbeddedPostgres(home / "postgres") as postgres:
        platform = postgres.superuser_url(stack.PLATFORM)
        words = forbidden(platform, home)
        for name in ("access-key", "secret-key"):
            words.setdefault("credential", set()).add((home / "s3" / name).read_text(encoding="utf-8"))
        words["payload"] = {"EPHEMERAL-SAMPLE", "one-time code"}
        texts = [*events(platform), *history(postgres.superuser_url(stack.DAGSTER)), *files(home / "dagster")]
        texts.append(("the output", output))
        texts.append(("demo.json", (home / "demo.json").read_text(encoding="utf-8")))
    assert sum(len(text) for _, text in texts) > 100_000, "there is no history to look through"
    return sightings(texts, words)


def _told(rows: Iterable[Iterable[object]]) -> str:
    """Rows as text; what is packed is unpacked."""
    return "\n".join(" ".join(map(_cell, row)) for row in rows)


def _cell(value: object) -> str:
    if isinstance(value, bytes | memoryview):
        data = bytes(value)
        try:
            return zlib.decompress(data).decode("utf-8", "replace")
        except zlib.error:
            return data.decode("utf-8", "replace")
    if isinstance(value, Mapping | list):
        return json.dumps(value, default=str)
    return str(value)


if __name__ == "__main__":
    found = scan(Path(sys.argv[1]).resolve())
    print("\n".join(found) or "nothing is shown that must stay inside")
    sys.exit(bool(found))
