"""The shell of the group coordinator, over a log and a controller that the test holds."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from kraftpy.core.coordination import partition_for
from kraftpy.core.groups import Client
from kraftpy.core.metadata.commands import CreateTopics
from kraftpy.core.metadata.records import OFFSETS_TOPIC
from kraftpy.protocol import messages
from kraftpy.protocol.errors import ErrorCode, KafkaError
from tests.unit.server.coordination.fake_groups import (
    PARTITIONS,
    FakeHost,
    answer,
    coordinated,
    errors,
    soon,
    topic,
)


async def test_the_first_search_creates_the_topic_and_all_searches_share_it() -> None:
    host = FakeHost()
    host.groups.start()
    deadline_s = host.loop.time() + 5
    found = await asyncio.gather(
        *(host.groups.coordinator_of(f"g-{n}", deadline_s) for n in range(20))
    )
    assert found == [1] * 20
    (proposal,) = host.proposals
    (item,) = proposal.topics
    assert (item.name, item.partitions) == (OFFSETS_TOPIC, 50)
    assert item.configs["cleanup.policy"] == "compact"
    assert errors(await answer(host.commit(1))) == [ErrorCode.NONE]  # ready at once
    await host.groups.stop()


async def test_a_topic_that_can_not_be_created_is_explained() -> None:
    host = FakeHost()
    host.refuses = True
    with pytest.raises(KafkaError, match=r"offsets.topic.replication.factor=3: too few") as raised:
        await host.groups.coordinator_of("g", host.loop.time() + 5)
    assert raised.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    host.refuses = False
    assert await host.groups.coordinator_of("g", host.loop.time() + 5) == 1


async def test_another_broker_or_none_may_coordinate() -> None:
    host = FakeHost()
    host.lead()
    index = partition_for("g", PARTITIONS)
    host.metadata.topics[OFFSETS_TOPIC].partitions[index].leader = 2
    assert await host.groups.coordinator_of("g", 0) == 2
    with pytest.raises(KafkaError) as raised:
        host.commit(1)
    assert raised.value.code is ErrorCode.NOT_COORDINATOR
    host.metadata.topics[OFFSETS_TOPIC].partitions[index].leader = -1
    with pytest.raises(KafkaError) as raised:
        await host.groups.coordinator_of("g", 0)
    assert raised.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_group_ids_that_are_none() -> None:
    host = coordinated()
    for group_id in ("", "x" * 40_000):
        with pytest.raises(KafkaError) as raised:
            await host.groups.coordinator_of(group_id, 0)
        assert raised.value.code is ErrorCode.INVALID_GROUP_ID
    assert errors(await answer(host.commit(1, group=""))) == [ErrorCode.NONE]  # as Kafka


async def test_a_commit_is_answered_and_seen_when_it_is_committed() -> None:
    host = coordinated()
    host.replicas.holds = True
    commit = host.commit(5)
    assert isinstance(commit, asyncio.Future)
    await soon(lambda: host.replicas.held)
    assert not commit.done()
    assert host.offset() is None
    host.replicas.release(0)
    assert errors(await commit) == [ErrorCode.NONE]
    assert host.offset() == 5


async def test_outcomes_count_in_log_order_whatever_order_they_come_in() -> None:
    host = coordinated()
    host.replicas.holds = True
    first, second = host.commit(9), host.commit(3)
    await soon(lambda: len(host.replicas.held) == 2)
    host.replicas.release(1)
    await asyncio.sleep(0.02)
    assert host.offset() is None
    host.replicas.release(0)
    await answer(first), await answer(second)
    assert host.offset() == 3


async def test_a_failed_append_changes_nothing() -> None:
    host = coordinated()
    await answer(host.commit(1))
    host.replicas.holds = True
    failing, later = host.commit(2), host.commit(4, group="g")
    await soon(lambda: len(host.replicas.held) == 2)
    host.replicas.held[0][0].set_exception(KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS))
    assert errors(await answer(failing)) == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    assert host.offset() == 1
    host.replicas.release(1)
    assert errors(await answer(later)) == [ErrorCode.NONE]
    assert host.offset() == 4


async def test_a_record_that_can_not_be_written_keeps_nobody_from_going_on() -> None:
    host = coordinated()
    assert errors(await answer(host.commit(2**63))) == [ErrorCode.UNKNOWN_SERVER_ERROR]
    assert errors(await answer(host.commit(2))) == [ErrorCode.NONE]
    assert host.offset() == 2


async def test_an_append_that_breaks_is_logged_and_answered() -> None:
    host = coordinated()
    host.replicas.holds = True
    commit = host.commit(2)
    await soon(lambda: host.replicas.held)
    host.replicas.held[0][0].set_exception(RuntimeError("broken"))
    assert errors(await answer(commit)) == [ErrorCode.UNKNOWN_SERVER_ERROR]


async def test_the_timeout_ends_the_wait_of_the_client_alone() -> None:
    host = coordinated(**{"offsets.commit.timeout.ms": "30"})
    host.replicas.holds = True
    assert errors(await answer(host.commit(5))) == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    assert host.offset() is None
    host.replicas.release(0)
    await soon(lambda: host.offset() == 5)


async def test_losing_the_partition_answers_all_that_is_parked() -> None:
    host = coordinated()
    member = host.join().member_id
    leader = await answer(host.join(member))
    follower = host.join(instance="i")
    host.replicas.holds = True
    commit = host.commit(1, group="h")
    await soon(lambda: host.replicas.held)
    assert leader.leader == member
    host.replicas.led.clear()
    host.groups.refresh()
    assert (await answer(follower)).error_code == ErrorCode.NOT_COORDINATOR
    assert errors(await answer(commit)) == [ErrorCode.NOT_COORDINATOR]
    host.replicas.release(0)  # too late, and nobody minds
    await asyncio.sleep(0)
    with pytest.raises(KafkaError):
        host.offset()


async def test_a_client_that_goes_away_while_parked_is_not_missed() -> None:
    host = coordinated()
    await answer(host.join(host.join(session_timeout_ms=100).member_id, session_timeout_ms=100))
    newcomer = host.join(session_timeout_ms=100).member_id
    parked = host.join(newcomer, session_timeout_ms=100)
    assert host.groups.describe_group("g").group_state == "PreparingRebalance"
    parked.cancel()
    await soon(lambda: host.groups.describe_group("g").group_state == "CompletingRebalance")
    await soon(lambda: host.groups.describe_group("g").group_state == "Empty")


async def test_a_client_that_goes_away_before_the_first_generation_leaves_no_group() -> None:
    host = coordinated(**{"group.initial.rebalance.delay.ms": "60000"})
    parked = host.join(host.join().member_id)
    parked.cancel()
    await soon(lambda: host.groups.describe_group("g").group_state == "Dead")


async def test_deadlines_fire() -> None:
    host = coordinated()
    member = host.join(session_timeout_ms=50).member_id
    joined = await answer(host.join(member, session_timeout_ms=50))
    request = messages.HeartbeatRequest("g", joined.generation_id, member)
    assert host.groups.heartbeat(request) == ErrorCode.NONE
    await soon(lambda: host.groups.describe_group("g").group_state == "Empty")
    assert host.groups.heartbeat(request) == ErrorCode.UNKNOWN_MEMBER_ID


async def test_a_clock_that_is_set_ends_no_session() -> None:
    host = coordinated()
    member = host.join().member_id
    joined = await answer(host.join(member))
    request = messages.HeartbeatRequest("g", joined.generation_id, member)
    for hours in (1, -2):
        clock_ms = host.clock_ms
        host.clock_ms = lambda clock_ms=clock_ms, hours=hours: clock_ms() + hours * 3_600_000
        await asyncio.sleep(0.01)
        assert host.groups.heartbeat(request) == ErrorCode.NONE
        await asyncio.sleep(0.05)
        assert host.groups.describe_group("g").group_state == "CompletingRebalance"


async def test_a_clock_that_lags_does_not_make_timers_spin() -> None:
    host = coordinated()
    clock_ms, readings = host.clock_ms, 0

    def lagging_ms() -> float:
        nonlocal readings
        readings += 1
        return clock_ms() - 500

    host.clock_ms = lagging_ms
    await answer(host.join(instance="i", session_timeout_ms=100))
    await soon(lambda: host.groups.describe_group("g").group_state == "Empty")
    assert readings < 100


async def test_expiry_runs_by_itself() -> None:
    host = coordinated(
        **{"offsets.retention.check.interval.ms": "20", "offsets.retention.minutes": "1"}
    )
    host.groups.start()
    await answer(host.commit(1))
    await asyncio.sleep(0.05)
    assert host.offset() == 1
    clock_ms = host.clock_ms
    host.clock_ms = lambda: clock_ms() + 60_000
    await soon(lambda: host.offset() is None)
    await host.groups.stop()


async def test_deleting_topics() -> None:
    host = coordinated()
    await answer(host.commit(1))
    host.groups.topic_deleted("t")
    await soon(lambda: host.offset() is None)
    await answer(host.commit(1))
    host.groups.topic_deleted(OFFSETS_TOPIC)
    with pytest.raises(KafkaError):
        host.offset()


async def test_a_clock_that_was_set_expires_nothing_at_once() -> None:
    host = coordinated(**{"offsets.retention.minutes": "1"})
    await answer(host.commit(1))
    clock_ms = host.clock_ms
    host.clock_ms = lambda: clock_ms() + 10**9
    await host.groups.expire_offsets()
    host.clock_ms = clock_ms  # somebody noticed
    await host.groups.expire_offsets()
    assert host.offset() == 1


async def test_stop_answers_everybody() -> None:
    host = coordinated(**{"group.initial.rebalance.delay.ms": "5000"})
    host.groups.start()
    parked = host.join(instance="i")
    host.replicas.holds = True
    commit = host.commit(1, group="h")
    await soon(lambda: host.replicas.held)
    await host.groups.stop()
    assert (await answer(parked)).error_code == ErrorCode.NOT_COORDINATOR
    assert errors(await answer(commit)) == [ErrorCode.NOT_COORDINATOR]
    host.replicas.release(0)
    await asyncio.sleep(0)


# -- groups whose coordinator assigns partitions (KIP-848)


def beat(host: FakeHost, member_id: str, epoch: int = 0, **fields: Any) -> Any:
    if epoch == 0:
        fields = {"rebalance_timeout_ms": 5_000, "topic_partitions": [], **fields}
    return host.groups.consumer_heartbeat(
        Client(1, "c", "/127.0.0.1"),
        messages.ConsumerGroupHeartbeatRequest(
            group_id="g", member_id=member_id, member_epoch=epoch, **fields
        ),
    )


def owned(response: Any) -> dict[bytes, list[int]]:
    assert response.error_code == 0, response.error_message
    return {each.topic_id: each.partitions for each in response.assignment.topic_partitions}


def create(host: FakeHost, name: str, partitions: int) -> bytes:
    found = SimpleNamespace(**{**vars(topic(partitions)), "id": name.encode().rjust(16)})
    found.name = name
    host.metadata.topics[name] = host.metadata.topics_by_id[found.id] = found  # type: ignore[assignment]
    host.metadata.applied_index += 1
    host.groups.topic_changed(name)
    return found.id


async def test_a_member_joins_by_name_and_by_regex() -> None:
    host = coordinated()
    orders = create(host, "orders", 3)
    joined = await answer(beat(host, "m1", subscribed_topic_names=["orders"]))
    assert owned(joined) == {orders: [0, 1, 2]}
    events = create(host, "events", 2)
    by_regex = {"subscribed_topic_names": [], "subscribed_topic_regex": "ev.*"}
    changed = await answer(beat(host, "m1", joined.member_epoch, **by_regex))
    assert owned(changed) == {}
    held = await answer(beat(host, "m1", joined.member_epoch, topic_partitions=[]))
    assert owned(held) == {events: [0, 1]}
    more = create(host, "events-2", 1)
    told = await answer(beat(host, "m1", held.member_epoch))
    assert owned(told) == {events: [0, 1], more: [0]}
    described = host.groups.describe_consumer_group("g")
    assert described.group_state == "Stable"
    assert [member.subscribed_topic_regex for member in described.members] == ["ev.*"]


async def test_what_is_no_regex_is_refused_after_what_is_worse() -> None:
    host = coordinated()
    bad = await answer(beat(host, "m1", subscribed_topic_regex="("))
    assert bad.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    worse = await answer(beat(host, "m1", subscribed_topic_regex="(", server_assignor="mine"))
    assert worse.error_code == ErrorCode.UNSUPPORTED_ASSIGNOR


async def test_who_waits_for_the_offsets_topic_is_answered_when_the_broker_stops() -> None:
    host = FakeHost()
    host.groups.start()
    proposed = asyncio.Event()

    async def propose(command: CreateTopics, timeout_ms: int) -> tuple[int, Any]:
        host.proposals.append(command)
        proposed.set()
        await asyncio.Event().wait()
        raise AssertionError

    host.propose = propose  # type: ignore[method-assign]
    gone, *waiting = [
        asyncio.create_task(host.groups.coordinator_of(f"g-{n}", host.loop.time() + 5))
        for n in range(4)
    ]
    await proposed.wait()
    gone.cancel()
    await asyncio.wait([gone])
    assert gone.cancelled(), "its client has left, and nobody else is bothered"
    stopping = asyncio.create_task(host.groups.stop())
    waiting.append(asyncio.create_task(host.groups.coordinator_of("late", host.loop.time() + 5)))
    await stopping
    waiting.append(asyncio.create_task(host.groups.coordinator_of("later", host.loop.time() + 5)))
    for error in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(error, KafkaError)
        assert error.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert len(host.proposals) == 1


async def test_a_coordinator_that_has_stopped_stays_so() -> None:
    """Its partitions are led here until the logs are closed, and metadata comes until then."""
    host = coordinated()
    host.groups.start()
    await host.groups.coordinator_of("g", host.loop.time() + 5)
    stopping = asyncio.create_task(host.groups.stop())
    await asyncio.sleep(0)
    assert host.groups._partitions, "it waits for what is under way"
    host.groups.reload(host.groups._partitions[0])
    host.replicas.epochs[1] = 1
    host.groups.refresh()
    assert host.groups._partitions.keys() == {2, 3}
    await stopping
    host.groups.refresh()
    assert not host.groups._partitions


async def test_a_member_goes_on_at_the_next_coordinator() -> None:
    host = coordinated()
    orders = create(host, "orders", 3)
    joined = await answer(beat(host, "m1", subscribed_topic_regex="or.*"))
    index = partition_for("g", PARTITIONS)
    host.replicas.epochs[index] = 1
    host.groups.metadata_replaced()  # The new coordinator knows nothing of the regex yet.
    host.groups.refresh()
    with pytest.raises(KafkaError) as raised:
        beat(host, "m1", joined.member_epoch)
    assert raised.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    await host.groups.coordinator_of("g", host.loop.time() + 5)
    assert host.groups._topics.knows("or.*"), "a heartbeat would have to look at all topics"
    again = await answer(beat(host, "m1", joined.member_epoch))
    assert (again.error_code, again.member_epoch) == (0, joined.member_epoch)
    assert again.assignment is None
    (member,) = host.groups.describe_consumer_group("g").members
    assert [(t.topic_id, t.partitions) for t in member.assignment.topic_partitions] == [
        (orders, [0, 1, 2])
    ]
