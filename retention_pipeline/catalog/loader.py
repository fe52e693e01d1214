"""Reads a catalog file and says, for each fault, its line."""

import hashlib
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from retention_pipeline.catalog.model import InstanceDataset
from retention_pipeline.errors import Code, UsageFault

EntryPath = tuple[str | int, ...]
MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalog:
    """A dataset's rules, with the lines that they came from and a digest that names this very text."""

    instances: InstanceDataset
    lines: dict[EntryPath, int]
    digest: str

    def line(self, *path: str | int) -> int:
        """The line of the entry at `path`, or of the nearest entry around it that stands in the file."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)


class _Composer(yaml.SafeLoader):
    """YAML without its surprises: no tags, no anchors, no key twice."""


def load(path: Path | None = None) -> Catalog:
    """Read the catalog at `path`, or the shipped one for the reference platform.

    Raises:
        UsageFault: `RETENTION_CATALOG_INVALID`, naming the line, when the file can't be read or is not a catalog.
    """
    try:
        if path is None:
            raw = resources.files("retention_pipeline.catalog").joinpath("workflow_instances.yaml").read_bytes()
        else:
            raw = path.read_bytes()
        if len(raw) > MAX_BYTES:
            raise _invalid("the file is larger than 1 MiB.")
        text = raw.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _invalid(f"the file can't be read ({type(error).__name__}).") from None
    return parse(text)


def parse(text: str) -> Catalog:
    """Read a catalog from its text; errors as `load`."""
    lines: dict[EntryPath, int] = {}
    try:
        loader = _Composer(text)
        try:
            node = loader.get_single_node()
        finally:
            loader.dispose()
        document = _value(node, (), lines) if node is not None else None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise _invalid(f"line {line}: {error.problem or 'this is not YAML'}.") from None
    except (yaml.YAMLError, RecursionError):
        raise _invalid("this is not YAML.") from None
    try:
        instances = InstanceDataset.model_validate(document, strict=False)
    except ValidationError as error:
        raise _invalid(" ".join(_sentences(error, lines))) from None
    return Catalog(instances=instances, lines=lines, digest=hashlib.sha256(text.encode()).hexdigest()[:16])


def _value(node: yaml.Node, path: EntryPath, lines: dict[EntryPath, int]) -> Any:
    if len(path) > 16:
        raise yaml.MarkedYAMLError(problem="nested too deep", problem_mark=node.start_mark)
    lines[path] = node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        mapping: dict[Any, Any] = {}
        for key_node, value_node in node.value:
            key = _scalar(key_node)
            if key in mapping:
                raise yaml.MarkedYAMLError(problem=f"the key {key!r} stands twice", problem_mark=key_node.start_mark)
            mapping[key] = _value(value_node, (*path, key), lines)
            lines[*path, key] = key_node.start_mark.line + 1
        return mapping
    if isinstance(node, yaml.SequenceNode):
        return [_value(item, (*path, index), lines) for index, item in enumerate(node.value)]
    return _scalar(node)


def _scalar(node: yaml.Node) -> Any:
    plain = {
        "tag:yaml.org,2002:str": str,
        "tag:yaml.org,2002:int": int,
        "tag:yaml.org,2002:bool": lambda text: {"true": True, "false": False}[text.lower()],
        "tag:yaml.org,2002:null": lambda _: None,
    }
    convert = plain.get(node.tag) if isinstance(node, yaml.ScalarNode) else None
    if convert is None:
        raise yaml.MarkedYAMLError(problem="only text, whole numbers, true and false", problem_mark=node.start_mark)
    try:
        return convert(node.value)
    except (KeyError, ValueError):
        raise yaml.MarkedYAMLError(problem="put this value in quotes", problem_mark=node.start_mark) from None


def _sentences(error: ValidationError, lines: dict[EntryPath, int]) -> list[str]:
    sentences = []
    for fault in error.errors(include_url=False, include_context=False, include_input=False):
        path = tuple(fault["loc"])
        line_path = path
        while line_path and line_path not in lines:
            line_path = line_path[:-1]
        where = ".".join(str(step) for step in path) or "the file"
        sentences.append(f"line {lines.get(line_path, 1)}: {where}: {fault['msg'].removeprefix('Value error, ')}.")
    return sentences


def _invalid(what: str) -> UsageFault:
    return UsageFault(Code.CATALOG_INVALID, what, remedy="Mend the catalog file; docs/catalog.md explains every key.")
