"""kafka-configs sets quotas, and Java's clients are held to them: on Apache Kafka and here."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from kraftpy.testing import Broker
from tests.apache_kafka import ApacheKafka, run_tool


@pytest.fixture(params=["Apache Kafka", "kraftpy"])
def servers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "kraftpy":
        with Broker() as broker:
            yield broker.bootstrap
    else:
        kafka = ApacheKafka(tmp_path)
        try:
            kafka.start()
            yield kafka.bootstrap
        finally:
            kafka.stop()


def described(text: str) -> dict[str, dict[str, str]]:
    """The quotas of each entity as kafka-configs prints them."""
    found = {}
    for line in text.splitlines():
        match = re.fullmatch(r"Quota configs for (.*) are (.*)", line.strip())
        if match is not None:
            found[match[1]] = dict(each.split("=") for each in match[2].split(", "))
    return found


@pytest.mark.timeout(600)  # eight JVMs, one after another
def test_quotas_are_set_described_removed_and_kept_to(servers: str) -> None:
    def configs(*args: str) -> str:
        return run_tool("kafka-configs", "--bootstrap-server", servers, *args)

    alice = ("--entity-type", "users", "--entity-name", "alice")
    perf = ("--entity-type", "clients", "--entity-name", "perf")
    configs("--alter", "--add-config", "producer_byte_rate=1024,request_percentage=50", *alice)
    configs("--alter", "--add-config", "consumer_byte_rate=4096",
            "--entity-type", "users", "--entity-default", *perf)  # fmt: skip
    configs("--alter", "--add-config", "producer_byte_rate=300000", *perf)
    assert described(configs("--describe", *alice)) == {
        "user-principal 'alice'": {"producer_byte_rate": "1024.0", "request_percentage": "50.0"}
    }
    assert described(configs("--describe", "--entity-type", "clients")) == {
        "client-id 'perf'": {"producer_byte_rate": "300000.0"}
    }
    configs("--alter", "--delete-config", "producer_byte_rate", *alice)
    assert described(configs("--describe", *alice)) == {
        "user-principal 'alice'": {"request_percentage": "50.0"}
    }
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic("t", 1, 1)])["t"].result(30)
    began_s = time.monotonic()
    perf_test = run_tool(
        *("kafka-producer-perf-test", "--topic", "t", "--num-records", "4500"),
        *("--record-size", "1000", "--throughput", "-1", "--print-metrics", "--producer-props"),
        *(f"bootstrap.servers={servers}", "client.id=perf", "batch.size=100000"),
    )
    took_s = time.monotonic() - began_s
    # 3 MB are ten seconds' worth; half as much again takes five seconds.
    assert took_s > 3.0
    throttled = re.search(r"produce-throttle-time-max\S*\s*:\s*([\d.]+)", perf_test)
    assert throttled is not None, perf_test
    assert float(throttled[1]) > 0


@pytest.mark.timeout(600)  # five JVMs, one after another
def test_kafka_topics_is_refused_what_is_too_much(servers: str, tmp_path: Path) -> None:
    def topics(*args: str) -> str:
        return run_tool(
            *("kafka-topics", "--bootstrap-server", servers),
            *("--command-config", str(tmp_path / "changes.properties"), *args),
        )

    (tmp_path / "changes.properties").write_text("client.id=changes\n")
    run_tool(
        *("kafka-configs", "--bootstrap-server", servers, "--alter"),
        *("--add-config", "controller_mutation_rate=0.1"),
        *("--entity-type", "clients", "--entity-name", "changes"),
    )
    topics("--create", "--topic", "many", "--partitions", "9")
    with pytest.raises(RuntimeError, match="ThrottlingQuotaExceeded"):
        topics("--create", "--topic", "one", "--partitions", "1")
    with pytest.raises(RuntimeError, match="ThrottlingQuotaExceeded"):
        topics("--delete", "--topic", "many")
    assert topics("--list").split() == ["many"]
