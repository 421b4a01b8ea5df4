"""Carries out the commands on topics.

Rules: the answers stand in the order of the items. Settings have been judged by the proposer
(`judgement`). Defaults of a broker (-1 partitions or replicas) are resolved by it, because they
come from its own configuration; `assignments` has the replicas of each new partition and takes the
place of `partitions` and `replication_factor`, and `twin_of` takes that of all three (`twins`), so
that a twin comes, grows and goes with its topic. `seed` is the proposer's randomness for the
placement. A replica is in sync from the start if its broker is up. Names are Kafka's: 1 to 249 of
a-z, A-Z, 0-9, dot, underscore and hyphen, not `.` or `..`, and no two that differ only in dot and
underscore (metric names can't tell them apart).
"""

from __future__ import annotations

import re
from typing import Any

from kraftpy.core.metadata import twins
from kraftpy.core.metadata.commands import (
    Assignment,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    NewTopic,
)
from kraftpy.core.metadata.elections import directory_of
from kraftpy.core.metadata.limits import PARTITIONS_MAX, REPLICATION_FACTOR_MAX
from kraftpy.core.metadata.partition_changes import with_min_isr_of
from kraftpy.core.metadata.placement import place
from kraftpy.core.metadata.records import (
    Change,
    PartitionChanged,
    PartitionState,
    ResourceType,
    Topic,
    TopicCreated,
    TopicDeleted,
    name_in_metrics,
)
from kraftpy.core.metadata.tables import MetadataTables
from kraftpy.protocol.errors import ErrorCode, KafkaError

PARTITIONS_PER_COMMAND_MAX = 10_000
CLUSTER_PARTITIONS_MAX = 200_000
NAME_LENGTH_MAX = 249

_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}", re.ASCII)
_RESERVED_IDS = frozenset({bytes(16), bytes(15) + b"\1"})


def topic_name_error(name: str) -> str | None:
    """What is wrong with a topic's name, as a sentence; None if nothing is."""
    if name in ("", ".", ".."):
        return f"a topic can't be called {name!r}"
    if len(name) > NAME_LENGTH_MAX:
        return f"a topic's name has at most {NAME_LENGTH_MAX} characters, this one has {len(name)}"
    if not _NAME.fullmatch(name):
        return f"topic {name!r} has characters other than a-z, A-Z, 0-9, '.', '_' and '-'"
    if name == "__cluster_metadata":
        return f"{name} is the name of the metadata log"
    return None


def create_topics(
    state: MetadataTables, _index: int, command: CreateTopics, changes: list[Change]
) -> dict[str, Any]:
    """Creates topics, each with all its partitions and configuration or not at all."""
    check_batch(sum(partition_count(item) for item in command.topics))
    answers: list[dict[str, Any]] = []
    named: set[str] = set()
    for number, item in enumerate(command.topics):
        answer: dict[str, Any] = {"name": item.name}
        try:
            if item.name in named:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    f"topic {item.name[:NAME_LENGTH_MAX]} is in the request twice",
                )
            named.add(item.name)
            configs = check_new_topic(state, item)
            replicas = _replicas(state, item, command.seed + number)
            answer |= {
                "topic_id": item.topic_id,
                "partitions": len(replicas),
                "replication_factor": len(replicas[0]),
            }
            if not command.validate_only:
                _add_topic(state, item, replicas, configs, changes)
            answers.append(answer | {"error": int(ErrorCode.NONE), "message": None})
        except KafkaError as error:
            answers.append(answer | {"error": int(error.code), "message": error.message})
    return {"topics": answers}


def delete_topics(
    state: MetadataTables, _index: int, command: DeleteTopics, changes: list[Change]
) -> dict[str, Any]:
    """Deletes topics and their configuration."""
    answers: list[dict[str, Any]] = []
    for old in command.topics:
        name, topic_id = old.name, old.topic_id
        if topic_id is not None:
            topic = state.topics_by_id.get(topic_id)
            error = ErrorCode.UNKNOWN_TOPIC_ID
        else:
            topic = state.topics.get(name or "")
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if topic is None:
            answers.append(
                {"name": name, "topic_id": topic_id, "error": int(error), "message": error.message}
            )
            continue
        twin = state.topics.get(state.twins.get(topic.name, ""))
        if twin is not None:
            _remove_topic(state, twin, changes)
        _remove_topic(state, topic, changes)
        answers.append(
            {
                "name": topic.name,
                "topic_id": topic.id,
                "error": int(ErrorCode.NONE),
                "message": None,
            }
        )
    return {"topics": answers}


def create_partitions(
    state: MetadataTables, _index: int, command: CreatePartitions, changes: list[Change]
) -> dict[str, Any]:
    """Adds partitions to topics: each topic gets up to `count` of them or stays as it is."""
    topics = [(state.topics.get(each.name), each.count) for each in command.topics]
    check_batch(
        sum(min(count, PARTITIONS_MAX) - len(topic.partitions) for topic, count in topics if topic)
    )
    answers: list[dict[str, Any]] = []
    named: set[str] = set()
    for number, item in enumerate(command.topics):
        name = item.name
        answer: dict[str, Any] = {"name": name}
        try:
            if name in named:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    f"topic {name[:NAME_LENGTH_MAX]} is in the request twice",
                )
            named.add(name)
            topic = state.topics.get(name)
            if topic is None:
                raise KafkaError(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    f"there is no topic {name[:NAME_LENGTH_MAX]!r}",
                )
            replicas = _more_replicas(
                state, topic, item.count, item.assignments, command.seed + number
            )
            if not command.validate_only:
                for each in twins.both(state, topic):
                    _add_partitions(state, each, replicas, changes)
            answers.append(answer | {"error": int(ErrorCode.NONE), "message": None})
        except KafkaError as error:
            answers.append(answer | {"error": int(error.code), "message": error.message})
    return {"topics": answers}


# -- checking


def partition_count(item: NewTopic) -> int:
    """How many partitions a new topic asks for."""
    count = item.partitions if item.assignments is None else len(item.assignments)
    return max(0, min(count, PARTITIONS_MAX))


def check_batch(new_partitions: int) -> None:
    """Whether one request may create so many. Raises KafkaError(POLICY_VIOLATION)."""
    if new_partitions > PARTITIONS_PER_COMMAND_MAX:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"one request can create {PARTITIONS_PER_COMMAND_MAX} partitions, this one asks for "
            f"{new_partitions}: use several requests",
        )


def check_new_topic(state: MetadataTables, item: NewTopic) -> dict[str, str]:
    """Checks a new topic but for its replicas and its settings (see `judgement`); the settings."""
    problem = topic_name_error(item.name)
    if problem is not None:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
    if item.name in state.topics:
        raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {item.name} exists already")
    other = state.names_in_metrics.get(name_in_metrics(item.name))
    if other is not None:
        raise KafkaError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"topic {item.name} collides with topic {other}: '.' and '_' count as the same",
        )
    if item.topic_id in _RESERVED_IDS or item.topic_id in state.topics_by_id:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "the topic id is taken")
    configs: dict[str, str] = {}
    for key, value in item.configs.items():
        if value is None:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"{key[:120]} has no value")
        configs[key] = value
    return configs


def _replicas(state: MetadataTables, item: NewTopic, seed: int) -> Assignment:
    """The replicas of a new topic's partitions, placed or checked."""
    if item.twin_of is not None:
        replicas = twins.replicas(state, item)
        _check_total(state, len(replicas))
        return replicas
    if item.assignments is not None:
        if not item.assignments:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT, "the assignment has no partitions"
            )
        _check_total(state, len(item.assignments))
        _check_assignments(state, item.assignments, len(item.assignments[0]))
        return item.assignments
    if not 1 <= item.partitions <= PARTITIONS_MAX:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"a topic has 1 to {PARTITIONS_MAX} partitions, not {item.partitions}",
        )
    _check_total(state, item.partitions)
    return _placed(state, item.partitions, item.replication_factor, seed)


def _placed(
    state: MetadataTables, partitions: int, replication_factor: int, seed: int
) -> Assignment:
    if not 1 <= replication_factor <= REPLICATION_FACTOR_MAX:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"a replication factor is 1 or more, not {replication_factor}",
        )
    brokers = list(state.brokers.values())
    active = state.active_brokers()
    if replication_factor > len(brokers):
        known = f"{len(brokers)} {'is' if len(brokers) == 1 else 'are'}"
        known += " up" if len(active) == len(brokers) else " registered"
        advice = f"use replication factor {len(brokers)}" if brokers else "start a broker"
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"replication factor {replication_factor} needs {replication_factor} "
            f"broker{'s' if replication_factor > 1 else ''}; {known}: {advice}",
        )
    if not active:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "all brokers are down or shutting down: start one",
        )
    return tuple(place(brokers, partitions, replication_factor, seed))


def _more_replicas(
    state: MetadataTables, topic: Topic, count: int, assignments: Assignment | None, seed: int
) -> Assignment:
    """The replicas of the partitions that `topic` gets on its way to `count`."""
    twins.check_grows_alone(topic)
    have = len(topic.partitions)
    if count <= have:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"topic {topic.name} has {have} partition{'' if have == 1 else 's'}: their number can "
            f"only grow, not become {count}",
        )
    if count > PARTITIONS_MAX:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"a topic has 1 to {PARTITIONS_MAX} partitions, not {count}",
        )
    _check_total(state, (count - have) * len(twins.both(state, topic)))
    first = topic.partitions[0]
    # What a reassignment under way makes of it.
    replication_factor = len(first.replicas) - len(first.removing)
    if assignments is None:
        return _placed(state, count - have, replication_factor, seed)
    if len(assignments) != count - have:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"topic {topic.name} would get {count - have} new partitions, but the assignment has "
            f"{len(assignments)}",
        )
    _check_assignments(state, assignments, replication_factor)
    return assignments


def _check_total(state: MetadataTables, new_partitions: int) -> None:
    if state.partition_count + new_partitions > CLUSTER_PARTITIONS_MAX:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"a cluster has at most {CLUSTER_PARTITIONS_MAX} partitions; there are "
            f"{state.partition_count} and {new_partitions} would be added",
        )


def _check_assignments(
    state: MetadataTables, assignments: Assignment, replication_factor: int
) -> None:
    for number, replicas in enumerate(assignments):
        problem = None
        if not replicas:
            problem = "no replicas"
        elif len(set(replicas)) < len(replicas):
            problem = "the same broker twice"
        elif len(replicas) != replication_factor:
            problem = f"{len(replicas)} replicas where others have {replication_factor}"
        elif any(broker_id not in state.brokers for broker_id in replicas):
            unknown = next(each for each in replicas if each not in state.brokers)
            problem = f"broker {unknown}, which is not registered"
        elif not any(state.brokers[broker_id].active for broker_id in replicas):
            problem = "only brokers that are down"
        if problem is not None:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"entry {number} of the assignment has {problem}",
            )


# -- changing


def _add_topic(
    state: MetadataTables,
    item: NewTopic,
    replicas: Assignment,
    configs: dict[str, str],
    changes: list[Change],
) -> None:
    partitions = dict(enumerate(_new_partitions(state, replicas)))
    topic = Topic(item.name, item.topic_id, partitions, item.twin_of)
    if topic.twin_of is not None:
        followed = state.topics[topic.twin_of]
        topic.twin_of = followed.name  # One string less to keep.
        twins.lead(topic, followed)
        configs = with_min_isr_of(configs, state.config(ResourceType.TOPIC, followed.name))
        state.twins[followed.name] = topic.name
    state.topics[topic.name] = topic
    state.topics_by_id[topic.id] = topic
    state.names_in_metrics[name_in_metrics(topic.name)] = topic.name
    state.partition_count += len(replicas)
    state.replica_index.add(topic.name, enumerate(replicas))
    if configs:
        state.configs[ResourceType.TOPIC, topic.name] = configs
    changes.append(TopicCreated(topic))


def _remove_topic(state: MetadataTables, topic: Topic, changes: list[Change]) -> None:
    del state.topics[topic.name]
    del state.topics_by_id[topic.id]
    del state.names_in_metrics[name_in_metrics(topic.name)]
    state.configs.pop((ResourceType.TOPIC, topic.name), None)
    if topic.twin_of is not None:
        del state.twins[topic.twin_of]
    state.partition_count -= len(topic.partitions)
    brokers = {each for partition in topic.partitions.values() for each in partition.replicas}
    state.replica_index.remove_topic(topic.name, brokers)
    changes.append(TopicDeleted(topic))


def _add_partitions(
    state: MetadataTables, topic: Topic, replicas: Assignment, changes: list[Change]
) -> None:
    first = len(topic.partitions)
    for index, partition in enumerate(_new_partitions(state, replicas), first):
        topic.partitions[index] = partition
        changes.append(PartitionChanged(topic, index, None, partition))
    state.partition_count += len(replicas)
    state.replica_index.add(topic.name, enumerate(replicas, first))


def _new_partitions(state: MetadataTables, replicas: Assignment) -> list[PartitionState]:
    """One state for each; where the same brokers have the replicas it is the same object."""
    made: dict[tuple[int, ...], PartitionState] = {}
    for each in replicas:
        if each not in made:
            made[each] = _new_partition(state, each)
    return [made[each] for each in replicas]


def _new_partition(state: MetadataTables, replicas: tuple[int, ...]) -> PartitionState:
    brokers = [state.brokers.get(broker_id) for broker_id in replicas]
    isr = tuple(broker.id for broker in brokers if broker is not None and broker.active)
    return PartitionState(
        leader=isr[0],
        leader_epoch=0,
        partition_epoch=0,
        replicas=replicas,
        isr=isr,
        directories=tuple(directory_of(broker) for broker in brokers),
    )
