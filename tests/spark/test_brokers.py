"""The blocking client of planners and tasks, against real clusters that lose nodes."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from kraftpy.client.cluster import NoBrokerError
from kraftpy.protocol.errors import KafkaError
from kraftpy.spark import brokers as module
from kraftpy.spark.brokers import Brokers, DataLossError
from kraftpy.spark.decoder import Slice
from kraftpy.spark.planning import split
from kraftpy.spark.settings import ClientSettings
from kraftpy.testing import Broker, Cluster
from tests.processes import free_port
from tests.spark.topics import create_topic, fill, numbered


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(3, default_replication_factor=3, min_insync_replicas=1) as started:
        yield started


def offsets(parts: Any) -> list[int]:
    return [offset for part in parts for offset in part.column("offset").to_pylist()]


def test_a_leader_that_dies_in_the_middle_of_a_task(cluster: Cluster) -> None:
    create_topic(cluster.bootstrap, "moving", 1)
    fill(cluster.bootstrap, "moving", numbered(3000))
    settings = ClientSettings(cluster.bootstrap, partition_max_bytes=20_000, max_wait_ms=100)
    found: list[int] = []
    killed = None
    with Brokers(settings) as brokers:
        for part in brokers.read(Slice("moving", 0, 0, 3000), ("key", "offset")):
            found += part.column("offset").to_pylist()
            if killed is None and len(found) > 500:
                killed = cluster.leader_of("moving")
                assert killed is not None
                cluster.kill(killed)
        assert brokers.latest([("moving", 0)]) == {("moving", 0): 3000}
    assert killed is not None
    cluster.restart(killed)
    cluster.wait_healthy()
    assert found == list(range(3000))


def test_offsets_are_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    settings = ClientSettings(
        f"127.0.0.1:{port}", retries=2, retry_interval_ms=5, connect_timeout_ms=500
    )
    pauses: list[float] = []
    monkeypatch.setattr(module.time, "sleep", pauses.append)
    with Brokers(settings) as brokers, pytest.raises(NoBrokerError, match=f":{port}"):
        brokers.latest([("t", 0)])
    assert pauses == [0.005, 0.005]


def test_an_answer_that_waited_too_long_is_asked_for_again(broker: Broker) -> None:
    """Spark may leave a task alone for longer than its prefetched answer lives."""
    create_topic(broker.bootstrap, "patient", 1)
    fill(broker.bootstrap, "patient", numbered(3000))
    settings = ClientSettings(
        broker.bootstrap, partition_max_bytes=20_000, max_wait_ms=1, request_timeout_ms=400
    )
    found: list[int] = []
    with Brokers(settings) as brokers:
        for part in brokers.read(Slice("patient", 0, 0, 3000), ("offset",)):
            found += part.column("offset").to_pylist()
            if len(found) < 2000:
                time.sleep(0.45)
    assert found == list(range(3000))


def test_small_tasks_ask_for_small_answers(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    create_topic(broker.bootstrap, "asked", 1)
    rows = [{"value": b"x" * 2000} for _ in range(4000)]
    fill(broker.bootstrap, "asked", rows)
    sizes: list[int] = []
    fetch = Brokers._fetch

    async def recording(self: Brokers, *question: Any) -> Any:
        data = await fetch(self, *question)
        sizes.append(len(data.records))
        return data

    monkeypatch.setattr(Brokers, "_fetch", recording)
    with Brokers(ClientSettings(broker.bootstrap)) as brokers:
        assert len(offsets(brokers.read(Slice("asked", 0, 10, 20), ("offset",)))) == 10
        assert sum(sizes) <= 1 << 20
        sizes.clear()
        assert len(offsets(brokers.read(Slice("asked", 0, 0, 2000), ("offset",)))) == 2000
        assert sum(sizes) < 2000 * 2000 * 1.5


def test_a_topic_that_is_deleted_under_a_task(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MISSING_TOPIC_PATIENCE_S", 0.3)
    settings = replace(ClientSettings(broker.bootstrap), max_wait_ms=10)
    wanted = Slice("never-was", 0, 0, 9)
    with Brokers(settings) as brokers:
        with pytest.raises(DataLossError, match="'never-was' does not exist any more"):
            list(brokers.read(wanted, ("offset",)))
        assert list(brokers.read(wanted, ("offset",), fail_on_data_loss=False)) == []


def test_damage_on_disk_is_never_served(broker: Broker) -> None:
    """A batch whose checksum is wrong ends the task with the place where it is."""
    create_topic(broker.bootstrap, "damaged", 1)
    fill(broker.bootstrap, "damaged", numbered(100))
    (segment,) = broker.log_dir.glob("damaged-0/*.log")
    with segment.open("r+b") as file:
        file.seek(segment.stat().st_size - 30)
        file.write(b"\xff\xff\xff")
    with (
        Brokers(ClientSettings(broker.bootstrap)) as brokers,
        pytest.raises(KafkaError, match=r"damaged-0 from offset 0.*CRC-32C"),
    ):
        list(brokers.read(Slice("damaged", 0, 0, 100), ("offset",)))


def test_tasks_are_shared_out_by_size() -> None:
    def sizes(least: int | None, most: int | None, *lengths: int) -> list[tuple[int, ...]]:
        ranges = [Slice("t", n, 100, 100 + length) for n, length in enumerate(lengths)]
        parts = split(ranges, least, most)
        for each in ranges:
            mine = [part for part in parts if part.partition == each.partition]
            assert (mine[0].start, mine[-1].end) == (each.start, each.end)
            assert all(a.end == b.start for a, b in itertools.pairwise(mine))
        return [
            tuple(p.end - p.start for p in parts if p.partition == n) for n in range(len(lengths))
        ]

    assert sizes(None, None, 10, 20) == [(10,), (20,)]
    assert sizes(2, None, 10, 20) == [(10,), (20,)]
    assert sizes(6, None, 10, 20) == [(5, 5), (5, 5, 5, 5)]
    assert sizes(None, 8, 10, 20) == [(5, 5), (6, 7, 7)]
    assert sizes(4, None, 1, 1000) == [(1,), (250,) * 4]
    assert sizes(9, None, 3) == [(1, 1, 1)]
    assert sum(len(part) for part in sizes(7, None, 1, 1, 500, 3)) >= 7
