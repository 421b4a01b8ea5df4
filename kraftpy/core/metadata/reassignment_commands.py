"""The command that moves replicas between brokers (KIP-455).

    alter_reassignments  topics [{name, partitions [{index, replicas? [broker id]}]}],
                         keep_replication_factor?
                         -> {topics: [{name, partitions: [{index, error, message}]}]}

Rules: while a reassignment is on, a partition has the old replicas and the new ones; once all of
the new ones are in the ISR, the others go, in the same change. Another target replaces the one
under way: what was added for it and isn't wanted now goes at once. No `replicas` cancels. What
stays must be able to serve: if none in sync or eligible would remain, the change is refused, unless
the topic permits unclean elections. With `keep_replication_factor` a target of another size is
refused (KIP-860).
"""

from __future__ import annotations

from typing import Any

from kraftpy.core.metadata import fields
from kraftpy.core.metadata.elections import Assignment, Electorate, Wish, settled
from kraftpy.core.metadata.fields import Fields
from kraftpy.core.metadata.limits import PARTITIONS_MAX
from kraftpy.core.metadata.partition_changes import electorate_of, put, rules_of
from kraftpy.core.metadata.records import Change, PartitionState, TopicRules
from kraftpy.core.metadata.tables import MetadataTables
from kraftpy.core.metadata.topic_commands import (
    NAME_FIELD_LENGTH_MAX,
    REPLICATION_FACTOR_MAX,
    TOPICS_PER_COMMAND_MAX,
)
from kraftpy.protocol.errors import ErrorCode, KafkaError


def alter_reassignments(
    state: MetadataTables, _index: int, command: Fields, changes: list[Change]
) -> dict[str, Any]:
    """Starts, changes and cancels reassignments, each partition by itself."""
    same_size = command.flag("keep_replication_factor")
    items = [
        (
            each.text("name", NAME_FIELD_LENGTH_MAX),
            [_request(item) for item in each.items("partitions", PARTITIONS_MAX)],
        )
        for each in command.items("topics", TOPICS_PER_COMMAND_MAX)
    ]
    electorate = electorate_of(state)
    answers = []
    for name, requests in items:
        topic = state.topics.get(name)
        rules = rules_of(state, name)
        partitions = []
        for index, target in requests:
            error, message = ErrorCode.NONE, None
            try:
                if topic is None or index not in topic.partitions:
                    raise KafkaError(
                        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                        f"there is no partition {index} of topic {name[:249]!r}",
                    )
                old = topic.partitions[index]
                assignment = _assignment(state, old, target, same_size)
                put(state, topic, index, _reassigned(old, assignment, electorate, rules), changes)
            except KafkaError as failure:
                error, message = failure.code, failure.message
            partitions.append({"index": index, "error": int(error), "message": message})
        answers.append({"name": name, "partitions": partitions})
    return {"topics": answers}


def _request(item: Fields) -> tuple[int, tuple[int, ...] | None]:
    low = -fields.INT_MAX - 1
    target = None
    if item.has("replicas"):
        target = tuple(
            fields.integer(each, "command.topics.partitions.replicas", low, fields.INT_MAX)
            for each in item.array("replicas", REPLICATION_FACTOR_MAX)
        )
    return item.integer("index", low), target


def _assignment(
    state: MetadataTables, old: PartitionState, target: tuple[int, ...] | None, same_size: bool
) -> Assignment:
    """The replicas on the way to `target`, or back if that is None."""
    current = Assignment(old.replicas, old.adding, old.removing)
    if target is None:
        if not (old.adding or old.removing):
            raise KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
        return Assignment(current.origin)
    problem = None
    if not target:
        problem = "has no replicas"
    elif len(set(target)) < len(target):
        problem = "has the same broker twice"
    elif any(broker_id not in state.brokers for broker_id in target):
        unknown = next(each for each in target if each not in state.brokers)
        problem = f"has broker {unknown}, which is not registered"
    if problem is not None:
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"the new assignment {problem}")
    if same_size and len(target) != len(current.target):
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"the partition has {len(current.target)} replicas and would get {len(target)}",
        )
    origin = current.origin
    removing = tuple(each for each in origin if each not in target)
    return Assignment(
        target + removing,
        adding=tuple(each for each in target if each not in origin),
        removing=removing,
    )


def _reassigned(
    old: PartitionState, assignment: Assignment, electorate: Electorate, rules: TopicRules
) -> PartitionState:
    kept = set(assignment.replicas)
    capable = set(old.isr) | set(old.elr)
    if capable and not capable & kept and not rules.unclean:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "none of the replicas that would stay has all records: wait until the reassignment "
            "is complete, or permit unclean.leader.election.enable for the topic",
        )
    isr = tuple(each for each in assignment.replicas if each in old.isr)
    return settled(old, electorate, rules, Wish(isr=isr, assignment=assignment))
