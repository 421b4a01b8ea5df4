"""Carries out the commands on who leads and who is in sync.

Rules: with alter_partition a leader proposes an ISR, on the state that it names: any other leader
epoch is FENCED_LEADER_EPOCH, any other partition epoch INVALID_UPDATE_VERSION, and who is not the
leader gets INVALID_REQUEST. Each answer has the partition's state after it. A replica that joins
must be active, in the life that the leader fetched from (KIP-903); else INELIGIBLE_REPLICA. For who
is in the ISR already, and for the leader itself, the epoch -1 stands for "unchanged". A proposal
may complete a reassignment and so depose its author: NEW_LEADER_ELECTED, though it has taken
effect. A proposal of the ISR as it is gives the partition a new epoch: its author wants to be sure
that a proposal before it, which got no answer, is void. With renew_replicas a broker gives up what
its disk has damaged: it is in no ISR and no ELR then, and a new leader epoch begins, in which it
counts with a log that it begins anew. That must leave as many in sync as min.insync.replicas asks
for, and two if there are so many others: one alone may be gone already without anybody knowing.
Else NOT_ENOUGH_REPLICAS. A leader isn't given up but hands over, so that the others get what they
lack from sound records; NEW_LEADER_ELECTED. A broker that can't write to its disk asks for the
same, though its log stays: it counts no more until it has caught up. Elections on all topics answer
for those partitions only that didn't have what was wanted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kraftpy.core.metadata.broker_commands import living_broker
from kraftpy.core.metadata.commands import (
    PREFERRED,
    AlterPartition,
    ElectLeaders,
    InSync,
    RenewReplicas,
)
from kraftpy.core.metadata.elections import Electorate, Wish, settled
from kraftpy.core.metadata.partition_changes import electorate_of, put, rules_of
from kraftpy.core.metadata.records import NO_LEADER, Change, PartitionState, Topic, TopicRules
from kraftpy.core.metadata.tables import MetadataTables
from kraftpy.protocol.errors import ErrorCode, KafkaError

_NEEDED = ErrorCode.NOT_ENOUGH_REPLICAS


def alter_partition(
    state: MetadataTables, _index: int, command: AlterPartition, changes: list[Change]
) -> dict[str, Any]:
    """Changes ISRs as their leader proposes."""
    leader = living_broker(state, command).id
    electorate = electorate_of(state)
    answers = []
    for asked in command.topics:
        topic = state.topics_by_id.get(asked.topic_id)
        rules = None if topic is None else rules_of(state, topic.name)
        partitions = []
        for one in asked.partitions:
            index, isr = one.index, one.isr
            error, message = ErrorCode.NONE, None
            try:
                if topic is None or rules is None:
                    raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
                old = topic.partitions.get(index)
                if old is None:
                    raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                _check_epochs(old, leader, one.leader_epoch, one.partition_epoch)
                _check_isr(old, electorate, isr)
                members = tuple([each.broker_id for each in isr])
                new = settled(old, electorate, rules, Wish(isr=members))
                if new is old:
                    new = replace(old, partition_epoch=old.partition_epoch + 1)
                put(state, topic, index, new, changes)
                if topic.partitions[index].leader != leader:
                    raise KafkaError(ErrorCode.NEW_LEADER_ELECTED)
            except KafkaError as failure:
                error, message = failure.code, failure.message
            partitions.append(_answer(topic, index, error, message))
        answers.append({"topic_id": asked.topic_id, "partitions": partitions})
    return {"topics": answers}


def _check_epochs(
    partition: PartitionState, broker_id: int, leader_epoch: int, partition_epoch: int
) -> None:
    if leader_epoch > partition.leader_epoch or partition_epoch > partition.partition_epoch:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"leader epoch {leader_epoch} and partition epoch {partition_epoch} have never been: "
            f"the last ones are {partition.leader_epoch} and {partition.partition_epoch}",
        )
    if leader_epoch < partition.leader_epoch:
        raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
    if broker_id != partition.leader:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"broker {broker_id} does not lead the partition"
        )
    # A decision on an older state might take back what was decided since.
    if partition_epoch < partition.partition_epoch:
        raise KafkaError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"the partition has changed: its epoch is {partition.partition_epoch} now",
        )


def _check_isr(partition: PartitionState, electorate: Electorate, isr: Sequence[InSync]) -> None:
    ids = {each.broker_id for each in isr}
    if len(ids) < len(isr) or partition.leader not in ids or not ids <= set(partition.replicas):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            "an in-sync set has the leader in it, and replicas only, each once",
        )
    for each in isr:
        broker_id, epoch = each.broker_id, each.broker_epoch
        problem = None
        broker = electorate.brokers.get(broker_id)
        if broker is None:
            problem = "is not registered"
        elif broker_id not in electorate.active and broker_id != partition.leader:
            problem = "is fenced" if broker.fenced else "is shutting down"
        elif epoch != broker.epoch and (epoch != -1 or broker_id not in partition.isr):
            problem = f"has epoch {broker.epoch}, not {epoch}"
        if problem is not None:
            raise KafkaError(ErrorCode.INELIGIBLE_REPLICA, f"broker {broker_id} {problem}")


def _answer(
    topic: Topic | None, index: int, error: ErrorCode, message: str | None
) -> dict[str, Any]:
    partition = None if topic is None else topic.partitions.get(index)
    return {
        "index": index,
        "error": int(error),
        "message": message,
        "leader": NO_LEADER if partition is None else partition.leader,
        "leader_epoch": -1 if partition is None else partition.leader_epoch,
        "partition_epoch": -1 if partition is None else partition.partition_epoch,
        "isr": [] if partition is None else list(partition.isr),
    }


def renew_replicas(
    state: MetadataTables, _index: int, command: RenewReplicas, changes: list[Change]
) -> dict[str, Any]:
    """Has a broker begin replicas anew, if others have all that was acknowledged."""
    broker_id = living_broker(state, command).id
    electorate = electorate_of(state)
    answers = []
    for asked in command.topics:
        topic = state.topics_by_id.get(asked.topic_id)
        rules = None if topic is None else rules_of(state, topic.name)
        partitions = []
        for one in asked.partitions:
            index = one.index
            error, message = ErrorCode.NONE, None
            try:
                if topic is None or rules is None:
                    raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
                old = topic.partitions.get(index)
                if old is None or broker_id not in old.replicas:
                    raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                if one.leader_epoch != old.leader_epoch:
                    raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
                new, error = _renewed(old, electorate, rules, broker_id)
                put(state, topic, index, new, changes, gives_up=True)
            except KafkaError as failure:
                error, message = failure.code, failure.message
            partitions.append({"index": index, "error": int(error), "message": message})
        answers.append({"topic_id": asked.topic_id, "partitions": partitions})
    return {"topics": answers}


def _renewed(
    old: PartitionState, electorate: Electorate, rules: TopicRules, broker_id: int
) -> tuple[PartitionState, ErrorCode]:
    others = tuple(each for each in old.isr if each != broker_id)
    if old.leader == broker_id:
        if not electorate.active.intersection(others):
            return old, _NEEDED
        wish = Wish(steps_down=broker_id)
        return settled(old, electorate, rules, wish), ErrorCode.NEW_LEADER_ELECTED
    count = len(old.replicas)
    if len(others) < max(min(rules.min_isr, count), min(2, count - 1)):
        return old, _NEEDED
    wish = Wish(isr=others, lost=broker_id, anew=True)
    return settled(old, electorate, rules, wish), ErrorCode.NONE


# -- elections


def elect_leaders(
    state: MetadataTables, _index: int, command: ElectLeaders, changes: list[Change]
) -> dict[str, Any]:
    """Gives partitions their preferred leader, or any leader at all."""
    election, everything = command.election_type, command.topics is None
    wanted: list[tuple[str, Sequence[int]]]
    if command.topics is None:
        wanted = [(topic.name, list(topic.partitions)) for topic in state.sorted_topics()]
    else:
        wanted = [(each.name, each.partitions) for each in command.topics]
    electorate = electorate_of(state)
    answers = []
    for name, indexes in wanted:
        topic = state.topics.get(name)
        rules = None if topic is None else rules_of(state, name)
        partitions = []
        for index in indexes:
            error, message = ErrorCode.NONE, None
            try:
                if topic is None or rules is None or index not in topic.partitions:
                    raise KafkaError(
                        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                        f"there is no partition {index} of topic {name[:249]!r}",
                    )
                old = topic.partitions[index]
                if _follows(state, topic, index):
                    raise KafkaError(ErrorCode.ELECTION_NOT_NEEDED)
                put(state, topic, index, _elect(old, electorate, rules, election), changes)
            except KafkaError as failure:
                if everything and failure.code is ErrorCode.ELECTION_NOT_NEEDED:
                    continue
                error, message = failure.code, failure.message
            partitions.append({"index": index, "error": int(error), "message": message})
        if partitions or not everything:
            answers.append({"name": name, "partitions": partitions})
    return {"topics": answers}


def _follows(state: MetadataTables, topic: Topic, index: int) -> bool:
    """Whether the partition is a twin that is led by whom it is to be led by."""
    if topic.twin_of is None:
        return False
    leader = topic.partitions[index].leader
    followed = state.topics[topic.twin_of].partitions[index]
    return leader == followed.leader != NO_LEADER


def needs_election(partition: PartitionState, election_type: int) -> bool:
    """Whether the partition hasn't what such an election is for."""
    if election_type == PREFERRED:
        return partition.leader != partition.replicas[0]
    return partition.leader == NO_LEADER


def _elect(
    old: PartitionState, electorate: Electorate, rules: TopicRules, election: int
) -> PartitionState:
    preferred = election == PREFERRED
    if not needs_election(old, election):
        raise KafkaError(ErrorCode.ELECTION_NOT_NEEDED)
    new = settled(old, electorate, rules, Wish(preferred=preferred, unclean=not preferred))
    if preferred and new.leader != old.replicas[0]:
        raise KafkaError(
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
            f"broker {old.replicas[0]} is down or not in sync",
        )
    if new.leader == NO_LEADER:
        raise KafkaError(
            ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
            "none of the partition's brokers is up: "
            + ", ".join(str(each) for each in old.replicas),
        )
    return new
