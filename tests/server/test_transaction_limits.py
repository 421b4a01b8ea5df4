"""What clients may not do with transactions: Kafka's errors, and that nothing comes of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from kraftpy.protocol import messages as m
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode as E
from kraftpy.testing import Broker
from tests.server.bad_transactions import EXPECTED, Asker
from tests.server.test_transactional_batches import latest
from tests.server.test_transactional_offsets import Group
from tests.server.test_transactions import Id
from tests.server.wire import Wire
from tests.waiting import wait_until

TIMEOUT_MS = 4_000
LONG_TIMEOUT_MS = 600_000


def test_wrong_requests_get_kafkas_answers(wire: Wire) -> None:
    """As Apache Kafka answers them: `tests/conformance/test_bad_transactions.py`."""
    assert dict(Asker(wire).answers()) == EXPECTED


def test_groups_that_can_not_be(wire: Wire) -> None:
    own = Id(wire, "of-no-group").begin()
    for length in (32_768, 1 << 20):
        request = m.AddOffsetsToTxnRequest(own.name, *own.producer, "x" * length)
        answer = wire.call(ApiKey.ADD_OFFSETS_TO_TXN, 3, request)
        assert answer.error_code == E.INVALID_GROUP_ID
    assert own.described().transaction_state == "Empty"


def test_offsets_of_ids_that_can_not_be(wire: Wire, new_topic: Callable[..., str]) -> None:
    topic, group = new_topic(), Group(wire, "group")
    own = Id(wire, "of-the-group").begin()
    for name in ("", "x" * 32_768):
        own.name = name
        for version in (3, 4, 5):
            assert group.commit_in(own, topic, 5, version=version) is E.INVALID_REQUEST


def create(wire: Wire, topic: str, partitions: int) -> None:
    kinds = m.CreateTopicsRequest
    request = kinds([kinds.CreatableTopic(topic, partitions, 1)], timeout_ms=10_000)
    (created,) = wire.call(ApiKey.CREATE_TOPICS, 7, request).topics
    assert created.error_code == E.NONE


def add_many(wire: Wire, own: Id, topic: str, indexes: Sequence[int]) -> set[E]:
    kinds = m.AddPartitionsToTxnRequest
    wanted = kinds.AddPartitionsToTxnTopic(topic, list(indexes))
    request = kinds([], own.name, *own.producer, [wanted])
    answer = wire.call(ApiKey.ADD_PARTITIONS_TO_TXN, 3, request)
    (added,) = answer.results_by_topic_v3_and_below
    return {E(each.partition_error_code) for each in added.results_by_partition}


def test_more_partitions_than_a_record_takes() -> None:
    """The last that fits leaves room for the end: what can't be ended would stay for ever."""
    partitions = 400
    with (
        Broker(message_max_bytes=1_000, transaction_state_log_num_partitions=1) as broker,
        Wire(broker.host, broker.port) as wire,
    ):
        create(wire, "many", partitions)
        own = Id(wire, "greedy").begin()
        assert add_many(wire, own, "many", range(partitions)) == {E.UNKNOWN_SERVER_ERROR}
        assert own.described().transaction_state == "Empty"
        added = 150
        assert add_many(wire, own, "many", range(added)) == {E.NONE}
        while (error := own.add(("many", added))) == [E.NONE]:
            added += 1
        assert error == [E.UNKNOWN_SERVER_ERROR]
        assert 200 < added < partitions
        assert len(own.described().topics[0].partitions) == added
        assert own.write("many") is E.NONE
        request = m.EndTxnRequest(own.name, *own.producer, committed=True)
        assert wire.call(ApiKey.END_TXN, 5, request).error_code == E.NONE
        own.wait_ended()
        assert latest(wire, "many") == 2


def asked(wire: Wire, key: ApiKey, version: int, requests: Sequence[Any]) -> list[Any]:
    """The answers to many requests, sent without waiting for each."""
    for request in requests:
        wire.send(key, version, request)
    return [wire.receive(key, version)[1] for _ in requests]


def open_many(wire: Wire, names: Sequence[str], topic: str, timeout_ms: int) -> None:
    """Each of these ids begins a transaction."""
    inits = [m.InitProducerIdRequest(name, timeout_ms) for name in names]
    made = asked(wire, ApiKey.INIT_PRODUCER_ID, 4, inits)
    kinds = m.AddPartitionsToTxnRequest
    adds = [
        kinds([], name, each.producer_id, 0, [kinds.AddPartitionsToTxnTopic(topic, [0])])
        for name, each in zip(names, made, strict=True)
    ]
    for answer in asked(wire, ApiKey.ADD_PARTITIONS_TO_TXN, 3, adds):
        (added,) = answer.results_by_topic_v3_and_below
        assert added.results_by_partition[0].partition_error_code == E.NONE


def states(wire: Wire) -> dict[str, int]:
    """How many transactional ids are in each state; empty while they are being loaded."""
    request = m.ListTransactionsRequest([], [], -1)
    answer = wire.call(ApiKey.LIST_TRANSACTIONS, 1, request)
    found: dict[str, int] = {}
    for each in answer.transaction_states if not answer.error_code else ():
        found[each.transaction_state] = found.get(each.transaction_state, 0) + 1
    return found


def test_ids_that_are_left_end_with_their_timeouts_though_the_broker_is_killed() -> None:
    """Nobody reads past them before that, everybody behind it, and what was committed stays.

    `make bench ARGS=transactional-ids` has a hundred thousand.
    """
    hurried, patient = 1_000, 500
    with Broker() as broker:
        with Wire(broker.host, broker.port) as wire:
            create(wire, "left", 1)
            own = Id(wire, "writer").begin()
            assert own.add(("left", 0)) == [E.NONE]
            assert own.write("left") is own.end() is E.NONE
            own.wait_ended()
            assert latest(wire, "left") == 2
            began_at = time.monotonic()
            open_many(wire, [f"hurried-{n}" for n in range(hurried)], "left", TIMEOUT_MS)
            last = Id(wire, "hurried-writer")
            assert last.init(timeout_ms=TIMEOUT_MS) is E.NONE
            assert last.add(("left", 0)) == [E.NONE]
            assert last.write("left") is E.NONE
            open_many(wire, [f"patient-{n}" for n in range(patient)], "left", LONG_TIMEOUT_MS)
            assert latest(wire, "left") == 2
        broker.kill()
        broker.restart()
        with Wire(broker.host, broker.port) as wire:
            expected = {"CompleteCommit": 1, "CompleteAbort": hurried + 1, "Ongoing": patient}
            wait_until(lambda: states(wire) == expected, "what is overdue to be aborted")
            assert time.monotonic() - began_at >= TIMEOUT_MS / 1000
            # The record that was aborted and the markers; patient ones have written nothing.
            assert latest(wire, "left") == 2 + 1 + hurried + 1
            producer, last._wire = last.producer, wire
            assert last.end(producer=producer) is E.PRODUCER_FENCED
            # Others go on meanwhile, and so do their owners.
            Id(wire, "somebody").begin()
            assert Id(wire, "patient-0").init() is E.NONE


def test_ids_take_so_much_memory_and_no_more() -> None:
    """Who is in stays in, and there is room when others have been forgotten."""
    with (
        Broker(
            transaction_coordinator_max_memory_bytes=200_000,
            transactional_id_expiration_ms=2_000,
            transaction_remove_expired_transaction_cleanup_interval_ms=100,
        ) as broker,
        Wire(broker.host, broker.port) as wire,
    ):
        create(wire, "t", 1)
        own = Id(wire, "own").begin()
        requests = [m.InitProducerIdRequest(f"id-{n}", LONG_TIMEOUT_MS) for n in range(1_000)]
        errors = [E(each.error_code) for each in asked(wire, ApiKey.INIT_PRODUCER_ID, 4, requests)]
        assert set(errors) == {E.NONE, E.COORDINATOR_NOT_AVAILABLE}
        assert 100 < errors.count(E.NONE) < 200
        assert own.add(("t", 0)) == [E.NONE]
        assert own.write("t") is own.end() is E.NONE
        own.wait_ended()
        wait_until(lambda: Id(wire, "id-999").init() is E.NONE, "ids to be forgotten")
