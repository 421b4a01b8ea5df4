"""The share coordinator of this broker: what became of leased records, in `__share_group_state`.

What a request does is `ShareStateMachine`'s to decide; here is which of its operations that is.
What all coordinators have in common is in `runtime`, the way here from other brokers in
`share_persister` and `handlers.share_state`.

* Nothing is kept of a partition that isn't there, nor of one that is gone, also if it went while
  nobody coordinated. (Who leads knows of all topics that those before have known of.)
* The head of a log leaves once nothing of it is needed any more: all that counts has been written
  anew behind it, and is committed.
* What is told of a write that isn't committed in time is that the coordinator isn't available: who
  has asked writes it again.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Protocol

from kraftpy.core.config import BrokerConfig
from kraftpy.core.coordination import Effects
from kraftpy.core.leases.share_state import Summary
from kraftpy.core.leases.state import (
    ShareStateCodec,
    ShareStateConfig,
    ShareStateMachine,
    StateAnswer,
    StateWrite,
)
from kraftpy.core.leases.state_memory import ShareMemory
from kraftpy.core.leases.state_records import ShareKey, ShareRecord
from kraftpy.core.metadata.records import SHARE_STATE_TOPIC
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.server.coordination.internal_topic import InternalTopic
from kraftpy.server.coordination.loading import Loading
from kraftpy.server.coordination.partition import CoordinatorLog, PartitionLog
from kraftpy.server.coordination.runtime import CoordinatorRuntime, Host

log = logging.getLogger(__name__)

Answering = StateAnswer | asyncio.Future[StateAnswer]

_UNKNOWN = StateAnswer(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


class StateLog(PartitionLog, Protocol):
    """The logs of the state topic, whose heads leave."""

    def delete_records_before(self, topic: str, partition: int, offset: int) -> None:
        """Moves the start of a log that is led here, on its followers too, to what is committed.

        Raises KafkaError KAFKA_STORAGE_ERROR.
        """


class ShareHost(Host, Protocol):
    """What the coordinator needs of its broker."""

    @property
    def config(self) -> BrokerConfig: ...
    @property
    def replicas(self) -> StateLog: ...


class ShareCoordinator(CoordinatorRuntime[ShareStateMachine]):
    """The state of share groups at this broker; see `share_persister` for who wants to use it."""

    _host: ShareHost
    gathers = True

    def __init__(self, host: ShareHost) -> None:
        config = host.config
        topic = InternalTopic(
            host,
            SHARE_STATE_TOPIC,
            partitions=config.share_coordinator_state_topic_num_partitions,
            replication_factor=config.share_coordinator_state_topic_replication_factor,
            configs={
                "cleanup.policy": "delete",
                "compression.type": "producer",
                "min.insync.replicas": str(config.share_coordinator_state_topic_min_isr),
                "retention.bytes": "-1",
                "retention.ms": "-1",
                "segment.bytes": str(config.share_coordinator_state_topic_segment_bytes),
                "unclean.leader.election.enable": "false",
            },
            setting="share.coordinator.state.topic.replication.factor",
        )
        logs = [CoordinatorLog(SHARE_STATE_TOPIC, ShareStateCodec())]
        super().__init__(host, "share", topic, logs, self._new_machine)
        self._memory = ShareMemory(config.share_coordinator_max_memory_bytes)
        self._is_dropping_due = False
        self._dropping: asyncio.Task[None] | None = None

    def _new_machine(self, leader_epoch: int) -> ShareStateMachine:
        config = self._host.config
        return ShareStateMachine(
            ShareStateConfig(
                config.share_coordinator_snapshot_update_records_per_snapshot,
                config.share_coordinator_cold_partition_snapshot_interval_ms,
            ),
            self._memory,
        )

    def start(self) -> None:
        """Takes on the partitions that this broker leads, and begins to prune their logs."""
        super().start()
        config = self._host.config
        self.every(
            lambda: config.share_coordinator_state_topic_prune_interval_ms / 1000, self.prune
        )

    async def stop(self) -> None:
        """Answers every parked request with NOT_COORDINATOR and stops."""
        if self._dropping is not None:
            self._dropping.cancel()
            await asyncio.gather(self._dropping, return_exceptions=True)
        await super().stop()

    @property
    def write_timeout_ms(self) -> int:
        return self._host.config.share_coordinator_write_timeout_ms

    def contents(self, machine: ShareStateMachine) -> str:
        return f"{len(machine)} partitions of share groups"

    def send(self, message: Any) -> None:
        """There are no messages to other brokers."""
        raise NotImplementedError

    # -- what isn't needed any more

    def topic_deleted(self, name: str) -> None:
        """A topic is gone, and with it what groups have done there."""
        super().topic_deleted(name)
        self._drop_soon()

    def tell_loaded(self, loading: Loading[ShareStateMachine], machine: ShareStateMachine) -> None:
        """Topics may have gone since its last coordinator has."""
        self._drop_soon()

    def _drop_soon(self) -> None:
        self._is_dropping_due = True
        if self._dropping is None or self._dropping.done():
            self._dropping = self._loop.create_task(self._drop())

    async def _drop(self) -> None:
        """Drops what is kept of topics that are gone."""
        while self._is_dropping_due:
            self._is_dropping_due = False
            await self.sweep(
                "partitions of share groups dropped: their topics are gone",
                lambda machine: list(machine.keys()),
                self._drop_gone,
            )

    def _drop_gone(
        self, machine: ShareStateMachine, keys: list[ShareKey], now_ms: int
    ) -> tuple[int, Effects[ShareRecord]]:
        topics = self._host.metadata.topics_by_id
        return machine.drop([key for key in keys if key.topic_id not in topics], now_ms)

    async def prune(self) -> None:
        """Cuts off what isn't needed of the logs any more; it also runs by itself.

        What holds them back is written anew, so that more can be cut off the next time.
        """
        for index, machine in list(self.machines()):
            try:
                self._host.replicas.delete_records_before(
                    SHARE_STATE_TOPIC, index, machine.needed_from()
                )
            except KafkaError as error:
                log.warning("%s-%d can't be pruned: %s", SHARE_STATE_TOPIC, index, error)
            await asyncio.sleep(0)  # where a log starts is durable: others come in between
        await self.sweep(
            "snapshots of partitions of share groups written anew",
            ShareStateMachine.outdated,
            ShareStateMachine.renew,
        )

    # -- requests: each raises KafkaError if the key isn't (or isn't yet) coordinated here

    def initialize(self, key: ShareKey, state_epoch: int, start_offset: int) -> Answering:
        """InitializeShareGroupState of a partition."""
        if not self._has_partition(key):
            return _UNKNOWN
        return self.write(
            key.coordinator_key,
            lambda machine, token, now_ms: machine.initialize(
                token, key, state_epoch, start_offset, now_ms
            ),
        )

    def read_state(self, key: ShareKey, leader_epoch: int) -> Answering:
        """ReadShareGroupState of a partition."""
        if not self._has_partition(key):
            return _UNKNOWN
        return self.write(
            key.coordinator_key,
            lambda machine, token, now_ms: machine.read(token, key, leader_epoch, now_ms),
        )

    def write_state(self, key: ShareKey, write: StateWrite) -> Answering:
        """WriteShareGroupState of a partition."""
        if not self._has_partition(key):
            return _UNKNOWN
        return self.write(
            key.coordinator_key,
            lambda machine, token, now_ms: machine.write(token, key, write, now_ms),
        )

    def delete_state(self, key: ShareKey) -> Answering:
        """DeleteShareGroupState of a partition, also of one that is gone."""
        return self.write(
            key.coordinator_key,
            lambda machine, token, now_ms: machine.delete(token, key, now_ms),
        )

    def summary(self, key: ShareKey) -> Summary:
        """ReadShareGroupStateSummary of a partition, by what is committed."""
        return self.read(key.coordinator_key, lambda machine, now_ms: machine.summary(key))

    def _has_partition(self, key: ShareKey) -> bool:
        topic = self._host.metadata.topics_by_id.get(key.topic_id)
        return topic is not None and key.partition in topic.partitions
