"""What every consensus back-end does in the same way: take proposals, keep a replica, stop.

Rules:

* A command that this release doesn't know, or not at this metadata level, is refused; once it is
  committed, by a leader of a later release, it ends this voter.
* Proposals wait until the back-end's next turn on the event loop; those of one turn share a write.
* After `stop` nothing is proposed or answered any more; what was under way is cancelled (its
  outcome is unknown).
* An error that `port` does not foresee goes to `on_fatal` once everything is stopped.
* A folder belongs to the voters that it was first used with (`quorum.voters` in it names them).
  With another list two majorities could decide differently, or empty newcomers outvote the one that
  holds the data.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection
from pathlib import Path
from time import perf_counter

from kraftpy.metrics.instruments import REQUEST_BUCKETS, Histogram
from kraftpy.protocol.errors import ErrorCode
from kraftpy.quorum.files import FileLayer
from kraftpy.quorum.forking import Helper
from kraftpy.quorum.journal import MAX_BATCH_SIZE_BYTES
from kraftpy.quorum.port import (
    MAX_COMMAND_SIZE_BYTES,
    Applied,
    ApplyListener,
    Entry,
    MachineSnapshot,
    MachineType,
    ProposalRefusedError,
    StateMachine,
)
from kraftpy.quorum.replica import Replica
from kraftpy.quorum.snapshot import VOTERS_NAME
from kraftpy.quorum.state import command_of, type_of

Proposal = tuple[bytes, asyncio.Future[Applied]]


class VotersChangedError(Exception):
    """The folder belongs to other voters; says which and what to do."""


class Voter:
    """The common part of a `port.Quorum`; construct it on its event loop."""

    def __init__(
        self,
        folder: Path,
        voter_id: int,
        voter_ids: Collection[int],
        machine_type: MachineType,
        on_fatal: Callable[[Exception], None],
        *,
        files: FileLayer | None,
        snapshot_interval_bytes: int,
        replay: bool,
    ) -> None:
        self.voter_id = voter_id
        self._on_fatal = on_fatal
        self._loop = asyncio.get_running_loop()
        self._replica = Replica(
            folder,
            machine_type,
            files or FileLayer(),
            Helper(self._loop, "kraftpy-snap"),
            self._fail,
            replay=replay,
            snapshot_interval_bytes=snapshot_interval_bytes,
        )
        try:
            _claim_folder(
                folder, voter_ids, files or FileLayer(), new=self._replica.journal.last_index == 0
            )
        except BaseException:
            self._replica.close()
            raise
        self._pending: list[Proposal] = []
        self._barriers: list[asyncio.Future[int]] = []
        self._turn_scheduled = False
        self._stopped = False
        self.commits = Histogram(REQUEST_BUCKETS)

    @property
    def applied_index(self) -> int:
        return self._replica.applied_index

    @property
    def last_index(self) -> int:
        """Index of the last entry in this voter's journal."""
        return self._replica.journal.last_index

    @property
    def voted_for(self) -> int | None:
        """Who got this voter's vote in its term."""
        return self._replica.journal.voted_for

    @property
    def fsyncs(self) -> Histogram:
        """What the fsyncs of this voter's journal took."""
        return self._replica.journal.fsyncs

    @property
    def machine(self) -> StateMachine:
        """See `port.Quorum.machine`."""
        return self._replica.state.machine

    def on_apply(self, listener: ApplyListener) -> None:
        """See `port.Quorum.on_apply`."""
        self._replica.on_apply(listener)

    def snapshot(self) -> MachineSnapshot:
        """See `port.Quorum.snapshot`."""
        return self._replica.snapshot()

    def entries_from(self, index: int, max_bytes: int) -> list[tuple[Entry, bool]] | None:
        """See `port.Quorum.entries_from`."""
        return self._replica.entries_from(index, max_bytes)

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
        elif (refusal := self._refusal() or self._unknown(command)) is not None:
            future.set_exception(refusal)
        else:
            started_s = perf_counter()
            future.add_done_callback(lambda future: self._note_commit(future, started_s))
            self._pending.append((command, future))
            self._schedule_turn()
        return future

    def stop(self) -> None:
        """Closes the journal; what is not committed yet is cancelled (outcome unknown)."""
        if self._stopped:
            return
        self._stopped = True
        for _, future in self._pending:
            future.cancel()
        for barrier in self._barriers:
            barrier.cancel()
        self._replica.close()

    def _note_commit(self, future: asyncio.Future[Applied], started_s: float) -> None:
        if not future.cancelled() and future.exception() is None:
            self.commits.observe(perf_counter() - started_s)

    # For the back-ends

    def _refusal(self) -> ProposalRefusedError | None:
        """Why no proposal can be taken now."""
        return None

    def _unknown(self, command: bytes) -> ProposalRefusedError | None:
        """Why a command can't be let in that would stop this voter once it is committed."""
        why = self.machine.why_not(type_of(command), lambda: command_of(command))
        if why is None:
            return None
        return ProposalRefusedError(
            ErrorCode.UNSUPPORTED_VERSION, f"controller {self.voter_id} {why}"
        )

    def _turn(self) -> None:
        raise NotImplementedError

    def _schedule_turn(self) -> None:
        if not self._turn_scheduled:
            self._turn_scheduled = True
            self._loop.call_soon(self._take_turn)

    def _take_turn(self) -> None:
        self._turn_scheduled = False
        if not self._stopped:
            self._turn()

    def _take_batch(self) -> list[Proposal]:
        """The oldest pending proposals, as many as one write takes."""
        count = size_bytes = 0
        for command, _ in self._pending:
            size_bytes += len(command)
            if size_bytes > MAX_BATCH_SIZE_BYTES:
                break
            count += 1
        batch, self._pending = self._pending[:count], self._pending[count:]
        return batch

    def _fail(self, error: Exception) -> None:
        self.stop()
        self._on_fatal(error)


def _claim_folder(folder: Path, voter_ids: Collection[int], files: FileLayer, *, new: bool) -> None:
    """Raises `VotersChangedError` if the folder is other voters'; note these in a new one."""
    path = folder / VOTERS_NAME
    given = ",".join(map(str, sorted(voter_ids)))
    if path.exists():
        known = path.read_text().strip()
    else:
        # a lone voter's folder may be older than this file
        known = given if new or len(voter_ids) == 1 else "one voter"
        if known == given:
            temporary = path.with_name(path.name + ".tmp")
            fd = files.create(temporary)
            try:
                files.write(fd, given.encode() + b"\n", 0)
                files.datasync(fd)
            finally:
                os.close(fd)
            files.replace(temporary, path)
    if known != given:
        raise VotersChangedError(
            f"{folder} belongs to a quorum of {known}, and controller.quorum.voters now names "
            f"{given}. Set it to what it was; the voters of a quorum can't be changed. A new "
            "quorum starts with empty folders"
        )
