"""`kraftpy transaction` as its user sees it; what the broker says is scripted."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from kraftpy.protocol import messages
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode
from tests.unit.client.peer import Peer, running

from .commands import run_command

LIST = messages.ListTransactionsResponse
DESCRIBED = messages.DescribeTransactionsResponse
PRODUCERS = messages.DescribeProducersResponse
WRITTEN = messages.WriteTxnMarkersResponse
TIME_MS = 1_700_000_000_000


def describe(request: Any) -> Any:
    (name,) = request.transactional_ids
    if name != "billing":
        code = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        return DESCRIBED(transaction_states=[DESCRIBED.TransactionState(code, name)])
    state = DESCRIBED.TransactionState(
        transactional_id=name,
        transaction_state="Ongoing",
        transaction_timeout_ms=60_000,
        transaction_start_time_ms=TIME_MS,
        producer_id=5,
        producer_epoch=3,
        topics=[DESCRIBED.TopicData("orders", [1])],
    )
    return DESCRIBED(transaction_states=[state])


def producers(request: Any) -> Any:
    """Producer 5's transaction is its coordinator's, that of 6 nobody's; 7 has none."""
    active = [
        PRODUCERS.ProducerState(5, 3, 8, TIME_MS, 2, 40),
        PRODUCERS.ProducerState(6, 0, 9, TIME_MS, -1, 41),
        PRODUCERS.ProducerState(7, 0, 9, TIME_MS, 2, -1),
    ]
    return PRODUCERS(
        topics=[
            PRODUCERS.TopicResponse(
                topic.name,
                [
                    PRODUCERS.PartitionResponse(number, active_producers=active * (number == 1))
                    for number in topic.partition_indexes
                ],
            )
            for topic in request.topics
        ]
    )


@pytest.fixture
def peer() -> Peer:
    peer = Peer({"orders": 2})
    peer.versions |= {
        ApiKey.FIND_COORDINATOR: (0, 3),
        ApiKey.LIST_TRANSACTIONS: (0, 2),
        ApiKey.DESCRIBE_TRANSACTIONS: (0, 0),
        ApiKey.DESCRIBE_PRODUCERS: (0, 0),
        ApiKey.WRITE_TXN_MARKERS: (1, 1),
    }
    written = WRITTEN.WritableTxnMarkerTopicResult(
        "orders", [WRITTEN.WritableTxnMarkerPartitionResult(1, 0)]
    )
    peer.answers |= {
        ApiKey.FIND_COORDINATOR: lambda request: messages.FindCoordinatorResponse(
            node_id=1, host="127.0.0.1", port=peer.port
        ),
        ApiKey.LIST_TRANSACTIONS: lambda request: LIST(
            transaction_states=[LIST.TransactionState("billing", 5, "Ongoing")]
        ),
        ApiKey.DESCRIBE_TRANSACTIONS: describe,
        ApiKey.DESCRIBE_PRODUCERS: producers,
        ApiKey.WRITE_TXN_MARKERS: lambda request: WRITTEN(
            [WRITTEN.WritableTxnMarkerResult(6, [written])]
        ),
    }
    return peer


def run(peer: Peer, *args: str, code: int = 0) -> tuple[str, str]:
    """What `kraftpy transaction ARGS` prints to stdout and to stderr."""

    async def answered() -> Any:
        async with running(peer):
            return await asyncio.to_thread(
                run_command, "transaction", *args, bootstrap=peer.bootstrap
            )

    done = asyncio.run(answered())
    assert done.returncode == code, (done.stdout, done.stderr)
    return done.stdout.decode(), done.stderr.decode()


def test_tables(peer: Peer) -> None:
    assert run(peer, "list")[0].splitlines() == [
        "ID       COORDINATOR  PRODUCER  STATE",
        "billing            1         5  Ongoing",
    ]
    assert run(peer, "producers", "-t", "orders")[0].splitlines() == [
        "TOPIC   PARTITION  PRODUCER  EPOCH  SEQUENCE  LAST RECORD           COORDINATOR EPOCH"
        "  OPEN SINCE",
        "orders          1         5      3         8  2023-11-14T22:13:20Z                  2"
        "          40",
        "orders          1         6      0         9  2023-11-14T22:13:20Z                  -"
        "          41",
        "orders          1         7      0         9  2023-11-14T22:13:20Z                  2"
        "           -",
    ]
    assert run(peer, "describe", "billing")[0].splitlines() == [
        "id           billing",
        "state        Ongoing",
        "coordinator  broker 1",
        "producer     5, epoch 3",
        "timeout      60000 ms",
        "began        2023-11-14T22:13:20Z",
        "partitions   orders-1",
    ]


def test_json(peer: Peer) -> None:
    (listed,) = json.loads(run(peer, "list", "-o", "json")[0])
    assert listed == {"id": "billing", "coordinator": 1, "producer_id": 5, "state": "Ongoing"}
    described = json.loads(run(peer, "describe", "billing", "-o", "json")[0])
    assert (described["start_ms"], described["partitions"]) == (
        TIME_MS,
        [{"topic": "orders", "partition": 1}],
    )
    found = json.loads(run(peer, "producers", "-t", "orders:1", "-o", "json")[0])
    assert [(each["producer_id"], each["open_since"]) for each in found] == [
        (5, 40),
        (6, 41),
        (7, None),
    ]


def test_what_hangs_is_told_with_what_to_type(peer: Peer) -> None:
    table, advice = run(peer, "hanging", "--open-for", "60", code=5)
    assert [line.split()[:4] for line in table.splitlines()[1:]] == [["orders", "1", "41", "6"]]
    assert "`kraftpy transaction abort orders 1 41`" in advice
    told, _ = run(peer, "abort", "orders", "1", "41")
    assert told == "aborted the transaction of producer 6\n"
    (hung,) = json.loads(run(peer, "hanging", "--open-for", "60", "-o", "json", code=5)[0])
    assert (hung["open_since"], hung["id"]) == (41, None)
    assert run(peer, "hanging", "-t", "orders:0", "--open-for", "60") == (
        "",
        "no transaction hangs\n",
    )


def test_errors_say_what_to_type_next(peer: Peer) -> None:
    _, error = run(peer, "describe", "nobody", code=1)
    assert error == (
        "kraftpy: transactional id 'nobody' does not exist. `kraftpy transaction list` shows what "
        "there is\n"
    )
    _, error = run(peer, "abort", "orders", "1", "42", code=1)
    assert "`kraftpy transaction producers -t orders:1` shows" in error
    _, error = run(peer, "abort", "missing", "0", "42", code=1)
    assert "topic 'missing' does not exist" in error
    _, error = run(peer, "abort", "orders", "9", "4711", code=1)
    assert "topic 'orders' has no partition 9, only 0 to 1" in error
    _, error = run(peer, "terminate", "nobody", code=1)
    assert "'nobody' does not exist" in error
