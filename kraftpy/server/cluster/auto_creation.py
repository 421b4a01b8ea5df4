"""Topics that are made because a client asked for them, with the broker's defaults."""

from __future__ import annotations

import logging
import random
from typing import Protocol

from kraftpy.core.config import BrokerConfig
from kraftpy.core.metadata import MetadataState
from kraftpy.core.metadata.commands import CreateTopics, NewTopic
from kraftpy.events import emit
from kraftpy.protocol.errors import ErrorCode
from kraftpy.server.cluster.membership import METADATA_TIMEOUT_MS
from kraftpy.server.cluster.proposals import Proposals, new_topic_id, propose_growth

log = logging.getLogger(__name__)


class Creator(Protocol):
    """What is needed of the broker."""

    metadata: MetadataState
    config: BrokerConfig
    controller: Proposals


async def create_topics(broker: Creator, names: list[str]) -> dict[str, ErrorCode]:
    """Creates topics with the broker's defaults; why it didn't, for those that aren't there."""
    partitions = broker.config.num_partitions
    topics = [
        NewTopic(name, new_topic_id(), partitions, broker.config.default_replication_factor)
        for name in names
    ]
    seed = random.getrandbits(31)
    answers = await propose_growth(
        broker.controller,
        lambda some, before: CreateTopics(some, seed + before),
        topics,
        [partitions] * len(topics),
        METADATA_TIMEOUT_MS,
    )
    failed: dict[str, ErrorCode] = {}
    for name, answer in zip(names, answers, strict=True):
        if name not in broker.metadata.topics:
            failed[name] = ErrorCode(answer["error"])
            reason = answer["message"]
            emit(log, logging.WARNING, "topic-refused", topic=name, reason=reason)
    return failed
