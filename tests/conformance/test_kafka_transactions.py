"""Every verb of kafka-transactions, for transactions of librdkafka and one that nobody ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaException, Producer

from kraftpy.client.cluster import Cluster
from kraftpy.client.transaction_state import ProducerIdentity
from tests.clients.driver import Driver, wait_for_partitions
from tests.conformance.test_transactions import hang
from tests.conformance.tool_runner import Ended, ToolRunner
from tests.conformance.transactional_clients import read_committed
from tests.waiting import wait_until

TIMEOUT_S = 30.0
DAY_MS = 24 * 60 * 60 * 1000

Table = list[dict[str, str]]


class Tool:
    """kafka-transactions for one broker."""

    def __init__(self, runner: ToolRunner, bootstrap: str) -> None:
        self._runner = runner
        self._bootstrap = bootstrap

    def try_to(self, *arguments: str) -> Ended:
        server = ("--bootstrap-server", self._bootstrap)
        return self._runner.run("kafka-transactions", *server, *arguments)

    def run(self, *arguments: str) -> str:
        ended = self.try_to(*arguments)
        assert ended.code == 0, f"{arguments}: {ended.out}{ended.err}"
        return ended.out

    def ask(self, *arguments: str) -> Table:
        """The rows that it prints, by column; without the last columns if they are empty."""
        header, *rows = [line.split() for line in self.run(*arguments).strip().splitlines()]
        return [dict(zip(header, row, strict=False)) for row in rows]


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ToolRunner]:
    with ToolRunner(tmp_path_factory.mktemp("tools") / "log") as started:
        yield started


@pytest.fixture
def tool(runner: ToolRunner, bootstrap: str) -> Tool:
    return Tool(runner, bootstrap)


@pytest.fixture
def written(reference: Driver, topic: str) -> str:
    """A topic of two partitions."""
    reference.create_topic(topic, 2)
    wait_for_partitions(reference, topic, 2)
    return topic


def begin(bootstrap: str, topic: str) -> Producer:
    """A producer with a transaction of one record in each partition; its id is the topic's name."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    for partition in (0, 1):
        producer.produce(topic, b"v", partition=partition)
    assert producer.flush(TIMEOUT_S) == 0
    return producer


def test_list_and_describe(tool: Tool, bootstrap: str, written: str) -> None:
    producer = begin(bootstrap, written)
    (listed,) = tool.ask("list", "--transactional-id-pattern", written[:-2] + ".*")
    assert (listed["TransactionalId"], listed["TransactionState"]) == (written, "Ongoing")
    assert [each for each in tool.ask("list") if each["TransactionalId"] == written] == [listed]
    lasting = tool.ask("list", "--duration-filter", str(DAY_MS))
    assert written not in [each["TransactionalId"] for each in lasting]
    (described,) = tool.ask("describe", "--transactional-id", written)
    assert described["ProducerId"] == listed["ProducerId"]
    assert described["CoordinatorId"] == listed["Coordinator"]
    assert (described["TransactionState"], described["TransactionTimeoutMs"]) == (
        "Ongoing",
        "60000",
    )
    assert int(described["TransactionDurationMs"]) < TIMEOUT_S * 1000
    assert set(described["TopicPartitions"].split(",")) == {f"{written}-0", f"{written}-1"}
    producer.commit_transaction(TIMEOUT_S)

    def ended() -> bool:
        (described,) = tool.ask("describe", "--transactional-id", written)
        return described["TransactionState"] == "CompleteCommit"

    wait_until(ended, "it is committed")
    assert read_committed(bootstrap, written, 2) == [["v"], ["v"]]
    missing = tool.try_to("describe", "--transactional-id", f"{written}-nobody")
    assert missing.code == 1


def test_force_terminate(tool: Tool, bootstrap: str, written: str) -> None:
    producer = begin(bootstrap, written)
    tool.run("forceTerminateTransaction", "--transactionalId", written)
    with pytest.raises(KafkaException) as refused:
        producer.commit_transaction(TIMEOUT_S)
    assert refused.value.args[0].fatal()
    assert read_committed(bootstrap, written, 2) == [[], []]


def test_what_hangs_is_found_and_aborted(tool: Tool, bootstrap: str, written: str) -> None:
    async def leave_open() -> ProducerIdentity:
        async with Cluster(bootstrap) as cluster:
            return await hang(cluster, written, int(time.time() * 1000) - DAY_MS)

    producer = begin(bootstrap, written)
    partition = ("--topic", written, "--partition", "0")
    (writing,) = tool.ask("describe-producers", *partition)
    assert writing["CurrentTransactionStartOffset"] == "0"
    assert tool.ask("find-hanging", "--topic", written) == []  # it has its coordinator
    producer.abort_transaction(TIMEOUT_S)
    identity = asyncio.run(leave_open())
    (found,) = tool.ask("find-hanging", "--topic", written)
    assert (found["Topic"], found["Partition"]) == (written, "0")
    assert found["ProducerId"] == str(identity.id)
    producers = {each["ProducerId"]: each for each in tool.ask("describe-producers", *partition)}
    assert producers[str(identity.id)]["CurrentTransactionStartOffset"] == found["StartOffset"]
    tool.run("abort", *partition, "--start-offset", found["StartOffset"])
    assert tool.ask("find-hanging", "--topic", written) == []
    assert read_committed(bootstrap, written, 2) == [[], []]
