"""What `catalog check` finds: a stable code, the line of the catalog, one sentence, and what to do."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from retention_pipeline.errors import Code, Refused


class Severity(StrEnum):
    """Whether the product may run over it."""

    ERROR = "error"
    WARNING = "warning"


class FaultCode(StrEnum):
    """Stable codes (G6); docs/catalog.md has each with its remedy. None is ever reused for another meaning."""

    CATALOG_TABLE_MISSING = "RETENTION_CATALOG_TABLE_MISSING"
    CATALOG_TABLE_KIND = "RETENTION_CATALOG_TABLE_KIND"
    CATALOG_COLUMN_MISSING = "RETENTION_CATALOG_COLUMN_MISSING"
    CATALOG_COLUMN_TYPE = "RETENTION_CATALOG_COLUMN_TYPE"
    CATALOG_EPHEMERAL_COPIED = "RETENTION_CATALOG_EPHEMERAL_COPIED"
    CATALOG_VALUE_UNKNOWN = "RETENTION_CATALOG_VALUE_UNKNOWN"
    CATALOG_TENANT_NULLABLE = "RETENTION_CATALOG_TENANT_NULLABLE"
    CATALOG_KEY_NOT_UNIQUE = "RETENTION_CATALOG_KEY_NOT_UNIQUE"
    CATALOG_FOREIGN_KEY_MISSING = "RETENTION_CATALOG_FOREIGN_KEY_MISSING"
    CATALOG_FOREIGN_KEY_UNNAMED = "RETENTION_CATALOG_FOREIGN_KEY_UNNAMED"
    CATALOG_FOREIGN_KEY_ACTION = "RETENTION_CATALOG_FOREIGN_KEY_ACTION"
    CATALOG_FOREIGN_KEY_ORDER = "RETENTION_CATALOG_FOREIGN_KEY_ORDER"
    CATALOG_INDEX_MISSING = "RETENTION_CATALOG_INDEX_MISSING"
    CATALOG_ROW_SECURITY_WEAK = "RETENTION_CATALOG_ROW_SECURITY_WEAK"
    CATALOG_ROW_SECURITY_BLIND = "RETENTION_CATALOG_ROW_SECURITY_BLIND"
    CATALOG_NOT_INSTALLED = "RETENTION_CATALOG_NOT_INSTALLED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One difference between the catalog and the database.

    Args:
        line: where in the catalog's file.
        file: which of its files: a sweep's; None for the instances'.
        sentence: what is wrong, with names of tables and columns, never a row's data.
        remedy: what to do, where it can be with the exact statement.
    """

    code: FaultCode
    severity: Severity
    line: int
    sentence: str
    remedy: str
    file: str | None = None

    @property
    def where(self) -> str:
        """Its place, as a sentence has it."""
        return f"line {self.line}" if self.file is None else f"{self.file}, line {self.line}"


def concerning(faults: Iterable[Fault], file: str | None) -> tuple[Fault, ...]:
    """Faults of the instances' file, and of one sweep's where its file is given: another sweep's are no reason to stop this work."""
    return tuple(fault for fault in faults if fault.file in {None, file})


def require_sound(faults: Iterable[Fault]) -> None:
    """Pass over warnings, and stop at an error.

    Raises:
        Refused: `RETENTION_CATALOG_INVALID`, with the first error and the number of the others (K2).
    """
    errors = [fault for fault in faults if fault.severity is Severity.ERROR]
    if errors:
        first, more = errors[0], f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        raise Refused(
            Code.CATALOG_INVALID,
            f"The catalog does not fit the database: {first.code}, {first.where}: {first.sentence}{more}",
            remedy="Run `retention catalog check` for every fault and its remedy.",
        )
