"""franz-go and kcat that log in by tokens (KIP-255), and franz-go where a login counts for a time.

kcat, as Debian packages it, can't ask an authorization server for a token: its librdkafka is built
without OIDC. It makes one of its own, without a signature, for a listener that takes those.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kraftpy.testing import Broker
from tests.conformance.secured_clients import Program, RefusedError
from tests.logins import LOGIN_MODULES, Login
from tests.processes import free_port
from tests.tokens import Issuer, write_keys

ISSUER = Issuer()
MECHANISM = "OAUTHBEARER"
VALUES = ["one", "two", "three"]
LIFETIME_MS = 3000
TIMEOUT_S = 60.0


class World(NamedTuple):
    """A broker, its listener for signed tokens, and the one for those without a signature."""

    broker: Broker
    unsigned: str

    def login(self, issuer: Issuer = ISSUER, **claims: Any) -> Login:
        token = issuer.token(aud="kafka", **claims)
        return Login(self.broker.bootstrap, "", MECHANISM, "", token)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    keys: Path = tmp_path_factory.mktemp("keys") / "keys.json"
    unsigned, controller = (f"127.0.0.1:{free_port()}" for _ in range(2))
    settings: dict[str, Any] = {
        "listeners": f"SIGNED://127.0.0.1:0,UNSIGNED://{unsigned},CONTROLLER://{controller}",
        "listener.security.protocol.map": "SIGNED:SASL_PLAINTEXT,UNSIGNED:SASL_PLAINTEXT,"
        "CONTROLLER:PLAINTEXT",
        "controller.quorum.voters": f"1@{controller}",
        "sasl.enabled.mechanisms": MECHANISM,
        "connections.max.reauth.ms": LIFETIME_MS,
        "sasl.oauthbearer.jwks.endpoint.url": write_keys(keys, ISSUER),
        "listener.name.signed.sasl.oauthbearer.expected.audience": "kafka",
        "listener.name.unsigned.oauthbearer.sasl.server.callback.handler.class": f"{LOGIN_MODULES}"
        ".oauthbearer.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:alice",
        "kraftpy.log.level": "debug",
    }
    with Broker(**settings) as started:
        yield World(started, unsigned)


@pytest.fixture(scope="module")
def franz() -> Iterator[Program]:
    program = Program("franz-go")
    yield program
    program.end()


def test_franz_go_logs_in_by_a_token(world: World, franz: Program) -> None:
    assert franz.round(world.login(), "signed", VALUES) == VALUES


def test_franz_go_is_who_the_token_says(world: World, franz: Program) -> None:
    with pytest.raises(RefusedError, match="TOPIC_AUTHORIZATION_FAILED"):
        franz.round(world.login(sub="bob"), "signed", VALUES)


@pytest.mark.parametrize(
    "login",
    [
        pytest.param(lambda world: world.login(Issuer()), id="another's signature"),
        pytest.param(lambda world: world.login(exp=int(time.time()) - 60), id="over"),
        pytest.param(
            lambda world: Login(world.broker.bootstrap, "", MECHANISM, "", "no.token.it.is"),
            id="none",
        ),
    ],
)
def test_franz_go_hears_that_its_token_is_not_taken(
    world: World, franz: Program, login: Any
) -> None:
    """It takes any answer for the end, and doesn't read why (RFC 7628 has that in JSON)."""
    with pytest.raises(RefusedError, match="unexpected data in oauth response"):
        franz.round(login(world), "never", VALUES)


def test_franz_go_logs_in_again_on_its_connections(world: World, franz: Program) -> None:
    """The broker closes a connection whose login has expired, and has closed none of its."""
    franz.ask("enter", world.login(), name="franz-again")
    again = re.compile(r"franz-again \(\S+\) has logged in again")
    deadline_s = time.monotonic() + TIMEOUT_S
    sent = 0
    while not again.search(world.broker.log_path.read_text()):
        assert time.monotonic() < deadline_s
        franz.ask("send", name="franz-again", topic="again", partitions=[0], value="value")
        sent += 1
        time.sleep(0.05)
    franz.ask("send", name="franz-again", topic="again", partitions=[0], value="value")
    franz.ask("close", name="franz-again")
    assert sent > 1
    log = world.broker.log_path.read_text()
    assert not re.search(r"client=franz-again.*its login has expired", log)


def kcat(bootstrap: str, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    options = ("-b", bootstrap, "-X", "security.protocol=SASL_PLAINTEXT")
    return subprocess.run(
        ["kcat", *options, "-X", f"sasl.mechanisms={MECHANISM}", *words],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def unsigned(name: str) -> tuple[str, ...]:
    """Has librdkafka make a token for this name."""
    settings = {
        "enable.sasl.oauthbearer.unsecure.jwt": "true",
        "sasl.oauthbearer.config": f"principal={name}",
    }
    return tuple(word for each in settings.items() for word in ("-X", "=".join(each)))


def test_kcat_logs_in_by_a_token_of_its_own(world: World) -> None:
    lines = "".join(f"{value}\n" for value in VALUES)
    wrote = kcat(world.unsigned, *unsigned("alice"), "-P", "-t", "kcat", stdin=lines)
    assert wrote.returncode == 0, wrote.stderr
    group = ("-X", "auto.offset.reset=earliest", "-q", "-c", "3", "-G", "kcat", "kcat")
    read = kcat(world.unsigned, *unsigned("alice"), *group)
    assert (read.returncode, read.stdout.splitlines()) == (0, VALUES), read.stderr


def test_kcat_hears_that_its_token_is_not_taken(world: World) -> None:
    """The listener for signed tokens takes no other."""
    done = kcat(world.broker.bootstrap, *unsigned("alice"), "-L")
    assert done.returncode
    assert "SASL authentication error" in done.stderr


def test_kcat_of_debian_has_no_oidc(world: World) -> None:
    """Where it has, it's to be tested with an authorization server."""
    oidc = {
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": "kcat",
        "sasl.oauthbearer.client.secret": "secret",
        "sasl.oauthbearer.token.endpoint.url": "https://127.0.0.1:1/token",
    }
    words = [word for each in oidc.items() for word in ("-X", "=".join(each))]
    done = kcat(world.broker.bootstrap, *words, "-L")
    assert done.returncode
    assert '"sasl.oauthbearer.method" not supported in this build' in done.stderr
