"""ApiVersions 5 and UpdateFeatures, as Apache Kafka 4.4 answers them."""

from __future__ import annotations

import pytest

from kraftpy.core.metadata import LEVEL
from kraftpy.protocol import messages as m
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode
from tests.server.wire import Wire

Update = m.UpdateFeaturesRequest.FeatureUpdateKey


def here(wire: Wire) -> tuple[str, int]:
    """The broker's cluster and node."""
    answer = wire.call(ApiKey.METADATA, 12, m.MetadataRequest([]))
    return answer.cluster_id, answer.brokers[0].node_id


def asked_for(wire: Wire, cluster_id: str | None, node_id: int) -> ErrorCode:
    request = m.ApiVersionsRequest("test", "1", cluster_id, node_id)
    answer = wire.call(ApiKey.API_VERSIONS, 5, request)
    assert bool(answer.api_keys) == (answer.error_code == ErrorCode.NONE)
    return ErrorCode(answer.error_code)


def test_a_client_may_say_whom_it_looks_for(wire: Wire) -> None:
    cluster_id, node_id = here(wire)
    assert asked_for(wire, None, -1) is ErrorCode.NONE
    assert asked_for(wire, cluster_id, node_id) is ErrorCode.NONE
    assert asked_for(wire, cluster_id, node_id + 1) is ErrorCode.REBOOTSTRAP_REQUIRED
    assert asked_for(wire, "another", node_id) is ErrorCode.REBOOTSTRAP_REQUIRED
    for half in ((cluster_id, -1), ("another", -1), (None, node_id), ("", -1)):
        assert asked_for(wire, *half) is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("version", range(3))
@pytest.mark.parametrize(
    ("updates", "problem"),
    [
        ([], None),
        ([Update("metadata.version", 33)], None),
        ([Update("group.version", 1), Update("group.version", 1)], None),
        ([Update("metadata.version", 34)], "level 33"),
        ([Update("metadata.version", -1)], "level 33"),
        ([Update("group.version", 0, True, 2)], "level 1"),
        ([Update("group.version", 1), Update("no.such", 1)], "no such feature"),
        ([Update("no.such", 0)], "no such feature"),
        ([Update("kraftpy.metadata.level", LEVEL)], None),
        ([Update("kraftpy.metadata.level", LEVEL + 1)], f"knows 1 to {LEVEL}"),
        ([Update("kraftpy.metadata.level", LEVEL - 1)], "never falls"),
        ([Update("kraftpy.metadata.level", LEVEL - 1, True, 2)], "never falls"),
    ],
)
def test_levels_are_what_they_are(
    wire: Wire, version: int, updates: list[Update], problem: str | None
) -> None:
    request = m.UpdateFeaturesRequest(5000, updates, validate_only=True)
    answer = wire.call(ApiKey.UPDATE_FEATURES, version, request)
    if problem is None:
        assert answer.error_code == ErrorCode.NONE, answer.error_message
        names = dict.fromkeys(update.feature for update in updates)
        assert [each.feature for each in answer.results] == ([] if version == 2 else list(names))
        assert {each.error_code for each in answer.results} <= {ErrorCode.NONE}
    else:
        assert answer.error_code == ErrorCode.INVALID_UPDATE_VERSION
        assert problem in answer.error_message
        assert answer.results == []


@pytest.mark.parametrize(("version", "upgrade_type"), [(1, 0), (1, 4), (2, -1)])
def test_there_are_three_ways_to_update(wire: Wire, version: int, upgrade_type: int) -> None:
    update = Update("group.version", 1, False, upgrade_type)
    request = m.UpdateFeaturesRequest(5000, [update])
    answer = wire.call(ApiKey.UPDATE_FEATURES, version, request)
    assert answer.error_code == ErrorCode.INVALID_UPDATE_VERSION


def test_groups_name_their_authorized_operations(wire: Wire) -> None:
    finding = m.FindCoordinatorRequest(key="group", key_type=0)
    assert wire.call(ApiKey.FIND_COORDINATOR, 3, finding).error_code == 0
    operations = 3400  # what Kafka 4.4 answers without an authorizer
    for version in range(3, 7):
        request = m.DescribeGroupsRequest(["nobody's"], include_authorized_operations=True)
        (group,) = wire.call(ApiKey.DESCRIBE_GROUPS, version, request).groups
        # From version 6 on a group that there isn't is an error (KIP-1043), and says nothing.
        assert group.authorized_operations == (operations if version < 6 else -(2**31))
        request = m.DescribeGroupsRequest(["nobody's"])
        (group,) = wire.call(ApiKey.DESCRIBE_GROUPS, version, request).groups
        assert group.authorized_operations == -(2**31)
    beat = m.ConsumerGroupHeartbeatRequest(
        "kip-848", "m", 0, rebalance_timeout_ms=1000, subscribed_topic_names=[], topic_partitions=[]
    )
    assert wire.call(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, beat).error_code == 0
    for asked in (True, False):
        describing = m.ConsumerGroupDescribeRequest(["kip-848", "nobody's"], asked)
        found, missing = wire.call(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, describing).groups
        assert found.authorized_operations == (operations if asked else -(2**31))
        assert missing.authorized_operations == -(2**31)


@pytest.mark.parametrize("version", range(4))
def test_why_a_group_is_not_deleted(wire: Wire, version: int) -> None:
    finding = m.FindCoordinatorRequest(key="group", key_type=0)
    assert wire.call(ApiKey.FIND_COORDINATOR, 3, finding).error_code == 0
    request = m.DeleteGroupsRequest(["nobody's"])
    (result,) = wire.call(ApiKey.DELETE_GROUPS, version, request).results
    assert result.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert (result.error_message is not None) == (version >= 3)


@pytest.mark.parametrize("version", range(1, 6))
def test_no_folder_is_cordoned_off(wire: Wire, version: int) -> None:
    answer = wire.call(ApiKey.DESCRIBE_LOG_DIRS, version, m.DescribeLogDirsRequest())
    assert [each.is_cordoned for each in answer.results] == [False]
