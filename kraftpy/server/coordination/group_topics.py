"""The cluster's topics as group coordinators see them: `Topics` of `core.groups.consumer`.

Rules that it keeps:

* `version` changes whenever a topic comes, goes or gets partitions, and only then: groups look at
  their topics again when it does. It is the metadata offset of the last such change.
* Matching a new pattern with all topics of a large cluster takes long, so `prepare` does that in
  slices, between which the broker answers others; the answer to `match` is ready then. Later only
  the topics that came since are matched.
* What is remembered is bounded by `REMEMBERED_NAMES_MAX`; a pattern that fell out of memory is
  matched again.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING

from kraftpy.core.groups.consumer.regex import compile_pattern
from kraftpy.core.groups.consumer.topics import Topic
from kraftpy.frozen import dataclass

if TYPE_CHECKING:
    from kraftpy.core.groups import GroupMachine
    from kraftpy.core.groups.effects import Effects
    from kraftpy.core.metadata import MetadataState

REMEMBERED_NAMES_MAX = 1_000_000
CHANGES_MAX = 10_000

_SLICE_S = 0.002
_SLICE_NAMES = 16


class _Matches:
    """The topics that a pattern matches, after the first `seen` changes."""

    __slots__ = ("names", "seen")

    def __init__(self, names: set[str], seen: int) -> None:
        self.names = names
        self.seen = seen


class ClusterTopics:
    """`metadata` gives the present state; whoever changes that says so with `changed`."""

    def __init__(self, metadata: Callable[[], MetadataState]) -> None:
        self._metadata = metadata
        self.version = metadata().applied_index
        self._matches: OrderedDict[str, _Matches] = OrderedDict()
        self._names_count = 0
        # Names of topics that came or went, oldest first, without the `_forgotten` first ones.
        self._changes: list[str] = []
        self._forgotten = 0

    # -- the port

    def find(self, name: str) -> Topic | None:
        """The topic of this name, if there is one."""
        topic = self._metadata().topics.get(name)
        return None if topic is None else Topic(topic.id, len(topic.partitions))

    def name_of(self, topic_id: bytes) -> str | None:
        """The name of the topic with this id, if there is one."""
        topic = self._metadata().topics_by_id.get(topic_id)
        return None if topic is None else topic.name

    def match(self, regex: str) -> tuple[str, ...]:
        """The names of all topics that the regex matches as a whole, sorted.

        Raises KafkaError: INVALID_REGULAR_EXPRESSION.
        """
        found = compile_pattern(regex).fullmatch
        topics = self._metadata().topics
        matches = self._take(regex)
        if matches is None:
            names = {name for name in topics if found(name)}
        else:
            names = matches.names
            for name in self._changes[matches.seen - self._forgotten :]:
                if name in topics and found(name):
                    names.add(name)
                else:
                    names.discard(name)
        self._put(regex, _Matches(names, self._seen))
        return tuple(sorted(names))

    # -- changes

    def changed(self, name: str) -> None:
        """This topic came, went, or got partitions."""
        self.version = self._metadata().applied_index
        self._changes.append(name)
        if len(self._changes) > CHANGES_MAX:
            self._forgotten += CHANGES_MAX // 2
            del self._changes[: CHANGES_MAX // 2]

    def replaced(self) -> None:
        """Any topic may have come, gone or changed."""
        self.version = self._metadata().applied_index
        self._forgotten = self._seen + 1
        self._changes.clear()

    # -- matching ahead

    def knows(self, regex: str) -> bool:
        """Whether `match` has little to do for this pattern."""
        matches = self._matches.get(regex)
        return matches is not None and matches.seen >= self._forgotten

    async def prepare(self, regex: str) -> None:
        """Matches a pattern that isn't known yet, so that `match` has little to do.

        Raises KafkaError: INVALID_REGULAR_EXPRESSION.
        """
        found = compile_pattern(regex).fullmatch
        loop = asyncio.get_running_loop()
        seen = self._seen
        waiting = iter(list(self._metadata().topics))
        names: set[str] = set()
        deadline_s = loop.time() + _SLICE_S
        while some := list(islice(waiting, _SLICE_NAMES)):
            names.update(name for name in some if found(name))
            if loop.time() >= deadline_s:
                await asyncio.sleep(0)
                deadline_s = loop.time() + _SLICE_S
        if not self.knows(regex):
            self._take(regex)
            self._put(regex, _Matches(names, seen))

    # -- memory

    @property
    def _seen(self) -> int:
        return self._forgotten + len(self._changes)

    def _take(self, regex: str) -> _Matches | None:
        matches = self._matches.pop(regex, None)
        if matches is None:
            return None
        self._names_count -= len(matches.names) + 1
        return matches if matches.seen >= self._forgotten else None

    def _put(self, regex: str, matches: _Matches) -> None:
        self._matches[regex] = matches
        self._names_count += len(matches.names) + 1
        while self._names_count > REMEMBERED_NAMES_MAX:
            _, oldest = self._matches.popitem(last=False)
            self._names_count -= len(oldest.names) + 1


@dataclass(frozen=True, slots=True)
class DeleteTopic:
    """Has a machine forget what was committed for a topic."""

    topic: str

    def __call__(self, machine: GroupMachine, now_ms: int) -> Effects:
        return machine.delete_topic(self.topic, now_ms)
