"""Elections and reassignments over the wire: each partition is answered, also after the timeout."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kraftpy.protocol import messages as m
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode
from tests.server.wire import Wire

NEEDLESS, UNKNOWN = ErrorCode.ELECTION_NOT_NEEDED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("version", range(3))
@pytest.mark.parametrize("timeout_ms", [-1, 0, 1, 10_000])
def test_an_election_names_each_partition(
    wire: Wire, new_topic: Callable[..., str], version: int, timeout_ms: int
) -> None:
    """Also one that times out at once, which may have taken effect or not."""
    topic = new_topic(partitions=2)
    request = m.ElectLeadersRequest
    named = [request.TopicPartitions(topic, [0, 1, 7])]
    answer = wire.call(ApiKey.ELECT_LEADERS, version, request(0, named, timeout_ms))
    (found,) = answer.replica_election_results
    errors = {each.partition_id: each.error_code for each in found.partition_result}
    late = dict.fromkeys((0, 1, 7), ErrorCode.REQUEST_TIMED_OUT)
    if errors == late and timeout_ms < 10_000:
        assert answer.error_code == (ErrorCode.REQUEST_TIMED_OUT if version else ErrorCode.NONE)
    else:
        assert errors == {0: NEEDLESS, 1: NEEDLESS, 7: UNKNOWN}
        assert answer.error_code == ErrorCode.NONE


@pytest.mark.parametrize("version", range(2))
def test_a_reassignment_names_each_partition(
    wire: Wire, new_topic: Callable[..., str], version: int
) -> None:
    topic = new_topic(partitions=2)
    request = m.AlterPartitionReassignmentsRequest
    partitions = [request.ReassignablePartition(index, None) for index in range(2)]
    wanted = request(0, topics=[request.ReassignableTopic(topic, partitions)])
    (found,) = wire.call(ApiKey.ALTER_PARTITION_REASSIGNMENTS, version, wanted).responses
    assert [each.partition_index for each in found.partitions] == [0, 1]
