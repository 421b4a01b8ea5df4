"""What a partition tells its followers, whatever they make of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from kraftpy.core.config import TopicConfig
from kraftpy.core.producers import Duplicate
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.records import build_batch
from kraftpy.server.replication.partition import Partition
from kraftpy.server.replication.partition_host import Follower as Listening


class Follower:
    """Leaves as soon as it hears something, as one does that is answered with an error."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.heard: list[object] = []
        partition.add_follower(cast(Listening, self))

    def moved(self, *, at_once: bool = False) -> None:
        self.heard.append(("moved", at_once))
        self.partition.remove_follower(cast(Listening, self))

    def failed(self, error: ErrorCode) -> None:
        self.heard.append(error)
        self.partition.remove_follower(cast(Listening, self))


def followed(count: int) -> tuple[Partition, list[Follower]]:
    log: Any = SimpleNamespace(unflushed_messages=0, delete_records_before=lambda offset: None)
    unused: Any = None
    partition = Partition(
        "t",
        bytes(16),
        0,
        host=unused,
        log=log,
        config=TopicConfig(),
        high_watermark=0,
        numbers=unused,
    )
    return partition, [Follower(partition) for _ in range(count)]


def test_a_follower_that_leaves_when_it_hears_of_deleted_records_keeps_it_from_nobody() -> None:
    partition, followers = followed(3)
    partition.delete_records_before(5)
    assert [each.heard for each in followers] == [[("moved", True)]] * 3


def test_a_follower_that_leaves_when_the_leadership_ends_keeps_it_from_nobody() -> None:
    partition, followers = followed(3)
    partition.close(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert [each.heard for each in followers] == [[ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]] * 3


def test_who_leads_no_more_acknowledges_no_retry() -> None:
    """What it has of the first try may be cut off: only the new leader knows."""
    partition, _ = followed(0)
    written = Duplicate(base_offset=0, last_offset=0, timestamp=1)
    known = SimpleNamespace(check=lambda header, now_ms: written)
    cast(Any, partition.log).producers = known
    cast(Any, partition.log).uptime_ms = lambda: 0
    records = bytearray(
        build_batch([(1, None, b"x", [])], producer_id=1, producer_epoch=0, base_sequence=0)
    )
    with pytest.raises(KafkaError) as raised:
        partition.append(memoryview(records), now_ms=1)
    assert raised.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
