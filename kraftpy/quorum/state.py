"""The replicated state: the state machine, and the sessions that make a retried command safe.

Every command in the log is an envelope `[client id, sequence, lowest outstanding, opened at,
command]`. A client that does not hear back sends the very same envelope again, over whatever
connection to whichever leader, so one command can be in the log more than once. Rules:

* Of the entries with one (client id, sequence) only the first takes effect; the others answer with
  its recorded result. All voters decide this from the log alone, so they agree.
* `lowest outstanding` is the lowest sequence that the client still waits for. Results below it are
  forgotten, and an entry below it that shows up late (out of an old connection's buffers) does
  nothing. So a command that timed out can no longer take effect once a later one has.
* The least recently used session is forgotten beyond `MAX_SESSIONS`. `opened at` is an index that
  had been applied before the client's first command: an unknown session that is older than the
  newest use of any forgotten one may itself have been forgotten, and is refused
  (`SESSION_EXPIRED`) where treating it as new could apply a command twice. This is the session
  expiry problem of section 6.3 in Ongaro's Raft dissertation, solved without a clock.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, cast

import msgpack

from kraftpy.protocol.errors import ErrorCode
from kraftpy.quorum.packing import pack, unpack
from kraftpy.quorum.port import Applied, CommandResult, Entry, MachineType, StateMachine

CLIENT_ID_SIZE_BYTES = 16
_ENVELOPE_FIELDS = 5
MAX_SESSIONS = 1000
MAX_OUTSTANDING = 1000
"""Proposals that one client may have outstanding; so many results are kept for each session."""

SESSION_EXPIRED = CommandResult(
    ErrorCode.REQUEST_TIMED_OUT, "the session with the quorum expired", {"session_expired": True}
)
_NOTHING = CommandResult(ErrorCode.NONE, None, {})
_TOO_LATE = CommandResult(
    ErrorCode.REQUEST_TIMED_OUT, "the client has stopped waiting for this command", {}
)


def pack_envelope(
    client_id: bytes, sequence: int, lowest: int, opened_at: int, command: dict[str, Any]
) -> bytes:
    """The bytes that `Quorum.propose` takes; `sequence` counts from 1 in each client."""
    return pack([client_id, sequence, lowest, opened_at, command])


def command_of(envelope: bytes) -> dict[str, Any]:
    """The command inside an envelope that `Applied.fresh` declared sound."""
    return cast("dict[str, Any]", unpack(envelope)[4])


def type_of(envelope: bytes) -> object:
    """The type of the command inside an envelope; None if it has none, or this isn't an envelope.

    Looks no further: a command may have megabytes.
    """
    reader = msgpack.Unpacker(max_buffer_size=len(envelope), raw=False, strict_map_key=False)
    try:
        reader.feed(envelope)
        if reader.read_array_header() != _ENVELOPE_FIELDS:
            return None
        for _ in range(_ENVELOPE_FIELDS - 1):
            reader.skip()
        for _ in range(reader.read_map_header()):
            if reader.unpack() == "type":
                return cast("object", reader.unpack())
            reader.skip()
    except (ValueError, TypeError, msgpack.UnpackException):
        pass
    return None


class _Session:
    """One client's recent results, each with the index at which it was applied."""

    __slots__ = ("last_used", "lowest", "results")

    def __init__(self, lowest: int, last_used: int) -> None:
        self.lowest = lowest
        self.last_used = last_used
        self.results: dict[int, tuple[int, CommandResult]] = {}

    def forget_below(self, lowest: int) -> None:
        if lowest > self.lowest:
            self.lowest = lowest
            for sequence in [s for s in self.results if s < lowest]:
                del self.results[sequence]


class ReplicatedState:
    """State machine and sessions as of `applied_index`; only `apply` changes them."""

    def __init__(self, machine_type: MachineType) -> None:
        self.machine: StateMachine = machine_type()
        self.applied_index = 0
        self._sessions: OrderedDict[bytes, _Session] = OrderedDict()
        self._forgotten_through = 0

    def apply(self, entry: Entry) -> Applied:
        """Applies the next entry of the log. Total, as far as the state machine is."""
        assert entry.index == self.applied_index + 1, (entry.index, self.applied_index)
        self.applied_index = entry.index
        if not entry.command:
            return Applied(entry, entry.index, _NOTHING, False)
        try:
            client_id, sequence, lowest, opened_at, command = _open_envelope(entry.command)
        except ValueError as error:
            result = CommandResult(ErrorCode.INVALID_REQUEST, f"no command: {error}", {})
            return Applied(entry, entry.index, result, False)
        session = self._session(client_id, lowest, opened_at, entry.index)
        if session is None:
            return Applied(entry, entry.index, SESSION_EXPIRED, False)
        if sequence < session.lowest:
            return Applied(entry, entry.index, _TOO_LATE, False)
        known = session.results.get(sequence)
        if known is not None:
            first_index, result = known
            return Applied(entry, first_index, result, False)
        answer = self.machine.apply(entry.index, command)
        result = CommandResult(answer.error, answer.message, answer.value)
        session.results[sequence] = (entry.index, result)
        if len(session.results) > MAX_OUTSTANDING:
            session.forget_below(min(session.results) + 1)
        return Applied(entry, entry.index, result, True)

    def _session(
        self, client_id: bytes, lowest: int, opened_at: int, index: int
    ) -> _Session | None:
        session = self._sessions.get(client_id)
        if session is None:
            if opened_at < self._forgotten_through:
                return None
            session = self._sessions[client_id] = _Session(lowest, index)
            if len(self._sessions) > MAX_SESSIONS:
                _, oldest = self._sessions.popitem(last=False)
                self._forgotten_through = oldest.last_used
        session.last_used = index
        session.forget_below(lowest)
        self._sessions.move_to_end(client_id)
        return session

    # -- snapshots

    def pack_sessions(self) -> bytes:
        sessions = [
            [
                client_id,
                session.lowest,
                session.last_used,
                [[s, i, *result] for s, (i, result) in session.results.items()],
            ]
            for client_id, session in self._sessions.items()
        ]
        return pack([self._forgotten_through, sessions])

    def pack_machine(self) -> bytes:
        return pack(self.machine.snapshot())

    @classmethod
    def restore(
        cls, machine_type: MachineType, index: int, sessions: bytes, machine: bytes
    ) -> ReplicatedState:
        """The state as of `index` from what `pack_sessions` and `pack_machine` returned."""
        state = cls(machine_type)
        state.machine = machine_type.from_snapshot(unpack(machine))
        state.applied_index = index
        state._forgotten_through, packed = unpack(sessions)
        for client_id, lowest, last_used, results in packed:
            session = state._sessions[client_id] = _Session(lowest, last_used)
            for sequence, applied_at, error, message, value in results:
                result = CommandResult(ErrorCode(error), message, value)
                session.results[sequence] = (applied_at, result)
        return state


def _open_envelope(envelope: bytes) -> tuple[bytes, int, int, int, dict[str, Any]]:
    match unpack(envelope):
        case [
            bytes(client_id),
            int(sequence),
            int(lowest),
            int(opened_at),
            dict(command),
        ] if len(client_id) == CLIENT_ID_SIZE_BYTES:
            return client_id, sequence, lowest, opened_at, command
    raise ValueError("the envelope has the wrong shape")
