"""Which share-partitions of a group have a state at their share coordinators (KIP-932).

The record of that (`ShareStates`) is written before a share coordinator is asked, so a coordinator
that takes over knows what may be under way, and asks again: to initialize a state twice, or to
delete one twice, changes nothing. Rules:

* A partition that somebody subscribes to is initialized before it is dealt out.
* What is to be deleted is in `deleting` until all of its states are gone, unless it's wanted again.
* A state that comes is of the group's epoch: what was kept for the partition before is older.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from kraftpy.core.groups.consumer.assignors import Uuid
from kraftpy.core.groups.consumer.topics import Topics
from kraftpy.core.groups.share.records import ShareStates, TopicShares
from kraftpy.frozen import NamedTuple

UNKNOWN_OFFSET = -1
"""A share-partition begins where its leader says, by the group's `share.auto.offset.reset`."""


class InitializeStates(NamedTuple):
    """Wants states at these offsets, by topic id and partition."""

    group_id: str
    state_epoch: int
    offsets: Mapping[Uuid, Mapping[int, int]]


class DeleteStates(NamedTuple):
    """Wants the states of these partitions gone."""

    group_id: str
    partitions: Mapping[Uuid, frozenset[int]]


StateWork = InitializeStates | DeleteStates


def missing(states: ShareStates, names: Iterable[str], topics: Topics) -> dict[Uuid, TopicShares]:
    """Partitions of these topics that nobody has asked a state for."""
    found = {}
    for name in names:
        topic = topics.find(name)
        if topic is None:
            continue
        indexes = set(range(topic.partition_count))
        for known in (states.initialized, states.initializing):
            if topic.topic_id in known:
                indexes -= known[topic.topic_id].partitions
        if indexes:
            found[topic.topic_id] = TopicShares(name, frozenset(indexes))
    return found


def initializing(states: ShareStates, wanted: Mapping[Uuid, TopicShares]) -> ShareStates:
    """These are to be initialized."""
    return states._replace(
        initializing=_joined(states.initializing, wanted),
        deleting={topic: name for topic, name in states.deleting.items() if topic not in wanted},
    )


def initialized(
    states: ShareStates,
    done: Mapping[Uuid, Collection[int]],
    failed: Mapping[Uuid, Collection[int]],
) -> ShareStates:
    """These have been; those that have `failed` nobody asks for any more."""
    came = {
        topic: TopicShares(shares.name, shares.partitions & frozenset(done.get(topic, ())))
        for topic, shares in states.initializing.items()
    }
    settled = {
        topic: {*done.get(topic, ()), *failed.get(topic, ())} for topic in {**done, **failed}
    }
    left = {
        topic: TopicShares(shares.name, shares.partitions - frozenset(settled.get(topic, ())))
        for topic, shares in states.initializing.items()
    }
    return states._replace(
        initializing={topic: shares for topic, shares in left.items() if shares.partitions},
        initialized=_joined(
            states.initialized, {topic: each for topic, each in came.items() if each.partitions}
        ),
    )


def pending(states: ShareStates) -> dict[Uuid, frozenset[int]]:
    """The partitions without a state that are to get one."""
    found = {}
    for topic, shares in states.initializing.items():
        known = states.initialized.get(topic)
        left = shares.partitions - (known.partitions if known else frozenset())
        if left:
            found[topic] = left
    return found


def deleting(
    states: ShareStates, topic_ids: Collection[Uuid], topics: Topics
) -> tuple[ShareStates, dict[Uuid, frozenset[int]]]:
    """The states of these topics are to go; and of which partitions there may be any."""
    gone = dict(states.deleting)
    partitions: dict[Uuid, frozenset[int]] = {}
    for topic_id in topic_ids:
        found: frozenset[int] = frozenset()
        for known in (states.initialized, states.initializing):
            if topic_id in known:
                gone[topic_id] = known[topic_id].name
                found |= known[topic_id].partitions
        if topic_id in states.deleting:
            topic = topics.find(states.deleting[topic_id])
            if topic is not None and topic.topic_id == topic_id:
                found |= frozenset(range(topic.partition_count))
        if found:
            partitions[topic_id] = found
    return ShareStates(
        {topic: each for topic, each in states.initializing.items() if topic not in topic_ids},
        {topic: each for topic, each in states.initialized.items() if topic not in topic_ids},
        gone,
    ), partitions


def deleted(states: ShareStates, topic_ids: Collection[Uuid]) -> ShareStates:
    """The states of these topics are gone."""
    return states._replace(
        deleting={topic: name for topic, name in states.deleting.items() if topic not in topic_ids}
    )


def without(states: ShareStates, topic_ids: Collection[Uuid]) -> ShareStates:
    """The topics are gone, and their states with them."""
    rest = states._replace(
        initializing={t: each for t, each in states.initializing.items() if t not in topic_ids},
        initialized={t: each for t, each in states.initialized.items() if t not in topic_ids},
    )
    return deleted(rest, topic_ids)


def topic_names(states: ShareStates) -> dict[Uuid, str]:
    """All topics that the record names."""
    known = {**states.initializing, **states.initialized}
    named = {topic: each.name for topic, each in known.items()}
    return {**states.deleting, **named}


def _joined(
    some: Mapping[Uuid, TopicShares], more: Mapping[Uuid, TopicShares]
) -> dict[Uuid, TopicShares]:
    found = dict(some)
    for topic, shares in more.items():
        known = found.get(topic)
        before = frozenset[int]() if known is None else known.partitions
        found[topic] = TopicShares(shares.name, before | shares.partitions)
    return found
