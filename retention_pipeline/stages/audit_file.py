"""A chain as a file of JSON lines, to be kept or verified elsewhere with nothing but the keyring (SPEC G5).

    {"format": …, "chain": …, "at": …, "columns": […]}
    {"block": …, "previous": …, "sealed_at": …, "event_ids": […], "leaves": …, "mac": …}   each followed by its events:
    {"event": […]}
    {"unsealed": […]}                                                                      events that no block has yet
    {"end": {"blocks": …, "events": …, "unsealed": …}}

The last line says that the file is whole. It is no proof that the chain was: what a file proves ends with its last block.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from retention_pipeline.errors import Code, Integrity, RetentionError, UsageFault
from retention_pipeline.governance.audit import BLOCK_EVENTS
from retention_pipeline.model.audit import COLUMNS, AuditFinding, AuditLog, Event, Seal, Waiting
from retention_pipeline.model.ids import TenantId
from retention_pipeline.stages.new_file import new_file

_FORMAT: Final = "nucleus/audit-export.v1"
_MAX_LINE: Final = 16 << 20


@dataclass(slots=True, kw_only=True)
class Exported:
    """What was written."""

    blocks: int = 0
    events: int = 0
    unsealed: int = 0


def export(log: AuditLog, unsealed: Iterable[Event], tenant: TenantId, at: str, path: Path) -> Exported:
    """Write one chain to a new file, whole or not at all."""
    done = Exported()
    with new_file(path) as file:

        def write(document: Mapping[str, Any]) -> None:
            file.write(json.dumps(document, ensure_ascii=False).encode() + b"\n")

        write({"format": _FORMAT, "chain": tenant, "at": at, "columns": COLUMNS})
        for seal, events in log.blocks():
            write(
                {
                    "block": seal.block,
                    "previous": seal.previous.hex(),
                    "sealed_at": seal.sealed_at,
                    "event_ids": seal.event_ids,
                    "leaves": seal.leaves.hex(),
                    "mac": seal.mac.hex(),
                }
            )
            for event in events.values():
                write({"event": event})
            done.blocks += 1
            done.events += len(events)
        for event in unsealed:
            write({"unsealed": event})
            done.unsealed += 1
        write({"end": {"blocks": done.blocks, "events": done.events, "unsealed": done.unsealed}})
    return done


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLog:
    """Implements `AuditLog` on an exported file; it is read a block at a time."""

    path: Path

    def chain(self) -> TenantId:
        """Whose chain the file says that it is; the blocks' MACs prove it."""
        first = next(self._lines(), {})
        chain = first.get("chain")
        if first.get("format") != _FORMAT or first.get("columns") != list(COLUMNS) or not isinstance(chain, str):
            raise _malformed()
        return TenantId(chain)

    def blocks(self) -> Iterator[tuple[Seal, Mapping[int, Event]]]:
        """Every block in order, with those of its events that are there."""
        chain = self.chain()
        seal: Seal | None = None
        events: dict[int, Event] = {}
        for line in self._lines():
            if "event" in line:
                event = _event(line["event"])
                events[int(str(event[0]))] = event
                if seal is None or len(events) > BLOCK_EVENTS:
                    raise _malformed()
            elif "block" in line:
                if seal is not None:
                    yield seal, events
                seal, events = _seal(chain, line), {}
        if seal is not None:
            yield seal, events

    def waiting(self) -> Waiting:
        """What no block had when the file was written."""
        return Waiting(events=sum("unsealed" in line for line in self._lines()), oldest_seconds=None)

    def suspicious(self) -> Iterator[AuditFinding]:
        """Whether the file is whole."""
        seen = {"blocks": 0, "events": 0, "unsealed": 0}
        end: object = None
        for line in self._lines():
            end = line.get("end")
            for kind, name in (("block", "blocks"), ("event", "events"), ("unsealed", "unsealed")):
                seen[name] += kind in line
        if end != seen:
            yield AuditFinding(code=Code.AUDIT_FILE_INCOMPLETE)

    def _lines(self) -> Iterator[dict[str, Any]]:
        try:
            with self.path.open("rb") as file:
                while data := file.readline(_MAX_LINE):
                    line = json.loads(data)
                    if not isinstance(line, dict):
                        raise _malformed()
                    yield line
        except OSError:
            raise UsageFault(Code.USAGE, "The file can't be read.", remedy="Name a file of `audit export`.") from None
        except (ValueError, RecursionError):
            raise _malformed() from None


def _event(given: object) -> Event:
    if not isinstance(given, list) or len(given) != len(COLUMNS):
        raise _malformed()
    if not all(value is None or isinstance(value, str) for value in given):
        raise _malformed()
    event: Event = tuple(given)
    if event[0] is None or not event[0].lstrip("-").isdecimal() or not event[0].isascii():
        raise _malformed()
    return event


def _seal(chain: TenantId, line: Mapping[str, Any]) -> Seal:
    try:
        seal = Seal(
            tenant=chain,
            block=line["block"],
            previous=bytes.fromhex(line["previous"]),
            sealed_at=line["sealed_at"],
            event_ids=tuple(line["event_ids"]),
            leaves=bytes.fromhex(line["leaves"]),
            mac=bytes.fromhex(line["mac"]),
        )
    except (KeyError, TypeError, ValueError):
        raise _malformed() from None
    numbers = all(isinstance(number, int) for number in (seal.block, *seal.event_ids))
    if not numbers or not isinstance(seal.sealed_at, str) or len(seal.event_ids) > BLOCK_EVENTS:
        raise _malformed()
    return seal


def _malformed() -> RetentionError:
    return Integrity(
        Code.AUDIT_FILE_MALFORMED,
        "The file is not an exported audit record, or was cut or changed in the middle of a line.",
        remedy="Take another copy of it, or export the record again.",
    )
