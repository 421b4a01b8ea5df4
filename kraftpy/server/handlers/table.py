"""All handlers by their API: what a broker's dispatcher is made with."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from kraftpy.core.config import BrokerConfig
from kraftpy.protocol.api import ApiKey
from kraftpy.server.handlers import (  # noqa: F401 - each notes its handlers
    acls,
    api_versions,
    cluster,
    configs,
    consumer_groups,
    coordinators,
    credentials,
    delegation_tokens,
    envelope,
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
    quotas,
    sasl,
    share,
    share_groups,
    share_state,
    topic_partitions,
    topics,
    transactional_ids,
    transactional_offsets,
)
from kraftpy.server.handlers.authorization import (  # noqa: F401 - each notes its guards
    cluster_guards,
    group_guards,
    lease_guards,
    share_guards,
    token_guards,
    topic_guards,
    transaction_guards,
)
from kraftpy.server.handlers.authorization.guards import guarded
from kraftpy.server.handlers.registry import registered
from kraftpy.server.network.dispatch import HandlerSpec

HANDLERS: Mapping[ApiKey, HandlerSpec] = MappingProxyType(registered)


def handlers_for(config: BrokerConfig) -> Mapping[ApiKey, HandlerSpec]:
    """The handlers of such a broker: behind guards if it has an authorizer."""
    return guarded(HANDLERS) if config.authorizer_class_name else HANDLERS
