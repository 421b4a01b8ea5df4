"""Who is behind a connection: what a handler may know of a client besides its request."""

from __future__ import annotations

import socket
from typing import Protocol

from kraftpy.core.security.authorizer import View
from kraftpy.core.security.principals import ANONYMOUS, Principal


class Muted(Protocol):
    """A connection, as far as quotas go; `taken_s` is when it took what is handled now."""

    taken_s: float

    def mute(self, wait_s: float) -> None:
        """Takes no request for so long."""


class Session:
    """As whom a connection asks, from where, and at which address of this broker.

    `host` and `peer` are the client's address without and with its port; `listener` is the name of
    the listener, `local_host` and `local_port` the address that the client has connected to.
    `connection` is the one that it is of, None for what was passed on and until a login.
    `mechanism` is what it has logged in by, None without a login, and `expires_s` when that ends,
    as a time of the loop; None: never. `view` is what the principal may do, None where there is no
    authorizer or it wasn't asked yet. `token_id` is the delegation token that it has logged in by.
    """

    passed_on = False
    """Whether another broker has sent the request on."""

    __slots__ = (
        "connection",
        "expires_s",
        "host",
        "listener",
        "local_host",
        "local_port",
        "mechanism",
        "peer",
        "principal",
        "token_id",
        "view",
    )

    def __init__(
        self,
        listener: str,
        *,
        peer: tuple[str, int],
        local: tuple[str, int],
        principal: Principal = ANONYMOUS,
    ) -> None:
        self.principal = principal
        self.connection: Muted | None = None
        self.mechanism: str | None = None
        self.token_id: str | None = None
        self.expires_s: float | None = None
        self.view: View | None = None
        self.listener = listener
        self.host, port = peer
        self.peer = f"[{self.host}]:{port}" if ":" in self.host else f"{self.host}:{port}"
        self.local_host, self.local_port = local

    def patience_s(self, wanted_ms: int, now_s: float) -> float:
        """How long somebody who wants to wait so long can: not beyond the end of the login."""
        wanted_s = wanted_ms / 1000
        if self.expires_s is None:
            return wanted_s
        return min(wanted_s, max(self.expires_s - now_s, 0.0))

    @classmethod
    def of(cls, sock: socket.socket, listener: str, principal: Principal = ANONYMOUS) -> Session:
        """That of a connected socket. OSError if the peer has left."""
        peer, local = _host_port(sock.getpeername()), _host_port(sock.getsockname())
        return cls(listener, peer=peer, local=local, principal=principal)


def _host_port(address: object) -> tuple[str, int]:
    if isinstance(address, tuple) and len(address) >= 2:
        host = str(address[0])
        return host.removeprefix("::ffff:"), int(address[1])
    return str(address), 0


class PassedOnSession(Session):
    """The session of a request that another broker passes on: that of who has sent it there."""

    __slots__ = ()

    passed_on = True

    def __init__(self, over: Session, principal: Principal, host: str) -> None:
        super().__init__(
            over.listener,
            peer=(host, 0),
            local=(over.local_host, over.local_port),
            principal=principal,
        )
