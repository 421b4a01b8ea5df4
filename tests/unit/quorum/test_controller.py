"""The active controller's decisions, over real sockets and on the real metadata."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kraftpy.core.metadata import MetadataState
from kraftpy.quorum import controller as controller_module
from kraftpy.quorum.balancing import out_of_balance
from tests.waiting import until

from .commands import new_topic, registration
from .faults import NO_SPACE, FailingLayer
from .proxy import Proxy
from .stack import SETTINGS, VOTER, Broker, Controller, controller

SESSION = {"heartbeat_interval_ms": 50}


class Member(Broker):
    """A broker that registers, and is unfenced."""

    def __init__(self, ports: int | dict[int, int], node_id: int, **options: Any) -> None:
        voters = {VOTER: ports} if isinstance(ports, int) else ports
        super().__init__(
            voters, node_id=node_id, machine_type=MetadataState, **{**SESSION, **options}
        )
        self.node_id = node_id
        self.epoch = -1

    async def __aenter__(self) -> Member:
        await super().__aenter__()
        await self.join()
        return self

    async def join(self, life: int = 1) -> None:
        command = registration(self.node_id, life=life)
        self.epoch = (await self.do(command))["broker_epoch"]
        self.client.registered(self.epoch)
        await self.unfence()

    async def unfence(self) -> None:
        await self.do(
            {"type": "unfence_broker", "broker_id": self.node_id, "broker_epoch": self.epoch}
        )

    def sees_fenced(self, node_id: int) -> bool:
        fenced: bool = self.copy.brokers[node_id].fenced
        return fenced


@contextlib.asynccontextmanager
async def metadata_controller(
    folder: Path, port: int = 0, **settings: Any
) -> AsyncIterator[Controller]:
    chosen = replace(SETTINGS, **settings)
    async with controller(
        folder, port=port, machine_type=MetadataState, settings=chosen
    ) as serving:
        yield serving


async def test_a_broker_that_is_gone_is_fenced_and_one_that_lives_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        metadata_controller(tmp_path / "m", broker_session_timeout_ms=1_000) as serving,
        Member(serving.port, 1) as first,
    ):
        async with Member(serving.port, 2):
            await asyncio.sleep(1.5)
            assert not first.sees_fenced(1)
            assert not first.sees_fenced(2)
            started = asyncio.get_running_loop().time()
            assert first.client.suspects == set()
        await until(lambda: first.client.suspects == {2})
        await until(lambda: first.sees_fenced(2))
        assert asyncio.get_running_loop().time() - started > 0.2, "the grace"
        assert "broker-session-lost broker=2" in caplog.text
        assert "its connection is gone" in caplog.text
        await until(lambda: first.client.suspects == set())
        assert not first.sees_fenced(1)


async def test_a_broker_that_hangs_is_fenced_at_the_session_timeout_and_can_come_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hangs = False

    def tamper(direction: str, number: int, frame: bytes) -> list[bytes]:
        return [] if hangs else [frame]

    async with (
        metadata_controller(tmp_path / "m", broker_session_timeout_ms=600) as serving,
        Member(serving.port, 1) as first,
        Proxy(serving.port, tamper) as proxy,
        # It leaves the controller the time to be the first that gives up.
        Member(proxy.port, 2, session_timeout_ms=3_000) as second,
    ):
        hangs = True
        await until(lambda: first.sees_fenced(2))
        assert "broker-session-lost broker=2" in caplog.text
        assert "nothing was heard from it for 600 ms" in caplog.text
        await until(lambda: second.client.session_lapsed)
        hangs = False
        await until(lambda: second.sees_fenced(2))
        await second.unfence()
        await asyncio.sleep(1)
        assert not second.sees_fenced(2)


async def test_back_within_the_grace_is_never_fenced(tmp_path: Path) -> None:
    cut = False
    async with (
        metadata_controller(tmp_path / "m") as serving,
        Proxy(serving.port, lambda d, n, f: None if cut else [f]) as proxy,
        Member(proxy.port, 1) as member,
    ):
        for _ in range(5):
            cut = True
            await until(lambda: not member.client.is_connected)
            cut = False
            await until(lambda: member.client.is_connected)
        await asyncio.sleep(0.5)
        assert not member.sees_fenced(1)


async def test_a_new_controller_fences_who_does_not_appear(tmp_path: Path) -> None:
    """That the controller went away is not the brokers' fault."""

    async with metadata_controller(tmp_path / "m") as serving:
        port = serving.port
        first, second = Member(port, 1), Member(port, 2)
        async with first:
            await second.__aenter__()
            serving.listener.close()
            await asyncio.sleep(0.4)
            assert not serving.quorum.machine.brokers[1].fenced  # type: ignore[attr-defined]
    async with metadata_controller(tmp_path / "m", port=port):
        await second.client.barrier(10_000)
        assert not second.sees_fenced(1)
        assert not second.sees_fenced(2)
        await until(lambda: second.sees_fenced(1))
        assert not second.sees_fenced(2)
        await second.client.close()


async def test_a_full_disk_delays_fencing_until_there_is_space(tmp_path: Path) -> None:
    files = FailingLayer()
    async with (
        controller(tmp_path / "m", files=files, machine_type=MetadataState) as serving,
        Member(serving.port, 1) as first,
    ):
        async with Member(serving.port, 2):
            files.failures["write"] = NO_SPACE
        await asyncio.sleep(0.5)
        assert not first.sees_fenced(2)
        files.failures.clear()
        await until(lambda: first.sees_fenced(2))


async def test_the_preferred_leaders_get_their_partitions_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller_module, "ELECTIONS_AT_ONCE", 7)

    settings = {
        "leader_imbalance_check_interval_seconds": 1,
        "leader_imbalance_per_broker_percentage": 0,
    }
    async with (
        metadata_controller(tmp_path / "m", **settings) as serving,
        Member(serving.port, 1) as first,
        Member(serving.port, 2) as second,
    ):
        await first.do({"type": "create_topics", "topics": [new_topic("t", 20, 2)], "seed": 1})
        partitions = first.copy.topics["t"].partitions
        assert {each.leader for each in partitions.values()} == {1, 2}
        await first.do({"type": "fence_broker", "broker_id": 2, "broker_epoch": second.epoch})
        assert {each.leader for each in partitions.values()} == {1}
        await second.unfence()
        await first.do(rejoining(first, 2))
        await until(lambda: all(each.leader == each.replicas[0] for each in partitions.values()))


def rejoining(leader: Member, broker_id: int) -> dict[str, Any]:
    """The leader's alter_partition that takes a broker into every ISR again."""
    epochs = {each.id: each.epoch for each in leader.copy.brokers.values()}
    topic = leader.copy.topics["t"]
    return {
        "type": "alter_partition",
        "broker_id": leader.node_id,
        "broker_epoch": leader.epoch,
        "topics": [
            {
                "topic_id": topic.id,
                "partitions": [
                    {
                        "index": index,
                        "leader_epoch": each.leader_epoch,
                        "partition_epoch": each.partition_epoch,
                        "isr": [
                            {"broker_id": id_, "broker_epoch": epochs[id_]}
                            for id_ in (*each.isr, broker_id)
                        ],
                    }
                    for index, each in topic.partitions.items()
                    if broker_id not in each.isr
                ],
            }
        ],
    }


async def test_delegation_tokens_that_are_over_are_removed(tmp_path: Path) -> None:
    def creation(token_id: str, expires_ms: int) -> dict[str, Any]:
        return {
            "type": "create_token",
            "token_id": token_id,
            "owner": "User:alice",
            "requester": "User:alice",
            "issued_ms": 0,
            "expires_ms": expires_ms,
            "max_ms": expires_ms,
        }

    async with (
        metadata_controller(
            tmp_path / "m", delegation_token_expiry_check_interval_ms=50
        ) as serving,
        Member(serving.port, 1) as member,
    ):
        await member.do(creation("lasting", 2**60))
        await member.do(creation("over", 5))
        await until(lambda: list(member.copy.tokens) == ["lasting"])
        await member.do(creation("over too", 6))
        assert "over too" in member.copy.tokens
        await until(lambda: list(member.copy.tokens) == ["lasting"])


def test_only_what_can_move_and_is_worth_it_moves() -> None:
    state = MetadataState()

    def do(command: dict[str, Any]) -> None:
        assert not state.apply(state.applied_index + 1, command).error

    def worth(percentage: int) -> int:
        return len(asyncio.run(out_of_balance(state, percentage)))

    def fence(broker_id: int, kind: str) -> None:
        epoch = state.brokers[broker_id].epoch
        do({"type": f"{kind}_broker", "broker_id": broker_id, "broker_epoch": epoch})

    for broker_id in (1, 2, 3):
        do(registration(broker_id))
        fence(broker_id, "unfence")
    do({"type": "create_topics", "topics": [new_topic("t", 30, 2)], "seed": 1})
    assert worth(0) == 0
    fence(1, "fence")
    assert worth(0) == 0, "it can't lead"
    fence(1, "unfence")
    assert worth(0) == 0, "it is in no ISR"
    partitions = state.topics["t"].partitions
    for index in [i for i, each in partitions.items() if each.replicas[0] == 1][:4]:
        old = partitions[index]
        partitions[index] = replace(old, isr=(*old.isr, 1))
    assert worth(39) == 4, "4 of the 10 that prefer it"
    assert worth(40) == 0
