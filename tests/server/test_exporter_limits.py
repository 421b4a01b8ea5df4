"""The exporter's process beside clients with long names, and readers that don't read."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kraftpy.protocol import messages
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.testing import Broker
from tests.endpoints import metrics_address
from tests.server.test_bad_input import memory_bytes
from tests.server.test_metrics import get, metrics_url
from tests.server.wire import Wire

pytestmark = pytest.mark.usefixtures("started_from_scratch")

GROUPS = 120
ID_LENGTH = 32_000


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """One with groups that have long names, of which only the ends differ."""
    with Broker() as started:
        with Wire(started.host, started.port) as wire:
            kinds = messages.CreateTopicsRequest
            made = kinds(topics=[kinds.CreatableTopic("t", 1, 1)], timeout_ms=10_000)
            assert wire.call(ApiKey.CREATE_TOPICS, 7, made).topics[0].error_code == 0
            find = messages.FindCoordinatorRequest(key="g")
            assert wire.call(ApiKey.FIND_COORDINATOR, 1, find).error_code == ErrorCode.NONE
            for number in range(GROUPS):
                commit(wire, f"{number}".rjust(ID_LENGTH, "g"))
        yield started


def commit(wire: Wire, group_id: str) -> None:
    kinds = messages.OffsetCommitRequest
    partition = kinds.OffsetCommitRequestPartition(0, 0)
    topics = [kinds.OffsetCommitRequestTopic(name="t", partitions=[partition])]
    answer = wire.call(ApiKey.OFFSET_COMMIT, 8, kinds(group_id=group_id, topics=topics))
    assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE


def exporter_pid(broker: Broker) -> int:
    """The process that listens where metrics are served, and is no broker."""
    found = [
        int(folder.name)
        for folder in Path("/proc").glob("[0-9]*")
        if is_exporter_of(folder, broker.pid)
    ]
    (pid,) = found
    return pid


def is_exporter_of(folder: Path, broker_pid: int) -> bool:
    try:
        status = (folder / "status").read_text()
    except OSError:
        return False
    is_child = re.search(rf"^PPid:\t{broker_pid}$", status, re.M) is not None
    return is_child and "Name:\tkraftpy-metrics" in status


def test_long_names_make_no_long_scrape(broker: Broker) -> None:
    status, _, text = get(metrics_url(broker.config))
    assert status == 200
    assert len(text) < 1_000_000
    lines = re.findall(r'^kafka_consumergroup_lag_sum\{consumergroup="([^"]+)"', text, re.M)
    assert len(set(lines)) == GROUPS


def test_readers_that_dont_read_starve_no_probe(broker: Broker) -> None:
    host, _, port = metrics_address(broker.config).rpartition(":")
    pid = exporter_pid(broker)
    with ExitStack() as connections:
        for number in range(40):
            sock = connections.enter_context(socket.socket())
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.settimeout(20)
            sock.connect((host, int(port)))
            path = b"/" if number % 4 else b"/metrics"
            # More than the system's buffers take.
            sock.sendall(b"GET %s HTTP/1.1\r\n\r\n" % path * 100)
            status, _, text = get(metrics_url(broker.config, "healthz"))
            assert (status, "NO" in text) == (200, False), text
        assert memory_bytes(pid) < 256_000_000
        assert get(metrics_url(broker.config, "readyz"))[0] == 200
    assert get(metrics_url(broker.config))[0] == 200
