"""Our own client with tokens: where they come from, and what a broker does with them."""

from __future__ import annotations

import asyncio
import base64
import http.server
import json
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from kraftpy.client.connection import Connection, ConnectionLostError
from kraftpy.client.security import Security
from kraftpy.client.security_settings import SECRETS, parse_security
from kraftpy.client.tokens import ClientCredentials, TokenFile, TokenLogin
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages import MetadataRequest
from kraftpy.protocol.sasl import SaslError
from kraftpy.protocol.sasl.oauthbearer import OAUTHBEARER
from kraftpy.secret import Secret
from tests.certificates import Authority
from tests.tokens import Issuer, write_keys
from tests.unit.server.network.gates import Door, door

ISSUER = Issuer()
MARKER = "hunter2-marker"


def settings(**more: str) -> dict[str, str]:
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": OAUTHBEARER,
        **{f"sasl.oauthbearer.{key.replace('__', '.')}": value for key, value in more.items()},
    }


def at_gate(tmp_path: Path) -> Any:
    return door(
        listener__name__strict__sasl__enabled__mechanisms=OAUTHBEARER,
        sasl__oauthbearer__jwks__endpoint__url=write_keys(tmp_path / "keys", ISSUER),
    )


async def opened(made: Door, security: Security) -> Connection:
    return await Connection.open("127.0.0.1", made.ports["STRICT"], login=security.login)


async def who(connection: Connection) -> str:
    answer = await connection.request(MetadataRequest([]), timeout_ms=5000, version=9)
    principal: str = answer.cluster_id
    return principal


async def test_a_file_is_read_for_each_login(tmp_path: Path) -> None:
    file = tmp_path / "a token"
    security = parse_security(settings(token__endpoint__url=file.as_uri()))
    assert security == Security(user=TokenLogin(token=TokenFile(str(file))))
    async with at_gate(tmp_path) as made:
        with pytest.raises(KafkaError, match=r"no token: .*No such file"):
            await opened(made, security)
        file.write_text(ISSUER.token() + "\n")
        connection = await opened(made, security)
        assert await who(connection) == "User:alice"
        assert connection._renew_at_s is not None, "a login ends with its token"
        file.write_text(ISSUER.token("alice", jti="another"))
        connection._renew_at_s = 0.0
        assert await who(connection) == "User:alice"
        assert made.listener.logins.renewed == 1
        file.write_text(ISSUER.token("bob"))
        other = await opened(made, security)
        assert await who(other) == "User:bob"
        await other.close()
        await connection.close()


async def test_a_token_that_is_not_taken_is_told_as_the_brokers_error(tmp_path: Path) -> None:
    async def token() -> str:
        return Issuer().token()

    async with at_gate(tmp_path) as made:
        with pytest.raises(KafkaError, match="Authentication failed") as caught:
            await opened(made, Security(user=TokenLogin(token=token)))
        assert caught.value.code == ErrorCode.SASL_AUTHENTICATION_FAILED


async def test_a_token_of_the_callers_own(tmp_path: Path) -> None:
    asked: list[None] = []

    async def token() -> str:
        asked.append(None)
        await asyncio.sleep(0)
        return ISSUER.token("carol" if len(asked) == 1 else "bob")

    async with at_gate(tmp_path) as made:
        connection = await opened(made, Security(user=TokenLogin(token=token)))
        assert await who(connection) == "User:carol"
        connection._renew_at_s = 0.0
        with pytest.raises(ConnectionLostError, match="couldn't be renewed"):
            await who(connection)
        assert len(asked) == 2


@pytest.mark.parametrize("text", ["", "two words", "\u00fc", "t" * 200_000])
async def test_a_file_without_a_token(tmp_path: Path, text: str) -> None:
    (tmp_path / "token").write_text(text)
    with pytest.raises(SaslError, match="a token is at most"):
        await TokenLogin(token=TokenFile(str(tmp_path / "token"))).begin()


# -- from an authorization server


class Server(http.server.ThreadingHTTPServer):
    """Answers what a test says, and notes what it was asked."""

    answer: tuple[int, bytes] = 200, b""
    asked: list[tuple[str, str | None, dict[str, list[str]]]]


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        server: Any = self.server
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        server.asked.append((self.path, self.headers["Authorization"], parse_qs(body)))
        status, answer = server.answer
        self.send_response(status)
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    authority = Authority()
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.write(tmp_path / "ca.pem")))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.issue("CN=issuer").write_pem(tmp_path / "issuer.pem"))
    made = Server(("127.0.0.1", 0), Handler)
    made.asked = []
    made.socket = context.wrap_socket(made.socket, server_side=True)
    thread = threading.Thread(target=made.serve_forever, args=[0.01], daemon=True)
    thread.start()
    yield made
    made.shutdown()
    made.server_close()


def credentials(server: Server) -> ClientCredentials:
    return ClientCredentials(
        url=f"https://127.0.0.1:{server.server_port}/token",
        client_id="me",
        client_secret=Secret(MARKER),
        scope="kafka",
    )


def given(token: str, **more: Any) -> tuple[int, bytes]:
    return 200, json.dumps({"access_token": token, **more}).encode()


async def test_credentials_of_a_client_get_a_token_until_most_of_its_time_is_over(
    server: Server,
) -> None:
    source = credentials(server)
    server.answer = given("first", expires_in=3600)
    assert await source() == "first"
    server.answer = given("second")
    assert await source() == "first"
    authorization = f"Basic {base64.b64encode(f'me:{MARKER}'.encode()).decode()}"
    form = {"grant_type": ["client_credentials"], "scope": ["kafka"]}
    assert server.asked == [("/token", authorization, form)]
    assert source._kept[0][1] <= time.monotonic() + 0.8 * 3600
    source._kept[0] = "first", time.monotonic() - 1
    assert await source() == "second"


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ((302, b""), "the answer is 302"),
        ((401, b'{"error":"invalid_client"}'), "the answer is 401"),
        ((200, b""), "no access_token"),
        ((200, b"[]"), "no access_token"),
        ((200, b'{"access_token":7}'), "no access_token"),
        ((200, b" " * ((1 << 20) + 1)), "more than 1048576 bytes"),
    ],
)
async def test_no_token_is_told_without_the_secret(
    server: Server, answer: tuple[int, bytes], problem: str
) -> None:
    server.answer = answer
    source = credentials(server)
    with pytest.raises(SaslError, match=problem) as caught:
        await source()
    assert MARKER not in str(caught.value)
    assert MARKER not in repr(source)


def test_both_families_name_a_client() -> None:
    url = "https://issuer:8443/token"
    line = (
        "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required "
        f'clientId="me" clientSecret="{MARKER}" scope="kafka";'
    )
    javas = settings(token__endpoint__url=url) | {
        "sasl.jaas.config": line,
        "sasl.login.callback.handler.class": "org.apache.kafka.common.security.oauthbearer."
        "secured.OAuthBearerLoginCallbackHandler",
    }
    newer = settings(
        token__endpoint__url=url,
        client__credentials__client__id="me",
        client__credentials__client__secret=MARKER,
        scope="kafka",
    )
    librdkafkas = settings(
        token__endpoint__url=url,
        method="oidc",
        client__id="me",
        client__secret=MARKER,
        scope="kafka",
    )
    expected = ClientCredentials(
        url=url, client_id="me", client_secret=Secret(MARKER), scope="kafka"
    )
    for each in (javas, newer, librdkafkas):
        security = parse_security(each)
        assert security == Security(user=TokenLogin(token=expected))
        assert MARKER not in repr(security)
        assert {key for key, value in each.items() if MARKER in value} <= SECRETS
