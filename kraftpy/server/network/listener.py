"""The connections of a broker: makes them of sockets, sweeps idle ones, drains them at shutdown.

Who comes in, and when, is decided before (`accepting`). A listener with TLS has the handshake
before a connection (`handshakes`, `unestablished`).

Rules: a connection without traffic for `connections.max.idle.ms` is closed. Where clients have to
log in a gate takes their frames until then (`gate`, `unestablished`).
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Mapping
from heapq import nsmallest
from operator import attrgetter
from time import perf_counter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from kraftpy.core.config import BrokerConfig
from kraftpy.core.quotas import QuotaTable
from kraftpy.events import emit
from kraftpy.server.network.accepting import Acceptor
from kraftpy.server.network.connection import Connection, Scratch
from kraftpy.server.network.dispatch import Dispatcher
from kraftpy.server.network.gate import RECEIVE_MAX, Dispatch, Gate, GateRules, LoginNumbers
from kraftpy.server.network.handshakes import Handshake, Handshakes
from kraftpy.server.network.memory import MEMORY_STALL_MAX_S, MEMORY_WAIT_MAX_S, QueueMemory
from kraftpy.server.network.sending import Channel, PlainChannel
from kraftpy.server.network.session import Session
from kraftpy.server.network.tls_channel import SCRATCH_BYTES, TlsChannel
from kraftpy.server.network.tls_listeners import ListenerTls, TlsListeners
from kraftpy.server.network.unestablished import Place, Unestablished
from kraftpy.tls.settings import TlsError

if TYPE_CHECKING:
    from kraftpy.core.security.principals import Principal

log = logging.getLogger(__name__)

BACKLOG = 512
SWEEP_INTERVAL_S = 5.0


def bind(host: str, port: int) -> socket.socket:
    """A bound, not yet listening socket; `OSError` if the address can't be had."""
    infos = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    infos.sort(key=lambda info: info[0] != (socket.AF_INET6 if not host else info[0]))
    family, kind, protocol, _, address = infos[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6 and not host:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.setblocking(False)
        sock.bind(address)
        # Listening now makes a second bind of the same port fail at start, not at first use;
        # clients that come early wait in the backlog until the broker accepts.
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


NO_GATES: Mapping[str, GateRules] = MappingProxyType({})


class Listener:
    """All client connections of one broker.

    `on_disconnect(peer)` is called when one has ended, whatever ended it. `gates` has the rules of
    those listeners where clients have to log in; `quotas` gives the quotas of clients, as they are
    now.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        config: BrokerConfig,
        dispatcher: Dispatcher,
        on_disconnect: Callable[[str], None],
        gates: Mapping[str, GateRules] = NO_GATES,
        quotas: Callable[[], QuotaTable] = QuotaTable,
    ) -> None:
        self._loop = loop
        self._gates = gates
        self._token_keys = [each.token_keys for each in gates.values() if each.token_keys]
        self._gated: dict[Connection, Place] = {}
        self.logins = LoginNumbers()
        self._config = config
        self._dispatcher = dispatcher
        self._on_disconnect = on_disconnect
        self._scratch = Scratch()
        self._memory = QueueMemory(config.queued_max_request_bytes)
        self._answer_memory = QueueMemory(
            config.queued_max_response_bytes, "queued.max.response.bytes"
        )
        self.tls = TlsListeners(loop, config)
        self._unestablished = Unestablished(loop)
        self.handshakes = Handshakes(loop, self._unestablished)
        self._cipher_scratch = memoryview(bytearray(SCRATCH_BYTES if self.tls.by_name else 0))
        self._connections: set[Connection] = set()
        self.acceptor = Acceptor(loop, config, self._admit, self._close_idlest, quotas)
        self._sweeper: asyncio.TimerHandle | None = None

    @property
    def connections(self) -> int:
        return len(self._connections)

    @property
    def request_memory_bytes(self) -> int:
        """Of requests that aren't whole, of long ones until the answer, of batches to be opened."""
        return self._memory.used_bytes

    @property
    def request_memory(self) -> QueueMemory:
        """Where it is counted."""
        return self._memory

    @property
    def answer_memory_bytes(self) -> int:
        """What answers take that are being built, or that haven't been sent."""
        return self._answer_memory.used_bytes

    def update_config(self, config: BrokerConfig) -> None:
        """Applies changed dynamic settings; they hold for connections from now on."""
        self._config = config
        self.tls.update_config(config)
        self.acceptor.update_config(config)

    def start(self, sock: socket.socket, name: str) -> None:
        """Accepts connections of a bound and listening socket; `name` is the listener's."""
        self.acceptor.start(sock, name)
        if self._sweeper is None:
            self._sweep()
            self.tls.start()
            for keys in self._token_keys:
                keys.start(self._loop)

    def _admit(self, sock: socket.socket, listener: str, address: str) -> bool:
        config = self._config
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, size_bytes in (
                (socket.SO_SNDBUF, config.socket_send_buffer_bytes),
                (socket.SO_RCVBUF, config.socket_receive_buffer_bytes),
            ):
                if size_bytes > 0:
                    sock.setsockopt(socket.SOL_SOCKET, option, size_bytes)
            session = Session.of(sock, listener)
        except OSError:
            sock.close()  # the peer left between connect and accept
            return False
        tls = self.tls.by_name.get(listener)
        if tls is None:
            self._connect(PlainChannel(self._loop, sock), session, address)
        else:
            self._shake_hands(tls, sock, session, address)
        return True

    def _shake_hands(
        self, tls: ListenerTls, sock: socket.socket, session: Session, address: str
    ) -> None:
        channel = TlsChannel(self._loop, sock, tls.context, self._cipher_scratch)

        def ended(shake: Handshake, reason: str | None) -> None:
            is_open = reason is None
            if reason is None:
                assert shake.place is not None
                try:
                    if session.listener not in self._gates:  # else a login says who it is
                        session.principal = tls.principal_of(channel.tls)
                except TlsError as error:
                    reason = str(error)
                if reason is None:
                    self._connect(channel, session, address, shake.place)
                    return
                self._unestablished.leave(shake.place)
            emit(
                log,
                logging.WARNING,
                "connection-closed",
                peer=session.peer,
                client=None,
                reason=reason,
            )
            if is_open:
                channel.close()  # whoever sees that finds the reason in the log
            self._left(session, address)

        self.handshakes.begin(Handshake(sock, channel, ended))

    def _connect(
        self, channel: Channel, session: Session, address: str, place: Place | None = None
    ) -> None:
        """Frames are taken from now on; `place`: what a handshake has had until now."""
        connection = Connection(
            self._loop,
            channel,
            session,
            scratch=self._scratch,
            request_memory=self._memory,
            answer_memory=self._answer_memory,
            handled=self._dispatcher.handled,
            on_close=lambda closed: self._closed(closed, address),
            **self._entrance(session.listener),
        )
        self._connections.add(connection)
        if session.listener in self._gates:
            session.connection = None  # it's nobody's yet who could have a quota
            if place is None:
                place = self._unestablished.enter(connection.close)
            place.close = connection.close
            self._gated[connection] = place
        elif place is not None:
            self._unestablished.leave(place)
        self.acceptor.relieve()

    def _entrance(self, listener: str) -> dict[str, Any]:
        """What takes the frames of a new connection, and how large they may be."""
        rules = self._gates.get(listener)
        if rules is None:
            return {
                "dispatch": self._dispatcher.dispatch,
                "max_frame_bytes": self._config.socket_request_max_bytes,
            }
        gate = Gate(
            self._loop,
            rules,
            self._dispatcher.dispatch,
            self._let_in,
            self.logins,
            self.handshakes.compute,
        )
        return {
            "dispatch": gate.dispatch,
            "max_frame_bytes": rules.max_receive_bytes,
            "max_frame_setting": RECEIVE_MAX,
        }

    def _let_in(
        self, connection: Connection, principal: Principal, mechanism: str, dispatch: Dispatch
    ) -> None:
        self._leave_gate(connection)
        connection.let_in(
            principal,
            mechanism,
            dispatch=dispatch,
            max_frame_bytes=self._config.socket_request_max_bytes,
        )

    def _leave_gate(self, connection: Connection) -> None:
        place = self._gated.pop(connection, None)
        if place is not None:
            self._unestablished.leave(place)

    def end_sessions(self, lasts: Callable[[Session], bool]) -> None:
        """Ends the connections of those who have logged in and couldn't any more."""
        for connection in list(self._connections):
            session = connection.session
            if session.mechanism is not None and not lasts(session):
                connection.close("whoever has logged in here has no credential any more")

    def _closed(self, connection: Connection, address: str) -> None:
        self._connections.discard(connection)
        self._leave_gate(connection)
        self._left(connection.session, address)

    def _left(self, session: Session, address: str) -> None:
        self._on_disconnect(session.peer)
        self.acceptor.left(session.listener, address)

    def _close_idlest(self, count: int) -> int:
        exempt = self.acceptor.exempt
        others = (each for each in self._connections if each.session.listener != exempt)
        idlest = nsmallest(count, others, attrgetter("last_active"))
        for connection in idlest:
            connection.close("there are more than max.connections, and it was idle for longest")
        return len(idlest)

    def _sweep(self) -> None:
        now_s = perf_counter()
        if self._memory.scarce:
            self._close_stalled(now_s)
        if self._answer_memory.scarce:
            self._close_slow_readers(now_s)
        self._memory.expire(now_s)
        self._answer_memory.expire(now_s)
        idle_s = self._config.connections_max_idle_ms / 1000
        if idle_s > 0:
            idle = [c for c in self._connections if now_s - c.last_active > idle_s and not c.muted]
            for connection in idle:
                connection.close(None)
        self._sweeper = self._loop.call_later(SWEEP_INTERVAL_S, self._sweep)

    def _close_stalled(self, now_s: float) -> None:
        for connection in list(self._connections):
            if connection.holds_memory and now_s - connection.last_active > MEMORY_STALL_MAX_S:
                connection.close("it stalled inside a request while others wait for its memory")

    def _close_slow_readers(self, now_s: float) -> None:
        for connection in list(self._connections):
            since_s = connection.answers_held_since_s
            if since_s is not None and (
                now_s - since_s > MEMORY_WAIT_MAX_S
                or now_s - max(since_s, connection.last_active) > MEMORY_STALL_MAX_S
            ):
                connection.close(
                    "it doesn't read its answers while others wait for their memory "
                    "(queued.max.response.bytes)"
                )

    def drain(self) -> None:
        """Takes no further connection and no further request."""
        self.acceptor.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
        self.tls.close()
        for keys in self._token_keys:
            keys.close()
        self._unestablished.close()
        for connection in list(self._connections):
            connection.drain()

    async def stop(self, timeout_s: float) -> None:
        """After `drain`: gives answers that are due `timeout_s` to leave, then closes all."""
        deadline = self._loop.time() + timeout_s
        while self._loop.time() < deadline and any(  # noqa: ASYNC110 - many flags, briefly
            not c.idle for c in self._connections
        ):
            await asyncio.sleep(0.01)
        for connection in list(self._connections):
            connection.close(None)
