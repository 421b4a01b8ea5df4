"""Requests of brokers to a share coordinator: what they are answered, and what is in its log."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kraftpy.core.coordination import partition_for
from kraftpy.core.leases.state import BATCHES_MAX
from kraftpy.core.leases.state_records import ShareKey, decode_record
from kraftpy.protocol import messages as m
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode as E
from kraftpy.protocol.records import batch_data, read_records, split_batches
from kraftpy.server.coordination.share_state_calls import KINDS
from kraftpy.testing import Broker
from tests.server.share_state import Share, request_of, topic_id_of
from tests.server.wire import Wire

STATE_TOPIC = "__share_group_state"
PARTITIONS = 50
ACKNOWLEDGED = 2


@pytest.fixture
def new_share(wire: Wire, new_topic: Callable[..., str]) -> Callable[[], Share]:
    """A group's partition of a topic of its own, whose coordinator has been looked for."""

    def make() -> Share:
        share = Share(wire, topic_id_of(wire, new_topic()))
        assert share.find().error_code == E.NONE
        return share

    return make


def keys_in_log(broker: Broker, share: Share) -> list[ShareKey]:
    """Of whom the records are in its partition of the state topic."""
    index = partition_for(share.key, PARTITIONS)
    (log,) = (broker.log_dir / f"{STATE_TOPIC}-{index}").glob("*.log")
    data = log.read_bytes()
    found = []
    for position, header in split_batches(data):
        records = read_records(header, batch_data(header, data, position))
        decoded = (decode_record(each.key, each.value) for each in records)
        found += [each.key for each in decoded if each is not None]
    return found


def test_what_is_written_is_read(new_share: Callable[[], Share]) -> None:
    share = new_share()
    assert share.summary() == (0, 0, -1, -1)
    assert share.initialize() is E.NONE
    assert share.read(leader_epoch=4) == (E.NONE, 0, -1, [])
    written = (5, 9, ACKNOWLEDGED, 1), (10, 10, 0, 3)
    assert share.write(*written, leader_epoch=4, start=3, finished=5) is E.NONE
    assert share.read(leader_epoch=5) == (E.NONE, 0, 3, list(written))
    assert share.summary() == (0, 5, 3, 5)
    assert share.summary(version=0) == (0, 5, 3, -1)
    assert share.delete() is E.NONE
    assert share.summary() == (0, 0, -1, -1)


def test_the_first_version_of_a_write_has_no_count(new_share: Callable[[], Share]) -> None:
    share = new_share()
    assert share.initialize(start=7) is E.NONE
    assert share.write((7, 8, 4, 5), start=7, version=0) is E.NONE
    assert share.summary() == (0, 0, 7, -1)


def test_nothing_is_written_or_read_before_it_is_initialized(
    new_share: Callable[[], Share],
) -> None:
    share = new_share()
    assert share.write((0, 0, ACKNOWLEDGED, 1)) is E.INVALID_REQUEST
    assert share.read()[0] is E.INVALID_REQUEST
    assert share.delete() is E.NONE


def test_trap_8_late_writes_of_old_leaders_and_old_epochs_are_fenced(
    new_share: Callable[[], Share],
) -> None:
    share = new_share()
    assert share.initialize() is E.NONE
    assert share.read(leader_epoch=3)[0] is E.NONE
    assert share.write((0, 0, ACKNOWLEDGED, 1), leader_epoch=2) is E.FENCED_LEADER_EPOCH
    assert share.read(leader_epoch=2)[0] is E.FENCED_LEADER_EPOCH
    assert share.initialize(state_epoch=1, start=50) is E.NONE  # offsets have been altered
    assert share.write((0, 0, ACKNOWLEDGED, 1), leader_epoch=3) is E.FENCED_STATE_EPOCH
    assert share.initialize(state_epoch=0) is E.FENCED_STATE_EPOCH
    assert share.read(leader_epoch=3) == (E.NONE, 1, 50, [])


def test_a_partition_that_is_not_there_has_no_state(new_share: Callable[[], Share]) -> None:
    share = new_share()
    for topic_id, index in ((share.topic_id, 1), (share.topic_id, -1), (bytes(range(16)), 0)):
        other = Share(share.wire, topic_id, index)
        assert other.initialize() is E.UNKNOWN_TOPIC_OR_PARTITION
        assert other.write() is E.UNKNOWN_TOPIC_OR_PARTITION
        assert other.read()[0] is E.UNKNOWN_TOPIC_OR_PARTITION
        assert other.delete() is E.NONE


def test_what_no_leader_writes_is_refused(new_share: Callable[[], Share]) -> None:
    share = new_share()
    assert share.initialize() is E.NONE
    for bad in ((3, 2, 2, 1), (-1, 2, 2, 1), (0, 0, 1, 1), (0, 0, 2, -1)):
        assert share.write(bad) is E.INVALID_REQUEST
    many = [(offset, offset, 2, 1) for offset in range(BATCHES_MAX + 1)]
    assert share.write(*many) is E.INVALID_REQUEST
    assert share.write(*many[1:], start=1, finished=BATCHES_MAX) is E.NONE
    assert share.read() == (E.NONE, 0, 1, [(1, BATCHES_MAX, 2, 1)])


def test_a_group_needs_a_name_that_fits_into_a_record(new_share: Callable[[], Share]) -> None:
    share = new_share()
    for name in ("", "x" * 32_001):
        assert Share(share.wire, share.topic_id, group=name).initialize() is E.INVALID_REQUEST
    longest = Share(share.wire, share.topic_id, group="x" * 32_000)
    assert longest.initialize() is E.NONE
    assert longest.summary() == (0, -1, -1, -1)


def test_one_request_may_be_about_many_partitions(
    broker: Broker, wire: Wire, new_topic: Callable[..., str]
) -> None:
    topic_id = topic_id_of(wire, new_topic(partitions=300))
    key = ApiKey.INITIALIZE_SHARE_GROUP_STATE
    shares = [Share(wire, topic_id, index) for index in range(300)]
    request = request_of(key, "g", topic_id, *((index, 0, -1) for index in (*range(300), 0)))
    assert shares[0].find().error_code == E.NONE
    (topic,) = wire.call(key, 0, request).results
    said = [(each.partition, each.error_code) for each in topic.partitions]
    assert said == [(index, E.NONE) for index in range(300)]  # that is named twice is answered once
    index = partition_for(shares[0].key, PARTITIONS)
    expected = [each.partition for each in shares if partition_for(each.key, PARTITIONS) == index]
    written = [each.partition for each in keys_in_log(broker, shares[0]) if each[1] == topic_id]
    assert written == expected


def test_the_coordinator_is_found_by_kafkas_key(broker: Broker, wire: Wire) -> None:
    def find(key: str, version: int = 6) -> E:
        request = m.FindCoordinatorRequest(key_type=2, coordinator_keys=[key])
        (found,) = wire.call(ApiKey.FIND_COORDINATOR, version, request).coordinators
        if found.error_code == E.NONE:
            assert (found.node_id, found.port) == (1, broker.port)
        return E(found.error_code)

    topic_id = "AAECAwQFBgcICQoLDA0ODw"
    assert find(f"g:{topic_id}:0") is E.NONE
    assert find(f"a:group:with:colons:{topic_id}:17") is E.NONE
    assert find(f"g:{topic_id}:0", version=5) is E.INVALID_REQUEST
    for wrong in ("", "g", "g:t:0", f":{topic_id}:0", f" :{topic_id}:0", f"g:{topic_id}:x"):
        assert find(wrong) is E.INVALID_REQUEST


def test_the_topic_is_kept_as_kafka_keeps_it(wire: Wire, new_share: Callable[[], Share]) -> None:
    new_share()
    request = m.DescribeConfigsRequest
    resource = request.DescribeConfigsResource(2, STATE_TOPIC, None)
    (result,) = wire.call(ApiKey.DESCRIBE_CONFIGS, 4, request([resource])).results
    own = {each.name: each.value for each in result.configs if each.config_source == 1}
    assert own == {
        "cleanup.policy": "delete",
        "compression.type": "producer",
        "min.insync.replicas": "1",
        "retention.bytes": "-1",
        "retention.ms": "-1",
        "segment.bytes": "104857600",
        "unclean.leader.election.enable": "false",
    }


def test_clients_are_told_of_the_apis_while_there_are_share_groups(wire: Wire) -> None:
    versions = wire.call(ApiKey.API_VERSIONS, 4, m.ApiVersionsRequest("test", "1"))
    assert KINDS.keys() <= {each.api_key for each in versions.api_keys}
    request = m.UpdateFeaturesRequest
    for level, kind in ((0, 2), (1, 1)):
        update = request.FeatureUpdateKey("share.version", level, upgrade_type=kind)
        assert wire.call(ApiKey.UPDATE_FEATURES, 1, request(10_000, [update])).error_code == E.NONE
        versions = wire.call(ApiKey.API_VERSIONS, 4, m.ApiVersionsRequest("test", "1"))
        told = KINDS.keys() & {each.api_key for each in versions.api_keys}
        assert bool(told) is bool(level)
        share = Share(wire, bytes(range(16)))
        assert share.find().error_code == (E.NONE if level else E.UNSUPPORTED_VERSION)
        assert share.delete() is E.NONE  # brokers may ask all the same
