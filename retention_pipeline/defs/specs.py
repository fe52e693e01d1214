"""What people read of the assets and checks when they browse."""

import warnings
from dataclasses import dataclass

import dagster as dg

from retention_pipeline.defs.partitions import TENANTS
from retention_pipeline.stages.world import Step

GROUP = "workflow_instances"
OWNERS = ["team:data-retention"]
CODE_VERSION = "1"

_WHAT: dict[Step, tuple[str, set[str]]] = {
    Step.INVENTORY: (
        (
            "What the tenant has, and why each instance may go or must stay. Read-only.\n\n"
            "Each instance has exactly one *disposition*, so that they add up to the total: eligible, or the first reason that "
            "protects it. *Blockers* (dead letters, running work, legal holds) overlap and don't add up.\n\n"
            "**Look here first.** A foreign row or a missing epoch is data drift that somebody has to repair; the instance stays "
            "until then."
        ),
        {"postgres"},
    ),
    Step.ELIGIBLE_SET: (
        (
            "The instances that may go now, oldest due first, within the bounds of one run (10,000). Read-only: it is a list of "
            "ids in the product's own schema. What is beyond the bounds is the next run's.\n\n"
            "A run that nobody approved ends here: a *preflight*."
        ),
        {"postgres"},
    ),
    Step.ENCRYPTED_MANIFESTS: (
        (
            "Each eligible instance with all its evidence, written as one document, encrypted for this tenant and instance, and "
            "stored once: the store itself refuses a second write. The attempt is on record before the object is written.\n\n"
            "Nothing is deleted here."
        ),
        {"s3"},
    ),
    Step.VERIFIED_OBJECTS: (
        (
            "Each stored object, read back and opened: length, digest, identity, decryption and content are checked on what came "
            "back, never on what the store says of it.\n\n"
            "Only a verified object allows its instance to be deleted."
        ),
        {"s3"},
    ),
    Step.DELETIONS: (
        (
            "Instances whose archive is proven are deleted, if they are still exactly what was archived and nothing protects them "
            "by now. Deletion, receipt and audit event are one transaction.\n\n"
            "What changed in the meantime stays, and is archived anew by a later run."
        ),
        {"postgres"},
    ),
}
_EFFECT = {
    Step.INVENTORY: "reads",
    Step.ELIGIBLE_SET: "reads",
    Step.ENCRYPTED_MANIFESTS: "writes-archives",
    Step.VERIFIED_OBJECTS: "reads-archives",
    Step.DELETIONS: "deletes-source-rows",
}
_BEFORE = {after: before for before, after in zip(list(Step), list(Step)[1:], strict=False)}


def asset_specs() -> list[dg.AssetSpec]:
    """The chain, each asset depending on the one before.

    It begins with the inventory. The overview of all tenants stands beside it, not before it: each look at the overview would
    make every tenant's inventory seem out of date.
    """
    return [
        dg.AssetSpec(
            step.value,
            deps=[_BEFORE[step].value] if step in _BEFORE else [],
            description=_WHAT[step][0],
            kinds=_WHAT[step][1],
            tags={"retention/effect": _EFFECT[step]},
            group_name=GROUP,
            owners=OWNERS,
            code_version=CODE_VERSION,
            skippable=True,
        )
        for step in Step
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """What is looked at beside the inventory.

    Args:
        promise: what is true where it passes.
        remedy: what to do where it does not.
    """

    promise: str
    remedy: str
    severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.WARN


CHECKS = {
    "every_instance_accounted": Check(
        promise="The dispositions add up to the number of instances.",
        remedy="A rule is wrong: report it, and apply nothing until it is mended.",
        severity=dg.AssetCheckSeverity.ERROR,
    ),
    "no_foreign_rows": Check(
        promise="No row of another tenant hangs on an instance.",
        remedy="Repair the rows; until then each one keeps its instance where it is.",
    ),
    "catalog_fits_database": Check(
        promise="Gate 1 of 4 for schedules: the catalog names what is in the database.",
        remedy="Run `retention catalog check`, and mend what it names.",
    ),
    "preflight_acknowledged": Check(
        promise="Gate 2 of 4: a person accepted this tenant's numbers.",
        remedy="Look at them, then run `retention reconcile --acknowledge --reason ...`.",
    ),
    "provider_ready": Check(
        promise="Gate 3 of 4: the archive store was tried, and keeps what it is given.",
        remedy="Run `retention profile readiness`, and mend what it names.",
    ),
    "canary_proven": Check(
        promise="Gate 4 of 4: an instance was archived, restored, and compared identical.",
        remedy="Archive one with `retention archive ID --apply`, then `retention restore` it.",
    ),
}


def check_specs() -> list[dg.AssetCheckSpec]:
    """Gates as evidence beside the inventory; the lock itself is in the steps and in the database.

    Each is partitioned, so that one tenant's answer is never shown as another's.
    """
    with warnings.catch_warnings():
        # Marked as a preview in this release; the acceptance tests read back what it records, partition by partition.
        warnings.simplefilter("ignore", dg.PreviewWarning)
        return [
            dg.AssetCheckSpec(
                name,
                asset=Step.INVENTORY.value,
                description=f"{check.promise} Else: {check.remedy}",
                partitions_def=TENANTS,
            )
            for name, check in CHECKS.items()
        ]
