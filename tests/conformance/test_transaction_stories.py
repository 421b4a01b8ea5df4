"""The protocol of transactions: the same requests get the same answers from all that speak it.

Each story is told to Apache Kafka, to kraftpy's broker and to the scripted one that the tests of
the client believe (`tests/unit/client/transaction_peer.py`), in the words of one version of the
protocol. What differs on purpose ends a comparison: a zombie's InitProducerId
(`kraftpy.core.transactions.rules`).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, NamedTuple

import pytest

from kraftpy.client.admin import Admin
from kraftpy.client.cluster import Cluster, is_retriable
from kraftpy.client.coordinator import TRANSACTION_KEY, CoordinatorRoute
from kraftpy.client.offsets import LATEST, READ_COMMITTED, list_offsets
from kraftpy.protocol import messages
from kraftpy.protocol.errors import ErrorCode, KafkaError, error_code
from kraftpy.protocol.records import build_batch
from kraftpy.testing import Broker
from tests.apache_kafka import ApacheKafka
from tests.processes import running as running_process
from tests.unit.client.peer import running
from tests.unit.client.transaction_peer import TransactionPeer

TIMEOUT_S = 60
STEPS = 14
SEEDS = 40
PAUSE_S = 0.01

MarkersWritten = Callable[[], Awaitable[None]]


class Heard(NamedTuple):
    """What was asked, the answer's error and, where it tells one, the epoch."""

    asked: str
    code: str
    epoch: int | None = None


class Talk:
    """A producer in its broker's words; epochs are counted back from the latest that it heard.

    It goes on when what it ended has ended in the partition as well: before, Apache Kafka takes
    late batches into the transaction that is being ended.
    """

    def __init__(
        self, cluster: Cluster, topic: str, markers_written: MarkersWritten, *, second_version: bool
    ) -> None:
        self._markers_written = markers_written
        self._topic = topic
        self._second = second_version
        self._route = CoordinatorRoute(cluster, topic, TRANSACTION_KEY)
        self._id, self._epoch = -1, -1
        self._sequences: dict[int, int] = {}
        self.story: list[Heard] = []

    def _back(self, epochs: int) -> int:
        return max(self._epoch - epochs, 0)

    async def _ask(self, request: Any, version: int, codes: Callable[[Any], int]) -> Any:
        """The answer once the transaction before is ended; and its error."""
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                try:
                    response = await self._route.ask(request, at_most=version)
                except (ConnectionError, KafkaError) as error:
                    if not is_retriable(error):
                        raise
                else:
                    code = error_code(codes(response))
                    if not code.retriable:
                        return response, code
                await asyncio.sleep(PAUSE_S)

    def _note(self, asked: str, code: ErrorCode, epoch: int | None = None) -> None:
        self.story.append(Heard(asked, code.name, epoch))

    async def init(self, back: int | None) -> None:
        """InitProducerId, naming the epoch so far back or none."""
        expected = (-1, -1) if back is None or self._id < 0 else (self._id, self._back(back))
        request = messages.InitProducerIdRequest(self._topic, 60_000, *expected)
        response, code = await self._ask(request, 4, lambda answer: answer.error_code)
        if code == ErrorCode.NONE:
            self._id, self._epoch = response.producer_id, response.producer_epoch
            await self._markers_written()
        self._note(f"init {back}", code, response.producer_epoch if not code else None)

    async def add(self, back: int) -> None:
        kinds = messages.AddPartitionsToTxnRequest
        request = kinds(
            v3_and_below_transactional_id=self._topic,
            v3_and_below_producer_id=self._id,
            v3_and_below_producer_epoch=self._back(back),
            v3_and_below_topics=[kinds.AddPartitionsToTxnTopic(self._topic, [0])],
        )

        def result(answer: Any) -> int:
            (topic,) = answer.results_by_topic_v3_and_below
            code: int = topic.results_by_partition[0].partition_error_code
            return code

        _, code = await self._ask(request, 3, result)
        self._note(f"add {back}", code)

    async def produce(self, back: int) -> None:
        epoch = self._back(back)
        sequence = self._sequences.get(epoch, 0)
        records = build_batch(
            [(1, None, b"v", [])],
            producer_id=self._id,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=True,
        )
        kinds = messages.ProduceRequest
        data = kinds.PartitionProduceData(index=0, records=records)
        request = kinds(
            transactional_id=self._topic,
            acks=-1,
            timeout_ms=5000,
            topic_data=[kinds.TopicProduceData(name=self._topic, partition_data=[data])],
        )
        # There is one broker: it leads the partition and coordinates.
        _, code = await self._ask(
            request,
            12 if self._second else 11,
            lambda answer: answer.responses[0].partition_responses[0].error_code,
        )
        if code == ErrorCode.NONE:
            self._sequences[epoch] = sequence + 1
        self._note(f"produce {back}", code)

    async def end(self, back: int, *, committed: bool) -> None:
        request = messages.EndTxnRequest(self._topic, self._id, self._back(back), committed)
        version = 5 if self._second else 4
        response, code = await self._ask(request, version, lambda answer: answer.error_code)
        told = response.producer_epoch if self._second and not code else None
        if told is not None:
            self._epoch = told
        if code == ErrorCode.NONE:
            await self._markers_written()
        self._note(f"end {back} {committed}", code, told)


async def tell(talk: Talk, seed: int) -> list[Heard]:
    """A story that follows from its seed alone, whatever is answered."""
    chance = random.Random(seed)
    await talk.init(None)
    for _ in range(STEPS):
        back = chance.choices([0, 1, 2], [7, 2, 1])[0]
        steps: list[Callable[[], Awaitable[None]]] = [
            lambda back=back: talk.produce(back),
            lambda back=back: talk.end(back, committed=True),
            lambda back=back: talk.end(back, committed=False),
            lambda back=back: talk.init(back),
            lambda: talk.init(None),
        ]
        weights = [6, 4, 3, 2, 1]
        if not talk._second:
            steps.append(lambda back=back: talk.add(back))
            weights.append(6)
        await chance.choices(steps, weights)[0]()
    return talk.story


async def listen_to_broker(
    bootstrap: str, topic: str, seed: int, *, second_version: bool
) -> list[Heard]:
    latest = {(topic, 0): LATEST}

    async def markers_written() -> None:
        while await list_offsets(cluster, latest) != await list_offsets(
            cluster, latest, isolation=READ_COMMITTED
        ):
            await asyncio.sleep(PAUSE_S)

    async with Cluster(bootstrap) as cluster:
        await Admin(cluster).create_topic(topic, partitions=1)
        await cluster.topic(topic, auto_create=True)  # which waits until it is there
        return await tell(
            Talk(cluster, topic, markers_written, second_version=second_version), seed
        )


async def listen_to_peer(topic: str, seed: int, *, second_version: bool) -> list[Heard]:
    async def markers_written() -> None:
        pass

    async with running(TransactionPeer({topic: 1})) as peer, Cluster(peer.bootstrap) as cluster:
        return await tell(
            Talk(cluster, topic, markers_written, second_version=second_version), seed
        )


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of Apache Kafka."""
    with running_process(ApacheKafka(tmp_path_factory.mktemp("kafka"))) as broker:
        yield broker.bootstrap


def before_a_zombie(story: list[Heard]) -> list[Heard]:
    """Up to the answer to a former owner's InitProducerId, if there is one."""
    refused = (
        number
        for number, heard in enumerate(story, start=1)
        if heard.asked.startswith("init") and heard.code == "PRODUCER_FENCED"
    )
    return story[: next(refused, None)]


@pytest.fixture(scope="module")
def kraftpys() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.mark.parametrize("second_version", [False, True], ids=["first", "second"])
def test_stories_end_alike(kafka: str, kraftpys: Broker, second_version: bool) -> None:
    async def compare(seed: int) -> list[Heard]:
        topic = f"story-{seed}-{second_version:d}"
        heard = await listen_to_broker(kafka, topic, seed, second_version=second_version)
        told = await listen_to_peer(topic, seed, second_version=second_version)
        assert told == heard, f"seed {seed}"
        told = await listen_to_broker(
            kraftpys.bootstrap, topic, seed, second_version=second_version
        )
        alike = before_a_zombie(heard)
        assert told[: len(alike)] == alike, f"seed {seed}"
        return heard

    async def compare_all() -> list[Heard]:
        return [heard for seed in range(SEEDS) for heard in await compare(seed)]

    heard = asyncio.run(compare_all())
    # They aren't all of one kind.
    assert {"NONE", "PRODUCER_FENCED", "INVALID_TXN_STATE"} <= {each.code for each in heard}
