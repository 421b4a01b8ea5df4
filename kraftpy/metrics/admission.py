"""Who may be connected to the exporter, and what the answers under way may take.

Rules:

* At most `CONNECTIONS_MAX` connections, `CONNECTIONS_PER_PEER_MAX` of one address. One that comes
  beyond that is let in, and another one goes, of the same address if that has too many: the one
  that has said nothing for longest, else the one whose answer has been under way for longest.
* What costs memory is made by few at a time, and only while the answers that wait for their readers
  take less than `ANSWERS_MAX_BYTES`. The next is the one whose address has the fewest answers under
  way, and of those the one that has waited longest. Where there is no room for it, readers that
  have taken longer than `SLOW_S` go, the slowest first.
* A check of health needs none of that, and isn't made to go: it always has its turn. Whoever opens
  connections or doesn't read must not keep a node from being found healthy.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from enum import Enum

from kraftpy.events import emit

CONNECTIONS_MAX = 64
CONNECTIONS_PER_PEER_MAX = 32
ANSWERS_MAX_BYTES = 64 * 1024 * 1024
SLOW_S = 2.0
TURN_MAX_S = 10.0

logger = logging.getLogger(__name__)


class Making(Enum):
    """What is made for an answer; `most` is by how many at a time."""

    METRICS = "metrics", 1
    PAGE = "page", 2
    LOGIN = "login", 1

    @property
    def most(self) -> int:
        most: int = self.value[1]
        return most


class TooBusy(Exception):
    """It wasn't the connection's turn in time."""


class Place:
    """A connection that is let in.

    `since_s` is since when it has said nothing, or its answer has been under way. `size_bytes` is
    that of the answer that it is sent; `is_made`: one is being made; `keeps`: it needn't go for
    others.
    """

    __slots__ = ("connection", "is_made", "is_silent", "keeps", "peer", "since_s", "size_bytes")

    def __init__(self, connection: socket.socket, peer: str) -> None:
        self.connection = connection
        self.peer = peer
        self.is_silent = True
        self.is_made = False
        self.keeps = False
        self.since_s = time.monotonic()
        self.size_bytes = 0


class Admission:
    """Of all connections of one server; thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._places: dict[socket.socket, Place] = {}
        self._of_peer: Counter[str] = Counter()
        self._making: Counter[Making] = Counter()
        self._waiting: dict[Making, list[Place]] = {what: [] for what in Making}
        self._answers_bytes = 0

    def enter(self, connection: socket.socket, peer: str) -> bool:
        """Lets a connection in; False if all others are checked for health just now."""
        with self._changed:
            if self._of_peer[peer] >= CONNECTIONS_PER_PEER_MAX:
                has_room = self._send_away(peer)
            else:
                has_room = len(self._places) < CONNECTIONS_MAX or self._send_away(None)
            if has_room:
                self._places[connection] = Place(connection, peer)
                self._of_peer[peer] += 1
            elif not self._of_peer[peer]:
                del self._of_peer[peer]
            return has_room

    def leave(self, connection: socket.socket) -> None:
        """The connection has ended."""
        with self._changed:
            place = self._places.get(connection)
            if place is not None:
                self._forget(place)

    def holds(self, connection: socket.socket) -> bool:
        """Whether the connection hasn't had to go."""
        with self._changed:
            return connection in self._places

    def listens(self, connection: socket.socket) -> None:
        """The connection is waited on for a request."""
        self._turns(connection, is_silent=True)

    def answers(self, connection: socket.socket, *, keeps: bool = False) -> None:
        """Its request is there; `keeps`: it needn't go for others."""
        self._turns(connection, is_silent=False, keeps=keeps)

    def _turns(self, connection: socket.socket, *, is_silent: bool, keeps: bool = False) -> None:
        with self._changed:
            place = self._place_of(connection)
            self._answers_bytes -= place.size_bytes
            place.size_bytes = 0
            place.is_silent, place.keeps = is_silent, keeps
            place.since_s = time.monotonic()
            self._changed.notify_all()

    @contextlib.contextmanager
    def making(self, connection: socket.socket, what: Making) -> Iterator[None]:
        """Until it ends something is made for the connection, when that has its turn.

        Raises TooBusy, or ConnectionAbortedError if it had to go meanwhile.
        """
        with self._changed:
            place = self._place_of(connection)
            waiting = self._waiting[what]
            waiting.append(place)
            try:
                self._await_turn(place, what)
            finally:
                waiting.remove(place)
            self._making[what] += 1
            place.is_made = True
        try:
            yield
        finally:
            with self._changed:
                self._making[what] -= 1
                place.is_made = False
                self._changed.notify_all()

    def _await_turn(self, place: Place, what: Making) -> None:
        deadline_s = time.monotonic() + TURN_MAX_S
        while (
            self._making[what] >= what.most
            or self._next_of(what) is not place
            or not self._has_room()
        ):
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise TooBusy
            # Not longer, since a reader may become slow meanwhile.
            self._changed.wait(min(left_s, SLOW_S / 4))
            self._place_of(place.connection)

    def _next_of(self, what: Making) -> Place:
        under_way = Counter(
            each.peer for each in self._places.values() if each.size_bytes or each.is_made
        )
        return min(self._waiting[what], key=lambda each: under_way[each.peer])

    def _place_of(self, connection: socket.socket) -> Place:
        place = self._places.get(connection)
        if place is None:
            raise ConnectionAbortedError("it had to go for others")
        return place

    def sends(self, connection: socket.socket, size_bytes: int) -> None:
        """An answer of that size is about to be fetched."""
        with self._changed:
            place = self._place_of(connection)
            place.size_bytes += size_bytes
            place.since_s = time.monotonic()
            self._answers_bytes += size_bytes

    def _has_room(self) -> bool:
        if self._answers_bytes >= ANSWERS_MAX_BYTES:
            sending = [place for place in self._places.values() if place.size_bytes]
            slowest = min(sending, key=_since)
            if time.monotonic() - slowest.since_s >= SLOW_S:
                self._close(slowest, "it reads too slowly, and others wait")
        return self._answers_bytes < ANSWERS_MAX_BYTES

    def _send_away(self, peer: str | None) -> bool:
        """Makes one go, of this peer if it isn't None."""
        places = [
            place
            for place in self._places.values()
            if (peer is None or place.peer == peer) and not place.keeps
        ]
        if not places:
            return False
        silent = [place for place in places if place.is_silent]
        whose = "in all" if peer is None else "of its address"
        self._close(min(silent or places, key=_since), f"there are too many connections {whose}")
        return True

    def _close(self, place: Place, reason: str) -> None:
        self._forget(place)
        with contextlib.suppress(OSError):  # it is ending by itself
            # The socket's own: with TLS, its thread would go on in plain text.
            socket.socket.shutdown(place.connection, socket.SHUT_RDWR)
        emit(
            logger,
            logging.WARNING,
            "connection-closed",
            peer=place.peer,
            client=None,
            reason=reason,
        )

    def _forget(self, place: Place) -> None:
        del self._places[place.connection]
        self._of_peer[place.peer] -= 1
        if not self._of_peer[place.peer]:
            del self._of_peer[place.peer]
        self._answers_bytes -= place.size_bytes
        place.size_bytes = 0
        self._changed.notify_all()


def _since(place: Place) -> float:
    return place.since_s
