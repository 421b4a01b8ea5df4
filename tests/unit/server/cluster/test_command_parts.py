"""A request that names many things becomes commands of bounded size, with the answers of one.

A command is applied in one go on the event loop of every broker.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from kraftpy.core.metadata import ResourceType, Result
from kraftpy.core.metadata.commands import Command, DeleteTopics, OldTopic
from kraftpy.protocol import messages as m
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.server.cluster.proposals import WEIGHT_MAX, batches, propose_items
from tests.unit.server.admin_broker import FakeBroker, create, new_topic

MANY = 2 * WEIGHT_MAX + 500


def changed(command: dict[str, Any]) -> int:
    """How many partitions, replicas or settings the command names."""
    total = 0
    for item in command.get("topics", command.get("resources", ())):
        partitions = item.get("partitions")
        if isinstance(partitions, list):
            total += sum(
                len(each["replicas"]) if isinstance(each, dict) else 1 for each in partitions
            )
        else:
            total += max(partitions or 1, len(item.get("ops", ())))
    return total


def sizes(broker: FakeBroker, since: int = 0) -> list[int]:
    return [changed(command) for command in broker.controller.commands[since:]]


def codes(answers: list[Any]) -> list[int]:
    return [each.error_code for each in answers]


@pytest.fixture
def broker() -> FakeBroker:
    """One that has the topic "big" of MANY partitions, with replicas on brokers 1 and 2."""
    made = FakeBroker(brokers=3)
    made.create("big", partitions=MANY, assignments={index: [1, 2] for index in range(MANY)})
    made.controller.commands.clear()
    return made


def test_topics_are_created_and_deleted_a_thousand_partitions_at_a_time() -> None:
    broker = FakeBroker(brokers=3)
    names = [f"t{number}" for number in range(MANY)]
    wanted = [new_topic("t", 4 * WEIGHT_MAX), *map(new_topic, names), new_topic("t.0", 0)]
    answers = broker.ask(create(*wanted)).topics
    assert [each.name for each in answers] == ["t", *names, "t.0"]
    assert codes(answers) == [0] * (MANY + 1) + [ErrorCode.INVALID_PARTITIONS]
    # A topic weighs something itself.
    assert sizes(broker) == [4 * WEIGHT_MAX, *[333] * 7, 170]
    assert {each.topic_id for each in answers[:-1]} == broker.metadata.topics_by_id.keys()
    # Those of several commands lie as evenly as those of one.
    firsts = [broker.metadata.topics[name].partitions[0].replicas[0] for name in names]
    assert {firsts.count(broker_id) for broker_id in (1, 2, 3)} <= {833, 834}
    deletion = m.DeleteTopicsRequest(
        [m.DeleteTopicsRequest.DeleteTopicState(name) for name in ["t", "u", *names]],
        timeout_ms=5_000,
    )
    answers = broker.ask(deletion).responses
    assert codes(answers) == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] + [0] * MANY
    deleted = [len(each["topics"]) for each in broker.controller.commands[9:]]
    assert deleted == [1, 48, *[47] * 52, 9]
    assert broker.metadata.topics == {}


def test_one_request_creates_no_more_partitions_than_one_command_may() -> None:
    broker = FakeBroker()
    wanted = [new_topic(f"t{number}", 1_000) for number in range(11)]
    answers = broker.ask(create(*wanted)).topics
    assert codes(answers) == [ErrorCode.POLICY_VIOLATION] * 11
    assert "this one asks for 11000" in answers[0].error_message
    names = [f"t{number}" for number in range(11)]
    broker.create(*names)
    kinds = m.CreatePartitionsRequest
    more = [kinds.CreatePartitionsTopic(name, 1_000, None) for name in names]
    answers = broker.ask(kinds(more, 5_000)).results
    assert codes(answers) == [ErrorCode.POLICY_VIOLATION] * 11
    broker.controller.commands.clear()
    answers = broker.ask(kinds(more[:10], 5_000)).results
    assert codes(answers) == [0] * 10
    assert len(broker.controller.commands) == 10
    assert broker.metadata.partition_count == 10_001


def test_settings_change_a_thousand_at_a_time(broker: FakeBroker) -> None:
    kinds = m.IncrementalAlterConfigsRequest
    resources = [
        kinds.AlterConfigsResource(
            ResourceType.GROUP,
            f"g{number}",
            [kinds.AlterableConfig("consumer.session.timeout.ms", 0, "50000")],
        )
        for number in range(MANY)
    ]
    # This decides again who leads each of the topic's partitions.
    unclean = kinds.AlterableConfig("unclean.leader.election.enable", 0, "true")
    resources.insert(1, kinds.AlterConfigsResource(ResourceType.TOPIC, "big", [unclean]))
    assert codes(broker.ask(kinds(resources)).responses) == [0] * (MANY + 1)
    assert sizes(broker) == [1, 1, WEIGHT_MAX, WEIGHT_MAX, 499]


def test_elections_of_a_thousand_partitions_at_a_time(broker: FakeBroker) -> None:
    kinds = m.ElectLeadersRequest
    names = [f"n{number}" for number in range(MANY)]
    wanted = [
        *(kinds.TopicPartitions(name, [0]) for name in names[:700]),
        kinds.TopicPartitions("big", list(range(MANY + 1))),
        *(kinds.TopicPartitions(name, [0]) for name in names[700:]),
    ]
    answer = broker.ask(kinds(0, wanted, 5_000))
    assert answer.error_code == 0
    found = {
        (topic.topic, each.partition_id): each.error_code
        for topic in answer.replica_election_results
        for each in topic.partition_result
    }
    assert found == {
        **{(name, 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION for name in names},
        **{("big", index): ErrorCode.ELECTION_NOT_NEEDED for index in range(MANY)},
        ("big", MANY): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert max(sizes(broker)) <= WEIGHT_MAX


def test_elections_of_all_that_need_one(broker: FakeBroker) -> None:
    broker.create("other")
    broker.fence(1)
    broker.unfence(1)
    for index in range(MANY):
        broker.expand_isr("big", index, 1)
    broker.controller.commands.clear()
    answer = broker.ask(m.ElectLeadersRequest(0, None, 5_000))
    (topic,) = answer.replica_election_results
    assert topic.topic == "big"
    assert sorted(each.partition_id for each in topic.partition_result) == list(range(MANY))
    assert codes(topic.partition_result) == [0] * MANY
    barrier, *elections = broker.controller.commands
    assert barrier == {"type": "barrier"}  # what others changed before is known then
    assert [changed(each) for each in elections] == [WEIGHT_MAX, WEIGHT_MAX, 500]
    assert {state.leader for state in broker.metadata.topics["big"].partitions.values()} == {1}


def test_reassignments_of_a_thousand_replicas_at_a_time(broker: FakeBroker) -> None:
    kinds = m.AlterPartitionReassignmentsRequest
    partitions = [kinds.ReassignablePartition(index, [2, 3]) for index in range(MANY)]
    partitions[7].replicas = [1, 9]
    request = kinds(5_000, topics=[kinds.ReassignableTopic("big", partitions)])
    answer = broker.ask(request)
    (topic,) = answer.responses
    assert [each.partition_index for each in topic.partitions] == list(range(MANY))
    expected = [0] * MANY
    expected[7] = ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert codes(topic.partitions) == expected
    assert sizes(broker) == [WEIGHT_MAX] * 5
    moving = broker.metadata.topics["big"].partitions
    assert [index for index, state in moving.items() if not state.adding] == [7]


def test_what_is_wrong_with_some_commands_stands_with_their_partitions(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    propose = broker.controller.propose

    async def once(command: Command, timeout_ms: int) -> tuple[int, Result]:
        if broker.controller.commands:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "no answer")
        return await propose(command, timeout_ms)

    monkeypatch.setattr(broker.controller, "propose", once)
    kinds = m.ElectLeadersRequest
    answer = broker.ask(kinds(0, [kinds.TopicPartitions("big", list(range(MANY)))], 5_000))
    assert answer.error_code == 0
    (topic,) = answer.replica_election_results
    assert codes(topic.partition_result) == [ErrorCode.ELECTION_NOT_NEEDED] * WEIGHT_MAX + [
        ErrorCode.REQUEST_TIMED_OUT
    ] * (MANY - WEIGHT_MAX)


# -- the batches


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ([], []),
        ([1], [1]),
        ([1] * WEIGHT_MAX, [WEIGHT_MAX]),
        ([1] * (WEIGHT_MAX + 1), [WEIGHT_MAX, 1]),
        ([1, 9 * WEIGHT_MAX, 1, 1], [1, 1, 2]),
        ([WEIGHT_MAX - 1, 2, WEIGHT_MAX], [1, 1, 1]),
    ],
)
def test_batches_weigh_so_much_together_or_are_alone(
    weights: list[int], expected: list[int]
) -> None:
    found = list(batches(enumerate(weights)))
    assert [len(batch) for batch in found] == expected
    assert list(itertools.chain(*found)) == list(range(len(weights)))


class Failing:
    """Takes commands until the one that fails; `took` has the items of each."""

    def __init__(self, at: int, failure: KafkaError | Result) -> None:
        self.took: list[int] = []
        self._at, self._failure = at, failure

    async def propose(self, command: Command, timeout_ms: int) -> tuple[int, Any]:
        assert isinstance(command, DeleteTopics)
        self.took.append(len(command.topics))
        if len(self.took) != self._at:
            answers = [{"error": 0, "message": None}] * len(command.topics)
            return len(self.took), Result(value={"topics": answers})
        if isinstance(self._failure, KafkaError):
            raise self._failure
        return -1, self._failure


def answered(controller: Failing, timeout_ms: int = 5_000) -> list[int]:
    topics = [OldTopic("t")] * MANY
    answers = asyncio.run(
        propose_items(controller, lambda some, _: DeleteTopics(some), topics, timeout_ms)
    )
    assert len(answers) == MANY
    return [each["error"] for each in answers]


def test_nothing_is_proposed_behind_a_part_without_an_answer() -> None:
    controller = Failing(2, KafkaError(ErrorCode.NOT_CONTROLLER, "nobody"))
    assert answered(controller) == [0] * 1_000 + [ErrorCode.NOT_CONTROLLER] * 1_500
    assert controller.took == [1_000, 1_000]


def test_a_part_that_the_rules_refuse_is_refused_alone() -> None:
    controller = Failing(2, Result(ErrorCode.INVALID_REQUEST, "no"))
    assert answered(controller) == [0] * 1_000 + [ErrorCode.INVALID_REQUEST] * 1_000 + [0] * 500


def test_the_time_of_a_request_is_that_of_all_its_parts() -> None:
    controller = Failing(0, KafkaError(ErrorCode.NOT_CONTROLLER))
    assert answered(controller, -1) == [0] * 1_000 + [ErrorCode.REQUEST_TIMED_OUT] * 1_500
    assert controller.took == [1_000]
