"""What groups may make a broker keep: by members that say much and go, by names nobody has."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from confluent_kafka import Consumer

from kraftpy.core.groups.memory import AWAITED_MAX_BYTES
from kraftpy.protocol import messages
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.testing import Broker
from tests.server.test_bad_input import memory_bytes
from tests.server.wire import Wire
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("started_from_scratch")

MAX_BYTES = 1_000_000
DELAY_MS = 60_000


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """One with room for four members that say all they may; first generations take their time."""
    with Broker(
        group_max_metadata_bytes=MAX_BYTES,
        group_coordinator_max_memory_bytes=4 * MAX_BYTES + MAX_BYTES // 2,
        group_initial_rebalance_delay_ms=DELAY_MS,
    ) as started:
        with Wire(started.host, started.port) as wire:
            find = messages.FindCoordinatorRequest(key="g")
            assert wire.call(ApiKey.FIND_COORDINATOR, 1, find).error_code == ErrorCode.NONE
        yield started


def join(group: str, size_bytes: int) -> messages.JoinGroupRequest:
    return messages.JoinGroupRequest(
        group_id=group,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=DELAY_MS,
        protocol_type="consumer",
        protocols=[
            messages.JoinGroupRequest.JoinGroupRequestProtocol("range", bytes(size_bytes)),
        ],
    )


def groups(wire: Wire) -> list[str]:
    answer = wire.call(ApiKey.LIST_GROUPS, 4, messages.ListGroupsRequest())
    return [group.group_id for group in answer.groups]


def test_members_that_say_much_and_go(broker: Broker) -> None:
    with ExitStack() as connections:

        def connect() -> Wire:
            return connections.enter_context(Wire(broker.host, broker.port))

        watcher = connect()
        too_much = watcher.call(ApiKey.JOIN_GROUP, 3, join("g", MAX_BYTES + 1))
        assert too_much.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
        waiting = [connect() for _ in range(4)]
        for number, wire in enumerate(waiting):
            wire.send(ApiKey.JOIN_GROUP, 3, join(f"g{number}", MAX_BYTES - 1000))
        wait_until(lambda: len(groups(watcher)) == 4, "the members are let in")
        refused = watcher.call(ApiKey.JOIN_GROUP, 3, join("g5", MAX_BYTES - 1000))
        assert refused.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        for wire in waiting:
            wire.sock.close()
        wait_until(lambda: groups(watcher) == [], "groups end with those who made them")
        text = broker.log_path.read_text()
        assert "group-limit group=g " in text
        assert "setting=group.max.metadata.bytes" in text
        assert "setting=group.coordinator.max.memory.bytes" in text


def test_librdkafka_comes_in_when_there_is_room_again(broker: Broker) -> None:
    with ExitStack() as connections:
        waiting = [connections.enter_context(Wire(broker.host, broker.port)) for _ in range(5)]
        for number, wire in enumerate(waiting[:4]):
            wire.send(ApiKey.JOIN_GROUP, 3, join(f"g{number}", MAX_BYTES - 1000))
        wait_until(lambda: len(groups(waiting[4])) == 4, "the members are let in")
        wire = connections.enter_context(Wire(broker.host, broker.port))
        wire.send(ApiKey.JOIN_GROUP, 3, join("g4", MAX_BYTES // 2 - 10_000))
        wait_until(lambda: len(groups(waiting[4])) == 5, "the last member is let in")
        consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap,
                "group.id": "patient",
                "client.id": "c" * 4000,
            }
        )
        over = threading.Event()

        def poll() -> None:
            while not over.is_set():
                consumer.poll(0.1)

        consumer.subscribe(["__consumer_offsets"])
        poller = threading.Thread(target=poll)
        poller.start()
        try:
            text = "group-limit group=patient"
            wait_until(lambda: text in broker.log_path.read_text(), "the consumer is refused")
            assert "patient" not in groups(waiting[4])
            wire.sock.close()
            wait_until(lambda: "patient" in groups(waiting[4]), "the consumer is let in")
        finally:
            over.set()
            poller.join()
            consumer.close()


def test_invented_groups_cost_nothing(broker: Broker) -> None:
    """Each had a kilobyte for the time of its session, and its name. Some may wait."""
    with Wire(broker.host, broker.port) as wire:
        before_bytes = memory_bytes(broker.pid)
        for number in range(1200):
            name = f"{number}-".ljust(15_000, "x")
            answer = wire.call(ApiKey.JOIN_GROUP, 4, join(name, 10))
            assert answer.error_code == ErrorCode.MEMBER_ID_REQUIRED
        assert len(groups(wire)) * 15_000 < AWAITED_MAX_BYTES
        assert memory_bytes(broker.pid) - before_bytes < 64_000_000
