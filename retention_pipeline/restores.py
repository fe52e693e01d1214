"""Restores of several archives at once: looked at first, then one after the other, each whole or not at all (SPEC A17)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from retention_pipeline.app import App
from retention_pipeline.errors import Code, Refused, RetentionError, Unavailable
from retention_pipeline.model.ids import AttemptId, TenantId
from retention_pipeline.model.outcome import Outcome
from retention_pipeline.postgres import archive_choice
from retention_pipeline.postgres.archive_choice import Choice, Chosen

TOO_MANY = 3
"""After so many in a row that the store or the database did not answer for, the rest is not tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """One archive that can't come back now, and everything that stands in its way."""

    archive: AttemptId
    instance: str
    code: Code
    sentences: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class Restores:
    """What a restore of several found or did.

    Args:
        chosen: archives that were looked at.
        left: archives of the choice beyond the limit.
        ready: archives that may come back, in a preflight.
        done: archives that came back, or were written to a file.
        rows: rows of those.
        refused: the others, each with its reasons.
    """

    chosen: int = 0
    left: int = 0
    ready: int = 0
    done: int = 0
    rows: int = 0
    refused: list[Refusal] = field(default_factory=list)

    @property
    def outcome(self) -> Outcome:
        """How it ended (O1)."""
        if self.refused:
            return Outcome.PARTIAL if self.done else Outcome.FAILED
        return Outcome.WORK_REMAINS if self.left else Outcome.COMPLETED


@dataclass(slots=True, kw_only=True)
class Restoring:
    """Restores over one tenant's choice.

    Args:
        app: the product.
        tenant: whose archives.
        choice: which of them.
        limit: how many of them at most.
        progress: told how many are through.
    """

    app: App
    tenant: TenantId
    choice: Choice
    limit: int
    progress: Callable[[int], None] = lambda _: None
    _unanswered: int = 0

    def look(self) -> Restores:
        """Open and prove each, and say what stands in its way; changes nothing."""
        found = Restores()
        for chosen in self._each(found, without_restored=True):
            with self._answering(found, chosen):
                _, manifest = self.app.open_archive(self.tenant, chosen.archive)
                obstacles = self.app.restorer().obstacles(self.tenant, manifest)
                if obstacles:
                    sentences = tuple(f"{o.table}: {o.sentence}" for o in obstacles)
                    found.refused.append(_refusal(chosen, Code.RESTORE_CONFLICT, sentences))
                else:
                    found.ready += 1
                    found.rows += sum(self.app.own_rows(manifest).values())
        return found

    def into_database(self, approve: Callable[[AttemptId], str], *, run: str) -> Restores:
        """Put each instance back in a transaction of its own, under an approval of its own."""
        found = Restores()
        for chosen in self._each(found, without_restored=True):
            with self._answering(found, chosen):
                back = self.app.restore_into_database(
                    self.tenant, chosen.archive, approval=approve(chosen.archive), run=run
                )
                found.done += 1
                found.rows += sum(back.rows_by_table.values())
        return found

    def into_folder(self, folder: Path) -> Restores:
        """Write each manifest to a new file of the archive's name; one that is there already is left as it is."""
        found = Restores()
        for chosen in self._each(found, without_restored=False):
            path = folder / f"{chosen.archive}.json"
            if path.exists():
                found.done += 1
                continue
            with self._answering(found, chosen):
                self.app.restore_to_file(self.tenant, chosen.archive, path)
                found.done += 1
        return found

    def _each(self, found: Restores, *, without_restored: bool) -> Iterator[Chosen]:
        with self.app.worker().transaction(self.tenant, read_only=True) as cursor:
            without = archive_choice.restored(cursor, self.tenant) if without_restored else []
            chosen, total = archive_choice.choose(cursor, self.tenant, self.choice, limit=self.limit, without=without)
        found.chosen, found.left = len(chosen), total - len(chosen)
        for position, archive in enumerate(chosen, 1):
            if self._unanswered >= TOO_MANY:
                found.left += len(chosen) - position + 1
                found.chosen = position - 1
                return
            yield archive
            self.progress(position)

    @contextmanager
    def _answering(self, found: Restores, chosen: Chosen) -> Iterator[None]:
        """Note how one archive ended; nothing that is named stops the others."""
        try:
            yield
        except RetentionError as error:
            self._unanswered = self._unanswered + 1 if isinstance(error, Unavailable) else 0
            sentences = (error.message,) if isinstance(error, Refused) else ()
            found.refused.append(_refusal(chosen, error.code, sentences))
        else:
            self._unanswered = 0


def _refusal(chosen: Chosen, code: Code, sentences: tuple[str, ...]) -> Refusal:
    return Refusal(archive=chosen.archive, instance=chosen.instance, code=code, sentences=sentences)
