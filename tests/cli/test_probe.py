"""`kraftpy probe` against real clusters: what it measures, counts as lost, and survives."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from prometheus_client.parser import text_string_to_metric_families as parse

from kraftpy.client.cluster import Cluster as ClientCluster
from kraftpy.client.cluster_admin import PREFERRED_ELECTION, ClusterAdmin, PartitionName
from kraftpy.metrics.catalog import CATALOG, Family
from kraftpy.probe.prober import WARM_UP_MAX_S
from kraftpy.testing import Broker, Cluster
from tests import warm
from tests.cli.commands import failure, run_command
from tests.processes import free_port
from tests.server.test_metrics import TIMEOUT_S, Samples, get
from tests.waiting import wait_until

TOPIC = "kraftpy-probe"
DELETIONS = 100  # before it is looked whether something is lost


class Probe:
    """A running `kraftpy probe`, and what it serves."""

    def __init__(self, bootstrap: str, folder: Path, *args: str) -> None:
        self.url = f"http://127.0.0.1:{free_port()}/metrics"
        self.log = folder / "probe.log"
        listen = self.url.removeprefix("http://").removesuffix("/metrics")
        command = ["probe", "-b", bootstrap, "--listen", listen, "--name", "test", *args]
        with self.log.open("wb") as log:
            self.process = warm.popen(
                [sys.executable, "-m", "kraftpy", *command], stdout=log, stderr=log
            )

    def __enter__(self) -> Probe:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.process.kill()
        self.process.wait()

    def scrape(self) -> Samples:
        """By name and label values; nothing while it is starting."""
        try:
            text = get(self.url)[2]
        except OSError:
            return {}
        return {
            (sample.name, *sample.labels.values()): sample.value
            for family in parse(text)
            for sample in family.samples
        }

    def total(self, name: str) -> float:
        """Over all brokers."""
        found = self.scrape()
        return sum(value for key, value in found.items() if key[0] == f"kraftpy_probe_{name}")

    def wait_for(self, name: str, at_least: float) -> None:
        wait_until(lambda: self.total(name) >= at_least, f"{at_least} {name}")


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(offsets_topic_num_partitions=1, faults=True) as started:
        yield started


def probe(bootstrap: str, *args: str) -> tuple[int, dict[str, Any]]:
    done = run_command("probe", *args, "-o", "json", bootstrap=bootstrap)
    assert done.stdout, done.stderr.decode()
    return done.returncode, json.loads(done.stdout)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(3, offsets_topic_num_partitions=1) as started:
        yield started


def test_once_sends_through_every_broker_and_cleans_up(cluster: Cluster) -> None:
    code, found = probe(cluster.bootstrap, "--once")
    assert (code, found["ok"]) == (0, True)
    assert found["brokers"] == found["brokers_covered"] == found["produced"] == 3
    assert found["received"] == 3
    assert found["offset_commits"] == 1
    assert found["by_broker"].keys() == {"1", "2", "3"}
    assert 0 < found["produce_ms"]["p50"] <= found["produce_ms"]["max"] < 5000
    assert found["roundtrip_ms"]["count"] == 3
    groups = run_command("group", "list", "-o", "json", bootstrap=cluster.bootstrap)
    assert json.loads(groups.stdout) == []


def test_a_killed_leader_shows_as_latency_and_not_as_loss(cluster: Cluster, tmp_path: Path) -> None:
    with Probe(cluster.bootstrap, tmp_path) as running:
        running.wait_for("messages_received_total", 30)
        victim = cluster.leader_of(TOPIC)
        assert victim is not None
        cluster.kill(victim)
        before = running.total("messages_received_total")
        running.wait_for("messages_received_total", before + 60)
        cluster.restart(victim)
        cluster.wait_healthy()
        before = running.total("messages_received_total")
        running.wait_for("messages_received_total", before + 30)
        found = running.scrape()
        assert running.total("messages_lost_total") == running.total("messages_failed_total") == 0
        every = running.total("roundtrip_seconds_count")
        quick = sum(
            value
            for key, value in found.items()
            if key[0] == "kraftpy_probe_roundtrip_seconds_bucket" and "0.1" in key[1:]
        )
        assert every - quick >= 1, "no message took longer than 100 ms"
        wait_until(
            lambda: running.scrape()["kraftpy_probe_brokers_covered",] == 3,
            "every broker leads a partition again",
        )


def test_partitions_are_spread_again(cluster: Cluster) -> None:
    """Somebody has one broker lead them all; the next look puts that right."""
    probe(cluster.bootstrap, "--once")
    asyncio.run(have_one_broker_lead_all(cluster.bootstrap))

    def covered() -> bool:
        return bool(probe(cluster.bootstrap, "--once")[1]["brokers_covered"] == 3)

    assert not covered()
    wait_until(covered, "they are spread")


async def have_one_broker_lead_all(bootstrap: str) -> None:
    async with ClientCluster(bootstrap) as cluster:
        admin = ClusterAdmin(cluster)
        names = [PartitionName(TOPIC, index) for index in range(3)]
        await admin.alter_reassignments(dict.fromkeys(names, (1, 2, 3)))
        while await admin.list_reassignments():
            await asyncio.sleep(0.05)
        await admin.elect_leaders(PREFERRED_ELECTION, names)
        while {each.leader for each in (await admin.describe_partitions([TOPIC])).values()} != {1}:
            await asyncio.sleep(0.05)


def test_a_broken_sla_ends_with_an_exit_code(broker: Broker) -> None:
    code, found = probe(broker.bootstrap, "--once", "--sla", "0.001")
    assert code == 5
    assert not found["ok"]
    missed = found["lost"] + found["failed"] + found["offset_commits_failed"]
    assert sum(found["sla_broken"].values()) + missed > 0


@pytest.mark.parametrize(
    ("error", "times", "sla"),
    [("NOT_LEADER_OR_FOLLOWER", 3, "0.001"), ("TOPIC_AUTHORIZATION_FAILED", 1, "5")],
)
def test_a_first_message_that_fails_is_sent_again(
    broker: Broker, error: str, times: int, sla: str
) -> None:
    """An SLA that is shorter than a retry's pause is for the messages that count."""
    with broker.fault("Produce", topic=TOPIC, error=error, times=times) as fault:
        started = time.monotonic()
        _, found = probe(broker.bootstrap, "--once", "--sla", sla)
        assert time.monotonic() - started < WARM_UP_MAX_S / 2
        assert fault.hits == times
    assert found["produced"] + found["failed"] == 1


def test_a_table_for_people(broker: Broker) -> None:
    done = run_command("probe", "--duration", "0.5", bootstrap=broker.bootstrap)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.decode().splitlines()
    assert lines[0].split()[:3] == ["STEP", "COUNT", "P50"]
    assert "5 messages through 1 of 1 broker: 5 arrived, 0 lost" in lines[-1]


def test_no_broker_is_said_so() -> None:
    said = failure("probe", "--once", code=3, bootstrap=f"127.0.0.1:{free_port()}")
    assert "no broker answers" in said


def test_a_port_that_is_taken(broker: Broker) -> None:
    listen = broker.bootstrap
    said = failure("probe", "--once", "--listen", listen, code=2, bootstrap=broker.bootstrap)
    assert "Choose another --listen" in said


def test_it_serves_its_part_of_the_catalogue(broker: Broker, tmp_path: Path) -> None:
    with Probe(broker.bootstrap, tmp_path) as running:
        running.wait_for("offset_commits_total", 1)
        running.wait_for("messages_received_total", 5)
        _, _, text = get(running.url)
        served = {family.name for family in parse(text)}
        own = {Family.PROBE, Family.KMINION}
        expected = {name for name, metric in CATALOG.items() if metric.family in own}
        assert {name.removesuffix("_total") for name in expected} <= served
        found = running.scrape()
        received = found["kraftpy_probe_messages_received_total", "1"]
        assert received >= 5
        assert found["kminion_end_to_end_messages_lost_total", "0"] == 0
        assert found["kminion_end_to_end_roundtrip_latency_seconds_count", "0"] >= received
        assert found["kraftpy_probe_sla_seconds",] == 5
        assert found["process_open_fds", "probe"] > 3
        assert get(running.url.replace("metrics", "readyz"))[0] == 200
        assert get(running.url.replace("metrics", "healthz"))[0] == 200
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            ready = running.url.replace("metrics", "readyz")
            wait_until(lambda: get(ready)[0] == 503, "it is not ready while nothing arrives")
            assert running.scrape()["kraftpy_probe_oldest_pending_seconds",] > 1
        finally:
            os.kill(broker.pid, signal.SIGCONT)
        wait_until(lambda: get(ready)[0] == 200, "it is ready again")
        assert running.total("messages_lost_total") == 0
        running.process.send_signal(signal.SIGINT)
        assert running.process.wait(TIMEOUT_S) == 0
        lines = running.log.read_text().splitlines()
        assert re.search(r"^[\d,]+ messages through 1 of 1 broker: \d+ arrived, 0 lost", lines[-1])
        assert any(line.startswith("round trip  ") for line in lines)


def test_ctrl_c_waits_for_what_is_on_its_way_and_sums_up(broker: Broker, tmp_path: Path) -> None:
    how = ("--duration", "600", "--interval", "0.02", "-o", "json")
    with Probe(broker.bootstrap, tmp_path, *how) as running:
        running.wait_for("messages_received_total", 3)
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            wait_until(
                lambda: running.scrape()["kraftpy_probe_oldest_pending_seconds",] > 0.1,
                "a message is on its way",
            )
            running.process.send_signal(signal.SIGINT)
        finally:
            os.kill(broker.pid, signal.SIGCONT)
        assert running.process.wait(TIMEOUT_S) == 130
        found = json.loads(running.log.read_text().splitlines()[-1])
    assert found["ok"], found
    assert found["produced"] == found["received"] >= 3


def test_a_name_is_one_probes_only(broker: Broker, tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "2").mkdir()
    with Probe(broker.bootstrap, tmp_path / "1") as first:
        first.wait_for("messages_received_total", 1)
        with Probe(broker.bootstrap, tmp_path / "2") as second:
            second.wait_for("messages_received_total", 1)
            assert first.process.wait(TIMEOUT_S) == 2
            assert "another probe runs as 'test'" in first.log.read_text()
            assert "--name" in first.log.read_text()


def test_records_that_a_broker_loses_are_counted_as_lost(broker: Broker, tmp_path: Path) -> None:
    """DeleteRecords takes acknowledged messages away while the consumer is held up."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    with Probe(broker.bootstrap, tmp_path, "--sla", "1", "--interval", "0.05") as running:
        running.wait_for("messages_received_total", 5)
        assert running.total("messages_lost_total") == 0
        deadline = time.monotonic() + TIMEOUT_S
        while not running.total("messages_lost_total"):
            assert time.monotonic() < deadline, running.log.read_text()
            # Of what is acknowledged and not yet fetched now and then one is gone: the more often
            # all that there is is deleted, the sooner.
            where = TopicPartition(TOPIC, 0, -1)
            for _ in range(DELETIONS):
                admin.delete_records([where])[where].result()
        assert "are lost" in running.log.read_text()
        lost = running.total("messages_lost_total")
        assert lost >= 1
        before = running.total("messages_received_total")
        running.wait_for("messages_received_total", before + 10)
        assert running.total("messages_late_total") == 0
