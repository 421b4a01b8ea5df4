"""Where brokers meet the quorum: they propose, follow the committed commands, and show they live.

`messages.py` has the messages. Brokers are connected to every voter, and follow the one that
leads; `controller.py` is told of whom something was heard.

Rules:

* A connection that follows gets every committed index once and in order, after a snapshot if it
  starts from nothing (`next index` 0) or if the entries that it lacks are no longer kept. An
  envelope is nil where nothing is to be applied.
* The reply to a proposal comes after its COMMITTED on the same connection, so a broker that
  follows has applied what it is told has been applied.
* Nothing is queued for a follower that doesn't read: its position in the log stays where it is, and
  is served from the log, or from a snapshot, once it reads again. If it has read nothing of what
  is under way for `STALL_TIMEOUT_S` it is disconnected, and so is a broker of which nothing was
  heard for `SILENCE_TIMEOUT_S` (its machine may be gone without a word).
* Bounds: connections, connections that have not authenticated (the oldest gives way), proposals
  under way in a connection (reading pauses).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
import time
from collections.abc import Iterable, Sequence
from typing import Any

from kraftpy.core.metadata import levels
from kraftpy.events import emit
from kraftpy.quorum.controller import ActiveController, ControllerSettings
from kraftpy.quorum.credentials import Credentials
from kraftpy.quorum.liveness import NO_EPOCH
from kraftpy.quorum.messages import FromBroker, FromController, QuorumReplica, level_in
from kraftpy.quorum.mutations import Charge
from kraftpy.quorum.packing import pack
from kraftpy.quorum.port import (
    Applied,
    CommandResult,
    Entry,
    MachineSnapshot,
    Peer,
    ProposalRefusedError,
    Quorum,
    Role,
)
from kraftpy.quorum.state import MAX_OUTSTANDING
from kraftpy.quorum.transport import AUTHENTICATION_TIMEOUT_S, FrameConnection

logger = logging.getLogger(__name__)

MAX_CONNECTIONS = 1000
MAX_UNAUTHENTICATED = 100
STALL_TIMEOUT_S = 30.0
SILENCE_TIMEOUT_S = 30.0
CHECK_INTERVAL_S = 5.0
CHUNK_SIZE_BYTES = 256 << 10
_NO_INDEX = -1


class Listener:
    """Serves `quorum` on a bound socket."""

    def __init__(
        self,
        quorum: Quorum,
        credentials: Credentials,
        settings: ControllerSettings,
    ) -> None:
        self.quorum = quorum
        self.controller = ActiveController(quorum, settings, self._suspects_changed, self._levels)
        self.connection_numbers = itertools.count()
        self._credentials = credentials
        self._server: asyncio.Server | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._unauthenticated: dict[_Broker, None] = {}  # in order of arrival
        self._connected: set[_Broker] = set()
        self._voters: set[_Broker] = set()
        quorum.on_apply(self._applied)
        quorum.on_leader(self._leader_changed)

    async def start(self, sock: socket.socket) -> None:
        """Accepts on `sock`, which is bound to its address."""
        loop = asyncio.get_running_loop()
        context = self._credentials.server_context
        self._server = await loop.create_server(
            self._new_connection,
            sock=sock,
            ssl=context,
            ssl_handshake_timeout=AUTHENTICATION_TIMEOUT_S if context else None,
            backlog=128,
        )
        self._check()
        self.controller.start()

    def close(self) -> None:
        """Stops accepting and closes all connections; nobody is fenced for that."""
        self.controller.close()
        if self._server is not None:
            self._server.close()
        if self._timer is not None:
            self._timer.cancel()
        for broker in [*self._unauthenticated, *self._connected, *self._voters]:
            broker.close()

    def _check(self) -> None:
        loop = asyncio.get_running_loop()
        for broker in self._connected:
            broker.check(loop.time())
        self._timer = loop.call_later(CHECK_INTERVAL_S, self._check)

    def _new_connection(self) -> _Broker:
        broker = _Broker(self, self._credentials)
        self._unauthenticated[broker] = None
        if len(self._unauthenticated) > MAX_UNAUTHENTICATED:
            oldest = next(iter(self._unauthenticated))
            del self._unauthenticated[oldest]
            oldest.close("too many connections wait to authenticate; this is the oldest")
        return broker

    def admit(self, broker: _Broker) -> bool:
        """`broker` has authenticated; whether there is room for it."""
        self._unauthenticated.pop(broker, None)
        if len(self._connected) >= MAX_CONNECTIONS:
            broker.close(f"{MAX_CONNECTIONS} brokers are connected already")
            return False
        self._connected.add(broker)
        return True

    def admit_voter(self, voter: _Broker) -> None:
        """`voter` has authenticated; the quorum looks after it."""
        self._unauthenticated.pop(voter, None)
        self._voters.add(voter)

    def forget(self, broker: _Broker, reason: str | None) -> None:
        """`broker`'s connection has ended."""
        if broker in self._voters:
            self._voters.remove(broker)
        elif broker in self._connected:
            self._connected.remove(broker)
            self.controller.disconnected(broker.number)
            logger.info("node %d disconnected%s", broker.node_id, f": {reason}" if reason else "")
        else:
            self._unauthenticated.pop(broker, None)
            emit(
                logger,
                logging.WARNING,
                "connection-closed",
                peer=broker.peer,
                client=None,
                reason=reason or "it left before it authenticated",
            )

    def _applied(self, batch: Sequence[Applied]) -> None:
        first = batch[0].entry.index
        after = batch[-1].entry.index + 1
        packed: bytes | None = None
        for broker in self._connected:
            if broker.next_index is None or broker.is_paused:
                continue
            if broker.next_index == first:
                if packed is None:
                    packed = _pack_committed([(one.entry, one.fresh) for one in batch])
                broker.next_index = after
                broker.send_packed(packed)
            elif broker.next_index < after:
                broker.advance()  # it has seen more from the leader before than was applied here

    def _leader_changed(self, leader_id: int | None, term: int) -> None:
        for broker in self._connected:
            if leader_id != self.quorum.voter_id:
                broker.stop_following()
            broker.send([FromController.LEADER, leader_id, term])
            broker.tell_if_incomplete()

    def _suspects_changed(self, suspects: frozenset[int]) -> None:
        for broker in self._connected:
            broker.send([FromController.SUSPECTS, sorted(suspects)])

    def _levels(self) -> Iterable[tuple[int, int]]:
        return [(broker.node_id, broker.level) for broker in self._connected]

    def observers(self) -> list[QuorumReplica]:
        """How far each broker is that follows."""
        states = {broker.node_id: broker.state() for broker in self._connected if broker.follows}
        return [states[node_id] for node_id in sorted(states)]


def _pack_committed(entries: Sequence[tuple[Entry, bool]]) -> bytes:
    return pack(
        [
            FromController.COMMITTED,
            [[entry.index, entry.command if fresh else None] for entry, fresh in entries],
        ]
    )


class _Broker(FrameConnection):
    """One broker's connection."""

    def __init__(self, listener: Listener, credentials: Credentials) -> None:
        super().__init__(credentials, dialer=False)
        self._listener = listener
        self._quorum = listener.quorum
        self._peer: Peer | None = None
        self._under_way = 0
        self._snapshot: MachineSnapshot | None = None
        self._snapshot_position = 0
        self._heard_at = self._progressed_at = asyncio.get_running_loop().time()
        self._unsent_before = 0
        self._reported_index = 0
        self._reported_ms = self._caught_up_ms = -1
        self._epoch = NO_EPOCH
        self.number = next(listener.connection_numbers)
        self.node_id = -1
        self.level = 0
        self.next_index: int | None = None

    @property
    def follows(self) -> bool:
        return self.next_index is not None

    def state(self) -> QuorumReplica:
        """How far this broker is, by its own last report."""
        return QuorumReplica(
            self.node_id, self._reported_index + 1, self._reported_ms, self._caught_up_ms
        )

    def introduction(self, other: Any) -> Any:
        quorum = self._quorum
        voters = [[id_, host, port] for id_, (host, port) in quorum.voters.items()]
        said = [quorum.voter_id, quorum.leader_id, quorum.term, quorum.applied_index, voters]
        match other:
            case ["voter", *_]:  # which passes over what it doesn't know, in any release
                return [*said, levels.LEVEL]
        return said

    def authenticated(self, introduction: Any) -> None:
        match introduction:
            case ["broker", int(node_id), int(epoch)] if node_id >= 0 and epoch >= NO_EPOCH:
                self.node_id, self._epoch = node_id, epoch
                if self._listener.admit(self):
                    self.tell_if_incomplete()
                    self._listener.controller.heard(self.number, node_id, epoch)
            case ["voter", int(), *_]:
                self._peer = self._quorum.accept_peer(introduction, self)
                self._listener.admit_voter(self)
            case _:
                raise ValueError("its introduction has the wrong shape")

    def tell_if_incomplete(self) -> None:
        """For who wants to know why there is no leader."""
        if self._quorum.role is Role.OBSERVER and self._quorum.leader_id is None:
            self.send([FromController.INCOMPLETE])

    def disconnected(self, reason: str | None) -> None:
        self._snapshot = None
        if self._peer is not None:
            self._peer.disconnected()
        self._listener.forget(self, reason)

    def check(self, now: float) -> None:
        """Disconnects a broker that went silent or doesn't read; called now and then."""
        unsent = self.unsent_bytes()
        if not self.is_paused or unsent < self._unsent_before:
            self._progressed_at = now
        self._unsent_before = unsent
        if now - self._progressed_at > STALL_TIMEOUT_S:
            self.close(f"it has read nothing for {STALL_TIMEOUT_S:g} s; {unsent} bytes wait")
        elif now - self._heard_at > SILENCE_TIMEOUT_S:
            self.close(f"nothing was heard from it for {SILENCE_TIMEOUT_S:g} s")

    def received(self, message: Any) -> None:
        if self._peer is not None:
            self._peer.received(message)
            return
        self._heard_at = asyncio.get_running_loop().time()
        match message:
            case [FromBroker.HEARTBEAT, int(number), int(epoch), int(applied_index)]:
                self._epoch = max(epoch, self._epoch)
                self.level = level_in(number)
                self._reported(applied_index)
                self.send([FromController.ALIVE, number, self._quorum.applied_index])
            case [FromBroker.PROPOSE, int(sequence), bytes(envelope)]:
                self._propose(sequence, self._listener.controller.propose(envelope))
            case [FromBroker.PROPOSE, int(sequence), bytes(envelope), list(counts_for)]:
                charge = Charge.unpack(counts_for)
                future = self._listener.controller.propose_for(charge, envelope)
                self._propose(sequence, future, charge)
            case [FromBroker.FOLLOW, int(next_index)] if next_index >= 0:
                self._follow(next_index)
            case [FromBroker.BARRIER, int(request_id)]:
                self._quorum.barrier().add_done_callback(
                    lambda future: self._answer_barrier(request_id, future)
                )
            case [FromBroker.DESCRIBE, int(request_id)]:
                description = self._listener.controller.describe(self._listener.observers())
                with_levels = self.level > 0
                packed = None if description is None else description.pack(with_levels=with_levels)
                self.send([FromController.DESCRIPTION, request_id, packed])
            case [FromBroker.TRANSFER, int(request_id), int(voter_id)]:
                self._transfer(request_id, voter_id)
            case _:
                raise ValueError("it sent a message of unknown kind or shape")
        self._listener.controller.heard(self.number, self.node_id, self._epoch)

    def _reported(self, applied_index: int) -> None:
        self._reported_index = applied_index
        self._reported_ms = int(time.time() * 1000)
        if applied_index >= self._quorum.applied_index:
            self._caught_up_ms = self._reported_ms

    def _transfer(self, request_id: int, voter_id: int) -> None:
        if voter_id not in self._quorum.voters:
            voters = ", ".join(map(str, sorted(self._quorum.voters)))
            refusal = f"{voter_id} is no voter of this quorum; its voters are {voters}"
            self.send([FromController.TRANSFERRED, request_id, refusal])
            return
        if voter_id == self._quorum.leader_id:
            self.send([FromController.TRANSFERRED, request_id, None])
            return
        self._quorum.transfer_leadership(voter_id).add_done_callback(
            lambda future: self._answer_transfer(request_id, voter_id, future)
        )

    def _answer_transfer(
        self, request_id: int, voter_id: int, future: asyncio.Future[bool]
    ) -> None:
        leads_still = self._quorum.leader_id == self._quorum.voter_id
        refused = leads_still and not future.cancelled() and not future.result()
        message = f"controller {voter_id} did not take the lead over in time" if refused else None
        self.send([FromController.TRANSFERRED, request_id, message])

    # -- proposals

    def _propose(
        self, sequence: int, future: asyncio.Future[Applied], charge: Charge | None = None
    ) -> None:
        self._under_way += 1
        if self._under_way == MAX_OUTSTANDING:
            self.pause_reading()
        future.add_done_callback(lambda future: self._answer(sequence, future, charge))

    def _answer(
        self, sequence: int, future: asyncio.Future[Applied], charge: Charge | None
    ) -> None:
        if self._under_way == MAX_OUTSTANDING:
            self.resume_reading()
        self._under_way -= 1
        if future.cancelled():
            return  # outcome unknown: the broker asks again
        error = future.exception()
        if error is None:
            _, index, result, _ = future.result()
        elif isinstance(error, ProposalRefusedError):
            index, result = _NO_INDEX, CommandResult(error.error, error.message, {})
        else:
            raise error
        wait = () if charge is None else (charge.wait_ms,)
        self.send([FromController.REPLY, sequence, index, *result, *wait])

    def _answer_barrier(self, request_id: int, future: asyncio.Future[int]) -> None:
        sound = not future.cancelled() and future.exception() is None
        self.send([FromController.BARRIER_DONE, request_id, future.result() if sound else None])

    # -- following

    def _follow(self, next_index: int) -> None:
        self._snapshot = None
        self.next_index = next_index
        self.advance()

    def stop_following(self) -> None:
        """This voter doesn't lead: the broker will follow another one."""
        self.next_index = self._snapshot = None

    def drained(self) -> None:
        self.advance()

    def advance(self) -> None:
        """Sends what the broker lacks until it's up to date or must read first."""
        while not self.is_paused and self.next_index is not None:
            if self._snapshot is not None:
                self._send_chunk(self._snapshot)
                continue
            if self.next_index > self._quorum.applied_index:
                return
            entries = self._quorum.entries_from(self.next_index, CHUNK_SIZE_BYTES)
            if entries is None:
                self._snapshot = self._quorum.snapshot()
                self._snapshot_position = 0
                continue
            self.send_packed(_pack_committed(entries))
            self.next_index += len(entries)

    def _send_chunk(self, snapshot: MachineSnapshot) -> None:
        position = self._snapshot_position
        size = len(snapshot.state)
        chunk = snapshot.state[position : position + CHUNK_SIZE_BYTES]
        self.send([FromController.SNAPSHOT, snapshot.index, size, position, chunk])
        self._snapshot_position += len(chunk)
        if self._snapshot_position == size:
            self._snapshot = None
            self.next_index = snapshot.index + 1
