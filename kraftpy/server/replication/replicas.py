"""The replicas at this broker: gives them the roles that the metadata says, serves coordinators.

Rules that it keeps:

* What exists here is exactly what the committed metadata says. Changes arrive as the `changes` of
  applied commands and are carried out in that order; nothing is created or deleted on a request's
  say-so. Several changes may be seen as one (docs/rules.md, rule 20).
* A replica that the metadata took from this broker is deleted; what lies in the folders and is not
  in the metadata at all is set aside at the start.
* A broker that may have been fenced without hearing of it leads nothing (rule 21).
* A replica that its disk has damaged is begun anew when the metadata lets it (`damaged_replicas`);
  one that can't be written is led by others (`unwritable_replicas`).
* There is one fetcher per leader broker that this broker follows.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from kraftpy.core.config import BrokerConfig, TopicConfig
from kraftpy.core.metadata import Broker as BrokerRecord
from kraftpy.core.metadata import PartitionState
from kraftpy.metrics.instruments import Traffic
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.server.cluster.proposals import Proposer
from kraftpy.server.network.prompt_future import PromptFuture
from kraftpy.server.replication.converted_reads import ConvertedReads
from kraftpy.server.replication.damaged_replicas import DamagedReplicas, Rereads
from kraftpy.server.replication.isr_proposals import IsrProposals
from kraftpy.server.replication.markers import Marker, append_markers
from kraftpy.server.replication.partition import Partition
from kraftpy.server.replication.range_reads import RangeReads
from kraftpy.server.replication.reading_along import (
    Place,
    has_place,
    read_along,
    read_committed,
)
from kraftpy.server.replication.replica_fetcher import FetcherHost, ReplicaFetcher
from kraftpy.server.replication.unwritable_replicas import UnwritableReplicas

if TYPE_CHECKING:
    from kraftpy.core.metadata import MetadataState, Topic
    from kraftpy.server.replication.opening import BatchOpener
    from kraftpy.storage.directory import LogDir
    from kraftpy.storage.flusher import Flusher
    from kraftpy.storage.manager import LogManager

log = logging.getLogger(__name__)

TopicConfigResolver = Callable[[str], TopicConfig]


class ReplicaHost(FetcherHost, Protocol):
    """What the replicas need of their broker."""

    @property
    def config(self) -> BrokerConfig: ...
    @property
    def logs(self) -> LogManager: ...
    @property
    def flusher(self) -> Flusher: ...
    @property
    def controller(self) -> Proposer: ...
    @property
    def opener(self) -> BatchOpener: ...
    def now_ms(self) -> int: ...


class ReplicaManager:
    """Replicas by topic and index; `active_brokers` has the epochs of the brokers that serve."""

    def __init__(self, host: ReplicaHost) -> None:
        self._host = host
        self.loop = host.loop
        self.node_id = host.node_id
        self.flusher = host.flusher
        self.active_brokers: dict[int, int] = {}
        self.lag_max_ms = host.config.replica_lag_time_max_ms
        self._logs = host.logs
        self._topics: dict[str, dict[int, Partition]] = {}
        self._topics_by_id: dict[bytes, dict[int, Partition]] = {}
        self._missing: set[str] = set()
        self._fetchers: dict[int, ReplicaFetcher] = {}
        self._resigned = False
        self._isr = IsrProposals(host)
        self._damaged = DamagedReplicas(host)
        self._unwritable = UnwritableReplicas(host, self)
        self.rereads = Rereads()
        self.traffic = Traffic()
        self.range_reads = RangeReads(host.config, host.opener)
        self.converted_reads = ConvertedReads(host.opener)

    def monotonic_ms(self) -> int:
        """The clock by which followers lag."""
        return int(self.loop.time() * 1000)

    # -- look-up

    def get(self, topic: str, index: int) -> Partition | None:
        """The partition if this broker leads it."""
        partitions = self._topics.get(topic)
        partition = None if partitions is None else partitions.get(index)
        return None if partition is None or partition.leadership is None else partition

    def replica(self, topic: str, index: int) -> Partition | None:
        """The partition if this broker leads or follows it."""
        partitions = self._topics.get(topic)
        return None if partitions is None else partitions.get(index)

    def led_by_id(self, topic_id: bytes, index: int) -> Partition:
        """The partition that is led here; raises UNKNOWN_TOPIC_ID or NOT_LEADER_OR_FOLLOWER."""
        partitions = self._topics_by_id.get(topic_id)
        if partitions is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
        partition = partitions.get(index)
        if partition is None or partition.leadership is None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return partition

    def led_epochs(self, topic: str) -> dict[int, int]:
        """The leader epochs of the topic's partitions that are led here, by index."""
        replicas = self._topics.get(topic, {})
        return {index: p.leader_epoch for index, p in replicas.items() if p.leadership is not None}

    def followed(self, topic: str) -> list[int]:
        """The topic's partitions that this broker follows."""
        replicas = self._topics.get(topic, {})
        return [index for index, p in replicas.items() if p.leadership is None and not p.closed]

    def by_topic(self) -> Iterator[tuple[str, list[Partition]]]:
        """The replicas of each topic; topics and replicas may come and go meanwhile."""
        for name, partitions in list(self._topics.items()):
            yield name, list(partitions.values())

    def __iter__(self) -> Iterator[Partition]:
        for partitions in self._topics.values():
            yield from partitions.values()

    # -- following the metadata

    def load(self, metadata: MetadataState, resolve: TopicConfigResolver) -> None:
        """Takes over a whole metadata state (start, a snapshot): creates and drops to match it."""
        self.active_brokers.clear()
        for broker in metadata.brokers.values():
            self.broker_changed(broker.id, broker)
        for name, partitions in list(self._topics.items()):
            topic = metadata.topics.get(name)
            if topic is None or any(p.topic_id != topic.id for p in partitions.values()):
                self.delete_topic(name)
        for topic in metadata.topics.values():
            self.apply_topic(topic, resolve)
        known = {
            (topic.name, index): topic.id
            for topic in metadata.topics.values()
            for index, state in topic.partitions.items()
            if self.node_id in state.replicas
        }
        self._logs.set_aside_strays(known)

    def broker_changed(self, node_id: int, broker: BrokerRecord | None) -> None:
        """A broker registered, left, was fenced or unfenced, or began to shut down."""
        if broker is not None and broker.active:
            if self.active_brokers.get(node_id) != broker.epoch:
                self.active_brokers[node_id] = broker.epoch
                # It may have fetched all before it was let in, and has nothing to ask for since.
                for partition in self:
                    if partition.may_take_in(node_id):
                        self.isr_may_grow(partition)
        else:
            self.active_brokers.pop(node_id, None)
            for partition in self:
                partition.look_at_low_watermark()
        fetcher = self._fetchers.get(node_id)
        if fetcher is not None:
            fetcher.retry_now()

    def apply_topic(self, topic: Topic, resolve: TopicConfigResolver) -> None:
        """Brings all replicas of the topic at this broker to where the metadata is."""
        for index, state in topic.partitions.items():
            self.apply_partition(topic, index, state, resolve)

    def apply_partition(
        self, topic: Topic, index: int, state: PartitionState, resolve: TopicConfigResolver
    ) -> None:
        """Gives the replica here the role that the metadata says; creates or deletes it."""
        partition = self.replica(topic.name, index)
        if self.node_id not in state.replicas:
            if partition is not None:
                self._drop(partition)
            return
        try:
            if partition is not None and self._damaged.may_begin_anew(partition, state):
                self._set_aside(partition)
                partition = None
            if partition is None:
                partition = self._open(topic, index, resolve(topic.name))
            self._set_role(partition, state)
        except KafkaError as error:
            log.error("%s; trying again soon", error.message)
            self._missing.add(topic.name)

    def _open(self, topic: Topic, index: int, config: TopicConfig) -> Partition:
        stored = self._logs.get_or_create(topic.name, index, topic.id, config)
        partition = Partition(
            topic.name,
            topic.id,
            index,
            host=self,
            log=stored,
            config=config,
            high_watermark=self._logs.checkpointed_high_watermark(stored),
            numbers=self.traffic.topic(topic.name, topic.id),
        )
        replicas = self._topics.get(topic.name)
        if replicas is None:
            replicas = self._topics[topic.name] = self._topics_by_id[topic.id] = {}
        replicas[index] = partition
        return partition

    def _set_role(self, partition: Partition, state: PartitionState) -> None:
        if state.leader == self.node_id:
            if not self._resigned:
                self.stop_fetching(partition)
                partition.lead(state)
        elif partition.follow(state):
            self.stop_fetching(partition)
            if not self._unwritable.holds_back(partition):
                self.fetch_again(partition)

    def _fetcher(self, leader_id: int) -> ReplicaFetcher:
        fetcher = self._fetchers.get(leader_id)
        if fetcher is None:
            fetcher = self._fetchers[leader_id] = ReplicaFetcher(self._host, leader_id)
        return fetcher

    def fetch_again(self, partition: Partition) -> None:
        """Has the partition fetched, if it follows a leader."""
        if partition.following is not None:
            self._fetcher(partition.following.leader).add(partition)

    def stop_fetching(self, partition: Partition) -> None:
        """Nothing is asked for it any more."""
        for fetcher in self._fetchers.values():
            fetcher.remove(partition)

    def _drop(self, partition: Partition) -> None:
        """The metadata took the replica from this broker."""
        self._remove(partition)
        self._delete_log(partition)

    def _remove(self, partition: Partition) -> None:
        self.stop_fetching(partition)
        partition.close(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        replicas = self._topics[partition.topic]
        del replicas[partition.index]
        if not replicas:
            del self._topics[partition.topic], self._topics_by_id[partition.topic_id]
            self.traffic.forget(partition.topic, partition.topic_id)

    def _set_aside(self, partition: Partition) -> None:
        """Gives up what the disk has damaged; the replica is opened anew then."""
        self._logs.set_damaged_aside(partition.topic, partition.index)
        self._remove(partition)

    def _delete_log(self, partition: Partition) -> None:
        try:
            self._logs.delete(partition.topic, partition.index)
        except KafkaError as error:
            log.error("%s; its files go at the next start", error.message)

    def open_missing(self, metadata: MetadataState, resolve: TopicConfigResolver) -> bool:
        """Tries again what the disk refused (it may have room now); whether there was any."""
        missing, self._missing = self._missing, set()
        for name in missing:
            topic = metadata.topics.get(name)
            if topic is not None:
                self.apply_topic(topic, resolve)
        return bool(missing)

    def delete_topic(self, name: str) -> None:
        """Ends every wait on the topic's partitions and hands their logs to delayed deletion."""
        for partition in self._topics.pop(name, {}).values():
            self._topics_by_id.pop(partition.topic_id, None)
            self.traffic.forget(name, partition.topic_id)
            self.stop_fetching(partition)
            partition.close(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            self._delete_log(partition)

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

    # -- in-sync replicas

    def isr_may_grow(self, partition: Partition) -> None:
        """See `PartitionHost`."""
        self._isr.look_at(partition)

    def tick(self) -> None:
        """What goes by the clock: disks that failed, followers that lag, leaders that are mute."""
        for stored in self._logs.take_failed():
            partition = self.replica(stored.topic, stored.partition)
            if partition is not None and partition.log is stored:
                self._unwritable.note(partition)
        self._isr.tick(partition for partition in self if partition.leadership is not None)
        for leader_id, fetcher in list(self._fetchers.items()):
            if len(fetcher):
                fetcher.check()
            else:
                fetcher.close()
                del self._fetchers[leader_id]

    # -- disks that fail

    def replicas_in(self, directory: LogDir) -> list[Partition]:
        """All whose log is in a log directory."""
        return [partition for partition in self if partition.log.directory is directory]

    # -- damage

    def refetched(self, partition: Partition, offset: int, size_bytes: int) -> None:
        """Somebody asks once more for what it was sent."""
        self._damaged.refetched(partition, offset, size_bytes)

    def suspect(self, partition: Partition, offset: int, size_bytes: int) -> None:
        """What was read here from the offset on can't be used: looks why."""
        self._damaged.suspect(partition, offset, size_bytes)

    # -- the broker's own life

    @property
    def leader_heard_s(self) -> float:
        """When a broker that is followed here answered last, in the loop's time; 0 if none did."""
        return max((fetcher.heard_s for fetcher in self._fetchers.values()), default=0.0)

    @property
    def resigned(self) -> bool:
        """Whether `resign` was called, and not `resume` since."""
        return self._resigned

    def may_hand_over(self) -> bool:
        """Whether another broker that is up has, or will soon have, what is led here."""
        others = self.active_brokers.keys() - {self.node_id}
        return any(
            not others.isdisjoint(partition.leadership.state.replicas)
            for partition in self
            if partition.leadership is not None
        )

    def resign(self) -> None:
        """Leads nothing until `resume`: others may lead by now (rule 21)."""
        if not self._resigned:
            self._resigned = True
            for partition in self:
                if partition.leadership is not None:
                    partition.resign()

    def resume(self, metadata: MetadataState, resolve: TopicConfigResolver) -> None:
        """The metadata is up to date again: leads what it says."""
        if self._resigned:
            self._resigned = False
            for topic in metadata.topics.values():
                self.apply_topic(topic, resolve)

    def close(self) -> None:
        """Ends every wait; the logs stay for the log manager to close."""
        self._isr.close()
        self._damaged.close()
        self._unwritable.close()
        for fetcher in self._fetchers.values():
            fetcher.close()
        for partition in self:
            partition.close(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self._topics.clear()
        self._topics_by_id.clear()

    # -- the coordinators' port (docs/architecture.md, decision 8)

    def append_records(self, topic: str, partition: int, batch: bytes) -> asyncio.Future[int]:
        """Appends a coordinator's batch now; gives its base offset once it is committed.

        Committed includes on disk where the flush policy says so. The future fails with KafkaError
        NOT_LEADER_OR_FOLLOWER or KAFKA_STORAGE_ERROR.
        """
        done: asyncio.Future[int] = PromptFuture(loop=self.loop)
        target = self.get(topic, partition)
        if target is None or target.closed:
            done.set_exception(
                KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{topic}-{partition} isn't led here")
            )
            return done
        if target.acks_all_error:
            done.set_exception(KafkaError(target.acks_all_error))
            return done
        records = memoryview(bytearray(batch))
        try:
            appended = target.append(records, self._host.now_ms(), from_client=False)
        except KafkaError as error:
            done.set_exception(error)
            return done
        if target.high_watermark >= appended.end_offset:
            done.set_result(appended.base_offset)
            return done
        target.recent.add(target.leader_epoch, appended.base_offset, appended.end_offset, records)

        def finish(error: ErrorCode) -> None:
            if done.done():
                return
            if error is ErrorCode.NONE:
                done.set_result(appended.base_offset)
            else:
                done.set_exception(KafkaError(error))

        target.when_committed(appended.end_offset, finish)
        return done

    def append_markers(
        self, topic: str, partition: int, markers: Sequence[Marker]
    ) -> tuple[list[ErrorCode], asyncio.Future[int]]:
        """Appends markers now; gives why one isn't taken, and the last offset of the others.

        The future ends as that of `append_records`.
        """
        done: asyncio.Future[int] = PromptFuture(loop=self.loop)
        target = self.get(topic, partition)
        if target is None or target.closed:
            return [ErrorCode.NOT_LEADER_OR_FOLLOWER] * len(markers), done
        if target.acks_all_error:
            return [target.acks_all_error] * len(markers), done
        outcomes = append_markers(target, markers, self._host.now_ms())
        errors = [
            each.code if isinstance(each, KafkaError) else ErrorCode.NONE for each in outcomes
        ]
        ends = [each for each in outcomes if not isinstance(each, KafkaError)]
        if ends:
            end_offset = max(ends)

            def finish(error: ErrorCode) -> None:
                if error is ErrorCode.NONE:
                    done.set_result(end_offset - 1)
                else:
                    done.set_exception(KafkaError(error))

            target.when_committed(end_offset, finish)
        return errors, done

    def when_settled(self, topic: str, partition: int, settled: Callable[[bool], None]) -> None:
        """Calls `settled(True)` once all that is in the log now can be read here.

        That is all that earlier leaders committed, and what this one has under way.
        `settled(False)` if this broker doesn't lead the partition any more by then.
        """
        target = self.get(topic, partition)
        if target is None or target.leadership is None:
            settled(False)
            return
        end = target.log.log_end_offset
        target.when_committed(end, lambda error: settled(error is ErrorCode.NONE))

    def refused(self, topic: str, partition: int, start_offset: int, size_bytes: int) -> None:
        """What `read_batches` gave could not be used."""
        target = self.get(topic, partition)
        if target is not None:
            self.suspect(target, max(start_offset, target.log.log_start_offset), size_bytes)

    def log_size_bytes(self, topic: str, partition: int) -> int:
        """The size of a log that is led here, 0 if it isn't."""
        target = self.get(topic, partition)
        return 0 if target is None else target.log.size_bytes

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
        return read_committed(target, start_offset, max_bytes)

    def delete_records_before(self, topic: str, partition: int, offset: int) -> None:
        """Moves the start of a log that is led here, on its followers too, to what is committed.

        Raises KafkaError KAFKA_STORAGE_ERROR.
        """
        target = self.get(topic, partition)
        if target is None or target.closed:
            return
        offset = min(offset, target.high_watermark)
        if offset > target.log.log_start_offset:
            target.delete_records_before(offset)

    def has_place(self, topic: str, partition: int, place: Place) -> bool:
        """Whether a replica's log up to there is what was read (`reading_along`)."""
        target = self.replica(topic, partition)
        return target is not None and not target.closed and has_place(target, place)

    def read_along(
        self, topic: str, partition: int, place: Place | None, max_bytes: int
    ) -> tuple[bytes, Place]:
        """Committed batches of a replica from there, None: from the start, and the place behind.

        Raises KafkaError: NOT_LEADER_OR_FOLLOWER, KAFKA_STORAGE_ERROR.
        """
        target = self.replica(topic, partition)
        if target is None or target.closed:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{topic}-{partition} isn't here")
        return read_along(target, place, max_bytes)
