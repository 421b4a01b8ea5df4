"""The consensus back-end of a quorum with one voter: a durable journal, always leader.

Each start opens a new term (`journal.term + 1`, this voter's vote for itself) with an empty entry,
as a Raft leader does, so the term is a controller epoch from the first issue on.

Rules:

* All proposals of one iteration of the event loop share one write and one fdatasync, in the loop:
  everybody who is served here waits for that fdatasync anyway. They are applied, shown to the
  `on_apply` listeners and answered after it, in log order.
* A full disk refuses the proposals of that write and nothing else. Any other disk error, and any
  exception while applying, goes to `on_fatal`, and nothing more is committed.

`raft.RaftVoter` is the back-end of a quorum of several.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kraftpy.core.metadata import levels
from kraftpy.protocol.errors import ErrorCode
from kraftpy.quorum.files import FileLayer
from kraftpy.quorum.journal import JournalFullError
from kraftpy.quorum.port import (
    Entry,
    LeaderListener,
    MachineType,
    Peer,
    PeerConnection,
    ProposalRefusedError,
    Role,
    VoterState,
)
from kraftpy.quorum.replica import SNAPSHOT_INTERVAL_BYTES
from kraftpy.quorum.voter import Proposal, Voter

logger = logging.getLogger(__name__)


class SingleVoter(Voter):
    """A `port.Quorum`; construct it on its event loop.

    Raises what `snapshot.recover` raises, `VotersChangedError`, and `JournalFullError` if not even
    the new term fits.
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
        super().__init__(
            folder,
            voter_id,
            [voter_id],
            machine_type,
            on_fatal,
            files=files,
            snapshot_interval_bytes=snapshot_interval_bytes,
            replay=True,
        )
        self._address = address
        self._disk_full = False
        journal = self._replica.journal
        try:
            journal.set_vote(max(journal.term, journal.last_term) + 1, voter_id)
            self._commit([(b"", self._loop.create_future())])
        except BaseException:
            self._replica.close()
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
        return self._replica.journal.term

    @property
    def committed_index(self) -> int:
        return self._replica.journal.last_index

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

    def on_leader(self, listener: LeaderListener) -> None:
        """See `port.Quorum.on_leader`: a lone voter leads one term for all of its life."""
        self._loop.call_soon(listener, self.voter_id, self.term)

    def voter_states(self) -> list[VoterState]:
        """See `port.Quorum.voter_states`."""
        now_ms = int(time.time() * 1000)
        return [VoterState(self.voter_id, self.committed_index + 1, now_ms, now_ms)]

    def voter_levels(self) -> Mapping[int, int]:
        """See `port.Quorum.voter_levels`."""
        return {self.voter_id: levels.LEVEL}

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

    def _turn(self) -> None:
        batch = self._take_batch()
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
            self._schedule_turn()
            return
        for barrier in self._barriers:
            if not barrier.done():
                barrier.set_result(self.applied_index)
        self._barriers.clear()

    def _commit(self, batch: list[Proposal]) -> None:
        journal = self._replica.journal
        index, term = journal.last_index, journal.term
        entries = [Entry(index + n, term, command) for n, (command, _) in enumerate(batch, 1)]
        journal.append(entries)
        for one, (_, future) in zip(self._replica.apply(entries), batch, strict=True):
            if not future.done():
                future.set_result(one)
