"""Clients that aren't Python's at a listener with SASL_SSL, and at one that wants a certificate."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import pytest

from tests.conformance.secured_clients import Client, RefusedError, start
from tests.logins import MECHANISMS, PASSWORD, WAYS, Guarded, guarded_broker

VALUES = ["one", "two", "three"]
ERRORS = {
    "franz-go": "SASL_AUTHENTICATION_FAILED",
    "kafkajs": "KafkaJSSASLAuthenticationError",
    "Java": "org.apache.kafka.common.errors.SaslAuthenticationException: Authentication failed",
    "kcat": "SASL authentication error: Authentication failed",
}
"""What each says of a wrong password."""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with guarded_broker(tmp_path_factory.mktemp("guarded")) as started:
        yield started


@pytest.fixture(scope="module")
def clients() -> Iterator[Mapping[str, Client]]:
    with contextlib.ExitStack() as stack:
        # All are started before the first is asked for something: they get ready side by side.
        started = {kind: start(kind) for kind in ERRORS}
        for each in started.values():
            stack.callback(each.end)
        yield started


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ERRORS)
def test_a_client_is_let_in_as_alice(
    guarded: Guarded, clients: Mapping[str, Client], kind: str, way: str
) -> None:
    topic = f"{kind}-{way}".lower()
    assert clients[kind].round(guarded.logins[way], topic, VALUES) == VALUES


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("kind", ERRORS)
def test_a_wrong_password_is_an_error_of_the_client(
    guarded: Guarded, clients: Mapping[str, Client], kind: str, mechanism: str
) -> None:
    login = guarded.logins[mechanism].with_wrong_password()
    with pytest.raises(RefusedError, match=ERRORS[kind]):
        clients[kind].round(login, "never", VALUES)


def test_no_password_is_in_the_log(guarded: Guarded, clients: Mapping[str, Client]) -> None:
    """The trap of security called secrets."""
    login = guarded.logins["PLAIN"].with_wrong_password()
    with pytest.raises(RefusedError):
        clients["franz-go"].round(login, "never", VALUES)
    text = guarded.broker.log_path.read_text()
    assert "authentication-failed" in text
    assert PASSWORD not in text
