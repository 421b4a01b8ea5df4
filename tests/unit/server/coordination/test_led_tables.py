"""Tables of leases at a broker: opened, written, given up; who waits is told and woken."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kraftpy import events
from kraftpy.core.config.leasing import lease_settings
from kraftpy.core.leases import Acquired, Demand, StateBatch
from kraftpy.core.leases.runs import ACQUIRED, ARCHIVED, AVAILABLE
from kraftpy.core.leases.sessions import ShareSessions
from kraftpy.core.leases.state import StateAnswer
from kraftpy.core.producers import CompletedTransaction
from kraftpy.protocol.errors import ErrorCode as E
from kraftpy.protocol.errors import KafkaError
from kraftpy.protocol.records import EndTxnMarker, build_end_txn_marker, read_batch_header
from kraftpy.server.coordination import led_tables
from kraftpy.server.coordination.lease_reads import LeaseRead
from tests.unit.server.coordination.fake_leases import (
    ACCEPT,
    GROUP,
    REJECT,
    RELEASE,
    RENEW,
    TOPIC_ID,
    FakeBroker,
    FakePartition,
    Group,
    until,
)


async def test_a_new_group_begins_where_it_says_and_that_is_written_first() -> None:
    for reset, start in (("earliest", 0), ("latest", 7)):
        broker = FakeBroker()
        broker.configs = {"share.auto.offset.reset": reset}
        kept = broker.share_persister
        held: asyncio.Future[E] = broker.loop.create_future()
        kept.says = [held]
        group = Group(broker, 7)
        table = group.table
        await until(lambda kept=kept: kept.writes)
        assert (kept.writes[0].start_offset, kept.writes[0].leader_epoch) == (start, 3)
        assert not table.is_open
        assert group.deal() == []
        held.set_result(E.NONE)
        await until(lambda table=table: table.is_open)
        group.partition.append(1)
        assert group.deal() == ([(0, 7, 1)] if reset == "earliest" else [(7, 7, 1)])
        await broker.leases.close()


async def test_trap_3_the_next_leader_deals_what_was_leased_and_not_what_was_accepted() -> None:
    broker = FakeBroker()
    broker.share_persister.state = StateAnswer(E.NONE, 4, 2, (StateBatch(4, 5, 2, 1),))
    group = Group(broker, 10)
    await group.opened()
    assert broker.share_persister.reads == [((GROUP, TOPIC_ID, 0), 3)]
    assert broker.share_persister.writes == []
    assert group.deal() == [(2, 3, 1), (6, 9, 1)]
    assert await group.say(2, 3, ACCEPT) is E.NONE
    (write,) = broker.share_persister.writes
    assert (write.state_epoch, write.leader_epoch, write.start_offset) == (4, 3, 6)


async def test_what_is_acknowledged_in_a_turn_is_one_write_and_answered_when_it_is_kept() -> None:
    broker = FakeBroker()
    group = Group(broker, 10)
    await group.opened()
    group.deal()
    kept = broker.share_persister
    held: asyncio.Future[E] = broker.loop.create_future()
    kept.writes, kept.says = [], [held]
    first, second = group.say(0, 4, ACCEPT), group.say(5, 6, REJECT)
    third = group.say(9, 9, RELEASE)
    await until(lambda: kept.writes)
    assert kept.batches == [StateBatch(9, 9, 0, 1)]  # below the start nothing is to be said
    assert not first.done()
    held.set_result(E.NONE)
    assert [await each for each in (first, second, third)] == [E.NONE] * 3
    assert len(kept.writes) == 1
    assert kept.writes[0].start_offset == 7
    assert group.say(7, 7, RENEW) is E.NONE


async def test_what_writes_that_overlapped_said_of_the_start_is_written_when_none_is_left() -> None:
    broker = FakeBroker()
    group = Group(broker, 10)
    await group.opened()
    group.deal()
    kept = broker.share_persister
    held: asyncio.Future[E] = broker.loop.create_future()
    kept.writes, kept.says = [], [held]
    first = group.say(0, 4, ACCEPT)
    await until(lambda: kept.writes)
    second = group.say(5, 9, ACCEPT)
    assert await second is E.NONE
    held.set_result(E.NONE)
    assert await first is E.NONE
    await until(lambda: len(kept.writes) == 3)
    said = [(each.start_offset, each.finished_count) for each in kept.writes]
    assert said == [(5, 0), (0, 5), (10, 0)]


async def test_what_has_an_unknown_outcome_is_written_until_it_is_known() -> None:
    broker = FakeBroker()
    group = Group(broker, 10)
    await group.opened()
    group.deal()
    kept = broker.share_persister
    kept.writes, kept.says = [], [E.REQUEST_TIMED_OUT, E.UNKNOWN_SERVER_ERROR]
    said = group.say(0, 9, ACCEPT)
    broker.ahead_ms = 60_000
    assert group.deal("ben") == []
    assert await said is E.NONE
    assert len(kept.writes) == 3
    assert group.deal("ben") == []


async def test_a_write_that_is_refused_is_rolled_back() -> None:
    broker = FakeBroker()
    group = Group(broker, 10)
    await group.opened()
    group.deal()
    broker.share_persister.says = [E.RECORD_LIST_TOO_LARGE]
    assert await group.say(0, 9, ACCEPT) is E.RECORD_LIST_TOO_LARGE
    assert await group.say(0, 9, ACCEPT) is E.NONE


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (E.FENCED_LEADER_EPOCH, E.NOT_LEADER_OR_FOLLOWER),
        (E.FENCED_STATE_EPOCH, E.NOT_LEADER_OR_FOLLOWER),
        (E.INVALID_REQUEST, E.INVALID_RECORD_STATE),
    ],
)
async def test_trap_14_a_table_whose_state_is_of_another_or_gone_is_read_anew(
    said: E, told: E
) -> None:
    broker = FakeBroker()
    group = Group(broker, 10)
    table = await group.opened()
    group.deal()
    broker.share_persister.says = [said]
    assert await group.say(0, 9, ACCEPT) is told
    assert table.closed is told
    assert group.partition.fetches.waiting == {}
    broker.share_persister.state = StateAnswer(E.NONE, 1, 8, ())
    again = await group.opened()
    assert again is not table
    assert group.deal() == [(8, 9, 1)]


async def test_trap_14_a_table_ends_with_its_partition_s_leadership() -> None:
    broker = FakeBroker()
    group = Group(broker, 10)
    table = await group.opened()
    group.deal()
    held: asyncio.Future[E] = broker.loop.create_future()
    broker.share_persister.says = [held]
    said = group.say(0, 9, ACCEPT)
    await asyncio.sleep(0)
    group.partition.end()
    assert await said is E.NOT_LEADER_OR_FOLLOWER
    assert table.closed
    assert len(broker.leases) == 0
    held.set_result(E.NONE)
    await asyncio.sleep(0)


async def test_a_deadline_gives_back_and_wakes_who_waits() -> None:
    broker = FakeBroker(record_lock_duration_ms="1000", min_record_lock_duration_ms="1000")
    group = Group(broker, 3)
    table = await group.opened()
    assert group.deal() == [(0, 2, 1)]
    woken: list[object] = []
    table.fetches.add(woken.append)
    async with asyncio.timeout(10):
        while not woken:
            await asyncio.sleep(0.01)
    assert group.deal("ben") == [(0, 2, 2)]


async def test_trap_10_a_connection_that_is_lost_with_acknowledgements_under_way() -> None:
    broker = FakeBroker()
    group = Group(broker, 10)
    await group.opened()
    group.begin()
    group.begin("ben", "2")
    assert group.deal() == [(0, 9, 1)]
    held: asyncio.Future[E] = broker.loop.create_future()
    broker.share_persister.says = [held]
    said = group.say(0, 4, ACCEPT)
    await asyncio.sleep(0)
    broker.leases.connection_closed("1")
    said.cancel()
    await until(lambda: group.deal("ben") == [(5, 9, 2)])
    held.set_result(E.NONE)
    # Below the start all is well.
    await until(lambda: group.say(0, 4, ACCEPT, "ben") is E.NONE)
    assert group.deal("ben") == []
    assert len(broker.leases.sessions) == 1


async def test_tables_of_a_group_end_with_its_last_session_when_all_is_written() -> None:
    broker = FakeBroker()
    group = Group(broker, 10)
    table = await group.opened()
    session = group.begin()
    group.deal()
    held: asyncio.Future[E] = broker.loop.create_future()
    broker.share_persister.says = [held]
    said = group.say(0, 4, ACCEPT)
    broker.leases.end(session)
    await asyncio.sleep(0)
    assert not table.closed
    assert group.deal("ben") == []  # nobody is dealt anything of what is to be given up
    held.set_result(E.NONE)
    assert await said is E.NONE
    await until(lambda: table.closed)
    assert group.table is not table


async def test_a_log_start_that_moves_wakes_who_waits() -> None:
    """What somebody has is gone, so there is room for what comes behind it."""
    broker = FakeBroker(partition_max_record_locks="100")
    group = Group(broker, *[1] * 120)
    table = await group.opened()
    woken: list[Any] = []
    table.fetches.add(woken.append)
    log: Any = group.partition.log
    assert group.deal() == [(0, 99, 1)]
    assert group.deal("ben") == []
    woken.clear()
    log.log_start_offset = 10
    for moved in list(log.start_watchers):
        moved()
    await until(lambda: woken)
    assert group.deal("ben") == [(100, 109, 1)]
    await broker.leases.close()
    assert log.start_watchers == {}


async def test_records_that_are_given_up_are_told_of() -> None:
    broker = FakeBroker(delivery_count_limit="2")
    group = Group(broker, 4)
    table = await group.opened()
    assert group.deal() == [(0, 3, 1)]
    assert await group.say(0, 3, RELEASE) is E.NONE
    assert group.deal() == [(0, 3, 2)]
    assert await group.say(1, 2, RELEASE) is E.NONE
    told = events.kept()[-1]
    assert told.name == "share-records-archived"
    assert told.fields == {
        "group": GROUP,
        "partition": str(group.partition),
        "first": 1,
        "last": 2,
        "records": 2,
        "deliveries": 2,
    }
    assert table.records_by_state() == {ACQUIRED: 2, ARCHIVED: 2}
    await broker.leases.close()


async def test_what_appends_wakes_who_waits() -> None:
    group = Group(FakeBroker())
    table = await group.opened()
    woken: list[object] = []
    table.fetches.add(woken.append)
    assert group.deal() == []
    group.partition.append(2)
    assert woken == [table]
    assert group.deal() == [(0, 1, 1)]


async def test_what_is_taken_back_was_not_delivered() -> None:
    group = Group(FakeBroker(), 4)
    table = await group.opened()
    assert group.deal() == [(0, 3, 1)]
    table.take_back("ben", [Acquired(0, 3, 1)])
    assert group.deal("ben") == []
    table.take_back("ann", [Acquired(0, 3, 1)])
    assert group.deal("ben") == [(0, 3, 1)]


async def test_trap_7_markers_and_what_was_aborted_are_dealt_to_nobody() -> None:
    broker = FakeBroker()
    broker.configs = {
        "share.auto.offset.reset": "earliest",
        "share.isolation.level": "read_committed",
    }
    group = Group(broker, 2)
    partition = group.partition
    transactional: dict[str, Any] = {
        "producer_id": 7,
        "producer_epoch": 0,
        "base_sequence": 0,
        "transactional": True,
    }
    partition.append(3, **transactional)
    marker = EndTxnMarker(committed=False, coordinator_epoch=0)
    partition.log.append(
        build_end_txn_marker(marker, producer_id=7, producer_epoch=0, timestamp_ms=1)
    )
    partition.append(2)
    partition.append(2, **transactional)
    partition.stable_offset = 8
    partition.log.aborted = [CompletedTransaction(7, 2, 5, 6, committed=False)]
    await group.opened()
    assert group.deal() == [(0, 1, 1), (6, 7, 1)]
    broker.configs = {"share.isolation.level": "read_uncommitted"}
    assert group.deal() == [(8, 9, 1)]


async def test_only_batches_that_have_something_are_sent() -> None:
    group = Group(FakeBroker(), 2, 2, 2, 2)
    table = await group.opened()
    assert group.deal(most=2) == [(0, 1, 1)]
    assert group.deal("ben", most=2) == [(2, 3, 1)]
    await group.say(0, 0, RELEASE)
    dealt = table.deal("cid", Demand(500, 0, False), 1 << 20, min_one=True)
    assert [tuple(each) for each in dealt.acquired] == [(0, 0, 2), (4, 7, 1)]
    sent = [piece.read() for piece in dealt.records]
    assert [read_batch_header(piece).base_offset for piece in sent] == [0, 4]
    assert dealt.size_bytes == sum(map(len, sent)) == group.partition.log.size * 3 // 4


async def test_a_damaged_batch_is_an_error_and_what_lies_before_it_is_dealt() -> None:
    partition = FakePartition()
    partition.append(2)
    partition.append(2)
    result = partition.log.read(0, 1 << 20, upper_offset=4)
    read = LeaseRead([result.slices[0], result.slices[0].skip(7)])
    assert [(each.first, each.last) for each in read] == [(0, 1), (2, 3)]
    assert read.failure is not None
    assert read.failure.code is E.CORRUPT_MESSAGE


async def test_there_are_so_many_tables_and_idle_ones_give_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(led_tables, "TABLES_MAX", 2)
    broker = FakeBroker()
    groups = [Group(broker, 1) for _ in range(3)]
    for index, group in enumerate(groups):
        group.partition.index = index
    for group in groups[:2]:
        await group.opened()
        group.deal()
    with pytest.raises(KafkaError) as raised:
        _ = groups[2].table
    assert raised.value.code is E.COORDINATOR_NOT_AVAILABLE
    first = groups[0].table
    assert await groups[0].say(0, 0, ACCEPT) is E.NONE
    await groups[2].opened()
    assert first.closed
    assert len(broker.leases) == 2


# -- sessions and settings


def error_of(call: Any, *arguments: Any) -> E:
    with pytest.raises(KafkaError) as raised:
        call(*arguments)
    return raised.value.code


def test_sessions_count_epochs_and_end_with_their_connection() -> None:
    sessions = ShareSessions(2)
    session = sessions.begin("g", "ann", [(TOPIC_ID, 0)], "1")
    assert error_of(sessions.resume, "g", "ben", 1, "1") is E.SHARE_SESSION_NOT_FOUND
    assert error_of(sessions.resume, "g", "ann", 2, "1") is E.INVALID_SHARE_SESSION_EPOCH
    assert sessions.resume("g", "ann", 1, "1") is session
    assert error_of(sessions.resume, "g", "ann", 1, "1") is E.INVALID_SHARE_SESSION_EPOCH
    assert sessions.resume("g", "ann", 2, "2") is session
    assert sessions.of_connection("1") == []
    assert sessions.of_connection("2") == [session]
    session.epoch = 2**31 - 1
    assert sessions.resume("g", "ann", 2**31 - 1, "2").epoch == 1


def test_a_session_takes_the_place_of_its_member_s_and_keeps_its_leases() -> None:
    sessions = ShareSessions(1)
    before = sessions.begin("g", "ann", [(TOPIC_ID, 0)], "1")
    before.leased_from["a table"] = None
    assert error_of(sessions.begin, "g", "ben", [], "1") is E.SHARE_SESSION_LIMIT_REACHED
    after = sessions.begin("g", "ann", [], "2")
    assert before.ended
    assert after.leased_from == {"a table": None}
    assert (len(sessions), sessions.partitions_count) == (1, 0)
    sessions.end(after)
    sessions.end(after)
    assert not sessions.has("g")


async def test_a_session_that_is_over_gives_nothing_back_of_the_next_one_s() -> None:
    """Its last words took so long to judge that its member has begun another one meanwhile."""
    broker = FakeBroker()
    group = Group(broker, 10)
    await group.opened()
    before = group.begin()
    group.begin(connection="2")
    assert group.deal() == [(0, 9, 1)]
    broker.leases.end(before)
    assert group.table.records_by_state() == {ACQUIRED: 10}


@pytest.mark.parametrize("begins", [False, True])
async def test_a_session_that_outgrows_the_room_gives_back_what_its_member_has(
    monkeypatch: pytest.MonkeyPatch, begins: bool
) -> None:
    monkeypatch.setattr("kraftpy.core.leases.sessions.PARTITIONS_MAX", 2)
    broker = FakeBroker()
    group = Group(broker, 10)
    table = await group.opened()
    session = group.begin()
    assert group.deal() == [(0, 9, 1)]
    many = [(TOPIC_ID, index) for index in range(3)]
    leases = broker.leases
    if begins:
        error = error_of(leases.begin, GROUP, "ann", many, "2")
    else:
        error = error_of(leases.update, session, many, [])
    assert error is E.SHARE_SESSION_LIMIT_REACHED
    await until(lambda: table.closed)
    assert broker.share_persister.batches == [StateBatch(0, 9, AVAILABLE, 1)]


def test_a_session_that_is_over_takes_no_room_any_more() -> None:
    """It was ended while what a fetch says in it was judged, which then names its partitions."""
    sessions = ShareSessions(1)
    session = sessions.begin("g", "ann", [(TOPIC_ID, 0)], "1")
    sessions.end(session)
    sessions.update(session, [(TOPIC_ID, 1)], [])
    assert (len(sessions), sessions.partitions_count) == (0, 0)


def test_trap_11_a_partition_is_in_the_session_until_it_is_forgotten() -> None:
    sessions = ShareSessions(1)
    session = sessions.begin("g", "ann", [(TOPIC_ID, 0)], "1")
    sessions.update(session, [(TOPIC_ID, 1)], [])
    assert set(session.partitions) == {(TOPIC_ID, 0), (TOPIC_ID, 1)}
    sessions.update(session, [(TOPIC_ID, 0)], [(TOPIC_ID, 0)])
    assert list(session.partitions) == [(TOPIC_ID, 1)]
    assert sessions.partitions_count == 1


def test_the_first_partition_turns_with_the_epoch() -> None:
    session = ShareSessions(1).begin("g", "ann", [(TOPIC_ID, each) for each in range(3)], "1")
    firsts = []
    for session.epoch in range(1, 5):
        firsts.append(session.in_turn()[0][1])
    assert firsts == [1, 2, 0, 1]


async def test_settings_of_a_group_are_clamped_to_the_broker_s() -> None:
    config = FakeBroker(max_delivery_count_limit="6").config
    settings = lease_settings({}, config)
    assert settings == ((2000, 5, 30_000), "latest", False, True)
    settings = lease_settings(
        {
            "share.delivery.count.limit": "9",
            "share.record.lock.duration.ms": "1000",
            "share.partition.max.record.locks": "not yet known",
            "share.auto.offset.reset": "by_duration:P1DT1H1M1.5S",
            "share.isolation.level": "read_committed",
            "share.renew.acknowledge.enable": "false",
        },
        config,
    )
    assert settings == ((2000, 6, 15_000), 90_061_500, True, False)
