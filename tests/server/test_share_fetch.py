"""ShareFetch and ShareAcknowledge over the wire: leases, sessions, what goes wrong (KIP-932)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Producer

from kraftpy.protocol import messages
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode as E
from kraftpy.protocol.records import build_batch
from kraftpy.testing import Broker
from tests.server.shares import (
    ACCEPT,
    GAP,
    REJECT,
    RELEASE,
    RENEW,
    Group,
    Member,
    begin,
    values,
)
from tests.server.test_metrics import scrape
from tests.server.test_offsets import delete_before
from tests.server.wire import Wire, produce
from tests.waiting import wait_until

LOCK_S = 1.0


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    settings = {
        "group_share_record_lock_duration_ms": int(LOCK_S * 1000),
        "group_share_min_record_lock_duration_ms": 1000,
        "share_coordinator_state_topic_num_partitions": 2,
        "log_segment_bytes": 1 << 20,
    }
    with Broker(**settings) as started:
        yield started


def configure(group: Group, key: str, value: str) -> None:
    kinds = messages.IncrementalAlterConfigsRequest
    config = kinds.AlterableConfig(key, 0, value)
    request = kinds([kinds.AlterConfigsResource(32, group.name, [config])])
    answer = group.wire.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, request)
    assert answer.responses[0].error_code == 0, answer.responses[0].error_message


def start_of(group: Group) -> int:
    """Where the group is, as is kept of it."""
    kinds = messages.ReadShareGroupStateSummaryRequest
    topic, index = group.partition
    data = kinds.ReadStateSummaryData(topic, [kinds.PartitionData(index, -1)])
    answer = group.wire.call(ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, 1, kinds(group.name, [data]))
    return int(answer.results[0].partitions[0].start_offset)


@pytest.fixture
def group(wire: Wire, new_topic: Callable[..., str]) -> Group:
    return Group(wire, new_topic())


@pytest.mark.parametrize("version", [1, 2])
def test_records_are_leased_and_what_is_accepted_does_not_come_again(
    group: Group, version: int
) -> None:
    group.append("a", "b", "c")
    group.append("d")
    ann, ben = group.member(version=version), group.member("ben", version=version)
    got = ann.fetch(group.partition, wait_ms=5_000)[group.partition]
    assert (got.runs, got.values) == ([(0, 3, 1)], [b"a", b"b", b"c", b"d"])
    assert ann.lock_ms == 1000
    assert ben.fetch(group.partition) == {}
    said = {group.partition: [(0, 1, [ACCEPT]), (2, 3, [RELEASE, REJECT])]}
    assert ann.acknowledge(said) == {group.partition: 0}
    got = ben.fetch(wait_ms=5_000)[group.partition]
    assert (got.runs, got.values) == ([(2, 2, 2)], [b"c"])
    got = ben.fetch(say={group.partition: [(2, 2, [ACCEPT])]})[group.partition]
    assert (got.runs, got.acknowledge_error) == ([], 0)
    assert ann.fetch() == {}


def test_trap_12_a_woken_fetch_judges_acknowledgements_once(broker: Broker, group: Group) -> None:
    """Judged again when it's woken, the same words would be wrong."""
    group.append("a", "b")
    ann = group.member()
    ann.fetch(group.partition, wait_ms=5_000)
    with Wire(broker.host, broker.port) as other:
        began_s = time.monotonic()
        ann.send_fetch(say={group.partition: [(0, 1, [ACCEPT])]}, wait_ms=10_000)
        produce(other, group.topic, values("c"))
        got = ann.receive_fetch()[group.partition]
    assert (got.runs, got.acknowledge_error) == ([(2, 2, 1)], 0)
    assert time.monotonic() - began_s < 5


def test_what_is_released_wakes_another_member(broker: Broker, group: Group) -> None:
    group.append("a", "b")
    with Wire(broker.host, broker.port) as other:
        ann, ben = group.member(wire=other), group.member("ben")
        ann.fetch(group.partition, wait_ms=5_000)
        ben.send_fetch(group.partition, wait_ms=10_000)
        assert ann.acknowledge({group.partition: [(1, 1, [RELEASE])]}) == {group.partition: 0}
        assert ben.receive_fetch()[group.partition].runs == [(1, 1, 2)]
        # So does whoever leaves. (Trap 10)
        ben.send_fetch(wait_ms=10_000)
    assert ben.receive_fetch()[group.partition].runs == [(0, 0, 2)]


def test_records_that_are_deleted_make_room_for_who_waits(broker: Broker, group: Group) -> None:
    """Nothing is appended meanwhile: the log's start alone wakes the fetch."""
    configure(group, "share.partition.max.record.locks", "100")
    configure(group, "share.record.lock.duration.ms", "60000")
    for number in range(120):
        group.append(str(number))
    with Wire(broker.host, broker.port) as other:
        ann, ben = group.member(wire=other), group.member("ben")
        assert ann.fetch(group.partition, wait_ms=5_000)[group.partition].runs == [(0, 99, 1)]
        ben.send_fetch(group.partition, wait_ms=20_000)
        began_s = time.monotonic()
        assert delete_before(other, group.topic, 10).low_watermark == 10
        assert ben.receive_fetch()[group.partition].runs == [(100, 109, 1)]
    assert time.monotonic() - began_s < 10


def test_metrics_tell_of_leases_and_of_how_far_groups_are(broker: Broker, group: Group) -> None:
    """They are sums over all groups: what this one adds."""
    group.append(*map(str, range(10)))
    configure(group, "share.delivery.count.limit", "2")
    before = scrape(broker.config)
    ann = group.member()
    assert ann.fetch(group.partition, wait_ms=5_000)[group.partition].runs == [(0, 9, 1)]
    said = {group.partition: [(0, 3, [ACCEPT, RELEASE, REJECT, RELEASE])]}
    assert ann.acknowledge(said) == {group.partition: 0}
    assert ann.fetch(wait_ms=5_000)[group.partition].runs == [(1, 1, 2), (3, 3, 2)]
    assert ann.acknowledge({group.partition: [(1, 1, [RELEASE])]}) == {group.partition: 0}
    after = scrape(broker.config)
    more = {key: after[key] - before.get(key, 0) for key in after}
    assert more["kraftpy_leases_acquired_total",] == 12
    assert more["kraftpy_leases_released_total", "released"] == 3
    assert more["kraftpy_leases_archived_total", "rejected"] == 1
    assert more["kraftpy_leases_archived_total", "delivery_limit"] == 1
    assert more["kraftpy_share_state_write_seconds_count",] >= 2
    assert more["kraftpy_share_sessions",] == 1
    assert (more["kraftpy_leases", "acquired"], more["kraftpy_leases", "available"]) == (7, 0)
    assert after["kraftpy_share_partitions_full",] == 0
    key = group.name, group.topic
    assert after["kraftpy_share_group_lag_records", *key] == 7
    assert after["kraftpy_share_group_finished_offset_sum", *key] == 3


def test_what_is_not_answered_in_time_goes_to_others(group: Group) -> None:
    group.append("a", "b")
    ann, ben = group.member(), group.member("ben")
    ann.fetch(group.partition, wait_ms=5_000)
    began_s = time.monotonic()
    assert ben.fetch(group.partition, wait_ms=10_000)[group.partition].runs == [(0, 1, 2)]
    assert LOCK_S / 2 < time.monotonic() - began_s < LOCK_S + 5
    said = {group.partition: [(0, 1, [ACCEPT])]}
    assert ann.acknowledge(said) == {group.partition: E.INVALID_RECORD_STATE}


def test_a_lease_is_renewed_by_who_says_so(group: Group) -> None:
    group.append("a", "b")
    ann, ben = group.member(), group.member("ben")
    ann.fetch(group.partition, wait_ms=5_000)
    said = {group.partition: [(0, 1, [RENEW])]}
    assert ann.acknowledge(said) == {group.partition: E.INVALID_REQUEST}
    ends_s = time.monotonic() + 2 * LOCK_S
    while time.monotonic() < ends_s:
        assert ann.acknowledge(said, renew=True) == {group.partition: 0}
        assert ben.fetch(*([group.partition] if not ben.epoch else []), wait_ms=200) == {}


def test_sessions_count_their_requests(group: Group) -> None:
    group.append("a", "b")
    ann = group.member()
    said = {group.partition: [(0, 1, [ACCEPT])]}
    ann.acknowledge(said, error=E.INVALID_SHARE_SESSION_EPOCH)
    ann.fetch(group.partition, say=said, error=E.INVALID_REQUEST)
    for epoch in (1, -1):
        ann.epoch = epoch
        ann.fetch(group.partition, error=E.SHARE_SESSION_NOT_FOUND)
        ann.acknowledge(said, error=E.SHARE_SESSION_NOT_FOUND)
    ann.epoch = 0
    ann.fetch(group.partition, wait_ms=5_000)
    ann.epoch = 2
    ann.fetch(error=E.INVALID_SHARE_SESSION_EPOCH)
    ann.acknowledge(said, error=E.INVALID_SHARE_SESSION_EPOCH)
    # What a session leased stays with its member if it begins another one.
    ann.epoch = 0
    assert ann.fetch(group.partition) == {}
    assert ann.acknowledge(said) == {group.partition: 0}
    assert ann.fetch() == {}


@pytest.mark.parametrize("by_fetch", [True, False])
def test_what_ends_a_session_gives_back_what_it_does_not_accept(
    group: Group, by_fetch: bool
) -> None:
    group.append("a", "b", "c")
    ann, ben = group.member(), group.member("ben")
    ann.fetch(group.partition, wait_ms=5_000)
    ann.epoch = -1
    said = {group.partition: [(1, 1, [ACCEPT])]}
    if by_fetch:
        got = ann.fetch(say=said, wait_ms=5_000)
        assert (got[group.partition].runs, got[group.partition].acknowledge_error) == ([], 0)
    else:
        assert ann.acknowledge(said) == {group.partition: 0}
    got = ben.fetch(group.partition, wait_ms=5_000)
    assert got[group.partition].runs == [(0, 0, 2), (2, 2, 2)]
    ann.epoch = 1
    ann.fetch(error=E.SHARE_SESSION_NOT_FOUND)


def test_trap_11_an_acknowledgement_adds_its_partition_until_it_is_forgotten(
    wire: Wire, new_topic: Callable[..., str]
) -> None:
    group = Group(wire, new_topic(2), 2)
    one, two = group.partitions
    group.append("a", "b")
    group.append("c", partition=1)
    ann = group.member()
    assert set(ann.fetch(one, wait_ms=5_000)) == {one}
    ann.fetch(forget=[one])
    group.append("d")
    assert ann.fetch(two, wait_ms=5_000)[two].runs == [(0, 0, 1)]
    got = ann.fetch(say={one: [(0, 0, [ACCEPT])]}, wait_ms=5_000)
    assert (got[one].runs, got[one].acknowledge_error) == ([(2, 2, 1)], 0)
    group.append("e")
    got = ann.fetch(say={one: [(1, 2, [ACCEPT])]}, forget=[one])
    assert (got[one].runs, got[one].acknowledge_error) == ([], 0)
    assert ann.fetch(wait_ms=100) == {}


def test_trap_4_a_group_begins_in_the_middle_of_a_batch(wire: Wire, group: Group) -> None:
    """The batch is sent as a whole, and only what is behind the start is leased."""
    group.append("a", "b", "c", "d")
    group.name += "-again"
    begin(wire, group.name, group.partition, start=2)
    ann = group.member()
    got = ann.fetch(group.partition, wait_ms=5_000)[group.partition]
    assert (got.runs, got.values) == ([(2, 3, 1)], [b"c", b"d"])
    assert ann.acknowledge({group.partition: [(0, 2, [ACCEPT])]}) == {group.partition: 0}


@pytest.mark.parametrize(
    ("reset", "first"), [("earliest", 0), ("latest", 3), ("by_duration:PT1H", 2)]
)
def test_a_group_that_is_new_begins_where_its_configuration_says(
    wire: Wire, group: Group, reset: str, first: int
) -> None:
    group.append("a", "b")  # of 1970
    now = build_batch([(int(time.time() * 1000), None, b"c", [])])
    assert produce(wire, group.topic, now).error_code == 0
    group.name += "-new"
    configure(group, "share.auto.offset.reset", reset)
    begin(wire, group.name, group.partition, start=-1)
    ann = group.member()
    if reset == "latest":
        ann.fetch(group.partition, wait_ms=100)
        wait_until(lambda: start_of(group) == first, "the group begins at the end")
        group.append("d")
    added = [] if ann.epoch else [group.partition]
    assert ann.fetch(*added, wait_ms=5_000)[group.partition].runs[0][0] == first


def test_as_many_records_as_are_wanted(group: Group) -> None:
    group.append("a", "b", "c")
    group.append("d", "e", "f")
    ann = group.member()
    got = ann.fetch(group.partition, most=1, wait_ms=5_000, mode=1)
    assert got[group.partition].runs == [(0, 0, 1)]
    # Mode 0 takes the batch, or what is left of it, as a whole; what is told is cut.
    assert ann.fetch(most=1, batch_size=1)[group.partition].runs == [(1, 1, 1), (2, 2, 1)]
    assert ann.fetch(most=0) == {}
    assert ann.fetch(most=4)[group.partition].runs == [(3, 5, 1)]
    assert ann.fetch(most=4) == {}


def test_a_fetch_waits_for_as_many_bytes_as_are_wanted(broker: Broker, group: Group) -> None:
    group.append("a")
    with Wire(broker.host, broker.port) as other:
        ann = group.member()
        ann.fetch(group.partition, most=0)
        ann.send_fetch(min_bytes=4_000, wait_ms=10_000)
        assert produce(other, group.topic, values("x" * 5_000)).error_code == 0
        assert ann.receive_fetch()[group.partition].runs == [(0, 1, 1)]
        produce(other, group.topic, values("b"))
        began_s = time.monotonic()
        assert ann.fetch(min_bytes=4_000, wait_ms=300)[group.partition].runs == [(2, 2, 1)]
        assert time.monotonic() - began_s >= 0.29  # timers may be a moment early


@pytest.mark.parametrize(
    ("first", "last", "types", "error"),
    [
        (0, 1, [ACCEPT, 5], E.INVALID_REQUEST),
        (0, 1, [-1], E.INVALID_REQUEST),
        (0, 1, [], E.INVALID_REQUEST),
        (0, 2, [ACCEPT, ACCEPT], E.INVALID_REQUEST),
        (1, 0, [ACCEPT], E.INVALID_REQUEST),
        (0, 2, [ACCEPT], E.INVALID_REQUEST),
        (2**62, 2**62, [ACCEPT], E.INVALID_REQUEST),
    ],
)
def test_acknowledgements_that_make_no_sense_are_refused(
    group: Group, first: int, last: int, types: list[int], error: int
) -> None:
    group.append("a", "b")
    ann, ben = group.member(), group.member("ben")
    ann.fetch(group.partition, wait_ms=5_000)
    said = {group.partition: [(first, last, types)]}
    assert ann.acknowledge(said) == {group.partition: error}
    ben.fetch(group.partition)
    accepted = {group.partition: [(0, 1, [ACCEPT])]}
    assert ben.acknowledge(accepted) == {group.partition: E.INVALID_RECORD_STATE}
    assert ann.acknowledge(accepted) == {group.partition: 0}


def test_what_is_not_there_is_done(group: Group) -> None:
    group.append("a", "b")
    ann = group.member()
    ann.fetch(group.partition, wait_ms=5_000)
    said = {group.partition: [(0, 1, [GAP, ACCEPT])]}
    assert ann.acknowledge(said) == {group.partition: 0}
    group.append("c")
    assert ann.fetch(wait_ms=5_000)[group.partition].runs == [(2, 2, 1)]


def test_who_is_nobody_is_refused(group: Group) -> None:
    for name in ("", "x" * 37):
        group.member(name).fetch(group.partition, error=E.INVALID_REQUEST)
    nobody = Member(group.wire, "")
    nobody.fetch(group.partition, error=E.INVALID_REQUEST)
    ann = group.member()
    unknown = (b"an id of nobody's"[:16], 0)
    missing = (group.partition[0], 7)
    got = ann.fetch(group.partition, unknown, missing, wait_ms=5_000)
    assert got[unknown].error == E.UNKNOWN_TOPIC_ID
    assert got[missing].error == E.UNKNOWN_TOPIC_OR_PARTITION
    assert group.partition not in got
    said = {unknown: [(0, 0, [ACCEPT])], missing: [(0, 0, [ACCEPT])]}
    assert ann.acknowledge(said) == {
        unknown: E.UNKNOWN_TOPIC_ID,
        missing: E.UNKNOWN_TOPIC_OR_PARTITION,
    }


def test_trap_14_the_topic_is_deleted(broker: Broker, group: Group) -> None:
    group.append("a")
    ann = group.member()
    ann.fetch(group.partition, wait_ms=5_000)
    with Wire(broker.host, broker.port) as other:
        ann.send_fetch(wait_ms=20_000)
        kinds = messages.DeleteTopicsRequest
        request = kinds([kinds.DeleteTopicState(group.topic)], timeout_ms=10_000)
        answer = other.call(ApiKey.DELETE_TOPICS, 6, request)
        assert answer.responses[0].error_code == 0
        assert ann.receive_fetch()[group.partition].error == E.UNKNOWN_TOPIC_ID


def test_trap_6_the_log_start_passes_what_is_leased(group: Group) -> None:
    group.append("a", "b", "c")
    ann = group.member()
    ann.fetch(group.partition, most=2, mode=1, wait_ms=5_000)
    kinds = messages.DeleteRecordsRequest
    topic = kinds.DeleteRecordsTopic(group.topic, [kinds.DeleteRecordsPartition(0, 2)])
    answer = group.wire.call(ApiKey.DELETE_RECORDS, 2, kinds([topic], 10_000))
    assert answer.topics[0].partitions[0].error_code == 0
    assert ann.fetch()[group.partition].runs == [(2, 2, 1)]
    assert ann.acknowledge({group.partition: [(0, 1, [ACCEPT])]}) == {group.partition: 0}


def test_trap_7_a_group_that_reads_what_is_committed(broker: Broker, group: Group) -> None:
    configure(group, "share.isolation.level", "read_committed")
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": group.name})
    producer.init_transactions(20)
    ann = group.member()
    ann.fetch(group.partition)
    for ends in (producer.abort_transaction, producer.commit_transaction):
        producer.begin_transaction()
        producer.produce(group.topic, b"x", partition=0)
        producer.flush(20)
        assert ann.fetch(wait_ms=50) == {}
        ends(20)
    got = ann.fetch(wait_ms=10_000)[group.partition]
    assert (got.runs, got.values) == ([(2, 2, 1)], [b"x"])
    group.append("y")
    assert ann.acknowledge({group.partition: [(2, 2, [ACCEPT])]}) == {group.partition: 0}
    assert ann.fetch(wait_ms=10_000)[group.partition].runs == [(4, 4, 1)]
