"""A group coordinator over a log and a controller that the test holds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

from kraftpy.core.config import BrokerConfig
from kraftpy.core.groups import Client, CommittedOffset, OffsetRecord, encode_record
from kraftpy.core.metadata import MetadataState
from kraftpy.core.metadata.commands import CreateTopics
from kraftpy.core.metadata.records import OFFSETS_TOPIC
from kraftpy.protocol import messages
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.records import build_batch
from kraftpy.server.coordination.group_coordinator import GroupCoordinator
from tests.unit.server.coordination.fake_log import FakeLog

PARTITIONS = 4
CLIENT = Client(9, "c", "/127.0.0.1")


class FakeHost:
    """As much of a broker as the coordinator knows."""

    def __init__(self, **settings: str) -> None:
        defaults = {"group.initial.rebalance.delay.ms": "0", "group.min.session.timeout.ms": "1"}
        self.config = BrokerConfig.from_properties(
            {
                "process.roles": "broker,controller",
                "node.id": "1",
                "log.dirs": "/tmp/unused",
                "controller.quorum.voters": "1@127.0.0.1:9093",
                "listeners": "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093",
                "controller.listener.names": "CONTROLLER",
                **defaults,
                **settings,
            }
        )
        self.node_id = 1
        self.in_touch = True
        self.avoided: frozenset[int] = frozenset()
        self.loop = asyncio.get_running_loop()
        self.replicas = FakeLog(OFFSETS_TOPIC)
        self.metadata: MetadataState = SimpleNamespace(
            topics={"t": topic(3)}, topics_by_id={}, configs={}, applied_index=1
        )  # type: ignore[assignment]
        self.controller = self
        self.proposals: list[CreateTopics] = []
        self.refuses = False
        self.clock_ms: Callable[[], float] = lambda: self.loop.time() * 1000
        self.groups = GroupCoordinator(self)

    def now_ms(self) -> int:
        return int(self.clock_ms())

    @property
    def group_bytes(self) -> int:
        """What groups take, by the coordinator's count."""
        return self.groups._memory.used_bytes

    def lead(self, *indexes: int) -> None:
        """The offsets topic is there and this broker leads these of its partitions."""
        self.metadata.topics[OFFSETS_TOPIC] = topic(PARTITIONS)
        for index in indexes:
            self.replicas.led.setdefault(index, bytearray())
        self.groups.refresh()

    async def propose(self, command: CreateTopics, timeout_ms: int) -> tuple[int, Any]:
        self.proposals.append(command)
        await asyncio.sleep(0)
        (item,) = command.topics
        answer = {"name": item.name, "error": 0, "message": None}
        if self.refuses:
            answer |= {"error": int(ErrorCode.INVALID_REPLICATION_FACTOR), "message": "too few"}
        else:
            self.lead(*range(PARTITIONS))
        result = SimpleNamespace(error=ErrorCode.NONE, message=None, value={"topics": [answer]})
        return 1, result

    def commit(
        self, offset: int, group: str = "g", partition: int = 0
    ) -> messages.OffsetCommitResponse | asyncio.Future[messages.OffsetCommitResponse]:
        return self.groups.commit_offsets(
            8,
            messages.OffsetCommitRequest(
                group_id=group,
                topics=[
                    messages.OffsetCommitRequest.OffsetCommitRequestTopic(
                        name="t",
                        partitions=[
                            messages.OffsetCommitRequest.OffsetCommitRequestPartition(
                                partition, offset
                            )
                        ],
                    )
                ],
            ),
        )

    def offset(self, group: str = "g") -> int | None:
        ((_, ((_, offset, _, _),)),) = self.groups.fetch_offsets(group, [("t", [0])])()
        return None if offset < 0 else offset

    def join(
        self, member_id: str = "", session_timeout_ms: int = 10_000, instance: str | None = None
    ) -> Any:
        return self.groups.join_group(
            CLIENT,
            messages.JoinGroupRequest(
                group_id="g",
                session_timeout_ms=session_timeout_ms,
                rebalance_timeout_ms=10_000,
                member_id=member_id,
                group_instance_id=instance,
                protocol_type="consumer",
                protocols=[messages.JoinGroupRequest.JoinGroupRequestProtocol("range", b"")],
            ),
        )


def topic(partitions: int) -> Any:
    return SimpleNamespace(
        id=bytes(16), partitions={index: SimpleNamespace(leader=1) for index in range(partitions)}
    )


def errors(response: Any) -> list[int]:
    return [p.error_code for topic in response.topics for p in topic.partitions]


async def soon(condition: Callable[[], object], timeout_s: float = 5.0) -> None:
    deadline_s = asyncio.get_running_loop().time() + timeout_s
    while not condition():
        assert asyncio.get_running_loop().time() < deadline_s, "it did not happen"
        await asyncio.sleep(0.005)


async def answer(result: Any) -> Any:
    return await result if isinstance(result, Awaitable) else result


def coordinated(**settings: str) -> FakeHost:
    host = FakeHost(**settings)
    host.lead(*range(PARTITIONS))
    return host


def record(
    group: str, offset: int, partition: int = 0
) -> tuple[int, bytes | None, bytes | None, list[Any]]:
    committed = CommittedOffset(offset, -1, "", 0, -1)
    key, value = encode_record(OffsetRecord(group, "t", partition, committed))
    return 0, key, value, []


def accounted() -> list[bytes]:
    """Batches of "g" after which what is pending has been counted as what groups take."""
    pending = build_batch(
        [record("g", 8), record("g", 9, 1)],
        producer_id=1,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )
    return [pending, build_batch([record("g", 1)])]
