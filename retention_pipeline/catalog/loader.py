"""Reads the files of a catalog, one for each dataset, and says for each fault its line (SPEC K1)."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from retention_pipeline.catalog import consistency, document, sweep_consistency
from retention_pipeline.catalog.document import EntryPath, shown
from retention_pipeline.catalog.model import InstanceDataset
from retention_pipeline.catalog.sweep_model import AnySweep, SweepDataset
from retention_pipeline.errors import Code, UsageFault

MAX_BYTES = 1 << 20
_T = TypeVar("_T")
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


_SWEEP: Final[TypeAdapter[SweepDataset]] = TypeAdapter(AnySweep)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRules:
    """One sweep's rules, with the file and the lines that they came from."""

    dataset: SweepDataset
    file: str
    lines: dict[EntryPath, int]

    def line(self, *path: str | int) -> int:
        """The line of the entry at `path`, or of the nearest entry around it that stands in the file."""
        return _line(path, self.lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalog:
    """All rules: those of the instances, with their lines, the sweeps', and a digest that names these very texts."""

    instances: InstanceDataset
    lines: dict[EntryPath, int]
    digest: str
    sweeps: tuple[SweepRules, ...] = ()

    def line(self, *path: str | int) -> int:
        """The line of the entry at `path` of the instances' file, or of the nearest entry around it."""
        return _line(path, self.lines)

    def sweep(self, name: str) -> SweepRules:
        """A sweep's rules by its name.

        Raises:
            UsageFault: `SWEEP_UNKNOWN`, naming those that there are.
        """
        for rules in self.sweeps:
            if rules.dataset.dataset == name:
                return rules
        known = ", ".join(rules.dataset.dataset for rules in self.sweeps) or "none"
        raise UsageFault(
            Code.SWEEP_UNKNOWN, f"The catalog has no sweep {shown(name)}.", remedy=f"These are there: {known}."
        )


def load(path: Path | None = None) -> Catalog:
    """Read the catalog at `path`, or the shipped one for the reference platform.

    Args:
        path: a folder of YAML files, one for each dataset; or one file, the instances', without sweeps.

    Raises:
        UsageFault: `RETENTION_CATALOG_INVALID`, naming the line, when a file can't be read or is not a catalog.
    """
    source: Traversable = path or resources.files("retention_pipeline.catalog")
    try:
        whole = source.is_dir()
        files = sorted((f for f in source.iterdir() if f.name.endswith(".yaml")), key=lambda f: f.name) if whole else []
    except (OSError, ValueError) as error:
        raise _invalid([f"the folder can't be read ({type(error).__name__})."]) from None
    if not whole:
        return parse(_text(source))
    texts = {file.name: _text(file) for file in files}
    archives = [name for name, text in texts.items() if _ends(text, name) == "archive"]
    if len(archives) != 1:
        raise _invalid([f"{len(archives)} of its files say `ends: archive`; one must."])
    catalog = _named(archives[0], parse, texts.pop(archives[0]))
    sweeps = tuple(_named(name, partial(parse_sweep, file=name), text) for name, text in texts.items())
    return with_sweeps(catalog, sweeps, "".join(texts.values()))


def with_sweeps(catalog: Catalog, sweeps: tuple[SweepRules, ...], text: str) -> Catalog:
    """The catalog with the rules of its sweeps.

    Args:
        catalog: the instances' rules.
        sweeps: the sweeps'.
        text: what the sweeps were read from, for the digest.

    Raises:
        UsageFault: `RETENTION_CATALOG_INVALID`, where the files don't fit together.
    """
    flaws = [
        f"{rules.file}, line {rules.line(*flaw.path)}: {flaw.sentence}."
        for rules, flaw in sweep_consistency.between(catalog.instances, [(r, r.dataset) for r in sweeps])
    ]
    if flaws:
        raise _invalid(flaws)
    digest = hashlib.sha256(f"{catalog.digest}\n{text}".encode()).hexdigest()[:16] if sweeps else catalog.digest
    return replace(catalog, sweeps=sweeps, digest=digest)


def parse(text: str) -> Catalog:
    """Read the instances' rules from their text.

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


def parse_sweep(text: str, file: str = "sweep.yaml") -> SweepRules:
    """Read one sweep's rules from their text.

    Raises:
        UsageFault: `RETENTION_CATALOG_INVALID`, with each fault's line.
    """
    try:
        value, lines = document.read(text)
        dataset = _SWEEP.validate_python(value)
    except document.Malformed as error:
        raise _invalid([f"line {error.line}: {error.problem}."]) from None
    except ValidationError as error:
        details = error.errors(include_url=False, include_context=False, include_input=False)
        # The first step of a path is the kind of sweep, which is no entry of the file.
        raise _invalid(_sentences(((d["loc"][1:], _plain(d)) for d in details), lines)) from None
    flaws = sweep_consistency.flaws(dataset)
    if flaws:
        raise _invalid(_sentences(((flaw.path, flaw.sentence) for flaw in flaws), lines))
    return SweepRules(dataset=dataset, file=file, lines=lines)


def _text(source: Traversable) -> str:
    try:
        with source.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise _invalid([f"the file can't be read ({type(error).__name__})."]) from None
    if len(raw) > MAX_BYTES:
        raise _invalid(["the file is larger than 1 MiB."])
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _invalid([f"line {raw.count(10, 0, error.start) + 1}: this is not UTF-8."]) from None


def _ends(text: str, name: str) -> Any:
    """How a file's rows end, before the rest of it is understood."""
    value, _ = _named(name, _document, text)
    return value.get("ends") if isinstance(value, dict) else None


def _document(text: str) -> tuple[Any, dict[EntryPath, int]]:
    try:
        return document.read(text)
    except document.Malformed as error:
        raise _invalid([f"line {error.line}: {error.problem}."]) from None


def _named(name: str, read: Callable[[str], _T], text: str) -> _T:
    """Read one of several files; its name stands before what is wrong with it."""
    try:
        return read(text)
    except UsageFault as fault:
        raise UsageFault(fault.code, f"{shown(name)}: {fault.message}", remedy=fault.remedy) from None


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
