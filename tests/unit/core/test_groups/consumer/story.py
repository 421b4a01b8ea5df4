"""A consumer group in which nothing happens by chance, and what its members heard."""

from __future__ import annotations

from typing import Any

from kraftpy.core.groups.consumer.state import ConsumerGroup
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse

from .world import GROUP, REBALANCE_MS, World, as_partitions, from_partitions

NONE = ErrorCode.NONE
Heard = ConsumerGroupHeartbeatResponse


class Story(World):
    """A world in which nothing happens by chance."""

    def __init__(self, **config: Any) -> None:
        super().__init__(0)
        self.topics.make("beer", 6)
        self.topics.make("cheese", 2)
        if config:
            self.config = type(self.config)(**config)
            self.machine = self.load([])

    def request(self, member_id: str, epoch: int, **fields: Any) -> ConsumerGroupHeartbeatRequest:
        owned = fields.pop("owned", None)
        if epoch == 0:
            fields = {"rebalance_timeout_ms": REBALANCE_MS, **fields}
            if "subscribed_topic_regex" not in fields:
                fields.setdefault("subscribed_topic_names", ["beer"])
            owned = set() if owned is None else owned
        return ConsumerGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=member_id,
            member_epoch=epoch,
            topic_partitions=None if owned is None else as_partitions(owned),
            **fields,
        )

    def beat(self, member_id: str, epoch: int, **fields: Any) -> Heard:
        """A heartbeat and its answer, once all that was in flight is committed."""
        token = self.transmit(self.request(member_id, epoch, **fields))
        while self.in_flight:
            self.land()
        response = self.replies[token]
        assert isinstance(response, Heard)
        return response

    def error(self, member_id: str, epoch: int, **fields: Any) -> ErrorCode:
        before = len(self.log)
        code = ErrorCode(self.beat(member_id, epoch, **fields).error_code)
        assert code is NONE or len(self.log) == before, "a refused request was written down"
        return code

    def beer(self, *indexes: int) -> set[tuple[bytes, int]]:
        return {(self.topics.topics["beer"].topic_id, index) for index in indexes}

    def two_members(self) -> None:
        """Members a and b in epoch 2, with three partitions each."""
        assert self.beat("a", 0).member_epoch == 1
        assert self.beat("b", 0).member_epoch == 2
        assert self.beat("a", 1).member_epoch == 1
        assert self.beat("a", 1, owned=given(self, "a")).member_epoch == 2
        assert self.beat("b", 2).member_epoch == 2
        assert self.state == "Stable"

    @property
    def there(self) -> ConsumerGroup:
        """The group, which is there."""
        assert self.group is not None
        return self.group

    @property
    def state(self) -> str:
        return str(self.machine.consumer_describe(GROUP).group_state)


def given(story: Story, member_id: str) -> set[tuple[bytes, int]]:
    group = story.there
    assigned = group.current(member_id).assigned
    return {(topic_id, index) for topic_id, indexes in assigned.items() for index in indexes}


def told(response: Heard) -> set[tuple[bytes, int]] | None:
    if response.assignment is None:
        return None
    return from_partitions(response.assignment.topic_partitions)
