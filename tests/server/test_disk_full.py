"""A disk that takes no more: the write fails with its Kafka error, nothing acknowledged is lost.

The kernel's own limit on file sizes (RLIMIT_FSIZE of the running broker) plays the full disk: a
write that crosses it is cut short, the next one fails. That is what a full disk does, without one.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator

import pytest

from kraftpy.protocol import messages
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.testing import Broker
from tests.server.test_produce import batch, read_values
from tests.server.wire import Wire, produce

LIMIT_BYTES = 20_000
DEADLINE_S = 20.0


@pytest.fixture
def own_broker() -> Iterator[Broker]:
    with Broker() as started:
        yield started


def limit_file_size(broker: Broker, size_bytes: int) -> None:
    resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (size_bytes, resource.RLIM_INFINITY))


def create(wire: Wire, topic: str) -> None:
    wanted = messages.MetadataRequest.MetadataRequestTopic(name=topic)
    response = wire.call(ApiKey.METADATA, 9, messages.MetadataRequest([wanted]))
    assert response.topics[0].error_code == 0


@pytest.mark.parametrize("acks", [1, -1])
def test_a_full_disk_refuses_and_recovers(own_broker: Broker, acks: int) -> None:
    broker = own_broker
    with Wire(broker.host, broker.port) as wire:
        create(wire, "t")
        limit_file_size(broker, LIMIT_BYTES)
        acknowledged, refused = [], 0
        for n in range(40):
            value = b"%04d" % n * 250
            answer = produce(wire, "t", batch(value), acks=acks)
            if answer.error_code == 0:
                assert answer.base_offset == len(acknowledged)
                acknowledged.append(value)
            else:
                assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
                refused += 1
        assert acknowledged
        assert refused
        assert read_values(wire, "t") == list(enumerate(acknowledged))
        # Smaller batches may still fit; what was cut short must not stand between them.
        limit_file_size(broker, 2 * LIMIT_BYTES)
        answer = produce(wire, "t", batch(b"room again"), acks=acks)
        assert (answer.error_code, answer.base_offset) == (0, len(acknowledged))
        acknowledged.append(b"room again")
    broker.kill()
    broker.restart()
    with Wire(broker.host, broker.port) as wire:
        assert read_values(wire, "t") == list(enumerate(acknowledged))


def test_a_topic_that_finds_no_room_is_there_once_there_is(own_broker: Broker) -> None:
    broker = own_broker
    with Wire(broker.host, broker.port) as wire:
        create(wire, "before")
        assert produce(wire, "before", batch(b"1")).error_code == 0
        limit_file_size(broker, 1)
        create(wire, "squeezed")
        refused = produce(wire, "squeezed", batch(b"x"))
        assert refused.error_code in (
            ErrorCode.KAFKA_STORAGE_ERROR,
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
        )
        assert read_values(wire, "before") == [(0, b"1")]
        limit_file_size(broker, resource.RLIM_INFINITY)
        deadline = time.monotonic() + DEADLINE_S
        while produce(wire, "squeezed", batch(b"x")).error_code != 0:
            assert time.monotonic() < deadline
            time.sleep(0.05)  # the broker looks for room once a second
