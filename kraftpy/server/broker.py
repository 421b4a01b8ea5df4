"""The broker: holds its parts together, follows the metadata, starts and stops in order.

Rules that it keeps:

* The broker's metadata is its own copy of the controller's state machine, fed by the committed
  commands (docs/architecture.md, decision 6). Until it has caught up with the quorum and its own
  registration is committed, no client is let in and no log is created or deleted.
* Parts are stopped in the order clients, coordinators, partitions, logs, controller, so that all
  that was promised to a client is on disk before the clean-shutdown marker is. What others can lead
  they lead before that.
* A broker whose session with the quorum has lapsed leads nothing (docs/rules.md, rule 21).
* One that is cut off sends clients elsewhere (`cluster.cut_off`).
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from kraftpy.core.config import BrokerConfig, TopicConfig
from kraftpy.core.config.addresses import Address
from kraftpy.core.config.understood import understood_broker_configs, understood_topic_configs
from kraftpy.core.metadata import (
    TRANSACTIONS,
    AclsChanged,
    BrokerChanged,
    Change,
    ConfigChanged,
    FeatureChanged,
    LevelRaised,
    MetadataState,
    PartitionChanged,
    QuotasChanged,
    ResourceType,
    ScramChanged,
    TokensRemoved,
    TopicCreated,
    TopicDeleted,
)
from kraftpy.core.metadata import Broker as BrokerRecord
from kraftpy.events import emit
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.quorum.client import ControllerClient, ControllerUnavailable
from kraftpy.quorum.credentials import Credentials
from kraftpy.server.cluster.audit import AuditLog, authorizer_of, tell_acls
from kraftpy.server.cluster.cut_off import is_cut_off
from kraftpy.server.cluster.logins import gates, login_of_broker, still_known, token_logins
from kraftpy.server.cluster.membership import Membership
from kraftpy.server.cluster.metadata_events import (
    tell_broker,
    tell_level,
    tell_topic_created,
    tell_topic_deleted,
)
from kraftpy.server.cluster.proposals import Proposals
from kraftpy.server.coordination.group_coordinator import GroupCoordinator
from kraftpy.server.coordination.leases import Leases
from kraftpy.server.coordination.marker_writes import write_markers
from kraftpy.server.coordination.offset_forwarding import OffsetForwarding
from kraftpy.server.coordination.peers import Peers
from kraftpy.server.coordination.producer_ids import ProducerIds
from kraftpy.server.coordination.runtime import CoordinatorRuntime
from kraftpy.server.coordination.share_coordinator import ShareCoordinator
from kraftpy.server.coordination.share_groups import ShareGroups
from kraftpy.server.coordination.share_persister import SharePersister
from kraftpy.server.coordination.transaction_coordinator import TransactionCoordinator
from kraftpy.server.coordination.transaction_questions import TransactionQuestions
from kraftpy.server.network.addresses import (
    Node,
    endpoints_to_register,
    inter_broker_endpoint,
    metrics_to_register,
    node_for,
)
from kraftpy.server.network.client_quotas import ClientQuotas
from kraftpy.server.network.dialing import Dialer
from kraftpy.server.network.dispatch import Dispatcher, HandlerSpec, RequestContext
from kraftpy.server.network.listener import Listener
from kraftpy.server.network.throttle import Throttle
from kraftpy.server.replication.fetch_sessions import FetchSessionCache, random_session_ids
from kraftpy.server.replication.follower_sessions import FollowerSessions
from kraftpy.server.replication.leader_changes import LeaderChanges
from kraftpy.server.replication.opening import BatchOpener
from kraftpy.server.replication.partition import Partition
from kraftpy.server.replication.placement import MetadataPlacement, check_metadata_is_there
from kraftpy.server.replication.replicas import ReplicaManager
from kraftpy.storage.flusher import Flusher
from kraftpy.storage.manager import LogManager

log = logging.getLogger(__name__)

TICK_MIN_MS = 10
TICK_MAX_MS = 1000
SESSION_CHECK_MIN_S = 0.05
QUORUM_TIMEOUT_MS = 30_000
DRAIN_TIMEOUT_S = 5.0
GONE_LISTED_S = 5.0
NO_CONTROLLER = -1


class Broker:
    """One broker process; see the module."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        handlers: Mapping[ApiKey, HandlerSpec],
        logs: LogManager,
        voters: Mapping[int, tuple[str, int]],
        credentials: Credentials,
        loop: asyncio.AbstractEventLoop,
        on_fatal: Callable[[Exception], None],
    ) -> None:
        self.config = config
        self.node_id = config.node_id
        self.loop = loop
        self.metadata = MetadataState()
        self._topic_configs: dict[str, tuple[Mapping[str, str], BrokerConfig, TopicConfig]] = {}
        self._on_fatal = on_fatal
        self._quorum = ControllerClient(
            voters,
            credentials,
            self.node_id,
            on_commit=self._following(self._on_commit),
            on_snapshot=self._following(self._on_snapshot),
            heartbeat_interval_ms=config.broker_heartbeat_interval_ms,
            session_timeout_ms=config.broker_session_timeout_ms,
        )
        self.controller = Proposals(self._quorum, lambda: self.metadata)
        self.authorizer, self.audit = authorizer_of(config, self.metadata.acls), AuditLog(loop)
        self._membership = Membership(
            self.node_id, self._quorum, self.controller, config.broker_session_timeout_ms
        )
        self.flusher = Flusher(loop.call_soon_threadsafe)
        self.logs = logs
        self.replicas: ReplicaManager
        self.groups: GroupCoordinator
        self.transactions: TransactionCoordinator
        self.share_coordinator: ShareCoordinator
        self.coordinators: list[CoordinatorRuntime[Any]] = []
        self.peers = Peers(self)
        self.offset_forwarding = OffsetForwarding(self)
        self.write_markers = partial(write_markers, self)
        self.transaction_questions = TransactionQuestions(self)
        self.share_persister = SharePersister(self)
        self.share_groups = ShareGroups(self)
        self.producer_ids = ProducerIds(
            lambda: self._membership.allocate_producer_ids(cut_off=self.cut_off)
        )
        self.fetch_sessions = FetchSessionCache(
            config.max_incremental_fetch_session_cache_slots, random_session_ids()
        )
        self.follower_sessions = FollowerSessions(
            random_session_ids(), eager=config.replica_selector_class is not None
        )
        self.leader_throttle = Throttle(config.leader_replication_throttled_rate, loop.time())
        self.follower_throttle = Throttle(config.follower_replication_throttled_rate, loop.time())
        self.dispatcher = Dispatcher(self, handlers)
        self.quotas = ClientQuotas(self.dispatcher, handlers)
        self.tokens = token_logins(config, lambda: self.metadata)
        doors = gates(config, lambda: self.metadata, credentials.secret, self.tokens)
        quotas = lambda: self.metadata.quotas  # noqa: E731 - a snapshot replaces them
        self.leases = Leases(self)
        self.listener = Listener(loop, config, self.dispatcher, self._disconnected, doors, quotas)
        self.dialer = Dialer(
            partial(inter_broker_endpoint, self),
            self.listener.tls.dial_context,
            login_of_broker(config, credentials.secret),
        )
        self.opener = BatchOpener(loop)
        self.leader_changes = LeaderChanges()
        self._gone_at_s: dict[int, float] = {}
        self.stopping = False
        self._live = False
        self._ticker: asyncio.TimerHandle | None = None
        self._session_timer: asyncio.TimerHandle | None = None
        self._resuming: asyncio.Task[None] | None = None

    def now_ms(self) -> int:
        """The wall clock, in milliseconds since 1970."""
        return int(time.time() * 1000)

    def monotonic_ms(self) -> int:
        """A clock that nobody sets, in milliseconds; that of the event loop."""
        return int(self.loop.time() * 1000)

    @property
    def cluster_id(self) -> str:
        """The cluster that this broker is in; known once it has registered."""
        cluster_id = self.logs.cluster_id
        assert cluster_id is not None
        return cluster_id

    @property
    def broker_epoch(self) -> int:
        """The number of this life of the broker, -1 before it has registered."""
        return self._membership.epoch

    # -- life

    async def start(self, sockets: list[socket.socket], metrics: Address | None = None) -> None:
        """Joins the quorum, opens the partitions, lets clients in; `metrics`: where they are."""
        await self._quorum.start(QUORUM_TIMEOUT_MS)
        directory_ids = [directory.directory_id for directory in self.logs.directories]
        # What the logs are opened by must hold: a controller that leads no more may have told it.
        await self._quorum.barrier(QUORUM_TIMEOUT_MS)
        await self._membership.fence_previous_life(self.metadata, directory_ids)
        self._set_config()
        self.logs.load(
            self.topic_config, self.flusher, MetadataPlacement(self.metadata, self.node_id)
        )
        check_metadata_is_there(self.metadata, self.logs, self.config.data_dirs)
        self.replicas = ReplicaManager(self)
        self.groups = GroupCoordinator(self)
        self.transactions = TransactionCoordinator(self)
        self.share_coordinator = ShareCoordinator(self)
        self.coordinators += [self.groups, self.transactions, self.share_coordinator]
        endpoints = endpoints_to_register(self.config, sockets)
        file = self.config.with_dynamic({})  # The rest of the configuration is known to all.
        cluster_id = await self._membership.register(
            lambda: self.metadata,
            cluster_id=self.logs.cluster_id,
            clean_shutdown_epoch=self.logs.clean_shutdown_epoch,
            endpoints=endpoints,
            rack=self.config.broker_rack,
            directories=directory_ids,
            min_insync_replicas=file.min_insync_replicas,
            unclean_leader_election=file.unclean_leader_election_enable,
            registered_ms=self.now_ms(),
            metrics=None if metrics is None else metrics_to_register(metrics, endpoints),
        )
        if self.logs.cluster_id is None:
            self.logs.join_cluster(cluster_id)
        self.logs.begin()
        self._live = True
        self.quotas.changed(self.metadata.quotas)
        self.replicas.load(self.metadata, self.topic_config)
        for coordinator in self.coordinators:
            coordinator.start()
        await self._membership.unfence()
        # Not before: whoever asks has to find this broker among those that are there.
        for listener, sock in zip(self.config.broker_listeners, sockets, strict=True):
            self.listener.start(sock, listener.name)
        self._tick()
        self._check_session()

    async def stop(self) -> None:
        """Answers what was asked, makes everything durable, writes the clean-shutdown marker.

        A start that was broken off before anything was written leaves the folders as they were.
        """
        if self._live:
            await self._leave_in_order()
        await self._quorum.close()

    async def _leave_in_order(self) -> None:
        await self._membership.hand_over(self.replicas.may_hand_over)
        for timer in (self._ticker, self._session_timer, self._resuming):
            if timer is not None:
                timer.cancel()
        self.listener.drain()
        for part in (self.leases, self.share_groups, self.share_persister, self.peers):
            await part.close()
        for coordinator in self.coordinators:
            await coordinator.stop()
        self.stopping = True
        for partition in self.replicas:
            partition.fetches.wake(partition)
        await self.listener.stop(DRAIN_TIMEOUT_S)
        await self.opener.close()
        high_watermarks = self.replicas.high_watermarks()
        self._live = False  # what the metadata says from here on is for the next life
        self.replicas.close()
        self.flusher.close()
        self.logs.close(self.broker_epoch, high_watermarks)
        await self._membership.leave()

    def _tick(self) -> None:
        # First of all, so that a defect in one tick doesn't end flush.ms and retention for good.
        self._ticker = self.loop.call_later(self._tick_interval_s(), self._tick)
        self.logs.tick(self.logs.clock_ms(), self.replicas.high_watermarks)
        if self.replicas.open_missing(self.metadata, self.topic_config):
            self._refresh_coordinators()
        self.replicas.tick()
        self._membership.changed(self.metadata.brokers.get(self.node_id))

    def _tick_interval_s(self) -> float:
        """As often as the most impatient flush.ms asks for, at least every second."""
        flush_ms = min(self.config.log_flush_scheduler_interval_ms, self.logs.shortest_flush_ms)
        return max(TICK_MIN_MS, min(flush_ms, TICK_MAX_MS)) / 1000

    def _check_session(self) -> None:
        """Steps down when the quorum may have given the leaderships to others, and up again."""
        left_s = max(self._membership.session_left_s, SESSION_CHECK_MIN_S)
        self._session_timer = self.loop.call_later(left_s, self._check_session)
        if self._membership.session_lapsed:
            if not self.replicas.resigned:
                emit(log, logging.WARNING, "session-lapsed", node=self.node_id)
                self.replicas.resign()
                self._refresh_coordinators()
        elif self.replicas.resigned and self._resuming is None:
            self._resuming = self.loop.create_task(self._resume())

    async def _resume(self) -> None:
        try:
            await self._quorum.barrier(QUORUM_TIMEOUT_MS)
        except ControllerUnavailable as error:
            log.warning("can't catch up with the quorum: %s", error)
        else:
            self.replicas.resume(self.metadata, self.topic_config)
            self._refresh_coordinators()
            emit(log, logging.INFO, "session-resumed", node=self.node_id)
        finally:
            self._resuming = None

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
        if self.authorizer is not None:
            self.authorizer.acls = self.metadata.acls
        self._topic_configs.clear()
        if self._live:
            self._set_config()
            self.quotas.changed(self.metadata.quotas)
            self.replicas.load(self.metadata, self.topic_config)
            self.replicas.update_configs(self.topic_config)
            gone = [
                topic.name
                for topic in before.topics.values()
                if topic.id not in self.metadata.topics_by_id
            ]
            for coordinator in self.coordinators:
                coordinator.metadata_replaced()
                for name in gone:
                    coordinator.topic_deleted(name)
            self._refresh_coordinators()
            self._end_sessions()
            self._membership.changed(self.metadata.brokers.get(self.node_id))

    def _on_commit(self, index: int, command: dict[str, Any]) -> None:
        result = self.metadata.apply(index, command)
        if self._live:
            for change in result.changes:
                self._carry_out(change)

    def _carry_out(self, change: Change) -> None:
        match change:
            case TopicCreated(topic=topic):
                self.replicas.apply_topic(topic, self.topic_config)
                for coordinator in self.coordinators:
                    coordinator.topic_changed(topic.name)
                    coordinator.leads_changed(topic.name)
                tell_topic_created(topic)
            case PartitionChanged(topic=topic, index=index, old=old, new=new):
                self.leader_changes.note(self.node_id, topic.name, index, old, new)
                self.replicas.apply_partition(topic, index, new, self.topic_config)
                for coordinator in self.coordinators:
                    if old is None:
                        coordinator.topic_changed(topic.name)
                    coordinator.leads_changed(topic.name)
            case BrokerChanged(old=old, new=new):
                self._broker_changed(old, new)
            case TopicDeleted(topic=topic):
                self.replicas.delete_topic(topic.name)
                for coordinator in self.coordinators:
                    coordinator.topic_changed(topic.name)
                    coordinator.topic_deleted(topic.name)
                self._topic_configs.pop(topic.name, None)
                tell_topic_deleted(topic)
            case ConfigChanged(resource_type=ResourceType.TOPIC, name=name):
                self.replicas.update_configs(self.topic_config, [name])
            case ConfigChanged(resource_type=ResourceType.GROUP, name=name):
                self.groups.group_configured(name)
            case ConfigChanged(resource_type=ResourceType.CLIENT_METRICS):
                pass  # it's only described
            case ConfigChanged():
                self._set_config()
                self.replicas.update_configs(self.topic_config)
            case ScramChanged() | TokensRemoved():
                self._end_sessions()
            case AclsChanged(added=added, deleted=deleted):
                tell_acls(added, deleted)
            case QuotasChanged():
                self.quotas.changed(self.metadata.quotas)
            case LevelRaised() | FeatureChanged():
                tell_level(change)

    def _disconnected(self, connection: str) -> None:
        """What was kept for a connection alone isn't any more."""
        self.fetch_sessions.connection_closed(connection)
        self.leases.connection_closed(connection)

    def _end_sessions(self) -> None:
        """Hangs up on those who have logged in and couldn't any more."""
        self.listener.end_sessions(partial(still_known, self.metadata))

    def _refresh_coordinators(self) -> None:
        for coordinator in self.coordinators:
            coordinator.refresh()

    def _broker_changed(self, old: BrokerRecord | None, new: BrokerRecord | None) -> None:
        changed = new or old
        assert changed is not None
        tell_broker(old, new)
        self.replicas.broker_changed(changed.id, new)
        if old is not None and not old.fenced and (new is None or new.fenced):
            self._gone_at_s[changed.id] = self.loop.time()
        else:
            self._gone_at_s.pop(changed.id, None)
        if new is None or old is None or new.epoch != old.epoch:
            self.follower_sessions.close(changed.id)
        if new is None:
            self._end_sessions()
        if changed.id == self.node_id:
            self._membership.changed(new)

    def _set_config(self) -> None:
        self.config = self.config.with_dynamic(
            understood_broker_configs(self.metadata.config(ResourceType.BROKER, str(self.node_id))),
            understood_broker_configs(self.metadata.config(ResourceType.BROKER, "")),
        )
        self.listener.update_config(self.config)
        self.logs.cleaner.update_config(self.config)
        self.dispatcher.slow.set_limit(self.config.kraftpy_log_slow_request_ms)
        self.leader_throttle.set_rate(self.config.leader_replication_throttled_rate)
        self.follower_throttle.set_rate(self.config.follower_replication_throttled_rate)

    def topic_config(self, name: str) -> TopicConfig:
        """The topic's configuration: its own settings over the broker's.

        One object for all partitions of a topic. Settings are replaced and never changed in place,
        so what was resolved holds as long as they are the same objects.
        """
        overrides = self.metadata.config(ResourceType.TOPIC, name)
        known = self._topic_configs.get(name)
        if known is not None and known[0] is overrides and known[1] is self.config:
            return known[2]
        resolved = TopicConfig.resolve(understood_topic_configs(overrides), self.config)
        self._topic_configs[name] = (overrides, self.config, resolved)
        return resolved

    @property
    def serves(self) -> bool:
        """Whether clients are let in and the quorum counts on this broker."""
        own = self.metadata.brokers.get(self.node_id)
        return self._live and not self._leaving and own is not None and own.active

    @property
    def _leaving(self) -> bool:
        return self._membership.leaving or self.stopping

    @property
    def state(self) -> str:
        """Where it is in its life, in a word or two for a person."""
        own = self.metadata.brokers.get(self.node_id)
        if self._leaving:
            return "shutting down"
        if not self._live:
            return "starting"
        return "fenced" if own is None or not own.active else "up"

    # -- what handlers ask

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

    def readable_partition(
        self, topic: str, index: int, leader_epoch: int, *, from_follower: bool
    ) -> Partition:
        """The partition that a consumer means, also if it is only followed here (KIP-392).

        Raises KafkaError as `led_partition` does.
        """
        partition = self.replicas.replica(topic, index)
        if partition is None or (
            partition.leadership is None and (partition.following is None or not from_follower)
        ):
            raise KafkaError(self.missing_partition_error(topic, index))
        error = partition.check_leader_epoch(leader_epoch)
        if error is not ErrorCode.NONE:
            raise KafkaError(error)
        return partition

    @property
    def serves_transactions(self) -> bool:
        """Whether all brokers do: to raise the metadata level takes every one of them."""
        return self.metadata.level >= TRANSACTIONS

    @property
    def in_touch(self) -> bool:
        """Whether the quorum was heard of lately, so that what is led here most likely still is."""
        recent_ms = 2 * self.config.broker_heartbeat_interval_ms
        return self._quorum.is_connected and self._quorum.session_age_ms <= recent_ms

    @property
    def quorum_heard_ms(self) -> int:
        """How long ago the quorum was heard of, in milliseconds."""
        return self._quorum.session_age_ms

    def missing_partition_error(self, topic: str, index: int) -> ErrorCode:
        """Why `replicas.get` has no such partition."""
        known = self.metadata.topics.get(topic)
        if known is None or index not in known.partitions:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return ErrorCode.NOT_LEADER_OR_FOLLOWER

    @property
    def cut_off(self) -> bool:
        """Whether the cluster may go on without this broker; see `cluster.cut_off`."""
        return self.replicas.resigned and is_cut_off(
            self.loop.time(),
            self.config,
            quorum_has_leader=self._quorum.quorum_has_leader,
            follower_heard_s=self.follower_sessions.heard_ms / 1000,
            leader_heard_s=self.replicas.leader_heard_s,
        )

    @property
    def avoided(self) -> frozenset[int]:
        """Brokers that clients aren't sent to, whatever the metadata says that they lead.

        Those that have probably just died (`quorum/liveness.py`) are about to be replaced; this
        one, while it is cut off, has been.
        """
        suspects = self._quorum.suspects
        return suspects | {self.node_id} if self.cut_off else suspects

    def is_alive(self, node_id: int) -> bool:
        return (broker := self.metadata.brokers.get(node_id)) is not None and not broker.fenced

    def controller_id(self) -> int:
        """The broker that clients are told is the controller: the active one's, else this one.

        Any broker passes on to the quorum what only a controller can do, so a controller that takes
        no clients, or whose broker is down, is not missed. One that is cut off can't: nobody is.
        """
        leader_id = self.controller.leader_id
        if leader_id is not None and self.is_alive(leader_id):
            return leader_id
        return NO_CONTROLLER if self.cut_off else self.node_id

    def reachable_nodes(self, ctx: RequestContext) -> list[Node]:
        """The live brokers for this client; not this one while it is cut off, if others live."""
        return self._nodes(ctx, [b for b in self.metadata.brokers.values() if not b.fenced])

    def all_nodes(self, ctx: RequestContext) -> list[Node]:
        """All brokers for this client; this one is fenced while it is cut off."""
        gone = {self.node_id} if self.cut_off else ()
        nodes = (node_for(each, ctx, self.config) for each in self.metadata.brokers.values())
        return [each._replace(fenced=each.fenced or each.node_id in gone) for each in nodes]

    def nodes_for_metadata(self, ctx: RequestContext) -> list[Node]:
        """The live brokers, and those that were alive a moment ago.

        A client drops what it had to do with a broker that an answer doesn't list, even where the
        same answer says who leads instead; librdkafka then waits a second before it asks again.
        """
        since_s = self.loop.time() - GONE_LISTED_S
        listed = [
            broker
            for broker in self.metadata.brokers.values()
            if not broker.fenced or self._gone_at_s.get(broker.id, since_s) > since_s
        ]
        return self._nodes(ctx, listed)

    def _nodes(self, ctx: RequestContext, brokers: list[BrokerRecord]) -> list[Node]:
        if self.cut_off:
            brokers = [each for each in brokers if each.id != self.node_id] or brokers
        return [node_for(broker, ctx, self.config) for broker in brokers]
