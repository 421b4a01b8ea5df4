"""What an operator asks of transactions: which there are, what hangs, and to end one (KIP-664).

Rules:

* A transaction is known in two places: its coordinator has the transactional id, a partition's
  leader has the producer id whose transaction is open there. `hanging` compares both.
* A transaction hangs where its coordinator doesn't know of it: then nobody will ever end it, and
  readers of committed records don't get past its first record. What is younger than any transaction
  may be, with five minutes for its markers to arrive, can't be told from one that is going on.
* `abort` writes the marker that such a partition lacks, without the coordinator. For a transaction
  that isn't hanging that would take records out of its middle: so it is given by the offset where
  it begins, and refused where none does.
* `terminate` takes the transactional id over for a moment: its producer is fenced, and what it left
  open is aborted by the coordinator.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kraftpy.client.admin import BROKER_RESOURCE, NO_TOPIC, Admin
from kraftpy.client.cluster import check
from kraftpy.client.coordinator import TRANSACTION_KEY, CoordinatorRoute
from kraftpy.client.offsets import Partition, by_topic
from kraftpy.protocol import messages
from kraftpy.protocol.errors import ErrorCode, KafkaError

STATES = (
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "Dead",
    "PrepareEpochFence",
)
_MAX_TIMEOUT_KEY = "transaction.max.timeout.ms"
_MAX_TIMEOUT_DEFAULT_MS = 900_000
_MARKERS_TIME_MS = 300_000
# Nothing is written under the epoch that `terminate` gets.
_TERMINATING_TIMEOUT_MS = 1


@dataclass(frozen=True, slots=True)
class ListedTransaction:
    """A transactional id as its coordinator, a broker's id, lists it."""

    id: str
    coordinator: int
    producer_id: int
    state: str


@dataclass(frozen=True, slots=True)
class TransactionInfo:
    """A transactional id as its coordinator describes it; `start_ms` is -1 while none is open."""

    id: str
    coordinator: int
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    start_ms: int
    partitions: tuple[Partition, ...]


@dataclass(frozen=True, slots=True)
class ActiveProducer:
    """A producer as a partition's replica knows it; `transaction_start` is -1 if none is open.

    `coordinator_epoch` is that of its last marker, -1 before the first one.
    """

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    transaction_start: int


@dataclass(frozen=True, slots=True)
class HangingTransaction:
    """A transaction that is open in a partition and that no coordinator will end there.

    `id` is the transactional id that has the producer id now, None if none has.
    """

    partition: Partition
    producer: ActiveProducer
    id: str | None


class TransactionAdmin(Admin):
    """`Admin` and what concerns transactions; every method raises as those of `GroupAdmin` do."""

    # -- coordinators

    async def list_transactions(
        self,
        *,
        states: Iterable[str] = (),
        producer_ids: Iterable[int] = (),
        open_for_ms: int | None = None,
    ) -> list[ListedTransaction]:
        """The transactional ids of all brokers, sorted, or those with one of these.

        `open_for_ms` keeps those whose transaction is open for longer (KIP-994).
        """
        request = messages.ListTransactionsRequest(
            state_filters=list(states),
            producer_id_filters=list(producer_ids),
            duration_filter=-1 if open_for_ms is None else open_for_ms,
        )

        async def ask() -> list[ListedTransaction]:
            await self._cluster.refresh()
            brokers = sorted(self._cluster.brokers)
            answers = await asyncio.gather(*(self._list_of(node, request) for node in brokers))
            return sorted((each for answer in answers for each in answer), key=lambda each: each.id)

        return await self._patiently(ask)

    async def _list_of(
        self, node_id: int, request: messages.ListTransactionsRequest
    ) -> list[ListedTransaction]:
        connection = await self._cluster.connection(node_id)
        version = connection.version(request.API_KEY)
        if request.duration_filter >= 0 and version < 1:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"{connection.address} can't tell how long transactions are open",
            )
        response = await connection.request(request, timeout_ms=self._timeout_ms)
        check(response.error_code)
        return [
            ListedTransaction(
                each.transactional_id, node_id, each.producer_id, each.transaction_state
            )
            for each in response.transaction_states
        ]

    async def describe_transaction(self, transactional_id: str) -> TransactionInfo:
        """One transactional id; KafkaError(TRANSACTIONAL_ID_NOT_FOUND)."""
        route = CoordinatorRoute(self._cluster, transactional_id, TRANSACTION_KEY)
        request = messages.DescribeTransactionsRequest(transactional_ids=[transactional_id])

        async def ask() -> TransactionInfo:
            response = await route.ask(request, timeout_ms=self._timeout_ms)
            (found,) = response.transaction_states
            if found.error_code:
                route.forget()
                check(found.error_code)
            assert route.node_id is not None
            return TransactionInfo(
                found.transactional_id,
                route.node_id,
                found.producer_id,
                found.producer_epoch,
                found.transaction_state,
                found.transaction_timeout_ms,
                found.transaction_start_time_ms,
                tuple((t.topic, number) for t in found.topics for number in sorted(t.partitions)),
            )

        return await self._patiently(ask)

    async def terminate(self, transactional_id: str) -> None:
        """Fences the producer of a transactional id, and has what it left open aborted.

        KafkaError(TRANSACTIONAL_ID_NOT_FOUND) if there is no such id: asking would make it.
        """
        await self.describe_transaction(transactional_id)
        route = CoordinatorRoute(self._cluster, transactional_id, TRANSACTION_KEY)
        request = messages.InitProducerIdRequest(
            transactional_id=transactional_id, transaction_timeout_ms=_TERMINATING_TIMEOUT_MS
        )

        async def ask() -> None:
            response = await route.ask(request, timeout_ms=self._timeout_ms)
            check(response.error_code)

        await self._patiently(ask)

    # -- partitions

    async def describe_producers(
        self, partition: Partition, *, broker_id: int | None = None
    ) -> list[ActiveProducer]:
        """Who writes to a partition, as its leader knows it or the replica of a broker."""
        found = await self._producers_of([partition], broker_id)
        return found[partition]

    async def _producers_of(
        self, partitions: Sequence[Partition], broker_id: int | None = None
    ) -> dict[Partition, list[ActiveProducer]]:
        found: dict[Partition, list[ActiveProducer]] = {}

        async def ask() -> None:
            missing = [each for each in partitions if each not in found]
            errors = await self._cluster.refresh(sorted({topic for topic, _ in missing}))
            for topic, error in errors.items():
                raise KafkaError(error.code, f"topic {topic!r}: {error.message}")
            by_broker: dict[int, list[Partition]] = {}
            for each in missing:
                node_id = self._cluster.leader(*each) if broker_id is None else broker_id
                by_broker.setdefault(node_id, []).append(each)
            for node_id, asked in by_broker.items():
                await self._ask_producers(node_id, asked, found)

        await self._patiently(ask, NO_TOPIC)
        return found

    async def _ask_producers(
        self,
        node_id: int,
        partitions: Sequence[Partition],
        found: dict[Partition, list[ActiveProducer]],
    ) -> None:
        kinds = messages.DescribeProducersRequest
        response = await self._cluster.request(
            kinds(
                topics=[
                    kinds.TopicRequest(name=topic, partition_indexes=numbers)
                    for topic, numbers in by_topic(partitions).items()
                ]
            ),
            node_id=node_id,
            timeout_ms=self._timeout_ms,
        )
        for topic in response.topics:
            for each in topic.partitions:
                check(each.error_code, each.error_message)
                found[topic.name, each.partition_index] = [
                    ActiveProducer(
                        producer.producer_id,
                        producer.producer_epoch,
                        producer.last_sequence,
                        producer.last_timestamp,
                        producer.coordinator_epoch,
                        producer.current_txn_start_offset,
                    )
                    for producer in each.active_producers
                ]

    # -- transactions that hang

    async def longest_ms(self) -> int:
        """How long a transaction may be open (transaction.max.timeout.ms), as a broker says it."""
        await self._cluster.refresh()
        broker = min(self._cluster.brokers)
        for value in await self.describe_configs(str(broker), resource_type=BROKER_RESOURCE):
            if value.name == _MAX_TIMEOUT_KEY and value.value is not None:
                return int(value.value)
        return _MAX_TIMEOUT_DEFAULT_MS

    async def hanging(
        self,
        partitions: Sequence[Partition] | None = None,
        *,
        now_ms: int,
        open_for_ms: int | None = None,
    ) -> list[HangingTransaction]:
        """The transactions that hang in these partitions (None: in all), sorted.

        Those whose last record is older than `open_for_ms`: without it, the longest that a
        transaction may be open and five minutes.
        """
        if open_for_ms is None:
            open_for_ms = await self.longest_ms() + _MARKERS_TIME_MS
        if partitions is None:
            partitions = [
                (topic.name, number)
                for topic in await self.describe_topics()
                for number in topic.partitions
            ]
        producers = await self._producers_of(partitions)
        suspects = [
            (partition, producer)
            for partition, active in sorted(producers.items())
            for producer in active
            if producer.transaction_start >= 0 and producer.last_timestamp_ms < now_ms - open_for_ms
        ]
        if not suspects:
            return []
        owners = await self._owners({producer.producer_id for _, producer in suspects})
        found = []
        for partition, producer in suspects:
            owner = owners.get(producer.producer_id)
            if owner is None or not _is_part_of(partition, producer, owner):
                id_ = None if owner is None else owner.id
                found.append(HangingTransaction(partition, producer, id_))
        return found

    async def _owners(self, producer_ids: Iterable[int]) -> dict[int, TransactionInfo]:
        """What coordinators know of producer ids; those of no transactional id are left out."""
        owners: dict[int, TransactionInfo] = {}
        for listed in await self.list_transactions(producer_ids=sorted(producer_ids)):
            try:
                owners[listed.producer_id] = await self.describe_transaction(listed.id)
            except KafkaError as error:
                # It expired since it was listed.
                if error.code != ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                    raise
        return owners

    async def abort(self, partition: Partition, start_offset: int) -> ActiveProducer:
        """Ends the transaction that begins at an offset of a partition, there alone.

        Returns whose it was; KafkaError(TRANSACTIONAL_ID_NOT_FOUND) if none begins there.
        """
        for producer in await self.describe_producers(partition):
            if producer.transaction_start == start_offset:
                await self._write_abort(partition, producer)
                return producer
        raise KafkaError(
            ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
            f"no open transaction of {partition[0]}-{partition[1]} begins at offset {start_offset}",
        )

    async def _write_abort(self, partition: Partition, producer: ActiveProducer) -> None:
        kinds = messages.WriteTxnMarkersRequest
        topic, number = partition
        request = kinds(
            markers=[
                kinds.WritableTxnMarker(
                    producer_id=producer.producer_id,
                    producer_epoch=producer.producer_epoch,
                    transaction_result=False,
                    topics=[kinds.WritableTxnMarkerTopic(name=topic, partition_indexes=[number])],
                    # As young as the last one, or no coordinator could end what comes next.
                    coordinator_epoch=max(producer.coordinator_epoch, 0),
                )
            ]
        )

        async def ask() -> None:
            await self._cluster.topic(topic)
            response = await self._cluster.request(
                request, node_id=self._cluster.leader(*partition), timeout_ms=self._timeout_ms
            )
            for marker in response.markers:
                for each in marker.topics:
                    for written in each.partitions:
                        if written.error_code:
                            self._cluster.topics.pop(topic, None)
                            check(written.error_code)

        await self._patiently(ask)


def _is_part_of(partition: Partition, producer: ActiveProducer, owner: TransactionInfo) -> bool:
    """Whether the coordinator will end what a producer has open in a partition."""
    return owner.producer_epoch >= producer.producer_epoch and partition in owner.partitions
