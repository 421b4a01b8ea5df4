"""A broker among several controllers: whom it follows, and what becomes of what it asked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from kraftpy.protocol.errors import ErrorCode
from kraftpy.quorum.client import ControllerUnavailable
from kraftpy.quorum.messages import FromController
from kraftpy.quorum.port import ProposalRefusedError, VoterState
from tests.processes import free_port
from tests.waiting import until

from .proxy import TO_BROKER, Proxy
from .puppet import Puppet
from .stack import TIMEOUT_MS, VOTER, Broker, Controller, controller


async def test_any_controller_says_who_leads() -> None:
    one, two, three = Puppet(1, 3, 5), Puppet(2, 3, 5), Puppet(3, 3, 5)
    async with Controller(one) as first, Controller(two) as second, Controller(three) as third:
        ports = {1: first.port, 2: second.port, 3: third.port}
        async with Broker(ports) as broker:
            assert (broker.client.leader_id, broker.client.term) == (3, 5)


async def test_when_the_leader_changes_the_unanswered_proposal_goes_to_the_new_one() -> None:
    one, two = Puppet(1, 1), Puppet(2, 1)
    async with (
        Controller(one) as first,
        Controller(two) as second,
        Broker({1: first.port, 2: second.port}) as broker,
    ):
        proposal = asyncio.ensure_future(broker.add("x"))
        barrier = asyncio.ensure_future(broker.client.barrier(TIMEOUT_MS))
        await until(lambda: one.proposals and one.barriers)
        two.lead(2, 2)
        one.lead(2, 2)
        await until(lambda: two.proposals)
        assert two.proposals[0][0] == one.proposals[0][0], "the very same envelope"
        two.commit_all()
        assert await proposal == 2
        await until(lambda: two.barriers)
        two.barriers[0].set_result(2)
        assert await barrier == 2
        assert broker.client.term == 2


async def test_a_refused_proposal_is_tried_again_at_the_leader() -> None:
    one = Puppet(1, 1)
    async with Controller(one) as first, Broker({1: first.port}) as broker:
        proposal = asyncio.ensure_future(broker.add("x"))
        await until(lambda: one.proposals)
        refusal = ProposalRefusedError(ErrorCode.NOT_CONTROLLER, "I lost the lead")
        one.proposals.pop()[1].set_exception(refusal)
        await until(lambda: one.proposals)
        one.commit_all()
        await proposal
        assert broker.copy.values == ["x"]


async def test_a_quorum_without_leader_or_address_is_unavailable() -> None:
    port = free_port()
    one = Puppet(1, None)
    async with Controller(one) as first:
        broker = Broker({1: first.port, 2: port})
        with pytest.raises(ControllerUnavailable, match="reaching the quorum took longer"):
            await broker.client.start(200)
        with pytest.raises(ControllerUnavailable, match="the change was not made"):
            await broker.add("x", timeout_ms=50)
        one.lead(1, 1)
        await broker.client.wait_applied(1, TIMEOUT_MS)
        await broker.client.close()


async def test_a_controller_that_hangs_is_left(tmp_path: Path) -> None:
    dead = False

    def tamper(direction: str, number: int, frame: bytes) -> list[bytes]:
        return [] if dead and direction == TO_BROKER else [frame]

    async with (
        controller(tmp_path / "m") as serving,
        Proxy(serving.port, tamper) as proxy,
        Broker({VOTER: proxy.port}, heartbeat_interval_ms=20, session_timeout_ms=200) as broker,
    ):
        await broker.add(1)
        connections = proxy.connections
        dead = True
        await until(lambda: not broker.client.is_connected)
        dead = False
        await broker.add(2)
        assert proxy.connections > connections
        assert broker.copy.values == [1, 2]


@pytest.mark.parametrize(
    ("puppets", "said"),
    [
        ([Puppet(7, 7)], "it is voter 7; check the addresses"),
        (
            [Puppet(VOTER, VOTER, term=5), Puppet(VOTER, VOTER, term=4)],
            "its term 4 is older than 5",
        ),
    ],
)
async def test_a_controller_that_cannot_be_the_right_one_is_not_followed(
    puppets: Sequence[Puppet], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    port = 0
    broker: Broker | None = None
    for puppet in puppets:
        async with Controller(puppet, port) as serving:
            port = serving.port
            if broker is None:
                broker = Broker({VOTER: port})
                starting = asyncio.ensure_future(broker.client.start(TIMEOUT_MS))
            if puppet is puppets[-1]:
                await until(lambda: said in caplog.text)
                assert not broker.client.is_connected
                starting.cancel()
            else:
                await starting
    assert broker is not None
    await broker.client.close()


async def test_a_leader_that_hangs_is_left_as_soon_as_others_say_so() -> None:
    """SIGSTOP: its connection stays up, but the other voters have elected another one."""

    one, two, three = Puppet(1, 1), Puppet(2, 1), Puppet(3, 1)
    async with Controller(one) as first, Controller(two) as second, Controller(three) as third:
        changes: list[tuple[int | None, int]] = []
        voters = {1: first.port, 2: second.port, 3: third.port}
        async with Broker(voters, on_leader=lambda who, term: changes.append((who, term))) as b:
            await until(lambda: "2" in str(sorted(b.client._links._links)))
            proposal = asyncio.ensure_future(b.add("x"))
            await until(lambda: one.proposals)
            three.lead(2, 2)
            two.lead(2, 2)
            await until(lambda: two.proposals)
            two.commit_all()
            await proposal
            assert changes == [(1, 1), (2, 2)]
            assert (b.client.leader_id, b.client.term) == (2, 2)


async def test_an_old_leader_that_has_not_noticed_yet_is_not_followed() -> None:
    old, new = Puppet(1, 1, term=4), Puppet(2, 2, term=5)
    async with (
        Controller(old) as first,
        Controller(new) as second,
        Broker({1: first.port, 2: second.port}) as broker,
    ):
        await until(lambda: broker.client.term == 5)
        assert broker.client.leader_id == 2
        proposal = asyncio.ensure_future(broker.add("x"))
        await until(lambda: new.proposals)
        assert not old.proposals
        new.commit_all()
        await proposal


async def test_whose_old_claim_was_refused_is_not_followed_before_the_connection_ends() -> None:
    old, new = Puppet(1, None, term=5), Puppet(2, 2, term=5)
    async with (
        Controller(old) as first,
        Controller(new) as second,
        Broker({1: first.port, 2: second.port}) as broker,
    ):
        links = broker.client._links
        await until(lambda: len(links._links) == 2)
        with pytest.raises(ValueError, match="is older than 5"):
            links.received(links._links[1], [FromController.LEADER, 1, 4])
        # in the same iteration of the loop it is heard that the other one leads no more
        links.received(links._links[2], [FromController.LEADER, None, 5])
        assert broker.client.leader_id is None
        assert broker.client.term == 5


async def test_a_new_leader_that_has_applied_less_continues_where_the_broker_is() -> None:
    """The broker has seen 5 entries of the old leader, of which the new one has applied 1 yet."""

    one, two = Puppet(1, 1), Puppet(2, 1)
    one.append(4)
    async with (
        Controller(one) as first,
        Controller(two) as second,
        Broker({1: first.port, 2: second.port}) as broker,
    ):
        assert broker.client.applied_index == 5
        one.lead(2, 2)
        two.lead(2, 2)
        await until(lambda: broker.client.leader_id == 2)
        await until(lambda: [each for each in second.listener._connected if each.follows])
        two.append(6)  # one batch of the indexes 2 to 7; the broker lacks 6 and 7
        await until(lambda: broker.client.applied_index == 7)
        two.append(1)
        await until(lambda: broker.client.applied_index == 8)


async def undisturbed(seconds: float) -> None:
    """Sleep until the machine has not stood still for so long: what lapses then has lapsed."""
    loop = asyncio.get_running_loop()
    now = since = loop.time()
    while now - since < seconds:
        await asyncio.sleep(0.01)
        before, now = now, loop.time()
        if now - before > 0.1:
            since = now


async def test_a_broker_tells_when_its_session_may_have_lapsed(tmp_path: Path) -> None:
    """Its own machine stood still, or nobody who leads answers: others may lead its partitions."""

    cut = False

    def tamper(direction: str, number: int, frame: bytes) -> list[bytes] | None:
        return None if cut else [frame]

    async with controller(tmp_path / "m") as serving, Proxy(serving.port, tamper) as proxy:
        options = {"heartbeat_interval_ms": 20, "session_timeout_ms": 300}
        async with Broker({VOTER: proxy.port}, **options) as broker:
            await undisturbed(0.5)
            assert not broker.client.session_lapsed
            cut = True
            await until(lambda: broker.client.session_lapsed)
            cut = False
            await until(lambda: not broker.client.session_lapsed)


async def test_a_follower_that_answers_is_no_session() -> None:
    one, two = Puppet(1, 1), Puppet(2, 1)
    options = {"heartbeat_interval_ms": 20, "session_timeout_ms": 200}
    async with (
        Controller(one) as first,
        Controller(two) as second,
        Broker({1: first.port, 2: second.port}, **options) as broker,
    ):
        one.lead(None, 2)
        two.lead(None, 2)
        await until(lambda: broker.client.session_lapsed)
        assert broker.client.session_age_ms > 200
        two.lead(2, 2)
        await until(lambda: not broker.client.session_lapsed)


async def test_a_leader_out_of_reach_is_known_from_the_voters_that_answer() -> None:
    one, two = Puppet(1, 1), Puppet(2, 1)
    silent = False

    def tamper(direction: str, number: int, frame: bytes) -> list[bytes]:
        return [] if silent and direction == TO_BROKER else [frame]

    async with (
        Controller(one) as first,
        Controller(two) as second,
        Proxy(second.port, tamper) as proxy,
        Broker(
            {1: first.port, 2: proxy.port}, heartbeat_interval_ms=50, session_timeout_ms=60_000
        ) as broker,
    ):
        one.lead(3, 2)
        two.lead(None, 2)
        await until(lambda: not broker.client.is_connected)
        assert broker.client.quorum_has_leader, "one says that three leads"
        one.lead(None, 2)
        await until(lambda: not broker.client.quorum_has_leader)
        two.lead(3, 2)
        await until(lambda: broker.client.quorum_has_leader)
        silent = True  # what two said last is soon no news any more
        await until(lambda: not broker.client.quorum_has_leader)


async def test_describe_quorum() -> None:
    one, two = Puppet(1, 2, 7), Puppet(2, 2, 7)
    two.states = [VoterState(1, 3, 4, 5), VoterState(2, 6, 7, 8)]
    async with Controller(one) as first, Controller(two) as second:
        before_ms = time.time() * 1000 - 1
        async with Broker({1: first.port, 2: second.port}) as broker:
            await until(lambda: second.listener.observers()[0].log_end_offset == 2)
            found = await broker.client.describe_quorum(TIMEOUT_MS)
            assert found[:4] == (2, 7, 2, ((1, 3, 4, 5), (2, 6, 7, 8)))
            assert [each[:2] for each in found.observers] == [(42, 2)]
            assert before_ms < found.observers[0].last_caught_up_timestamp_ms
            assert before_ms < found.observers[0].last_fetch_timestamp_ms
            two.append(3)
            await until(lambda: second.listener.observers()[0].log_end_offset == 5)
            asked = asyncio.ensure_future(broker.client.describe_quorum(TIMEOUT_MS))
            two.lead(1, 8)
            one.lead(1, 8)
            assert (await asked).leader_id in (1, 2)


async def test_a_leader_that_is_gone_before_it_can_be_asked_is_none() -> None:
    one = Puppet(1, 1, 1)
    async with Controller(one) as serving, Broker({1: serving.port}) as broker:
        one.lead(2, 2)
        await until(lambda: not broker.client.is_connected)
        asked = asyncio.ensure_future(broker.client.describe_quorum(TIMEOUT_MS))
        await asyncio.sleep(0)
        one.lead(1, 3)  # the broker hears of both at once
        one.lead(2, 4)
        await until(lambda: broker.client.term == 3 and not broker.client.is_connected)
        await asyncio.sleep(0)
        assert not asked.done()
        one.lead(1, 5)
        assert (await asked).leader_id == 1


async def test_transfer_leadership() -> None:
    one, two = Puppet(1, 1), Puppet(2, 1)
    async with (
        Controller(one) as first,
        Controller(two) as second,
        Broker({1: first.port, 2: second.port}) as broker,
    ):
        transfer = broker.client.transfer_leadership
        await transfer(1, TIMEOUT_MS)
        with pytest.raises(ValueError, match="9 is no voter of this quorum; its voters"):
            await transfer(9, TIMEOUT_MS)
        moving = asyncio.ensure_future(transfer(2, TIMEOUT_MS))
        for _ in range(3):
            await until(lambda: one.transfers)
            one.transfers.pop()[1].set_result(False)
        with pytest.raises(ValueError, match="2 did not take the lead over in time"):
            await moving
        moving = asyncio.ensure_future(transfer(2, TIMEOUT_MS))
        await until(lambda: one.transfers)
        one.lead(2, 2)
        two.lead(2, 2)
        one.transfers.pop()[1].set_result(True)
        await moving
        assert broker.client.leader_id == 2


async def test_one_address_is_enough_to_find_all_voters() -> None:
    one, two = Puppet(1, 2), Puppet(2, 2)
    async with Controller(one) as first, Controller(two) as second:
        one.voters = {1: ("127.0.0.1", first.port), 2: ("127.0.0.1", second.port)}
        async with Broker({-1: free_port(), -2: first.port}) as broker:
            assert broker.client.leader_id == 2
            one.lead(1, 2)
            two.lead(1, 2)
            await until(lambda: broker.client.leader_id == 1)


async def test_a_lone_controller_is_reached_where_it_was_found(tmp_path: Path) -> None:
    """Its own idea of its address may be one that only its own machine understands."""

    async with (
        controller(tmp_path / "m") as serving,
        Proxy(serving.port) as proxy,
        Broker({-1: proxy.port}) as broker,
    ):
        await broker.add(1)
        assert broker.client.leader_id == VOTER
        assert proxy.connections == 2
