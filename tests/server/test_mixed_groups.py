"""Members that share partitions, and those of librdkafka, in one group."""

from __future__ import annotations

from collections.abc import Callable

from kraftpy.testing import Broker
from tests.server.mixed_groups import PARTITIONS, Librdkafka, tell


async def test_ours_and_librdkafka_s_come_and_go(
    broker: Broker, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(len(PARTITIONS), accept_range_fetch="true")
    await tell(broker.bootstrap, topic, [Librdkafka, Librdkafka])
