"""What a client knows of its cluster: the brokers, the topics, who leads which partition.

Rules:

* Bootstrap addresses are only asked for the first Metadata; afterwards the brokers' advertised
  addresses are used (and the bootstrap addresses again when none of those answers).
* A topic's metadata is used until a request proves it wrong or it is `METADATA_MAX_AGE_MS` old.
* A leader of an older epoch is never believed over a newer one (KIP-320), and a broker that told
  nothing new isn't asked next: it may be cut off from the quorum and know no better.
* Each broker has one connection per lane. A fetch that waits for data holds up every answer behind
  it, so fetches have a lane of their own.
* All connections are secured alike (`security`). What isn't let in is told at once: after a login
  that failed no other broker is asked, and neither that nor a certificate that isn't accepted is
  tried again.
* Only what Kafka calls retriable, and lost connections, are tried again: `Retry` sleeps longer each
  time, with jitter so that clients do not come back together, and ends at its deadline with the
  error of the last attempt. A cluster that never answered is not tried again.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

from kraftpy.client.connection import Connection, ConnectionLostError, UntrustedError, address_of
from kraftpy.client.security import NO_SECURITY, Secures
from kraftpy.protocol import messages
from kraftpy.protocol.errors import ErrorCode, KafkaError, error_code
from kraftpy.protocol.extensions import ACCEPT_RANGE_FETCH_TAG, COOPERATIVE_FEATURE, YES, is_set

DEFAULT_PORT = 9092
CONNECT_TIMEOUT_MS = 5_000
METADATA_MAX_AGE_MS = 300_000
RETRY_BACKOFF_MS = 50
RETRY_BACKOFF_MAX_MS = 1000


class NoBrokerError(ConnectionError):
    """No address answered; the text names each with its reason.

    `first_contact` says that none ever did. That is not tried again: a broker that has yet to be
    started, or a wrong address, is likelier than one that is about to answer. `asked` counts the
    addresses.
    """

    def __init__(self, message: str, *, first_contact: bool, asked: int = 1) -> None:
        super().__init__(message)
        self.first_contact = first_contact
        self.asked = asked


class AddressError(ValueError):
    """A bootstrap address is not HOST:PORT."""


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    """A broker as Metadata lists it."""

    id: int
    host: str
    port: int
    rack: str | None


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """A partition as Metadata lists it; `leader` is -1 while there is none."""

    id: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic as Metadata lists it; `fetched_at` is a `time.monotonic()`.

    Whether it `accepts_range_fetch` is known only where that was asked for.
    """

    name: str
    id: bytes
    internal: bool
    partitions: dict[int, PartitionInfo]
    fetched_at: float
    accepts_range_fetch: bool = False


_lanes = itertools.count(1)


def new_lane(purpose: str) -> str:
    """The name of a lane that nobody else uses; end it with `Cluster.close_lane`."""
    return f"{purpose}-{next(_lanes)}"


class Retry:
    """The attempts of one operation: how long to wait between them, and when to give up."""

    def __init__(self, timeout_ms: int) -> None:
        self._deadline = time.monotonic() + timeout_ms / 1000
        self._backoff_ms = RETRY_BACKOFF_MS

    async def wait(self, error: Exception) -> None:
        """Sleeps before the next attempt; raises `error` if it cannot be retried or time is up."""
        pause_s = self._backoff_ms / 1000 * random.uniform(0.8, 1.2)  # noqa: S311
        if not is_retriable(error) or time.monotonic() + pause_s > self._deadline:
            raise error
        self._backoff_ms = min(self._backoff_ms * 2, RETRY_BACKOFF_MAX_MS)
        await asyncio.sleep(pause_s)


def is_retriable(error: Exception) -> bool:
    """Whether the same request may succeed later: Kafka's retriable codes, lost connections."""
    if isinstance(error, KafkaError):
        return error.code.retriable
    if isinstance(error, NoBrokerError):
        return not error.first_contact
    if isinstance(error, UntrustedError):
        return False
    return isinstance(error, ConnectionError)


def check(code: int, message: str | None = None) -> None:
    """Raises `KafkaError` for a response's error code other than NONE."""
    if code:
        raise KafkaError(error_code(code), message)


def parse_addresses(bootstrap: str | Iterable[str]) -> list[tuple[str, int]]:
    """`host:port,host:port` (the port defaults to 9092) as pairs; `AddressError`."""
    texts = bootstrap.split(",") if isinstance(bootstrap, str) else list(bootstrap)
    addresses = []
    for text in (t.strip() for t in texts):
        host, separator, port = text.rpartition(":")
        if not separator or text.endswith("]"):
            host, port = text, str(DEFAULT_PORT)
        host = host.removeprefix("[").removesuffix("]")
        if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
            raise AddressError(f"{text!r} is not HOST:PORT, like 127.0.0.1:9092")
        addresses.append((host, int(port)))
    return addresses


class Cluster:
    """Connections to a cluster and a cache of its metadata; `async with Cluster(...)` closes it."""

    def __init__(
        self,
        bootstrap: str | Iterable[str],
        *,
        client_id: str = "kraftpy",
        request_timeout_ms: int = 30_000,
        connect_timeout_ms: int = CONNECT_TIMEOUT_MS,
        security: Secures = NO_SECURITY,
    ) -> None:
        self.bootstrap = parse_addresses(bootstrap)
        self.request_timeout_ms = request_timeout_ms
        self.brokers: dict[int, BrokerInfo] = {}
        self.topics: dict[str, TopicInfo] = {}
        self.controller_id = -1
        self.cluster_id: str | None = None
        self._client_id = client_id
        self._connect_timeout_ms = connect_timeout_ms
        self._security = security
        self._connections: dict[tuple[int | str, str], Connection] = {}
        self._connecting: dict[tuple[int | str, str], asyncio.Lock] = {}
        self._told_nothing_new = ""
        self._features: dict[str, int] = {}
        self._features_epoch = -1

    async def __aenter__(self) -> Cluster:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes every connection."""
        connections = list(self._connections.values())
        self._connections.clear()
        await asyncio.gather(*(connection.close() for connection in connections))

    # -- connections

    async def close_lane(self, lane: str) -> None:
        """Closes the connections of a lane."""
        names = [name for name in self._connections if name[1] == lane]
        for name in names:
            self._connecting.pop(name, None)
        await asyncio.gather(*(self._connections.pop(name).close() for name in names))

    async def connection(self, node_id: int, lane: str = "") -> Connection:
        """The open connection to a broker in a lane; `ConnectionLostError` if there is none."""
        broker = self.brokers.get(node_id)
        if broker is None:
            raise ConnectionLostError(f"broker {node_id} is not known to the cluster")
        return await self._connection((node_id, lane), broker.host, broker.port)

    async def any_connection(self, but: str = "") -> Connection:
        """A connection to some broker, an open one if there is one; `NoBrokerError`.

        The one at the address `but` is chosen only if no other can be had. So is one that isn't
        among the brokers that Metadata named: it may have been cut off, and left itself out.
        """
        named = {address_of(broker.host, broker.port) for broker in self.brokers.values()}
        for (_, lane), connection in self._connections.items():
            usable = not lane and not connection.closed and connection.address != but
            if usable and (not named or connection.address in named):
                return connection
        candidates: list[tuple[int | str, str, int]] = [
            (broker.id, broker.host, broker.port) for broker in self.brokers.values()
        ]
        random.shuffle(candidates)
        candidates += [(f"{host}:{port}", host, port) for host, port in self.bootstrap]
        candidates.sort(key=lambda each: address_of(each[1], each[2]) == but)
        reasons: list[str] = []
        untrusted: UntrustedError | None = None
        for node, host, port in candidates:
            try:
                return await self._connection((node, ""), host, port)
            except ConnectionLostError as error:
                reasons.append(str(error))
                untrusted = error if isinstance(error, UntrustedError) else untrusted
        if untrusted is not None:
            raise untrusted
        raise NoBrokerError(
            "no broker answers: " + "; ".join(dict.fromkeys(reasons)),
            first_contact=not self.brokers,
            asked=len({(host, port) for _, host, port in candidates}),
        )

    async def _connection(self, key: tuple[int | str, str], host: str, port: int) -> Connection:
        async with self._connecting.setdefault(key, asyncio.Lock()):
            connection = self._connections.get(key)
            if connection is None or connection.closed:
                connection = await Connection.open(
                    host,
                    port,
                    client_id=self._client_id,
                    timeout_ms=self._connect_timeout_ms,
                    ssl_context=self._security.ssl_context,
                    login=self._security.login,
                )
                self._connections[key] = connection
                self._learn_features(connection)
            return connection

    # -- features

    def feature(self, name: str) -> int:
        """The level of a cluster's feature, as far as any broker has told; 0 if it has none."""
        return self._features.get(name, 0)

    async def ask_features(self, connection: Connection) -> None:
        """Has a broker tell them anew: they may have changed since anybody was connected to."""
        await connection.negotiate(self.request_timeout_ms)
        self._learn_features(connection)

    def _learn_features(self, connection: Connection) -> None:
        if connection.features_epoch >= self._features_epoch:
            self._features, self._features_epoch = connection.features, connection.features_epoch

    # -- requests

    async def request(
        self,
        request: Any,
        *,
        node_id: int | None = None,
        lane: str = "",
        timeout_ms: int | None = None,
        at_most: int | None = None,
    ) -> Any:
        """Sends one request to a broker (any broker by default), once, and returns its response.

        `at_most` is the highest version to send it in.
        """
        if node_id is None:
            connection = await self.any_connection()
        else:
            connection = await self.connection(node_id, lane)
        return await connection.request(
            request,
            timeout_ms=timeout_ms or self.request_timeout_ms,
            version=connection.version(request.API_KEY, at_most),
        )

    # -- metadata

    async def refresh(
        self,
        topics: Sequence[str] | None = (),
        *,
        auto_create: bool = False,
        range_fetch: bool = False,
    ) -> dict[str, KafkaError]:
        """Asks for the brokers and some topics (None: all) and keeps the answer.

        Returns the error of each topic that has one. `auto_create` lets the broker create missing
        topics if its auto.create.topics.enable allows it. With `range_fetch` brokers that know it
        are asked, too, which topics may be read in parts.
        """
        wanted = None
        if topics is not None:
            wanted = [messages.MetadataRequest.MetadataRequestTopic(name=name) for name in topics]
        connection = await self.any_connection(but=self._told_nothing_new)
        asking = range_fetch and self.feature(COOPERATIVE_FEATURE) > 0
        response = await connection.request(
            messages.MetadataRequest(
                topics=wanted,
                allow_auto_topic_creation=auto_create,
                _tags={ACCEPT_RANGE_FETCH_TAG: YES} if asking else None,
            ),
            timeout_ms=self.request_timeout_ms,
        )
        now = time.monotonic()
        self.brokers = {
            broker.node_id: BrokerInfo(broker.node_id, broker.host, broker.port, broker.rack)
            for broker in response.brokers
        }
        self.cluster_id = response.cluster_id
        self.controller_id = response.controller_id
        errors: dict[str, KafkaError] = {}
        before = dict(self.topics)
        if topics is None:
            self.topics.clear()
        news = not response.topics
        for topic in response.topics:
            known = before.get(topic.name)
            if topic.error_code:
                errors[topic.name] = KafkaError(error_code(topic.error_code))
                self.topics.pop(topic.name, None)
                news |= known is not None
            else:
                told = self.topics[topic.name] = _topic_info(topic, known, now)
                news |= known is None or told.partitions != known.partitions
        self._told_nothing_new = "" if news else connection.address
        return errors

    async def topic(
        self, name: str, *, auto_create: bool = False, timeout_ms: int | None = None
    ) -> TopicInfo:
        """A topic's metadata, asked for if it is not known or too old.

        A topic that does not exist raises KafkaError(UNKNOWN_TOPIC_OR_PARTITION) at once, or with
        `auto_create` when it has not come into being within `timeout_ms`.
        """
        retry = Retry(timeout_ms or self.request_timeout_ms)
        while True:
            known = self.topics.get(name)
            if known and time.monotonic() - known.fetched_at < METADATA_MAX_AGE_MS / 1000:
                return known
            try:
                errors = await self.refresh([name], auto_create=auto_create)
            except ConnectionError as error:
                await retry.wait(error)
                continue
            if name in errors:
                if not auto_create and errors[name].code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise errors[name]
                await retry.wait(errors[name])

    def leader(self, topic: str, partition: int) -> int:
        """The broker that leads a partition, from the cache; a retriable KafkaError if none."""
        info = self.topics.get(topic)
        if info is None or partition not in info.partitions:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"no partition {partition} of topic {topic!r}"
            )
        leader = info.partitions[partition].leader
        if leader not in self.brokers:
            raise KafkaError(
                ErrorCode.LEADER_NOT_AVAILABLE, f"partition {topic}-{partition} has no leader"
            )
        return leader

    def learn_leader(self, topic: str, partition: int, leader: int, epoch: int) -> bool:
        """Believes a broker that says who leads a partition, if that is newer than what is known.

        Whether it did.
        """
        info = self.topics.get(topic)
        known = None if info is None else info.partitions.get(partition)
        if info is None or known is None:
            return False
        if leader not in self.brokers or epoch <= known.leader_epoch:
            return False
        info.partitions[partition] = replace(known, leader=leader, leader_epoch=epoch)
        return True


def _topic_info(topic: Any, known: TopicInfo | None, now: float) -> TopicInfo:
    """What a broker told about a topic, but for partitions of which a newer epoch is `known`."""
    partitions = {
        partition.partition_index: PartitionInfo(
            partition.partition_index,
            partition.leader_id,
            partition.leader_epoch,
            tuple(partition.replica_nodes),
            tuple(partition.isr_nodes),
        )
        for partition in sorted(topic.partitions, key=lambda p: p.partition_index)
    }
    if known is not None and known.id == topic.topic_id:
        for index, partition in known.partitions.items():
            if index in partitions and partition.leader_epoch > partitions[index].leader_epoch:
                partitions[index] = partition
    return TopicInfo(
        topic.name,
        topic.topic_id,
        topic.is_internal,
        partitions,
        now,
        is_set(topic, ACCEPT_RANGE_FETCH_TAG),
    )
