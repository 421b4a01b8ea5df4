"""Burrow, LinkedIn's lag monitor, as Debian packages it: what it says of groups agrees with ours.

It reads `__consumer_offsets` itself, as a consumer, and asks brokers for the ends of partitions.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kraftpy.client import cluster as client
from kraftpy.client.claims import commit_claims
from kraftpy.client.coordinator import Coordinator, Generation
from kraftpy.client.ledger import WHOLE, Due
from kraftpy.testing import Cluster
from tests.conformance.zookeeper import zookeeper_server
from tests.processes import free_port
from tests.server.test_metrics import scrape
from tests.waiting import wait_until

TIMEOUT_S = 30.0
TOPIC = "watched"
PARTITIONS = (0, 1)
INTERVALS = 4
"""How many commits Burrow looks back; one a second is kept."""
STALLED_AT = 3
SHARING = "sharing"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(3, offsets_topic_num_partitions=3) as started:
        admin = AdminClient({"bootstrap.servers": started.bootstrap})
        admin.create_topics([NewTopic(TOPIC, len(PARTITIONS), 1)])[TOPIC].result()
        yield started


@pytest.fixture(scope="module")
def burrow(
    cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], dict[str, Any]]]:
    """Asks it for a path below /v3/kafka/local. It doesn't start without a ZooKeeper."""
    folder = tmp_path_factory.mktemp("burrow")
    address = f"127.0.0.1:{free_port()}"
    with zookeeper_server(folder) as zookeeper, (folder / "out").open("wb") as out:
        (folder / "burrow.toml").write_text(config(folder, cluster, zookeeper.address, address))
        process = subprocess.Popen(
            ["Burrow", "-config-dir", str(folder)], stdout=out, stderr=subprocess.STDOUT
        )

        def ask(path: str) -> dict[str, Any]:
            assert process.poll() is None, (folder / "out").read_text()[-3000:]
            try:
                with urllib.request.urlopen(f"http://{address}/v3/kafka/local{path}") as answer:
                    found: dict[str, Any] = json.load(answer)
                    return found
            except urllib.error.URLError:
                return {}

        try:
            yield ask
        finally:
            process.terminate()
            process.wait(TIMEOUT_S)


def config(folder: Path, cluster: Cluster, zookeeper: str, address: str) -> str:
    servers = json.dumps(cluster.bootstrap.split(","))
    return f"""
    general.pidfile = "{folder}/pid"
    logging.level = "warn"
    zookeeper.servers = ["{zookeeper}"]
    httpserver.default.address = "{address}"

    [client-profile.own]
    client-id = "burrow"
    kafka-version = "2.0.0"

    [cluster.local]
    class-name = "kafka"
    servers = {servers}
    client-profile = "own"
    topic-refresh = 5
    offset-refresh = 1

    [consumer.local]
    class-name = "kafka"
    cluster = "local"
    servers = {servers}
    client-profile = "own"
    start-latest = false

    [storage.default]
    class-name = "inmemory"
    intervals = {INTERVALS}
    min-distance = 1

    [evaluator.default]
    class-name = "caching"
    expire-cache = 1
    """


class Groups:
    """Three groups while records come in: one keeps up, one commits the same again, one is gone."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._producer = Producer({"bootstrap.servers": bootstrap})
        self._over = threading.Event()
        self.producing = threading.Event()
        self.producing.set()
        self._thread = threading.Thread(target=self._work)

    def __enter__(self) -> Groups:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._over.set()
        self._thread.join()

    def _consumer(self, group: str) -> Consumer:
        return Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
            }
        )

    def _work(self) -> None:
        running, stalled, stopped = map(self._consumer, ("running", "stalled", "stopped"))
        running.subscribe([TOPIC])
        beats = 0
        while not self._over.wait(0.3):
            beats += 1
            if self.producing.is_set():
                for partition in PARTITIONS:
                    self._producer.produce(TOPIC, b"x", partition=partition)
                self._producer.flush(TIMEOUT_S)
            while running.consume(100, 0.1):
                pass
            positions = running.position(running.assignment())
            if read := [each for each in positions if each.offset >= 0]:
                running.commit(offsets=read, asynchronous=False)
            commit(stalled, STALLED_AT)
            if beats <= 10:
                commit(stopped, beats // 3)
        for consumer in (running, stalled, stopped):
            consumer.close()


def commit(consumer: Consumer, offset: int) -> None:
    offsets = [TopicPartition(TOPIC, partition, offset) for partition in PARTITIONS]
    consumer.commit(offsets=offsets, asynchronous=False)


async def claim(bootstrap: str) -> None:
    """A group has all below an offset done, and some of what is above."""
    async with client.Cluster(bootstrap) as cluster:
        coordinator = Coordinator(cluster, SHARING, shared=True)
        names = [(TOPIC, partition) for partition in PARTITIONS]
        await coordinator.commit(dict.fromkeys(names, 0), Generation())
        for ranges in ([(1, STALLED_AT - 1)], [(0, 0)], [(5, 9)]):
            dues = {name: [Due(WHOLE, ranges)] for name in names}
            outcomes = await commit_claims(coordinator, dues, Generation())
            assert all(each.done for each in outcomes.values())


def test_lag_and_status_agree(cluster: Cluster, burrow: Callable[[str], dict[str, Any]]) -> None:
    asyncio.run(claim(cluster.bootstrap))
    with Groups(cluster.bootstrap) as groups:
        expected = {"running": "OK", "stalled": "STALL", "stopped": "STOP"}
        seen: dict[str, dict[str, Any]] = {}

        def agree() -> bool:
            for group in expected:
                seen[group] = burrow(f"/consumer/{group}/lag").get("status", {})
            return {
                group: {each["status"] for each in status.get("partitions", [])}
                for group, status in seen.items()
            } == {group: {status} for group, status in expected.items()}

        wait_until(agree, "Burrow says of each group what it does")
        assert seen["running"]["status"] == "OK"
        assert seen["stalled"]["status"] == seen["stopped"]["status"] == "ERR"
        groups.producing.clear()

        def equal() -> bool:
            return lag_of_burrow(burrow, [*expected, SHARING]) == lag_of_ours(cluster)

        wait_until(equal, "Burrow's lag is ours")
        lags = lag_of_ours(cluster)
        first, second = offsets_of_ours(cluster), offsets_of_ours(cluster)
        for partition in PARTITIONS:
            assert lags["running", partition] == 0
            assert lags["stalled", partition] > 0
            assert lags["stopped", partition] == lags["stalled", partition]
            assert lags[SHARING, partition] == lags["stalled", partition]
            assert first["stalled", partition] == second["stalled", partition] == STALLED_AT
        assert members(cluster) == {"running": 1, "stalled": 0, "stopped": 0, SHARING: 0}


def lag_of_burrow(
    burrow: Callable[[str], dict[str, Any]], groups: Iterable[str]
) -> dict[tuple[str, int], float]:
    return {
        (group, each["partition"]): each["current_lag"]
        for group in groups
        for each in burrow(f"/consumer/{group}/lag")["status"]["partitions"]
    }


def of_groups(cluster: Cluster, name: str) -> dict[tuple[str, ...], float]:
    return {
        key[1:]: value
        for node in cluster.nodes.values()
        for key, value in scrape(node.config).items()
        if key[0] == f"kafka_consumergroup_{name}" and not key[1].startswith("burrow")
    }


def lag_of_ours(cluster: Cluster) -> dict[tuple[str, int], float]:
    found = of_groups(cluster, "lag").items()
    return {(group, int(partition)): lag for (group, partition, _), lag in found}


def offsets_of_ours(cluster: Cluster) -> dict[tuple[str, int], float]:
    found = of_groups(cluster, "current_offset").items()
    return {(group, int(partition)): offset for (group, partition, _), offset in found}


def members(cluster: Cluster) -> dict[str, float]:
    return {group: count for (group,), count in of_groups(cluster, "members").items()}


def test_burrow_knows_the_cluster(burrow: Callable[[str], dict[str, Any]]) -> None:
    wait_until(lambda: TOPIC in burrow("/topic").get("topics", []), "it knows the topic")
    assert burrow("")["module"]["class-name"] == "kafka"
