"""Prometheus itself, as Debian packages it: it reads what nodes serve; its linter is content."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from kraftpy.metrics.catalog import CATALOG, Family
from kraftpy.testing import Cluster
from tests.endpoints import metrics_address
from tests.processes import free_port

TIMEOUT_S = 60.0
RECORDS = 50


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(3, offsets_topic_num_partitions=1) as started:
        producer = Producer({"bootstrap.servers": started.bootstrap, "acks": "all"})
        for _ in range(RECORDS):
            producer.produce("seen", b"x")
        assert producer.flush(TIMEOUT_S) == 0
        yield started


@pytest.fixture(scope="module")
def prometheus(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of one that scrapes the cluster."""
    folder = tmp_path_factory.mktemp("prometheus")
    targets = [metrics_address(node.config) for node in cluster.nodes.values()]
    jobs = [{"job_name": "kraftpy", "static_configs": [{"targets": targets}]}]
    config = {"global": {"scrape_interval": "1s"}, "scrape_configs": jobs}
    (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
    address = f"127.0.0.1:{free_port()}"
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={address}",
            ],
            stdout=log,
            stderr=log,
        )
        try:
            yield address
        finally:
            process.terminate()
            process.wait(TIMEOUT_S)


def query(prometheus: str, expression: str) -> float | None:
    url = f"http://{prometheus}/api/v1/query?query={urllib.parse.quote(expression)}"
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
            result = json.load(answer)["data"]["result"]
    except OSError:
        return None  # it is still starting
    return float(result[0]["value"][1]) if result else None


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("sum(up)", 3),
        ("sum(kraftpy_process_up)", 6),
        ("sum(kafka_controller_kafkacontroller_activecontrollercount)", 1),
        ("max(kafka_brokers)", 3),
        ('sum(kafka_topic_partition_current_offset{topic="seen"})', RECORDS),
        ('sum(kraftpy_topic_received_records_total{topic="seen"})', RECORDS),
        ("sum(kraftpy_quorum_voter_lag_entries)", 0),
        ("count(kraftpy_build_info)", 3),
    ],
)
def test_prometheus_sees_the_cluster(prometheus: str, expression: str, value: float) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while (seen := query(prometheus, expression)) != value:
        assert time.monotonic() < deadline, f"{expression} is {seen}"
        time.sleep(0.2)


def test_what_kcat_does_is_counted(cluster: Cluster, prometheus: str) -> None:
    def kcat(*args: str) -> str:
        command = ["kcat", "-b", cluster.bootstrap, *args]
        done = subprocess.run(
            command, input="a\nb\nc\n", capture_output=True, text=True, timeout=60, check=True
        )
        return done.stdout

    kcat("-P", "-t", "by-kcat")
    options = ("-X", "auto.offset.reset=earliest", "-e", "-q", "-f", "%s\n")
    assert kcat(*options, "-G", "kcat-group", "by-kcat").split() == ["a", "b", "c"]
    wanted = {
        'sum(kraftpy_topic_received_records_total{topic="by-kcat"})': 3,
        'sum(kafka_consumergroup_lag_sum{consumergroup="kcat-group"})': 0,
        'sum(kafka_consumergroup_current_offset_sum{consumergroup="kcat-group"})': 3,
        'sum(kafka_consumergroup_members{consumergroup="kcat-group"})': 0,
    }
    deadline = time.monotonic() + TIMEOUT_S
    while (seen := {each: query(prometheus, each) for each in wanted}) != wanted:
        assert time.monotonic() < deadline, seen
        time.sleep(0.2)


def test_the_linter_complains_of_nothing_but_names_that_others_gave(cluster: Cluster) -> None:
    node = next(iter(cluster.nodes.values()))
    with urllib.request.urlopen(f"http://{metrics_address(node.config)}/metrics") as answer:
        text = answer.read()
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, check=False, timeout=60
    )
    assert done.returncode in (0, 3), done.stderr  # 3: it has complaints
    for line in done.stderr.decode().splitlines():
        name = line.split()[0]
        assert CATALOG[name].family is not Family.NATIVE, line
