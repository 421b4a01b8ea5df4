"""Connections to other brokers, by which coordinators ask each other and the leaders.

* A connection is opened when somebody needs it, and again after it broke.
* Answers keep the order of requests, so what takes long has a connection of its own: a `Lane`.
* A request is sent once. Whether one that got no answer has been carried out nobody knows here.
"""

from __future__ import annotations

import asyncio
from enum import Enum, auto
from typing import Any, Protocol

from kraftpy.client.connection import Connection, ConnectionLostError
from kraftpy.server.network.shared_tasks import await_shared

CONNECT_TIMEOUT_MS = 2_000


class Lane(Enum):
    """What a connection is for."""

    MARKERS = auto()


class PeerHost(Protocol):
    """What is needed of the broker."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...
    @property
    def node_id(self) -> int: ...
    def inter_broker_address(self, node_id: int) -> tuple[str, int] | None:
        """Where a broker is found now, None if that isn't known."""


class _Peer:
    def __init__(self) -> None:
        self.connection: Connection | None = None
        self.opening: asyncio.Task[Connection] | None = None


class Peers:
    """The brokers of the cluster, this one among them."""

    def __init__(self, host: PeerHost) -> None:
        self._host = host
        self._client_id = f"kraftpy-broker-{host.node_id}"
        self._peers: dict[tuple[int, Lane], _Peer] = {}
        self._closed = False

    async def close(self) -> None:
        """Ends the connections; who waits for an answer gets ConnectionLostError."""
        self._closed = True
        for peer in list(self._peers.values()):
            if peer.opening is not None:
                peer.opening.cancel()
                await asyncio.gather(peer.opening, return_exceptions=True)
            if peer.connection is not None:
                await peer.connection.close()

    async def ask(self, node_id: int, lane: Lane, request: Any, timeout_ms: int) -> Any:
        """A broker's answer, in the highest version that both know.

        Raises ConnectionLostError, or KafkaError(UNSUPPORTED_VERSION).
        """
        peer = self._peers.setdefault((node_id, lane), _Peer())
        connection = peer.connection
        if connection is None or connection.closed:
            connection = await self._opened(node_id, peer)
        return await connection.request(request, timeout_ms=timeout_ms)

    async def _opened(self, node_id: int, peer: _Peer) -> Connection:
        if self._closed:
            raise ConnectionLostError("this broker stops")
        if peer.opening is None:
            peer.opening = self._host.loop.create_task(self._open(node_id, peer))
            peer.opening.add_done_callback(lambda _: setattr(peer, "opening", None))
        return await await_shared(peer.opening, ConnectionLostError("this broker stops"))

    async def _open(self, node_id: int, peer: _Peer) -> Connection:
        address = self._host.inter_broker_address(node_id)
        if address is None:
            raise ConnectionLostError(f"broker {node_id} is gone")
        peer.connection = await Connection.open(
            *address, client_id=self._client_id, timeout_ms=CONNECT_TIMEOUT_MS
        )
        return peer.connection
