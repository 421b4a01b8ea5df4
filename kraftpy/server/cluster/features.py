"""The features of the cluster (KIP-584): what clients and tools may ask for, and at which level.

Those of Apache Kafka 4.4 that are true here: `metadata.version` names the release whose requests
are answered, `group.version` groups whose coordinator assigns partitions (KIP-848),
`eligible.leader.replicas.version` leaders that are out of sync but have all records (KIP-966). Each
of these has one level, so none can be raised or lowered.

* `transaction.version` says by which version of the protocol clients are to write transactions
  (KIP-890); brokers go by the versions of requests, and take both at any level. 1 is as 0, which
  isn't among the levels in use. All nodes know it from a metadata level on, and it begins with 2.
* `kraftpy.metadata.level` is kraftpy's own: what may be in the metadata
  (`kraftpy.core.metadata.levels`); an operator raises it, and it never falls.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from kraftpy.core.metadata import LEVEL
from kraftpy.core.metadata.levels import TRANSACTION_VERSION
from kraftpy.protocol.extensions import METADATA_LEVEL_FEATURE

if TYPE_CHECKING:
    from kraftpy.core.metadata import MetadataState


class Levels(NamedTuple):
    """Those that this release knows, both included."""

    lowest: int
    highest: int


_TRANSACTION_VERSION_MAX = 2

_FIXED: Mapping[str, int] = MappingProxyType(
    {"eligible.leader.replicas.version": 1, "group.version": 1, "metadata.version": 33}
)


def supported() -> dict[str, Levels]:
    """What this release knows of each feature."""
    return {
        **{name: Levels(level, level) for name, level in _FIXED.items()},
        TRANSACTION_VERSION: Levels(0, _TRANSACTION_VERSION_MAX),
        METADATA_LEVEL_FEATURE: Levels(1, LEVEL),
    }


def levels_in_use(metadata: MetadataState) -> dict[str, int]:
    """The level of each of these; 0 if there is nothing of it."""
    return {
        **_FIXED,
        TRANSACTION_VERSION: metadata.features.get(TRANSACTION_VERSION, 0),
        METADATA_LEVEL_FEATURE: metadata.level,
    }
