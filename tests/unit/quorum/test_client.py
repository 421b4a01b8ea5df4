"""A broker's side: every committed command once and in order, every proposal an honest outcome."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from kraftpy.protocol.errors import ErrorCode
from kraftpy.quorum import state as state_module
from kraftpy.quorum.client import ControllerUnavailable, ProposalTimeout
from tests.waiting import until

from .faults import NO_SPACE, FailingLayer
from .proxy import TO_BROKER, TO_CONTROLLER, Proxy
from .puppet import Puppet
from .stack import TIMEOUT_MS, VOTER, Broker, Controller, controller


async def test_a_broker_gets_a_snapshot_and_then_every_commit_once_in_order(tmp_path: Path) -> None:
    async with controller(tmp_path / "m") as serving, Broker({VOTER: serving.port}) as first:
        for n in range(20):
            index = await first.add(n)
            assert first.client.applied_index == index
            assert first.copy.values[-1] == n, "applied before propose returned"
        async with Broker({VOTER: serving.port}) as second:
            assert second.copy.values == list(range(20))
            assert second.snapshots
            await asyncio.gather(*(second.add(n) for n in range(20, 60)))
            last = second.client.applied_index
            await first.client.wait_applied(last, TIMEOUT_MS)
            assert first.copy.values == second.copy.values == list(range(60))
            assert first.seen == list(range(first.seen[0], last + 1))
            assert (first.client.leader_id, first.client.term) == (VOTER, 1)


async def test_the_result_of_the_rules_comes_back(tmp_path: Path) -> None:
    async with controller(tmp_path / "m") as serving, Broker({VOTER: serving.port}) as broker:
        _, result = await broker.client.propose({"fail": "not so"}, TIMEOUT_MS)
        assert tuple(result) == (ErrorCode.INVALID_REQUEST, "not so", {})
        index, result = await broker.client.propose({"add": b"\x00"}, TIMEOUT_MS)
        assert tuple(result) == (ErrorCode.NONE, None, {"count": 1, "index": index})
        assert isinstance(result.error, ErrorCode)


async def test_what_is_no_command_is_a_value_error(tmp_path: Path) -> None:
    async with controller(tmp_path / "m") as serving, Broker({VOTER: serving.port}) as broker:
        for bad in ({"add": object()}, {"add": 1 << 70}, {"add": bytes(9 << 20)}):
            with pytest.raises(ValueError, match="not a command"):
                await broker.client.propose(bad, TIMEOUT_MS)
        await broker.add("works")


async def test_reconnecting_continues_where_it_was(tmp_path: Path) -> None:
    port = 0
    async with controller(tmp_path / "m") as serving, Broker({VOTER: serving.port}) as writer:
        port = serving.port
        cut = False
        async with (
            Proxy(port, lambda d, n, f: None if cut else [f]) as proxy,
            Broker({VOTER: proxy.port}) as broker,
        ):
            await writer.add(1)
            cut = True
            await writer.add(2)
            await until(lambda: not broker.client.is_connected)
            await writer.add(3)
            cut = False
            await broker.client.wait_applied(writer.client.applied_index, TIMEOUT_MS)
            assert broker.copy.values == [1, 2, 3]
            assert len(broker.snapshots) == 1, "the entries were still kept"


async def test_a_broker_that_was_away_too_long_starts_from_a_snapshot(tmp_path: Path) -> None:
    async with (
        controller(tmp_path / "m", snapshot_interval_bytes=1000) as serving,
        Broker({VOTER: serving.port}) as writer,
    ):
        cut = False
        async with (
            Proxy(serving.port, lambda d, n, f: None if cut else [f]) as proxy,
            Broker({VOTER: proxy.port}) as broker,
        ):
            cut = True
            n = 0
            while serving.quorum.entries_from(broker.client.applied_index + 1, 1) is not None:
                await writer.add(n)
                n += 1
            cut = False
            await broker.client.wait_applied(writer.client.applied_index, TIMEOUT_MS)
            assert broker.copy.values == list(range(n))
            assert len(broker.snapshots) == 2


@pytest.mark.parametrize("direction", [TO_CONTROLLER, TO_BROKER])
async def test_a_connection_cut_at_any_frame_loses_and_doubles_nothing(
    tmp_path: Path, direction: str
) -> None:
    cut_at = 2

    def tamper(towards: str, number: int, frame: bytes) -> list[bytes] | None:
        nonlocal cut_at
        if towards == direction and number == cut_at:
            cut_at += 1
            return None
        return [frame]

    async with (
        controller(tmp_path / "m") as serving,
        Proxy(serving.port, tamper) as proxy,
        Broker({VOTER: proxy.port}) as broker,
    ):
        count = 0
        while cut_at < 25:
            indexes = await asyncio.gather(*(broker.add(count + n) for n in range(5)))
            assert len(set(indexes)) == 5
            count += 5
        assert proxy.connections > 20
        await broker.client.barrier(TIMEOUT_MS)
        assert sorted(broker.copy.values) == list(range(count))
        async with Broker({VOTER: serving.port}) as fresh:
            assert fresh.copy.values == broker.copy.values


async def test_a_restarted_controller_is_found_again(tmp_path: Path) -> None:
    async with controller(tmp_path / "m") as serving:
        port = serving.port
        broker = Broker({VOTER: port})
        await broker.client.start(TIMEOUT_MS)
        await broker.add("before")
    await until(lambda: not broker.client.is_connected)
    waiting = asyncio.ensure_future(broker.add("meanwhile"))
    with pytest.raises(ControllerUnavailable, match="the change was not made"):
        await broker.add("impatient", timeout_ms=30)
    async with controller(tmp_path / "m", port=port):
        await waiting
        assert broker.copy.values == ["before", "meanwhile"]
        assert broker.client.term == 2
        await broker.client.close()


async def test_a_full_disk_is_an_answer(tmp_path: Path) -> None:
    files = FailingLayer()
    async with (
        controller(tmp_path / "m", files=files) as serving,
        Broker({VOTER: serving.port}) as broker,
    ):
        files.failures["write"] = NO_SPACE
        index, result = await broker.client.propose({"add": 1}, TIMEOUT_MS)
        assert (index, result.error) == (-1, ErrorCode.KAFKA_STORAGE_ERROR)
        assert "No space left" in str(result.message)
        files.failures.clear()
        await broker.add(2)
        assert broker.copy.values == [2]


async def test_barrier_and_wait_applied(tmp_path: Path) -> None:
    async with (
        controller(tmp_path / "m") as serving,
        Broker({VOTER: serving.port}) as writer,
        Broker({VOTER: serving.port}) as reader,
    ):
        for n in range(20):
            await writer.add(n)
            await reader.client.barrier(TIMEOUT_MS)
            assert reader.copy.values[-1] == n
        last = reader.client.applied_index
        await reader.client.wait_applied(last, 0)
        with pytest.raises(ControllerUnavailable, match=f"index {last + 1} took longer"):
            await reader.client.wait_applied(last + 1, 20)
        waiting = asyncio.ensure_future(reader.client.wait_applied(last + 1, TIMEOUT_MS))
        await writer.add("x")
        await waiting


async def test_nothing_hangs_when_the_client_is_closed(tmp_path: Path) -> None:
    async with Controller(Puppet(VOTER, VOTER)) as serving:
        broker = Broker({VOTER: serving.port})
        await broker.client.start(TIMEOUT_MS)
        calls = [
            asyncio.ensure_future(broker.client.propose({"add": 1}, TIMEOUT_MS)),
            asyncio.ensure_future(broker.client.wait_applied(99, TIMEOUT_MS)),
            asyncio.ensure_future(broker.client.barrier(TIMEOUT_MS)),
        ]
        await until(lambda: serving.quorum.proposals)  # type: ignore[attr-defined]
        await broker.client.close()
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(o) for o in outcomes] == [
            ProposalTimeout,
            ControllerUnavailable,
            ControllerUnavailable,
        ]
        with pytest.raises(ControllerUnavailable, match="closed"):
            await broker.client.propose({"add": 1}, TIMEOUT_MS)


async def test_a_callback_that_fails_stops_the_client_and_tells_the_loop(tmp_path: Path) -> None:
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    async with controller(tmp_path / "m") as serving, Broker({VOTER: serving.port}) as broker:
        await broker.add(1)
        async with Broker({VOTER: serving.port}) as writer:
            broker.copy.apply = None  # type: ignore[assignment, method-assign]
            await writer.add(2)
            await until(lambda: told)
        assert isinstance(told[0]["exception"], TypeError)
        assert "applying index 3 failed" in told[0]["message"]
        with pytest.raises(ControllerUnavailable, match="applying index 3 failed"):
            await broker.add(3)


async def test_an_expired_session_is_opened_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_module, "MAX_SESSIONS", 3)

    async with controller(tmp_path / "m") as serving, Broker({VOTER: serving.port}) as broker:
        await broker.add("first")
        for n in range(4):
            async with Broker({VOTER: serving.port}) as other:
                await other.add(n)
        await asyncio.gather(broker.add("second"), broker.add("third"))
        await broker.add("fourth")
        assert broker.copy.values == ["first", 0, 1, 2, 3, "second", "third", "fourth"]


async def test_many_proposals_at_once_are_all_answered(tmp_path: Path) -> None:
    async with controller(tmp_path / "m") as serving, Broker({VOTER: serving.port}) as broker:
        indexes = await asyncio.gather(*(broker.add(n) for n in range(3000)))
        assert len(set(indexes)) == 3000
        assert sorted(broker.copy.values) == list(range(3000))


async def test_an_unknown_outcome_is_never_guessed() -> None:
    one = Puppet(1, 1)
    async with Controller(one) as first, Broker({1: first.port}) as broker:
        with pytest.raises(ProposalTimeout, match="whether the change was made is unknown"):
            await broker.add("x", timeout_ms=100)
        proposal = asyncio.ensure_future(broker.add("later"))
        await until(lambda: len(one.proposals) == 2)
        one.proposals.reverse()  # the old one arrives late
        one.commit_all()
        await proposal
        await broker.client.wait_applied(one.applied_index, TIMEOUT_MS)
        assert broker.copy.values == ["later"]
