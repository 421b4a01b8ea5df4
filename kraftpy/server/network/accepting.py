"""Accepts connections of a broker's listening sockets, each in its turn, or refuses them.

`core.connection_quotas` decides who waits and who is refused. Rules:

* Of each listening socket one connection at most is held until its turn comes; meanwhile none is
  accepted there, and others wait in the system's backlog.
* One that comes too fast from its address is closed late, so that it isn't back at once. At most
  LATE_MAX are kept for that; the oldest of them goes then.
* While there are too many connections those that have been idle for longest are closed, SHED_A_TURN
  in each turn of the loop.
* Names of hosts in `max.connections.per.ip.overrides` are looked up when they are set, as in Kafka,
  but not on the loop; until then, or without an answer, they count for nobody.
* When the process is out of file descriptors accepting pauses for ACCEPT_PAUSE_S instead of
  spinning.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import socket
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping

from kraftpy.core.config import BrokerConfig
from kraftpy.core.config.listeners import connection_limits
from kraftpy.core.connection_quotas import ConnectionLimits, ConnectionQuotas, Limits
from kraftpy.core.quotas import QuotaTable
from kraftpy.events import emit

log = logging.getLogger(__name__)

ACCEPT_BURST = 64
ACCEPT_PAUSE_S = 0.5
LATE_MAX = 1000
SHED_A_TURN = 32
TELL_INTERVAL_S = 60.0


class _Held:
    """A connection that waits for its turn: until `timer` rings, and for a slot."""

    __slots__ = ("address", "since_s", "sock", "timer")

    def __init__(self, sock: socket.socket, address: str, since_s: float) -> None:
        self.sock = sock
        self.address = address
        self.since_s = since_s
        self.timer: asyncio.TimerHandle | None = None


class Acceptor:
    """The listening sockets of one broker.

    `admit(sock, listener, address)` takes a connection, and tells whether it's there still; at its
    end `left` is called. `close_idlest(count)` closes so many connections at most, but those of
    `exempt`, and tells how many. `quotas` gives those of clients, as they are now.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        config: BrokerConfig,
        admit: Callable[[socket.socket, str, str], bool],
        close_idlest: Callable[[int], int],
        quotas: Callable[[], QuotaTable],
    ) -> None:
        self._loop = loop
        self._admit = admit
        self._close_idlest = close_idlest
        self._config = config
        self._addresses: dict[str, tuple[str, ...]] = {}  # of the overrides' names
        self._lookup: asyncio.Task[None] | None = None
        self.quotas = ConnectionQuotas(limits_of(config, self._addresses), quotas)
        self._listeners: dict[socket.socket, str] = {}
        self._held: dict[socket.socket, _Held] = {}
        self._late: dict[socket.socket, asyncio.TimerHandle] = {}
        self._shedding = False
        self._waited_s: defaultdict[str, float] = defaultdict(float)
        self._told_s: dict[tuple[str, bool], float] = {}
        self.accepted = 0  # since the start, as are the others
        self.refused = 0
        self.delayed: Counter[str] = Counter()
        """Connections that had to wait, by listener."""

    @property
    def exempt(self) -> str | None:
        """The listener whose connections needn't give way."""
        return self.quotas.limits.exempt

    def waited_s(self, listener: str) -> float:
        """For how long accepting was held up, in all."""
        now_s = self._loop.time()
        return self._waited_s[listener] + sum(
            now_s - held.since_s
            for sock, held in self._held.items()
            if self._listeners[sock] == listener
        )

    @property
    def listeners(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(self._listeners.values())

    def start(self, sock: socket.socket, listener: str) -> None:
        """Accepts connections of a bound and listening socket."""
        self._listeners[sock] = listener
        self._loop.add_reader(sock.fileno(), self._accept, sock)
        if self._lookup is None:
            self._look_up_names()

    def update_config(self, config: BrokerConfig) -> None:
        """Goes by changed settings, and lets in whom they let in."""
        before, self._config = self._config, config
        if config.max_connections_per_ip_overrides != before.max_connections_per_ip_overrides:
            self._look_up_names()
        self._update()

    def _update(self) -> None:
        self.quotas.limits = limits_of(self._config, self._addresses)
        self._look_at_held()
        self.relieve()

    # -- names

    def _look_up_names(self) -> None:
        names = [
            host
            for host, _ in self._config.max_connections_per_ip_overrides
            if not _is_address(host)
        ]
        if self._lookup is not None:
            self._lookup.cancel()
            self._lookup = None
        if names and self._listeners:
            self._lookup = self._loop.create_task(self._look_up(names))
        elif not names:
            self._addresses = {}

    async def _look_up(self, names: list[str]) -> None:
        addresses = {}
        for name in names:
            try:
                found = await self._loop.getaddrinfo(name, None, type=socket.SOCK_STREAM)
            except OSError as error:
                log.warning(
                    "max.connections.per.ip.overrides: %s can't be looked up, so it counts for "
                    "nobody: %s",
                    name,
                    error.strerror or error,
                )
            else:
                addresses[name] = tuple({address_of(str(each[4][0])) for each in found})
        self._addresses = addresses
        self._update()

    # -- who comes

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPT_BURST):
            try:
                sock, peer = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS):
                    raise
                log.error("can't accept connections for now: %s", error.strerror)
                self._loop.remove_reader(listening.fileno())
                self._loop.call_later(ACCEPT_PAUSE_S, self._accept_again, listening)
                return
            if not self._arrive(listening, sock, address_of(str(peer[0]))):
                return

    def _accept_again(self, listening: socket.socket) -> None:
        if listening in self._listeners:
            self._loop.add_reader(listening.fileno(), self._accept, listening)

    def _arrive(self, listening: socket.socket, sock: socket.socket, address: str) -> bool:
        """A connection has come; whether others may."""
        listener = self._listeners[listening]
        now_s = self._loop.time()
        wait_s = self.quotas.arrive(listener, now_s)
        if not wait_s and self.quotas.has_slot(listener):
            self._enter(sock, listener, address)
            return True
        self._loop.remove_reader(listening.fileno())
        held = self._held[listening] = _Held(sock, address, now_s)
        self.delayed[listener] += 1
        if wait_s:
            held.timer = self._loop.call_later(wait_s, self._waited, listening, held)
        self._tell(listener, wait_s > 0, now_s)
        return False

    def _tell(self, listener: str, is_fast: bool, now_s: float) -> None:
        """Says so, but not of each that waits."""
        told_s = self._told_s.get((listener, is_fast))
        if told_s is not None and now_s - told_s < TELL_INTERVAL_S:
            return
        self._told_s[listener, is_fast] = now_s
        if is_fast:
            level, limit = logging.INFO, self.quotas.what_is_fast(listener)
            reason = f"more come in a second than {limit}"
        else:
            level, limit = logging.WARNING, self.quotas.what_is_full(listener)
            reason = f"there are as many as {limit}"
        emit(log, level, "connections-wait", listener=listener, reason=reason)

    def _waited(self, listening: socket.socket, held: _Held) -> None:
        held.timer = None
        self._look_at(listening, held)

    def _look_at_held(self) -> None:
        for listening, held in list(self._held.items()):
            self._look_at(listening, held)

    def _look_at(self, listening: socket.socket, held: _Held) -> None:
        """Lets it in if its turn has come."""
        listener = self._listeners.get(listening, "")
        is_late = self._held.get(listening) is not held  # somebody else has looked meanwhile
        if is_late or held.timer is not None or not self.quotas.has_slot(listener):
            return
        del self._held[listening]
        self._waited_s[listener] += self._loop.time() - held.since_s
        self._enter(held.sock, listener, held.address)
        self._accept_again(listening)

    def _enter(self, sock: socket.socket, listener: str, address: str) -> None:
        refusal = self.quotas.refusal(listener, address, self._loop.time())
        if refusal is not None:
            self.refused += 1
            reason = f"the limit is {refusal.limit}"
            emit(log, logging.WARNING, "connection-refused", peer=address, reason=reason)
            if refusal.delay_s:
                self._close_late(sock, refusal.delay_s)
            else:
                sock.close()
            return
        self.quotas.enter(listener, address)
        if self._admit(sock, listener, address):
            self.accepted += 1
        else:
            self.left(listener, address)

    def _close_late(self, sock: socket.socket, delay_s: float) -> None:
        if len(self._late) >= LATE_MAX:
            self._close_now(next(iter(self._late)))
        self._late[sock] = self._loop.call_later(delay_s, self._close_now, sock)

    def _close_now(self, sock: socket.socket) -> None:
        self._late.pop(sock).cancel()
        sock.close()

    # -- who goes

    def left(self, listener: str, address: str) -> None:
        """A connection has ended."""
        self.quotas.leave(listener, address)
        if self._held:
            self._look_at_held()

    def relieve(self) -> None:
        """Closes connections if there are too many, soon."""
        if self.quotas.excess and not self._shedding:
            self._shedding = True
            self._loop.call_soon(self._shed)

    def _shed(self) -> None:
        self._shedding = False
        excess = self.quotas.excess
        if excess and self._listeners and self._close_idlest(min(excess, SHED_A_TURN)):
            self.relieve()

    def close(self) -> None:
        """Accepts none any more."""
        if self._lookup is not None:
            self._lookup.cancel()
        for held in self._held.values():
            if held.timer is not None:
                held.timer.cancel()
            held.sock.close()
        self._held.clear()
        for sock in list(self._late):
            self._close_now(sock)
        for listening in self._listeners:
            self._loop.remove_reader(listening.fileno())
            listening.close()
        self._listeners.clear()


def address_of(host: str) -> str:
    """A peer's address as quotas have it: IPv4 as such, IPv6 without a scope."""
    return host.removeprefix("::ffff:").partition("%")[0]


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def limits_of(config: BrokerConfig, addresses: Mapping[str, tuple[str, ...]]) -> ConnectionLimits:
    """What counts at this broker; `addresses` are those of names."""
    overrides: dict[str, int] = {}
    for host, most in config.max_connections_per_ip_overrides:
        overrides.update(dict.fromkeys(addresses.get(host, ()), most))
    for host, most in config.max_connections_per_ip_overrides:
        if _is_address(host):
            overrides[host] = most
    names = [each.name for each in config.broker_listeners]
    return ConnectionLimits(
        broker=Limits(config.max_connections, config.max_connection_creation_rate),
        listeners={
            name: limits
            for name in names
            if (limits := Limits(*connection_limits(config, name))) != Limits()
        },
        per_ip=config.max_connections_per_ip,
        overrides=overrides,
        exempt=config.inter_broker_listener.name if len(names) > 1 else None,
    )
