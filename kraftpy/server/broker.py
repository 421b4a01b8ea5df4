"""The broker: holds its parts together, follows the metadata, starts and stops in order.

Rules that it keeps:

* The broker's metadata is its own copy of the controller's state machine, fed by the committed
  commands (architecture.md, decision 6). Until it has caught up with the quorum and its own
  registration is committed, no client is let in and no log is created or deleted.
* Parts are stopped in the order clients, coordinators, partitions, logs, controller, so that all
  that was promised to a client is on disk before the clean-shutdown marker is.
"""

from __future__ import annotations

import asyncio
import logging
import random
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from kraftpy.core.config import BrokerConfig, TopicConfig
from kraftpy.core.metadata import (
    Change,
    ConfigChanged,
    MetadataState,
    PartitionChanged,
    ResourceType,
    TopicCreated,
    TopicDeleted,
)
from kraftpy.protocol.api import advertised
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages import ApiVersionsResponse
from kraftpy.quorum.client import ControllerClient
from kraftpy.server import handlers
from kraftpy.server.dispatch import Dispatcher, RequestContext, implemented
from kraftpy.server.fetch_sessions import FetchSessionCache
from kraftpy.server.group_coordinator import OFFSETS_TOPIC, GroupCoordinator
from kraftpy.server.listener import Listener
from kraftpy.server.partition import Partition
from kraftpy.server.producer_ids import ProducerIds
from kraftpy.server.proposals import Proposals
from kraftpy.server.replicas import ReplicaManager
from kraftpy.storage.files import StorageError
from kraftpy.storage.flusher import Flusher
from kraftpy.storage.manager import LogManager

log = logging.getLogger(__name__)

handlers.load()

TICK_MIN_MS = 10
TICK_MAX_MS = 1000
METADATA_TIMEOUT_MS = 15_000
QUORUM_TIMEOUT_MS = 30_000
DRAIN_TIMEOUT_S = 5.0


class Node(NamedTuple):
    """A broker's address as one client is told it."""

    node_id: int
    host: str
    port: int
    rack: str | None
    fenced: bool


class Broker:
    """One broker process; see the module."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        logs: LogManager,
        voters: Mapping[int, tuple[str, int]],
        secret: bytes,
        loop: asyncio.AbstractEventLoop,
        on_fatal: Callable[[Exception], None],
    ) -> None:
        self.config = config
        self.node_id = config.node_id
        self.broker_epoch = -1
        self.cluster_id = logs.cluster_id
        self.loop = loop
        self.metadata = MetadataState()
        self._on_fatal = on_fatal
        self._quorum = ControllerClient(
            voters,
            secret,
            self.node_id,
            on_commit=self._following(self._on_commit),
            on_snapshot=self._following(self._on_snapshot),
            heartbeat_interval_ms=config.broker_heartbeat_interval_ms,
            session_timeout_ms=config.broker_session_timeout_ms,
        )
        self.controller = Proposals(self._quorum)
        self.flusher = Flusher(loop.call_soon_threadsafe)
        self.logs = logs
        self.replicas: ReplicaManager
        self.groups: GroupCoordinator
        self.producer_ids = ProducerIds(self._allocate_producer_ids)
        self.fetch_sessions = FetchSessionCache(
            config.max_incremental_fetch_session_cache_slots, _random_int31()
        )
        self.listener = Listener(loop, config, Dispatcher(self))
        self._listener_names: dict[int, str] = {}
        self.stopping = False
        self._live = False
        self._ticker: asyncio.TimerHandle | None = None
        self._advertised = [
            ApiVersionsResponse.ApiVersion(key, low, high)
            for key, (low, high) in advertised(implemented()).items()
        ]

    def now_ms(self) -> int:
        """The wall clock, in milliseconds since 1970."""
        return int(time.time() * 1000)

    # -- life

    async def start(self, sockets: list[socket.socket]) -> None:
        """Joins the quorum, opens the partitions, lets clients in."""
        await self._quorum.start(QUORUM_TIMEOUT_MS)
        self._set_config()
        self.logs.load(self.topic_config, self.flusher)
        if self.metadata.cluster_id is None and len(self.logs):
            raise StorageError(
                f"the metadata log is empty, but there are {len(self.logs)} partitions in "
                f"{', '.join(self.config.data_dirs)}: restore the metadata folder "
                "(metadata.log.dir), or set log.dirs to an empty folder to begin a new cluster"
            )
        self.replicas = ReplicaManager(
            self.node_id, self.logs, self.flusher, self.loop, self.now_ms
        )
        self.groups = GroupCoordinator(self)
        await self._register(sockets)
        self.replicas.load(self.metadata, self.topic_config)
        self._live = True
        self.groups.start()
        for sock in sockets:
            self.listener.start(sock)
        await self._propose(
            {
                "type": "unfence_broker",
                "broker_id": self.node_id,
                "broker_epoch": self.broker_epoch,
            }
        )
        self._tick()

    async def _register(self, sockets: list[socket.socket]) -> None:
        """Begins this life of the broker (KIP-631), fenced; its epoch guards what it proposes."""
        endpoints = []
        for endpoint, sock in zip(self.config.broker_listeners, sockets, strict=True):
            host, port = sock.getsockname()[:2]
            self._listener_names[port] = endpoint.name
            endpoints.append(
                {
                    "listener": endpoint.name,
                    "host": host,
                    "port": port,
                    "security_protocol": "PLAINTEXT",
                }
            )
        directories = [directory.directory_id for directory in self.logs.directories]
        clean_epoch = self.logs.clean_shutdown_epoch
        await self._fence_previous_life(directories)
        value = await self._propose(
            {
                "type": "register_broker",
                "broker_id": self.node_id,
                "incarnation_id": uuid.uuid4().bytes,
                "previous_broker_epoch": -1 if clean_epoch is None else clean_epoch,
                "cluster_id": self.cluster_id,
                "endpoints": endpoints,
                "rack": self.config.broker_rack,
                "directories": directories,
            }
        )
        self.broker_epoch = value["broker_epoch"]
        self._quorum.registered(self.broker_epoch)

    async def _fence_previous_life(self, directories: list[bytes]) -> None:
        """Ends the registration of a life that was killed before it could.

        We hold the locks of the folders that it registered, so its process is gone. One that had
        other folders may be alive: the registration then is refused, as it must be.
        """
        previous = self.metadata.brokers.get(self.node_id)
        if previous is None or previous.fenced:
            return
        if set(previous.directories) <= set(directories):
            await self._propose(
                {
                    "type": "fence_broker",
                    "broker_id": self.node_id,
                    "broker_epoch": previous.epoch,
                }
            )

    async def _propose(self, command: dict[str, Any]) -> Mapping[str, Any]:
        """The value of an accepted command; raises KafkaError for a refused one."""
        _, result = await self.controller.propose(command, METADATA_TIMEOUT_MS)
        if result.error is not ErrorCode.NONE:
            raise KafkaError(result.error, result.message)
        return result.value

    async def stop(self) -> None:
        """Answers what was asked, makes everything durable, writes the clean-shutdown marker."""
        if self._ticker is not None:
            self._ticker.cancel()
        self.listener.drain()
        await self.groups.stop()
        self.stopping = True
        for partition in self.replicas:
            partition.wake_fetches()
        await self.listener.stop(DRAIN_TIMEOUT_S)
        self.replicas.close()
        self.flusher.close()
        self.logs.close(self.broker_epoch)
        await self._quorum.close()

    def _tick(self) -> None:
        # First of all, so that a defect in one tick doesn't end flush.ms and retention for good.
        self._ticker = self.loop.call_later(self._tick_interval_s(), self._tick)
        self.logs.tick(self.now_ms(), self.replicas.high_watermarks)
        self.replicas.open_missing(self.metadata, self.topic_config)

    def _tick_interval_s(self) -> float:
        """As often as the most impatient flush.ms asks for, at least every second."""
        flush_ms = min(
            self.config.log_flush_scheduler_interval_ms,
            min((partition.config.flush_ms for partition in self.replicas), default=TICK_MAX_MS),
        )
        return max(TICK_MIN_MS, min(flush_ms, TICK_MAX_MS)) / 1000

    # -- following the metadata

    def _following(self, apply: Callable[..., None]) -> Callable[..., None]:
        """A broker that fails to follow can't be trusted with anything: the process stops."""

        def follow(*arguments: Any) -> None:
            try:
                apply(*arguments)
            except Exception as error:
                self._on_fatal(error)
                raise

        return follow

    def _on_snapshot(self, state: dict[str, Any], index: int) -> None:
        before, self.metadata = self.metadata, MetadataState.from_snapshot(state)
        if self._live:
            self._set_config()
            self.replicas.load(self.metadata, self.topic_config)
            self.replicas.update_configs(self.topic_config)
            for topic in before.topics.values():
                if topic.id not in self.metadata.topics_by_id:
                    self.groups.topic_deleted(topic.name)
            self.groups.refresh()

    def _on_commit(self, index: int, command: dict[str, Any]) -> None:
        result = self.metadata.apply(index, command)
        if self._live:
            for change in result.changes:
                self._carry_out(change)

    def _carry_out(self, change: Change) -> None:
        match change:
            case TopicCreated(topic=topic) | PartitionChanged(topic=topic):
                self.replicas.apply_topic(topic, self.topic_config(topic.name))
                if topic.name == OFFSETS_TOPIC:
                    self.groups.refresh()
            case TopicDeleted(topic=topic):
                self.replicas.delete_topic(topic.name)
                self.groups.topic_deleted(topic.name)
            case ConfigChanged(resource_type=ResourceType.TOPIC, name=name):
                self.replicas.update_configs(self.topic_config, [name])
            case ConfigChanged():
                self._set_config()
                self.replicas.update_configs(self.topic_config)

    def _set_config(self) -> None:
        self.config = self.config.with_dynamic(
            self.metadata.config(ResourceType.BROKER, str(self.node_id)),
            self.metadata.config(ResourceType.BROKER, ""),
        )
        self.listener.update_config(self.config)

    def topic_config(self, name: str) -> TopicConfig:
        """The topic's configuration: its own settings over the broker's."""
        return TopicConfig.resolve(self.metadata.config(ResourceType.TOPIC, name), self.config)

    # -- what handlers ask

    def api_versions(self, error: ErrorCode) -> ApiVersionsResponse:
        return ApiVersionsResponse(error_code=error, api_keys=self._advertised)

    def led_partition(self, topic: str, index: int, leader_epoch: int = -1) -> Partition:
        """The partition that a client means; `leader_epoch` is what it believes, -1 for nothing.

        Raises KafkaError: UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER,
        FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH.
        """
        partition = self.replicas.get(topic, index)
        if partition is None:
            raise KafkaError(self.missing_partition_error(topic, index))
        error = partition.check_leader_epoch(leader_epoch)
        if error is not ErrorCode.NONE:
            raise KafkaError(error)
        return partition

    def missing_partition_error(self, topic: str, index: int) -> ErrorCode:
        """Why `replicas.get` has no such partition."""
        known = self.metadata.topics.get(topic)
        if known is None or index not in known.partitions:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return ErrorCode.NOT_LEADER_OR_FOLLOWER

    def is_alive(self, node_id: int) -> bool:
        broker = self.metadata.brokers.get(node_id)
        return broker is not None and not broker.fenced

    def controller_id(self) -> int:
        """The broker that clients are told is the controller: the active one's, else this one.

        Any broker passes on to the quorum what only a controller can do, so a controller that takes
        no clients, or whose broker is down, is not missed.
        """
        leader_id = self.controller.leader_id
        return leader_id if leader_id is not None and self.is_alive(leader_id) else self.node_id

    def reachable_nodes(self, ctx: RequestContext, *, fenced: bool = False) -> list[Node]:
        """The live brokers, with `fenced` also those that are not.

        This one is under the address that the client used, unless configured.
        """
        nodes = []
        for broker in self.metadata.brokers.values():
            if broker.fenced and not fenced:
                continue
            host, port = broker.endpoints[0].host, broker.endpoints[0].port
            if broker.id == self.node_id:
                host, port = self._own_address(ctx)
            nodes.append(Node(broker.id, host, port, broker.rack, broker.fenced))
        return nodes

    def _own_address(self, ctx: RequestContext) -> tuple[str, int]:
        """Where this client finds this broker: as advertised, else as it found it now."""
        name = self._listener_names.get(ctx.local_port)
        for advertised_listener in self.config.advertised_listeners or ():
            if advertised_listener.name == name:
                return advertised_listener.host, advertised_listener.port
        return ctx.local_host, ctx.local_port

    async def auto_create_topics(self, names: list[str]) -> dict[str, ErrorCode]:
        """Creates topics with the broker's defaults; why it didn't, for those that aren't there."""
        topics = [
            {
                "name": name,
                "topic_id": uuid.uuid4().bytes,
                "partitions": self.config.num_partitions,
                "replication_factor": self.config.default_replication_factor,
                "configs": {},
            }
            for name in names
        ]
        try:
            value = await self._propose(
                {"type": "create_topics", "topics": topics, "seed": random.getrandbits(31)}
            )
        except KafkaError as error:
            log.warning("can't create topics on demand: %s", error)
            return dict.fromkeys(names, error.code)
        errors = {}
        for answer in value["topics"]:
            if answer["name"] not in self.metadata.topics:
                errors[answer["name"]] = ErrorCode(answer["error"])
                log.warning("can't create %s on demand: %s", answer["name"], answer["message"])
        return errors

    async def _allocate_producer_ids(self) -> tuple[int, int]:
        value = await self._propose(
            {
                "type": "allocate_producer_ids",
                "broker_id": self.node_id,
                "broker_epoch": self.broker_epoch,
            }
        )
        return value["first"], value["count"]


def _random_int31() -> Iterator[int]:
    source = random.SystemRandom()
    while True:
        yield source.randrange(1, 2**31)
