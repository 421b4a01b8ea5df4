"""The port between kraftpy and its consensus back-end.

A back-end owns a replicated log of opaque commands. Everything else in this package (the listener,
the process) and everybody outside it sees only `Quorum`. Two kinds exist: `single.SingleVoter`,
where the log is one durable journal, and the Raft back-end, which adds votes, followers and leader
changes behind the same five calls:

* `propose` a command; it resolves once the command is committed *and* applied here;
* `barrier`: an index that covers everything committed before the call (a linearizable read);
* `on_apply`: committed entries, in log order, exactly once in each life of the process;
* `role`, `leader_id`, `term` and `on_leader`: who decides;
* `snapshot` and `entries_from`: how a follower that missed entries catches up.

Rules every back-end keeps:

* An index counts as committed only when it is on stable storage at a majority of the voters.
* A command that was refused (`ProposalRefusedError`) is not in the log and never will be. Any
  other failure leaves the outcome unknown; the caller asks again with the same client id and
  sequence number, and `state.ReplicatedState` makes sure that it's applied once.
* The log index is Kafka's metadata offset, the term its controller epoch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Protocol

from kraftpy.frozen import NamedTuple, dataclass
from kraftpy.protocol.errors import ErrorCode

MAX_COMMAND_SIZE_BYTES = 8 << 20
"""The largest command in the log, envelope included; 100,000 partitions fit into about half."""


class Role(Enum):
    """What this voter is in the current term."""

    LEADER = "leader"
    FOLLOWER = "follower"
    CANDIDATE = "candidate"
    OBSERVER = "observer"
    """It began with an empty folder, and doesn't vote until a leader has brought it up to date."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One place in the log. `command` is empty in the entry with which a leader opens its term."""

    index: int
    term: int
    command: bytes


class CommandResult(NamedTuple):
    """What applying a command answered, as it travels to the proposer.

    `error` is NONE if the command took effect; `value` is a msgpack-able dict.
    """

    error: ErrorCode
    message: str | None
    value: dict[str, Any]


class Applied(NamedTuple):
    """One applied entry.

    `effective_index` is where its command took effect: the entry's own index or, for a retry, that
    of the first of its kind, whose `result` it then carries. `fresh` is False if the entry changed
    nothing: a leader's opening entry, a retry that had been applied before, or bytes that are no
    command. Followers must not apply such an entry either.
    """

    entry: Entry
    effective_index: int
    result: CommandResult
    fresh: bool


@dataclass(frozen=True, slots=True)
class MachineSnapshot:
    """The state machine as of `index`: msgpack of what `StateMachine.snapshot()` returned."""

    index: int
    state: bytes


class _MachineResult(Protocol):
    """What `StateMachine.apply` returns; attributes beyond these stay in the process."""

    @property
    def error(self) -> ErrorCode: ...
    @property
    def message(self) -> str | None: ...
    @property
    def value(self) -> dict[str, Any]: ...


class StateMachine(Protocol):
    """The rules that the quorum replicates.

    `apply` is deterministic and total: it answers with an error code and never raises, except at
    what it doesn't know. `why_not` says why a command of a type can't be let in; `command` gives
    all of it.
    """

    def apply(self, index: int, command: dict[str, Any]) -> _MachineResult: ...
    def why_not(self, name: object, command: Callable[[], object]) -> str | None: ...
    def snapshot(self) -> dict[str, Any]: ...


class MachineType(Protocol):
    """A class of state machines: call it for the empty state."""

    def __call__(self) -> StateMachine: ...
    def from_snapshot(self, snapshot: dict[str, Any], /) -> StateMachine: ...


class ProposalRefusedError(Exception):
    """The command did not enter the log and never will.

    `error` is NOT_CONTROLLER (ask the leader), KAFKA_STORAGE_ERROR (no space for the journal),
    INVALID_REQUEST (too large) or UNSUPPORTED_VERSION (this release doesn't know it, or not yet).
    """

    def __init__(self, error: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error = error
        self.message = message


class VoterState(NamedTuple):
    """What the leader knows of one voter (Kafka's DescribeQuorum; -1 where it knows nothing).

    `log_end_offset` follows the last index that the voter is known to hold durably. The two times
    are milliseconds since 1970: when it last answered, and when it last held all that the leader
    had when that was sent.
    """

    voter_id: int
    log_end_offset: int
    last_fetch_ms: int
    last_caught_up_ms: int


class PeerConnection(Protocol):
    """An authenticated connection with another voter, as `transport.FrameConnection` is one."""

    def send(self, message: Any) -> None: ...
    def close(self, reason: str | None = None) -> None: ...
    def unsent_bytes(self) -> int: ...


class Peer(Protocol):
    """The quorum's end of a connection that came in from another voter.

    Whoever owns the connection passes on every message after the introduction, and its end.
    """

    def received(self, message: Any) -> None:
        """Raises `ValueError` if no voter sends such a message: close the connection."""

    def disconnected(self) -> None: ...


ApplyListener = Callable[[Sequence[Applied]], None]
LeaderListener = Callable[[int | None, int], None]


class Quorum(Protocol):
    """A consensus back-end. All calls belong to the event loop that it runs on."""

    voter_id: int

    @property
    def voters(self) -> Mapping[int, tuple[str, int]]:
        """Host and port of every voter's controller listener, this one's included."""

    @property
    def role(self) -> Role: ...
    @property
    def leader_id(self) -> int | None:
        """The voter that leads as far as this one knows.

        A voter names itself only once it has applied the entry with which it opened its term, so
        the state that it decides on holds all that was committed before.
        """

    @property
    def term(self) -> int: ...
    @property
    def applied_index(self) -> int: ...
    @property
    def committed_index(self) -> int:
        """The last index known to be committed; Kafka's high watermark is the index after it."""

    @property
    def machine(self) -> StateMachine:
        """The state machine as of `applied_index`, for reading; another object after a snapshot."""

    def propose(self, command: bytes) -> asyncio.Future[Applied]:
        """Appends `command` (an envelope of `state.pack_envelope`) to the log.

        The future resolves once the command is committed and applied here, after `on_apply`
        listeners saw it. It fails with `ProposalRefusedError`, or is cancelled when the back-end
        stops or loses the lead: then the outcome is unknown.
        """

    def barrier(self) -> asyncio.Future[int]:
        """Resolves with an applied index that covers all that was committed before the call.

        Fails with `ProposalRefusedError(NOT_CONTROLLER)` if this voter does not lead.
        """

    def on_apply(self, listener: ApplyListener) -> None:
        """Calls `listener` with every batch of entries applied from now on."""

    def on_leader(self, listener: LeaderListener) -> None:
        """Calls `listener(leader_id, term)` soon with what holds now, then when either changes.

        Followers' listeners are called too.
        """

    def voter_states(self) -> list[VoterState]:
        """Each voter as the leader sees it, itself included; empty if this voter doesn't lead."""

    def voter_levels(self) -> Mapping[int, int]:
        """The metadata level that each voter's release knows, by what it has said on its connection
        with this one; a voter without a connection is missing, an earlier release knows 0.
        """

    def transfer_leadership(self, to: int | None = None) -> asyncio.Future[bool]:
        """Has `to` (None: the voter that is furthest) lead; resolves with whether it happened.

        The target is brought up to date first; proposals made meanwhile wait. False if this voter
        does not lead, or if the target doesn't take over in time: then this one goes on leading.
        """

    def accept_peer(self, introduction: Sequence[Any], connection: PeerConnection) -> Peer:
        """Takes over an incoming connection whose `introduction` is `["voter", id, ...]`.

        Raises `ValueError` with the reason if it is none of this quorum's voters.
        """

    def snapshot(self) -> MachineSnapshot:
        """A state from which a follower can start: `entries_from(index + 1)` continues it."""

    def entries_from(self, index: int, max_bytes: int) -> list[tuple[Entry, bool]] | None:
        """Applied entries from `index` on, with `Applied.fresh`; at least one if there is one.

        None if entries from `index` on are no longer kept: start from `snapshot()`.
        """
