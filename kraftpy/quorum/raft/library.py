"""pysyncobj, checked and disarmed: the only module here that imports it.

Rules:

* kraftpy builds on pysyncobj's private names, so exactly one version will do (`check`).
* Nothing in this process unpickles what came from a file or a socket. pysyncobj pickles its
  network frames, commands, metadata and dumps; none of that code is used, and all of its ways to
  pickle are replaced by one that raises.
"""

from __future__ import annotations

from typing import Any, NoReturn

import pysyncobj.journal
import pysyncobj.pickle
import pysyncobj.serializer
import pysyncobj.syncobj
import pysyncobj.tcp_connection
from pysyncobj.config import SyncObjConf
from pysyncobj.node import Node
from pysyncobj.syncobj import _RAFT_STATE, SyncObj
from pysyncobj.transport import Transport
from pysyncobj.version import VERSION

__all__ = [
    "CANDIDATE",
    "FOLLOWER",
    "LEADER",
    "LibraryUnsuitable",
    "Node",
    "SyncObj",
    "SyncObjConf",
    "Transport",
    "check",
    "now",
]

REQUIRED_VERSION = "0.3.17"
LEADER: int = _RAFT_STATE.LEADER
CANDIDATE: int = _RAFT_STATE.CANDIDATE
FOLLOWER: int = _RAFT_STATE.FOLLOWER

_METHODS = (
    "_checkCommandsToApply",
    "_onTick",
    "_SyncObj__applyLogEntries",
    "_SyncObj__connectedToAnyone",
    "_SyncObj__generateRaftTimeout",
    "_SyncObj__loadDumpFile",
    "_SyncObj__onBecomeLeader",
    "_SyncObj__onMessageReceived",
    "_SyncObj__sendAppendEntries",
    "_SyncObj__setCurrentTerm",
    "_SyncObj__setState",
    "_SyncObj__tryLogCompaction",
    "transferLeadership",
)
_ATTRIBUTES = (
    "_poller",
    "_SyncObj__lastResponseTime",
    "_SyncObj__newAppendEntriesTime",
    "_SyncObj__raftCommitIndex",
    "_SyncObj__raftCurrentTerm",
    "_SyncObj__raftElectionDeadline",
    "_SyncObj__raftLastApplied",
    "_SyncObj__raftLeader",
    "_SyncObj__raftLog",
    "_SyncObj__raftMatchIndex",
    "_SyncObj__raftState",
    "_SyncObj__serializer",
    "_SyncObj__transferInProgress",
    "_SyncObj__votedForNodeId",
)


class LibraryUnsuitable(Exception):
    """The installed pysyncobj is not the one that kraftpy was made for; says what to install."""


def check(node: object) -> None:
    """Raises `LibraryUnsuitable` unless `node`, a `SyncObj`, is of the version built for."""
    missing = [name for name in (*_METHODS, *_ATTRIBUTES) if not hasattr(node, name)]
    if VERSION != REQUIRED_VERSION or missing:
        raise LibraryUnsuitable(
            f"the quorum needs pysyncobj {REQUIRED_VERSION} exactly, and version {VERSION} is "
            f"installed{f' (without {missing[0]})' if missing else ''}: "
            f"pip install pysyncobj=={REQUIRED_VERSION}"
        )


def now() -> float:
    """Seconds, monotonic: the clock that pysyncobj itself goes by."""
    seconds: float = pysyncobj.syncobj.monotonicTime()
    return seconds


def _refuse(*args: Any, **kwargs: Any) -> NoReturn:
    raise RuntimeError("kraftpy's quorum does not pickle")


class _NoPickle:
    load = loads = dump = dumps = to_bytes = staticmethod(_refuse)


def _disarm() -> None:
    for module in (pysyncobj.syncobj, pysyncobj.serializer, pysyncobj.tcp_connection):
        module.pickle = _NoPickle
    for name in ("to_bytes", "loads", "dumps"):
        setattr(pysyncobj.journal, name, _refuse)
    for name in ("load", "loads", "dump", "dumps", "to_bytes"):
        setattr(pysyncobj.pickle, name, _refuse)
    pysyncobj.pickle.pickle = _NoPickle


_disarm()
