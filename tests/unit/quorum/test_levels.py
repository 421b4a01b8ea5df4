"""When the metadata level rises, and how voters and brokers of two releases get on with each other.

The release before levels is `earlier_main`, or what is in the folder that KRAFTPY_EARLIER names.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from kraftpy.core.metadata import LEVEL, MetadataState, levels
from kraftpy.protocol.errors import ErrorCode
from kraftpy.quorum import links
from kraftpy.quorum.packing import pack
from kraftpy.quorum.process import ExitCode
from tests.waiting import until

from .commands import new_topic, registration
from .stack import TIMEOUT_MS, Broker
from .test_controller import SESSION, Member, metadata_controller
from .voters import Program, Voters, follows, leader_of, three_voters

A_WHILE_S = 0.5
"""Five looks of the controller at who knows what."""


def earlier() -> Program:
    folder = os.environ.get("KRAFTPY_EARLIER")
    if folder is None:
        return Program(Path(__file__).with_name("earlier_main.py"))
    return Program(Path(folder) / "tests/unit/quorum/controller_main.py", {"PYTHONPATH": folder})


EARLIER = earlier()


def observer(voters: Voters) -> Broker:
    return voters.broker(machine_type=MetadataState, **SESSION)


class Releases:
    """Which release the controller and the brokers of this process are of; first the earlier."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        monkeypatch.setattr(levels, "LEVEL", 0)

    def upgrade_controller(self) -> None:
        self._monkeypatch.setattr(links, "with_level", lambda number: number)
        self._monkeypatch.setattr(levels, "LEVEL", LEVEL)

    def upgrade_all(self) -> None:
        self._monkeypatch.undo()


@pytest.fixture
def releases(monkeypatch: pytest.MonkeyPatch) -> Releases:
    return Releases(monkeypatch)


async def stays_at_0(*brokers: Broker) -> None:
    await asyncio.sleep(A_WHILE_S)
    for broker in brokers:
        await broker.client.barrier(TIMEOUT_MS)
        assert broker.copy.level == 0


async def is_raised(*brokers: Broker) -> None:
    for broker in brokers:
        await until(lambda broker=broker: broker.copy.level == LEVEL)  # type: ignore[misc]


async def proposed(broker: Broker, level: int) -> Any:
    """What becomes of an operator's wish to raise the level."""
    _, result = await broker.client.propose({"type": "raise_level", "level": level}, TIMEOUT_MS)
    return result


async def is_refused(broker: Broker, *reasons: str) -> None:
    await stays_at_0(broker)
    result = await proposed(broker, LEVEL)
    assert result.error is ErrorCode.INVALID_UPDATE_VERSION
    described = await broker.client.describe_quorum(TIMEOUT_MS)
    assert described.level_refusals[-1:] in ((result.message,), ())  # none to an earlier release
    for reason in reasons:
        assert reason in result.message
    assert result.message.count(";") == len(reasons) - 1
    await stays_at_0(broker)


async def raise_level(broker: Broker) -> None:
    """As soon as all have said what they know."""
    deadline = asyncio.get_running_loop().time() + 20
    while (result := await proposed(broker, LEVEL)).error is not ErrorCode.NONE:
        assert asyncio.get_running_loop().time() < deadline, result.message
        await asyncio.sleep(0.1)
    await is_raised(broker)


# -- one voter


async def test_a_new_quorum_reaches_the_level_at_once(tmp_path: Path) -> None:
    async with metadata_controller(tmp_path / "m") as serving, Member(serving.port, 1) as broker:
        await is_raised(broker)


async def test_it_is_refused_while_a_broker_is_of_an_earlier_release(
    tmp_path: Path, releases: Releases
) -> None:
    async with metadata_controller(tmp_path / "m") as serving, Member(serving.port, 1) as broker:
        releases.upgrade_controller()
        await is_refused(broker, "node 1 runs a release that doesn't know it")
        releases.upgrade_all()
        await stays_at_0(broker)  # it is for the operator
        assert (await broker.client.describe_quorum(TIMEOUT_MS)).level_refusals == (None,) * LEVEL
        await raise_level(broker)


async def test_it_is_refused_while_a_broker_is_registered_and_down(
    tmp_path: Path, releases: Releases
) -> None:
    """It may come back as what it was."""
    async with metadata_controller(tmp_path / "m") as serving:
        async with Member(serving.port, 1), Member(serving.port, 2):
            pass
        releases.upgrade_all()
        async with Member(serving.port, 3) as new:
            await is_refused(new, "broker 1 is registered and down", "broker 2 is registered")
            await new.do({"type": "unregister_broker", "broker_id": 1})
            await is_refused(new, "broker 2 is registered and down")
            await new.do({"type": "unregister_broker", "broker_id": 2})
            await raise_level(new)


async def test_it_is_refused_while_who_only_follows_is_of_an_earlier_release(
    tmp_path: Path, releases: Releases
) -> None:
    async with metadata_controller(tmp_path / "m") as serving, Member(serving.port, 1) as member:
        releases.upgrade_controller()
        async with Broker({1: serving.port}, machine_type=MetadataState, **SESSION):
            await is_refused(member, "node 1 runs", "node 42 runs")
        await is_refused(member, "node 1 runs")
        releases.upgrade_all()
        await raise_level(member)


async def test_a_level_that_no_controller_knows_is_refused(tmp_path: Path) -> None:
    async with metadata_controller(tmp_path / "m") as serving, Member(serving.port, 1) as broker:
        result = await proposed(broker, LEVEL + 1)
        assert result.error is ErrorCode.INVALID_UPDATE_VERSION
        assert "voter 1 runs a release that doesn't know it" in result.message
        assert broker.copy.level == LEVEL


async def test_a_level_is_raised_once(tmp_path: Path) -> None:
    async with metadata_controller(tmp_path / "m") as serving, Member(serving.port, 1) as broker:
        await is_raised(broker)
    async with metadata_controller(tmp_path / "m") as serving, Member(serving.port, 1) as broker:
        assert broker.copy.level == LEVEL
        index = broker.client.applied_index
        await asyncio.sleep(A_WHILE_S)
        assert await broker.client.barrier(TIMEOUT_MS) == index


# -- three voters


async def created(broker: Broker, name: str) -> None:
    """A change that all releases know."""
    value = await broker.do({"type": "create_topics", "seed": 1, "topics": [new_topic(name, 3, 1)]})
    assert value["topics"][0]["error"] == ErrorCode.NONE


async def registered(broker: Broker) -> None:
    epoch = (await broker.do(registration(42)))["broker_epoch"]
    broker.client.registered(epoch)
    await broker.do({"type": "unfence_broker", "broker_id": 42, "broker_epoch": epoch})


async def leads(broker: Broker, voter_id: int) -> None:
    await broker.client.transfer_leadership(voter_id, TIMEOUT_MS)
    assert await leader_of(broker) == voter_id


async def test_three_new_voters_reach_the_level_at_once(tmp_path: Path) -> None:
    async with three_voters(tmp_path, metadata=True) as voters, observer(voters) as broker:
        await is_raised(broker)


async def test_a_rolling_upgrade_and_back_and_on(tmp_path: Path) -> None:
    """With a voter of the earlier release among them, whoever leads, all go on at level 0."""
    voters = Voters(tmp_path, metadata=True)
    try:
        voters.start(1, 2, 3, program=EARLIER)
        async with observer(voters) as broker:
            await registered(broker)
            await created(broker, "all-old")
            for upgraded in (1, 2):
                voters.kill(upgraded)
                voters.start(upgraded)
                await follows(broker, upgraded)
                await leads(broker, upgraded)
                await created(broker, f"led-by-new-{upgraded}")
                await leads(broker, 3)
                await created(broker, f"led-by-old-{upgraded}")
                await stays_at_0(broker)
            voters.kill(3)  # it is down, and may come back as what it was
            await created(broker, "without-old")
            await is_refused(broker, "voter 3 is not connected")
            voters.start(3, program=EARLIER)
            await follows(broker, 3)
            voters.kill(1)  # and back
            voters.start(1, program=EARLIER)
            await follows(broker, 1)
            await leads(broker, 1)
            await created(broker, "back")
            await stays_at_0(broker)
            raising = {"type": "raise_level", "level": LEVEL}
            _, result = await broker.client.propose(raising, TIMEOUT_MS)
            assert result.error is ErrorCode.UNSUPPORTED_VERSION
            for upgraded in (1, 3):
                voters.kill(upgraded)
                voters.start(upgraded)
                await follows(broker, upgraded)
            await stays_at_0(broker)  # it is for the operator
            await raise_level(broker)
            # All three tell a newcomer the same, whoever has lived in which release.
            states = set()
            for voter_id in (1, 2, 3):
                await follows(broker, voter_id)
                await leads(broker, voter_id)
                await broker.client.barrier(TIMEOUT_MS)
                async with observer(voters) as newcomer:
                    assert newcomer.copy.applied_index <= broker.copy.applied_index
                    states.add(pack(newcomer.copy.snapshot() | {"applied_index": 0}))
            assert len(states) == 1
            assert len(broker.copy.topics) == 7
    finally:
        voters.kill(*voters.processes)


async def test_a_voter_of_an_earlier_release_stops_once_the_level_is_raised(tmp_path: Path) -> None:
    async with three_voters(tmp_path, metadata=True) as voters, observer(voters) as broker:
        await registered(broker)
        await is_raised(broker)
        await follows(broker, 3)
        voters.kill(3)
        voters.start(3, program=EARLIER)
        process = voters.processes[3]
        await until(lambda: process.poll() is not None, timeout_s=30)
        assert process.returncode == ExitCode.RELEASE_TOO_OLD
        said = voters.log_of(3).read_text()
        assert "the metadata has a command 'raise_level' at index" in said
        assert "Upgrade this node to theirs" in said
        await created(broker, "without-it")


async def test_a_voter_of_an_earlier_release_stops_at_a_snapshot_of_a_raised_level(
    tmp_path: Path,
) -> None:
    async with (
        three_voters(tmp_path, metadata=True, snapshot_interval_bytes=2_000) as voters,
        observer(voters) as broker,
    ):
        await registered(broker)
        await is_raised(broker)
        number = 0
        while len(list((tmp_path / "m3").glob("*.checkpoint"))) < 2:
            number += 1
            await created(broker, f"t{number}")
        voters.kill(3)
        voters.start(3, program=EARLIER)
        process = voters.processes[3]
        await until(lambda: process.poll() is not None, timeout_s=30)
        assert process.returncode != 0
        assert "the metadata snapshot has version 3" in voters.log_of(3).read_text()
        await created(broker, "without-it")
