"""Mutated frames before authentication: nothing crashes, nothing else is parsed, memory is flat.

KRAFTPY_GATE_FRAMES says how many (1,000,000 take two minutes), KRAFTPY_SEED which ones.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import struct
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kraftpy.core.metadata import MetadataState, ScramMechanism
from kraftpy.protocol import codec
from kraftpy.protocol import messages as m
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.sasl.oauthbearer import OAuthBearerClient
from kraftpy.quorum.credentials import QuorumSecret
from kraftpy.server.cluster.logins import gates
from kraftpy.server.network.connection import Connection
from kraftpy.server.network.gate import Gate, LoginNumbers
from kraftpy.server.network.token_keys import read_keys
from tests.tokens import Issuer, key_set
from tests.unit.server.network.gates import SECRET, client, config_of, credential

FRAMES = int(os.environ.get("KRAFTPY_GATE_FRAMES", "20000"))
SEED = int(os.environ.get("KRAFTPY_SEED", time.time_ns() & 0xFFFF))
GROWTH_MAX_BYTES = 256 * 1024

ALLOWED = {ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}


ISSUER = Issuer()
TOKENS = {
    "sasl__enabled__mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
    "sasl__oauthbearer__jwks__endpoint__url": "file:///nowhere",
}


class Loop:
    """Calls at once what is to be called later."""

    def time(self) -> float:
        return 0.0

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Any:
        callback()
        return SimpleNamespace(cancel=lambda: None)


class Peer:
    """Takes the place of a connection."""

    def __init__(self) -> None:
        self.closed = False
        self.client_id: str | None = None
        self.peer = "peer:1"
        self.session = SimpleNamespace(listener="SASL", mechanism=None, expires_s=None)
        self.answered = 0
        self.let_in: list[str] = []

    def respond(self, parts: list[Any]) -> None:
        assert not self.closed
        self.answered += 1

    def defer(self, concurrent: bool) -> Any:
        assert not concurrent
        return SimpleNamespace(on_abandon=None)

    def complete(self, slot: Any, parts: Any) -> None:
        assert not self.closed
        self.answered += 1

    def close(self, reason: str | None) -> None:
        self.closed = True


def request(key: int, version: int, body: Any) -> bytes:
    return b"".join(codec.encode_request(key, version, 7, "fuzz", body))


def logins() -> list[list[bytes]]:
    """Whole conversations, each a list of frames."""
    found = []
    for mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"):
        for version in (0, 1):
            first = client(mechanism).first()
            final = b"c=biws,r=clientserver,p=" + b"A" * 43 + b"="
            tokens = [first, final]
            if version:
                tokens = [
                    request(36, each, m.SaslAuthenticateRequest(token))
                    for each, token in zip((1, 2), tokens, strict=True)
                ]
            found.append(
                [
                    request(18, 3, m.ApiVersionsRequest("fuzz", "1")),
                    request(17, version, m.SaslHandshakeRequest(mechanism)),
                    *tokens,
                    request(3, 9, m.MetadataRequest([])),
                ]
            )
    words = [OAuthBearerClient(ISSUER.token()).first(), b"\x01"]
    found.append(
        [
            request(17, 1, m.SaslHandshakeRequest("OAUTHBEARER")),
            *(request(36, 2, m.SaslAuthenticateRequest(word)) for word in words),
        ]
    )
    return found


def mutated(choose: random.Random, frame: bytes) -> bytes:
    """The frame with something wrong in it."""
    data = bytearray(frame)
    for _ in range(choose.choice((1, 1, 2, 8))):
        where = choose.randrange(len(data) + 1)
        match choose.randrange(7):
            case 0 if data:
                data[where % len(data)] ^= 1 << choose.randrange(8)
            case 1 if data:
                data[where % len(data)] = choose.choice((0, 1, 0x7F, 0x80, 0xFF, 0x2C, 0x3D))
            case 2:
                del data[where:]
            case 3:
                data[where:where] = choose.randbytes(choose.choice((1, 4, 50)))
            case 4:
                data[where : where + 4] = struct.pack(">i", choose.choice((-1, 2**31 - 1, 0)))
            case 5:
                data[0:2] = struct.pack(">h", choose.choice((0, 1, 3, 17, 18, 36, 58, 999, -1)))
            case _:
                data += data[where:] * choose.choice((1, 30))
    return bytes(data)


def memory_bytes() -> int:
    """What is held of what was made since `tracemalloc` began."""
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.mark.filterwarnings("error")
@pytest.mark.usefixtures("traced")
def test_mutated_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    choose = random.Random(SEED)
    parsed: Counter[int] = Counter()
    decode = codec.decode_request

    def noting(key: int, version: int, *rest: Any) -> Any:
        parsed[key] += 1
        return decode(key, version, *rest)

    monkeypatch.setattr(codec, "decode_request", noting)
    monkeypatch.setattr("kraftpy.server.network.gate.emit", lambda *_, **__: True)
    metadata = MetadataState()
    metadata.scram["alice"] = {each: credential(each, "other") for each in ScramMechanism}
    rules = gates(config_of(**TOKENS), lambda: metadata, QuorumSecret(SECRET))["SASL"]
    assert rules.token_keys is not None
    rules.token_keys._keys = read_keys(key_set(ISSUER))
    others: Counter[int] = Counter()
    numbers = LoginNumbers()

    def answer_other(connection: Connection, frame: memoryview) -> int:
        others[struct.unpack_from(">h", frame)[0]] += 1
        return 0

    conversations = logins()
    answered = count = 0
    let_in: list[str] = []
    came_in: set[str] = set()
    settled_bytes = 0
    while count < FRAMES:
        if not settled_bytes and count >= FRAMES // 4:
            settled_bytes = memory_bytes()
        peer = Peer()
        connection = cast(Connection, peer)
        gate = Gate(
            cast(asyncio.AbstractEventLoop, Loop()),
            rules,
            answer_other,
            lambda _, principal, mechanism, __: let_in.append(f"{principal} by {mechanism}"),
            numbers,
        )
        for frame in choose.choice(conversations):
            sent = mutated(choose, frame) if choose.random() < 0.4 else frame
            count += 1
            gate.dispatch(connection, memoryview(bytearray(sent)))
            if peer.closed or let_in:
                break
        answered += peer.answered
        # PLAIN's password and the token are right in the conversation: whole, they let alice in.
        assert set(let_in) <= {"User:alice by PLAIN", "User:alice by OAUTHBEARER"}, f"seed {SEED}"
        came_in.update(let_in)
        let_in.clear()
    assert parsed.keys() <= ALLOWED, f"seed {SEED}"
    assert others.keys() <= {int(ApiKey.API_VERSIONS)}, f"seed {SEED}"
    assert min(numbers.done, numbers.failed) > FRAMES // 200, "neither way is gone to its end"
    assert len(came_in) == 2
    assert answered > FRAMES // 20, "most of the way through the gate is gone"
    assert memory_bytes() - settled_bytes < GROWTH_MAX_BYTES, f"seed {SEED}"
