"""Options of security: what the client of a task gets of them, and that nothing shows them."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from kraftpy.client.security import Login
from kraftpy.spark.positions import OptionError
from kraftpy.spark.settings import BATCH, SINK, STREAM, read_settings, write_settings
from tests.certificates import Authority

MARKER = "hunter2-marker"
MODULE = "kafkashaded.org.apache.kafka.common.security.scram.ScramLoginModule"
BASE = {"kafka.bootstrap.servers": "a:1"}


def secured(folder: Path) -> dict[str, str]:
    """As Spark hands them over: names in lower case."""
    return {
        **BASE,
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": f'{MODULE} required username="alice" password="{MARKER}";',
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": str(Authority().write(folder / "ca.pem")),
        "kafka.ssl.truststore.password": MARKER,
    }


@pytest.mark.parametrize("where", [BATCH, STREAM, SINK])
def test_every_task_connects_by_them(tmp_path: Path, where: str) -> None:
    options = secured(tmp_path)
    if where == SINK:
        client = write_settings({**options, "topic": "t"}).client
    else:
        client = read_settings({**options, "subscribe": "t"}, where).client
    travelled = pickle.loads(pickle.dumps(client))
    for each in (client, client.patient(), travelled):
        security = each.security.security()
        assert security.protocol == "SASL_SSL"
        assert security.ssl_context is not None
        assert security.user is not None
        assert security.user.mechanism == "SCRAM-SHA-512"
        assert (security.user.username, security.user.password.reveal()) == ("alice", MARKER)


def test_trap_23_no_repr_has_a_password(tmp_path: Path) -> None:
    settings = read_settings({**secured(tmp_path), "subscribe": "t"}, BATCH)
    assert MARKER not in repr(settings)
    assert "alice" not in repr(settings)
    writing = write_settings({**secured(tmp_path), "topic": "t"})
    assert MARKER not in repr(writing)


def test_librdkafkas_names(tmp_path: Path) -> None:
    options = {
        **BASE,
        "subscribe": "t",
        "kafka.security.protocol": "sasl_ssl",
        "kafka.sasl.mechanisms": "PLAIN",
        "kafka.sasl.username": "alice",
        "kafka.sasl.password": MARKER,
        "kafka.ssl.ca.location": str(Authority().write(tmp_path / "ca.pem")),
    }
    security = read_settings(options, BATCH).client.security.security()
    assert security.protocol == "SASL_SSL"
    assert security.user is not None
    assert security.user.mechanism == "PLAIN"


@pytest.mark.parametrize(
    "login",
    [
        {"kafka.sasl.jaas.config": f"{MODULE} required username=id password=word tokenauth=true;"},
        {
            "kafka.sasl.username": "id",
            "kafka.sasl.password": "word",
            "kafka.kraftpy.sasl.tokenauth": "true",
        },
    ],
)
def test_a_delegation_token(login: dict[str, str]) -> None:
    options = {
        **BASE,
        **login,
        "subscribe": "t",
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "SCRAM-SHA-256",
    }
    user = read_settings(options, BATCH).client.security.security().user
    assert isinstance(user, Login)
    assert user.delegated


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"kafka.sasl.jaas.config": MARKER}, "set security.protocol=SASL_SSL"),
        (
            {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "GSSAPI"},
            "sasl.mechanism is one of",
        ),
        (
            {
                "kafka.security.protocol": "SASL_SSL",
                "kafka.sasl.mechanism": "PLAIN",
                "kafka.sasl.jaas.config": f"PlainLoginModule required password={MARKER}",
            },
            "sasl.jaas.config: a ; is missing",
        ),
        ({"kafka.sasl.client.callback.handler.class": "A"}, "no class of Java's"),
        (
            {"kafka.security.protocol": "SSL", "kafka.ssl.truststore.location": "/nowhere/ca"},
            "/nowhere/ca: No such file",
        ),
    ],
)
def test_the_driver_says_what_is_wrong(options: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError) as caught:
        read_settings({**BASE, "subscribe": "t", **options}, BATCH)
    assert said in str(caught.value)
    assert MARKER not in str(caught.value)


def test_without_them_all_is_plain_text() -> None:
    client = read_settings({**BASE, "subscribe": "t"}, BATCH).client
    assert client.security.security().protocol == "PLAINTEXT"
