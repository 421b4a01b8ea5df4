"""Metadata over the wire: what it creates on demand, and what it must not."""

from __future__ import annotations

from collections.abc import Callable

from kraftpy.protocol import messages
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.extensions import ACCEPT_RANGE_FETCH_TAG, NO, YES
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


def test_who_asks_is_told_which_topics_may_be_read_in_parts(
    wire: Wire, new_topic: Callable[..., str]
) -> None:
    shared, plain = new_topic(accept_range_fetch="true"), new_topic()
    topic = messages.MetadataRequest.MetadataRequestTopic
    named = [topic(name=name) for name in (shared, plain, "missing")]
    told = {shared: {ACCEPT_RANGE_FETCH_TAG: YES}, plain: {ACCEPT_RANGE_FETCH_TAG: NO}}
    for topics in (named, None):
        request = messages.MetadataRequest(topics, allow_auto_topic_creation=False)
        answer = wire.call(ApiKey.METADATA, 12, request)
        assert not any(each._tags for each in answer.topics)
        request._tags = {ACCEPT_RANGE_FETCH_TAG: YES}
        answer = wire.call(ApiKey.METADATA, 12, request)
        found = {each.name: each._tags for each in answer.topics}
        assert {name: found[name] for name in told} == told
        assert not found.get("missing")
