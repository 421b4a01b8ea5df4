"""Carries events out on partitions: applies the rules of `elections`, notes what changed.

Rules: an event on one broker looks at that broker's partitions only. A change of a partition that
has a twin, or is one, may be followed by another of the twin: whoever leads the one leads the other
as soon as it is in sync there (`twins`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from kraftpy.core.metadata.elections import NO_WISH, Electorate, Wish, settled
from kraftpy.core.metadata.levels import REMOVED_ARE_FORGOTTEN
from kraftpy.core.metadata.records import (
    LOST_DIRECTORY,
    NO_LEADER,
    UNASSIGNED_DIRECTORY,
    Broker,
    Change,
    PartitionChanged,
    PartitionState,
    ResourceType,
    Topic,
    TopicRules,
)
from kraftpy.core.metadata.tables import MetadataTables

UNCLEAN_KEY = "unclean.leader.election.enable"
MIN_ISR_KEY = "min.insync.replicas"
ELECTION_KEYS = (UNCLEAN_KEY, MIN_ISR_KEY)
"""The settings that decide who is in sync, eligible or elected."""
_NUMBER = re.compile(r"\s*\+?([0-9]{1,19})\s*", re.ASCII)


def electorate_of(state: MetadataTables) -> Electorate:
    brokers = state.brokers.values()
    return Electorate(
        state.brokers,
        frozenset(each.id for each in brokers if each.active),
        frozenset(each.id for each in brokers if each.in_controlled_shutdown and not each.fenced),
        state.level >= REMOVED_ARE_FORGOTTEN,
    )


def rules_of(state: MetadataTables, topic: str) -> TopicRules:
    """The topic's own settings, else the cluster-wide ones, else those of the brokers' files.

    A value that says nothing here, because a later release let it in, is passed over.
    """
    own = state.config(ResourceType.TOPIC, topic)
    common = state.config(ResourceType.BROKER, "")
    rules = state.common_rules
    min_isr = _whole_number(own.get(MIN_ISR_KEY)) or _whole_number(common.get(MIN_ISR_KEY))
    if min_isr is not None:
        rules = rules._replace(min_isr=min_isr)
    unclean = own.get(UNCLEAN_KEY) or common.get(UNCLEAN_KEY)
    if unclean is not None:
        rules = rules._replace(unclean=unclean.strip().lower() == "true")
    return rules


def with_min_isr_of(configs: Mapping[str, str], other: Mapping[str, str]) -> dict[str, str]:
    """A twin's configuration with the `min.insync.replicas` of the topic that it follows."""
    new = {key: value for key, value in configs.items() if key != MIN_ISR_KEY}
    return new | {key: value for key, value in other.items() if key == MIN_ISR_KEY}


def _whole_number(text: str | None) -> int | None:
    """A number of 1 or more; None for anything else."""
    found = None if text is None else _NUMBER.fullmatch(text)
    return None if found is None else int(found[1]) or None


def put(
    state: MetadataTables,
    topic: Topic,
    index: int,
    new: PartitionState,
    changes: list[Change],
    *,
    gives_up: bool = False,
) -> None:
    """Sets the partition to `new` if that is another state than it has.

    `gives_up`: somebody did with this replica, and isn't to lead it at once again.
    """
    if new is topic.partitions[index]:
        return
    _set(state, topic, index, new, changes)
    if state.twins and not (gives_up and topic.twin_of is not None):
        _follow(state, topic, index, changes)


def _follow(state: MetadataTables, topic: Topic, index: int, changes: list[Change]) -> None:
    """Has the twin of this partition, or this one if it is a twin, led by whom it is to be."""
    followed = state.topics[topic.twin_of or topic.name]
    twin = state.topics.get(state.twins.get(followed.name, ""))
    old = None if twin is None else twin.partitions.get(index)
    if twin is None or old is None:
        return
    leader = followed.partitions[index].leader
    if leader in (NO_LEADER, old.leader) or leader not in old.isr:
        return
    wish = Wish(leader=leader)
    new = settled(old, electorate_of(state), rules_of(state, twin.name), wish)
    if new is not old:
        _set(state, twin, index, new, changes)


def _set(
    state: MetadataTables,
    topic: Topic,
    index: int,
    new: PartitionState,
    changes: list[Change],
) -> None:
    old = topic.partitions[index]
    topic.partitions[index] = new
    if new.replicas != old.replicas:
        state.replica_index.remove(topic.name, index, set(old.replicas) - set(new.replicas))
        state.replica_index.add(topic.name, [(index, set(new.replicas) - set(old.replicas))])
    changes.append(PartitionChanged(topic, index, old, new))


def broker_left(state: MetadataTables, broker_id: int, changes: list[Change]) -> None:
    """The broker was fenced: it is in no ISR from now on."""
    electorate = electorate_of(state)
    for name, indexes in state.replica_index.partitions(broker_id):
        topic, rules = state.topics[name], rules_of(state, name)
        for index in indexes:
            old = topic.partitions[index]
            if broker_id in old.isr:
                isr = tuple(each for each in old.isr if each != broker_id)
                put(state, topic, index, settled(old, electorate, rules, Wish(isr=isr)), changes)


def broker_closing(state: MetadataTables, broker_id: int, changes: list[Change]) -> int:
    """The broker shuts down: what others can take over, they do; how many it leads still."""
    electorate = electorate_of(state)
    remaining = 0
    for name, indexes in state.replica_index.partitions(broker_id):
        topic, rules = state.topics[name], rules_of(state, name)
        for index in indexes:
            old = topic.partitions[index]
            if broker_id not in old.isr:
                continue
            if broker_id != old.leader or electorate.active.intersection(old.isr):
                isr = tuple(each for each in old.isr if each != broker_id)
                new = settled(old, electorate, rules, Wish(isr=isr))
            else:
                new = settled(old, electorate, rules)
            put(state, topic, index, new, changes)
            remaining += new.leader == broker_id
    return remaining


def broker_joined(state: MetadataTables, broker_id: int, changes: list[Change]) -> None:
    """The broker is active again: it leads what waits for it."""
    electorate = electorate_of(state)
    for name, indexes in state.replica_index.partitions(broker_id):
        topic, rules = state.topics[name], None
        for index in indexes:
            old = topic.partitions[index]
            if old.leader not in electorate.active:
                rules = rules or rules_of(state, name)
                put(state, topic, index, settled(old, electorate, rules), changes)


def broker_lost_data(
    state: MetadataTables, broker: Broker, old: Broker | None, changes: list[Change]
) -> None:
    """A new life that may lack records of the one before: it is eligible nowhere (KIP-966).

    Where even the directory is gone it isn't the last known leader either: it has nothing.
    """
    electorate = electorate_of(state)
    some_lost = old is not None and not set(old.directories) <= set(broker.directories)
    for name, indexes in state.replica_index.partitions(broker.id):
        topic, rules = state.topics[name], rules_of(state, name)
        for index in indexes:
            partition = topic.partitions[index]
            place = partition.replicas.index(broker.id)
            directory = partition.directories[place]
            if directory == UNASSIGNED_DIRECTORY:
                lost = some_lost
            else:
                lost = directory not in broker.directories
            wish = Wish(
                isr=tuple(each for each in partition.isr if each != broker.id),
                lost=broker.id,
                lost_directory=lost and directory != LOST_DIRECTORY,
            )
            put(state, topic, index, settled(partition, electorate, rules, wish), changes)


def review(state: MetadataTables, topics: Iterable[Topic], changes: list[Change]) -> None:
    """The topics' settings changed: gives every partition what it should have."""
    electorate = electorate_of(state)
    for topic in topics:
        rules = rules_of(state, topic.name)
        for index, old in topic.partitions.items():
            put(state, topic, index, settled(old, electorate, rules, NO_WISH), changes)
