"""A quorum of Raft voters on one event loop, joined by real sockets."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from kraftpy.quorum.credentials import Credentials, QuorumSecret
from kraftpy.quorum.port import Peer
from kraftpy.quorum.raft import RaftVoter
from kraftpy.quorum.transport import FrameConnection
from kraftpy.testing.networks.ports import HOST, free_ports

from .standin import Values

CREDENTIALS = Credentials(QuorumSecret(b"the secret of a test"))


class _Accepted(FrameConnection):
    """What `listener.Listener` does for a voter's connection."""

    def __init__(self, quorum: RaftVoter, credentials: Credentials) -> None:
        super().__init__(credentials, dialer=False)
        self._quorum = quorum
        self._peer: Peer | None = None

    def introduction(self, other: Any) -> Any:
        return [self._quorum.voter_id, None, 0, 0]

    def authenticated(self, introduction: Any) -> None:
        self._peer = self._quorum.accept_peer(introduction, self)

    def received(self, message: Any) -> None:
        assert self._peer is not None
        self._peer.received(message)

    def disconnected(self, reason: str | None) -> None:
        if self._peer is not None:
            self._peer.disconnected()


class Trio:
    """Voters 1 to 3 in folders below `folder`; `start` and `stop` any of them."""

    def __init__(
        self,
        folder: Path,
        *,
        accepting: Credentials = CREDENTIALS,
        dialing: Credentials = CREDENTIALS,
        **options: Any,
    ) -> None:
        self._accepting = accepting
        self._dialing = dialing
        self.folder = folder
        self.options = options
        self.errors: list[tuple[int, Exception]] = []
        self.voters: dict[int, RaftVoter] = {}
        self._servers: dict[int, asyncio.Server] = {}
        self._connections: dict[int, list[_Accepted]] = {}
        self.addresses: dict[int, tuple[str, int]] = {}
        for voter_id, port in enumerate(free_ports(3), 1):
            self.addresses[voter_id] = (HOST, port)

    async def __aenter__(self) -> Trio:
        for voter_id in (1, 2, 3):
            await self.start(voter_id)
        return self

    async def __aexit__(self, *_: object) -> None:
        for voter_id in list(self.voters):
            self.stop(voter_id)

    async def start(self, voter_id: int) -> RaftVoter:
        options = {"machine_type": Values, **self.options}
        voter = self.voters[voter_id] = RaftVoter(
            self.folder / str(voter_id),
            voter_id,
            self.addresses,
            self._dialing,
            on_fatal=lambda error: self.errors.append((voter_id, error)),
            **options,
        )
        connections: list[_Accepted] = []

        def accept() -> _Accepted:
            connections.append(_Accepted(voter, self._accepting))
            return connections[-1]

        self._connections[voter_id] = connections
        self._servers[voter_id] = await asyncio.get_running_loop().create_server(
            accept, *self.addresses[voter_id], ssl=self._accepting.server_context
        )
        return voter

    def stop(self, voter_id: int) -> None:
        self._servers.pop(voter_id).close()
        for connection in self._connections.pop(voter_id):
            connection.close()
        self.voters.pop(voter_id).stop()

    def leaders(self) -> list[RaftVoter]:
        return [voter for voter in self.voters.values() if voter.leader_id == voter.voter_id]

    async def leader(self, timeout_s: float = 10.0) -> RaftVoter:
        """The one voter that all others that run follow."""
        async with asyncio.timeout(timeout_s):
            while True:
                named = {(voter.leader_id, voter.term) for voter in self.voters.values()}
                if len(named) == 1 and (leader := named.pop()[0]) in self.voters:
                    return self.voters[leader]
                await asyncio.sleep(0.005)
