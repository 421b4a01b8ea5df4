"""The features of the cluster (KIP-584): what clients and tools may ask for, and at which level.

Those of Apache Kafka 4.4 that are true here: `metadata.version` names the release whose requests
are answered, `group.version` groups whose coordinator assigns partitions (KIP-848),
`eligible.leader.replicas.version` leaders that are out of sync but have all records (KIP-966). Each
of these has one level, so none can be raised or lowered.

* `transaction.version` says by which version of the protocol clients are to write transactions
  (KIP-890); brokers go by the versions of requests, and take both at any level. 1 is as 0, which
  isn't among the levels in use. All nodes know it from a metadata level on, and it begins with 2.
* `kraftpy.cooperative` is kraftpy's own: brokers serve cooperative consumption, so clients may ask
  for it. At level 1 those are slices in fetches, and claims in commits of either kind; at 2 also
  cooperative fetches, in which several members have a partition and leaders lease its batches.
* `share.version` says whether there are share groups (KIP-932): at 0 their APIs are hidden from
  clients, and who asks for one nevertheless is answered with UNSUPPORTED_VERSION.
* `kraftpy.metadata.level` is kraftpy's own: what may be in the metadata
  (`kraftpy.core.metadata.levels`); an operator raises it, and it never falls.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from kraftpy.core.metadata import LEVEL
from kraftpy.core.metadata.levels import (
    COOPERATIVE_FETCH,
    SHARE_GROUPS,
    SHARE_VERSION,
    TRANSACTION_VERSION,
    TRANSACTIONS,
    TWINS,
)
from kraftpy.frozen import NamedTuple
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.extensions import COOPERATIVE_FEATURE, METADATA_LEVEL_FEATURE

if TYPE_CHECKING:
    from kraftpy.core.metadata import MetadataState


class Levels(NamedTuple):
    """Those that this release knows, both included."""

    lowest: int
    highest: int


_TRANSACTION_VERSION_MAX = 2

COOPERATIVE_MAX = 2
"""The highest level of `kraftpy.cooperative` that this release serves; at 0 nobody hears of it."""

COOPERATIVE_FETCHES = 2
"""The level of `kraftpy.cooperative` from which on there are cooperative fetches."""

ADJUSTABLE: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {
        TRANSACTION_VERSION: (TRANSACTIONS,),
        COOPERATIVE_FEATURE: (TWINS, COOPERATIVE_FETCH),
        SHARE_VERSION: (SHARE_GROUPS,),
    }
)
"""The features that can be raised and lowered, with the metadata levels that their levels from 1
on take; the last one counts for those above, too."""

SHARE_VERSION_MAX = 1
"""The highest level of `share.version` that this release serves."""

SHARE_GROUP_APIS = frozenset((*range(76, 80), *range(83, 88), *range(90, 93)))
"""The keys of APIs that there are for share groups alone."""

_FIXED: Mapping[str, int] = MappingProxyType(
    {"eligible.leader.replicas.version": 1, "group.version": 1, "metadata.version": 33}
)


def supported() -> dict[str, Levels]:
    """What this release knows of each feature."""
    cooperative = {COOPERATIVE_FEATURE: Levels(0, COOPERATIVE_MAX)} if COOPERATIVE_MAX else {}
    return {
        **{name: Levels(level, level) for name, level in _FIXED.items()},
        TRANSACTION_VERSION: Levels(0, _TRANSACTION_VERSION_MAX),
        **cooperative,
        SHARE_VERSION: Levels(0, SHARE_VERSION_MAX),
        METADATA_LEVEL_FEATURE: Levels(1, LEVEL),
    }


def levels_in_use(metadata: MetadataState) -> dict[str, int]:
    """The level of each of these; 0 if there is nothing of it."""
    adjustable = {name: metadata.features.get(name, 0) for name in ADJUSTABLE}
    if not COOPERATIVE_MAX:
        del adjustable[COOPERATIVE_FEATURE]
    return {**_FIXED, **adjustable, METADATA_LEVEL_FEATURE: metadata.level}


def metadata_level_for(feature: str, level: int) -> int:
    """The metadata level that it takes for the feature to get this level."""
    levels = ADJUSTABLE.get(feature, (0,))
    return levels[min(max(level, 1), len(levels)) - 1]


def has_cooperative_fetches(metadata: MetadataState) -> bool:
    """Whether leaders serve cooperative fetches."""
    return metadata.features.get(COOPERATIVE_FEATURE, 0) >= COOPERATIVE_FETCHES


def has_share_groups(metadata: MetadataState) -> bool:
    """Whether the cluster has share groups."""
    return metadata.features.get(SHARE_VERSION, 0) >= 1


def require_share_groups(metadata: MetadataState) -> None:
    """Raises KafkaError if the cluster has no share groups."""
    if not has_share_groups(metadata):
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"the cluster has no share groups: the feature {SHARE_VERSION} is at level 0",
        )


def hidden_apis(metadata: MetadataState) -> frozenset[int]:
    """The keys of APIs that clients aren't told of, by the levels of the cluster's features."""
    return frozenset() if has_share_groups(metadata) else SHARE_GROUP_APIS
