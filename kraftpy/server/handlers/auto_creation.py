"""Topics that are created because somebody asked for them: with a broker's defaults."""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING

from kraftpy.core.metadata.commands import CreateTopics, NewTopic
from kraftpy.events import emit
from kraftpy.protocol.errors import ErrorCode
from kraftpy.server.cluster.membership import METADATA_TIMEOUT_MS
from kraftpy.server.cluster.proposals import new_topic_id, propose_growth
from kraftpy.server.handlers.mutation_quotas import Mutations

if TYPE_CHECKING:
    from kraftpy.server.broker import Broker

log = logging.getLogger(__name__)


async def auto_create_topics(
    broker: Broker, mutations: Mutations, names: list[str]
) -> dict[str, ErrorCode]:
    """Creates topics with the broker's defaults; why it didn't, for those that aren't there."""
    config = broker.config
    topics = [
        NewTopic(name, new_topic_id(), config.num_partitions, config.default_replication_factor)
        for name in names
    ]
    seed = random.getrandbits(31)
    answers = await propose_growth(
        mutations.controller,
        lambda some, before: CreateTopics(some, seed + before),
        topics,
        [config.num_partitions] * len(topics),
        METADATA_TIMEOUT_MS,
        alone=mutations.alone,
    )
    failed: dict[str, ErrorCode] = {}
    for name, answer in zip(names, answers, strict=True):
        if name not in broker.metadata.topics:
            failed[name] = ErrorCode(answer["error"])
            reason = answer["message"]
            emit(log, logging.WARNING, "topic-refused", topic=name, reason=reason)
    return failed
