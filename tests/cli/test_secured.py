"""Commands on a broker that wants TLS with a certificate of the client, or a login."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kraftpy.testing import Broker
from tests.certificates import Authority
from tests.processes import free_port
from tests.unit.client.peer import running as answering
from tests.unit.client.secured_peer import SaslPeer, listening_context

from .commands import failure, output

PASSWORD = "hunter2-marker"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("secured")


@pytest.fixture(scope="module")
def authority(folder: Path) -> Authority:
    authority = Authority()
    authority.write(folder / "ca.pem")
    return authority


@pytest.fixture(scope="module")
def mutual(folder: Path, authority: Authority) -> Iterator[str]:
    """The address of a listener that wants a certificate."""
    authority.issue("CN=broker").write_pem(folder / "broker.pem")
    address, controller = (f"127.0.0.1:{free_port()}" for _ in range(2))
    with Broker(
        listeners=f"PLAINTEXT://127.0.0.1:0,SSL://{address},CONTROLLER://{controller}",
        listener_security_protocol_map="PLAINTEXT:PLAINTEXT,SSL:SSL,CONTROLLER:PLAINTEXT",
        controller_quorum_voters=f"1@{controller}",
        ssl_keystore_type="PEM",
        ssl_keystore_location=folder / "broker.pem",
        ssl_truststore_type="PEM",
        ssl_truststore_location=folder / "ca.pem",
        listener_name_ssl_ssl_client_auth="required",
    ):
        yield address


@pytest.fixture(params=["java", "librdkafka"])
def config(
    request: pytest.FixtureRequest, tmp_path: Path, folder: Path, authority: Authority, mutual: str
) -> str:
    """A file with all that it takes, as each family writes it."""
    alice = authority.issue("CN=alice")
    alice.write_pem(tmp_path / "alice.pem", PASSWORD)
    (tmp_path / "alice.key").write_text(alice.key_pem_with(PASSWORD))
    (tmp_path / "alice.crt").write_text(alice.certificate_pem)
    settings = {"security.protocol": "SSL", "ssl.key.password": PASSWORD}
    if request.param == "java":
        settings |= {
            "bootstrap.servers": mutual,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(folder / "ca.pem"),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(tmp_path / "alice.pem"),
        }
    else:
        settings |= {
            "metadata.broker.list": mutual,
            "ssl.ca.location": str(folder / "ca.pem"),
            "ssl.key.location": str(tmp_path / "alice.key"),
            "ssl.certificate.location": str(tmp_path / "alice.crt"),
        }
    file = tmp_path / f"{request.param}.conf"
    file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    return str(file)


def test_commands_connect_by_what_the_file_says(
    config: str, mutual: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = f"orders-{Path(config).stem}"
    given = ("-b", mutual, "--command-config", config)
    output("topic", "create", topic, "-p", "2", *given)
    assert topic in output("topic", "list", *given)
    output("produce", topic, *given, stdin=b"one\ntwo\n")
    read = output("consume", topic, "-o", "start:end", "-f", "%v\n", *given)
    assert sorted(read.split()) == ["one", "two"]
    assert json.loads(output("cluster", "health", "-o", "json", *given))["healthy"] is True
    monkeypatch.setenv("KRAFTPY_COMMAND_CONFIG", config)
    found = json.loads(output("probe", "--once", "-b", mutual, "-o", "json"))
    assert found["ok"], found


def test_who_shows_no_certificate_is_told_so(config: str, mutual: str, folder: Path) -> None:
    given = ["-X", "security.protocol=SSL", "-X", f"ssl.ca.location={folder / 'ca.pem'}"]
    said = failure("topic", "list", "-b", mutual, *given, code=3)
    assert "ssl.keystore.location" in said
    said = failure("topic", "list", "-b", mutual, code=3)
    assert "it may want TLS" in said
    assert "-X KEY=VALUE" in said
    assert "kraftpy dev" not in said


def test_who_trusts_another_authority_is_told_so(mutual: str, tmp_path: Path) -> None:
    other = Authority().write(tmp_path / "other.pem")
    given = ["-X", "security.protocol=SSL", "-X", f"ssl.ca.location={other}"]
    said = failure("topic", "list", "-b", mutual, *given, code=3)
    assert "its certificate isn't accepted" in said
    assert "ssl.ca.location" in said
    assert said.endswith("is it for this host?\n")


@pytest.fixture
def peer(folder: Path, authority: Authority) -> Iterator[SaslPeer]:
    """A broker that wants a login over TLS, in a thread."""
    peer = SaslPeer({"alice": PASSWORD}, ("SCRAM-SHA-512",))
    context = listening_context(authority, folder)
    loop = asyncio.new_event_loop()
    ready, over = threading.Event(), asyncio.Event()

    async def serve() -> None:
        async with answering(peer, context):
            ready.set()
            await over.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        assert ready.wait(10)
        yield peer
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()
        loop.close()


def test_a_login(peer: SaslPeer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = ["-b", peer.bootstrap, "-X", "security.protocol=SASL_SSL"]
    given += ["-X", f"ssl.ca.location={folder / 'ca.pem'}", "-X", "sasl.username=alice"]
    scram = ["-X", "sasl.mechanism=SCRAM-SHA-512"]
    monkeypatch.setenv("KRAFTPY_SASL_PASSWORD", PASSWORD)
    assert "t" in output("topic", "list", *given, *scram).split()
    said = failure("topic", "list", *given, "-X", "sasl.mechanism=PLAIN", code=1)
    assert "by PLAIN, but by SCRAM-SHA-512. Set sasl.mechanism" in said
    monkeypatch.setenv("KRAFTPY_SASL_PASSWORD", "wrong")
    connections = peer.connections
    said = failure("topic", "list", *given, *scram, code=1)
    assert "invalid credentials. Look at sasl.username, sasl.password" in said
    assert peer.connections == connections + 1
