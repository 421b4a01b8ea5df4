"""The replicated metadata: a deterministic state machine over the quorum's log.

`MetadataState` is the machine over its `tables`; `state` says what it guarantees, the modules
`..._commands` which commands there are, and `elections` who leads a partition.
"""

from __future__ import annotations

from kraftpy.core.metadata.records import (
    NO_LEADER,
    Broker,
    BrokerChanged,
    Change,
    ConfigChanged,
    Endpoint,
    PartitionChanged,
    PartitionState,
    ResourceType,
    Result,
    Topic,
    TopicCreated,
    TopicDeleted,
)
from kraftpy.core.metadata.state import MetadataState, UnknownCommandError

__all__ = [
    "NO_LEADER",
    "Broker",
    "BrokerChanged",
    "Change",
    "ConfigChanged",
    "Endpoint",
    "MetadataState",
    "PartitionChanged",
    "PartitionState",
    "ResourceType",
    "Result",
    "Topic",
    "TopicCreated",
    "TopicDeleted",
    "UnknownCommandError",
]
