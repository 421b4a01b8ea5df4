"""The low-level reader: one answer from one offset, and nothing kept in between.

This is the SimpleConsumer of Kafka's first API: stateless, so that whoever uses it may keep offsets
where he likes. Leaders are looked up and retriable errors are tried again as everywhere here.
"""

from __future__ import annotations

from collections.abc import Mapping

from kraftpy.client.arguments import checked_cluster
from kraftpy.client.cluster import Cluster, Retry, check, new_lane
from kraftpy.client.fetcher import Fetched, Fetcher
from kraftpy.client.offsets import EARLIEST, LATEST, Partition, list_offsets, partition_missing
from kraftpy.protocol import messages
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import KafkaError


class SimpleConsumer:
    """Fetches from given offsets through a `Cluster`, which closes the connections."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = checked_cluster(cluster, "SimpleConsumer")
        self._lane = new_lane("simple")

    async def fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        max_bytes: int = 1024 * 1024,
        max_wait_ms: int = 500,
    ) -> Fetched:
        """Records from an offset on: those that fit into `max_bytes`, but at least one batch.

        At the log's end it waits `max_wait_ms` for one, and may return none, as it does after a
        retriable error. Raises KafkaError(OFFSET_OUT_OF_RANGE) outside the log.
        """
        name = (topic, partition)
        found = await self.multifetch({name: offset}, max_bytes=max_bytes, max_wait_ms=max_wait_ms)
        return found.get(name) or Fetched(topic, partition, [], offset, -1)

    async def multifetch(
        self,
        offsets: Mapping[Partition, int],
        *,
        max_bytes: int = 1024 * 1024,
        max_wait_ms: int = 500,
    ) -> dict[Partition, Fetched]:
        """The same for several partitions, `max_bytes` of each.

        Those that have nothing when the first ones have are left out.
        """
        async with Fetcher(
            self._cluster,
            offsets,
            max_wait_ms=max_wait_ms,
            max_partition_bytes=max_bytes,
            ahead=False,
            lane=self._lane,
        ) as fetcher:
            return {(each.topic, each.partition): each for each in await fetcher.poll()}

    async def offsets_before(
        self, topic: str, partition: int, time_ms: int, max_offsets: int = 1
    ) -> list[int]:
        """Up to `max_offsets` valid offsets before a time, the latest first.

        `time_ms` may be `LATEST` (the log's end) or `EARLIEST` (its start). For any other the
        first is that of the first record which isn't older, so that everything before it is. The
        starts of the log's segments before that one follow, the log's start is the last.

        Apache Kafka's brokers since version 4 tell the first and the last one only.
        """
        retry = Retry(self._cluster.request_timeout_ms)
        while True:
            try:
                await self._cluster.topic(topic)
                leader = self._cluster.leader(topic, partition)
                connection = await self._cluster.connection(leader, self._lane)
                if connection.serves(ApiKey.LIST_OFFSETS, 0):
                    request = _before(topic, partition, time_ms, max_offsets)
                    timeout_ms = self._cluster.request_timeout_ms
                    answer = await connection.request(request, timeout_ms=timeout_ms, version=0)
                    (found,) = answer.topics[0].partitions
                    check(found.error_code)
                    return list(found.old_style_offsets)
                return await self._first_and_last((topic, partition), time_ms, max_offsets)
            except (ConnectionError, KafkaError) as error:
                if partition_missing(self._cluster, [(topic, partition)], error):
                    raise
                await retry.wait(error)
                self._cluster.topics.pop(topic, None)

    async def _first_and_last(self, name: Partition, time_ms: int, max_offsets: int) -> list[int]:
        start = (await list_offsets(self._cluster, {name: EARLIEST}))[name]
        found = (await list_offsets(self._cluster, {name: time_ms}))[name]
        if found < 0:
            found = (await list_offsets(self._cluster, {name: LATEST}))[name]
        return list(dict.fromkeys([max(found, start), start]))[:max_offsets]


def _before(
    topic: str, partition: int, time_ms: int, max_offsets: int
) -> messages.ListOffsetsRequest:
    kinds = messages.ListOffsetsRequest
    wanted = kinds.ListOffsetsPartition(partition, timestamp=time_ms, max_num_offsets=max_offsets)
    return kinds(replica_id=-1, topics=[kinds.ListOffsetsTopic(topic, [wanted])])
