"""Topics that are where other topics are: one coordinator keeps state in both.

Rules:

* A topic has at most one twin, and a twin has none. Its partitions are as many as those of the
  topic that it follows, each with the same replicas.
* What is done with the topic is done with its twin, in the same command: it gets more partitions,
  replicas are moved, it is deleted. None of that can be done with the twin alone, but deleting it.
* Whoever leads a partition leads its twin, as soon as it is in sync there; until then another one
  does (`partition_changes`). Only who gives up a damaged twin isn't made to lead it again at once.
* A twin has settings of its own, but the topic's `min.insync.replicas`.
"""

from __future__ import annotations

from dataclasses import replace

from kraftpy.core.metadata.commands import Assignment as Replicas
from kraftpy.core.metadata.commands import NewTopic
from kraftpy.core.metadata.elections import Assignment
from kraftpy.core.metadata.records import PartitionState, Topic
from kraftpy.core.metadata.tables import MetadataTables
from kraftpy.protocol.errors import ErrorCode, KafkaError


def both(state: MetadataTables, topic: Topic) -> list[Topic]:
    """The topic and its twin, if it has one."""
    twin = state.topics.get(state.twins.get(topic.name, ""))
    return [topic] if twin is None else [topic, twin]


def replicas(state: MetadataTables, item: NewTopic) -> Replicas:
    """Where the replicas of a new twin are: where those of its topic are, or are about to be."""
    assert item.twin_of is not None
    topic = state.topics.get(item.twin_of)
    problem = None
    if topic is None:
        problem = "is not there"
    elif topic.twin_of is not None:
        problem = f"is a twin itself, of {topic.twin_of}"
    elif topic.name in state.twins:
        problem = f"has one: {state.twins[topic.name]}"
    if topic is None or problem is not None:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"{item.name} can't be the twin of {item.twin_of[:249]!r}, which {problem}",
        )
    if item.assignments is not None or (item.partitions, item.replication_factor) != (-1, -1):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"the replicas of {item.name} are where {topic.name} is"
        )
    placed = tuple(_target(each) for each in topic.partitions.values())
    for index, brokers in enumerate(placed):
        if not any(each in state.brokers and state.brokers[each].active for each in brokers):
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{item.name} can't be made while all brokers of {topic.name}-{index} are down",
            )
    return placed


def lead(twin: Topic, topic: Topic) -> None:
    """Has a new twin led by whom its topic is led by, where that one is in sync."""
    for index, partition in twin.partitions.items():
        leader = topic.partitions[index].leader
        if leader in partition.isr and leader != partition.leader:
            twin.partitions[index] = replace(partition, leader=leader)


def check_grows_alone(topic: Topic) -> None:
    """Whether somebody may give the topic more partitions. Raises KafkaError."""
    if topic.twin_of is not None:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"{topic.name} gets more partitions when {topic.twin_of} does",
        )


def check_moves_alone(topic: Topic) -> None:
    """Whether somebody may move the topic's replicas. Raises KafkaError."""
    if topic.twin_of is not None:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"the replicas of {topic.name} move when those of {topic.twin_of} do",
        )


def _target(partition: PartitionState) -> tuple[int, ...]:
    return Assignment(partition.replicas, partition.adding, partition.removing).target
