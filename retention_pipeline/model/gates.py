"""What must be proven of a tenant before a schedule may change anything for it (SPEC D3)."""

from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True, kw_only=True)
class Gates:
    """Four gates; all must be open. They are shown as asset checks, and enforced in the steps and the database.

    Args:
        schema: the catalog fits the database.
        inventory: a preflight of this tenant was acknowledged.
        provider: the archive profile is ready.
        canary: an instance was archived, verified, deleted, restored, and compared identical.
    """

    schema: bool
    inventory: bool
    provider: bool
    canary: bool

    @classmethod
    def of_schema(cls, *, schema: bool) -> Self:
        """What a sweep needs: it writes no archive, so that the catalog alone must fit."""
        return cls(schema=schema, inventory=True, provider=True, canary=True)

    @property
    def open(self) -> bool:
        """Whether a schedule may apply."""
        return self.schema and self.inventory and self.provider and self.canary

    def closed(self) -> tuple[str, ...]:
        """What to do for each gate that is not open."""
        return tuple(
            sentence
            for passed, sentence in (
                (self.schema, "Run `retention catalog check` and mend what it names."),
                (self.inventory, "Acknowledge a preflight: `retention reconcile --acknowledge --reason ...`."),
                (self.provider, "Prove the archive profile: `retention profile readiness`."),
                (
                    self.canary,
                    "Archive one instance and restore it: `retention archive ID --apply`, then `retention restore`.",
                ),
            )
            if not passed
        )
