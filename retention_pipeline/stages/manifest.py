"""An instance's export, written as canonical JSON and read again; exact in both directions (SPEC A1)."""

from dataclasses import dataclass
from typing import Any

import orjson

from retention_pipeline.errors import Code, Integrity
from retention_pipeline.model.archive import MANIFEST_FORMAT, ColumnShape, Export, Manifest, TableRows

PRINTED_UNDER = {
    "DateStyle": "ISO, YMD",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "lc_monetary": "C",
    "search_path": "pg_catalog",
    "server_encoding": "UTF8",
    "xmloption": "content",
}
"""The settings under which PostgreSQL printed every value; whoever reads them back sets the same."""


def build(export: Export) -> Manifest:
    """Write the manifest: keys sorted, no blanks, every value a text or null."""
    document = {
        "captured_at": export.captured_at,
        "catalog": export.catalog_digest,
        "epoch": export.candidate.epoch,
        "epoch_at": export.candidate.epoch_at,
        "format": MANIFEST_FORMAT,
        "instance": export.candidate.instance,
        "printed_under": PRINTED_UNDER,
        "server_version": export.server_version,
        "tables": [
            {
                "columns": [[column.name, column.type] for column in table.columns],
                "name": table.name,
                "rows": table.rows,
                "section": table.section,
                "table": table.table,
            }
            for table in export.tables
        ],
        "tenant": export.tenant,
    }
    return Manifest(export=export, body=orjson.dumps(document, option=orjson.OPT_SORT_KEYS))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadManifest:
    """A manifest as an archive gave it back."""

    tenant: str
    instance: str
    epoch: int
    epoch_at: str
    captured_at: str
    server_version: str
    tables: tuple[TableRows, ...]


def read(body: bytes) -> ReadManifest:
    """Read a manifest; its bytes were authenticated before.

    Raises:
        Integrity: `MANIFEST_MALFORMED`, when it is of another format or not what this format says.
    """
    try:
        document = orjson.loads(body)
        if document["format"] != MANIFEST_FORMAT or document["printed_under"] != PRINTED_UNDER:
            raise _malformed()
        return ReadManifest(
            tenant=_text(document["tenant"]),
            instance=_text(document["instance"]),
            epoch=int(document["epoch"]),
            epoch_at=_text(document["epoch_at"]),
            captured_at=_text(document["captured_at"]),
            server_version=_text(document["server_version"]),
            tables=tuple(_table(table) for table in document["tables"]),
        )
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError):
        raise _malformed() from None


def _table(document: dict[str, Any]) -> TableRows:
    columns = tuple(ColumnShape(name=_text(name), type=_text(kind)) for name, kind in document["columns"])
    rows = tuple(tuple(row) for row in document["rows"])
    if any(len(row) != len(columns) or any(not (v is None or type(v) is str) for v in row) for row in rows):
        raise _malformed()
    return TableRows(
        name=_text(document["name"]),
        section=_text(document["section"]),
        table=_text(document["table"]),
        columns=columns,
        rows=rows,
    )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise _malformed()
    return value


def _malformed() -> Integrity:
    return Integrity(
        Code.MANIFEST_MALFORMED,
        "The archive's manifest is not of a format that this release knows.",
        remedy="Open it with the release that wrote it; docs/archive-format.md describes each format.",
    )
