"""Listeners with TLS: stock clients, mutual TLS, what isn't TLS, slow peers, new certificates."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import ssl
import struct
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from kafka import KafkaConsumer, KafkaProducer

from kraftpy.testing import Broker, BrokerError
from tests.certificates import Authority
from tests.clients.confluent import deliver_or_be_refused
from tests.knowing import knowing
from tests.processes import free_port
from tests.secured import MARKER, Secured, listening, secured_broker
from tests.server.test_metrics import scrape
from tests.waiting import wait_until

TIMEOUT_S = 30.0
COUNT, SIZE_BYTES = 300, 20_000  # answers of several megabytes: many records of TLS, file slices


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured_broker(tmp_path_factory.mktemp("tls")) as started:
        yield started


@pytest.fixture
def topic() -> str:
    return f"t-{uuid.uuid4().hex[:12]}"


def values() -> list[bytes]:
    return [bytes([number % 251]) * SIZE_BYTES for number in range(COUNT)]


class Pem(NamedTuple):
    """What a client is told: files of the authority and, for mutual TLS, of its own."""

    ca: str
    certificate: str | None
    key: str | None


@pytest.fixture(params=["SSL", "MUTUAL"])
def endpoint(request: pytest.FixtureRequest, secured: Secured) -> tuple[str, Pem]:
    if request.param == "SSL":
        return secured.ssl, Pem(secured.ca, None, None)
    certificate = secured.file("alice.crt", secured.alice.certificate_pem)
    key = secured.file("alice.key", secured.alice.key_pem)
    return secured.mutual, Pem(secured.ca, certificate, key)


def test_confluent_kafka(endpoint: tuple[str, Pem], topic: str) -> None:
    address, pem = endpoint
    options: dict[str, Any] = {
        "bootstrap.servers": address,
        "security.protocol": "ssl",
        "ssl.ca.location": pem.ca,
    }
    if pem.certificate is not None:
        options |= {"ssl.certificate.location": pem.certificate, "ssl.key.location": pem.key}
    producer = Producer(options)
    for value in values():
        producer.produce(topic, value)
    assert producer.flush(TIMEOUT_S) == 0
    consumer = Consumer(options | {"group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    received: list[Any] = []
    wait_until(
        lambda: received.extend(consumer.consume(COUNT, 1.0)) or len(received) >= COUNT,
        "all came",
    )
    consumer.close()
    assert sorted(each.value() for each in received) == sorted(values())


def test_kafka_python(endpoint: tuple[str, Pem], topic: str) -> None:
    address, pem = endpoint
    options: dict[str, Any] = {
        "bootstrap_servers": address,
        "security_protocol": "SSL",
        "ssl_cafile": pem.ca,
        "ssl_certfile": pem.certificate,
        "ssl_keyfile": pem.key,
    }
    producer = KafkaProducer(**options)
    for value in values():
        producer.send(topic, value)
    producer.flush(TIMEOUT_S)
    producer.close()
    consumer = KafkaConsumer(
        topic, **options, group_id=topic, auto_offset_reset="earliest", consumer_timeout_ms=20_000
    )
    knowing(consumer, topic)
    received = [next(consumer).value for _ in range(COUNT)]
    consumer.close()
    assert sorted(received) == sorted(values())


async def test_aiokafka(endpoint: tuple[str, Pem], topic: str) -> None:
    address, pem = endpoint
    context = ssl.create_default_context(cafile=pem.ca)
    if pem.certificate is not None:
        context.load_cert_chain(pem.certificate, pem.key)
    options: dict[str, Any] = {
        "bootstrap_servers": address,
        "security_protocol": "SSL",
        "ssl_context": context,
    }
    async with AIOKafkaProducer(**options) as producer:
        for value in values():
            await producer.send(topic, value)
        await producer.flush()
    async with AIOKafkaConsumer(
        topic, **options, group_id=topic, auto_offset_reset="earliest"
    ) as consumer:
        async with asyncio.timeout(TIMEOUT_S):
            received = [(await consumer.getone()).value for _ in range(COUNT)]
    assert sorted(received) == sorted(values())


def test_who_shows_no_certificate_or_a_strangers_isnt_let_in(secured: Secured) -> None:
    stranger = Authority().issue("CN=alice")
    nobody = secured.authority.issue("CN=mallory")  # no rule fits
    for shown in (None, stranger, nobody):
        assert not is_answered(secured, secured.context(shown))
    log = secured.broker.log_path.read_text()
    assert "no rule of ssl.principal.mapping.rules fits" in log
    assert is_answered(secured, secured.context(secured.alice))


def is_answered(secured: Secured, context: ssl.SSLContext) -> bool:
    """Whether a client at the listener with mutual TLS gets an answer."""
    try:
        with secured.connect(secured.mutual, context) as tls:
            tls.sendall(struct.pack(">ihhih", 10, 18, 0, 1, -1))
            return len(tls.recv(4)) == 4
    except (ssl.SSLError, ConnectionError):
        return False


def test_a_client_of_kafkas_doesnt_trust_a_strangers_broker(secured: Secured) -> None:
    ca = secured.file("other.pem", Authority().pem)
    config = {"bootstrap.servers": secured.ssl, "security.protocol": "ssl", "ssl.ca.location": ca}
    with pytest.raises(KafkaException, match="certificate verify failed"):
        deliver_or_be_refused(config, "never")


@pytest.mark.parametrize(
    "first",
    [
        struct.pack(">ihhih", 10, 18, 0, 1, -1),
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x15\x03\x01\x00\x02\x02\x28",
        b"\x80\x2e\x01\x03\x01",
    ],
    ids=["kafka", "http", "alert", "sslv2"],
)
def test_what_isnt_tls_gets_no_answer_not_even_an_alert(secured: Secured, first: bytes) -> None:
    host, _, port = secured.ssl.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=TIMEOUT_S) as sock:
        sock.sendall(first)
        with contextlib.suppress(ConnectionResetError):
            assert sock.recv(100) == b""


def test_5_oversize_a_frame_of_two_gigabytes_closes_the_connection(secured: Secured) -> None:
    for size in (2**31 - 1, 104857601, -1, 0):
        with secured.connect(secured.ssl, secured.context()) as tls:
            tls.sendall(struct.pack(">i", size) + bytes(100))
            assert tls.recv(1) == b""


def test_6_slow_loris_a_handshake_that_takes_its_time_is_ended(secured: Secured) -> None:
    host, _, port = secured.ssl.rpartition(":")
    began_s = time.monotonic()
    silent = socket.create_connection((host, int(port)), timeout=TIMEOUT_S)
    busy = socket.create_connection((host, int(port)), timeout=0.5)
    hello = b"\x16\x03\x01\x02\x00\x01" + bytes(600)
    with silent, busy:
        for byte in hello:
            try:
                busy.sendall(bytes([byte]))
                assert busy.recv(1) == b""
                break
            except TimeoutError:
                continue
            except OSError:
                break
            finally:
                # Others come in meanwhile.
                with secured.connect(secured.ssl, secured.context()):
                    pass
        took_s = time.monotonic() - began_s
        assert 8 < took_s < 20
        assert silent.recv(1) == b""


def test_bytes_that_arent_tls_any_more_close_the_connection(secured: Secured) -> None:
    host, _, port = secured.ssl.rpartition(":")
    raw = socket.create_connection((host, int(port)), timeout=TIMEOUT_S)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = secured.context().wrap_bio(incoming, outgoing, server_hostname=host)
    with raw:
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                raw.sendall(outgoing.read())
                incoming.write(raw.recv(65536))
        raw.sendall(outgoing.read())
        raw.sendall(b"\x17\x03\x03\x00\x20" + os.urandom(32))
        answer = b""
        while piece := raw.recv(65536):
            answer += piece
        incoming.write(answer)
        with pytest.raises(ssl.SSLError, match="BAD_RECORD_MAC"):
            tls.read(1)


def test_23_secrets_are_in_no_log_nor_description(secured: Secured) -> None:
    admin = AdminClient({"bootstrap.servers": secured.broker.bootstrap})
    resource = ConfigResource(ResourceType.BROKER, "1")
    described = admin.describe_configs([resource])[resource].result(TIMEOUT_S)
    entry = described["ssl.key.password"]
    assert entry.is_sensitive
    assert entry.value is None
    assert described["listener.name.mutual.ssl.client.auth"].value == "required"
    assert MARKER not in repr({key: each.value for key, each in described.items()})
    assert MARKER not in secured.broker.log_path.read_text()


def test_metrics_tell_when_certificates_expire_and_how_handshakes_went(secured: Secured) -> None:
    before = scrape(secured.broker.config)
    with secured.connect(secured.ssl, secured.context()):
        pass
    assert not is_answered(secured, secured.context())
    for listener in ("SSL", "MUTUAL"):
        expiry_s = before["kraftpy_tls_certificate_expiry_timestamp_seconds", listener]
        assert abs(expiry_s - time.time() - 20 * 86400) < 3600
    after: dict[Any, float] = {}

    def more(result: str) -> bool:
        key = "kraftpy_tls_handshakes_total", result
        after.update(scrape(secured.broker.config))
        return after[key] > before[key]

    wait_until(lambda: more("done") and more("failed"), "both are counted")


def shown_at(address: str, ca: Path, session: ssl.SSLSession | None = None) -> tuple[int, bool]:
    """The serial number of what is shown there, and whether `session` was resumed."""
    context = ssl.create_default_context(cafile=str(ca))
    host, _, port = address.rpartition(":")
    with (
        socket.create_connection((host, int(port)), timeout=TIMEOUT_S) as sock,
        context.wrap_socket(sock, server_hostname=host, session=session) as tls,
    ):
        found = tls.getpeercert()
        assert found is not None
        return int(str(found["serialNumber"]), 16), bool(tls.session_reused)


def test_21_reload_of_files_on_sighup_and_by_the_setting(tmp_path: Path) -> None:
    authority = Authority()
    ca = authority.write(tmp_path / "ca.pem")
    first, second, third = (authority.issue("CN=broker") for _ in range(3))
    keystore = first.write_pem(tmp_path / "broker.pem")
    port = free_port()
    address = f"127.0.0.1:{port}"
    with Broker(
        **listening(PLAINTEXT=0, SSL=port),
        ssl_keystore_type="PEM",
        ssl_keystore_location=keystore,
    ) as broker:
        assert shown_at(address, ca)[0] == first.certificate.serial_number
        with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S) as sock:
            context = ssl.create_default_context(cafile=str(ca))
            with context.wrap_socket(sock, server_hostname="127.0.0.1") as open_before:
                # A half-written pair: the key of the second with the certificate of the first.
                keystore.write_text(second.key_pem + first.certificate_pem)
                os.kill(broker.pid, signal.SIGHUP)
                wait_until(
                    lambda: "isn't that of the certificate" in broker.log_path.read_text(),
                    "it is told",
                )
                assert shown_at(address, ca)[0] == first.certificate.serial_number
                second.write_pem(keystore)
                os.kill(broker.pid, signal.SIGHUP)
                wait_until(
                    lambda: shown_at(address, ca)[0] == second.certificate.serial_number,
                    "the second is shown",
                )
                expired = authority.issue("CN=broker", days=-1).write_pem(tmp_path / "old.pem")
                third.write_pem(tmp_path / "third.pem")
                set_keystore(broker, expired)
                wait_until(lambda: "has expired" in broker.log_path.read_text(), "it is told, too")
                assert shown_at(address, ca)[0] == second.certificate.serial_number
                set_keystore(broker, tmp_path / "third.pem")
                wait_until(
                    lambda: shown_at(address, ca)[0] == third.certificate.serial_number,
                    "the third is shown",
                )
                # Who was there before goes on.
                open_before.sendall(struct.pack(">ihhih", 10, 18, 0, 1, -1))
                assert len(open_before.recv(4)) == 4


def set_keystore(broker: Broker, path: Path) -> None:
    """As kafka-configs --alter does."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    resource = ConfigResource(
        ResourceType.BROKER,
        "1",
        incremental_configs=[
            ConfigEntry(
                "listener.name.ssl.ssl.keystore.location",
                str(path),
                incremental_operation=AlterConfigOpType.SET,
            )
        ],
    )
    admin.incremental_alter_configs([resource])[resource].result(TIMEOUT_S)


def test_a_broker_that_cant_use_its_certificate_says_so_and_ends(tmp_path: Path) -> None:
    jks = tmp_path / "broker.jks"
    jks.write_bytes(bytes.fromhex("feedfeed") + bytes(50))
    with pytest.raises(BrokerError, match="keytool -importkeystore"):
        Broker(**listening(SSL=0), ssl_keystore_location=jks).start()
