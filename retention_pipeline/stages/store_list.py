"""Sets a store's list beside the records, a page at a time and both ways (SPEC A19, F15).

- A page is listed before the records are asked, and a record is written before its object: what is in flight is no stranger.
- What a page lacks is looked up by its name before it is called missing, while its end is kept from beginning.
- Neither list is ever held whole.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from retention_pipeline.model.ids import AttemptId, TenantId
from retention_pipeline.model.ports import ObjectStore
from retention_pipeline.model.scrub import Place, ScrubRecords, StoredArchive, Tally
from retention_pipeline.stages.archive_reading import is_listed

PAGE: Final = 1_000


@dataclass(slots=True, kw_only=True)
class StoreList:
    """The stores of one tenant.

    Args:
        store: opens the store of one generation.
        tally: told what was seen.
    """

    records: ScrubRecords
    store: Callable[[int], ObjectStore]
    tenant: TenantId
    run: str
    tally: Tally

    def __call__(self, place: Place, go_on: Callable[[], bool], missing: Callable[[StoredArchive], None]) -> bool:
        """List one place; gives whether it was listed whole.

        Args:
            place: the store.
            go_on: asked before each page.
            missing: told of each archive that is not there.
        """
        listed, after = self.store(place.newest).walk(), None
        while page := list(islice(listed, PAGE)):
            if not go_on():
                return False
            seen = self.records.compare(self.tenant, place, page, after, run=self.run)
            self.tally.listed += len(page)
            self.tally.unknown += seen.unknown
            self.tally.new_unknown += seen.new
            after = seen.through or after
            self._look_up(seen.absent, missing)
        while absent := self.records.behind(self.tenant, place, after, PAGE):
            self._look_up([archive for archive, _ in absent], missing)
            after = absent[-1][1]
        self.records.forget_gone(self.tenant, place, run=self.run)
        return True

    def _look_up(self, archives: Sequence[AttemptId], missing: Callable[[StoredArchive], None]) -> None:
        for archive in archives:
            with self.records.reading(self.tenant, archive) as standing:
                if standing is None:
                    continue
                if not is_listed(self.store(standing.stored.profile_generation), standing.stored):
                    missing(standing)
