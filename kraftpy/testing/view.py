"""What each node of a cluster says about itself and the others, asked over the Kafka protocol.

Blocking requests, one connection each: a test asks now and then, and a node that is paused or cut
off must cost no more than the timeout. Of a secured cluster each of them is encrypted and logs in.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from kraftpy.protocol import codec
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import DecodeError
from kraftpy.protocol.messages import (
    DescribeQuorumRequest,
    MetadataRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from kraftpy.protocol.sasl import SaslError
from kraftpy.testing.node import Node

if TYPE_CHECKING:
    from kraftpy.client.security import Secures

_View = TypeVar("_View")

_TIMEOUT_S = 2.0

_METADATA_VERSION = 12
_DESCRIBE_QUORUM_VERSION = 1
_MAX_ANSWER_BYTES = 256 << 20
_METADATA_TOPIC = "__cluster_metadata"


@dataclass(frozen=True, slots=True)
class PartitionView:
    """A partition as one node sees it; `leader` is -1 while there is none.

    `replicas` are in their order: the first one is preferred, and elected, if it is in the ISR.
    """

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: frozenset[int]
    error: int

    @property
    def in_sync(self) -> bool:
        """Whether it has a leader, and all replicas follow it."""
        return self.leader >= 0 and self.isr == frozenset(self.replicas)


@dataclass(frozen=True, slots=True)
class ClusterView:
    """What one node answered to Metadata: unfenced brokers, and partitions by (topic, index)."""

    brokers: frozenset[int]
    partitions: dict[tuple[str, int], PartitionView]


@dataclass(frozen=True, slots=True)
class QuorumView:
    """What one node answered to DescribeQuorum; `leader` is -1 while there is none.

    `behind` are the voters that lack committed metadata.
    """

    leader: int
    epoch: int
    behind: frozenset[int]


def ask_metadata(
    host: str, port: int, timeout_s: float, security: Secures | None = None
) -> ClusterView:
    """The cluster as this node sees it. Raises OSError, DecodeError."""
    request = MetadataRequest(topics=None)
    with Peer(host, port, timeout_s, security) as peer:
        answer = peer.ask(ApiKey.METADATA, _METADATA_VERSION, request)
    partitions = {
        (topic.name, each.partition_index): PartitionView(
            each.leader_id,
            each.leader_epoch,
            tuple(each.replica_nodes),
            frozenset(each.isr_nodes),
            each.error_code,
        )
        for topic in answer.topics
        for each in topic.partitions
    }
    return ClusterView(frozenset(broker.node_id for broker in answer.brokers), partitions)


def ask_quorum(
    host: str, port: int, timeout_s: float, security: Secures | None = None
) -> QuorumView:
    """The metadata quorum as this node finds it. Raises OSError, DecodeError."""
    partition = DescribeQuorumRequest.PartitionData(partition_index=0)
    request = DescribeQuorumRequest(
        topics=[DescribeQuorumRequest.TopicData(_METADATA_TOPIC, [partition])]
    )
    with Peer(host, port, timeout_s, security) as peer:
        answer = peer.ask(ApiKey.DESCRIBE_QUORUM, _DESCRIBE_QUORUM_VERSION, request)
    if answer.error_code or not answer.topics:
        return QuorumView(-1, -1, frozenset())
    (found,) = answer.topics[0].partitions
    behind = [
        voter.replica_id
        for voter in found.current_voters
        if voter.log_end_offset < found.high_watermark
    ]
    return QuorumView(found.leader_id, found.leader_epoch, frozenset(behind))


def ills(
    everyone: frozenset[int], views: Mapping[int, ClusterView], quorums: Mapping[int, QuorumView]
) -> list[str]:
    """In words, what is not as it has to be in a cluster of which this is known, by node."""
    if silent := everyone - views.keys():
        return [f"broker {each} doesn't answer" for each in sorted(silent)]
    found = [
        f"broker {i} takes broker {other} for fenced"
        for i, view in views.items()
        for other in sorted(everyone - view.brokers)
    ]
    known = views[min(views)].partitions
    for i, view in views.items():
        if view.partitions.keys() != known.keys():
            found.append(f"broker {i} knows other partitions than broker {min(views)}")
    for (topic, index), partition in known.items():
        if {view.partitions.get((topic, index)) for view in views.values()} != {partition}:
            found.append(f"the brokers see {topic}-{index} in different states")
        elif partition.error or partition.leader < 0:
            found.append(f"{topic}-{index} has no leader")
        elif missing := sorted(set(partition.replicas) - partition.isr):
            found.append(f"{topic}-{index} lacks {missing} in its ISR")
    if not any(quorum.leader >= 0 for quorum in quorums.values()):
        found.append("no controller leads")
    behind = frozenset[int]().union(*(quorum.behind for quorum in quorums.values()))
    return found + [f"voter {each} lacks committed metadata" for each in sorted(behind)]


def ask_nodes(
    nodes: Iterable[Node],
    ask: Callable[[str, int, float, Secures | None], _View],
    security: Secures | None,
) -> dict[int, _View]:
    """The answers of those nodes that answer, by id."""
    answers = {}
    for node in nodes:
        if node.running and not node.paused:
            with contextlib.suppress(OSError, DecodeError):
                answers[node.id] = ask(*node.own, _TIMEOUT_S, security)
    return answers


class Peer:
    """A connection to one node."""

    def __init__(
        self, host: str, port: int, timeout_s: float, security: Secures | None = None
    ) -> None:
        self._sock = socket.create_connection((host, port), timeout=timeout_s)
        try:
            if security is not None:
                self._secure(host, security)
        except BaseException:
            self._sock.close()
            raise

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self._sock.close()

    def _secure(self, host: str, security: Secures) -> None:
        context, begin = security.ssl_context, security.login
        if context is not None:
            self._sock = context.wrap_socket(self._sock, server_hostname=host)
        if begin is None:
            return
        login = begin()
        if isinstance(login, Awaitable):
            raise TypeError("a view doesn't wait for tokens: let it log in by PLAIN or SCRAM")
        answer = self.ask(ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest(login.mechanism))
        token: bytes | None = login.first()
        while not answer.error_code and token is not None:
            answer = self.ask(ApiKey.SASL_AUTHENTICATE, 1, SaslAuthenticateRequest(token))
            if not answer.error_code:
                try:
                    token = login.answer(bytes(answer.auth_bytes))
                except SaslError as error:
                    raise ConnectionRefusedError(f"the login failed: {error}") from None
        if answer.error_code:
            raise ConnectionRefusedError(f"the login failed: error {answer.error_code}")

    def ask(self, key: ApiKey, version: int, request: Any) -> Any:
        """The answer. Raises OSError, DecodeError."""
        parts = codec.encode_request(key, version, 1, "kraftpy.testing", request)
        frame = b"".join(bytes(part) for part in parts)
        self._sock.sendall(struct.pack(">i", len(frame)) + frame)
        (size,) = struct.unpack(">i", _receive(self._sock, 4))
        if not 0 <= size <= _MAX_ANSWER_BYTES:
            raise DecodeError(f"an answer of {size} bytes")
        return codec.decode_response(key, version, _receive(self._sock, size))[1]


def _receive(sock: socket.socket, size_bytes: int) -> bytes:
    data = bytearray()
    while len(data) < size_bytes:
        part = sock.recv(size_bytes - len(data))
        if not part:
            raise ConnectionError(f"closed after {len(data)} of {size_bytes} bytes")
        data += part
    return bytes(data)
