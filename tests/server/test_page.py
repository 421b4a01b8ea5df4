"""The page of running nodes: what a person is shown agrees with what there is, also when it breaks.

What is tested here is read off /status.json, which says the same; how the page looks and behaves in
a browser is tested with the conformance tests.
"""

from __future__ import annotations

import http.client
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kraftpy.metrics.admission import CONNECTIONS_PER_PEER_MAX
from kraftpy.metrics.http import HEAD_MAX_BYTES
from kraftpy.testing import Broker, Cluster
from tests import warm
from tests.endpoints import metrics_address
from tests.processes import free_port
from tests.waiting import wait_until

TIMEOUT_S = 20.0
RECORDS = 60
GROUP = "<b>\"group\"</b> & 'co' \u202e/.."
VOTERS = [1, 2, 3]
ONLY_BROKER = 4


def address_of(config: Path) -> tuple[str, int]:
    host, _, port = metrics_address(config).rpartition(":")
    return host, int(port)


def ask(config: Path, path: str, method: str = "GET") -> tuple[int, dict[str, str], str]:
    """Status, headers and text."""
    connection = http.client.HTTPConnection(*address_of(config), timeout=TIMEOUT_S)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, dict(answer.headers), answer.read().decode()
    finally:
        connection.close()


def status(config: Path, query: str = "") -> dict[str, Any]:
    code, _, text = ask(config, f"/status.json{query}")
    assert code == 200, text
    found: dict[str, Any] = json.loads(text)
    return found


def problems(config: Path) -> str:
    return " ".join(problem["text"] for problem in status(config)["problems"])


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Three nodes that are both, and one that is a broker alone."""
    with Cluster(4, offsets_topic_num_partitions=3) as started:
        bootstrap = {"bootstrap.servers": started.bootstrap}
        topics = [
            NewTopic("orders", 4, 3),
            NewTopic("lonely", 1, 1, config={"retention.ms": "99999"}),
        ]
        admin = AdminClient(bootstrap)
        for created in admin.create_topics(topics).values():
            created.result()
        producer = Producer({**bootstrap, "acks": "all"})
        for number in range(RECORDS):
            producer.produce("orders", b"x" * 100, partition=number % 4)
        assert producer.flush(TIMEOUT_S) == 0
        consumer = Consumer({**bootstrap, "group.id": GROUP, "enable.auto.commit": False})
        offsets = [TopicPartition("orders", 0, 5), TopicPartition("orders", 1, 15)]
        consumer.commit(offsets=offsets, asynchronous=False)
        consumer.close()
        yield started


@pytest.mark.parametrize("node", [1, ONLY_BROKER])
def test_every_node_shows_the_cluster(cluster: Cluster, node: int) -> None:
    config = cluster.nodes[node].config
    wait_until(
        lambda: status(config)["groups"] and status(config)["brokers"][0]["folders"], "asked"
    )
    seen = status(config)
    assert seen["problems"] == []
    assert seen["healthy"]
    assert [each["broker"] for each in seen["brokers"]] == [1, 2, 3, 4]
    assert {each["state"] for each in seen["brokers"]} == {"up"}
    assert seen["node"]["roles"] == ("broker" if node == ONLY_BROKER else "broker and controller")
    assert seen["quorum"]["leader"] == cluster.controller()
    assert [each["node"] for each in seen["quorum"]["voters"]] == VOTERS
    assert all(each["lag"] < 100 for each in seen["quorum"]["voters"])
    orders = next(each for each in seen["topics"] if each["topic"] == "orders")
    assert (orders["partitions_total"], orders["replicas"], orders["in_sync"]) == (4, 12, 12)
    assert orders["bytes"] > 3 * RECORDS * 100
    (group,) = seen["groups"]
    assert (group["group"], group["state"], group["members"]) == (GROUP, "Empty", 0)
    assert group["lag"] == group["topics"]["orders"] == 10
    assert (
        sum(each["leads"] for each in seen["brokers"]) == seen["partitions"]["total"] == 4 + 1 + 3
    )
    assert any(each["event"] == "topic-created" for each in seen["events"])
    code, headers, text = ask(config, "/")
    assert code == 200
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert "&lt;b&gt;&quot;group&quot;&lt;/b&gt; &amp; &#x27;co&#x27; \\u202e/.." in text
    assert '<b>"group' not in text


def test_a_topic_and_a_group_have_pages_of_their_own(cluster: Cluster) -> None:
    config = cluster.nodes[2].config
    topic = status(config, "?topic=orders")
    leaders = {each["partition"]: each["leader"] for each in topic["partitions"]}
    assert leaders == {index: cluster.leader_of("orders", index) for index in range(4)}
    assert {each["end"] for each in topic["partitions"]} == {RECORDS // 4}
    assert status(config, "?topic=lonely")["settings"] == {"retention.ms": "99999"}
    group = status(config, f"?group={quote(GROUP)}")
    lags = {each["partition"]: each["lag"] for each in group["partitions"]}
    assert lags == {0: 10, 1: 0}
    code, _, text = ask(config, "/topics/orders")
    assert (code, "Topic <bdi>orders" in text) == (200, True)
    code, _, text = ask(config, f"/groups/{quote(GROUP, safe='')}")
    assert (code, "\\u202e/.." in text) == (200, True)
    for path in (
        "/topics/no",
        "/groups/no",
        "/topics/orders/0",
        "/nothing",
        "/status.json?topic=no",
    ):
        assert ask(config, path)[0] == 404, path
    code, _, text = ask(config, "/topics/orders?fragment=1")
    assert (code, text.startswith('<div id="content"')) == (200, True)


def test_what_is_written_and_not_read_has_a_rate() -> None:
    with Broker() as broker:
        bootstrap = {"bootstrap.servers": broker.bootstrap}
        admin = AdminClient(bootstrap)
        for created in admin.create_topics([NewTopic("busy", 1), NewTopic("idle", 2)]).values():
            created.result()
        consumer = Consumer({**bootstrap, "group.id": GROUP, "enable.auto.commit": False})
        consumer.commit(offsets=[TopicPartition("busy", 0, 0)], asynchronous=False)
        consumer.close()
        producer = Producer(bootstrap)

        def rates() -> list[float]:
            for _ in range(20):
                producer.produce("busy", b"x")
            assert producer.flush(TIMEOUT_S) == 0
            seen = status(broker.config)
            topics = [each for each in seen["topics"] if each["topic"] == "busy"]
            per_s = [each["records_per_s"] or 0 for each in topics]
            return [*per_s, *(each["lag_per_s"] or 0 for each in seen["groups"] or [])]

        wait_until(lambda: len(found := rates()) == 2 and min(found) > 0, "both are known")
        seen = status(broker.config)
        idle = next(each for each in seen["topics"] if each["topic"] == "idle")
        assert idle["records_per_s"] == 0
        assert seen["records_per_s"] > 0
        # It rises for too short a time to be said.
        assert not seen["groups"][0]["lag_rises"]


def test_only_get_and_head_are_answered(cluster: Cluster) -> None:
    config = cluster.nodes[1].config
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "NONSENSE"):
        code, headers, _ = ask(config, "/", method)
        assert (code, headers["Allow"]) == (405, "GET, HEAD")
    code, headers, text = ask(config, "/", "HEAD")
    assert (code, text) == (200, "")
    assert int(headers["Content-Length"]) > 1000


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (b"GET / HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello", b"HTTP/1.1 400"),
        (b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", b"HTTP/1.1 400"),
        (b"nonsense\r\n\r\n", b"HTTP/1.1 400"),
        (b"GET http://[ HTTP/1.1\r\n\r\n", b"HTTP/1.1 400"),
        (b"GET / HTTP/1.1\r\nX: " + HEAD_MAX_BYTES * b"x" + b"\r\n\r\n", b"HTTP/1.1 431"),
        (
            b"GET /topics/%00%ff?q=%&&=&x HTTP/1.1\r\nConnection: close\r\n\r\n",
            b"HTTP/1.1 404",
        ),
    ],
)
def test_a_malformed_request_ends_its_connection(
    cluster: Cluster, sent: bytes, answer: bytes
) -> None:
    with socket.create_connection(address_of(cluster.nodes[1].config), TIMEOUT_S) as client:
        client.sendall(sent)
        received = b""
        while part := client.recv(65536):
            received += part
        assert received[: len(answer)] == answer


def test_connections_are_bounded_and_those_that_wait_are_answered(cluster: Cluster) -> None:
    address = address_of(cluster.nodes[3].config)
    idle = [
        socket.create_connection(address, TIMEOUT_S) for _ in range(CONNECTIONS_PER_PEER_MAX + 10)
    ]
    try:
        # Those that were turned away have ended; that is all there is to read.
        wait_until(lambda: len(select.select(idle, [], [], 0)[0]) >= 10, "they were turned away")
        assert len(select.select(idle, [], [], 0.2)[0]) == 10
    finally:
        for client in idle:
            client.close()
    wait_until(lambda: ask(cluster.nodes[3].config, "/healthz")[0] == 200, "places are free again")


def test_nothing_of_the_page_is_loaded_before_somebody_looks() -> None:
    code = (
        "import sys, kraftpy.server.node.processes, kraftpy.metrics.http\n"
        "assert 'kraftpy.page' not in sys.modules, 'page'\n"
        "assert 'kraftpy.client.cluster' not in sys.modules, 'client'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_dead_broker_is_shown_then_a_lost_majority_then_a_broker_that_stops(
    cluster: Cluster,
) -> None:
    left, other = cluster.nodes[1].config, cluster.nodes[ONLY_BROKER].config
    cluster.kill(3)
    for config in (left, other):
        wait_until(lambda: "Broker 3 is down (fenced)." in problems(config), "3 is down", 5)  # noqa: B023
    seen = status(left)
    assert seen["partitions"]["under_replicated"] + seen["partitions"]["under_min_isr"] > 0
    assert ask(left, "/readyz")[0] == 200
    cluster.kill(2)
    for config in (left, other):
        took = wait_until(
            lambda c=config: "quorum has no leader" in problems(c), "the quorum is lost", 5
        )
        assert took < 2.5
        code, _, text = ask(config, "/")
        assert (code, "quorum has no leader" in text) == (200, True)
        assert [each["broker"] for each in status(config)["brokers"]] == [1, 2, 3, 4]
        assert ask(config, "/healthz")[0] == 200
        assert ask(config, "/readyz")[0] == 503
    # Its controlled shutdown waits for the quorum a while; from its beginning on it isn't ready.
    leaving = cluster.nodes[ONLY_BROKER]
    os.kill(leaving.pid, signal.SIGTERM)
    took = wait_until(
        lambda: "broker serves: NO" in ask(other, "/readyz")[2], "it says that it is not ready", 5
    )
    assert took < 2
    wait_until(lambda: "This node's broker is shutting down." in problems(other), "it is said", 5)
    assert ask(other, "/healthz")[0] == 200
    for node in (1, ONLY_BROKER):
        cluster.kill(node)


def test_a_broker_that_hangs_is_said_to_at_the_first_look_and_later() -> None:
    with Broker() as broker:
        for _ in range(2):
            os.kill(broker.pid, signal.SIGSTOP)
            try:
                started = time.monotonic()
                wait_until(
                    lambda: "broker doesn't answer" in problems(broker.config), "it is said", 5
                )
                assert "Healthy" not in ask(broker.config, "/")[2]
                assert time.monotonic() - started < 5
            finally:
                os.kill(broker.pid, signal.SIGCONT)
            wait_until(lambda: status(broker.config)["healthy"], "it is back")


@contextmanager
def controller(folder: Path, voters: str, port: int) -> Iterator[Path]:
    """A node that is a controller alone; its configuration."""
    config = folder / "server.properties"
    config.write_text(
        f"""
        process.roles=controller
        node.id=7
        controller.quorum.voters={voters}
        listeners=CONTROLLER://127.0.0.1:{port}
        controller.listener.names=CONTROLLER
        log.dirs={folder / "data"}
        kraftpy.metrics.listener=127.0.0.1:{free_port()}
        kraftpy.quorum.secret.file={folder / "secret"}
        """
    )
    (folder / "secret").write_text("c2VjcmV0IGVub3VnaCBmb3IgYSB0ZXN0IG9mIHRoZSBwYWdl\n")
    (folder / "secret").chmod(0o600)
    process = warm.popen([sys.executable, "-m", "kraftpy", "server", "--config", str(config)])
    try:
        wait_until(lambda: answers(config), "it answers")
        yield config
    finally:
        process.terminate()
        assert process.wait(TIMEOUT_S) == 0


def answers(config: Path) -> bool:
    try:
        return ask(config, "/healthz")[0] == 200
    except OSError:
        return False


def test_a_controller_by_itself_shows_the_brokers_that_it_has(tmp_path: Path) -> None:
    port = free_port()
    with controller(tmp_path, f"7@127.0.0.1:{port}", port) as config:
        assert "No broker has registered yet." in ask(config, "/")[2]
        assert status(config)["node"]["roles"] == "controller"
        with Broker(
            process_roles="broker",
            node_id=8,
            listeners="PLAINTEXT://127.0.0.1:0",
            controller_quorum_voters=f"7@127.0.0.1:{port}",
            kraftpy_quorum_secret_file=str(tmp_path / "secret"),
        ) as broker:
            producer = Producer({"bootstrap.servers": broker.bootstrap})
            producer.produce("t", b"x")
            assert producer.flush(TIMEOUT_S) == 0
            wait_until(lambda: status(config)["brokers"], "the broker has registered")
            wait_until(
                lambda: status(config, "?topic=t")["partitions"][0]["end"] == 1, "it was asked"
            )
            seen = status(config)
            assert [each["state"] for each in seen["brokers"]] == ["up"]
            assert seen["quorum"]["leader"] == 7


def test_one_voter_of_three_says_what_it_waits_for(tmp_path: Path) -> None:
    port = free_port()
    voters = f"7@127.0.0.1:{port},8@127.0.0.1:{free_port()},9@127.0.0.1:{free_port()}"
    with controller(tmp_path, voters, port) as config:
        assert ask(config, "/readyz")[0] == 503
        assert "It needs a majority of its voters (2 of 3)." in problems(config)
