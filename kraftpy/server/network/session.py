"""Who is behind a connection: what a handler may know of a client besides its request."""

from __future__ import annotations

from kraftpy.core.security.principals import ANONYMOUS, Principal


class Session:
    """As whom a connection asks, from where, and at which address of this broker.

    `host` and `peer` are the client's address without and with its port; `listener` is the name of
    the listener, `local_host` and `local_port` the address that the client has connected to.
    """

    __slots__ = ("host", "listener", "local_host", "local_port", "peer", "principal")

    def __init__(
        self,
        listener: str,
        *,
        peer: tuple[str, int],
        local: tuple[str, int],
        principal: Principal = ANONYMOUS,
    ) -> None:
        self.principal = principal
        self.listener = listener
        self.host, port = peer
        self.peer = f"[{self.host}]:{port}" if ":" in self.host else f"{self.host}:{port}"
        self.local_host, self.local_port = local
