"""The same requests to Apache Kafka's transaction coordinator and to ours: what do they answer?

Requests are random, from a seed: of owners and zombies, newcomers, brokers, of both versions. Who
asks is told by its number among the producer ids that a coordinator gave out. Where a coordinator
says CONCURRENT_TRANSACTIONS it is asked again, and it is looked at when no markers are out.

What differs on purpose isn't asked: a zombie's InitProducerId while a transaction is open
(`kraftpy.core.transactions.rules`).
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from kraftpy.client.connection import Connection
from kraftpy.core.transactions import (
    Answer,
    Markers,
    TransactionConfig,
    TransactionMachine,
    TransactionMemory,
    Wish,
)
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode as E
from kraftpy.protocol.messages import (
    AddPartitionsToTxnRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
)
from tests.apache_kafka import ApacheKafka
from tests.processes import running

STORIES = 60
STEPS = 14
TIMEOUT_MS = 60_000
UNKNOWN_ID = 987_654_321

VERSIONS = {
    ApiKey.FIND_COORDINATOR: (1, 3),
    ApiKey.INIT_PRODUCER_ID: (4, 5),
    ApiKey.ADD_PARTITIONS_TO_TXN: (0, 5),
    ApiKey.END_TXN: (0, 5),
    ApiKey.DESCRIBE_TRANSACTIONS: (0, 0),
    ApiKey.API_VERSIONS: (0, 3),
}

Producer = tuple[int, int]
"""The number of a producer id in the order in which they were given out, and an epoch."""


class Request(NamedTuple):
    """`version` is the client's: 0, or 2; 2 of an add is a broker's."""

    kind: str
    producer: Producer | None = None
    version: int = 0
    partition: int = 0
    is_commit: bool = False


class Said(NamedTuple):
    """An answer; `producer` where there is one."""

    error: str
    producer: Producer | None = None


class State(NamedTuple):
    """What a coordinator says of the id when it is asked about it."""

    label: str
    producer: Producer
    partitions: tuple[int, ...]


class Names:
    """Producer ids by number, and back."""

    def __init__(self) -> None:
        self._ids: list[int] = []

    def number(self, producer_id: int) -> int:
        if producer_id not in self._ids:
            self._ids.append(producer_id)
        return self._ids.index(producer_id)

    def id_of(self, number: int) -> int:
        return self._ids[number] if number < len(self._ids) else UNKNOWN_ID

    def said(self, error: E, producer_id: int, epoch: int) -> Said:
        if error is not E.NONE or producer_id < 0:
            return Said(error.name)
        return Said(error.name, (self.number(producer_id), epoch))


class Ours:
    """A machine whose writes and markers are there at once."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._names = Names()
        self._next_id = iter(range(1000, 2000))
        self._machine = TransactionMachine(
            TransactionConfig(1 << 40, 1),
            lambda: next(self._next_id),
            TransactionMemory(1 << 40),
            0,
        )
        self._replies: list[Answer] = []
        self._markers: list[Markers] = []

    def _carry_out(self, effects: Any) -> None:
        self._replies += [reply for _, reply in effects.replies]
        self._markers += effects.messages
        for write in effects.writes:
            self._carry_out(self._machine.committed(write, 0))

    async def ask(self, name: str, request: Request) -> Said:
        self._replies.clear()
        machine, producer = self._machine, self._producer(request.producer)
        partition = self._topic, request.partition
        if request.kind == "verify":
            assert producer is not None
            return Said(machine.verify(name, producer, [partition])[0].name)
        if request.kind == "init":
            effects = machine.init_producer_id("", name, Wish(TIMEOUT_MS, producer), 0)
        elif request.kind == "add":
            assert producer is not None
            effects = machine.add_partitions("", name, producer, [partition], request.version, 0)
        else:
            assert producer is not None
            effects = machine.end(
                "", name, producer, request.version, 0, is_commit=request.is_commit
            )
        self._carry_out(effects)
        while self._markers:
            each = self._markers.pop()
            ended = each.producer_id, each.producer_epoch
            self._carry_out(machine.markers_written(name, ended, 0))
        (answer,) = self._replies
        if request.kind == "add" or (request.kind == "end" and request.version == 0):
            return Said(answer.error.name)
        return self._names.said(*answer)

    def _producer(self, producer: Producer | None) -> tuple[int, int] | None:
        return None if producer is None else (self._names.id_of(producer[0]), producer[1])

    async def look(self, name: str) -> State | None:
        found = self._machine.find(name)
        if found is None:
            return None
        producer = self._names.number(found.producer_id), found.producer_epoch
        partitions = tuple(sorted(index for _, index in found.partitions))
        return State(found.state.label, producer, partitions)


class Theirs:
    """Apache Kafka's coordinator, over the wire."""

    def __init__(self, connection: Connection, topic: str) -> None:
        self._connection = connection
        self._topic = topic
        self._names = Names()

    async def ask(self, name: str, request: Request) -> Said:
        async with asyncio.timeout(30):
            while True:
                said = await self._once(name, request)
                if said.error not in ("CONCURRENT_TRANSACTIONS", "COORDINATOR_LOAD_IN_PROGRESS"):
                    return said
                await asyncio.sleep(0.005)

    async def _once(self, name: str, request: Request) -> Said:
        producer = -1, -1
        if request.producer is not None:
            producer = self._names.id_of(request.producer[0]), request.producer[1]
        if request.kind == "init":
            message: Any = InitProducerIdRequest(name, TIMEOUT_MS, *producer)
            answer = await self._send(message, 4)
        elif request.kind == "end":
            message = EndTxnRequest(name, *producer, committed=request.is_commit)
            answer = await self._send(message, 5 if request.version == 2 else 3)
            if request.version == 0:
                return Said(E(answer.error_code).name)
        else:
            return await self._add(name, producer, request)
        return self._names.said(E(answer.error_code), answer.producer_id, answer.producer_epoch)

    async def _add(self, name: str, producer: tuple[int, int], request: Request) -> Said:
        kinds = AddPartitionsToTxnRequest
        topics = [kinds.AddPartitionsToTxnTopic(self._topic, [request.partition])]
        if request.kind == "add" and request.version == 0:
            message = kinds(
                v3_and_below_transactional_id=name,
                v3_and_below_producer_id=producer[0],
                v3_and_below_producer_epoch=producer[1],
                v3_and_below_topics=topics,
            )
            answer = await self._send(message, 3)
            (topic,) = answer.results_by_topic_v3_and_below
        else:
            is_question = request.kind == "verify"
            asked = kinds.AddPartitionsToTxnTransaction(name, *producer, is_question, topics)
            answer = await self._send(kinds(transactions=[asked]), 5)
            (result,) = answer.results_by_transaction
            (topic,) = result.topic_results
        return Said(E(topic.results_by_partition[0].partition_error_code).name)

    async def look(self, name: str) -> State | None:
        async with asyncio.timeout(30):
            while True:
                answer = await self._send(DescribeTransactionsRequest([name]), 0)
                (found,) = answer.transaction_states
                if found.error_code == E.TRANSACTIONAL_ID_NOT_FOUND:
                    return None
                assert found.error_code == E.NONE
                if not found.transaction_state.startswith("Prepare"):
                    break
                await asyncio.sleep(0.005)
        producer = self._names.number(found.producer_id), found.producer_epoch
        partitions = tuple(sorted(index for each in found.topics for index in each.partitions))
        return State(found.transaction_state, producer, partitions)

    async def _send(self, message: Any, version: int) -> Any:
        return await self._connection.request(message, timeout_ms=30_000, version=version)


def next_request(chance: random.Random, state: State | None) -> Request:
    """Something that somebody may ask of an id in this state."""
    number, epoch = (0, 0) if state is None else state.producer
    epoch = max(0, epoch + chance.choice([0, 0, 0, 0, 0, -1, -1, 1, -2]))
    number = max(0, number + chance.choice([0] * 12 + [1, -1]))
    producer = number, epoch
    version = chance.choice([0, 2])
    match chance.choice(["newcomer", "init", "add", "add", "add", "verify", "end", "end", "end"]):
        case "newcomer":
            return Request("init")
        case "init":
            is_open = state is not None and state.label == "Ongoing"
            return Request("init", state.producer if state and is_open else producer)
        case "end":
            return Request("end", producer, version, is_commit=chance.random() < 0.5)
        case kind:
            return Request(kind, producer, version, chance.randrange(3))


async def tell(seed: int, theirs: Theirs, ours: Ours, name: str) -> None:
    """A story; fails where the two differ."""
    chance = random.Random(seed)
    lines = []
    for _ in range(STEPS):
        request = next_request(chance, await ours.look(name))
        said = await theirs.ask(name, request), await ours.ask(name, request)
        state = await theirs.look(name), await ours.look(name)
        lines.append(f"{request}\n  Kafka: {said[0]} {state[0]}\n  ours:  {said[1]} {state[1]}")
        if said[0] != said[1] or state[0] != state[1]:
            pytest.fail("\n".join([f"seed {seed}:", *lines]))


async def coordinated(connection: Connection, name: str) -> None:
    """Waits until the coordinator is there and has loaded; the first request makes its topic."""
    async with asyncio.timeout(60):
        while True:
            wanted = FindCoordinatorRequest(key=name, key_type=1)
            found = await connection.request(wanted, timeout_ms=30_000, version=3)
            if found.error_code == E.NONE:
                asked = DescribeTransactionsRequest([name])
                answer = await connection.request(asked, timeout_ms=30_000, version=0)
                if answer.transaction_states[0].error_code == E.TRANSACTIONAL_ID_NOT_FOUND:
                    return
            await asyncio.sleep(0.1)


def test_the_same_requests_have_the_same_answers(tmp_path: Path) -> None:
    kafka = ApacheKafka(tmp_path, transaction_state_log_num_partitions=1)

    async def converse() -> None:
        host, _, port = kafka.bootstrap.partition(":")
        connection = await Connection.open(host, int(port), versions=VERSIONS)
        await coordinated(connection, "any")
        for seed in range(STORIES):
            name = f"story-{seed}"
            await tell(seed, Theirs(connection, "beer"), Ours("beer"), name)
        await connection.close()

    with running(kafka):
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        admin.create_topics([NewTopic("beer", 3, 1)])["beer"].result(60)
        asyncio.run(converse())
