"""What a node says of itself in its log, and what it must not say."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

from kraftpy.protocol import messages
from kraftpy.protocol.api import ApiKey
from kraftpy.server.node.serving import EXIT_BUG
from kraftpy.testing import Broker, Cluster
from tests.server.wire import Wire
from tests.waiting import wait_until

TIMEOUT_S = 15.0


def connect(bootstrap: str, client_id: str = "wire") -> Wire:
    host, _, port = bootstrap.partition(",")[0].rpartition(":")
    return Wire(host, int(port), client_id=client_id)


def lone_node(folder: Path, *settings: str) -> Path:
    """The configuration of a node that is a cluster by itself; its data is in `folder`/data."""
    lines = ["node.id=4", "listeners=PLAINTEXT://127.0.0.1:0", f"log.dirs={folder / 'data'}"]
    config = folder / "server.properties"
    config.write_text("".join(f"{line}\n" for line in (*lines, *settings)))
    return config


def test_a_quorum_tells_what_happens_to_it_and_never_its_secret(tmp_path: Path) -> None:
    with Cluster(3, dir=tmp_path / "c", links=False, kraftpy_log_format="json") as cluster:

        def events(node: int, name: str) -> list[dict[str, object]]:
            log = (tmp_path / "c" / f"node{node}" / "log").read_text()
            return [
                line["fields"]
                for line in map(json.loads, log.splitlines())
                if line.get("event") == name and line["node"] == node
            ]

        with connect(cluster.bootstrap) as wire:
            creatable = messages.CreateTopicsRequest.CreatableTopic("orders", 3, 3)
            wire.call(ApiKey.CREATE_TOPICS, 7, messages.CreateTopicsRequest([creatable], 10_000))
        for node in (1, 2, 3):
            wait_until(lambda n=node: events(n, "topic-created"), "a topic was created")
            assert events(node, "node-starting")[0]["node"] == node
            assert events(node, "broker-started")[0]["node"] == node
            assert events(node, "quorum-leader")
        assert {"topic": "orders", "partitions": 3, "replication": 3} in events(1, "topic-created")
        # A stranger connects to a controller's listener.
        port = int(
            re.search(
                r"CONTROLLER://[\d.]+:(\d+)", (tmp_path / "c/node1/server.properties").read_text()
            )[1]  # type: ignore[index]
        )
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.sendall(b"\0\0\0\4spam")
            stranger.recv(100)
        cluster.kill(3)
        wait_until(lambda: events(1, "broker-fenced") or events(2, "broker-fenced"), "3 was fenced")
        wait_until(lambda: events(1, "isr-shrunk") + events(2, "isr-shrunk"), "the ISRs shrank")
        cluster.restart(3)
        cluster.wait_healthy()
        wait_until(lambda: events(1, "isr-expanded") + events(2, "isr-expanded"), "they grew")
        cluster.stop(2)
        assert [each["left"] for each in events(2, "controlled-shutdown")] == [0]
        assert events(2, "node-stopped")
        assert events(2, "controller-stopped")
        secrets = list((tmp_path / "c").glob("*secret*"))
        assert secrets
    for path in secrets:
        text = path.read_text().strip()
        raw = base64.b64decode(text)
        shown = {text, raw.hex(), repr(raw)[2:-1], text[:12], raw.hex()[:16]}
        for node in (1, 2, 3):
            log = (tmp_path / "c" / f"node{node}" / "log").read_text()
            assert not [each for each in shown if each in log]


def test_a_slow_request_is_logged_with_its_client_and_a_long_poll_isnt() -> None:
    with Broker(kraftpy_log_slow_request_ms=1) as broker:

        def slow() -> list[str]:
            lines = broker.log_path.read_text().splitlines()
            return [line.partition("slow-request ")[2] for line in lines if "slow-request " in line]

        hostile = "me\n2026-01-31 00:00:00,000 ERROR kraftpy: forged " + "x" * 5000
        with connect(broker.bootstrap, hostile) as wire:
            creatable = messages.CreateTopicsRequest.CreatableTopic("t", 200, 1)
            wire.call(ApiKey.CREATE_TOPICS, 7, messages.CreateTopicsRequest([creatable], 10_000))
            wait_until(slow, "creating 200 partitions takes more than a millisecond")
            (line,) = slow()
            assert re.match(r"api=CreateTopics version=7 milliseconds=\d+ client=", line)
            assert r'client="me\n2026-01-31 00:00:00,000 ERROR kraftpy: forged xxx' in line
            assert len(line) < 500
            fetch = messages.FetchRequest(max_wait_ms=300, min_bytes=1, max_bytes=1000)
            topic = messages.FetchRequest.FetchTopic("t")
            topic.partitions = [messages.FetchRequest.FetchPartition(0, partition_max_bytes=1000)]
            fetch.topics = [topic]
            wire.call(ApiKey.FETCH, 11, fetch)
            assert not [line for line in slow() if "api=Fetch" in line and _ms(line) < 300]


def _ms(line: str) -> int:
    return int(re.search(r"milliseconds=(\d+)", line)[1])  # type: ignore[index]


def test_level_and_format_come_from_the_command_line_too(tmp_path: Path) -> None:
    config = lone_node(tmp_path, "kraftpy.log.format=text", "kraftpy.log.level=error")
    command = [sys.executable, "-m", "kraftpy", "server", "--config", str(config)]
    options = ["--log-format", "json", "--log-level", "info"]
    with subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True) as node:
        assert node.stderr is not None
        lines = []
        for line in node.stderr:
            lines.append(json.loads(line))
            if lines[-1].get("event") == "broker-started":
                node.send_signal(signal.SIGTERM)
        assert node.wait(TIMEOUT_S) == 0
    names = [line["event"] for line in lines if "event" in line]
    assert names[0] == "node-starting"
    assert names.index("node-stopping") < names.index("controlled-shutdown")
    assert names.index("controlled-shutdown") < names.index("node-stopped")
    assert names[-1] == "controller-stopped"
    marker = tmp_path / "data" / ".kafka_cleanshutdown"
    assert marker.exists()
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as node:
        assert node.stderr is not None
        try:
            wait_until(lambda: not marker.exists(), "it opens its logs")
        finally:
            node.send_signal(signal.SIGTERM)
        assert node.wait(TIMEOUT_S) == 0
        assert node.stderr.read() == "", "nothing went wrong"


def test_a_node_that_is_told_to_stop_before_it_has_begun_stops(tmp_path: Path) -> None:
    """As the first process of a container it would not get the signal without a handler."""
    config = lone_node(tmp_path)
    program = (
        "import os, signal, kraftpy.cli.server as server\n"
        "parse = server.load_config\n"
        "def load(*given): os.kill(os.getpid(), signal.SIGTERM); return parse(*given)\n"
        "server.load_config = load\n"
        f"server.command(['--config', {str(config)!r}])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0
    assert not (tmp_path / "data").exists()


def test_a_node_with_a_defect_in_its_stop_ends_all_the_same(tmp_path: Path) -> None:
    """At once, though a thread is held up; and nobody takes it for a clean stop."""
    config = lone_node(tmp_path)
    program = (
        "import threading\n"
        "from kraftpy.server.coordination.peers import Peers\n"
        "import kraftpy.cli.server as server\n"
        "async def close(self): raise RuntimeError('a defect')\n"
        "Peers.close = close\n"
        "threading.Thread(target=threading.Event().wait).start()\n"
        f"server.command(['--config', {str(config)!r}])\n"
    )
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as node:
        assert node.stderr is not None
        try:
            for line in node.stderr:
                if "broker-started" in line:
                    node.send_signal(signal.SIGTERM)
                if "stopping after an unforeseen error" in line:
                    break
            assert "RuntimeError: a defect" in node.stderr.read()
            assert node.wait(TIMEOUT_S) == EXIT_BUG
        finally:
            node.kill()  # the thread would keep it
    assert not list((tmp_path / "data").rglob(".kafka_cleanshutdown"))


def test_sigterm_to_the_whole_group_stops_the_node_in_order(tmp_path: Path) -> None:
    """As many a supervisor sends it: to the broker, its controller and its exporter at once."""
    config = lone_node(tmp_path, "kraftpy.metrics.listener=127.0.0.1:0", "kraftpy.log.format=json")
    command = [sys.executable, "-m", "kraftpy", "server", "--config", str(config)]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as node:
        assert node.stderr is not None
        names = []
        for line in node.stderr:
            name = json.loads(line).get("event")
            names += [] if name is None else [name]
            if name == "broker-started":
                os.killpg(node.pid, signal.SIGTERM)
        assert node.wait(TIMEOUT_S) == 0
    assert "exporter-ended" not in names
    assert names[-2:] == ["node-stopped", "controller-stopped"]
