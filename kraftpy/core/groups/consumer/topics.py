"""What a coordinator needs to know of the cluster's topics, as a small port of its shell."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from hashlib import blake2b
from typing import Protocol

from kraftpy.core.groups.consumer.assignors import Uuid
from kraftpy.frozen import NamedTuple

NO_TOPICS_HASH = 0

_HASH_BYTES = 8


PartitionsOf = Callable[[str], Collection[int]]
"""The indexes of a topic's partitions; none of one that isn't there."""


class Topic(NamedTuple):
    topic_id: Uuid
    partition_count: int


class Topics(Protocol):
    """The topics of the cluster as they are now."""

    @property
    def version(self) -> int:
        """Greater whenever a topic came, went or got partitions; better not for anything else.

        Groups look at their topics again when it changes.
        """

    def find(self, name: str) -> Topic | None:
        """The topic of this name, if there is one."""

    def name_of(self, topic_id: Uuid) -> str | None:
        """The name of the topic with this id, if there is one."""

    def match(self, regex: str) -> tuple[str, ...]:
        """The names of all topics that the regex matches as a whole, sorted.

        Raises KafkaError: INVALID_REGULAR_EXPRESSION.
        """


class DescribableTopics:
    """The topics as somebody sees them who may not know of all: a regex matches no others."""

    def __init__(self, topics: Topics, may_describe: Callable[[str], bool]) -> None:
        self._topics = topics
        self._may_describe = may_describe
        self.find = topics.find
        self.name_of = topics.name_of

    @property
    def version(self) -> int:
        """That of all topics."""
        return self._topics.version

    def match(self, regex: str) -> tuple[str, ...]:
        """Those of the names that may be known."""
        return tuple(filter(self._may_describe, self._topics.match(regex)))


def metadata_hash(names: Iterable[str], topics: Topics) -> int:
    """A signed 64-bit number that changes with the ids and partition counts of these topics.

    Topics that are not there don't count; `NO_TOPICS_HASH` if none is there. Kafka keeps another
    hash at the same place (KIP-1101): whoever takes a group over from the other sees a change, and
    makes a new assignment once.
    """
    digest = blake2b(digest_size=_HASH_BYTES)
    is_empty = True
    for name in sorted(names):
        topic = topics.find(name)
        if topic is not None:
            is_empty = False
            digest.update(topic.topic_id + topic.partition_count.to_bytes(4, "big"))
    if is_empty:
        return NO_TOPICS_HASH
    return int.from_bytes(digest.digest(), "big", signed=True)
