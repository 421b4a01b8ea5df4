"""Topics as group coordinators see them, over metadata that the test holds."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import Any

import pytest

from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.server.coordination import group_topics
from kraftpy.server.coordination.group_topics import ClusterTopics


class Metadata:
    """Topics by name; `create` and `delete` tell `seen` as a broker does."""

    def __init__(self, *names: str) -> None:
        self.state: Any = SimpleNamespace(applied_index=7, topics={}, topics_by_id={})
        for name in names:
            self._put(name)
        self.seen = ClusterTopics(lambda: self.state)

    def _put(self, name: str, partitions: int = 1) -> None:
        topic = SimpleNamespace(
            id=name.encode().rjust(16), name=name, partitions=dict.fromkeys(range(partitions))
        )
        self.state.topics[name] = self.state.topics_by_id[topic.id] = topic

    def create(self, name: str, partitions: int = 1) -> None:
        self.state.applied_index += 1
        self._put(name, partitions)
        self.seen.changed(name)

    def delete(self, name: str) -> None:
        self.state.applied_index += 1
        del self.state.topics_by_id[self.state.topics.pop(name).id]
        self.seen.changed(name)

    def clear(self) -> None:
        self.state.applied_index += 1
        self.state.topics.clear()
        self.state.topics_by_id.clear()
        self.seen.replaced()


def test_topics_are_found_by_name_and_by_id() -> None:
    metadata = Metadata()
    metadata.create("t", 3)
    found = metadata.seen.find("t")
    assert found is not None
    assert found.partition_count == 3
    assert metadata.seen.name_of(found.topic_id) == "t"
    assert metadata.seen.find("u") is None
    assert metadata.seen.name_of(bytes(16)) is None


def test_the_version_is_the_offset_of_the_last_change_of_topics() -> None:
    metadata = Metadata("t")
    assert metadata.seen.version == 7
    metadata.state.applied_index += 1  # something else
    assert metadata.seen.version == 7
    metadata.create("u")
    assert metadata.seen.version == 9
    metadata.state.applied_index += 5
    metadata.seen.replaced()
    assert metadata.seen.version == 14


def test_matches_follow_the_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_topics, "CHANGES_MAX", 8)
    monkeypatch.setattr(group_topics, "REMEMBERED_NAMES_MAX", 25)
    chance = random.Random(1)
    metadata = Metadata()
    for _ in range(2000):
        name = chance.choice("abc") + str(chance.randrange(4))
        if name in metadata.state.topics:
            metadata.delete(name)
        else:
            metadata.create(name)
        if chance.random() < 0.01:
            metadata.clear()
        if chance.random() < 0.3:
            pattern = chance.choice(["a.*", "[ab]1", ".*", "c|b.?"])
            fresh = ClusterTopics(lambda: metadata.state)
            assert metadata.seen.match(pattern) == fresh.match(pattern)


def test_what_is_no_pattern() -> None:
    topics = Metadata("t").seen
    with pytest.raises(KafkaError) as caught:
        topics.match("(")
    assert caught.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION
    with pytest.raises(KafkaError):
        asyncio.run(topics.prepare("("))


def test_preparing_gives_way_to_others_and_misses_no_change() -> None:
    metadata = Metadata(*(f"topic-{number}" for number in range(20_000)))

    async def run() -> int:
        preparing = asyncio.ensure_future(metadata.seen.prepare("topic-.*[05]"))
        turns = 0
        while not preparing.done():
            await asyncio.sleep(0)
            turns += 1
            if turns == 2:
                metadata.create("topic-new-5")
                metadata.delete("topic-0")
        await preparing
        return turns

    assert asyncio.run(run()) > 2
    assert metadata.seen.knows("topic-.*[05]")
    found = metadata.seen.match("topic-.*[05]")
    assert len(found) == 4000
    assert "topic-new-5" in found
    assert "topic-0" not in found


def test_what_was_prepared_while_everything_changed_is_not_used() -> None:
    metadata = Metadata(*(f"topic-{number}" for number in range(20_000)))

    async def run() -> None:
        preparing = asyncio.ensure_future(metadata.seen.prepare(".*"))
        await asyncio.sleep(0)
        metadata.clear()
        await preparing

    asyncio.run(run())
    assert not metadata.seen.knows(".*")
    assert metadata.seen.match(".*") == ()
