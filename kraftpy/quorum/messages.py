"""The messages between a broker and a controller.

Each is a msgpack array inside a frame of `transport.FrameConnection`, a kind and then:

    broker -> controller                          controller -> broker
    introduction [node id]                        introduction [voter id, leader id or nil, term,
                                                                applied index]
    PROPOSE [0, sequence, envelope]               REPLY [0, sequence, index, error, message, value]
    FOLLOW [1, next index]                        SNAPSHOT [1, index, size, position, bytes]
    BARRIER [2, request id]                       BARRIER_DONE [2, request id, index or nil]
    HEARTBEAT [3, request id]                     ALIVE [3, request id, applied index]
                                                  COMMITTED [4, [[index, envelope or nil], ...]]
                                                  LEADER [5, leader id or nil, term]

`next index` 0 means that the broker has no state yet.  An index of -1 in REPLY says that the
command did not enter the log.  An envelope is nil in COMMITTED where nothing is to be applied.
"""

from __future__ import annotations

from enum import IntEnum

__all__ = ["FromBroker", "FromController"]


class FromBroker(IntEnum):
    """Kinds of messages that a broker sends."""

    PROPOSE = 0
    FOLLOW = 1
    BARRIER = 2
    HEARTBEAT = 3


class FromController(IntEnum):
    """Kinds of messages that a controller sends."""

    REPLY = 0
    SNAPSHOT = 1
    BARRIER_DONE = 2
    ALIVE = 3
    COMMITTED = 4
    LEADER = 5
