"""Events: what matters in a node's life, one line of the log each, and the last of them in memory.

`emit(logger, logging.INFO, "isr-shrunk", partition="orders-3", isr=(1, 2), out=[3])` writes

    ... INFO kraftpy.server.replication.leader_changes: isr-shrunk partition=orders-3 isr=1,2 out=3

Rules:

* `EVENTS` is the table of all events and their fields; the operations guide shows it, and a test
  holds the calls of `emit` against it.
* An event is a fact with its numbers and names; a sentence for a person is in `reason` or `advice`.
* Nothing secret is a field. A text field is cut to `TEXT_MAX_LENGTH`, a client's name to
  `CLIENT_MAX_LENGTH`; whoever shows one escapes it,
  since anybody may have chosen a topic's or a client's name.
* Of one event by one logger at most `BURST` are written in `WINDOW_S`; the rest are counted, and
  `events-suppressed` says how many they were. What is suppressed costs about a microsecond.
* What anybody can cause who reaches a port has one line for each peer and cause in
  `PEER_WINDOW_S` (`Kind.of_peer`), of all listeners alike. So nobody fills a disk, and who tries
  hides nobody else's trouble. `PEERS_MAX` such windows are remembered; others share one.
* The last `KEPT` events stay in memory for the node's page, whatever the level of the log, but for
  those of peers: they'd push out what matters. They are
  this process's: the child of a fork begins without any.
* Any thread may emit. It is the one module below all others that has a clock: of that core sees
  nothing, and no decision depends on it.
"""

from __future__ import annotations

import json
import logging
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from kraftpy.frozen import NamedTuple

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

KEPT = 200
BURST = 20
WINDOW_S = 10.0
PEER_WINDOW_S = 1.0
PEERS_MAX = 1000
TEXT_MAX_LENGTH = 256
CLIENT_MAX_LENGTH = 100
ITEMS_MAX = 32

Value = str | int | float | bool | None | Sequence[int] | Sequence[str]
CallLater = Callable[[float, Callable[[], None]], object]


class Kind(NamedTuple):
    """What the table says of an event; `fields` is in the order in which they are written.

    `of_peer`: whoever reaches a port can cause it, as often as they like. It has the fields `peer`
    and `reason`.
    """

    doc: str
    fields: tuple[str, ...]
    of_peer: bool = False


def _kind(doc: str, fields: str, *, of_peer: bool = False) -> Kind:
    return Kind(doc, tuple(fields.split()), of_peer)


EVENTS: dict[str, Kind] = {
    # the node
    "node-starting": _kind("The node's processes are about to start.", "node version roles dirs"),
    "exposed": _kind(
        "As the node is configured, others can do or read what they perhaps shouldn't.",
        "setting reason advice",
    ),
    "controller-started": _kind(
        "The controller is a voter of the quorum.", "voter term index host port version"
    ),
    "broker-started": _kind("Clients are answered.", "node cluster host port version seconds"),
    "node-stopping": _kind("The broker is to stop: SIGTERM or Ctrl-C.", "node"),
    "controlled-shutdown": _kind(
        "The broker has handed over what it led. What is left nobody could take; -1: the quorum "
        "could not be asked.",
        "node seconds left reason",
    ),
    "node-stopped": _kind("The broker has stopped: all is on disk, in order.", "node seconds"),
    "controller-stopped": _kind("The controller has stopped in order.", "voter seconds"),
    "node-failed": _kind("The node can't go on, and ends.", "node reason"),
    "exporter-ended": _kind(
        "The process that serves metrics is gone; another one takes its place.",
        "pid reason restart_s",
    ),
    "exporter-restarted": _kind("Metrics are served again.", "pid"),
    # the quorum
    "quorum-leader": _kind("This voter knows a leader, itself or another.", "voter leader term"),
    "quorum-leaderless": _kind(
        "This voter knows no leader: the last one is gone, or an election is on.", "voter term"
    ),
    "broker-session-lost": _kind(
        "The active controller takes a broker for dead, and fences it.", "broker epoch reason"
    ),
    "leaders-rebalancing": _kind(
        "The active controller gives partitions back to their preferred leaders.", "partitions"
    ),
    # brokers, as the metadata has them
    "broker-registered": _kind("A broker has begun a life, fenced at first.", "broker epoch rack"),
    "broker-unfenced": _kind("A broker serves.", "broker epoch"),
    "broker-shutting-down": _kind("A broker hands over what it leads.", "broker epoch"),
    "broker-fenced": _kind("A broker serves nothing.", "broker epoch"),
    "broker-unregistered": _kind("A broker has been removed.", "broker epoch"),
    "session-lapsed": _kind(
        "This broker hasn't heard of the quorum for its session's time, and leads nothing.", "node"
    ),
    "session-resumed": _kind("It has caught up with the quorum, and leads again.", "node"),
    # topics and partitions
    "topic-created": _kind("A topic is there.", "topic partitions replication"),
    "topic-deleted": _kind("A topic is gone.", "topic partitions"),
    "partition-added": _kind("A topic has a partition more.", "partition replicas"),
    "partition-leader": _kind(
        "This broker leads a partition from now on.", "partition epoch previous isr"
    ),
    "partition-follower": _kind(
        "This broker follows another leader from now on.", "partition epoch previous leader"
    ),
    "partition-offline": _kind(
        "A partition of which this broker has a replica has no leader.", "partition epoch previous"
    ),
    "unclean-election": _kind(
        "This broker leads without having been in sync: records may be lost.", "partition epoch"
    ),
    "isr-shrunk": _kind("Replicas of a partition led here fell out of sync.", "partition isr out"),
    "isr-expanded": _kind("Replicas of a partition led here got in sync.", "partition isr joined"),
    "reassignment-started": _kind(
        "A partition led here moves to other brokers.", "partition adding removing"
    ),
    "reassignment-ended": _kind(
        "A partition led here has moved, or stays after all.", "partition replicas"
    ),
    # groups and their coordinator
    "share-records-archived": _kind(
        "Nobody has accepted records of a share group in as many deliveries as there may be: "
        "nobody gets them any more.",
        "group partition first last records deliveries",
    ),
    "group-rebalance": _kind(
        "A group needs another assignment. Of a classic group the generation is the last one, of "
        "one of the consumer protocol the new epoch.",
        "group generation members reason",
    ),
    "group-generation": _kind(
        "A classic group has its next generation; without members it is empty.",
        "group generation members protocol",
    ),
    "group-member-gone": _kind("A member is taken out of its group.", "group member reason"),
    "group-member-back": _kind(
        "A static member is back under another id, in its old place.", "group member previous"
    ),
    "group-unassigned": _kind(
        "The leader of a classic group assigns nothing to these members.",
        "group generation members",
    ),
    "group-limit": _kind(
        "Something a member says is more than its group may keep; the setting says how much.",
        "group reason setting",
    ),
    "coordinator-loaded": _kind(
        "A partition of __consumer_offsets that has records takes requests.",
        "partition epoch seconds records skipped groups offsets",
    ),
    "coordinator-unloaded": _kind(
        "A partition of __consumer_offsets that had groups is no longer coordinated here.",
        "partition epoch groups",
    ),
    "coordinator-failed": _kind(
        "A partition of a coordinator's topic can't be loaded; what it keeps isn't served.",
        "partition offset reason",
    ),
    # transactions
    "transactions-loaded": _kind(
        "A partition of __transaction_state that has records takes requests.",
        "partition epoch seconds records skipped ids",
    ),
    "transaction-timed-out": _kind(
        "A transaction is aborted: it was open for longer than its timeout.",
        "transactional_id producer epoch timeout_ms partitions",
    ),
    "transaction-fenced": _kind(
        "A transaction is aborted: another producer has come with its transactional id.",
        "transactional_id producer epoch partitions",
    ),
    "transaction-late": _kind(
        "A transaction should be over by its timeout: its coordinator can't write the abort "
        "(Ongoing), or a partition doesn't take its marker.",
        "transactional_id producer epoch state seconds timeout_ms partitions",
    ),
    "transaction-marker-refused": _kind(
        "A partition knows a higher epoch than the end of a transaction has: its log has lost "
        "records, or another coordinator's.",
        "transactional_id partition producer epoch",
    ),
    # rights
    "access-denied": _kind(
        "Somebody may not do something, `times` as often since the last line about it.",
        "principal host operation resource name times",
    ),
    # requests and disks
    "slow-request": _kind(
        "A request took longer than kraftpy.log.slow.request.ms.",
        "api version milliseconds client peer",
    ),
    "batches-not-compacted": _kind(
        "Batches whose records can't be read stay as they were written; the first of them.",
        "log batches offset reason",
    ),
    "log-offline": _kind(
        "A partition's files can't be written; it takes no more requests.", "log reason advice"
    ),
    "disk-failing": _kind(
        "A log directory takes no writes; what this broker leads in it others are to lead.",
        "path reason",
    ),
    "replica-damaged": _kind(
        "What this broker has of a partition fails its checks; others' records take its place.",
        "partition reason",
    ),
    "fsync-failed": _kind(
        "What was written may not be on disk; the process ends at once.", "path reason advice"
    ),
    "topic-refused": _kind("A topic that a client asked for can't be made.", "topic reason"),
    # connections
    "connection-closed": _kind(
        "A listener of the broker, the controller or the metrics has hung up on a peer.",
        "peer client reason",
        of_peer=True,
    ),
    "connection-refused": _kind(
        "A peer isn't let in: there are too many connections.", "peer reason", of_peer=True
    ),
    "connections-wait": _kind(
        "A listener accepts none for now: there are too many connections, or they come too fast.",
        "listener reason",
    ),
    "certificate-loaded": _kind(
        "A listener shows another certificate from now on, or trusts others.",
        "listener subject former expires",
    ),
    "certificate-refused": _kind(
        "A listener's certificate can't be used; what it had before stays.", "listener reason"
    ),
    "authentication-failed": _kind(
        "A peer couldn't log in. It is told that, and not why.",
        "peer client listener mechanism reason",
        of_peer=True,
    ),
    "token-keys-refused": _kind(
        "The keys that tokens are signed with can't be read; what was there before stays.",
        "listener url reason",
    ),
    "request-failed": _kind(
        "A defect kept a request from being answered; its traceback follows.",
        "peer client api version reason",
        of_peer=True,
    ),
    # about events
    "events-suppressed": _kind(
        "So many events of this kind weren't written; of peers, `about` has whose and why.",
        "event about count",
    ),
}


class Event(NamedTuple):
    """One that happened; `number` counts them in a process, `time_ms` is since 1970."""

    number: int
    time_ms: int
    level: int
    logger: str
    name: str
    fields: dict[str, Value]


# What counts as one: the event, its logger, and of events of peers whose and why.
_Key = tuple[str, str, str]

_CAUSE = re.compile(r"""[^\d'":]*""")


class _Window:
    """How many events of one kind, logger and peer there were lately."""

    __slots__ = ("burst", "count", "length_s", "level", "logger", "started_s", "suppressed")

    def __init__(self, logger: logging.Logger, kind: Kind | None, now_s: float) -> None:
        self.logger = logger
        of_peer = kind is not None and kind.of_peer
        self.burst, self.length_s = (1, PEER_WINDOW_S) if of_peer else (BURST, WINDOW_S)
        self.start(now_s)

    def start(self, now_s: float) -> None:
        self.started_s = now_s
        self.level = logging.NOTSET
        self.count = self.suppressed = 0


class EventLog:
    """What one process keeps of its events; see the module."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._windows: dict[_Key, _Window] = {}
        self._kept: deque[Event] = deque(maxlen=KEPT)
        self._number = 0
        self._tidied_s = -PEER_WINDOW_S
        self._call_later: CallLater | None = None

    def flush_with(self, call_later: CallLater) -> None:
        """`call_later(delay_s, function)` has suppressed events told of when their time is over.

        Any thread may call it. Without it, the next event that may be written tells.
        """
        self._call_later = call_later

    def emit(self, logger: logging.Logger, level: int, name: str, fields: dict[str, Value]) -> bool:
        """See `emit` below."""
        now_s = time.monotonic()
        kind = EVENTS.get(name)
        about = _about(fields) if kind is not None and kind.of_peer else ""
        told = told_level = 0
        with self._lock:
            window = self._windows.get((name, logger.name, about))
            if window is None:
                about = self._room_for(about, now_s)
                key = name, logger.name, about
                window = self._windows.setdefault(key, _Window(logger, kind, now_s))
            if now_s - window.started_s >= window.length_s:
                told, told_level = window.suppressed, window.level
                window.start(now_s)
            window.count += 1
            suppressed = window.count > window.burst
            if suppressed:
                window.suppressed += 1
                window.level = max(window.level, level)
                if window.suppressed == 1 and self._call_later is not None:
                    self._call_later(window.length_s, self.flush)
        if told:
            self._tell(logger, told_level, name, about, told)
        if not suppressed:
            self._write(logger, level, name, fields)
        return not suppressed

    def _room_for(self, about: str, now_s: float) -> str:
        """`about`, or what peers share when too many are remembered."""
        if not about or len(self._windows) < PEERS_MAX:
            return about
        if now_s - self._tidied_s >= PEER_WINDOW_S:
            self._tidied_s = now_s
            self._windows = {
                key: window
                for key, window in self._windows.items()
                if window.suppressed or now_s - window.started_s < window.length_s
            }
        return about if len(self._windows) < PEERS_MAX else "others"

    def flush(self) -> None:
        """Tells of what was suppressed up to now."""
        with self._lock:
            due = [(key, each) for key, each in self._windows.items() if each.suppressed]
            told = [(each.logger, each.level, key, each.suppressed) for key, each in due]
            for _, window in due:
                window.suppressed, window.level = 0, logging.NOTSET
        for logger, level, (name, _, about), count in told:
            self._tell(logger, level, name, about, count)

    def _tell(self, logger: logging.Logger, level: int, name: str, about: str, count: int) -> None:
        fields: dict[str, Value] = {"event": name, "about": about, "count": count}
        if not about:
            del fields["about"]
        self._write(logger, level, "events-suppressed", fields)

    def _write(
        self, logger: logging.Logger, level: int, name: str, fields: dict[str, Value]
    ) -> None:
        bounded = {key: _bounded(value) for key, value in fields.items()}
        if isinstance(client := bounded.get("client"), str):
            bounded["client"] = _cut(client, CLIENT_MAX_LENGTH)
        with self._lock:
            self._number += 1
            event = Event(self._number, int(time.time() * 1000), level, logger.name, name, bounded)
            kind = EVENTS.get(name)
            if (kind is None or not kind.of_peer) and "about" not in fields:
                self._kept.append(event)
        if logger.isEnabledFor(level):
            logger.log(level, "%s", Text(name, bounded), extra={"event": event})

    def kept(self) -> list[Event]:
        """The last events, the oldest first."""
        with self._lock:
            return list(self._kept)


class Text:
    """An event as text, made only if somebody writes it."""

    __slots__ = ("_fields", "_name")

    def __init__(self, name: str, fields: dict[str, Value]) -> None:
        self._name = name
        self._fields = fields

    def __str__(self) -> str:
        return " ".join([self._name, *(f"{k}={_shown(v)}" for k, v in self._fields.items())])


def _bounded(value: Value) -> Value:
    if isinstance(value, str):
        return _cut(value, TEXT_MAX_LENGTH)
    if isinstance(value, Sequence):
        return [_bounded(each) for each in value[:ITEMS_MAX]]  # type: ignore[return-value]
    return value


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[:length] + "..."


def _about(fields: dict[str, Value]) -> str:
    """Whose and why: the peer's address without its port, and the words that don't change."""
    peer, reason = str(fields["peer"]), str(fields["reason"])[:TEXT_MAX_LENGTH]
    cause = _CAUSE.match(reason)
    return f"{peer.rpartition(':')[0] or peer} {cause.group().strip() if cause else ''}"


def _escaped(text: str) -> str:
    """In quotes, as in JSON, with unprintable characters escaped."""
    quoted = json.dumps(text, ensure_ascii=False)
    if quoted.isprintable():
        return quoted
    return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in quoted)


def _shown(value: Value) -> str:
    """A value after its equals sign: in quotes if it'd be taken for more than one."""
    if isinstance(value, str):
        plain = value and value.isprintable() and not any(each in value for each in ' "=\\')
        return value if plain else _escaped(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.3f}"
    if value is None:
        return "-"
    if isinstance(value, Sequence):
        return _shown(",".join(map(str, value)))
    return str(value)


_log = EventLog()


def emit(logger: logging.Logger, level: int, name: str, /, **fields: Value) -> bool:
    """Something that is in `EVENTS` has happened; whether it is written. See the module."""
    return _log.emit(logger, level, name, fields)


def flush() -> None:
    """Tells of what was suppressed: before the process ends."""
    _log.flush()


def flush_with(call_later: CallLater) -> None:
    """See `EventLog.flush_with`."""
    _log.flush_with(call_later)


def calls_on(loop: AbstractEventLoop) -> CallLater:
    """What `flush_with` takes, for an event loop."""
    return lambda delay_s, function: loop.call_soon_threadsafe(loop.call_later, delay_s, function)


def kept() -> list[Event]:
    """The last events of this process, the oldest first."""
    return _log.kept()


def _forget() -> None:
    """A child has no events, no timer and no lock of its parent's."""
    global _log
    _log = EventLog()


os.register_at_fork(after_in_child=_forget)
