"""The replicated metadata: a deterministic state machine over the quorum's log.

`MetadataState` is the machine over its `tables`; `state` says what it guarantees, `commands` which
commands there are, the modules `..._commands` what they do, `levels` how releases differ, and
`elections` who leads a partition.
"""

from __future__ import annotations

from kraftpy.core.metadata.levels import LEVEL, TRANSACTIONS, LaterReleaseError
from kraftpy.core.metadata.records import (
    NO_LEADER,
    AclsChanged,
    Broker,
    BrokerChanged,
    Change,
    ConfigChanged,
    DelegationToken,
    Endpoint,
    FeatureChanged,
    LevelRaised,
    PartitionChanged,
    PartitionState,
    QuotasChanged,
    ResourceType,
    Result,
    ScramChanged,
    ScramCredential,
    ScramMechanism,
    TokenChanged,
    TokensRemoved,
    Topic,
    TopicCreated,
    TopicDeleted,
)
from kraftpy.core.metadata.state import RIGHTS_CHANGED, MetadataState

__all__ = [
    "LEVEL",
    "NO_LEADER",
    "RIGHTS_CHANGED",
    "TRANSACTIONS",
    "AclsChanged",
    "Broker",
    "BrokerChanged",
    "Change",
    "ConfigChanged",
    "DelegationToken",
    "Endpoint",
    "FeatureChanged",
    "LaterReleaseError",
    "LevelRaised",
    "MetadataState",
    "PartitionChanged",
    "PartitionState",
    "QuotasChanged",
    "ResourceType",
    "Result",
    "ScramChanged",
    "ScramCredential",
    "ScramMechanism",
    "TokenChanged",
    "TokensRemoved",
    "Topic",
    "TopicCreated",
    "TopicDeleted",
]
