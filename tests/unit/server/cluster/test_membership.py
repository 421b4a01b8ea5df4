"""What a broker does about its place in the cluster, against the real rules of the metadata."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from kraftpy.core.metadata import MetadataState
from kraftpy.core.metadata.commands import Command, encode
from kraftpy.core.metadata.levels import REGISTRY
from kraftpy.core.metadata.records import Broker
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.quorum.port import CommandResult
from kraftpy.server.cluster.membership import Membership

NODE_ID = 1


class Quorum:
    """Client and proposals in one; what is in `lost` is committed, and the answer doesn't come."""

    session_age_ms = 0
    session_lapsed = False

    def __init__(self) -> None:
        self.state = MetadataState()
        self.lost: set[str] = set()
        self.told: list[int] = []

    def registered(self, broker_epoch: int) -> None:
        self.told.append(broker_epoch)

    async def barrier(self, timeout_ms: int) -> int:
        return self.state.applied_index

    async def propose(self, command: Command, timeout_ms: int) -> tuple[int, CommandResult]:
        result = self.commit(encode(command))
        if command.NAME in self.lost:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "the controller died")
        return self.state.applied_index, result

    def commit(self, command: dict[str, Any]) -> CommandResult:
        result = self.state.apply(self.state.applied_index + 1, command)
        return CommandResult(result.error, result.message, result.value)

    @property
    def broker(self) -> Broker | None:
        return self.state.brokers.get(NODE_ID)


async def _member(quorum: Quorum) -> Membership:
    membership = Membership(NODE_ID, quorum, quorum, 9_000)  # type: ignore[arg-type]
    await membership.register(
        lambda: quorum.state,
        cluster_id="c",
        clean_shutdown_epoch=None,
        endpoints=(),
        rack=None,
        directories=[b"d" * 16],
        min_insync_replicas=1,
        unclean_leader_election=False,
        registered_ms=1_700_000_000_000,
        metrics="host:9300",
    )
    await membership.unfence()
    return membership


async def _look(membership: Membership, quorum: Quorum) -> None:
    """One look at the metadata, and what the broker does about it."""
    membership.changed(quorum.broker)
    others = asyncio.all_tasks() - {asyncio.current_task()}
    await asyncio.gather(*others)


def test_a_registration_whose_answer_is_lost_counts_all_the_same() -> None:
    """The quorum's leader died with the answer: the broker finds itself under a new epoch."""

    async def live() -> None:
        quorum = Quorum()
        membership = await _member(quorum)
        quorum.commit({"type": "unregister_broker", "broker_id": NODE_ID})
        quorum.lost.add("register_broker")
        await _look(membership, quorum)
        quorum.lost.clear()
        await _look(membership, quorum)
        broker = quorum.broker
        assert broker is not None
        assert not broker.fenced
        assert membership.epoch == broker.epoch == quorum.told[-1]

    asyncio.run(live())


def test_what_other_releases_do_not_know_is_registered_when_they_do() -> None:
    async def live() -> None:
        quorum = Quorum()
        membership = await _member(quorum)
        await _look(membership, quorum)
        before = quorum.broker
        assert before is not None
        assert (before.registered_ms, before.metrics) == (0, None)
        quorum.commit({"type": "raise_level", "level": REGISTRY})
        await _look(membership, quorum)
        broker = quorum.broker
        assert broker == replace(before, registered_ms=1_700_000_000_000, metrics="host:9300")
        index = quorum.state.applied_index
        await _look(membership, quorum)
        assert quorum.state.applied_index == index
        assert quorum.told == [before.epoch]

    asyncio.run(live())


def test_an_older_registration_of_its_own_is_not_taken_up_again() -> None:
    async def live() -> None:
        quorum = Quorum()
        membership = await _member(quorum)
        first = quorum.broker
        quorum.commit({"type": "unregister_broker", "broker_id": NODE_ID})
        await _look(membership, quorum)
        second = membership.epoch
        membership.changed(first)
        assert membership.epoch == second > quorum.told[0]

    asyncio.run(live())


def test_another_process_under_its_id_ends_it() -> None:
    async def live() -> None:
        quorum = Quorum()
        membership = await _member(quorum)
        assert quorum.broker is not None
        epoch = quorum.broker.epoch
        quorum.commit({"type": "fence_broker", "broker_id": NODE_ID, "broker_epoch": epoch})
        await _member(quorum)
        with pytest.raises(RuntimeError, match="another process has registered as broker 1"):
            membership.changed(quorum.broker)

    asyncio.run(live())
