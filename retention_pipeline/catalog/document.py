"""YAML without its surprises: no tags, anchors, aliases or floats, no key twice, and a line for every entry."""

import re
from typing import Any

import yaml

EntryPath = tuple[str | int, ...]
MAX_DEPTH = 16

_WHOLE = re.compile(r"[+-]?(0|[1-9][0-9]{0,17})")
_BOOLEANS = {"true": True, "false": False}


class Malformed(Exception):
    """The text is not such a document.

    Args:
        line: the line at which that shows.
        problem: what is wrong, without a full stop.
    """

    def __init__(self, line: int, problem: str) -> None:
        super().__init__(line, problem)
        self.line = line
        self.problem = problem


def read(text: str) -> tuple[Any, dict[EntryPath, int]]:
    """The document's value (mappings, tuples, text, whole numbers, booleans, None) and the line of each of its entries.

    Raises:
        Malformed: the text is not YAML, or uses a part of YAML that is left out here.
    """
    try:
        loader = _Composer(text)
        try:
            node = loader.get_single_node()
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        raise Malformed(_line(error.problem_mark or error.context_mark), error.problem or "this is not YAML") from None
    except yaml.reader.ReaderError as error:
        raise Malformed(text.count("\n", 0, error.position) + 1, "this character is not text") from None
    if node is None:
        raise Malformed(1, "there is nothing in it")
    lines: dict[EntryPath, int] = {}
    return _value(node, (), lines), lines


class _Composer(yaml.SafeLoader):
    """Refuses while it reads, before anything can grow: nine lines of aliases stand for a billion values."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            raise Malformed(line, "anchors and aliases are not used here")
        if event.tag is not None:
            raise Malformed(line, "tags are not used here")
        if self.depth == MAX_DEPTH:
            raise Malformed(line, "this is nested too deep")
        self.depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1


def _value(node: yaml.Node, path: EntryPath, lines: dict[EntryPath, int]) -> Any:
    lines.setdefault(path, _line(node.start_mark))
    if isinstance(node, yaml.MappingNode):
        return _mapping(node, path, lines)
    if isinstance(node, yaml.SequenceNode):
        return tuple(_value(item, (*path, index), lines) for index, item in enumerate(node.value))
    return _scalar(node)


def _mapping(node: yaml.MappingNode, path: EntryPath, lines: dict[EntryPath, int]) -> dict[str, Any]:
    mapping: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key = _scalar(key_node)
        if not isinstance(key, str):
            raise Malformed(_line(key_node.start_mark), "a key is text")
        if key in mapping:
            raise Malformed(_line(key_node.start_mark), f"the key {shown(key)} stands twice")
        lines[*path, key] = _line(key_node.start_mark)
        mapping[key] = _value(value_node, (*path, key), lines)
    return mapping


def _scalar(node: yaml.Node) -> str | int | bool | None:
    """Text, a whole number or a truth as one expects it: YAML 1.1 reads `no`, `010` and `1:30` as something else."""
    kind = node.tag.removeprefix("tag:yaml.org,2002:")
    if isinstance(node, yaml.ScalarNode):
        text: str = node.value
        if kind == "str":
            return text
        if kind == "null":
            return None
        if kind == "int" and _WHOLE.fullmatch(text):
            return int(text)
        if kind == "bool" and text in _BOOLEANS:
            return _BOOLEANS[text]
        raise Malformed(
            _line(node.start_mark), f"put {shown(text)} in quotes; only whole numbers, true and false go without"
        )
    raise Malformed(_line(node.start_mark), "a key is text")


def shown(text: str) -> str:
    """A part of the file as a message may show it: short, and without characters that move a cursor."""
    safe = "".join(character if character.isprintable() else "?" for character in text)
    return safe if len(safe) <= 63 else f"{safe[:60]}..."


def _line(mark: yaml.Mark | None) -> int:
    return mark.line + 1 if mark else 1
