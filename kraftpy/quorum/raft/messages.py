"""What voters say to each other, each a msgpack array inside a frame of `transport`.

    PING [0]
    PRE_VOTE [1, term, round, last index, last term]     would you vote for me in that term?
    PRE_VOTED [2, term, round]                           yes
    VOTE [3, term, last index, last term]                Raft's RequestVote
    VOTED [4, term]                                      granted
    APPEND [5, term, number, commit index, previous index, previous term, [[term, command], ...]]
    HEARTBEAT [6, term, number]                          as APPEND, without any position
    APPENDED [7, term, number, next index, outcome]      answers APPEND, HEARTBEAT; see `Outcome`
    SNAPSHOT [8, term, number, index, entry term, size, position, bytes]
    SNAPSHOT_AT [9, term, number, index, position]       answers SNAPSHOT: go on from there
    HIGHER_TERM [10, term]                               your term is over
    TIMEOUT_NOW [11, term]                               stand for election at once
    KNOWS [12, level]                                    the metadata level that my release knows

`number` increases with each message of a leader; an answer repeats it. The introduction of a voter
is `["voter", id, [ids of all voters]]`. KNOWS is only said to who has said its own level, in its
answer to that: an earlier release would close the connection.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from kraftpy.quorum.port import Entry


class Kind(IntEnum):
    """The first element of a message."""

    PING = 0
    PRE_VOTE = 1
    PRE_VOTED = 2
    VOTE = 3
    VOTED = 4
    APPEND = 5
    HEARTBEAT = 6
    APPENDED = 7
    SNAPSHOT = 8
    SNAPSHOT_AT = 9
    HIGHER_TERM = 10
    TIMEOUT_NOW = 11
    KNOWS = 12


class Outcome(IntEnum):
    """What became of an APPEND: the follower's log equals the leader's up to `next index`; it
    doesn't (go on from `next index`); or it only says that it lives."""

    MATCHED = 0
    MISMATCHED = 1
    ALIVE = 2


class MessageError(ValueError):
    """No voter sends such a message; the connection is closed."""


def pack_entries(entries: list[Entry]) -> list[tuple[int, bytes]]:
    """Entries as they are in APPEND."""
    return [(entry.term, entry.command) for entry in entries]


def entries_of(packed: list[Any], first_index: int) -> list[Entry]:
    """The entries in an APPEND; raises `MessageError`."""
    entries = []
    for index, each in enumerate(packed, first_index):
        match each:
            case [int(term), bytes(command)]:
                entries.append(Entry(index, term, command))
            case _:
                raise MessageError("an entry that it sent has the wrong shape")
    return entries
