"""Carries out the command that moves replicas between brokers (KIP-455).

Rules: while a reassignment is on, a partition has the old replicas and the new ones; once all of
the new ones are in the ISR, the others go, in the same change. Another target replaces the one
under way: what was added for it and isn't wanted now goes at once. No `replicas` cancels. What
stays must be able to serve: if none in sync would remain, the change is refused, unless the topic
permits unclean elections. Where nobody is in sync, or below the metadata level that says so, an
eligible one is enough. With `keep_replication_factor` a target of another size is
refused (KIP-860). A twin's replicas move along, in the same change or not at all (`twins`).
"""

from __future__ import annotations

from typing import Any

from kraftpy.core.metadata import twins
from kraftpy.core.metadata.commands import AlterReassignments
from kraftpy.core.metadata.elections import Assignment, Electorate, Wish, settled
from kraftpy.core.metadata.partition_changes import electorate_of, put, rules_of
from kraftpy.core.metadata.records import Change, PartitionState, TopicRules
from kraftpy.core.metadata.tables import MetadataTables
from kraftpy.protocol.errors import ErrorCode, KafkaError


def alter_reassignments(
    state: MetadataTables, _index: int, command: AlterReassignments, changes: list[Change]
) -> dict[str, Any]:
    """Starts, changes and cancels reassignments, each partition by itself."""
    electorate = electorate_of(state)
    answers = []
    for asked in command.topics:
        name = asked.name
        topic = state.topics.get(name)
        rules = rules_of(state, name)
        partitions = []
        for one in asked.partitions:
            index = one.index
            error, message = ErrorCode.NONE, None
            try:
                if topic is None or index not in topic.partitions:
                    raise KafkaError(
                        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                        f"there is no partition {index} of topic {name[:249]!r}",
                    )
                twins.check_moves_alone(topic)
                old = topic.partitions[index]
                assignment = _assignment(state, old, one.replicas, command.keep_replication_factor)
                new = _reassigned(old, assignment, electorate, rules)
                for twin in twins.both(state, topic)[1:]:
                    old = twin.partitions[index]
                    along = _towards(old, assignment.target)
                    its_rules = rules_of(state, twin.name)
                    put(state, twin, index, _reassigned(old, along, electorate, its_rules), changes)
                put(state, topic, index, new, changes)
            except KafkaError as failure:
                error, message = failure.code, failure.message
            partitions.append({"index": index, "error": int(error), "message": message})
        answers.append({"name": name, "partitions": partitions})
    return {"topics": answers}


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
    return _towards(old, target)


def _towards(old: PartitionState, target: tuple[int, ...]) -> Assignment:
    origin = Assignment(old.replicas, old.adding, old.removing).origin
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
    capable = set(old.isr)
    if not capable or not electorate.removed_are_forgotten:
        capable |= set(old.elr)
    if capable and not capable & kept and not rules.unclean:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "none of the replicas that would stay has all records: wait until the reassignment "
            "is complete, or permit unclean.leader.election.enable for the topic",
        )
    isr = tuple(each for each in assignment.replicas if each in old.isr)
    return settled(old, electorate, rules, Wish(isr=isr, assignment=assignment))
