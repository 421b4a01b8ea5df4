"""Which address of a broker is for whom.

A client is told the endpoints of the listener that it came in on, other brokers those of
`inter.broker.listener.name` (KIP-103, KIP-291). What a broker registers is what
`advertised.listeners` says, else where it listens; one that listens on every interface registers
its machine's name. To its own clients such a broker names the address that they found it under.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Protocol

from kraftpy.core.config import BrokerConfig
from kraftpy.core.config.addresses import Address
from kraftpy.core.config.listeners import security_protocol
from kraftpy.core.metadata import Broker as BrokerRecord
from kraftpy.core.metadata import Endpoint, MetadataState
from kraftpy.frozen import NamedTuple

if TYPE_CHECKING:
    from kraftpy.server.network.dispatch import RequestContext

_EVERY_INTERFACE = ("", "0.0.0.0", "::")  # noqa: S104 - what is compared with


class Node(NamedTuple):
    """A broker's address as one client is told it."""

    node_id: int
    host: str
    port: int
    rack: str | None
    fenced: bool


def endpoints_to_register(
    config: BrokerConfig, sockets: list[socket.socket]
) -> tuple[Endpoint, ...]:
    """The endpoints of this broker, one for each listener, as `register_broker` has them."""
    advertised = {listener.name: listener for listener in config.advertised_listeners or ()}
    endpoints = []
    for listener, sock in zip(config.broker_listeners, sockets, strict=True):
        host, port = sock.getsockname()[:2]
        if listener.name in advertised:
            host, port = advertised[listener.name].host, advertised[listener.name].port
        elif host in _EVERY_INTERFACE:
            host = socket.gethostname()
        endpoints.append(
            Endpoint(
                listener=listener.name,
                host=host,
                port=port,
                security_protocol=security_protocol(config, listener.name),
            )
        )
    return tuple(endpoints)


def metrics_to_register(address: Address, endpoints: tuple[Endpoint, ...]) -> str:
    """Where the metrics of this broker's node are, as others find its first listener."""
    if address.host in _EVERY_INTERFACE:
        address = Address(endpoints[0].host, address.port)
    return str(address)


def endpoint_of(broker: BrokerRecord, listener: str) -> Endpoint:
    """The broker's endpoint of this listener, or its first one if it has none of that name."""
    for endpoint in broker.endpoints:
        if endpoint.listener == listener:
            return endpoint
    return broker.endpoints[0]


class KnowsBrokers(Protocol):
    """What is needed of the broker."""

    @property
    def metadata(self) -> MetadataState: ...
    @property
    def config(self) -> BrokerConfig: ...


def inter_broker_endpoint(host: KnowsBrokers, node_id: int) -> Endpoint | None:
    """Where another broker takes this one's requests, None if it isn't up."""
    broker = host.metadata.brokers.get(node_id)
    return None if broker is None else endpoint_of(broker, host.config.inter_broker_listener.name)


def node_for(broker: BrokerRecord, ctx: RequestContext, config: BrokerConfig) -> Node:
    """The broker as the client behind `ctx` is told it; `config` is that of this broker."""
    endpoint = endpoint_of(broker, ctx.session.listener)
    host, port = endpoint.host, endpoint.port
    if broker.id == config.node_id:
        advertised = {listener.name for listener in config.advertised_listeners or ()}
        if ctx.session.listener not in advertised:
            host, port = ctx.session.local_host, ctx.session.local_port
    return Node(broker.id, host, port, broker.rack, broker.fenced)
