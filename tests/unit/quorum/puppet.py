"""A back-end that does what a test tells it, for what a lone voter never does."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from kraftpy.quorum.port import (
    Applied,
    ApplyListener,
    Entry,
    LeaderListener,
    MachineSnapshot,
    Peer,
    PeerConnection,
    Role,
    StateMachine,
    VoterState,
)
from kraftpy.quorum.state import ReplicatedState

from .standin import Values


class Puppet:
    """See the module. Futures resolve when the test resolves them."""

    def __init__(self, voter_id: int, leader_id: int | None, term: int = 1) -> None:
        self.voter_id = voter_id
        self.leader_id = leader_id
        self.term = term
        self.proposals: list[tuple[bytes, asyncio.Future[Applied]]] = []
        self.barriers: list[asyncio.Future[int]] = []
        self.transfers: list[tuple[int | None, asyncio.Future[bool]]] = []
        self.voters: Mapping[int, tuple[str, int]] = {1: ("one", 1), 2: ("two", 2)}
        self.states: list[VoterState] = []
        self._state = ReplicatedState(Values)
        self._entries: list[tuple[Entry, bool]] = []
        self._apply_listeners: list[ApplyListener] = []
        self._leader_listeners: list[LeaderListener] = []
        self._apply(b"")

    @property
    def committed_index(self) -> int:
        return self.applied_index

    @property
    def role(self) -> Role:
        return Role.LEADER if self.leader_id == self.voter_id else Role.FOLLOWER

    @property
    def applied_index(self) -> int:
        return self._state.applied_index

    @property
    def machine(self) -> StateMachine:
        return self._state.machine

    def _apply(self, command: bytes) -> Applied:
        applied = self._state.apply(Entry(self.applied_index + 1, self.term, command))
        self._publish([applied])
        return applied

    def _publish(self, batch: list[Applied]) -> None:
        self._entries += [(one.entry, one.fresh) for one in batch]
        for listener in self._apply_listeners:
            listener(batch)

    def propose(self, command: bytes) -> asyncio.Future[Applied]:
        future: asyncio.Future[Applied] = asyncio.get_running_loop().create_future()
        self.proposals.append((command, future))
        return future

    def append(self, count: int) -> None:
        """Commit so many entries that no client proposed, in one batch."""
        first = self.applied_index + 1
        entries = [Entry(first + n, self.term, b"") for n in range(count)]
        self._publish([self._state.apply(entry) for entry in entries])

    def commit_all(self) -> None:
        for command, future in self.proposals:
            future.set_result(self._apply(command))
        self.proposals.clear()

    def barrier(self) -> asyncio.Future[int]:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.barriers.append(future)
        return future

    def voter_levels(self) -> Mapping[int, int]:
        return {}

    def voter_states(self) -> list[VoterState]:
        return self.states

    def transfer_leadership(self, to: int | None = None) -> asyncio.Future[bool]:
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.transfers.append((to, future))
        return future

    def accept_peer(self, introduction: Sequence[Any], connection: PeerConnection) -> Peer:
        raise ValueError("a puppet talks to no voter")

    def on_apply(self, listener: ApplyListener) -> None:
        self._apply_listeners.append(listener)

    def on_leader(self, listener: LeaderListener) -> None:
        self._leader_listeners.append(listener)
        asyncio.get_running_loop().call_soon(lambda: listener(self.leader_id, self.term))

    def lead(self, leader_id: int | None, term: int) -> None:
        self.leader_id, self.term = leader_id, term
        for listener in self._leader_listeners:
            listener(leader_id, term)

    def snapshot(self) -> MachineSnapshot:
        return MachineSnapshot(self.applied_index, self._state.pack_machine())

    def entries_from(self, index: int, max_bytes: int) -> list[tuple[Entry, bool]] | None:
        return None if index < 1 else self._entries[index - 1 :]
