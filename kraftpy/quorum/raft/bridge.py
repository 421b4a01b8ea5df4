"""The seam between kraftpy's Raft and pysyncobj: its private names and messages occur only here.

What is pysyncobj's: terms and votes, the election and its randomised deadline, becoming leader with
an empty entry, taking over a leader's entries, counting a majority for an entry of its own term,
and stepping down when a majority doesn't answer. Everything else of it is replaced: the methods at
the end of this module are those that pysyncobj calls and that `node.RaftNode` answers.

pysyncobj's indexes are one higher than the quorum's (see `log.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from kraftpy.quorum.port import Entry
from kraftpy.quorum.raft import library
from kraftpy.quorum.raft.log import RaftLog
from kraftpy.quorum.raft.messages import Kind, Outcome

HEARTBEAT_S = 0.05
ELECTION_MIN_S = 0.4
ELECTION_MAX_S = 0.8
"""A leader is given up after a time between these without a word from it."""
FALLBACK_S = 1.5
"""A leader gives up itself after so long without an answer from a majority. Others may lead by
then; this one commits nothing meanwhile. A follower's busy disk must not take longer."""


class _Outlet(library.Transport):  # type: ignore[misc]
    """pysyncobj's transport: hands on what it wants to send."""

    def __init__(self, send: Callable[[int, dict[str, Any]], None]) -> None:
        super().__init__(None, None, ())
        self._send = send

    def send(self, node: Any, message: dict[str, Any]) -> bool:
        self._send(node.id, message)
        return True


class Bridge(library.SyncObj):  # type: ignore[misc]
    """pysyncobj's voter `voter_id`; raises `LibraryUnsuitable`."""

    def __init__(
        self, voter_id: int, voters: Collection[int], log: RaftLog, applied_index: int
    ) -> None:
        self._log = log
        self._nodes = {peer: library.Node(peer) for peer in voters if peer != voter_id}
        self._outbox: list[tuple[int, list[Any]]] = []
        self._answering = 0
        conf = library.SyncObjConf(
            autoTick=False,
            appendEntriesPeriod=HEARTBEAT_S,
            raftMinTimeout=ELECTION_MIN_S,
            raftMaxTimeout=ELECTION_MAX_S,
            leaderFallbackTimeout=FALLBACK_S,
            connectionTimeout=ELECTION_MAX_S,
            commandsWaitLeader=False,
            useFork=False,
        )
        super().__init__(
            library.Node(voter_id),
            list(self._nodes.values()),
            conf,
            nodeClass=library.Node,
            transport=_Outlet(self._queue),
        )
        library.check(self)
        self._SyncObj__raftLog = log
        self._SyncObj__raftCurrentTerm = max(log.getCurrentTerm(), log.last_term)
        self._SyncObj__votedForNodeId = log.getVotedForNodeId()
        self._SyncObj__serializer = None
        self._restored(applied_index)

    # -- what holds

    @property
    def leads(self) -> bool:
        """Whether this voter leads the current term, as far as it knows."""
        return bool(self._SyncObj__raftState == library.LEADER)

    @property
    def stands(self) -> bool:
        """Whether this voter is a candidate."""
        return bool(self._SyncObj__raftState == library.CANDIDATE)

    @property
    def leader(self) -> int | None:
        """Who leads the current term, as far as this voter knows."""
        node = self._SyncObj__raftLeader
        return None if node is None else int(node.id)

    @property
    def term(self) -> int:
        return int(self._SyncObj__raftCurrentTerm)

    @property
    def committed_index(self) -> int:
        return int(self._SyncObj__raftCommitIndex) - 1

    @property
    def _election_at(self) -> float:
        """When to stand for election, unless a leader is heard of before."""
        return float(self._SyncObj__raftElectionDeadline)

    @_election_at.setter
    def _election_at(self, deadline: float) -> None:
        self._SyncObj__raftElectionDeadline = deadline

    @property
    def _is_called(self) -> bool:
        """Whether the leader asked this voter to take over."""
        return bool(self._SyncObj__transferInProgress)

    # -- what pysyncobj is told

    def _see_connected(self, voter_id: int) -> None:
        self._SyncObj__onNodeConnected(self._nodes[voter_id])

    def _see_disconnected(self, voter_id: int) -> None:
        self._SyncObj__onNodeDisconnected(self._nodes[voter_id])

    def _see_leader(self, sender: int, term: int) -> None:
        """A leader lives; nothing about the log."""
        self._tell(sender, {"type": "append_entries", "term": term, "commit_index": 0})

    def _see_entries(
        self, sender: int, term: int, number: int, commit: int, previous: int, entries: list[Entry]
    ) -> None:
        """The leader's new entries after `previous`, at which the log ends or is to be continued,
        and what it has committed of the log up to them; queues the answer to message `number`."""
        self._answering = number
        message = {
            "type": "append_entries",
            "term": term,
            "commit_index": min(commit, previous + len(entries)) + 1,
            "prevLogIdx": previous + 1,
            "prevLogTerm": self._log.term_at(previous),
            "entries": [(entry, entry.index + 1, entry.term) for entry in entries],
        }
        self._tell(sender, message)

    def _see_answer(self, sender: int, match_index: int) -> None:
        """A follower lives and durably holds the log up to `match_index` (0: unknown)."""
        message = {
            "type": "next_node_idx",
            "next_node_idx": match_index + 2,
            "reset": False,
            "success": match_index > 0,
        }
        self._tell(sender, message)

    def _see_vote_asked(self, sender: int, term: int, last_index: int, last_term: int) -> None:
        message = {
            "type": "request_vote",
            "term": term,
            "last_log_index": last_index + 1,
            "last_log_term": last_term,
        }
        self._tell(sender, message)

    def _see_vote(self, sender: int, term: int) -> None:
        self._tell(sender, {"type": "response_vote", "term": term})

    def _see_call(self, sender: int, term: int) -> None:
        """Whoever sent it asks this voter to take over."""
        self._tell(sender, {"type": "timeout_now", "term": term})

    def _tell(self, sender: int, message: dict[str, Any]) -> None:
        self._SyncObj__onMessageReceived(self._nodes[sender], message)

    def _follow_term(self, term: int) -> None:
        """Takes over a higher term, whoever leads it."""
        self._SyncObj__setCurrentTerm(term, None)
        self._SyncObj__transferInProgress = False
        self._step_down()

    def _step_down(self) -> None:
        self._SyncObj__setState(library.FOLLOWER)
        self._forget_leader()

    def _forget_leader(self) -> None:
        """As far as this voter knows nobody leads."""
        self._SyncObj__raftLeader = None

    def _restored(self, index: int) -> None:
        """The state is that of `index` now, which is committed."""
        self._SyncObj__raftCommitIndex = self._SyncObj__raftLastApplied = index + 1

    def _show_match(self, voter_id: int, match_index: int) -> None:
        """What to count for a follower."""
        self._SyncObj__raftMatchIndex[self._nodes[voter_id]] = match_index + 1

    def _call(self, voter_id: int) -> bool:
        """Asks a follower that holds the whole log to take over; returns whether it was."""
        told: list[bool] = []
        self.transferLeadership(self._nodes[voter_id], lambda _, error: told.append(not error))
        return told == [True]

    # -- what pysyncobj calls

    def _queue(self, voter_id: int, message: dict[str, Any]) -> None:
        packed: list[Any]
        match message["type"]:
            case "request_vote":
                index, term = message["last_log_index"] - 1, message["last_log_term"]
                packed = [Kind.VOTE, message["term"], index, term]
            case "response_vote":
                packed = [Kind.VOTED, message["term"]]
            case "next_node_idx":
                assert message["success"]
                next_index = message["next_node_idx"] - 1
                packed = [Kind.APPENDED, self.term, self._answering, next_index, Outcome.MATCHED]
            case "timeout_now":
                self._say(voter_id, [Kind.TIMEOUT_NOW, message["term"]])
                return
            case kind:
                raise RuntimeError(f"pysyncobj sent {kind!r}")
        self._outbox.append((voter_id, packed))

    def _SyncObj__connectedToAnyone(self) -> bool:  # noqa: N802
        return self._may_stand()

    def _SyncObj__onBecomeLeader(self) -> None:  # noqa: N802
        self._begin_lead()
        super()._SyncObj__onBecomeLeader()

    def _SyncObj__sendAppendEntries(self) -> None:  # noqa: N802
        self._SyncObj__newAppendEntriesTime = library.now() + HEARTBEAT_S * 0.8
        self._beat()

    def _SyncObj__applyLogEntries(self) -> bool:  # noqa: N802
        self._SyncObj__raftLastApplied += self._apply_committed()
        return False

    def _checkCommandsToApply(self) -> None:  # noqa: N802
        """Nothing: the node takes commands into the log itself."""

    def _SyncObj__tryLogCompaction(self) -> None:  # noqa: N802
        """Nothing: the replica does it."""

    def _SyncObj__loadDumpFile(self, clearJournal: bool) -> None:  # noqa: N802, N803
        raise RuntimeError("pysyncobj's dumps are not used")

    def _say(self, voter_id: int, message: list[Any]) -> None:
        """Sends what promises nothing of the log, at once."""
        raise NotImplementedError

    def _may_stand(self) -> bool:
        """The election deadline has passed: whether to stand now."""
        raise NotImplementedError

    def _begin_lead(self) -> None:
        """This voter was elected; the entry that opens its term follows."""
        raise NotImplementedError

    def _beat(self) -> None:
        """A heartbeat is due, or a term begins."""
        raise NotImplementedError

    def _apply_committed(self) -> int:
        """Applies what is committed; returns how many entries that was."""
        raise NotImplementedError
