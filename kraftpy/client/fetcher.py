"""Reading: offsets by position or time, and records from given offsets on.

Rules:

* A fetch at an offset inside a batch returns the whole batch; records before the wanted offset are
  dropped.  Control batches (transaction markers) are never shown, but the position moves past them.
* A response may end with a part of a batch (the size limit cut it off), which is fetched again.
* One fetch per broker is under way; the next one leaves before the records of the last are decoded.
* A position outside the log raises KafkaError(OFFSET_OUT_OF_RANGE), or with `auto_offset_reset`
  goes to the log's start or end, as Kafka's consumer does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from kraftpy.client.cluster import Cluster, Retry, check, error_code
from kraftpy.protocol import messages
from kraftpy.protocol.errors import DecodeError, ErrorCode, KafkaError
from kraftpy.protocol.records import (
    RECORD_BATCH_OVERHEAD,
    Record,
    iter_records,
    read_batch_header,
)

Partition = tuple[str, int]
"""A topic and a partition number."""

LATEST = -1
EARLIEST = -2

_FETCH_LANE = "fetch"


async def list_offsets(
    cluster: Cluster,
    timestamps: Mapping[Partition, int],
    *,
    timeout_ms: int | None = None,
) -> dict[Partition, int]:
    """The first offset at or after a timestamp (ms), for each partition.

    `EARLIEST` and `LATEST` stand for the log's start and its high watermark.  The answer -1 means
    that no record is that young.
    """
    found: dict[Partition, int] = {}
    retry = Retry(timeout_ms or cluster.request_timeout_ms)
    while True:
        missing = {name: when for name, when in timestamps.items() if name not in found}
        if not missing:
            return found
        try:
            for topic in {topic for topic, _ in missing}:
                await cluster.topic(topic)
            by_leader: dict[int, dict[Partition, int]] = {}
            for name, when in missing.items():
                by_leader.setdefault(cluster.leader(*name), {})[name] = when
            for leader, wanted in by_leader.items():
                found.update(await _list_offsets_of(cluster, leader, wanted))
        except (ConnectionError, KafkaError) as error:
            if _partition_missing(cluster, missing, error):
                raise
            await retry.wait(error)
            for topic, _ in missing:
                cluster.topics.pop(topic, None)


def _partition_missing(cluster: Cluster, names: Iterable[Partition], error: Exception) -> bool:
    """Whether the metadata says that a topic or partition is not there: no reason to wait."""
    if not isinstance(error, KafkaError) or error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return False
    return any(
        topic not in cluster.topics or partition not in cluster.topics[topic].partitions
        for topic, partition in names
    )


async def _list_offsets_of(
    cluster: Cluster, leader: int, wanted: Mapping[Partition, int]
) -> dict[Partition, int]:
    kinds = messages.ListOffsetsRequest
    topics: dict[str, list[Any]] = {}
    for (topic, partition), when in wanted.items():
        topics.setdefault(topic, []).append(
            kinds.ListOffsetsPartition(partition_index=partition, timestamp=when)
        )
    request = kinds(
        replica_id=-1,
        topics=[
            kinds.ListOffsetsTopic(name=topic, partitions=partitions)
            for topic, partitions in topics.items()
        ],
    )
    response = await cluster.request(request, node_id=leader)
    offsets = {}
    for topic in response.topics:
        for partition in topic.partitions:
            check(partition.error_code)
            offsets[topic.name, partition.partition_index] = partition.offset
    return offsets


@dataclass(frozen=True, slots=True)
class Fetched:
    """Records of one partition, in offset order; `position` is the offset to go on from."""

    topic: str
    partition: int
    records: list[Record]
    position: int
    high_watermark: int


class Fetcher:
    """Follows partitions from given offsets; `async for fetched in fetcher`, or `await poll()`.

    `positions` (topic and partition to next offset) moves as records are handed out.
    """

    def __init__(
        self,
        cluster: Cluster,
        positions: Mapping[Partition, int],
        *,
        max_wait_ms: int = 500,
        min_bytes: int = 1,
        max_bytes: int = 50 * 1024 * 1024,
        max_partition_bytes: int = 1024 * 1024,
        auto_offset_reset: str = "none",
    ) -> None:
        if auto_offset_reset not in ("none", "earliest", "latest"):
            raise ValueError("auto_offset_reset must be none, earliest or latest")
        self.positions: dict[Partition, int] = dict(positions)
        self._cluster = cluster
        self._max_wait_ms = max_wait_ms
        self._min_bytes = min_bytes
        self._max_bytes = max_bytes
        self._max_partition_bytes = max_partition_bytes
        self._auto_offset_reset = auto_offset_reset
        self._fetches: dict[int, asyncio.Task[Any]] = {}
        self._retry: Retry | None = None

    async def __aenter__(self) -> Fetcher:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Give up the fetches under way."""
        for task in self._fetches.values():
            task.cancel()
        await asyncio.gather(*self._fetches.values(), return_exceptions=True)
        self._fetches.clear()

    def drop(self, topic: str, partition: int) -> None:
        """Stop following a partition."""
        self.positions.pop((topic, partition), None)

    async def __aiter__(self) -> AsyncIterator[Fetched]:
        while self.positions:
            for fetched in await self.poll():
                yield fetched

    async def poll(self) -> list[Fetched]:
        """Wait for records of some partitions, at most about `max_wait_ms`; [] if there were none.

        Broken connections and partitions without a leader are tried again for the cluster's request
        timeout; then the last error is raised.  KafkaError(CORRUPT_MESSAGE) for records that are
        damaged.
        """
        if not self.positions:
            return []
        try:
            await self._start_fetches()
            await asyncio.wait(self._fetches.values(), return_when=asyncio.FIRST_COMPLETED)
            found = []
            for node_id in [node_id for node_id, task in self._fetches.items() if task.done()]:
                found += await self._collect(await self._fetches.pop(node_id))
            self._retry = None
        except (ConnectionError, KafkaError) as error:
            await self._recover(error)
            return []
        if found:
            await self._start_fetches()
        return [self._decode(*data) for data in found]

    async def _recover(self, error: Exception) -> None:
        self._retry = self._retry or Retry(self._cluster.request_timeout_ms)
        await self._retry.wait(error)
        await self.close()
        for topic, _ in self.positions:
            self._cluster.topics.pop(topic, None)

    async def _start_fetches(self) -> None:
        """Send a fetch to every leader that has none under way."""
        for topic in {topic for topic, _ in self.positions}:
            await self._cluster.topic(topic)
        by_leader: dict[int, list[Partition]] = {}
        for name in self.positions:
            by_leader.setdefault(self._cluster.leader(*name), []).append(name)
        for node_id, names in by_leader.items():
            if node_id not in self._fetches:
                self._fetches[node_id] = asyncio.create_task(self._fetch(node_id, names))

    async def _fetch(self, node_id: int, names: list[Partition]) -> Any:
        kinds = messages.FetchRequest
        topics: dict[str, list[Any]] = {}
        for name in names:
            partition = kinds.FetchPartition(
                partition=name[1],
                fetch_offset=self.positions[name],
                partition_max_bytes=self._max_partition_bytes,
            )
            topics.setdefault(name[0], []).append(partition)
        request = kinds(
            replica_id=-1,
            max_wait_ms=self._max_wait_ms,
            min_bytes=self._min_bytes,
            max_bytes=self._max_bytes,
            session_epoch=-1,
            topics=[
                kinds.FetchTopic(topic=topic, partitions=partitions)
                for topic, partitions in topics.items()
            ],
        )
        return await self._cluster.request(
            request,
            node_id=node_id,
            lane=_FETCH_LANE,
            timeout_ms=self._max_wait_ms + self._cluster.request_timeout_ms,
        )

    async def _collect(self, response: Any) -> list[tuple[Partition, int, Any, list[int], int]]:
        """Check a response and move the positions past its batches, without decoding records.

        Returns per partition: its name, the offset wanted, the bytes, the positions in them of the
        batches to decode, and the high watermark.
        """
        check(response.error_code)
        found = []
        for topic in response.responses:
            for data in topic.partitions:
                name = (topic.topic, data.partition_index)
                if name not in self.positions:
                    continue
                if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                    await self._reset(name)
                    continue
                if data.error_code:
                    code = error_code(data.error_code)
                    raise KafkaError(code, f"{topic.topic}-{data.partition_index}: {code.message}")
                wanted = self.positions[name]
                try:
                    batches, self.positions[name] = _batches(data.records or b"", wanted)
                except DecodeError as error:
                    raise _corrupt(name, wanted, error) from error
                if self.positions[name] > wanted:
                    found.append((name, wanted, data.records, batches, data.high_watermark))
        return found

    async def _reset(self, name: Partition) -> None:
        if self._auto_offset_reset == "none":
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {self.positions[name]} is outside the log of {name[0]}-{name[1]}",
            )
        when = EARLIEST if self._auto_offset_reset == "earliest" else LATEST
        self.positions.update(await list_offsets(self._cluster, {name: when}))

    def _decode(
        self, name: Partition, wanted: int, buf: Any, batches: list[int], high_watermark: int
    ) -> Fetched:
        try:
            records = [
                record
                for position in batches
                for record in iter_records(buf, position)
                if record.offset >= wanted
            ]
        except DecodeError as error:
            raise _corrupt(name, wanted, error) from error
        return Fetched(*name, records, self.positions.get(name, wanted), high_watermark)


def _corrupt(name: Partition, wanted: int, error: DecodeError) -> KafkaError:
    return KafkaError(
        ErrorCode.CORRUPT_MESSAGE, f"{name[0]}-{name[1]} from offset {wanted}: {error}"
    )


def _batches(buf: Any, wanted: int) -> tuple[list[int], int]:
    """Positions of the data batches at or after offset `wanted`, and the offset behind them all."""
    positions = []
    position, next_offset = 0, wanted
    while position + RECORD_BATCH_OVERHEAD <= len(buf):
        header = read_batch_header(buf, position)
        if position + header.size_bytes > len(buf):
            break
        if header.last_offset >= wanted:
            if not header.is_control:
                positions.append(position)
            next_offset = header.last_offset + 1
        position += header.size_bytes
    return positions, next_offset
