"""The consensus back-end of a quorum with one voter: a durable journal, always leader.

Each start opens a new term (`journal.term + 1`, this voter's vote for itself) with an empty entry,
as a Raft leader does, so the term is a controller epoch from the first issue on.

Rules:

* All proposals of one iteration of the event loop share one write and one fdatasync, in the loop:
  everybody who is served here waits for that fdatasync anyway.  They are applied, shown to the
  `on_apply` listeners and answered after it, in log order.
* A full disk refuses the proposals of that write and nothing else.  Any other disk error, and any
  exception while applying, goes to `on_fatal`, and nothing more is committed.
* A snapshot is written by a forked helper: it sees a consistent copy of the memory for the price of
  a fork (a few ms; this process has no threads), takes as long as it takes without delaying a
  commit, and dies with its parent.  Small states go the same way: one way, and no fsync of a
  snapshot ever stands between a proposal and its answer.
* When the helper has verified its file, the journal drops what the snapshot *before* covers (see
  `snapshot.py`: the newest one is never the only one).

The Raft back-end adds, behind the same port: votes and pre-votes, replication to followers and
their conflict truncation, commit by majority, leader changes (`on_leader`, NOT_CONTROLLER,
cancelled futures), barriers that commit an entry, and snapshots that arrive from the leader.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kraftpy.protocol.errors import ErrorCode
from kraftpy.quorum.files import FileLayer
from kraftpy.quorum.forking import become_child
from kraftpy.quorum.journal import MAX_BATCH_SIZE_BYTES, JournalFailedError, JournalFullError
from kraftpy.quorum.port import (
    MAX_COMMAND_SIZE_BYTES,
    Applied,
    ApplyListener,
    Entry,
    LeaderListener,
    MachineSnapshot,
    MachineType,
    Peer,
    PeerConnection,
    ProposalRefusedError,
    Role,
    StateMachine,
    VoterState,
)
from kraftpy.quorum.snapshot import (
    Snapshot,
    SnapshotDamagedError,
    SnapshotFullError,
    SnapshotStore,
    recover,
)

__all__ = ["SNAPSHOT_INTERVAL_BYTES", "SingleVoter"]

logger = logging.getLogger(__name__)

SNAPSHOT_INTERVAL_BYTES = 4 << 20
"""Bytes of commands between snapshots (or the size of the last snapshot if that is larger)."""
_ENTRY_OVERHEAD_BYTES = 16
_HELPER_OK, _HELPER_FULL, _HELPER_DISK_FAILED = 0, 1, 2


class SingleVoter:
    """A `port.Quorum`; construct it on its event loop.

    Raises what `snapshot.recover` raises, and `JournalFullError` if not even the new term fits.
    """

    def __init__(
        self,
        folder: Path,
        voter_id: int,
        machine_type: MachineType,
        on_fatal: Callable[[Exception], None],
        *,
        address: tuple[str, int] = ("127.0.0.1", 0),
        files: FileLayer | None = None,
        snapshot_interval_bytes: int = SNAPSHOT_INTERVAL_BYTES,
    ) -> None:
        self.voter_id = voter_id
        self._address = address
        self._on_fatal = on_fatal
        self._snapshot_interval_bytes = snapshot_interval_bytes
        self._loop = asyncio.get_running_loop()
        self._store = SnapshotStore(folder, files or FileLayer())
        self._journal, self._state, self._kept_after, self._stale = recover(
            folder, machine_type, files or FileLayer()
        )
        self._snapshot_size_bytes = 0
        self._new_bytes = sum(
            len(entry.command) + _ENTRY_OVERHEAD_BYTES
            for entry in self._journal.entries_from(self._kept_after + 1, 1 << 62) or ()
        )
        self._apply_listeners: list[ApplyListener] = []
        self._pending: list[tuple[bytes, asyncio.Future[Applied]]] = []
        self._barriers: list[asyncio.Future[int]] = []
        self._flush_scheduled = False
        self._stopped = False
        self._disk_full = False
        self._helper: tuple[int, int] | None = None
        try:
            self._journal.set_vote(max(self._journal.term, self._journal.last_term) + 1, voter_id)
            self._commit([(b"", self._loop.create_future())])
        except BaseException:
            self._journal.close()
            raise

    @property
    def voters(self) -> Mapping[int, tuple[str, int]]:
        return {self.voter_id: self._address}

    @property
    def role(self) -> Role:
        return Role.LEADER

    @property
    def leader_id(self) -> int | None:
        return self.voter_id

    @property
    def term(self) -> int:
        return self._journal.term

    @property
    def applied_index(self) -> int:
        return self._state.applied_index

    @property
    def committed_index(self) -> int:
        return self._journal.last_index

    @property
    def machine(self) -> StateMachine:
        """See `port.Quorum.machine`."""
        return self._state.machine

    # Proposals

    def propose(self, command: bytes) -> asyncio.Future[Applied]:
        """See `port.Quorum.propose`."""
        future: asyncio.Future[Applied] = self._loop.create_future()
        if self._stopped:
            future.cancel()
        elif not 0 < len(command) <= MAX_COMMAND_SIZE_BYTES:
            future.set_exception(
                ProposalRefusedError(
                    ErrorCode.INVALID_REQUEST,
                    f"a command of {len(command)} bytes; the quorum takes up to "
                    f"{MAX_COMMAND_SIZE_BYTES}: split it",
                )
            )
        else:
            self._pending.append((command, future))
            self._schedule_flush()
        return future

    def barrier(self) -> asyncio.Future[int]:
        """See `port.Quorum.barrier`: a lone voter need only finish the write it's about to make."""
        future: asyncio.Future[int] = self._loop.create_future()
        if self._stopped:
            future.cancel()
        elif self._pending:
            self._barriers.append(future)
        else:
            future.set_result(self.applied_index)
        return future

    def on_apply(self, listener: ApplyListener) -> None:
        """See `port.Quorum.on_apply`."""
        self._apply_listeners.append(listener)

    def on_leader(self, listener: LeaderListener) -> None:
        """See `port.Quorum.on_leader`: a lone voter leads one term for all of its life."""
        self._loop.call_soon(listener, self.voter_id, self.term)

    def voter_states(self) -> list[VoterState]:
        """See `port.Quorum.voter_states`."""
        now_ms = int(time.time() * 1000)
        return [VoterState(self.voter_id, self._journal.last_index + 1, now_ms, now_ms)]

    def transfer_leadership(self, to: int | None = None) -> asyncio.Future[bool]:
        """See `port.Quorum.transfer_leadership`: there is nobody to lead instead."""
        future: asyncio.Future[bool] = self._loop.create_future()
        future.set_result(False)
        return future

    def accept_peer(self, introduction: Sequence[Any], connection: PeerConnection) -> Peer:
        """See `port.Quorum.accept_peer`."""
        raise ValueError(
            f"it introduced itself as a voter, but controller {self.voter_id} is the only voter "
            "in its controller.quorum.voters; give all nodes the same list"
        )

    def stop(self) -> None:
        """Close the journal; what is not committed yet is cancelled (outcome unknown)."""
        if self._stopped:
            return
        self._stopped = True
        for _, future in self._pending:
            future.cancel()
        for barrier in self._barriers:
            barrier.cancel()
        if self._helper is not None:
            pid, pidfd = self._helper
            self._loop.remove_reader(pidfd)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            os.close(pidfd)
        self._journal.close()

    def _schedule_flush(self) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        if self._stopped:
            return
        count = size_bytes = 0
        for command, _ in self._pending:
            size_bytes += len(command)
            if size_bytes > MAX_BATCH_SIZE_BYTES:
                break
            count += 1
        batch, self._pending = self._pending[:count], self._pending[count:]
        try:
            self._commit(batch)
            self._disk_full = False
        except JournalFullError as error:
            if not self._disk_full:
                logger.error("refusing metadata changes until there is space: %s", error)
            self._disk_full = True
            for _, future in batch:
                if not future.done():
                    refusal = ProposalRefusedError(ErrorCode.KAFKA_STORAGE_ERROR, str(error))
                    future.set_exception(refusal)
        except Exception as error:  # fail-stop: see the rules above
            for _, future in batch:
                future.cancel()
            self._fail(error)
            return
        if self._pending:
            self._schedule_flush()
            return
        for barrier in self._barriers:
            if not barrier.done():
                barrier.set_result(self.applied_index)
        self._barriers.clear()

    def _commit(self, batch: list[tuple[bytes, asyncio.Future[Applied]]]) -> None:
        index, term = self._journal.last_index, self._journal.term
        entries = [Entry(index + n, term, command) for n, (command, _) in enumerate(batch, 1)]
        self._journal.append(entries)
        applied = [self._state.apply(entry) for entry in entries]
        for one in applied:
            self._new_bytes += len(one.entry.command) + _ENTRY_OVERHEAD_BYTES
            if not one.fresh:
                self._stale.add(one.entry.index)
        for listener in self._apply_listeners:
            listener(applied)
        for one, (_, future) in zip(applied, batch, strict=True):
            if not future.done():
                future.set_result(one)
        if self._helper is None and self._new_bytes >= max(
            self._snapshot_interval_bytes, self._snapshot_size_bytes
        ):
            self._start_snapshot()

    def _fail(self, error: Exception) -> None:
        self.stop()
        self._on_fatal(error)

    # Catching up

    def snapshot(self) -> MachineSnapshot:
        """See `port.Quorum.snapshot`: the newest file if there is one, else the state in memory."""
        names = self._store.list()
        if names and names[-1].index >= self._kept_after:
            try:
                snapshot = self._store.load(names[-1].path)
                return MachineSnapshot(snapshot.index, snapshot.machine)
            except (SnapshotDamagedError, OSError) as error:
                logger.error("%s; sending the state in memory instead; check the disk", error)
        return MachineSnapshot(self.applied_index, self._state.pack_machine())

    def entries_from(self, index: int, max_bytes: int) -> list[tuple[Entry, bool]] | None:
        """See `port.Quorum.entries_from`."""
        if index <= self._kept_after:
            return None
        entries = self._journal.entries_from(index, max_bytes)
        if entries is None:
            return None
        return [(entry, entry.index not in self._stale) for entry in entries]

    # Snapshots

    def _start_snapshot(self) -> None:
        self._new_bytes = 0
        parent = os.getpid()
        index = self.applied_index
        pid = os.fork()
        if pid == 0:
            self._write_snapshot_and_exit(parent, index)
        pidfd = os.pidfd_open(pid)
        self._helper = pid, pidfd
        self._loop.add_reader(pidfd, self._snapshot_done)

    def _write_snapshot_and_exit(self, parent: int, index: int) -> None:
        """All that the helper process does; never returns."""
        code = 70
        try:
            become_child(parent, "kraftpy-snap", ())
            term = self._journal.term_at(index)
            state = self._state
            self._store.write(Snapshot(index, term, state.pack_sessions(), state.pack_machine()))
            code = _HELPER_OK
        except SnapshotFullError as error:
            logger.error("%s; the journal is kept", error)
            code = _HELPER_FULL
        except JournalFailedError as error:
            logger.critical("%s", error)
            code = _HELPER_DISK_FAILED
        except Exception:
            logger.exception("could not write a snapshot")
        finally:
            os._exit(code)

    def _snapshot_done(self) -> None:
        assert self._helper is not None
        pid, pidfd = self._helper
        self._helper = None
        self._loop.remove_reader(pidfd)
        os.close(pidfd)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        try:
            if code == _HELPER_OK:
                self._drop_covered()
            elif code == _HELPER_DISK_FAILED:
                raise JournalFailedError("the disk failed while a snapshot was written")
            else:
                logger.error("the snapshot helper ended with %d; the journal is kept", code)
        except JournalFullError as error:
            logger.error("%s; the old journal stays in use", error)
        except (JournalFailedError, OSError) as error:
            self._fail(error)

    def _drop_covered(self) -> None:
        names = self._store.list()
        self._snapshot_size_bytes = names[-1].path.stat().st_size
        if len(names) > 1 and names[-2].index > self._journal.base_index:
            self._journal = self._journal.compact(names[-2].index)
        self._kept_after = max(self._kept_after, self._journal.base_index)
        self._stale = {index for index in self._stale if index > self._kept_after}
        self._store.remove_old()
