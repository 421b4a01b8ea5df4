"""Elections, reassignments and the replicas of partitions, as clients ask for them."""

from __future__ import annotations

from typing import Any

import pytest

from kraftpy.protocol import messages as m
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.server.cluster.operations import NOT_ASKED, TOPIC_OPERATIONS
from tests.unit.server.admin_broker import FakeBroker, create, new_topic, versions


@pytest.fixture
def broker() -> FakeBroker:
    """Three brokers; t-0 to t-2 have replicas on 1 and 2, on 2 and 3, on 3 and 1, in this order."""
    broker = FakeBroker(brokers=3)
    response = broker.ask(create(new_topic("t", assignments={0: [1, 2], 1: [2, 3], 2: [3, 1]})))
    assert response.topics[0].error_code == ErrorCode.NONE
    return broker


def leaders(broker: FakeBroker) -> list[int]:
    return [state.leader for state in broker.metadata.topics["t"].partitions.values()]


# -- ElectLeaders


def elect(
    *partitions: tuple[str, list[int]], election_type: int = 0, everything: bool = False
) -> m.ElectLeadersRequest:
    named = [m.ElectLeadersRequest.TopicPartitions(*each) for each in partitions]
    return m.ElectLeadersRequest(election_type, None if everything else named, 5000)


def elected(response: m.ElectLeadersResponse) -> dict[tuple[str, int], ErrorCode]:
    return {
        (topic.topic, each.partition_id): ErrorCode(each.error_code)
        for topic in response.replica_election_results
        for each in topic.partition_result
    }


@pytest.mark.parametrize("version", versions(ApiKey.ELECT_LEADERS))
def test_preferred_leaders_are_elected_in_every_version(broker: FakeBroker, version: int) -> None:
    broker.fence(1)
    broker.unfence(1)
    broker.expand_isr("t", 0, 1)
    assert leaders(broker) == [2, 2, 3]
    answers = elected(broker.ask(elect(("t", [0, 1, 7]), ("x", [0])), version))
    assert answers == {
        ("t", 0): ErrorCode.NONE,
        ("t", 1): ErrorCode.ELECTION_NOT_NEEDED,
        ("t", 7): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("x", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert leaders(broker) == [1, 2, 3]
    assert broker.controller.timeouts_ms[-1] == 5000


@pytest.mark.parametrize("version", versions(ApiKey.ELECT_LEADERS))
def test_without_names_only_needed_elections_are_answered(broker: FakeBroker, version: int) -> None:
    assert elected(broker.ask(elect(everything=True), version)) == {}
    broker.fence(1)
    answers = elected(broker.ask(elect(everything=True), version))
    assert answers == {("t", 0): ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE}


def test_an_unclean_election_takes_whoever_is_there(broker: FakeBroker) -> None:
    broker.fence(1)
    broker.unfence(1)  # back, but no longer in sync
    broker.fence(2)
    broker.fence(3)
    assert leaders(broker)[0] == -1
    assert elected(broker.ask(elect(("t", [0]), election_type=1))) == {("t", 0): ErrorCode.NONE}
    assert leaders(broker)[0] == 1
    again = elected(broker.ask(elect(("t", [0, 1]), election_type=1)))
    assert again == {
        ("t", 0): ErrorCode.ELECTION_NOT_NEEDED,
        ("t", 1): ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
    }


def test_an_election_of_an_unknown_type_is_refused(broker: FakeBroker) -> None:
    answer = broker.ask(elect(("t", [0]), election_type=2))
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    (partition,) = answer.replica_election_results[0].partition_result
    assert partition.error_code == ErrorCode.INVALID_REQUEST
    assert "there is no election type 2" in partition.error_message


def test_a_partition_that_is_named_twice_is_left_alone(broker: FakeBroker) -> None:
    broker.fence(1)
    broker.unfence(1)
    broker.expand_isr("t", 0, 1)
    answers = elected(broker.ask(elect(("t", [0]), ("t", [0, 1]), ("n" * 40_000, [0]))))
    assert answers == {
        ("t", 0): ErrorCode.INVALID_REQUEST,
        ("n" * 40_000, 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("t", 1): ErrorCode.ELECTION_NOT_NEEDED,
    }
    assert leaders(broker)[0] == 2


def test_no_controller_is_an_error_of_the_election(broker: FakeBroker) -> None:
    broker.controller.failure = KafkaError(ErrorCode.NOT_CONTROLLER, "no controller")
    for version in versions(ApiKey.ELECT_LEADERS):
        answer = broker.ask(elect(("t", [0, 1])), version)
        # Version 0 has no place for an error but the partitions'.
        assert answer.error_code == (ErrorCode.NOT_CONTROLLER if version else ErrorCode.NONE)
        refused = dict.fromkeys((("t", 0), ("t", 1)), ErrorCode.NOT_CONTROLLER)
        assert elected(answer) == refused
    answer = broker.ask(elect(everything=True))
    assert (answer.error_code, elected(answer)) == (ErrorCode.NOT_CONTROLLER, {})


# -- AlterPartitionReassignments and ListPartitionReassignments


def reassign(
    *targets: tuple[str, int, list[int] | None], **options: Any
) -> m.AlterPartitionReassignmentsRequest:
    kinds = m.AlterPartitionReassignmentsRequest
    return kinds(
        timeout_ms=5000,
        topics=[
            kinds.ReassignableTopic(topic, [kinds.ReassignablePartition(index, replicas)])
            for topic, index, replicas in targets
        ],
        **options,
    )


def reassigned(
    response: m.AlterPartitionReassignmentsResponse,
) -> dict[tuple[str, int], ErrorCode]:
    return {
        (topic.name, each.partition_index): ErrorCode(each.error_code)
        for topic in response.responses
        for each in topic.partitions
    }


def under_way(
    broker: FakeBroker, *topics: tuple[str, list[int]], everything: bool = False
) -> dict[tuple[str, int], tuple[list[int], list[int], list[int]]]:
    kinds = m.ListPartitionReassignmentsRequest
    named = [kinds.ListPartitionReassignmentsTopics(*each) for each in topics]
    response = broker.ask(kinds(topics=None if everything else named))
    assert response.error_code == ErrorCode.NONE
    return {
        (topic.name, each.partition_index): (
            each.replicas,
            each.adding_replicas,
            each.removing_replicas,
        )
        for topic in response.topics
        for each in topic.partitions
    }


@pytest.mark.parametrize("version", versions(ApiKey.ALTER_PARTITION_REASSIGNMENTS))
def test_a_reassignment_from_its_start_to_its_end(broker: FakeBroker, version: int) -> None:
    response = broker.ask(reassign(("t", 0, [3, 2]), ("t", 1, [2, 3]), ("x", 0, [1])), version)
    assert response.error_code == ErrorCode.NONE
    assert reassigned(response) == {
        ("t", 0): ErrorCode.NONE,
        ("t", 1): ErrorCode.NONE,
        ("x", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    moving = {("t", 0): ([3, 2, 1], [3], [1])}
    assert under_way(broker, everything=True) == moving
    assert under_way(broker, ("t", [0, 1, 9]), ("x", [0])) == moving
    assert under_way(broker, ("t", [1])) == {}
    broker.expand_isr("t", 0, 3)
    assert under_way(broker, everything=True) == {}
    assert broker.metadata.topics["t"].partitions[0].replicas == (3, 2)


@pytest.mark.parametrize("version", versions(ApiKey.ALTER_PARTITION_REASSIGNMENTS))
def test_a_reassignment_is_cancelled(broker: FakeBroker, version: int) -> None:
    broker.ask(reassign(("t", 0, [3, 2])))
    answers = reassigned(broker.ask(reassign(("t", 0, None), ("t", 1, None)), version))
    assert answers == {
        ("t", 0): ErrorCode.NONE,
        ("t", 1): ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
    }
    assert under_way(broker, everything=True) == {}
    assert sorted(broker.metadata.topics["t"].partitions[0].replicas) == [1, 2]


@pytest.mark.parametrize("replicas", [[], [1, 1], [1, 4], [-1], [2**31 - 1]])
def test_replicas_that_cant_be(broker: FakeBroker, replicas: list[int]) -> None:
    answers = reassigned(broker.ask(reassign(("t", 0, replicas), ("t", 1, [1]))))
    assert answers == {("t", 0): ErrorCode.INVALID_REPLICA_ASSIGNMENT, ("t", 1): ErrorCode.NONE}


def test_the_replication_factor_changes_only_if_it_may(broker: FakeBroker) -> None:
    request = reassign(("t", 0, [1, 2, 3]), ("t", 1, [3, 2]), allow_replication_factor_change=False)
    response = broker.ask(request)
    assert not response.allow_replication_factor_change
    assert reassigned(response) == {
        ("t", 0): ErrorCode.INVALID_REPLICATION_FACTOR,
        ("t", 1): ErrorCode.NONE,
    }
    assert reassigned(broker.ask(reassign(("t", 0, [1, 2, 3])))) == {("t", 0): ErrorCode.NONE}


def test_a_partition_is_reassigned_once_in_a_request(broker: FakeBroker) -> None:
    answers = reassigned(broker.ask(reassign(("t", 0, [3]), ("t", 0, [2]))))
    assert answers == {("t", 0): ErrorCode.INVALID_REQUEST}
    assert under_way(broker, everything=True) == {}


def test_no_controller_is_an_error_of_the_reassignment(broker: FakeBroker) -> None:
    broker.controller.failure = KafkaError(ErrorCode.REQUEST_TIMED_OUT, "no answer")
    answer = broker.ask(reassign(("t", 0, [3])))
    assert (answer.error_code, answer.error_message) == (ErrorCode.REQUEST_TIMED_OUT, "no answer")
    (partition,) = answer.responses[0].partitions
    assert partition.error_code == ErrorCode.REQUEST_TIMED_OUT


# -- DescribeTopicPartitions


def pages(
    broker: FakeBroker, *names: str, limit: int = 2000
) -> list[list[tuple[str, list[int], int]]]:
    """(name, partitions, error) of the topics of each page, up to the last page."""
    kinds = m.DescribeTopicPartitionsRequest
    request = kinds([kinds.TopicRequest(name) for name in names], limit)
    found = []
    while True:
        response = broker.ask(request)
        found.append(
            [
                (topic.name, [each.partition_index for each in topic.partitions], topic.error_code)
                for topic in response.topics
            ]
        )
        if response.next_cursor is None:
            return found
        cursor = response.next_cursor
        request.cursor = kinds.Cursor(cursor.topic_name, cursor.partition_index)


def test_a_partition_with_its_eligible_leaders(broker: FakeBroker) -> None:
    broker.ask(
        create(new_topic("u", assignments={0: [1, 2]}, configs={"min.insync.replicas": "2"}))
    )
    broker.fence(2)
    broker.fence(1)
    kinds = m.DescribeTopicPartitionsRequest
    (topic,) = broker.ask(kinds([kinds.TopicRequest("u")])).topics
    assert (topic.error_code, topic.topic_id) == (0, broker.metadata.topics["u"].id)
    assert topic.topic_authorized_operations == TOPIC_OPERATIONS
    assert not topic.is_internal
    (partition,) = topic.partitions
    assert partition.error_code == ErrorCode.LEADER_NOT_AVAILABLE
    assert (partition.leader_id, partition.replica_nodes) == (-1, [1, 2])
    assert partition.leader_epoch == broker.metadata.topics["u"].partitions[0].leader_epoch > 0
    assert (partition.isr_nodes, sorted(partition.eligible_leader_replicas)) == ([], [1, 2])
    assert partition.last_known_elr == list(
        broker.metadata.topics["u"].partitions[0].last_known_elr
    )
    assert partition.offline_replicas == [1, 2]


def test_topics_come_page_by_page(broker: FakeBroker) -> None:
    broker.create("s", "u")
    whole = [("s", [0], 0), ("t", [0, 1, 2], 0), ("u", [0], 0)]
    assert pages(broker) == [whole]
    assert pages(broker, limit=-5) == pages(broker, limit=1)
    assert pages(broker, limit=1) == [
        [("s", [0], 0)],
        [("t", [0], 0)],
        [("t", [1], 0)],
        [("t", [2], 0)],
        [("u", [0], 0)],
    ]
    assert pages(broker, limit=2) == [
        [("s", [0], 0), ("t", [0], 0)],
        [("t", [1, 2], 0)],
        [("u", [0], 0)],
    ]
    assert pages(broker, limit=4) == [whole[:2], whole[2:]]


def test_topics_by_name_in_order_with_those_that_are_not_there(broker: FakeBroker) -> None:
    unknown, invalid = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION
    assert pages(broker, "x", "t", "a b", "t") == [
        [("a b", [], invalid), ("t", [0, 1, 2], 0), ("x", [], unknown)]
    ]
    kinds = m.DescribeTopicPartitionsRequest
    answer = broker.ask(kinds([kinds.TopicRequest("x")])).topics[0]
    assert answer.topic_authorized_operations == NOT_ASKED


def test_a_page_has_an_upper_limit(broker: FakeBroker) -> None:
    broker.create("big", partitions=2500)
    first, second = pages(broker, "big", limit=2**31 - 1)
    assert [len(first[0][1]), len(second[0][1])] == [2000, 500]


def test_a_cursor_behind_the_topics_that_are_left_is_no_error(broker: FakeBroker) -> None:
    kinds = m.DescribeTopicPartitionsRequest
    for cursor, expected in (
        (kinds.Cursor("t", 2), [("t", 1)]),
        (kinds.Cursor("t", 9), [("t", 0)]),
        (kinds.Cursor("zz", 0), []),
        (kinds.Cursor("a", 3), [("t", 3)]),
    ):
        response = broker.ask(kinds(cursor=cursor))
        assert response.next_cursor is None
        assert [(each.name, len(each.partitions)) for each in response.topics] == expected
    with pytest.raises(KafkaError, match="the cursor's partition is 0 or more"):
        broker.ask(kinds(cursor=kinds.Cursor("t", -1)))


# -- CreateTopics and CreatePartitions with replicas by hand


def test_replicas_by_hand(broker: FakeBroker) -> None:
    new = new_topic("u", assignments={0: [3, 1], 1: [1, 2]})
    (created,) = broker.ask(create(new)).topics
    assert (created.num_partitions, created.replication_factor) == (2, 2)
    kinds = m.CreatePartitionsRequest

    def grow(*replicas: list[int]) -> m.CreatePartitionsResponse.CreatePartitionsTopicResult:
        assignments = [kinds.CreatePartitionsAssignment(each) for each in replicas]
        topic = kinds.CreatePartitionsTopic("u", 2 + len(replicas), assignments)
        (answer,) = broker.ask(kinds([topic], 5000)).results
        return answer

    assert grow([2, 3], [3, 2]).error_code == ErrorCode.NONE
    partitions = broker.metadata.topics["u"].partitions
    assert [each.replicas for each in partitions.values()] == [(3, 1), (1, 2), (2, 3), (3, 2)]
    assert [each.leader for each in partitions.values()] == [3, 1, 2, 3]


@pytest.mark.parametrize(
    ("replicas", "problem"),
    [
        ([1, 2, 3], "3 replicas where others have 2"),
        ([1, 1], "the same broker twice"),
        ([1, 9], "broker 9, which is not registered"),
        ([], "no replicas"),
    ],
)
def test_replicas_by_hand_that_cant_be(
    broker: FakeBroker, replicas: list[int], problem: str
) -> None:
    topic = new_topic("u", assignments={0: [1, 2], 1: replicas})
    (answer,) = broker.ask(create(topic)).topics
    assert answer.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert problem in answer.error_message
