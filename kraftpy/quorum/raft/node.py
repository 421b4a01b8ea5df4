"""One Raft voter without sockets, timers or threads: pysyncobj's elections and commit rule
(`bridge.py`), with everything around them that would lose data or stall replaced: the log
(`log.py`), what is sent when (`progress.py`), snapshots, applying, proposals, pre-votes, and a
check of every message before pysyncobj sees it.

Rules:

* pysyncobj only sees an APPEND whose previous entry is in the log and whose entries are new. An
  outdated message can then neither shorten the log nor commit entries that it doesn't vouch for:
  the commit index is bounded by the last entry of the message itself.
* On a mismatch the follower says where to go on: where the term begins that differs.
* A voter stands for election only after a majority has said that it would vote for it (pre-vote):
  it has not heard of a leader for the least election timeout either. Hence one that was cut off
  or slow doesn't unseat a leader. As its term may be the higher one all the same, a message of a
  lower term is answered with HIGHER_TERM; otherwise the two would ignore each other for ever.
* A connection to the leader that breaks (a killed process closes its sockets) and isn't back within
  `LOST_MIN_S` to `LOST_MAX_S` counts as a leader not heard of. A false alarm costs nothing: the
  others refuse the pre-vote. A leader whose connections to a majority are broken for `LOST_MIN_S`
  gives up as well: whoever relies on its word would not notice that another one leads.
* Answers that take longer than they are waited for would never elect anybody: each round in vain,
  with a majority connected, doubles the time, up to `PATIENCE_MAX` times the first.
* Acknowledgements and votes leave in `flush`, after the log is durable. What promises nothing of
  the log leaves at once: a leader never waits for its disk to send something. pysyncobj counts the
  leader's own log as durable throughout, so it is shown no follower further than that is true.
* A voter that may lack what it has acknowledged takes no part in elections (`completeness.py`).
* An exception in here is final: the process stops (see `voter.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from random import Random
from typing import Any

from kraftpy.quorum.port import Applied, Entry
from kraftpy.quorum.raft import library
from kraftpy.quorum.raft.bridge import ELECTION_MIN_S, HEARTBEAT_S, Bridge
from kraftpy.quorum.raft.completeness import Completeness
from kraftpy.quorum.raft.incoming import IncomingSnapshot
from kraftpy.quorum.raft.log import RaftLog, Sync
from kraftpy.quorum.raft.messages import Kind, MessageError, Outcome, entries_of, pack_entries
from kraftpy.quorum.raft.progress import BATCH_BYTES, CHUNK_BYTES, Progress, SnapshotTransfer
from kraftpy.quorum.replica import Replica
from kraftpy.quorum.snapshot import SnapshotDamagedError

logger = logging.getLogger(__name__)

RETRY_MIN_S = 0.1
RETRY_MAX_S = 0.3
"""How long a candidate waits for votes before it tries again."""
FIRST_MIN_S = 0.02
FIRST_MAX_S = 0.12
"""How long a voter that has just started waits for a word from a leader."""
LOST_MIN_S = 0.06
LOST_MAX_S = 0.16
HANGING_DISK_S = 2.0
"""A leader whose disk doesn't come back for so long gives up the lead: it commits nothing."""
PRE_VOTE_S = 0.1
"""How long the answers to one round of pre-votes are waited for."""
PATIENCE_MAX = 16
APPLY_BYTES = 4 << 20
"""Commands applied in one tick, at most."""

Send = Callable[[int, list[Any]], None]


class RaftNode(Bridge):
    """The voter `voter_id` of `voters`; `send` takes a message for another one.

    The owner calls `receive`, `connected`, `disconnected` as things happen, then (once for many)
    `tick`, `append`, `replicate` and `flush`, and `tick` every `HEARTBEAT_S` if `is_due`.
    """

    def __init__(
        self,
        voter_id: int,
        voters: Collection[int],
        replica: Replica,
        send: Send,
        random: Random,
        *,
        forced: bool = False,
    ) -> None:
        self._voter_id = voter_id
        self._majority = len(voters) // 2 + 1
        self._replica = replica
        self._send = send
        self._random = random
        self._connected: set[int] = set()
        self._progress: dict[int, Progress] = {}
        self._number = 0
        self._opening_index = 0
        self._incoming: IncomingSnapshot | None = None
        self._heard_at = float("-inf")
        self._cut_off_at = float("inf")
        self._round = 0
        self._round_at = float("-inf")
        self._pre_votes: set[int] = set()
        self._votes: set[int] = set()
        self._patience = 1
        self._in_vain = False
        self._completeness = Completeness(voter_id, len(voters) - 1, replica, forced=forced)
        super().__init__(voter_id, voters, RaftLog(replica), replica.applied_index)
        self._leaderless_since = library.now()
        self._election_at = self._leaderless_since + random.uniform(FIRST_MIN_S, FIRST_MAX_S)

    # -- what holds

    @property
    def is_open(self) -> bool:
        """Whether it leads and has applied the entry that opened its term."""
        return self.leads and self._replica.applied_index >= self._opening_index

    @property
    def last_index(self) -> int:
        return self._log.last_index

    @property
    def must_flush(self) -> bool:
        """Whether messages wait for the log to be durable."""
        return bool(self._outbox)

    @property
    def unsynced(self) -> bool:
        return self._log.unsynced

    @property
    def is_due(self) -> bool:
        """Whether time alone may give something to do: not to one who just heard its leader."""
        return self.leads or library.now() - self._heard_at > 2 * HEARTBEAT_S

    def takes_part(self) -> bool:
        """Whether it may vote and stand."""
        return self._completeness.may_stand(self._log.last_index, self._leaderless_s())

    def _leaderless_s(self) -> float:
        return library.now() - self._leaderless_since

    @property
    def _is_cut_off(self) -> bool:
        """Whether too few connections are up for anything to be decided."""
        return len(self._connected) + 1 < self._majority

    def progress(self, voter_id: int) -> Progress:
        """What the leader knows of another voter."""
        return self._progress[voter_id]

    # -- what the owner calls

    def connected(self, voter_id: int) -> None:
        """A connection to another voter is up."""
        self._connected.add(voter_id)
        if not self._is_cut_off:
            self._cut_off_at = float("inf")
        self._see_connected(voter_id)
        if self._round_at > library.now() - self._pre_vote_s or self.leader is None:
            self._ask_pre_vote(voter_id)  # Or else it hears soon whether this one is complete.

    def disconnected(self, voter_id: int) -> None:
        """The connection has ended; messages under way are lost."""
        self._connected.discard(voter_id)
        if self._is_cut_off:
            self._cut_off_at = min(self._cut_off_at, library.now())
        self._see_disconnected(voter_id)
        if voter_id in self._progress:
            self._progress[voter_id].interrupted()
        if self._incoming is not None and self._incoming.leader == voter_id:
            self._incoming = None
        if self.leader == voter_id:
            wait_s = self._random.uniform(LOST_MIN_S, LOST_MAX_S)
            self._election_at = min(self._election_at, library.now() + wait_s)
            self._heard_at = float("-inf")

    def stalled(self, seconds: float) -> None:
        """This process did nothing for so long: what the leader sent meanwhile is yet unread."""
        self._election_at += seconds

    def tick(self) -> list[Applied]:
        """Does what is due; returns what was applied."""
        if self.leads and self._log.sync_age_s > HANGING_DISK_S:
            logger.error(
                "writing the journal has taken %.1f s; another voter may lead", self._log.sync_age_s
            )
            self._step_down()
        if self.leads and library.now() - self._cut_off_at > LOST_MIN_S:
            self._step_down()
        if self.leads:
            self._be_impatient()
            durable = self._log.durable_index
            for peer, progress in self._progress.items():
                self._show_match(peer, min(progress.match_index, durable))
        else:
            self._log.flush()
        self._applied: list[Applied] = []
        term = self.term
        self._onTick(0.0)
        if self.stands and self.term != term:
            wait_s = self._random.uniform(RETRY_MIN_S, RETRY_MAX_S)
            self._election_at = library.now() + wait_s * self._patience
        return self._applied

    def append(self, commands: Collection[bytes]) -> int:
        """As the leader, take commands into the log; returns the index of the last entry."""
        assert self.leads
        for command in commands:
            self._log.stage(Entry(self._log.last_index + 1, self.term, command))
        return self._log.last_index

    def replicate(self) -> None:
        """As the leader, send what followers lack and may be sent now."""
        if self.leads:
            for voter_id in self._connected:
                self._replicate(voter_id, beat=False)

    def flush(self) -> None:
        """Makes the log durable, then sends what waited for that."""
        self._log.flush()
        outbox, self._outbox = self._outbox, []
        for voter_id, message in outbox:
            if voter_id in self._connected:
                self._send(voter_id, message)

    def _say(self, voter_id: int, message: list[Any]) -> None:
        if voter_id in self._connected:
            self._send(voter_id, message)

    def start_sync(self) -> Sync | None:
        """As the leader, see `RaftLog.start_sync`."""
        return self._log.start_sync()

    def settle(self) -> None:
        """See `RaftLog.settle`."""
        self._log.settle()

    def synced(self, sync: Sync) -> None:
        """See `RaftLog.synced`."""
        self._log.synced(sync)

    def transfer(self, to: int) -> bool:
        """Tells `to` to stand for election if it holds the whole log; returns whether it was."""
        return self._call(to)

    def receive(self, sender: int, message: Any) -> None:
        """Takes a message; raises `MessageError` if it isn't one."""
        match message:
            case [Kind.APPEND, int(t), int(n), int(commit), int(prev), int(prev_t), list(packed)]:
                if prev < 0:
                    raise MessageError("it sent a negative index")
                self._append(sender, t, n, commit, prev, prev_t, entries_of(packed, prev + 1))
            case [Kind.APPENDED, int(t), int(n), int(next_index), int(outcome)]:
                self._appended(sender, t, n, next_index, outcome)
            case [Kind.HEARTBEAT, int(t), int(n)]:
                if self._hear(sender, t):
                    self._see_leader(sender, t)
                    self._answer(sender, n, self._log.last_index + 1, Outcome.ALIVE)
            case [Kind.SNAPSHOT, int(t), int(n), int(index), int(et), int(size), int(at), bytes(d)]:
                if self._hear(sender, t):
                    self._see_leader(sender, t)
                    self._snapshot_chunk(
                        sender, n, IncomingSnapshot(sender, index, et, size, bytearray(d)), at
                    )
            case [Kind.SNAPSHOT_AT, int(t), int(n), int(index), int(position)]:
                self._snapshot_at(sender, t, n, index, position)
            case [Kind.PRE_VOTE, int(t), int(number), int(index), int(last_term)]:
                self._completeness.said(sender, number)
                self._pre_vote_asked(sender, t, number, index, last_term)
            case [Kind.PRE_VOTED, int(t), int(number)]:
                if number == self._round_number and t == self.term + 1:
                    self._pre_votes.add(sender)
            case [Kind.VOTE, int(t), int(index), int(last_term)]:
                self._vote_asked(sender, t, index, last_term)
            case [Kind.VOTED, int(t)]:
                if t == self.term and self.stands and sender not in self._votes:
                    self._votes.add(sender)
                    self._see_vote(sender, t)
            case [Kind.HIGHER_TERM, int(t)]:
                if t > self.term:
                    self._follow_term(t)
            case [Kind.TIMEOUT_NOW, int(t)]:
                self._see_call(sender, t)
            case _:
                raise MessageError("it sent a message of unknown kind or shape")

    # -- elections

    @property
    def _pre_vote_s(self) -> float:
        return PRE_VOTE_S * self._patience

    def _be_impatient(self) -> None:
        """Somebody leads: the next election begins with the shortest times."""
        self._patience, self._in_vain = 1, False

    def _may_stand(self) -> bool:
        now = library.now()
        if self._is_called:
            return self._stand()
        self._forget_leader()  # brokers are told that there is none
        if now - self._round_at < self._pre_vote_s:
            if len(self._pre_votes) + 1 >= self._majority and self.takes_part():
                return self._stand()
            return False
        if not self._is_cut_off:
            if self._in_vain:
                self._patience = min(2 * self._patience, PATIENCE_MAX)
            self._in_vain = True
        self._round += 1
        self._round_at = now
        self._pre_votes.clear()
        for voter_id in self._connected:
            self._ask_pre_vote(voter_id)
        return False

    def _stand(self) -> bool:
        self._round_at = float("-inf")
        self._pre_votes.clear()
        self._votes.clear()
        return True

    @property
    def _round_number(self) -> int:
        return self._completeness.round_number(self._round)

    def _ask_pre_vote(self, voter_id: int) -> None:
        message = [
            Kind.PRE_VOTE,
            self.term + 1,
            self._round_number,
            self._log.last_index,
            self._log.last_term,
        ]
        self._outbox.append((voter_id, message))

    def _pre_vote_asked(
        self, sender: int, term: int, number: int, last_index: int, last_term: int
    ) -> None:
        if term <= self.term:
            self._say(sender, [Kind.HIGHER_TERM, self.term])
            return
        now = library.now()
        theirs = (last_term, last_index)
        mine = (self._log.last_term, self._log.last_index)
        rival = now - self._round_at < self._pre_vote_s / 2 and (mine, self._voter_id) > (
            theirs,
            sender,
        )
        silent = now - self._heard_at > ELECTION_MIN_S * 0.9
        if (
            theirs >= mine
            and not rival
            and silent
            and not self.leads
            and self._may_vote(last_index)
        ):
            self._outbox.append((sender, [Kind.PRE_VOTED, term, number]))

    def _may_vote(self, last_index: int) -> bool:
        """Whether it may vote for one whose log ends with `last_index`."""
        return self._completeness.may_vote(last_index, self._log.last_index, self._leaderless_s())

    def _vote_asked(self, sender: int, term: int, last_index: int, last_term: int) -> None:
        if term < self.term:
            self._say(sender, [Kind.HIGHER_TERM, self.term])
            return
        if term > self.term:
            self._follow_term(term)
        if not self._may_vote(last_index):
            return
        self._see_vote_asked(sender, term, last_index, last_term)

    def _begin_lead(self) -> None:
        last_index = self._log.last_index
        self._opening_index = last_index + 1
        self._progress = {peer: Progress(last_index + 1) for peer in self._nodes}
        self._incoming = None

    def _hear(self, sender: int, term: int) -> bool:
        """A leader spoke; whether it still counts."""
        if term < self.term:
            self._say(sender, [Kind.HIGHER_TERM, self.term])
            return False
        if self.leads and term == self.term:
            raise RuntimeError(f"voter {sender} leads term {term} too")
        self._heard_at = self._leaderless_since = library.now()
        self._be_impatient()
        return True

    # -- following

    def _append(
        self,
        sender: int,
        term: int,
        number: int,
        commit: int,
        previous: int,
        previous_term: int,
        entries: list[Entry],
    ) -> None:
        if not self._hear(sender, term):
            return
        if commit > 0:
            self._completeness.committed(sender)
        log, committed = self._log, self.committed_index
        if previous < committed:  # what is committed here, the leader has as well
            theirs = entries[committed - previous - 1 : committed - previous]
            if theirs and theirs[0].term != log.term_at(committed):
                log.cut(committed, committed)
            entries = entries[committed - previous :]
            previous, previous_term = committed, log.term_at(committed)
        if previous > log.last_index:
            self._see_leader(sender, term)
            self._answer(sender, number, log.last_index + 1, Outcome.MISMATCHED)
            return
        if log.term_at(previous) != previous_term:
            self._see_leader(sender, term)
            go_on_from = log.first_of_term(previous, committed)
            self._answer(sender, number, go_on_from, Outcome.MISMATCHED)
            return
        known = 0
        for entry in entries:
            if entry.index > log.last_index or log.term_at(entry.index) != entry.term:
                break
            known += 1
        if known:
            previous = entries[known - 1].index
            entries = entries[known:]
        if entries and entries[0].index <= log.last_index:
            log.cut(entries[0].index, committed)
        self._see_entries(sender, term, number, commit, previous, entries)
        if log.base_index <= commit <= log.last_index:
            self._vouched_for(commit)

    def _vouched_for(self, commit: int) -> None:
        """This voter has all that its leader knows to be committed. Until it has committed an
        entry of its own term, a leader doesn't know what is."""
        if self._completeness.is_blank and self._log.term_at(commit) == self.term:
            self._log.flush()
            self._completeness.completed()

    def _answer(self, leader: int, number: int, next_index: int, outcome: Outcome) -> None:
        self._outbox.append((leader, [Kind.APPENDED, self.term, number, next_index, outcome]))

    def _snapshot_chunk(
        self, leader: int, number: int, chunk: IncomingSnapshot, position: int
    ) -> None:
        if chunk.index <= self.committed_index:
            self._answer(leader, number, self.committed_index + 1, Outcome.MATCHED)
            return
        incoming = self._incoming
        if position == 0:
            self._incoming = incoming = chunk
        elif incoming is None or not incoming.goes_on_with(chunk, position):
            self._incoming = None
            self._ask_chunk(leader, number, chunk.index, 0)
            return
        else:
            incoming.data += chunk.data
        if not incoming.is_whole():
            self._ask_chunk(leader, number, incoming.index, len(incoming.data))
            return
        self._incoming = None
        try:
            self._log.flush()
            self._replica.install(incoming.index, incoming.term, bytes(incoming.data))
        except SnapshotDamagedError as error:
            logger.error("refused a snapshot from voter %d: %s", leader, error)
            self._ask_chunk(leader, number, incoming.index, 0)
            return
        self._log.restarted()
        self._restored(incoming.index)
        self._answer(leader, number, incoming.index + 1, Outcome.MATCHED)

    def _ask_chunk(self, leader: int, number: int, index: int, position: int) -> None:
        self._outbox.append((leader, [Kind.SNAPSHOT_AT, self.term, number, index, position]))

    # -- leading

    def _beat(self) -> None:
        for voter_id in self._connected:
            self._replicate(voter_id, beat=True)

    def _replicate(self, voter_id: int, *, beat: bool) -> None:
        progress, log = self._progress[voter_id], self._log
        if progress.transfer is not None or progress.next_index <= log.base_index:
            if beat:
                self._send(voter_id, [Kind.HEARTBEAT, self.term, self._next_number()])
                if progress.transfer is None:
                    self._start_transfer(voter_id, progress)
            return
        while progress.next_index <= log.last_index and progress.may_send():
            entries = log.read(progress.next_index, log.last_index, BATCH_BYTES)
            self._send_append(voter_id, progress, entries)
            progress.next_index += len(entries)
            beat = False
        if beat:
            self._send_append(voter_id, progress, [])

    def _send_append(self, voter_id: int, progress: Progress, entries: list[Entry]) -> None:
        previous = progress.next_index - 1
        number = self._next_number()
        progress.sent(number, sum(len(entry.command) for entry in entries))
        message = [
            Kind.APPEND,
            self.term,
            number,
            self.committed_index,
            previous,
            self._log.term_at(previous),
            pack_entries(entries),
        ]
        self._send(voter_id, message)

    def _next_number(self) -> int:
        self._number += 1
        return self._number

    def _appended(self, sender: int, term: int, number: int, next_index: int, outcome: int) -> None:
        if not self.leads or term != self.term:
            return
        if not 0 < next_index <= self._log.last_index + 1 and outcome == Outcome.MATCHED:
            raise MessageError("it acknowledged entries that it was not sent")
        progress = self._progress[sender]
        if outcome == Outcome.MATCHED:
            progress.matched(number, next_index)
            transfer = progress.transfer
            if transfer is not None and transfer.index < next_index:
                progress.transfer = None
        elif outcome == Outcome.MISMATCHED and progress.mismatched(
            number, next_index, self._number
        ):
            logger.warning(
                "voter %d lacks entries that it had acknowledged: its folder was lost or is an old "
                "copy; it gets them again",
                sender,
            )
        self._answered(sender, number, progress)

    def _answered(self, sender: int, number: int, progress: Progress) -> None:
        """Has pysyncobj count what the follower holds, and that it lives."""
        progress.answered(number, library.now(), self._log.last_index)
        self._see_answer(sender, progress.match_index)

    def _start_transfer(self, voter_id: int, progress: Progress) -> None:
        found = self._replica.snapshot_file()
        if found is not None:
            name, data = found
            progress.transfer = SnapshotTransfer(name.index, name.term, data)
            self._send_chunk(voter_id, progress)

    def _send_chunk(self, voter_id: int, progress: Progress) -> None:
        transfer = progress.transfer
        assert transfer is not None
        chunk = transfer.data[transfer.position : transfer.position + CHUNK_BYTES]
        message = [
            Kind.SNAPSHOT,
            self.term,
            self._next_number(),
            transfer.index,
            transfer.term,
            len(transfer.data),
            transfer.position,
            chunk,
        ]
        self._send(voter_id, message)

    def _snapshot_at(self, sender: int, term: int, number: int, index: int, position: int) -> None:
        if not self.leads or term != self.term:
            return
        progress = self._progress[sender]
        transfer = progress.transfer
        self._answered(sender, number, progress)
        if transfer is not None and transfer.index == index:
            if not 0 <= position <= len(transfer.data):
                raise MessageError("it asked for what is not in the snapshot")
            transfer.position = position
            self._send_chunk(sender, progress)

    # -- applying

    def _apply_committed(self) -> int:
        applied, committed = self._replica.applied_index, self.committed_index
        if committed <= applied:
            return 0
        entries = self._log.read(applied + 1, committed, APPLY_BYTES)
        self._applied = self._replica.apply(entries)
        if self.leads:
            self._vouched_for(committed)
        return len(entries)
