"""A catalog beside the facts of a database, and the faults that tell of their differences."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from retention_pipeline.catalog.consistency import related
from retention_pipeline.catalog.document import EntryPath
from retention_pipeline.catalog.fault import Fault, FaultCode, Severity
from retention_pipeline.catalog.loader import Catalog
from retention_pipeline.catalog.model import ROOT, InstanceDataset, Related
from retention_pipeline.catalog.schema import DatabaseFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground(ABC):
    """The rules of one file beside the facts of a database.

    Args:
        file: the file's name, where it is a sweep's; None for the instances'.
    """

    facts: DatabaseFacts
    file: str | None = None

    @abstractmethod
    def line(self, *path: str | int) -> int:
        """The line of an entry, or of the nearest one around it."""

    def have(self, table: str, columns: Collection[str]) -> bool:
        """Whether the table and its columns are all there; a rule is silent about what another one reports."""
        return all(self.facts.column(table, column) for column in columns)

    def error(self, code: FaultCode, path: EntryPath, sentence: str, remedy: str) -> Fault:
        """A fault over which the product does not run."""
        return self._fault(Severity.ERROR, code, path, sentence, remedy)

    def warning(self, code: FaultCode, path: EntryPath, sentence: str, remedy: str) -> Fault:
        """A fault that a person should know of."""
        return self._fault(Severity.WARNING, code, path, sentence, remedy)

    def _fault(self, severity: Severity, code: FaultCode, path: EntryPath, sentence: str, remedy: str) -> Fault:
        line = self.line(*path)
        return Fault(code=code, severity=severity, line=line, sentence=sentence, remedy=remedy, file=self.file)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison(Ground):
    """What every rule over the instances' file looks at."""

    catalog: Catalog

    def line(self, *path: str | int) -> int:
        """The line of an entry of the instances' file."""
        return self.catalog.line(*path)

    @property
    def dataset(self) -> InstanceDataset:
        """The instances' rules."""
        return self.catalog.instances

    def parent_table(self, child: Related) -> str:
        """The table that a related table hangs on."""
        return self.dataset.root.table if child.parent == ROOT else self.dataset.by_name[child.parent].table

    def deleted(self) -> dict[str, EntryPath]:
        """The tables whose rows the product deletes, the root and its evidence, with their paths."""
        paths: dict[str, EntryPath] = {self.dataset.root.table: ("root",)}
        paths.update((table.table, path) for path, table in related(self.dataset) if path[0] == "evidence")
        return paths


def quoted(name: str) -> str:
    """A table's or a column's name, as a statement takes it."""
    return ".".join('"{}"'.format(part.replace('"', '""')) for part in name.split(".", 1))


def names(columns: Iterable[str]) -> str:
    """Columns as a sentence has them."""
    return f"({', '.join(columns)})"


def column_list(columns: Iterable[str]) -> str:
    """Columns in parentheses, as a statement takes them."""
    return f"({', '.join(quoted(column) for column in columns)})"
