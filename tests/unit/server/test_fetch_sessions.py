"""Incremental fetch sessions (KIP-227): epochs, interest set, eviction, what must be answered."""

from __future__ import annotations

import itertools

import pytest

from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.server.fetch_sessions import EVICT_AFTER_MS, FetchPartition, FetchSessionCache


def wanted(index: int, offset: int = 0, topic: str = "t") -> FetchPartition:
    return FetchPartition(topic, index, offset, 1024, -1, -1)


def cache(slots: int = 10) -> FetchSessionCache:
    return FetchSessionCache(slots, itertools.count(1))


def test_a_session_counts_epochs_and_keeps_its_partitions() -> None:
    sessions = cache()
    session = sessions.create([wanted(0), wanted(1)], 0)
    assert session is not None
    again = sessions.resume(session.id, 1, 10)
    assert again is session
    again.update([wanted(0, offset=7), wanted(2)], [("t", 1)])
    assert {p.index: p.fetch_offset for p in again} == {0: 7, 2: 0}
    assert sessions.resume(session.id, 2, 20) is session


@pytest.mark.parametrize("epoch", [0, 2, 3, -1])
def test_a_wrong_epoch_is_refused(epoch: int) -> None:
    sessions = cache()
    session = sessions.create([wanted(0)], 0)
    assert session is not None
    with pytest.raises(KafkaError) as refused:
        sessions.resume(session.id, epoch, 0)
    assert refused.value.code is ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert sessions.resume(session.id, 1, 0) is session


def test_an_unknown_session_is_refused() -> None:
    with pytest.raises(KafkaError) as refused:
        cache().resume(99, 1, 0)
    assert refused.value.code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_the_epoch_wraps_to_one() -> None:
    sessions = cache()
    session = sessions.create([wanted(0)], 0)
    assert session is not None
    session.epoch = 2**31 - 1
    sessions.resume(session.id, 2**31 - 1, 0)
    assert session.epoch == 1


def test_full_slots_give_way_only_when_idle() -> None:
    sessions = cache(slots=2)
    first = sessions.create([wanted(0)], 0)
    second = sessions.create([wanted(0)], 0)
    assert first is not None
    assert second is not None
    assert sessions.create([wanted(0)], 1) is None
    sessions.resume(first.id, 1, EVICT_AFTER_MS)
    third = sessions.create([wanted(0)], EVICT_AFTER_MS)
    assert third is not None
    assert len(sessions) == 2
    sessions.resume(first.id, 2, EVICT_AFTER_MS)
    with pytest.raises(KafkaError):
        sessions.resume(second.id, 1, EVICT_AFTER_MS)


def test_partitions_with_data_go_to_the_back() -> None:
    sessions = cache()
    session = sessions.create([wanted(0), wanted(1), wanted(2)], 0)
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
