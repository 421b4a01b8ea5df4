"""`make bench ARGS=transactions`: what transactions cost a broker, in CPU and in memory.

    python -m tests.bench.transaction_costs COUNT

prints by how many bytes a process grows for each of so many transactional ids that a coordinator
has loaded, whose transactions have ended; it runs in a process of its own.

CPU is that of all processes of one node, which leads the partitions and coordinates the ids. It is
sent requests that were encoded before, a few at a time: the same batch of a record with and without
a transaction. A marker is what the end of a transaction takes for each partition beyond the first.
"""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from kraftpy.core.transactions import (
    VERSION_2,
    Transaction,
    TransactionConfig,
    TransactionMachine,
    TransactionMemory,
    TransactionState,
)
from kraftpy.core.transactions.records import TransactionRecord, decode_record, encode_record
from kraftpy.core.transactions.states import NO_PARTITIONS
from kraftpy.protocol import messages
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.records import build_batch
from kraftpy.testing.process import BrokerError
from tests.bench.figures import Values
from tests.bench.measure import KIB, Round, Say, partitions_on
from tests.bench.wire import Wire, check, frames_of
from tests.processes import (
    Broker,
    Kraftpy,
    cpu_seconds,
    memory_bytes,
    running,
)

IDS = 2_000
WIDE_IDS = 100
WIDE_PARTITIONS = 50
LOADED_IDS = 100_000
TIMEOUT_S = 30.0
POLL_S = 0.02
PRODUCE_VERSION = 12
END_VERSION = 5
FIND_VERSION = 4
INIT_VERSION = 5
LIST_VERSION = 0
TRANSACTION_TIMEOUT_MS = 60_000
NOW_MS = 1_700_000_000_000

IDEMPOTENT = "CPU of an idempotent 1 KiB batch"
FIRST = "CPU of a transaction's first batch, leader and coordinator"
LATER = "CPU of a later batch, more than an idempotent one"
END = "CPU of a transaction's end, one partition"
MARKER = "CPU of a marker"
MEMORY = "memory of a transactional id"

Producer = tuple[str | None, int, int]
"""Its transactional id, if it has one, its producer id and its epoch."""


def _produce(
    topic: str, producer: Producer, sequence: int, partitions: int
) -> messages.ProduceRequest:
    transactional_id, producer_id, epoch = producer
    batch = build_batch(
        [(int(time.time() * 1000), None, bytes(KIB - 100), [])],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=transactional_id is not None,
    )
    request = messages.ProduceRequest
    data = [request.PartitionProduceData(index, memoryview(batch)) for index in range(partitions)]
    topics = [request.TopicProduceData(name=topic, partition_data=data)]
    return request(transactional_id, -1, 30_000, topics)


def cpu(node: Broker, narrow: str, wide: str) -> Round:
    """One round; the topics have one partition, and `WIDE_PARTITIONS`."""
    with contextlib.closing(Wire(node.bootstrap)) as wire:
        return _Costs(node, wire).round(narrow, wide)


class _Costs:
    """Measures one node through one connection."""

    def __init__(self, broker: Broker, wire: Wire) -> None:
        self._broker = broker
        self._wire = wire

    def _init(self, transactional_ids: Sequence[str | None]) -> list[Producer]:
        request = messages.InitProducerIdRequest
        wanted = [request(each, TRANSACTION_TIMEOUT_MS) for each in transactional_ids]
        found = self._wire.ask_all(ApiKey.INIT_PRODUCER_ID, INIT_VERSION, wanted)
        for answer in found:
            check(answer.error_code, "an InitProducerId")
        return [
            (name, each.producer_id, each.producer_epoch)
            for name, each in zip(transactional_ids, found, strict=True)
        ]

    def _wait_for_coordinator(self) -> None:
        """Until the topic of transactions is there, and loaded."""
        deadline = time.monotonic() + TIMEOUT_S
        wanted = messages.FindCoordinatorRequest(key_type=1, coordinator_keys=["any"])
        while (
            self._wire.ask(ApiKey.FIND_COORDINATOR, FIND_VERSION, wanted).coordinators[0].error_code
        ):
            if time.monotonic() > deadline:
                raise BrokerError("no coordinator of transactions")
            time.sleep(POLL_S)

    def _cpu_us(
        self, frames: Sequence[bytes], key: ApiKey, version: int
    ) -> tuple[float, list[Any]]:
        """Of each request until the node is quiet, and the answers."""
        before = cpu_seconds(self._broker.pids())
        answers = self._wire.send(frames)
        self._wait_for_ends()
        seconds = cpu_seconds(self._broker.pids()) - before
        return seconds / len(frames) * 1e6, self._wire.answers(key, version, answers)

    def _wait_for_ends(self) -> None:
        """Until no transaction waits for its markers."""
        states = ["PrepareCommit", "PrepareAbort"]
        deadline = time.monotonic() + TIMEOUT_S
        while self._wire.ask(
            ApiKey.LIST_TRANSACTIONS, LIST_VERSION, messages.ListTransactionsRequest(states)
        ).transaction_states:
            if time.monotonic() > deadline:
                raise BrokerError("transactions wait for their markers for too long")
            time.sleep(POLL_S)

    def batches(
        self, topic: str, producers: Sequence[Producer], sequence: int, partitions: int = 1
    ) -> float:
        """CPU of a Produce of each producer, in µs."""
        frames = frames_of(
            ApiKey.PRODUCE,
            PRODUCE_VERSION,
            [_produce(topic, each, sequence, partitions) for each in producers],
        )
        taken, answers = self._cpu_us(frames, ApiKey.PRODUCE, PRODUCE_VERSION)
        for answer in answers:
            for partition in answer.responses[0].partition_responses:
                check(partition.error_code, "a batch")
        return taken

    def ends(self, producers: Sequence[Producer]) -> float:
        """CPU of the end of each producer's transaction, with its markers, in µs."""
        request = messages.EndTxnRequest
        wanted = [request(name or "", number, epoch, True) for name, number, epoch in producers]
        frames = frames_of(ApiKey.END_TXN, END_VERSION, wanted)
        taken, answers = self._cpu_us(frames, ApiKey.END_TXN, END_VERSION)
        for answer in answers:
            check(answer.error_code, "an end")
        return taken

    def round(self, narrow: str, wide: str) -> Round:
        """All of them, with new producers."""
        self._wait_for_coordinator()
        name = f"{time.monotonic_ns()}-"
        plain = self._init([None] * IDS)
        producers = self._init([f"narrow-{name}{number}" for number in range(IDS)])
        self.batches(narrow, plain, 0)
        idempotent = self.batches(narrow, plain, 1)
        first = self.batches(narrow, producers, 0)
        later = self.batches(narrow, producers, 1)
        end = self.ends(producers)
        wide_producers = self._init([f"wide-{name}{number}" for number in range(WIDE_IDS)])
        self.batches(wide, wide_producers, 0, WIDE_PARTITIONS)
        wide_end = self.ends(wide_producers)
        return {
            IDEMPOTENT: idempotent,
            FIRST: first,
            LATER: later - idempotent,
            END: end,
            MARKER: (wide_end - end) / (WIDE_PARTITIONS - 1),
        }


def memory_of_an_id(count: int) -> float:
    """Bytes that each of so many ids adds to this process."""
    config = TransactionConfig(expiration_ms=1 << 40, wait_ms=100)
    machine = TransactionMachine(config, lambda: None, TransactionMemory(1 << 40), 0)
    gc.collect()
    before = memory_bytes([os.getpid()])
    for number in range(count):
        machine.load(_loaded(number))
    machine.finish_load(NOW_MS + count)
    gc.collect()
    grown = memory_bytes([os.getpid()]) - before
    if len(machine) != count:
        raise BrokerError(f"{len(machine)} of {count} transactional ids were loaded")
    return grown / count


def _loaded(number: int) -> TransactionRecord:
    """As from a log: an id that has committed a while ago."""
    transaction = Transaction(
        TransactionState.COMPLETE_COMMIT,
        producer_id=1000 + number,
        producer_epoch=number % 1000 + 1,
        last_producer_epoch=number % 1000,
        previous_producer_id=1000 + number,
        next_producer_id=-1,
        timeout_ms=TRANSACTION_TIMEOUT_MS,
        partitions=NO_PARTITIONS,
        start_ms=NOW_MS + number,
        update_ms=NOW_MS + number + 20,
        client_version=VERSION_2,
    )
    record = TransactionRecord(f"transactional-id-{number:07}", transaction)
    decoded = decode_record(*encode_record(record))
    assert decoded is not None
    return decoded


def memory_in_a_child(count: int) -> float:
    """The same of a process that has done nothing before and so has no room left."""
    command = [sys.executable, "-m", "tests.bench.transaction_costs", str(count)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        raise BrokerError("the program that loads transactional ids has failed")
    return float(done.stdout)


def run(rounds: int, say: Say) -> Values:
    """All figures of one node; the first round, by which it gets warm, isn't told."""
    values: Values = {}
    with (
        TemporaryDirectory(prefix="kraftpy-bench-") as folder,
        running(Kraftpy(Path(folder))) as node,
    ):
        for number in range(rounds + 1):
            say(
                f"transactions, round {number} of {rounds}"
                if number
                else "transactions: warming up"
            )
            with partitions_on(node, 1) as narrow, partitions_on(node, WIDE_PARTITIONS) as wide:
                measured = cpu(node, narrow, wide)
            if number:
                for name, value in measured.items():
                    values.setdefault(name, []).append(value)
    say(f"{LOADED_IDS:,} transactional ids")
    return {**values, MEMORY: [memory_in_a_child(LOADED_IDS)]}


if __name__ == "__main__":
    print(memory_of_an_id(int(sys.argv[1])))
