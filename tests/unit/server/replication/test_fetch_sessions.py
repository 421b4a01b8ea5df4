"""Incremental fetch sessions (KIP-227): epochs, interest set, eviction, what must be answered."""

from __future__ import annotations

import itertools

import pytest

from kraftpy.core.security.principals import Principal
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.server.replication import fetch_sessions
from kraftpy.server.replication.fetch_sessions import (
    CONNECTION_PARTITIONS_MAX,
    CONNECTION_SESSIONS_MAX,
    EVICT_AFTER_MS,
    FetchPartition,
    FetchSessionCache,
)


def wanted(index: int, offset: int = 0, topic: str = "t") -> FetchPartition:
    return FetchPartition(topic, index, offset, 1024, -1, -1)


def cache(slots: int = 10) -> FetchSessionCache:
    return FetchSessionCache(slots, itertools.count(1))


def test_a_session_counts_epochs_and_keeps_its_partitions() -> None:
    sessions = cache()
    session = sessions.create([wanted(0), wanted(1)], "c", 0)
    assert session is not None
    again = sessions.resume(session.id, 1, "c", 10)
    assert again is session
    sessions.update(again, [wanted(0, offset=7), wanted(2)], [("t", 1)], 10)
    assert {p.index: p.fetch_offset for p in again} == {0: 7, 2: 0}
    assert sessions.resume(session.id, 2, "c", 20) is session


def test_a_partition_that_is_named_anew_has_the_slices_that_it_is_named_with() -> None:
    """Who reads other slices by now would miss their records, and not see that."""
    sessions = cache()
    session = sessions.create([wanted(0), wanted(1)], "c", 0)
    assert session is not None
    for slices in ([(0, 9)], [(5, 7)], None):
        named = wanted(0)
        named.key_ranges = slices
        sessions.update(session, [named], [], 10)
        assert {p.index: p.key_ranges for p in session} == {0: slices, 1: None}


@pytest.mark.parametrize("epoch", [0, 2, 3, -1])
def test_a_wrong_epoch_is_refused(epoch: int) -> None:
    sessions = cache()
    session = sessions.create([wanted(0)], "c", 0)
    assert session is not None
    with pytest.raises(KafkaError) as refused:
        sessions.resume(session.id, epoch, "c", 0)
    assert refused.value.code is ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert sessions.resume(session.id, 1, "c", 0) is session


def test_an_unknown_session_is_refused() -> None:
    with pytest.raises(KafkaError) as refused:
        cache().resume(99, 1, "c", 0)
    assert refused.value.code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_the_epoch_wraps_to_one() -> None:
    sessions = cache()
    session = sessions.create([wanted(0)], "c", 0)
    assert session is not None
    session.epoch = 2**31 - 1
    sessions.resume(session.id, 2**31 - 1, "c", 0)
    assert session.epoch == 1


def test_full_slots_give_way_only_when_idle() -> None:
    sessions = cache(slots=2)
    first = sessions.create([wanted(0)], "c", 0)
    second = sessions.create([wanted(0)], "c", 0)
    assert first is not None
    assert second is not None
    assert sessions.create([wanted(0)], "c", 1) is None
    sessions.resume(first.id, 1, "c", EVICT_AFTER_MS)
    third = sessions.create([wanted(0)], "c", EVICT_AFTER_MS)
    assert third is not None
    assert len(sessions) == 2
    sessions.resume(first.id, 2, "c", EVICT_AFTER_MS)
    with pytest.raises(KafkaError):
        sessions.resume(second.id, 1, "c", EVICT_AFTER_MS)


@pytest.fixture
def small_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """All sessions together may hold ten partitions."""
    monkeypatch.setattr(fetch_sessions, "CONNECTION_PARTITIONS_MAX", 10)
    monkeypatch.setattr(fetch_sessions, "PARTITIONS_PER_SLOT", 1)


def several(count: int, first: int = 0) -> list[FetchPartition]:
    return [wanted(index) for index in range(first, first + count)]


def test_all_sessions_together_hold_so_many_partitions(small_room: None) -> None:
    sessions = cache()
    assert sessions.create(several(6), "a", 0) is not None
    assert sessions.create(several(5), "b", 0) is None
    assert sessions.create(several(4), "b", 0) is not None
    assert sessions.partitions_count == 10


def test_a_session_that_outgrows_the_room_ends(small_room: None) -> None:
    sessions = cache()
    assert sessions.create(several(6), "a", 0) is not None
    growing = sessions.create(several(3), "b", 0)
    assert growing is not None
    sessions.update(sessions.resume(growing.id, 1, "b", 0), several(1, 3), [], 0)
    with pytest.raises(KafkaError) as refused:
        sessions.update(sessions.resume(growing.id, 2, "b", 0), several(1, 4), [], 0)
    assert refused.value.code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert (len(sessions), sessions.partitions_count) == (1, 6)


def test_what_is_forgotten_makes_room(small_room: None) -> None:
    sessions = cache()
    session = sessions.create(several(10), "a", 0)
    assert session is not None
    sessions.update(session, [], [("t", 0), ("t", 1)], 0)
    assert sessions.create(several(2), "b", 0) is not None


def test_an_old_session_gives_way_to_a_larger_one(small_room: None) -> None:
    sessions = cache()
    small = sessions.create(several(2), "a", 0)
    large = sessions.create(several(8), "b", 0)
    assert small is not None
    assert large is not None
    for session in (small, large):
        sessions.resume(session.id, 1, "a", EVICT_AFTER_MS)
    assert sessions.create(several(2), "c", EVICT_AFTER_MS + 1) is None
    assert sessions.create(several(3), "c", EVICT_AFTER_MS + 1) is None
    assert len(sessions) == 2, "one was evicted, and for nothing"
    sessions.update(large, [], [("t", 0)], EVICT_AFTER_MS + 1)
    assert sessions.create(several(3), "c", EVICT_AFTER_MS + 1) is not None


def test_a_session_ends_with_the_connection_that_used_it_last() -> None:
    sessions = cache()
    session = sessions.create([wanted(0)], "a", 0)
    other = sessions.create([wanted(0)], "b", 0)
    assert session is not None
    assert other is not None
    sessions.resume(session.id, 1, "b", 0)
    sessions.connection_closed("a")
    assert len(sessions) == 2
    sessions.connection_closed("b")
    assert (len(sessions), sessions.partitions_count) == (0, 0)


def test_a_connection_has_a_limit_of_its_own() -> None:
    sessions = cache(slots=1000)
    for _ in range(CONNECTION_SESSIONS_MAX):
        assert sessions.create([wanted(0)], "a", 0) is not None
    assert sessions.create([wanted(0)], "a", 0) is None
    most = several(CONNECTION_PARTITIONS_MAX)
    assert sessions.create(most, "b", 0) is not None
    assert sessions.create([wanted(0)], "b", 0) is None
    assert sessions.create([wanted(0)], "c", 0) is not None


@pytest.mark.parametrize("name", ["t" * 250, "\N{CJK UNIFIED IDEOGRAPH-4E00}"])
def test_a_name_that_no_topic_can_have_is_not_kept(name: str) -> None:
    sessions = cache()
    assert sessions.create([wanted(0, topic=name)], "a", 0) is None
    session = sessions.create([wanted(0)], "a", 0)
    assert session is not None
    with pytest.raises(KafkaError):
        sessions.update(session, [wanted(0, topic=name)], [], 0)
    assert sessions.partitions_count == 0


def test_partitions_with_data_go_to_the_back() -> None:
    sessions = cache()
    session = sessions.create([wanted(0), wanted(1), wanted(2)], "c", 0)
    assert session is not None
    session.served(("t", 0))
    assert [p.index for p in session] == [1, 2, 0]


def test_only_news_must_be_answered() -> None:
    partition = wanted(0)
    assert partition.must_answer(0, 5, 5, 0, False)
    assert not partition.must_answer(0, 5, 5, 0, False)
    assert partition.must_answer(0, 5, 5, 0, True)
    assert partition.must_answer(0, 6, 5, 0, False)
    assert partition.must_answer(0, 6, 6, 0, False)
    assert partition.must_answer(0, 6, 6, 1, False)
    assert partition.must_answer(3, 6, 6, 1, False)
    assert partition.must_answer(3, 6, 6, 1, False)
    assert partition.must_answer(0, 6, 6, 1, False)


def test_trap_16_a_session_is_that_of_who_has_begun_it() -> None:
    sessions = cache()
    session = sessions.create([wanted(0)], "c", 0)
    assert session is not None
    session.principal = Principal("User", "alice")
    assert not sessions.is_of_another(session.id, Principal("User", "alice"))
    assert sessions.is_of_another(session.id, Principal("User", "bob"))
    assert not sessions.is_of_another(session.id + 1, Principal("User", "bob"))
