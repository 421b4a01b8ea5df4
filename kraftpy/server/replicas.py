"""The partitions of this broker: follows the metadata, owns their roles, serves the coordinators.

Rule: what exists here is exactly what the committed metadata says. Changes arrive as the `changes`
of applied commands and are carried out in that order; nothing is created or deleted on a request's
say-so.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from kraftpy.core.config import TopicConfig
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.server.partition import Partition

if TYPE_CHECKING:
    from kraftpy.core.metadata import MetadataState, Topic
    from kraftpy.storage.flusher import Flusher
    from kraftpy.storage.manager import LogManager

log = logging.getLogger(__name__)

TopicConfigResolver = Callable[[str], TopicConfig]


class ReplicaManager:
    """Partitions led by this broker, by name and by topic id."""

    def __init__(
        self,
        node_id: int,
        logs: LogManager,
        flusher: Flusher,
        loop: asyncio.AbstractEventLoop,
        clock_ms: Callable[[], int],
    ) -> None:
        self._node_id = node_id
        self._logs = logs
        self._flusher = flusher
        self._loop = loop
        self._clock_ms = clock_ms
        self._topics: dict[str, dict[int, Partition]] = {}
        self._missing: set[str] = set()

    # -- look-up

    def get(self, topic: str, index: int) -> Partition | None:
        """The partition if this broker leads it."""
        partitions = self._topics.get(topic)
        return None if partitions is None else partitions.get(index)

    def partitions(self, topic: str) -> dict[int, Partition]:
        return self._topics.get(topic, {})

    def __iter__(self) -> Iterator[Partition]:
        for partitions in self._topics.values():
            yield from partitions.values()

    # -- following the metadata

    def load(self, metadata: MetadataState, resolve: TopicConfigResolver) -> None:
        """Takes over a whole metadata state (start, a snapshot): creates and drops to match it."""
        for name, partitions in list(self._topics.items()):
            topic = metadata.topics.get(name)
            if topic is None or any(p.topic_id != topic.id for p in partitions.values()):
                self.delete_topic(name)
        for topic in metadata.topics.values():
            self.apply_topic(topic, resolve(topic.name))
        known = {
            (topic.name, index): topic.id
            for topic in metadata.topics.values()
            for index, state in topic.partitions.items()
            if self._node_id in state.replicas
        }
        self._logs.set_aside_strays(known)

    def apply_topic(self, topic: Topic, config: TopicConfig) -> None:
        """Creates the topic's partitions that this broker has by metadata and not yet here."""
        mine = self._topics.setdefault(topic.name, {})
        for index, state in topic.partitions.items():
            if self._node_id not in state.replicas:
                continue
            partition = mine.get(index)
            if partition is None:
                try:
                    partition = mine[index] = self._open(topic, index, config)
                except KafkaError as error:
                    log.error("%s; trying again soon", error.message)
                    self._missing.add(topic.name)
                    continue
            partition.lead(state.leader_epoch)
        if not mine:
            del self._topics[topic.name]

    def _open(self, topic: Topic, index: int, config: TopicConfig) -> Partition:
        return Partition(
            topic.name,
            topic.id,
            index,
            log=self._logs.get_or_create(topic.name, index, topic.id, config),
            config=config,
            flusher=self._flusher,
            loop=self._loop,
        )

    def open_missing(self, metadata: MetadataState, resolve: TopicConfigResolver) -> None:
        """Tries again what the disk refused (it may have room now)."""
        missing, self._missing = self._missing, set()
        for name in missing:
            topic = metadata.topics.get(name)
            if topic is not None:
                self.apply_topic(topic, resolve(name))

    def delete_topic(self, name: str) -> None:
        """Ends every wait on the topic's partitions and hands their logs to delayed deletion."""
        for partition in self._topics.pop(name, {}).values():
            partition.close(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            try:
                self._logs.delete(name, partition.index)
            except KafkaError as error:
                log.error("%s; its files go at the next start", error.message)

    def update_configs(
        self, resolve: TopicConfigResolver, names: Iterable[str] | None = None
    ) -> None:
        """Resolves again the configuration of the named topics (all of them by default)."""
        for name in list(self._topics) if names is None else names:
            config = resolve(name)
            for partition in self._topics.get(name, {}).values():
                partition.update_config(config)

    def high_watermarks(self) -> dict[tuple[str, int], int]:
        """For `replication-offset-checkpoint`."""
        return {(p.topic, p.index): p.high_watermark for p in self}

    def close(self) -> None:
        """Ends every wait; the logs stay for the log manager to close."""
        for partition in self:
            partition.close(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self._topics.clear()

    # -- the coordinators' port (architecture.md, decision 8)

    def append_records(self, topic: str, partition: int, batch: bytes) -> asyncio.Future[int]:
        """Appends a coordinator's batch now; gives its base offset once it is committed.

        Committed includes on disk where the flush policy says so. The future fails with KafkaError
        NOT_LEADER_OR_FOLLOWER or KAFKA_STORAGE_ERROR.
        """
        done: asyncio.Future[int] = self._loop.create_future()
        target = self.get(topic, partition)
        if target is None or target.closed:
            done.set_exception(
                KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{topic}-{partition} isn't led here")
            )
            return done
        try:
            appended = target.append(
                memoryview(bytearray(batch)), self._clock_ms(), from_client=False
            )
        except KafkaError as error:
            done.set_exception(error)
            return done

        def finish(error: ErrorCode) -> None:
            if done.done():
                return
            if error is ErrorCode.NONE:
                done.set_result(appended.base_offset)
            else:
                done.set_exception(KafkaError(error))

        wait = target.when_flushed if appended.flush_pending else target.when_committed
        wait(appended.end_offset, finish)
        return done

    def read_batches(
        self, topic: str, partition: int, start_offset: int, max_bytes: int
    ) -> tuple[bytes, int]:
        """Committed batches from `start_offset` and the offset to go on from (itself: at the end).

        Raises KafkaError: NOT_LEADER_OR_FOLLOWER, OFFSET_OUT_OF_RANGE, KAFKA_STORAGE_ERROR.
        """
        target = self.get(topic, partition)
        if target is None or target.closed:
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{topic}-{partition} isn't led here"
            )
        start = max(start_offset, target.log.log_start_offset)
        result = target.read(start, max_bytes, upper_offset=target.high_watermark, min_one=True)
        data = b"".join(piece.read() for piece in result.slices)
        return data, result.next_offset
