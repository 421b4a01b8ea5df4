"""Connections that wait for their turn, and those that get none: real sockets, one loop."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from kraftpy.core.config import BrokerConfig
from kraftpy.core.quotas import CONNECTION_CREATION_RATE, IP, QuotaTable
from kraftpy.server.network import accepting as module
from kraftpy.server.network.accepting import address_of, limits_of
from kraftpy.server.network.connection import Connection
from kraftpy.server.network.listener import Listener, bind
from tests.waiting import until

DEADLINE_S = 20.0
IN, OUT = "IN", "OUT"
FILE = {
    "listeners": "IN://127.0.0.1:1,OUT://127.0.0.1:2",
    "listener.security.protocol.map": "IN:PLAINTEXT,OUT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": IN,
}


class Echo:
    """In a dispatcher's place."""

    def dispatch(self, connection: Connection, frame: memoryview) -> int:
        connection.respond([len(frame).to_bytes(4), bytes(frame)])
        return 1

    def handled(self, connection: Connection, total: int) -> None:
        pass


class Client:
    """One of a test's connections; `answered` once it was let in."""

    def __init__(self, port: int, host: str) -> None:
        self.sock = socket.socket()
        self.sock.bind((host, 0))
        self.sock.setblocking(False)
        self.sock.settimeout(None)
        self.sock.connect(("127.0.0.1", port))
        self.sock.setblocking(False)

    async def answered(self) -> bool:
        """False: it was closed."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(DEADLINE_S):
            try:
                await loop.sock_sendall(self.sock, b"\0\0\0\1x")
                return await loop.sock_recv(self.sock, 5) == b"\0\0\0\1x"
            except ConnectionError:
                return False

    def close(self) -> None:
        self.sock.close()


class Door:
    """A listener with two ports, and the clients of a test."""

    def __init__(self, listener: Listener, config: BrokerConfig, quotas: QuotaTable) -> None:
        self.quotas = quotas
        self.listener = listener
        self.acceptor = listener.acceptor
        self._config = config
        self._ports: dict[str, int] = {}
        self.clients: list[Client] = []
        for name in (IN, OUT):
            sock = bind("127.0.0.1", 0)
            self._ports[name] = sock.getsockname()[1]
            listener.start(sock, name)

    def connect(self, listener: str = OUT, host: str = "127.0.0.1") -> Client:
        client = Client(self._ports[listener], host)
        self.clients.append(client)
        return client

    async def let_in(self, count: int, listener: str = OUT) -> list[Client]:
        clients = [self.connect(listener) for _ in range(count)]
        for client in clients:
            assert await client.answered()
        return clients

    def set(self, **keys: str) -> None:
        dynamic = {key.replace("_", "."): value for key, value in keys.items()}
        self.listener.update_config(self._config.with_dynamic(dynamic))

    def has(self, address: str, connections: int) -> bool:
        return self.acceptor.quotas.of_address(address) == connections

    def waits(self, listener: str = OUT) -> bool:
        return listener in {self.acceptor._listeners[each] for each in self.acceptor._held}


@asynccontextmanager
async def door(**settings: str) -> AsyncIterator[Door]:
    keys = {key.replace("_", "."): value for key, value in settings.items()}
    config = BrokerConfig.from_properties({**FILE, **keys})
    echo: Any = Echo()
    quotas = QuotaTable()
    listener = Listener(
        asyncio.get_running_loop(), config, echo, lambda _: None, quotas=lambda: quotas
    )
    opened = Door(listener, config, quotas)
    try:
        yield opened
    finally:
        for client in opened.clients:
            client.close()
        listener.drain()
        await listener.stop(0.0)
        assert not opened.acceptor._held
        assert not opened.acceptor._late
    assert (opened.acceptor.quotas.total, opened.acceptor.quotas.addresses) == (0, 0)


# -- slots


async def test_beyond_max_connections_others_wait_until_there_is_a_slot(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with door(max_connections="2") as opened:
        inside = await opened.let_in(2)
        late = [opened.connect() for _ in range(3)]
        answers = [asyncio.create_task(each.answered()) for each in late]
        await until(opened.waits)
        assert [each.done() for each in answers] == [False] * 3
        assert opened.listener.connections == 2
        for client in inside:
            client.close()
        assert await answers[0]
        assert await answers[1]
        late[0].close()
        assert await answers[2]
        assert opened.acceptor.refused == 0
        assert opened.acceptor.accepted == 5
        assert opened.acceptor.delayed[OUT] >= 1
        assert opened.acceptor.waited_s(OUT) > 0
        told = 'connections-wait listener=OUT reason="there are as many as max.connections=2"'
        assert caplog.text.count(told) == 1


async def test_a_limit_that_is_raised_lets_in_who_waits() -> None:
    async with door(listener_name_out_max_connections="1") as opened:
        await opened.let_in(1)
        answer = asyncio.create_task(opened.connect().answered())
        await until(opened.waits)
        await opened.let_in(2, IN)  # another listener isn't held up
        before_s = opened.acceptor.waited_s(OUT)
        await until(lambda: opened.acceptor.waited_s(OUT) > before_s)  # while it waits, too
        opened.set(listener_name_out_max_connections="2")
        assert await answer
        assert not opened.waits()


async def test_who_leaves_while_it_waits_takes_no_slot() -> None:
    async with door(max_connections="1") as opened:
        (inside,) = await opened.let_in(1)
        opened.connect().close()
        await until(opened.waits)
        answer = asyncio.create_task(opened.connect().answered())
        inside.close()
        assert await answer


async def test_for_other_brokers_who_was_idle_for_longest_gives_way(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with door(max_connections="3") as opened:
        first, second, third = await opened.let_in(3)
        assert await first.answered()
        await opened.let_in(1, IN)
        await until(lambda: opened.listener.connections == 3)
        assert not await second.answered()
        assert await first.answered()
        assert await third.answered()
        await opened.let_in(4, IN)  # more than there may be of all
        await until(lambda: opened.listener.connections == 5)
        assert not await first.answered()
        assert not await third.answered()
        assert "there are more than max.connections, and it was idle for longest" in caplog.text
        answer = asyncio.create_task(opened.connect().answered())
        await until(opened.waits)
        for client in opened.clients[3:6]:
            client.close()
        assert await answer


async def test_a_limit_that_is_lowered_closes_what_is_too_much() -> None:
    async with door() as opened:
        clients = await opened.let_in(2 * module.SHED_A_TURN + 5)
        opened.set(max_connections="2")
        await until(lambda: opened.listener.connections == 2)
        assert [await each.answered() for each in clients[-2:]] == [True, True]


# -- rates


@pytest.mark.parametrize(
    "key", ["max_connection_creation_rate", "listener_name_out_max_connection_creation_rate"]
)
async def test_what_comes_too_fast_is_accepted_later(
    key: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with door(**{key: "1000"}) as opened:
        loop = asyncio.get_running_loop()
        await opened.let_in(100)
        opened.set(**{key: "5"})
        began_s = loop.time()
        client = opened.connect()
        await until(opened.waits)
        await opened.let_in(60, IN)  # not held up by the broker's rate, and not counted
        assert await client.answered()
        assert loop.time() - began_s > 0.5
        assert opened.acceptor.delayed == {OUT: 1}
        assert opened.acceptor.refused == 0
        assert 'connections-wait listener=OUT reason="more come in a second than' in caplog.text


# -- addresses


async def test_an_address_has_as_many_as_it_may() -> None:
    async with door(
        max_connections_per_ip="2", max_connections_per_ip_overrides="127.0.0.2:1,127.0.0.3:3"
    ) as opened:
        for host, most in (("127.0.0.1", 2), ("127.0.0.2", 1), ("127.0.0.3", 3)):
            clients = [opened.connect(listener, host) for listener in (IN, OUT, OUT, IN)[:most]]
            for client in clients:
                assert await client.answered()
            assert not await opened.connect(IN, host).answered()
            clients[0].close()
            await until(partial(opened.has, host, most - 1))
            assert await opened.connect(IN, host).answered()
        assert opened.acceptor.refused == 3
        opened.set(max_connections_per_ip_overrides="127.0.0.2:2")
        assert await opened.connect(OUT, "127.0.0.2").answered()
        assert not await opened.connect(OUT, "127.0.0.3").answered()


async def test_the_names_of_hosts_are_looked_up(caplog: pytest.LogCaptureFixture) -> None:
    long = ".".join(["a" * 63] * 4)  # longer than DNS can ask for
    async with door(
        max_connections_per_ip="1", max_connections_per_ip_overrides=f"localhost:2,{long}:7"
    ) as opened:
        await until(lambda: "127.0.0.1" in opened.acceptor.quotas.limits.overrides)
        await opened.let_in(2)
        assert not await opened.connect().answered()
        assert f"{long} can't be looked up, so it counts for nobody" in caplog.text
        opened.set(max_connections_per_ip_overrides="localhost:3,127.0.0.2:0")
        await opened.let_in(1)  # known already
        assert not await opened.connect().answered()
        opened.set(max_connections_per_ip_overrides="localhost:9,127.0.0.1:0")
        assert not await opened.connect().answered()  # the address itself comes first
        opened.set(max_connections_per_ip_overrides="")
        assert opened.acceptor.quotas.limits.overrides == {}


async def test_who_connects_too_fast_from_an_address_is_closed_late(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "LATE_MAX", 2)
    async with door() as opened:
        opened.quotas.set(((IP, "127.0.0.2"),), {CONNECTION_CREATION_RATE: 1000.0})
        for _ in range(30):
            assert await opened.connect(OUT, "127.0.0.2").answered()
        opened.quotas.set(((IP, "127.0.0.2"),), {CONNECTION_CREATION_RATE: 1.0})
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        refused = [opened.connect(OUT, "127.0.0.2") for _ in range(4)]
        await until(lambda: opened.acceptor.refused == 4)
        assert len(opened.acceptor._late) <= 2  # the first two are closed for the others
        await opened.let_in(20)  # others are let in at once
        assert [await each.answered() for each in refused] == [False] * 4
        assert loop.time() - began_s > 0.5
        assert opened.has("127.0.0.2", 30)
        assert 'reason="the limit is connection_creation_rate=1 a second"' in caplog.text


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("fe80::1%eth0", "fe80::1"),
        ("2001:db8::1", "2001:db8::1"),
    ],
)
def test_addresses_are_as_quotas_have_them(host: str, address: str) -> None:
    assert address_of(host) == address


def test_the_only_listener_is_not_exempt() -> None:
    alone = BrokerConfig.from_properties({"listeners": "PLAINTEXT://:1"})
    assert limits_of(alone, {}).exempt is None
    assert limits_of(BrokerConfig.from_properties(FILE), {}).exempt == IN


async def test_what_waits_or_is_refused_ends_with_the_broker() -> None:
    async with door(max_connections="1") as opened:
        await opened.let_in(1)
        held = opened.connect()
        await until(opened.waits)
        opened.listener.drain()
        assert not await held.answered()
