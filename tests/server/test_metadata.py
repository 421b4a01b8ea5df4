"""Metadata over the wire: what it creates on demand, and what it must not."""

from __future__ import annotations

from kraftpy.protocol import messages
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode
from tests.server.wire import Wire


def ask(wire: Wire, *names: str) -> dict[str, tuple[int, int]]:
    """(error, number of partitions) by topic."""
    topic = messages.MetadataRequest.MetadataRequestTopic
    request = messages.MetadataRequest([topic(name=name) for name in names])
    answer = wire.call(ApiKey.METADATA, 12, request)
    return {each.name: (each.error_code, len(each.partitions)) for each in answer.topics}


def test_the_brokers_own_topics_are_not_created_like_a_clients(wire: Wire) -> None:
    unknown = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0)
    assert ask(wire, "__consumer_offsets", "__transaction_state", "mine") == {
        "__consumer_offsets": unknown,
        "__transaction_state": unknown,
        "mine": (0, 1),
    }
    finding = messages.FindCoordinatorRequest(key="group", key_type=0)
    assert wire.call(ApiKey.FIND_COORDINATOR, 3, finding).error_code == 0
    assert ask(wire, "__consumer_offsets") == {"__consumer_offsets": (0, 50)}
