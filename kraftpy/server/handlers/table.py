"""All handlers by their API: what a broker's dispatcher is made with."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from kraftpy.protocol.api import ApiKey
from kraftpy.server.handlers import (  # noqa: F401 - each notes its handlers
    api_versions,
    cluster,
    configs,
    consumer_groups,
    credentials,
    features,
    fetch,
    groups,
    markers,
    metadata,
    offsets,
    partitions,
    produce,
    producer_ids,
    producers,
    quorum,
    sasl,
    security,
    topic_partitions,
    topics,
    transactional_ids,
    transactional_offsets,
)
from kraftpy.server.handlers.registry import registered
from kraftpy.server.network.dispatch import HandlerSpec

HANDLERS: Mapping[ApiKey, HandlerSpec] = MappingProxyType(registered)
