"""Connections with the other voters, over the controllers' listeners.

Rules:

* Of two voters the one with the higher id dials, so there is one connection for each pair. A new
  one takes the place of the old one, which may be dead without either end having noticed.
* Both ends compare their lists of voters: with two different lists there could be two majorities.
* Each end says something every `PING_INTERVAL_S` and closes the connection if it hears nothing for
  `SILENCE_TIMEOUT_S`.
* One log line when a voter is reached, and one when it's lost or can't be reached.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from kraftpy.core.metadata import levels
from kraftpy.quorum.credentials import Credentials
from kraftpy.quorum.port import Peer, PeerConnection
from kraftpy.quorum.raft.messages import Kind
from kraftpy.quorum.transport import FrameConnection

logger = logging.getLogger(__name__)

PING_INTERVAL_S = 0.5
SILENCE_TIMEOUT_S = 2.0
CONNECT_TIMEOUT_S = 1.0
BACKOFF_MIN_S = 0.02
BACKOFF_MAX_S = 0.2
REFUSED_BACKOFF_S = 0.5
"""The longest wait after a connection that the other end, or this one, didn't want to keep."""
STABLE_S = 1.0
"""A connection that lasted so long was sound: the next attempt follows at once."""


class PeerOwner(Protocol):
    """Who hears of the connections."""

    def peer_connected(self, voter_id: int) -> None: ...
    def peer_disconnected(self, voter_id: int) -> None: ...
    def peer_received(self, voter_id: int, message: Any) -> None: ...


class Peers:
    """The connections of voter `voter_id`; needs its event loop.

    `voters` maps all ids, this one's included, to host and port.
    """

    def __init__(
        self,
        voter_id: int,
        voters: Mapping[int, tuple[str, int]],
        credentials: Credentials,
        owner: PeerOwner,
    ) -> None:
        self.voter_id = voter_id
        self.voters = dict(voters)
        self.credentials = credentials
        self.owner = owner
        self._links: dict[int, _Link] = {}
        self._loop = asyncio.get_running_loop()
        self._dialers = [
            self._loop.create_task(self._keep_dialing(other))
            for other in self.voters
            if other < voter_id
        ]
        self._closed = False
        self._check()

    @property
    def introduction(self) -> list[Any]:
        """What this voter says of itself to another."""
        return ["voter", self.voter_id, sorted(self.voters)]

    @property
    def connected(self) -> Collection[int]:
        """The voters that there is a connection with."""
        return self._links.keys()

    def accept(self, introduction: Sequence[Any], connection: PeerConnection) -> Peer:
        """See `port.Quorum.accept_peer`."""
        match introduction:
            case ["voter", int(other), list(others)]:
                pass
            case _:
                raise ValueError("its introduction has the wrong shape")
        if others != sorted(self.voters) or other <= self.voter_id or other not in self.voters:
            raise ValueError(
                f"it is voter {other} of {others}, this is voter {self.voter_id} of "
                f"{sorted(self.voters)}: give all nodes the same controller.quorum.voters, and "
                "each its own node.id"
            )
        return self.up(other, connection)

    def send(self, voter_id: int, message: Any) -> None:
        """Sends if there is a connection."""
        link = self._links.get(voter_id)
        if link is not None:
            link.connection.send(message)

    def close(self) -> None:
        """Stops dialing and closes all connections."""
        self._closed = True
        self._timer.cancel()
        for dialer in self._dialers:
            dialer.cancel()
        for link in list(self._links.values()):
            link.connection.close()
        self._links.clear()

    def up(self, voter_id: int, connection: PeerConnection) -> _Link:
        """`connection` with a voter is authenticated."""
        old = self._links.get(voter_id)
        if old is not None:
            self._end(old, "it connected anew")
        link = self._links[voter_id] = _Link(self, voter_id, connection)
        logger.info("voter %d is connected", voter_id)
        self.owner.peer_connected(voter_id)
        return link

    def down(self, link: _Link, reason: str | None) -> None:
        """`link` has ended."""
        if self._links.get(link.voter_id) is link:
            del self._links[link.voter_id]
            logger.warning(
                "voter %d is disconnected%s", link.voter_id, f": {reason}" if reason else ""
            )
            self.owner.peer_disconnected(link.voter_id)

    def received(self, link: _Link, message: Any) -> None:
        """A message came over `link`."""
        if self._links.get(link.voter_id) is not link:
            return
        match message:
            case [Kind.PING]:
                pass
            case [Kind.KNOWS, int(level)]:
                link.level = level
            case _:
                self.owner.peer_received(link.voter_id, message)

    @property
    def levels(self) -> dict[int, int]:
        """The metadata level that each voter knows that is connected; 0 of earlier releases."""
        return {voter_id: link.level for voter_id, link in self._links.items()}

    def _end(self, link: _Link, reason: str) -> None:
        self.down(link, reason)
        link.connection.close(reason)

    def _check(self) -> None:
        for link in list(self._links.values()):
            if self._loop.time() - link.heard_at > SILENCE_TIMEOUT_S:
                self._end(link, f"nothing was heard from it for {SILENCE_TIMEOUT_S:g} s")
            else:
                link.connection.send([Kind.PING])
        self._timer = self._loop.call_later(PING_INTERVAL_S, self._check)

    async def _keep_dialing(self, voter_id: int) -> None:
        host, port = self.voters[voter_id]
        backoff_s = BACKOFF_MIN_S
        logged = ""
        while True:
            started = self._loop.time()
            longest_s = BACKOFF_MAX_S
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    _, dialed = await self._loop.create_connection(
                        lambda: _Dialed(self, voter_id),
                        host,
                        port,
                        ssl=self.credentials.client_context,
                    )
                await dialed.ended.wait()
                problem = dialed.problem
                longest_s = REFUSED_BACKOFF_S
            except (OSError, TimeoutError) as error:
                problem = str(error) or "no answer"
            if problem and problem != logged:
                logger.warning(
                    "no connection with voter %d at %s:%d yet: %s", voter_id, host, port, problem
                )
            logged = problem
            if self._loop.time() - started > STABLE_S:
                backoff_s = BACKOFF_MIN_S
            await asyncio.sleep(backoff_s)
            backoff_s = min(backoff_s * 2, longest_s)


class _Link:
    """A connection with another voter; a `port.Peer`."""

    def __init__(self, peers: Peers, voter_id: int, connection: PeerConnection) -> None:
        self._peers = peers
        self.voter_id = voter_id
        self.connection = connection
        self._loop = asyncio.get_running_loop()
        self.heard_at = self._loop.time()
        self.level = 0

    def received(self, message: Any) -> None:
        """See `port.Peer`."""
        self.heard_at = self._loop.time()
        self._peers.received(self, message)

    def disconnected(self, reason: str | None = None) -> None:
        """See `port.Peer`."""
        self._peers.down(self, reason)


class _Dialed(FrameConnection):
    """The dialing end."""

    def __init__(self, peers: Peers, voter_id: int) -> None:
        super().__init__(peers.credentials, dialer=True)
        self._peers = peers
        self._voter_id = voter_id
        self._link: _Link | None = None
        self.ended = asyncio.Event()
        self.problem = ""
        """Why there never was a connection with the voter."""

    def introduction(self, other: Any) -> Any:
        return self._peers.introduction

    def authenticated(self, introduction: Any) -> None:
        match introduction:
            case [self._voter_id, *others]:
                self._link = self._peers.up(self._voter_id, self)
                match others:
                    case [_, _, _, _, int(level), *_]:
                        self._link.level = level
                        self.send([Kind.KNOWS, levels.LEVEL])
            case _:
                raise ValueError(
                    f"who answers there is not voter {self._voter_id}; check "
                    "controller.quorum.voters"
                )

    def received(self, message: Any) -> None:
        assert self._link is not None
        self._link.received(message)

    def disconnected(self, reason: str | None) -> None:
        self.ended.set()
        if self._link is None:
            self.problem = reason or "it closed the connection"
        else:
            self._link.disconnected(reason)
