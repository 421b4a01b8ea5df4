"""Connections to other brokers: to which address, by what they are secured, and as whom.

Brokers meet at the listener that `inter.broker.listener.name` or `security.inter.broker.protocol`
names. Whether one speaks TLS there, and has others log in, is what it has registered, so that
brokers reach each other while a cluster is changed from one listener to another.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping

from kraftpy.client.connection import Connection, ConnectionLostError
from kraftpy.core.config.listeners import WITH_SASL, WITH_TLS
from kraftpy.core.metadata import Endpoint
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.sasl.clients import ClientLogin


class Dialer:
    """Opens them. `endpoint` says where a broker is found now, `tls` what to encrypt with.

    `login` makes a login, for brokers that take one.
    """

    def __init__(
        self,
        endpoint: Callable[[int], Endpoint | None],
        tls: Callable[[], ssl.SSLContext | None],
        login: Callable[[], ClientLogin] | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._tls = tls
        self._login = login

    def address(self, node_id: int) -> tuple[str, int] | None:
        """Where a broker takes the requests of others, None if it isn't up."""
        endpoint = self._endpoint(node_id)
        return None if endpoint is None else (endpoint.host, endpoint.port)

    async def open(
        self,
        node_id: int,
        *,
        client_id: str,
        timeout_ms: int,
        versions: Mapping[ApiKey, tuple[int, int]],
    ) -> Connection:
        """A connection to that broker. Raises ConnectionLostError or KafkaError."""
        endpoint = self._endpoint(node_id)
        if endpoint is None:
            raise ConnectionLostError(f"broker {node_id} has no address")
        context = None
        if endpoint.security_protocol in WITH_TLS:
            context = self._tls()
            if context is None:
                raise ConnectionLostError(
                    f"broker {node_id} speaks {endpoint.security_protocol} at listener "
                    f"{endpoint.listener}, and this one has no TLS for brokers"
                )
        return await Connection.open(
            endpoint.host,
            endpoint.port,
            client_id=client_id,
            timeout_ms=timeout_ms,
            versions=versions,
            ssl_context=context,
            login=self._login if endpoint.security_protocol in WITH_SASL else None,
        )
