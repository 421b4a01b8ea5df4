"""Connections to other brokers, by which coordinators ask each other, and leaders.

* A connection is opened when somebody needs it, and again after it broke.
* Answers keep the order of requests, so what takes long has a connection of its own: a `Lane`.
* That a broker doesn't answer is told once, until it does.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Protocol

from kraftpy.client.connection import CLIENT_VERSIONS, Connection, ConnectionLostError
from kraftpy.frozen import NamedTuple
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import KafkaError
from kraftpy.protocol.extensions import FORWARDED_CLIENT_ID
from kraftpy.server.network.dialing import Dialer
from kraftpy.server.network.shared_tasks import await_shared

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_MS = 2_000
# Brokers ask about many transactions in one AddPartitionsToTxn; clients know it to version 3.
_VERSIONS = {**CLIENT_VERSIONS, ApiKey.ADD_PARTITIONS_TO_TXN: (4, 5)}


class Lane(NamedTuple):
    """What a connection is for, and the client id that it bears."""

    name: str
    client_id: str


READS = Lane("reads", FORWARDED_CLIENT_ID)
COMMITS = Lane("commits", FORWARDED_CLIENT_ID)
MARKERS = Lane("markers", "kraftpy-markers")
QUESTIONS = Lane("questions about transactions", "kraftpy-questions")
CLAIMS = Lane("questions about claims", "kraftpy-claims")
STATE = Lane("the state of share groups", "kraftpy-state")


class PeerHost(Protocol):
    """What is needed of the broker."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...
    @property
    def dialer(self) -> Dialer: ...


class _Peer:
    def __init__(self) -> None:
        self.connection: Connection | None = None
        self.opening: asyncio.Task[Connection] | None = None


class Peers:
    """The brokers of the cluster, this one among them."""

    def __init__(self, host: PeerHost) -> None:
        self.closed = False
        self._host = host
        self._peers: dict[tuple[int, Lane], _Peer] = {}
        self._silent: set[tuple[int, Lane]] = set()

    async def close(self) -> None:
        """Ends the connections; who waits for an answer gets ConnectionLostError."""
        self.closed = True
        for peer in list(self._peers.values()):
            if peer.opening is not None:
                peer.opening.cancel()
                await asyncio.gather(peer.opening, return_exceptions=True)
            if peer.connection is not None:
                await peer.connection.close()

    async def request(
        self,
        node_id: int,
        lane: Lane,
        message: Any,
        *,
        timeout_ms: int,
        version: int | None = None,
    ) -> Any:
        """A broker's answer. Raises ConnectionLostError or KafkaError.

        `version` is one that all brokers know, None for the highest that both sides do.
        """
        try:
            connection = await self.connection(node_id, lane)
            answer = await connection.request(message, timeout_ms=timeout_ms, version=version)
        except (ConnectionLostError, KafkaError) as error:
            if (node_id, lane) not in self._silent and not self.closed:
                self._silent.add((node_id, lane))
                log.warning("broker %d can't be sent %s: %s", node_id, lane.name, error)
            raise
        self._silent.discard((node_id, lane))
        return answer

    async def connection(self, node_id: int, lane: Lane) -> Connection:
        """An open connection. Raises ConnectionLostError or KafkaError."""
        if self.closed:
            raise ConnectionLostError("this broker stops")
        peer = self._peers.setdefault((node_id, lane), _Peer())
        if peer.connection is None or peer.connection.closed:
            if peer.opening is None:
                peer.opening = self._host.loop.create_task(self._open(node_id, lane, peer))
                peer.opening.add_done_callback(lambda _: setattr(peer, "opening", None))
            return await await_shared(peer.opening, ConnectionLostError("this broker stops"))
        return peer.connection

    async def _open(self, node_id: int, lane: Lane, peer: _Peer) -> Connection:
        peer.connection = await self._host.dialer.open(
            node_id,
            client_id=lane.client_id,
            timeout_ms=CONNECT_TIMEOUT_MS,
            versions=_VERSIONS,
        )
        return peer.connection
