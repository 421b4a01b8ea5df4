"""librdkafka, when the answer to a record is lost and the record's transaction is aborted.

It purges the record and gives the next transaction's first one the same sequence number. Whoever
takes that for a retry says of a record that it is written, and it is nowhere (librdkafka 2.16
beside Apache Kafka 4.4).
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import KafkaException, Producer

from kraftpy.testing import Broker
from tests.clients.confluent import ConfluentKafka
from tests.clients.driver import Deadline
from tests.processes import free_port

TIMEOUT_S = 20.0
SOCKET_TIMEOUT_MS = 1_000


class Proxy:
    """Passes bytes on. While `deaf`, connections lose what comes back, for good."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self.target = ("127.0.0.1", free_port())
        self.deaf = False
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._server.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # it was closed
            while True:
                client, _ = self._server.accept()
                try:
                    broker = socket.create_connection(self.target)
                except OSError:
                    client.close()
                    continue
                for ends in ((client, broker), (broker, client)):
                    threading.Thread(
                        target=self._pump, args=(*ends, ends[0] is broker), daemon=True
                    ).start()

    def _pump(self, source: socket.socket, sink: socket.socket, is_back: bool) -> None:
        lost = False
        with source, sink, contextlib.suppress(OSError):
            while data := source.recv(65_536):
                lost = lost or (is_back and self.deaf)
                if not lost:
                    sink.sendall(data)
            sink.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with contextlib.closing(Proxy()) as proxy:
        yield proxy


@pytest.fixture
def broker(proxy: Proxy) -> Iterator[Broker]:
    """Behind the proxy."""
    port = proxy.target[1]
    with Broker(port=port, advertised_listeners=f"PLAINTEXT://127.0.0.1:{proxy.port}") as broker:
        yield broker


def _again(call: Callable[[float], None], until: Deadline) -> None:
    """As librdkafka wants it: until a call that timed out has done what it is to do (KIP-588)."""
    while True:
        try:
            call(1.5)
        except KafkaException as error:
            if not error.args[0].retriable():
                raise
            until.left()
        else:
            return


def test_what_is_committed_is_there(proxy: Proxy, broker: Broker) -> None:
    bootstrap = f"127.0.0.1:{proxy.port}"
    judge = ConfluentKafka(bootstrap)
    judge.create_topic("t", 1, {})
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": "id",
            "socket.timeout.ms": SOCKET_TIMEOUT_MS,
            "request.timeout.ms": SOCKET_TIMEOUT_MS,
            "log_level": 0,
        }
    )
    producer.init_transactions(TIMEOUT_S)

    def write(value: bytes) -> None:
        producer.begin_transaction()
        producer.produce("t", value, partition=0)
        producer.flush(TIMEOUT_S)
        producer.commit_transaction(TIMEOUT_S)

    write(b"before")
    producer.begin_transaction()
    producer.produce("t", b"heard of", partition=0)
    assert producer.flush(TIMEOUT_S) == 0
    proxy.deaf = True
    producer.produce("t", b"not heard of", partition=0)
    deadline = Deadline("record in the log")
    (log,) = broker.log_dir.glob("t-0/*.log")
    while b"not heard of" not in log.read_bytes():
        producer.poll(0.02)
        deadline.left()
    with pytest.raises(KafkaException):
        producer.abort_transaction(2 * SOCKET_TIMEOUT_MS / 1000)
    proxy.deaf = False
    _again(producer.abort_transaction, Deadline("end of the transaction"))
    with pytest.raises(KafkaException) as refused:
        write(b"after")
    assert refused.value.args[0].txn_requires_abort()
    _again(producer.abort_transaction, Deadline("end of the transaction"))
    write(b"after")
    assert [each.value for each in judge.read("t", 0, 0, 2)] == [b"before", b"after"]
