"""kraftpy's transactional producer and readers of committed records, with Apache Kafka's broker.

What it wrote is read by librdkafka's and the Java consumer too. With kraftpy's broker:
`tests/clients/test_transactions.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

import confluent_kafka
import pytest

from kraftpy.client import transactions
from kraftpy.client.admin import Admin
from kraftpy.client.cluster import Cluster
from kraftpy.client.consumer import Consumer
from kraftpy.client.coordinator import GroupMetadata
from kraftpy.client.group_admin import GroupAdmin
from kraftpy.client.offsets import LATEST, READ_COMMITTED, list_offsets
from kraftpy.client.transaction_admin import TransactionAdmin
from kraftpy.client.transaction_state import ProducerIdentity, Status
from kraftpy.client.transactional_producer import (
    OpenTransaction,
    ProducerFencedError,
    TransactionAbortedError,
    TransactionalProducer,
    end_transaction,
)
from kraftpy.protocol import messages
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.records import build_batch
from tests.apache_kafka import ApacheKafka, run_tool
from tests.cli.commands import output, run_command
from tests.processes import running

TIMEOUT_S = 40
Work = Callable[[Cluster, str], Coroutine[Any, Any, None]]


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of Apache Kafka."""
    given = os.environ.get("KRAFTPY_TEST_BOOTSTRAP")
    if given:
        yield given
        return
    with running(ApacheKafka(tmp_path_factory.mktemp("kafka"))) as broker:
        yield broker.bootstrap


@pytest.fixture(params=["first", "second"])
def version(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both versions of the protocol; a broker of the second one still takes the first."""
    if request.param == "first":
        monkeypatch.setattr(transactions, "_SECOND_VERSION", 1000)
    return str(request.param)


def run(kafka: str, topic: str, work: Work, partitions: int = 2) -> None:
    async def with_topic() -> None:
        async with asyncio.timeout(TIMEOUT_S), Cluster(kafka) as cluster:
            await Admin(cluster).create_topic(topic, partitions=partitions)
            await cluster.topic(topic, auto_create=True)  # which waits until it is there
            await work(cluster, topic)

    asyncio.run(with_topic())


async def read(cluster: Cluster, topic: str) -> list[bytes]:
    """What a reader of committed records finds once all transactions have their markers."""
    names = [(topic, number) for number in (await cluster.topic(topic)).partitions]
    latest = dict.fromkeys(names, LATEST)
    ends = await list_offsets(cluster, latest)
    while await list_offsets(cluster, latest, isolation=READ_COMMITTED) != ends:
        await asyncio.sleep(0.02)
        ends = await list_offsets(cluster, latest)
    return await read_now(cluster, topic, "read_committed")


async def read_now(cluster: Cluster, topic: str, level: str) -> list[bytes]:
    """What a reader finds of the topic, up to what is its end now."""
    names = [(topic, number) for number in (await cluster.topic(topic)).partitions]
    async with Consumer(cluster, auto_offset_reset="earliest", isolation_level=level) as consumer:
        consumer.assign(names)
        ends = await consumer.offsets_for_times(dict.fromkeys(names, LATEST))
        found = []
        while any([await consumer.position(name) < ends[name] for name in names]):
            found += [record.value for record in await consumer.poll(200)]
    return sorted(found)


def read_with_librdkafka(kafka: str, topic: str, partitions: int = 2) -> list[bytes]:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": kafka,
            "group.id": f"g-{topic}",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, p, 0) for p in range(partitions)])
    found, ended = [], 0
    deadline = time.monotonic() + TIMEOUT_S
    while ended < partitions and time.monotonic() < deadline:
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            found.append(message.value())
        elif message is not None:
            assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF
            ended += 1
    consumer.close()
    return sorted(found)


def read_with_java(kafka: str, topic: str, count: int) -> list[bytes]:
    """The first records that the Java consumer finds."""
    printed = run_tool(
        "kafka-console-consumer",
        *("--bootstrap-server", kafka, "--topic", topic, "--from-beginning"),
        *("--isolation-level", "read_committed", "--max-messages", str(count)),
        *("--timeout-ms", "30000"),
    )
    return sorted(line.encode() for line in printed.splitlines())


@contextlib.asynccontextmanager
async def open_transaction(cluster: Cluster, topic: str) -> AsyncIterator[TransactionalProducer]:
    """A producer with a transaction that has a record in the topic."""
    async with TransactionalProducer(cluster, topic, linger_ms=0) as producer:
        await producer.begin_transaction()
        await (await producer.send(topic, b"open", partition=0))
        yield producer


def test_what_is_committed_counts_and_what_is_aborted_does_not(
    kafka: str, topic: str, version: str
) -> None:
    async def work(cluster: Cluster, topic: str) -> None:
        async with TransactionalProducer(cluster, topic, linger_ms=0) as producer:
            for number in range(6):
                with contextlib.suppress(ZeroDivisionError):
                    async with producer.transaction():
                        for partition in (0, 1):
                            await producer.send(topic, b"%d" % number, partition=partition)
                        await producer.flush()
                        1 / (number % 2)  # every other one
            epochs = producer._state.producer.epoch
        assert epochs == (0 if version == "first" else 6)
        assert await read(cluster, topic) == sorted([b"1", b"3", b"5"] * 2)
        everything = await read_now(cluster, topic, "read_uncommitted")
        assert everything == sorted(b"%d" % n for n in range(6) for _ in range(2))

    run(kafka, topic, work)
    assert read_with_librdkafka(kafka, topic) == sorted([b"1", b"3", b"5"] * 2)
    assert read_with_java(kafka, topic, 6) == sorted([b"1", b"3", b"5"] * 2)


def test_readers_of_committed_records_wait_for_an_open_transaction(
    kafka: str, topic: str, version: str
) -> None:
    async def work(cluster: Cluster, topic: str) -> None:
        async with open_transaction(cluster, topic) as producer:
            name = (topic, 0)
            assert await read_now(cluster, topic, "read_committed") == []
            assert await read_now(cluster, topic, "read_uncommitted") == [b"open"]
            assert await list_offsets(cluster, {name: LATEST}) == {name: 1}
            stable = await list_offsets(cluster, {name: LATEST}, isolation=READ_COMMITTED)
            assert stable == {name: 0}
            await producer.commit_transaction()
        assert await read(cluster, topic) == [b"open"]

    run(kafka, topic, work)


def test_what_was_not_sent_yet_is_not_written_by_an_abort(
    kafka: str, topic: str, version: str
) -> None:
    async def work(cluster: Cluster, topic: str) -> None:
        async with TransactionalProducer(cluster, topic, linger_ms=60_000) as producer:
            await producer.begin_transaction()
            delivery = await producer.send(topic, b"never")
            await producer.abort_transaction()
            with pytest.raises(TransactionAbortedError):
                await delivery
            with pytest.raises(RuntimeError, match="begin one first"):
                await producer.send(topic, b"outside")
            async with producer.transaction():
                await producer.send(topic, b"then")
        assert await read_now(cluster, topic, "read_uncommitted") == [b"then"]

    run(kafka, topic, work)


def test_the_next_producer_of_the_id_fences_this_one(kafka: str, topic: str, version: str) -> None:
    async def work(cluster: Cluster, topic: str) -> None:
        async with (
            open_transaction(cluster, topic) as former,
            TransactionalProducer(cluster, topic, linger_ms=0) as latter,
        ):
            async with latter.transaction():
                await latter.send(topic, b"latter")
            with pytest.raises(KafkaError):
                await (await former.send(topic, b"late", partition=0))
            with pytest.raises(ProducerFencedError, match="close this producer"):
                await former.abort_transaction()
            with pytest.raises(ProducerFencedError):
                await former.begin_transaction()
            async with latter.transaction():
                await latter.send(topic, b"again")
        assert await read(cluster, topic) == [b"again", b"latter"]

    run(kafka, topic, work)


def test_a_transaction_is_ended_by_another_than_its_producer(
    kafka: str, topic: str, version: str
) -> None:
    group = GroupMetadata(f"{topic}-marks")

    async def work(cluster: Cluster, topic: str) -> None:
        async def leave_open(text: str) -> OpenTransaction:
            async with TransactionalProducer(cluster, topic) as producer:
                await producer.begin_transaction()
                await producer.send(topic, text.encode())
                offsets = {("__consumer_offsets", 0): 7}
                await producer.send_offsets_to_transaction(offsets, group, text)
                found = await producer.hand_over_transaction()
            assert found is not None
            return found

        async def mark() -> str | None:
            found = await GroupAdmin(cluster).committed(group.group_id)
            return found["__consumer_offsets", 0].metadata if found else None

        await end_transaction(cluster, await leave_open("aborted"), committed=False)
        assert await mark() is None
        for _ in range(2):
            left = await leave_open("committed")
            for _ in range(2):
                await end_transaction(cluster, left, committed=True)
        fenced = await leave_open("fenced")
        left = await leave_open("committed")
        with pytest.raises(ProducerFencedError):
            await end_transaction(cluster, fenced, committed=True)
        assert await mark() == "committed"
        await end_transaction(cluster, left, committed=True)
        assert await read(cluster, topic) == [b"committed"] * 3

    run(kafka, topic, work)


def test_a_transaction_that_takes_too_long_is_aborted(kafka: str, topic: str, version: str) -> None:
    async def work(cluster: Cluster, topic: str) -> None:
        async with TransactionalProducer(
            cluster, topic, linger_ms=0, transaction_timeout_ms=1_000
        ) as producer:
            await producer.begin_transaction()
            await (await producer.send(topic, b"slow"))
            admin = TransactionAdmin(cluster)
            while (await admin.describe_transaction(topic)).state != "CompleteAbort":
                await asyncio.sleep(0.1)
            with pytest.raises(KafkaError):
                await producer.commit_transaction()
            # It ended under the next epoch: nobody's in the first version, in the second one that
            # of who aborts.
            if version == "first":
                with pytest.raises(ProducerFencedError):
                    await producer.begin_transaction()
            else:
                await producer.abort_transaction()
        assert await read(cluster, topic) == []

    run(kafka, topic, work)


def test_a_producer_whose_commit_is_in_doubt_goes_on(kafka: str, topic: str, version: str) -> None:
    """It names its epoch, which the coordinator knows as the last one where it was committed."""

    async def work(cluster: Cluster, topic: str) -> None:
        async with TransactionalProducer(cluster, topic, linger_ms=0) as producer:
            state = producer._state
            for number, told in enumerate((True, False)):
                await producer.begin_transaction()
                await producer.send(topic, b"%d" % number)
                await producer.flush()
                before = state.producer
                if told:
                    await producer._transactions.commit()
                    state.producer = before
                    state.status = Status.UNINITIALIZED
                else:
                    assert state.commit()
                    state.not_ended()
                async with producer.transaction():
                    await producer.send(topic, b"after %d" % number)
        assert await read(cluster, topic) == [b"0", b"after 0", b"after 1"]

    run(kafka, topic, work)


def test_each_input_is_transformed_once(kafka: str, topic: str, version: str) -> None:
    """Consume, transform, produce: workers that fail amid a transaction, one after the other."""
    inputs = [b"%03d" % number for number in range(60)]
    target = f"{topic}-target"

    async def worker(cluster: Cluster, topic: str, turn: int) -> bool:
        """Whether all is done; false after the failure that this worker is to meet."""
        async with (
            Consumer(
                cluster,
                group_id=f"g-{topic}",
                auto_offset_reset="earliest",
                isolation_level="read_committed",
                enable_auto_commit=False,
            ) as consumer,
            TransactionalProducer(cluster, topic, linger_ms=0) as producer,
        ):
            consumer.subscribe([topic])
            done = 0
            while await behind(consumer, topic):
                records = await consumer.poll(500, max_records=7)
                if not records:
                    continue
                await producer.begin_transaction()
                for record in records:
                    await producer.send(target, record.value)
                offsets = {(r.topic, r.partition): r.offset + 1 for r in records}
                await producer.send_offsets_to_transaction(offsets, consumer.group_metadata)
                await producer.flush()
                if turn < 4 and done == turn:
                    return False  # closing it aborts
                await producer.commit_transaction()
                done += 1
            return True

    async def behind(consumer: Consumer, topic: str) -> bool:
        committed = await consumer.committed([(topic, 0), (topic, 1)])
        return sum(committed.values()) < len(inputs)

    async def work(cluster: Cluster, topic: str) -> None:
        await Admin(cluster).create_topic(target, partitions=2)
        async with (
            TransactionalProducer(cluster, f"source-{topic}") as source,
            source.transaction(),
        ):
            for number, value in enumerate(inputs):
                await source.send(topic, value, partition=number % 2)
        turns = 0
        while not await asyncio.wait_for(worker(cluster, topic, turns), TIMEOUT_S):
            turns += 1
        assert turns == 4
        assert await read(cluster, target) == inputs

    run(kafka, topic, work)
    assert read_with_librdkafka(kafka, target) == inputs


def test_offsets_of_an_aborted_transaction_are_not_committed(
    kafka: str, topic: str, version: str
) -> None:
    async def work(cluster: Cluster, topic: str) -> None:
        name = (topic, 0)
        async with (
            Consumer(cluster, group_id=f"g-{topic}", enable_auto_commit=False) as consumer,
            TransactionalProducer(cluster, topic) as producer,
        ):
            await producer.begin_transaction()
            await producer.send_offsets_to_transaction({name: 5}, consumer.group_metadata)
            await producer.abort_transaction()
            assert await consumer.committed([name]) == {}
            async with producer.transaction():
                await producer.send_offsets_to_transaction({name: 6}, consumer.group_metadata)
            assert await consumer.committed([name]) == {name: 6}

    run(kafka, topic, work)


def test_offsets_of_a_former_member_fail_the_transaction(
    kafka: str, topic: str, version: str
) -> None:
    async def work(cluster: Cluster, topic: str) -> None:
        async with TransactionalProducer(cluster, topic, linger_ms=0) as producer:
            async with Consumer(cluster, group_id=f"g-{topic}") as consumer:
                consumer.subscribe([topic])
                while not consumer.assignment:
                    await consumer.poll(100)
                former = consumer.group_metadata

            async def commit_as_former() -> None:
                async with producer.transaction():
                    await producer.send(topic, b"never")
                    await producer.send_offsets_to_transaction({(topic, 0): 1}, former)

            with pytest.raises(KafkaError) as caught:
                await commit_as_former()
            assert caught.value.code in (
                ErrorCode.UNKNOWN_MEMBER_ID,
                ErrorCode.ILLEGAL_GENERATION,
            )
            async with producer.transaction():
                await producer.send(topic, b"then")
        assert await read(cluster, topic) == [b"then"]

    run(kafka, topic, work)


# -- operators


def test_the_command_line_shows_and_terminates_transactions(kafka: str, topic: str) -> None:
    def ask(*arguments: str, code: int = 0) -> Any:
        done = run_command("transaction", *arguments, "-o", "json", bootstrap=kafka)
        assert done.returncode == code, done.stderr.decode()
        return json.loads(done.stdout) if done.stdout else done.stderr.decode()

    async def work(cluster: Cluster, topic: str) -> None:
        async with open_transaction(cluster, topic) as producer:
            identity = producer._state.producer
            listed = await asyncio.to_thread(ask, "list", "--state", "Ongoing")
            (found,) = (each for each in listed if each["id"] == topic)
            assert found["producer_id"] == identity.id
            assert topic not in str(await asyncio.to_thread(ask, "list", "--open-for", "3600"))
            described = await asyncio.to_thread(ask, "describe", topic)
            assert described["state"] == "Ongoing"
            assert described["partitions"] == [{"topic": topic, "partition": 0}]
            (writing,) = await asyncio.to_thread(ask, "producers", "-t", topic)
            assert writing["producer_id"] == identity.id
            assert (writing["producer_epoch"], writing["open_since"]) == (identity.epoch, 0)
            # It is open, and not without its coordinator.
            scope = ("-t", topic, "--open-for", "0.001")
            assert await asyncio.to_thread(ask, "hanging", *scope) == []
            results = await asyncio.to_thread(ask, "terminate", topic)
            assert results == [{"transaction": topic, "status": "terminated"}]
            with pytest.raises(ProducerFencedError):
                await producer.commit_transaction()
        described = await asyncio.to_thread(ask, "describe", topic)
        assert (described["state"], described["partitions"]) == ("Empty", [])
        assert await read(cluster, topic) == []
        assert "does not exist" in await asyncio.to_thread(ask, "describe", "nobody", code=1)
        results = await asyncio.to_thread(ask, "terminate", "nobody", code=1)
        assert results[0]["error"] == "TRANSACTIONAL_ID_NOT_FOUND"

    run(kafka, topic, work)


def test_a_transaction_that_hangs_is_found_and_aborted(kafka: str, topic: str) -> None:
    """A late batch of the first version, which no broker verified, opens one that nobody ends."""

    async def work(cluster: Cluster, topic: str) -> None:
        admin = TransactionAdmin(cluster)
        name = (topic, 0)
        producer = await hang(cluster, topic)
        now_ms = int(time.time() * 1000) + 1
        assert await admin.hanging([name], now_ms=now_ms) == []  # too young to tell
        (found,) = await admin.hanging([name], now_ms=now_ms, open_for_ms=0)
        assert (found.partition, found.producer.transaction_start) == (name, 0)
        assert found.producer.producer_id == producer.id
        command = ("transaction", "abort", topic, "0", "0")
        told = await asyncio.to_thread(output, *command, bootstrap=kafka)
        assert told == f"aborted the transaction of producer {producer.id}\n"
        assert await admin.hanging([name], now_ms=now_ms, open_for_ms=0) == []
        with pytest.raises(KafkaError, match="no open transaction"):
            await admin.abort(name, 0)
        assert await read(cluster, topic) == []

    run(kafka, topic, work, partitions=1)


async def hang(cluster: Cluster, topic: str, timestamp_ms: int | None = None) -> ProducerIdentity:
    """Writes a transactional batch that belongs to no transaction.

    The broker verifies what it is sent, unless it is told not to.
    """
    admin = Admin(cluster)
    key = "transaction.partition.verification.enable"
    await cluster.refresh()
    broker = str(min(cluster.brokers))
    await admin.alter_configs(broker, values={key: "false"}, resource_type=4)
    try:
        async with TransactionalProducer(cluster, topic) as producer:
            await producer.begin_transaction()
            identity = producer._state.producer
        await cluster.topic(topic)
        kinds = messages.ProduceRequest
        records = build_batch(
            [(timestamp_ms or int(time.time() * 1000), None, b"hangs", [])],
            producer_id=identity.id,
            producer_epoch=identity.epoch,
            base_sequence=0,
            transactional=True,
        )
        data = kinds.PartitionProduceData(index=0, records=records)
        request = kinds(
            transactional_id=topic,
            acks=-1,
            timeout_ms=5000,
            topic_data=[kinds.TopicProduceData(name=topic, partition_data=[data])],
        )
        node_id = cluster.leader(topic, 0)
        code = None
        while code != ErrorCode.NONE:  # brokers learn of the setting in their time
            response = await cluster.request(request, node_id=node_id, at_most=11)
            code = response.responses[0].partition_responses[0].error_code
            assert code in (ErrorCode.NONE, ErrorCode.TRANSACTION_ABORTABLE)
    finally:
        await admin.alter_configs(broker, delete=[key], resource_type=4)
    return identity
