"""What is delivered, and nobody told at which offset (KIP-98): acknowledged, wherever it is.

A proxy tells clients something else than their broker said of what it wrote: the retry of a batch
that is written already may be answered so, and a batch that couldn't be replicated in time.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.codec import decode_request_header, decode_response, encode_response
from kraftpy.protocol.errors import ErrorCode
from kraftpy.testing import Broker
from kraftpy.testing.consistency import Header, HistoryReader, HistoryWriter, check
from kraftpy.testing.consistency.clients import NO_OFFSET, Place, adapter, key_of
from kraftpy.testing.consistency.worker import Task, Worker
from kraftpy.testing.consistency.workloads import queue, replicas
from kraftpy.testing.consistency.workloads.play import ALL_CLIENTS
from tests.processes import free_port
from tests.waiting import wait_until


class Proxy:
    """Passes frames on. The next answers to Produce have the codes in `says`, and then true ones.

    Those that are not true wait until `awaited` requests to produce have come.
    """

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self.target = ("127.0.0.1", free_port())
        self.says: list[int] = []
        self.produced = self.awaited = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._server.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # it was closed
            while True:
                client, _ = self._server.accept()
                broker = socket.create_connection(self.target)
                versions: dict[int, int] = {}

                def note(frame: bytes, versions: dict[int, int] = versions) -> bytes:
                    header, _ = decode_request_header(frame)
                    if header.api_key == ApiKey.PRODUCE:
                        versions[header.correlation_id] = header.api_version
                        self.produced += 1
                    return frame

                def answer(frame: bytes, versions: dict[int, int] = versions) -> bytes:
                    version = versions.pop(int.from_bytes(frame[:4], "big"), None)
                    return frame if version is None else self._answer(frame, version)

                for ends in ((client, broker, note), (broker, client, answer)):
                    threading.Thread(target=self._pump, args=ends, daemon=True).start()

    def _answer(self, frame: bytes, version: int) -> bytes:
        number, response = decode_response(ApiKey.PRODUCE, version, frame)
        if self.says:
            code = self.says.pop(0)
            wait_until(lambda: self.produced >= self.awaited, f"{self.awaited} requests")
            for topic in response.responses:
                for each in topic.partition_responses:
                    assert each.error_code == 0, "it is written"
                    each.error_code, each.base_offset = code, -1
        return b"".join(map(bytes, encode_response(ApiKey.PRODUCE, version, number, response)))

    def _pump(
        self, source: socket.socket, sink: socket.socket, change: Callable[[bytes], bytes]
    ) -> None:
        with source, sink, contextlib.suppress(OSError):
            reader = source.makefile("rb")
            while size := reader.read(4):
                frame = change(reader.read(int.from_bytes(size, "big")))
                sink.sendall(len(frame).to_bytes(4, "big") + frame)
            sink.shutdown(socket.SHUT_RDWR)


@pytest.fixture(scope="module")
def proxied() -> Iterator[tuple[Proxy, str]]:
    """A proxy before a broker, and the address for clients."""
    with contextlib.closing(Proxy()) as proxy:
        bootstrap = f"127.0.0.1:{proxy.port}"
        port = proxy.target[1]
        with Broker(port=port, advertised_listeners=f"PLAINTEXT://{bootstrap}"):
            yield proxy, bootstrap


@pytest.fixture
def place(proxied: tuple[Proxy, str]) -> Place:
    """The partition of a new topic."""
    proxied[0].says = []
    name = f"t-{time.monotonic_ns()}"
    admin = AdminClient({"bootstrap.servers": proxied[1]})
    admin.create_topics([NewTopic(name, 1)])[name].result(timeout=20)
    return name, 0


@pytest.mark.parametrize("client", ALL_CLIENTS)
def test_a_duplicate_is_written_and_nobody_knows_where(
    proxied: tuple[Proxy, str], place: Place, client: str
) -> None:
    """librdkafka says of the second record of a duplicate that it is at 0."""
    proxy, bootstrap = proxied
    with contextlib.closing(adapter(client).sender(bootstrap)) as sender:
        assert sender.send([(place, "before")]) == [0]
        proxy.says = [ErrorCode.DUPLICATE_SEQUENCE_NUMBER] * 20  # each may be a batch of its own
        many = [(place, str(number)) for number in range(20)]
        assert sender.send(many) == [NO_OFFSET] * 20
        proxy.says = []
        assert sender.send([(place, "behind")]) == [21]


def test_what_was_written_before_something_acknowledged_is_too(
    proxied: tuple[Proxy, str], place: Place
) -> None:
    """librdkafka doesn't send it again, and has no offset for it."""
    proxy, bootstrap = proxied
    told: dict[str, tuple[int | None, str]] = {}

    def send(value: str) -> None:
        assert stream.send(
            place, value, lambda offset, error: told.update({value: (offset, error)})
        )

    with contextlib.closing(adapter("confluent-kafka").stream(bootstrap)) as stream:
        send("before")
        stream.settle(20)
        proxy.says, proxy.awaited = [ErrorCode.REQUEST_TIMED_OUT], proxy.produced + 2
        send("not replicated in time")
        wait_until(lambda: proxy.produced == proxy.awaited - 1, "the first request")
        send("behind")
        stream.settle(20)
        assert told == {
            "before": (0, ""),
            "not replicated in time": (NO_OFFSET, ""),
            "behind": (2, ""),
        }
        assert proxy.produced == proxy.awaited


@pytest.mark.parametrize("client", ALL_CLIENTS)
def test_it_is_judged_as_acknowledged(
    proxied: tuple[Proxy, str], place: Place, tmp_path: Path, client: str
) -> None:
    """By both workloads that send: nobody needs its offset, and where it isn't it is missed."""
    proxy, bootstrap = proxied
    options = {"topic": place[0], "partitions": 1, "idempotence": True}
    path = tmp_path / "history.jsonl"
    HistoryWriter(path, Header("replicas", options=options)).close()
    started_ns = time.monotonic_ns()
    task = Task("replicas", "", 1, str(path), bootstrap, client, 1, 1000.0, started_ns, options)
    worker = Worker(task, threading.Event())
    worker.new_session()
    with contextlib.closing(worker.adapter.stream(bootstrap)) as stream:
        replicas._await_first_answer(worker, stream, place)
        proxy.says = [ErrorCode.DUPLICATE_SEQUENCE_NUMBER]
        replicas._send(worker, stream, place)
        stream.settle(20)
    with contextlib.closing(worker.adapter.sender(bootstrap)) as sender:
        proxy.says = [ErrorCode.DUPLICATE_SEQUENCE_NUMBER]
        queue.send_records(worker, sender, [(place, "c")])
    with contextlib.closing(worker.adapter.reader(bootstrap, "g")) as reader:
        reader.assign({place: 0})
        found: list[tuple[int, str]] = []

        def read_all() -> bool:
            found.extend(reader.poll(0.1).get(key_of(place), ()))
            return len(found) >= 3

        wait_until(read_all, "three records")
    for missing in (None, 1, 2):
        judged = tmp_path / f"{missing}.jsonl"
        shutil.copy(path, judged)
        read = [each for each in found if each[0] != missing]
        with HistoryWriter(judged) as history:
            history.note(9, "poll", {key_of(place): read})
            op = history.invoke(10, "drain", None)
            history.ok(10, op, "drain", {key_of(place): [0, 3]})
        verdicts = {each.checker: each for each in check(HistoryReader(judged)).verdicts}
        assert verdicts["lost-write"].counts["acknowledged"] == 3
        assert verdicts["unacknowledged"].valid is True
        assert verdicts["unseen"].valid is (missing is None)
