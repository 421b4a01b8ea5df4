"""Fetches of versions 0 to 3: consumers from before Kafka 0.11 get message sets of magic 0 or 1.

What is read, and made of it, is `server.replication.converted_reads`'s; how such a fetch waits is
`opening_fetch`'s. Rules (KIP-283; docs/rules.md, rule 301):

* Versions 0 and 1 get magic 0, versions 2 and 3 magic 1. The limits of bytes are those of what is
  sent; before version 3 a request has none but its partitions'.
* These consumers know of no transactions: they get everything below the high watermark, also what
  was aborted, without the markers. Behind nothing but markers they wait, as at the log's end.
* What is converted is held while a fetch waits for more, so none waits for more than
  WAITED_FOR_MAX_BYTES.
* A replica id says nothing here: replicas send later versions.
"""

from __future__ import annotations

from typing import Any, Final

from kraftpy.protocol.errors import KafkaError
from kraftpy.protocol.messages import FetchResponse
from kraftpy.server.handlers.opening_fetch import OpeningFetch
from kraftpy.server.replication.converted_reads import ConvertedRead
from kraftpy.server.replication.fetch_sessions import FetchPartition, Key
from kraftpy.server.replication.partition import Partition

WAITED_FOR_MAX_BYTES: Final = 1 << 20
_FIRST_VERSION_OF_MAGIC_1: Final = 2


class ConvertedFetch(OpeningFetch):
    """One such fetch."""

    __slots__ = ("_reads",)

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._min_bytes = min(self._min_bytes, WAITED_FOR_MAX_BYTES)
        self._reads: dict[Key, ConvertedRead] = {}

    def _opens(self, wanted: FetchPartition) -> bool:
        return True

    async def run(self) -> FetchResponse:
        try:
            return await super().run()
        finally:
            self._broker.replicas.converted_reads.release(self._opened_bytes)

    async def _read_on(
        self,
        wanted: FetchPartition,
        partition: Partition,
        answer: FetchResponse.PartitionData,
        *,
        late: bool,
    ) -> None:
        read = self._reads.get(wanted.key)
        if read is None:
            if late:
                return
            partition.numbers.reads += 1
            magic = int(self._ctx.api_version >= _FIRST_VERSION_OF_MAGIC_1)
            read = self._reads[wanted.key] = ConvertedRead(magic, wanted.fetch_offset, 0)
        if not late:
            before = read.size_bytes
            read.limit_bytes = self._limit_bytes(wanted, before)
            try:
                await self._broker.replicas.converted_reads.go_on(
                    read, partition, min_one=self._size_bytes == before
                )
            except KafkaError as failure:
                raise KafkaError(self._believable(failure.code, partition, wanted)) from failure
            finally:
                self._size_bytes += read.size_bytes - before
                self._opened_bytes += read.size_bytes - before
        self._ready_bytes += read.size_bytes
        if read.full:
            self._ready_bytes += self._min_bytes  # there is no use in waiting
        answer.records = list(read.messages)
