"""The messages between a broker and a controller.

Each is a msgpack array inside a frame of `transport.FrameConnection`, a kind and then:

    broker -> controller                          controller -> broker
    introduction ["broker", node id,              introduction [voter id, leader id or nil, term,
                  broker epoch]                                 applied index, [[voter id, host,
                                                                port], ...]]
    PROPOSE [0, sequence, envelope]               REPLY [0, sequence, index, error, message, value]
    PROPOSE [0, sequence, envelope,               REPLY [0, sequence, index, error, message, value,
             [user, client id, partitions,               wait in ms]
              strict]]
    FOLLOW [1, next index]                        SNAPSHOT [1, index, size, position, bytes]
    BARRIER [2, request id]                       BARRIER_DONE [2, request id, index or nil]
    HEARTBEAT [3, number, broker epoch,           ALIVE [3, number, applied index]
               applied index]
                                                  COMMITTED [4, [[index, envelope or nil], ...]]
                                                  LEADER [5, leader id or nil, term]
                                                  SUSPECTS [8, [broker id, ...]]
                                                  INCOMPLETE [9]
    DESCRIBE [6, request id]                      DESCRIPTION [6, request id, description or nil]
    TRANSFER [7, request id, voter id]            TRANSFERRED [7, request id, message or nil]

`next index` 0 means that the broker has no state yet. A broker epoch of -1 says that the broker
has not registered. An index of -1 in REPLY says that the command did not enter the log. An
envelope is nil in COMMITTED where nothing is to be applied. ALIVE returns the number of the
heartbeat that it answers. SUSPECTS lists those whose connections with this voter have just broken.
The number of a heartbeat has in its upper bits the metadata level that the broker's release knows
(`with_level`): an earlier release takes all of it for a number, and returns it.
PROPOSE names for whom it counts, and how much (`mutations.Charge`), if a client has asked for it
that has such a quota: so only from the metadata level on that has quotas, which all voters know.
INCOMPLETE: this voter began with an empty folder, and doesn't vote until a leader has brought it up
to date; LEADER ends that, or is followed by it again.
A voter's introduction to another voter is ["voter", voter id]; what follows it belongs to the
back-end. The answer to it has one element more, the metadata level that the controller's release
knows.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from kraftpy.core.metadata import levels
from kraftpy.frozen import NamedTuple

_LEVEL_SHIFT = 48
_NUMBER_MAX = (1 << _LEVEL_SHIFT) - 1


def with_level(number: int) -> int:
    """The number of a heartbeat, with the metadata level that this release knows."""
    return levels.LEVEL << _LEVEL_SHIFT | number


def without_level(number: int) -> int:
    """The number that was given to `with_level`."""
    return number & _NUMBER_MAX


def level_in(number: int) -> int:
    """The metadata level that the sender of a heartbeat knows; 0 of an earlier release."""
    return number >> _LEVEL_SHIFT


class FromBroker(IntEnum):
    """Kinds of messages that a broker sends."""

    PROPOSE = 0
    FOLLOW = 1
    BARRIER = 2
    HEARTBEAT = 3
    DESCRIBE = 6
    TRANSFER = 7


class FromController(IntEnum):
    """Kinds of messages that a controller sends."""

    REPLY = 0
    SNAPSHOT = 1
    BARRIER_DONE = 2
    ALIVE = 3
    COMMITTED = 4
    LEADER = 5
    DESCRIPTION = 6
    TRANSFERRED = 7
    SUSPECTS = 8
    INCOMPLETE = 9


class QuorumReplica(NamedTuple):
    """How far a voter or an observer (a broker that follows) is, as the leader knows it.

    `log_end_offset` is one above its last index. The times are wall-clock milliseconds, -1 if it
    has not been heard of: when it was last heard, and when it last had all that the leader had.
    """

    replica_id: int
    log_end_offset: int
    last_fetch_timestamp_ms: int
    last_caught_up_timestamp_ms: int


class QuorumDescription(NamedTuple):
    """What Kafka's DescribeQuorum answers (KIP-595, KIP-836), and what stands against a level.

    `level_refusals` has for each metadata level from 1 on why it can't be reached now, None where
    it can. It has none of levels that the leader doesn't know, and is only said to who knows some.
    """

    leader_id: int
    leader_epoch: int
    high_watermark: int
    voters: tuple[QuorumReplica, ...]
    observers: tuple[QuorumReplica, ...]
    level_refusals: tuple[str | None, ...] = ()

    def pack(self, *, with_levels: bool) -> list[Any]:
        """Plain lists, for msgpack."""
        voters, observers = [list(v) for v in self.voters], [list(o) for o in self.observers]
        packed = [self.leader_id, self.leader_epoch, self.high_watermark, voters, observers]
        return [*packed, list(self.level_refusals)] if with_levels else packed

    @classmethod
    def unpack(cls, packed: Any) -> QuorumDescription:
        """What `pack` returned. Raises `ValueError`."""
        match packed:
            case [int(leader), int(epoch), int(end), list(voters), list(observers), *more]:
                return cls(
                    leader, epoch, end, _replicas(voters), _replicas(observers), _refusals(more)
                )
        raise ValueError("a description of the quorum has the wrong shape")


def _refusals(packed: list[Any]) -> tuple[str | None, ...]:
    match packed:
        case []:
            return ()
        case [list(refusals)] if all(each is None or isinstance(each, str) for each in refusals):
            return tuple(refusals)
    raise ValueError("what a description says of levels has the wrong shape")


def _replicas(packed: list[Any]) -> tuple[QuorumReplica, ...]:
    replicas = []
    for each in packed:
        match each:
            case [int(), int(), int(), int()]:
                replicas.append(QuorumReplica(*each))
            case _:
                raise ValueError("a replica in a description has the wrong shape")
    return tuple(replicas)
