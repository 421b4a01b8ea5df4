"""Logins by delegation tokens: by what they are made of, once for each, and while they last."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest

from kraftpy.core.metadata.records import DelegationToken, ScramMechanism
from kraftpy.core.security.principals import USER, Principal
from kraftpy.core.security.sasl_server import (
    Exchange,
    ScramMechanismServer,
    Step,
    Underived,
    user_lookup,
)
from kraftpy.core.security.token_logins import TokenLogins
from kraftpy.protocol.sasl import SaslError, scram
from kraftpy.secret import Secret

TOKEN = DelegationToken("an-id", "User:alice", "User:bob", ("User:carol",), 0, 100, 200)


class World:
    """The tokens that there are, and a listener that knows them."""

    def __init__(self, mechanism: ScramMechanism = ScramMechanism.SCRAM_SHA_512) -> None:
        self.now_ms = 50
        self.tokens = {TOKEN.id: TOKEN}
        self.logins = TokenLogins(Secret("key"), lambda: self.tokens, lambda: self.now_ms)
        self.server = self.listener(mechanism)
        self.derived = 0

    def listener(self, mechanism: ScramMechanism) -> ScramMechanismServer:
        nobody = user_lookup(dict)
        return ScramMechanismServer(mechanism, nobody, b"decoys", self.logins)

    def log_in(
        self, name: str = TOKEN.id, password: str | None = None, tokenauth: str = "true"
    ) -> Step:
        """Raises SaslError."""
        if password is None:
            password = base64.b64encode(self.logins.hmac(name)).decode()
        extensions = {scram.TOKEN_AUTH: tokenauth}
        client = scram.ScramClient(self.server.name, name, password, "client", extensions)
        exchange = self.server.begin("server")
        final = client.answer(exchange.step(client.first()).answer)
        assert final is not None
        step = self.taken(exchange, final)
        assert client.answer(step.answer) is None, "the server proves itself"
        return step

    def taken(self, exchange: Exchange, message: bytes) -> Step:
        try:
            return exchange.step(message)
        except Underived as underived:
            self.derived += 1
            underived.derive()
            return exchange.step(message)


def test_an_hmac_is_kafkas() -> None:
    expected = hmac.new(b"key", b"an-id", hashlib.sha512).digest()
    assert World().logins.hmac("an-id") == expected


@pytest.mark.parametrize("mechanism", ScramMechanism)
def test_a_token_logs_in_as_its_owner_and_its_keys_are_derived_once(
    mechanism: ScramMechanism,
) -> None:
    world = World(mechanism)
    for _ in range(3):
        step = world.log_in(tokenauth="True")
        assert step.principal == Principal(USER, "alice")
        assert (step.token_id, step.ends_ms) == (TOKEN.id, 100)
    assert world.derived == 1


@pytest.mark.parametrize("name", ["another-id", "alice", "bob"])
def test_trap_8_a_token_that_is_not_there_is_told_at_the_end(name: str) -> None:
    world = World()
    with pytest.raises(SaslError):
        world.log_in(name)
    assert world.derived == 0
    first = world.server.begin("server").step(f"n,,n={name},r=c,tokenauth=true".encode()).answer
    again = world.server.begin("server").step(f"n,,n={name},r=c,tokenauth=true".encode()).answer
    assert first == again
    known = world.server.begin("server").step(b"n,,n=an-id,r=c,tokenauth=true").answer
    assert abs(len(known) - len(first)) <= 4


def test_another_password_is_refused() -> None:
    world = World()
    for password in ("wrong", base64.b64encode(world.logins.hmac("other")).decode()):
        with pytest.raises(SaslError):
            world.log_in(password=password)


@pytest.mark.parametrize("tokenauth", ["false", "yes"])
def test_without_tokenauth_it_is_no_token(tokenauth: str) -> None:
    with pytest.raises(SaslError, match="no user of this name"):
        World().log_in(tokenauth=tokenauth)


def test_one_that_is_over_or_gone_logs_nobody_in() -> None:
    world = World()
    world.now_ms = 100
    world.log_in()
    world.now_ms = 101
    with pytest.raises(SaslError, match="it is over"):
        world.log_in()
    world.now_ms = 50
    world.tokens.clear()
    with pytest.raises(SaslError, match="no delegation token"):
        world.log_in()


def test_trap_7_one_that_goes_midway_logs_nobody_in() -> None:
    world = World()
    world.log_in()
    password = base64.b64encode(world.logins.hmac(TOKEN.id)).decode()
    client = scram.ScramClient(world.server.name, TOKEN.id, password, "c", {"tokenauth": "true"})
    exchange = world.server.begin("server")
    final = client.answer(exchange.step(client.first()).answer)
    assert final is not None
    world.tokens.clear()
    with pytest.raises(SaslError):
        world.taken(exchange, final)


def test_where_there_are_none_a_login_fails_alike() -> None:
    world = World()
    world.server.tokens = None
    with pytest.raises(SaslError, match="no delegation token"):
        world.log_in()


def test_a_token_is_found_by_its_hmac() -> None:
    world = World()
    assert world.logins.find(world.logins.hmac("an-id")) is None, "it isn't noted yet"
    for token_id in world.logins.unnoted():
        world.logins.note(token_id)
    assert world.logins.unnoted() == []
    assert world.logins.find(world.logins.hmac("an-id")) is TOKEN
    assert world.logins.find(b"") is None
    world.tokens.clear()
    assert world.logins.find(world.logins.hmac("an-id")) is None
