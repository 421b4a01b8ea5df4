"""What nodes of a quorum prove themselves with: secrets that are replaced, and TLS."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kraftpy.quorum import listener as listener_module
from kraftpy.quorum.client import ControllerUnavailable
from kraftpy.quorum.credentials import (
    Credentials,
    LinkTls,
    QuorumSecret,
    SecretUnusable,
    load_secret,
)
from kraftpy.quorum.listener import Listener
from kraftpy.quorum.single import SingleVoter
from kraftpy.secret import Secret
from kraftpy.tls.contexts import client_context, server_context
from kraftpy.tls.settings import StoreSettings, TlsSettings
from tests.certificates import Authority
from tests.waiting import until

from .raft_stack import Trio
from .stack import SECRET, SETTINGS, VOTER, Broker, listening_socket, port_of
from .standin import Values
from .test_raft_voter import command, values
from .test_transport import stranger_says

FIRST, SECOND, THIRD = (letter * 32 for letter in (b"1", b"2", b"3"))


def link_tls(*, trusted: bool) -> LinkTls:
    """With a certificate of its own; `trusted`: dialers ask who has signed it."""
    authority = Authority()
    issued = authority.issue()
    settings = TlsSettings(
        keystore=StoreSettings(prefix="ssl.keystore", pem=Secret(issued.certificate_pem)),
        key=Secret(issued.key_pem),
        truststore=StoreSettings(prefix="ssl.truststore", pem=Secret(authority.pem)),
    )
    client = client_context(settings).context
    if not trusted:
        client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    shown = server_context(settings)
    assert shown.certificate is not None
    return LinkTls(client, shown.context, shown.certificate.der)


@contextlib.asynccontextmanager
async def serving(folder: Path, credentials: Credentials) -> AsyncIterator[int]:
    """A controller's listener; its port."""
    quorum = SingleVoter(folder, VOTER, Values, lambda error: None)
    listener = Listener(quorum, credentials, SETTINGS)
    sock = listening_socket()
    await listener.start(sock)
    try:
        yield port_of(sock)
    finally:
        listener.close()
        quorum.stop()


async def is_refused(port: int, **options: Any) -> bool:
    """Whether a broker with these credentials isn't let in."""
    broker = Broker({VOTER: port}, **options)
    try:
        await broker.client.start(300)
    except ControllerUnavailable:
        return True
    finally:
        await broker.client.close()
    return False


# -- secrets


def test_a_secret_is_made_on_loopback_and_kept(tmp_path: Path) -> None:
    secret = load_secret(None, "127.0.0.1", tmp_path / "m").dialing
    assert len(secret) >= 32
    assert load_secret(None, "localhost", tmp_path / "m").accepted == (secret,)
    assert load_secret(None, "::1", tmp_path / "other").dialing != secret
    with pytest.raises(SecretUnusable, match="several nodes, so it needs a shared secret"):
        load_secret(None, "127.0.0.1", tmp_path / "m", shared=True)
    (path,) = (tmp_path / "m").iterdir()
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "broker-1.example.org"])
def test_off_loopback_a_secret_is_required(tmp_path: Path, host: str) -> None:
    with pytest.raises(SecretUnusable, match=r"(?s)openssl rand.*kraftpy\.quorum\.secret\.file"):
        load_secret(None, host, tmp_path)
    file = tmp_path / "quorum.secret"
    with pytest.raises(SecretUnusable, match="can't read"):
        load_secret(file, host, tmp_path)
    for bad, said in (
        ("short\n", "has 5 bytes; at least 16"),
        ("long enough a secret\nshort\n", "has 5 bytes; at least 16"),
        ("", "has 0 lines"),
        ("long enough a secret\n" * 3, "has 3 lines"),
    ):
        file.write_text(bad)
        with pytest.raises(SecretUnusable, match=said):
            load_secret(file, host, tmp_path)
    file.write_text("long enough a secret\n")
    assert load_secret(file, host, tmp_path).accepted == (b"long enough a secret",)


def test_a_file_that_changes_is_read_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "secret"

    def write(*lines: bytes) -> None:
        temporary = tmp_path / "new"
        temporary.write_bytes(b"\n".join(lines))
        temporary.replace(file)

    write(FIRST)
    secret = load_secret(file, "127.0.0.1", tmp_path)
    assert (secret.dialing, secret.accepted) == (FIRST, (FIRST,))
    write(FIRST, SECOND)
    assert (secret.dialing, secret.accepted) == (FIRST, (FIRST, SECOND))
    write(b"short")
    assert secret.accepted == (FIRST, SECOND)
    assert secret.accepted == (FIRST, SECOND)
    assert caplog.text.count("going on with the quorum's secret as it was") == 1
    file.unlink()
    assert secret.dialing == FIRST
    write(SECOND)
    assert secret.accepted == (SECOND,)


async def test_a_secret_is_replaced_on_a_running_quorum(tmp_path: Path) -> None:
    """By the three steps, node by node; in between both kinds of nodes get on."""
    file = tmp_path / "secret"
    file.write_bytes(FIRST)
    accepting = Credentials(load_secret(file, "127.0.0.1", tmp_path))
    async with serving(tmp_path / "m", accepting) as port:
        for lines, dialed, refused in (
            ([FIRST], {FIRST}, {SECOND, THIRD}),
            ([FIRST, SECOND], {FIRST, SECOND}, {THIRD}),
            ([SECOND, FIRST], {FIRST, SECOND}, {THIRD}),
            ([SECOND], {SECOND}, {FIRST, THIRD}),
        ):
            file.write_bytes(b"\n".join(lines))
            for secret in (FIRST, SECOND, THIRD):
                assert (secret in refused) == await is_refused(port, secret=secret)
            assert dialed | refused == {FIRST, SECOND, THIRD}
            assert accepting.secret.dialing == lines[0]


# -- TLS


@pytest.mark.parametrize("trusted", [False, True])
async def test_contexts_are_used_if_given(tmp_path: Path, trusted: bool) -> None:
    tls = link_tls(trusted=trusted)
    async with serving(tmp_path / "m", Credentials(QuorumSecret(SECRET), tls)) as port:
        async with Broker({VOTER: port}, tls=tls) as broker:
            await broker.add("secret")
            assert broker.copy.values == ["secret"]
        assert await is_refused(port)
        assert await is_refused(port, tls=tls, secret=b"another secret, long enough")
        other = link_tls(trusted=trusted)  # its authority isn't that of the listener
        assert await is_refused(port, tls=other) == trusted


async def test_who_sits_between_two_halves_of_tls_learns_and_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It shows a certificate of its own, which nobody asks for a signature of."""
    tls, between = link_tls(trusted=False), link_tls(trusted=False)
    async with serving(tmp_path / "m", Credentials(QuorumSecret(SECRET), tls)) as port:

        async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            onward = await asyncio.open_connection("127.0.0.1", port, ssl=between.client)

            async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
                with contextlib.suppress(OSError):
                    while data := await source.read(65536):
                        target.write(data)
                target.close()

            await asyncio.gather(copy(reader, onward[1]), copy(onward[0], writer))

        server = await asyncio.start_server(relay, "127.0.0.1", 0, ssl=between.server)
        async with server:
            middle = server.sockets[0].getsockname()[1]
            assert await is_refused(middle, tls=tls)
        assert "or somebody between the two ends its TLS" in caplog.text
        assert not await is_refused(port, tls=tls)


async def test_a_stranger_that_does_not_finish_its_handshake_is_closed_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener_module, "AUTHENTICATION_TIMEOUT_S", 0.2)
    tls = link_tls(trusted=False)
    async with serving(tmp_path / "m", Credentials(QuorumSecret(SECRET), tls)) as port:
        assert await asyncio.wait_for(stranger_says(port, b"\x16"), 5) == b""


async def test_voters_talk_over_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    credentials = Credentials(QuorumSecret(SECRET), link_tls(trusted=True))
    caplog.set_level(logging.INFO)
    async with Trio(tmp_path, accepting=credentials, dialing=credentials) as trio:
        leader = await trio.leader()
        await leader.propose(command(1))
        await until(lambda: values(trio) == [[1]] * 3)
    caplog.clear()
    plain = Credentials(QuorumSecret(SECRET))
    async with Trio(tmp_path / "plain", accepting=credentials, dialing=plain):
        await until(lambda: "no connection with voter" in caplog.text)
        assert "is connected" not in caplog.text
