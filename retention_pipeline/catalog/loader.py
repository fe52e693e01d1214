"""Reads a catalog file and says, for each fault, its line."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from retention_pipeline.catalog import consistency, document
from retention_pipeline.catalog.document import EntryPath, shown
from retention_pipeline.catalog.model import InstanceDataset
from retention_pipeline.errors import Code, UsageFault

MAX_BYTES = 1 << 20
_MOST_SENTENCES = 10
_PLAIN_WORDS = {
    "missing": "this key is missing",
    "extra_forbidden": "this key is unknown",
    "string_pattern_mismatch": "this is not a name that can stand here",
    "string_type": "this must be text; numbers and truths need quotes",
    "tuple_type": "this must be a list",
    "model_type": "this must hold keys and values",
    "model_attributes_type": "this must hold keys and values",
    "dict_type": "this must hold keys and values",
    "bool_type": "this must be true or false",
    "string_unicode": "this is not text",
    "too_short": "there must be one at least",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalog:
    """A dataset's rules, with the lines that they came from and a digest that names this very text."""

    instances: InstanceDataset
    lines: dict[EntryPath, int]
    digest: str

    def line(self, *path: str | int) -> int:
        """The line of the entry at `path`, or of the nearest entry around it that stands in the file."""
        return _line(path, self.lines)


def load(path: Path | None = None) -> Catalog:
    """Read the catalog at `path`, or the shipped one for the reference platform.

    Raises:
        UsageFault: `RETENTION_CATALOG_INVALID`, naming the line, when the file can't be read or is not a catalog.
    """
    source = path or resources.files("retention_pipeline.catalog").joinpath("workflow_instances.yaml")
    try:
        with source.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise _invalid([f"the file can't be read ({type(error).__name__})."]) from None
    if len(raw) > MAX_BYTES:
        raise _invalid(["the file is larger than 1 MiB."])
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _invalid([f"line {raw.count(10, 0, error.start) + 1}: this is not UTF-8."]) from None
    return parse(text)


def parse(text: str) -> Catalog:
    """Read a catalog from its text.

    Raises:
        UsageFault: `RETENTION_CATALOG_INVALID`, with each fault's line.
    """
    try:
        value, lines = document.read(text)
        instances = InstanceDataset.model_validate(value)
    except document.Malformed as error:
        raise _invalid([f"line {error.line}: {error.problem}."]) from None
    except ValidationError as error:
        details = error.errors(include_url=False, include_context=False, include_input=False)
        raise _invalid(_sentences(((d["loc"], _plain(d)) for d in details), lines)) from None
    flaws = consistency.flaws(instances)
    if flaws:
        raise _invalid(_sentences(((flaw.path, flaw.sentence) for flaw in flaws), lines))
    return Catalog(instances=instances, lines=lines, digest=hashlib.sha256(text.encode()).hexdigest()[:16])


def _plain(detail: ErrorDetails) -> str:
    return _PLAIN_WORDS.get(detail["type"]) or detail["msg"].rstrip(".")


def _sentences(found: Iterable[tuple[EntryPath, str]], lines: dict[EntryPath, int]) -> Iterator[str]:
    for path, what in found:
        where = ".".join(shown(str(step)) for step in path if step != "[key]") or "the file"
        yield f"line {_line(path, lines)}: {where}: {what}."


def _line(path: EntryPath, lines: dict[EntryPath, int]) -> int:
    while path and path not in lines:
        path = path[:-1]
    return lines.get(path, 1)


def _invalid(sentences: Iterable[str]) -> UsageFault:
    said = list(sentences)
    if len(said) > _MOST_SENTENCES:
        said[_MOST_SENTENCES:] = [f"And {len(said) - _MOST_SENTENCES} more."]
    return UsageFault(
        Code.CATALOG_INVALID, " ".join(said), remedy="Mend the catalog file; docs/catalog.md explains every key."
    )
