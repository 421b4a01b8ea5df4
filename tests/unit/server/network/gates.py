"""A listener with a gate, of a broker that only says who asks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from kraftpy.core.config import BrokerConfig
from kraftpy.core.metadata import MetadataState, ScramCredential, ScramMechanism
from kraftpy.protocol import messages as m
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.sasl import scram
from kraftpy.protocol.sasl.clients import ClientLogin, login
from kraftpy.quorum.credentials import QuorumSecret
from kraftpy.server.cluster.logins import gates, new_nonce
from kraftpy.server.handlers import sasl
from kraftpy.server.network.connection import Connection
from kraftpy.server.network.dispatch import Dispatcher, HandlerSpec, RequestContext
from kraftpy.server.network.listener import Listener, bind
from tests.server.wire import Wire

SECRET = b"quorum"
PASSWORD = "marker-password-1"
PLAIN_LINE = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    f'user_alice="{PASSWORD}" user_bob="other";'
)
T = TypeVar("T")


def config_of(**settings: str) -> BrokerConfig:
    """One SASL listener with all mechanisms, and one with SCRAM-SHA-512 only."""
    return BrokerConfig.from_properties(
        {
            "listeners": "SASL://127.0.0.1:1,STRICT://127.0.0.1:2,PLAINTEXT://127.0.0.1:3",
            "listener.security.protocol.map": "SASL:SASL_PLAINTEXT,STRICT:SASL_PLAINTEXT,"
            "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "SASL",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
            "listener.name.sasl.plain.sasl.jaas.config": PLAIN_LINE,
            "listener.name.strict.sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "connection.failed.authentication.delay.ms": "20",
            **{key.replace("__", "."): value for key, value in settings.items()},
        }
    )


def credential(mechanism: ScramMechanism, password: str) -> ScramCredential:
    salted = scram.salted_password(mechanism.wire_name, password, b"salt", 4096)
    keys = scram.keys(mechanism.wire_name, salted)
    return ScramCredential(4096, b"salt", keys.stored_key, keys.server_key)


class Door:
    """What a test has of it: the listener, what was asked behind the gate, and a client."""

    def __init__(self, config: BrokerConfig) -> None:
        loop = asyncio.get_running_loop()
        self.metadata = MetadataState()
        for name in ("alice", "carol"):
            self.metadata.scram[name] = {
                each: credential(each, PASSWORD) for each in ScramMechanism
            }
        self.asked: list[str] = []
        self.dispatcher = Dispatcher(
            self,
            {
                ApiKey.API_VERSIONS: HandlerSpec(_api_versions, False, False),
                ApiKey.METADATA: HandlerSpec(_metadata, False, False),
                ApiKey.SASL_HANDSHAKE: HandlerSpec(sasl.sasl_handshake, False, False),
                ApiKey.SASL_AUTHENTICATE: HandlerSpec(sasl.sasl_authenticate, False, False),
            },
        )
        self.gates = gates(config, lambda: self.metadata, QuorumSecret(SECRET))
        self.listener = Listener(loop, config, self.dispatcher, lambda _: None, self.gates)
        self.ports: dict[str, int] = {}
        for name in ("SASL", "STRICT", "PLAINTEXT"):
            sock = bind("127.0.0.1", 0)
            self.ports[name] = sock.getsockname()[1]
            self.listener.start(sock, name)

    @property
    def connections(self) -> list[Connection]:
        """Those that are open."""
        return list(self.listener._connections)

    def wire(self, listener: str = "SASL") -> Wire:
        return Wire("127.0.0.1", self.ports[listener], timeout_s=10.0)

    async def talk(self, client: Callable[[Wire], T], listener: str = "SASL") -> T:
        """What a blocking client comes to, in a thread."""

        def run() -> T:
            with self.wire(listener) as wire:
                return client(wire)

        return await asyncio.to_thread(run)


def _api_versions(broker: Door, ctx: RequestContext, _: Any) -> m.ApiVersionsResponse:
    return broker.dispatcher.api_versions(ErrorCode.NONE)


def _metadata(broker: Door, ctx: RequestContext, _: Any) -> m.MetadataResponse:
    broker.asked.append(str(ctx.session.principal))
    return m.MetadataResponse(cluster_id=str(ctx.session.principal))


@asynccontextmanager
async def door(**settings: str) -> AsyncIterator[Door]:
    made = Door(config_of(**settings))
    try:
        yield made
    finally:
        made.listener.drain()
        await made.listener.stop(0.0)


# -- what a client does


def versions(wire: Wire) -> Any:
    return wire.call(ApiKey.API_VERSIONS, 0, m.ApiVersionsRequest())


def handshake(wire: Wire, mechanism: str, version: int = 1) -> Any:
    return wire.call(ApiKey.SASL_HANDSHAKE, version, m.SaslHandshakeRequest(mechanism))


def token(wire: Wire, data: bytes, version: int = 2) -> Any:
    return wire.call(ApiKey.SASL_AUTHENTICATE, version, m.SaslAuthenticateRequest(data))


def who_am_i(wire: Wire) -> str:
    """The principal that the broker takes this connection for."""
    answer: str = wire.call(ApiKey.METADATA, 9, m.MetadataRequest([])).cluster_id
    return answer


def client(mechanism: str, name: str = "alice", password: str = PASSWORD) -> ClientLogin:
    return login(mechanism, name, password, new_nonce())


def log_in(wire: Wire, mechanism: str, name: str = "alice", password: str = PASSWORD) -> Any:
    """The last answer to a login."""
    assert handshake(wire, mechanism).error_code == 0
    side = client(mechanism, name, password)
    answer = token(wire, side.first())
    while not answer.error_code:
        message = side.answer(answer.auth_bytes)
        if message is None:
            break
        answer = token(wire, message)
    return answer
