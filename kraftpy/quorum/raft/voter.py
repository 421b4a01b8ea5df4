"""The consensus back-end of a quorum with several voters.

`node.RaftNode` decides; this drives it on the event loop and answers proposals. Rules:

* Everything that arrives in one iteration of the loop is handled in one turn: one write, one
  fdatasync.
* A leader's entries leave before its own fdatasync, so all voters' run at the same time. While the
  disk is busy, that one runs in a thread of its own: however long it takes, heartbeats go on, and
  nobody stands for election. The thread sits in two system calls and nobody else waits for it.
  With a quick disk that would only be one more switch for a busy processor to make.
* Only a leader takes proposals. When it loses the lead, proposals in its log are cancelled (they
  may still be committed by the next leader), the others are refused.
* A barrier is an entry: its commitment proves that nobody else led when it was asked for.
* A full disk stops this voter as any other failure of the disk does: the others go on without it.
* Late timers don't count as silence of the leader: what it sent may just not have been read yet.
"""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kraftpy.core.metadata import levels
from kraftpy.protocol.errors import ErrorCode
from kraftpy.quorum.credentials import Credentials
from kraftpy.quorum.files import FileLayer
from kraftpy.quorum.journal import JournalFailedError, JournalFullError
from kraftpy.quorum.port import (
    Applied,
    LeaderListener,
    MachineType,
    Peer,
    PeerConnection,
    ProposalRefusedError,
    Role,
    VoterState,
)
from kraftpy.quorum.raft import library
from kraftpy.quorum.raft.bridge import HEARTBEAT_S
from kraftpy.quorum.raft.log import Sync
from kraftpy.quorum.raft.messages import MessageError
from kraftpy.quorum.raft.node import RaftNode
from kraftpy.quorum.raft.peers import Peers
from kraftpy.quorum.replica import SNAPSHOT_INTERVAL_BYTES
from kraftpy.quorum.voter import Voter

TRANSFER_TIMEOUT_S = 1.0
SLOW_SYNC_S = 0.005
SLOW_PERIOD_S = 10.0
"""A write that took longer than the one shows that the disk is busy, for so long at least."""


class RaftVoter(Voter):
    """A `port.Quorum`; construct it on its event loop.

    `voters` maps the ids of all voters to the host and port of their controller listeners.
    `forced`: this one votes though its folder is empty. Raises what `snapshot.recover` raises,
    `VotersChangedError` and `LibraryUnsuitable`.
    """

    def __init__(
        self,
        folder: Path,
        voter_id: int,
        voters: Mapping[int, tuple[str, int]],
        credentials: Credentials,
        machine_type: MachineType,
        on_fatal: Callable[[Exception], None],
        *,
        files: FileLayer | None = None,
        snapshot_interval_bytes: int = SNAPSHOT_INTERVAL_BYTES,
        forced: bool = False,
    ) -> None:
        assert voter_id in voters
        super().__init__(
            folder,
            voter_id,
            voters,
            machine_type,
            on_fatal,
            files=files,
            snapshot_interval_bytes=snapshot_interval_bytes,
            replay=False,
        )
        self._voters = dict(voters)
        # Each with what it has been told.
        self._leader_listeners: dict[LeaderListener, tuple[int | None, int] | None] = {}
        self._proposed: dict[int, asyncio.Future[Applied]] = {}
        self._barriers_proposed: dict[int, list[asyncio.Future[int]]] = {}
        self._transfer: _Transfer | None = None
        self._led_term = -1
        self._sync_scheduled = False
        self._disk_slow_until = 0.0
        try:
            self._node = RaftNode(
                voter_id,
                voters,
                self._replica,
                self._send,
                random.SystemRandom(),
                forced=forced,
            )
        except BaseException:
            self._replica.close()
            raise
        self._peers = Peers(voter_id, voters, credentials, self)
        self._due = self._loop.time()
        self._timer = self._loop.call_soon(self._timed)

    # -- what holds

    @property
    def voters(self) -> Mapping[int, tuple[str, int]]:
        return self._voters

    @property
    def role(self) -> Role:
        if self._node.is_open:
            return Role.LEADER
        if not self._node.takes_part():
            return Role.OBSERVER
        return Role.CANDIDATE if self._node.stands or self._node.leads else Role.FOLLOWER

    @property
    def leader_id(self) -> int | None:
        if self._node.leads and not self._node.is_open:
            return None
        return self._node.leader

    @property
    def term(self) -> int:
        return self._node.term

    @property
    def committed_index(self) -> int:
        return self._node.committed_index

    def on_leader(self, listener: LeaderListener) -> None:
        """See `port.Quorum.on_leader`."""
        self._leader_listeners[listener] = None
        self._loop.call_soon(self._tell, listener)

    def voter_states(self) -> list[VoterState]:
        """See `port.Quorum.voter_states`."""
        if not self._node.is_open:
            return []
        now, now_ms = library.now(), int(time.time() * 1000)
        states = []
        for voter_id in self._voters:
            if voter_id == self.voter_id:
                states.append(VoterState(voter_id, self._node.last_index + 1, now_ms, now_ms))
                continue
            progress = self._node.progress(voter_id)
            answered_ms, caught_up_ms = (
                -1 if at is None else now_ms - int((now - at) * 1000)
                for at in (progress.answered_at, progress.caught_up_at)
            )
            end = -1 if progress.probing else progress.match_index + 1
            states.append(VoterState(voter_id, end, answered_ms, caught_up_ms))
        return states

    def voter_levels(self) -> Mapping[int, int]:
        """See `port.Quorum.voter_levels`."""
        return {**self._peers.levels, self.voter_id: levels.LEVEL}

    # -- calls

    def barrier(self) -> asyncio.Future[int]:
        """See `port.Quorum.barrier`."""
        future: asyncio.Future[int] = self._loop.create_future()
        if self._stopped:
            future.cancel()
        elif (refusal := self._refusal()) is not None:
            future.set_exception(refusal)
        else:
            self._barriers.append(future)
            self._schedule_turn()
        return future

    def transfer_leadership(self, to: int | None = None) -> asyncio.Future[bool]:
        """See `port.Quorum.transfer_leadership`."""
        future: asyncio.Future[bool] = self._loop.create_future()
        if self._stopped or not self._node.leads or self._transfer is not None:
            future.set_result(False)
            return future
        reached = self._peers.connected
        named = to is not None
        if to is None and reached:
            to = max(reached, key=lambda voter_id: self._node.progress(voter_id).match_index)
        if to is None or to == self.voter_id or to not in self._voters:
            future.set_result(False)
            return future
        self._transfer = _Transfer(to, named, future, self._loop.time() + TRANSFER_TIMEOUT_S)
        self._schedule_turn()
        return future

    def accept_peer(self, introduction: Sequence[Any], connection: PeerConnection) -> Peer:
        """See `port.Quorum.accept_peer`."""
        if self._stopped:
            raise ValueError("this controller is stopping")
        return self._peers.accept(introduction, connection)

    def stop(self) -> None:
        """See `Voter.stop`."""
        if self._stopped:
            return
        self._timer.cancel()
        self._peers.close()
        self._lose_lead()
        with contextlib.suppress(JournalFailedError, JournalFullError):  # who waits for it is told
            self._node.settle()
        super().stop()

    # What the connections tell (`peers.PeerOwner`)

    def peer_connected(self, voter_id: int) -> None:
        """A connection with another voter is up."""
        self._node.connected(voter_id)
        self._schedule_turn()

    def peer_disconnected(self, voter_id: int) -> None:
        """It has ended."""
        if not self._stopped:
            self._node.disconnected(voter_id)
            transfer = self._transfer
            if transfer is not None and transfer.to == voter_id and not transfer.named:
                self._end_transfer(transfer, False)
            self._schedule_turn()

    def peer_received(self, voter_id: int, message: Any) -> None:
        """A message came; raises `ValueError` if no voter sends such a one."""
        if self._stopped:
            return
        try:
            self._node.receive(voter_id, message)
        except MessageError:
            raise
        except Exception as error:  # fail-stop: see node.py
            self._fail(error)
            return
        self._schedule_turn()

    def _send(self, voter_id: int, message: list[Any]) -> None:
        self._peers.send(voter_id, message)

    # -- turns

    def _timed(self) -> None:
        late_s = self._loop.time() - self._due
        if late_s > HEARTBEAT_S:
            self._node.stalled(late_s)
        self._due = self._loop.time() + HEARTBEAT_S
        self._timer = self._loop.call_at(self._due, self._timed)
        if self._node.is_due:
            self._take_turn()

    def _turn(self) -> None:
        try:
            self._follow_lead()  # before others' entries are taken for this voter's
            self._answer(self._node.tick())
            self._follow_lead()
            if self._node.leads:
                transfer = self._transfer
                if transfer is None or transfer.to not in self._peers.connected:
                    self._append()
                if transfer is not None:
                    self._advance_transfer(transfer)
            self._node.replicate()
            if self._node.must_flush:
                self._node.flush()
            elif self._node.unsynced and not self._sync_scheduled:
                self._sync_scheduled = True
                self._loop.call_soon(self._start_sync)
            if self._replica.applied_index < self._node.committed_index:
                self._schedule_turn()
        except Exception as error:  # fail-stop: see node.py
            self._fail(error)

    def _start_sync(self) -> None:
        """After the loop has written what the turn sent."""
        self._sync_scheduled = False
        sync = None if self._stopped else self._node.start_sync()
        if sync is None:
            return
        if self._loop.time() < self._disk_slow_until:
            with contextlib.suppress(RuntimeError):  # a limit of threads: no reason to stop
                _thread.start_new_thread(self._sync, (sync,))
                return
        self._sync_now(sync)
        self._synced(sync)

    def _sync(self, sync: Sync) -> None:
        """What the thread does."""
        self._sync_now(sync)
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._synced, sync)

    def _sync_now(self, sync: Sync) -> None:
        started = self._loop.time()
        sync.run()
        ended = self._loop.time()
        if ended - started > SLOW_SYNC_S:
            self._disk_slow_until = ended + SLOW_PERIOD_S

    def _synced(self, sync: Sync) -> None:
        if not self._stopped:
            try:
                self._node.synced(sync)
            except Exception as error:  # fail-stop: see node.py
                self._fail(error)
                return
            self._schedule_turn()

    def _append(self) -> None:
        batch = self._take_batch()
        barriers, self._barriers = self._barriers, []
        commands = [command for command, _ in batch]
        if barriers and not commands:
            commands.append(b"")
        if not commands:
            return
        last = self._node.append(commands)
        for index, (_, future) in enumerate(batch, last - len(commands) + 1):
            self._proposed[index] = future
        if barriers:
            self._barriers_proposed[last] = barriers
        if self._pending:
            self._schedule_turn()

    def _answer(self, applied: Sequence[Applied]) -> None:
        if not self._proposed and not self._barriers_proposed:
            return
        for one in applied:
            future = self._proposed.pop(one.entry.index, None)
            if future is not None and not future.done():
                future.set_result(one)
            for barrier in self._barriers_proposed.pop(one.entry.index, ()):
                if not barrier.done():
                    barrier.set_result(self.applied_index)

    # -- the lead

    def _refusal(self) -> ProposalRefusedError | None:
        if self._node.leads:
            return None
        return ProposalRefusedError(
            ErrorCode.NOT_CONTROLLER,
            f"controller {self.voter_id} does not lead the quorum"
            + ("" if self._node.leader is None else f"; controller {self._node.leader} does"),
        )

    def _follow_lead(self) -> None:
        """Notices who leads now."""
        term = self._node.term if self._node.leads else -1
        if self._led_term not in (-1, term):
            self._lose_lead()
        self._led_term = term
        for listener in tuple(self._leader_listeners):
            self._tell(listener)

    def _tell(self, listener: LeaderListener) -> None:
        told = self.leader_id, self.term
        if self._leader_listeners[listener] != told:
            self._leader_listeners[listener] = told
            listener(*told)

    def _lose_lead(self) -> None:
        for future in self._proposed.values():
            future.cancel()
        for barriers in self._barriers_proposed.values():
            for barrier in barriers:
                barrier.cancel()
        self._proposed.clear()
        self._barriers_proposed.clear()
        refusal = self._refusal()
        if refusal is not None:
            waiting: list[asyncio.Future[Any]] = [future for _, future in self._pending]
            waiting += self._barriers
            for future in waiting:
                if not future.done():
                    future.set_exception(refusal)
            self._pending.clear()
            self._barriers.clear()
        if self._transfer is not None:
            self._end_transfer(self._transfer, self._transfer.told and refusal is not None)

    def _advance_transfer(self, transfer: _Transfer) -> None:
        if self._loop.time() > transfer.deadline:
            self._end_transfer(transfer, False)
        elif not transfer.told and transfer.to in self._peers.connected:
            transfer.told = self._node.transfer(transfer.to)

    def _end_transfer(self, transfer: _Transfer, happened: bool) -> None:
        self._transfer = None
        if not transfer.future.done():
            transfer.future.set_result(happened)
        self._schedule_turn()


class _Transfer:
    """A transfer of the lead that is under way; `named` if the caller chose the target."""

    def __init__(self, to: int, named: bool, future: asyncio.Future[bool], deadline: float) -> None:
        self.to = to
        self.named = named
        self.future = future
        self.deadline = deadline
        self.told = False
