"""The metrics of running nodes: what Prometheus reads agrees with what clients did."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

from kraftpy.client.cluster import Cluster as OwnCluster
from kraftpy.client.consumer import Consumer as OwnConsumer
from kraftpy.core.config.kinds import STANDARD_AUTHORIZER
from kraftpy.metrics.admission import CONNECTIONS_MAX
from kraftpy.metrics.catalog import CATALOG
from kraftpy.protocol import messages as m
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.testing import Broker, BrokerError, Cluster
from tests import warm
from tests.endpoints import metrics_address
from tests.processes import free_port
from tests.server.test_quotas import alter, entry
from tests.server.wire import Wire
from tests.waiting import wait_until

RECORDS = 100
TIMEOUT_S = 20.0

Samples = dict[tuple[str, ...], float]


def metrics_url(config: Path, path: str = "metrics") -> str:
    return f"http://{metrics_address(config)}/{path}"


def get(url: str, **headers: str) -> tuple[int, str, str]:
    """Status, content type and text."""
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers["Content-Type"], error.read().decode()


def scrape(config: Path) -> Samples:
    """The samples by name and label values, the labels in the order of their names."""
    text = get(metrics_url(config))[2]
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in parse(text)
        for sample in family.samples
    }


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(offsets_topic_num_partitions=3, transaction_state_log_num_partitions=3) as started:
        produce(started.bootstrap, "used", acks="1")
        commit(started.bootstrap, "used", 40)
        yield started


def produce(bootstrap: str, topic: str, acks: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "acks": acks})
    for number in range(RECORDS):
        producer.produce(topic, b"x" * 100, partition=0)
        if number % 10 == 9:
            assert producer.flush(TIMEOUT_S) == 0


def commit(bootstrap: str, topic: str, offset: int) -> None:
    """As a group with one member that has read up to the offset, and goes."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "readers",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([topic])
    found = consumer.consume(RECORDS, TIMEOUT_S)
    assert [message.error() for message in found] == [None] * RECORDS
    consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
    consumer.close()


def test_numbers_agree_with_what_clients_did(broker: Broker) -> None:
    found = scrape(broker.config)
    assert found["kraftpy_topic_received_records_total", "used"] == RECORDS
    sent = found["kraftpy_topic_sent_bytes_total", "used"]
    received = found["kraftpy_topic_received_bytes_total", "used"]
    assert RECORDS * 100 < received == sent
    assert received == found["kraftpy_topic_log_size_bytes", "used"]
    assert found["kafka_server_brokertopicmetrics_messagesin_total", "used"] == RECORDS
    produced = found["kraftpy_request_duration_seconds_count", "Produce"]
    assert produced == found["kafka_server_brokertopicmetrics_totalproducerequests_total", "used"]
    assert found["kafka_topic_partition_current_offset", "0", "used"] == RECORDS
    assert found["kafka_topic_partition_oldest_offset", "0", "used"] == 0
    assert found["kafka_topic_partitions", "used"] == 1
    assert found["kafka_consumergroup_current_offset", "readers", "0", "used"] == 40
    assert found["kafka_consumergroup_lag", "readers", "0", "used"] == RECORDS - 40
    assert found["kafka_consumergroup_lag_sum", "readers", "used"] == RECORDS - 40
    assert found["kafka_consumergroup_members", "readers"] == 0
    assert found["kraftpy_groups", "Empty", "classic"] == 1
    assert found["kraftpy_coordinator_partitions",] == 3
    assert found["kraftpy_quorum_is_leader",] == 1
    assert found["kraftpy_quorum_fsync_seconds_count",] > 0
    assert found["kraftpy_controller_brokers", "active"] == 1
    assert found["kafka_brokers",] == 1
    for process in ("broker", "controller"):
        assert found["kraftpy_process_up", process] == 1
        assert found["process_open_fds", process] > 3
        assert found["kraftpy_event_loop_lag_seconds_count", process] > 0


def test_transactions_are_told_of(broker: Broker) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "billing"})
    producer.init_transactions(TIMEOUT_S)
    for end in (producer.commit_transaction, producer.abort_transaction, None):
        producer.begin_transaction()
        for _ in range(3):
            producer.produce("paid", b"x", partition=0)
        producer.flush(TIMEOUT_S)
        if end is not None:
            end(TIMEOUT_S)

    def ended() -> bool:
        found = scrape(broker.config)
        return found["kraftpy_transaction_duration_seconds_count",] == 2

    wait_until(ended, "two transactions are over")
    found = scrape(broker.config)
    assert found["kraftpy_transactions_ended_total", "committed"] == 1
    assert found["kraftpy_transactions_ended_total", "aborted"] == 1
    assert found["kraftpy_transaction_markers_seconds_count",] == 2
    states = {key[1]: value for key, value in found.items() if key[0] == "kraftpy_transactions"}
    assert states == dict.fromkeys(states, 0) | {"Ongoing": 1}
    assert len(states) == 6
    assert found["kraftpy_lso_lag_records", "paid"] == 3
    assert found["kraftpy_lso_lag_records", "used"] == 0
    assert found["kraftpy_transaction_verifications_total", "NONE"] == 3
    assert found["kraftpy_transactions_late",] == 0

    def on_the_page() -> dict[str, object] | None:
        known: dict[str, object] | None
        known = json.loads(get(metrics_url(broker.config, "status.json"))[2])["transactions"]
        return known

    expected = {"open": 1, "preparing": 0, "late": 0, "silent": [], "oldest": []}
    wait_until(lambda: on_the_page() == expected, "the page tells of the open transaction")
    producer.abort_transaction(TIMEOUT_S)
    wait_until(
        lambda: scrape(broker.config)["kraftpy_lso_lag_records", "paid"] == 0,
        "nothing is held back any more",
    )


def test_claims_are_told_of(broker: Broker) -> None:
    """All but the first record is done: what lies above the offset, and since when."""

    async def claim() -> None:
        async with (
            OwnCluster(broker.bootstrap) as cluster,
            OwnConsumer(
                cluster,
                group_id="claimers",
                explicit_done=True,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
            ) as consumer,
        ):
            consumer.assign([("used", 0)])
            count = 0
            while count < RECORDS:
                for record in await consumer.poll(1000):
                    count += 1
                    if record.offset:
                        consumer.done(record)
            await consumer.commit()

    asyncio.run(claim())
    found = scrape(broker.config)
    assert found["kraftpy_individual_commit_ranges",] == 1
    assert found["kraftpy_individual_commit_bytes",] > 0
    assert found["kraftpy_individual_commit_stalled",] == 0
    assert found["kraftpy_individual_commits_total", "NONE"] == 1
    assert found["kraftpy_group_oldest_unclaimed_seconds", "claimers", "used"] < TIMEOUT_S
    assert found["kraftpy_twins_apart",] == 0


def test_errors_are_counted_by_api(broker: Broker) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "none",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
        }
    )
    consumer.assign([TopicPartition("used", 0, 10_000)])
    (message,) = consumer.consume(1, TIMEOUT_S)
    assert message.error() is not None
    consumer.close()
    found = scrape(broker.config)
    assert found["kraftpy_request_errors_total", "Fetch", "OFFSET_OUT_OF_RANGE"] == 1
    assert found["kafka_server_brokertopicmetrics_failedfetchrequests_total", "used"] == 1


def test_errors_inside_an_answer_are_counted_too(broker: Broker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    with pytest.raises(KafkaException):
        admin.create_topics([NewTopic("used", 1, 1)])["used"].result()
    found = scrape(broker.config)
    assert found["kraftpy_request_errors_total", "CreateTopics", "TOPIC_ALREADY_EXISTS"] == 1


def test_denials_and_connections_are_counted() -> None:
    with Broker(
        authorizer_class_name=STANDARD_AUTHORIZER,
        kraftpy_metrics_listener=f"127.0.0.1:{free_port()}",
    ) as guarded:
        with contextlib.ExitStack() as stack:
            for _ in range(3):
                wire = stack.enter_context(Wire(guarded.host, guarded.port))
                answer = wire.call(ApiKey.DESCRIBE_ACLS, 3, m.DescribeAclsRequest(1))
                assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            found = scrape(guarded.config)
        assert found["kraftpy_access_denials_total",] == 3
        assert found["kraftpy_connections_accepted_total",] >= 3
        assert found["kraftpy_connections_refused_total",] == 0
        assert found["kraftpy_connections_delayed_total", "PLAINTEXT"] == 0
        assert found["kraftpy_connections_wait_seconds_total", "PLAINTEXT"] == 0


def test_who_is_held_back_by_a_quota_is_counted(broker: Broker) -> None:
    entity = (("client-id", "counted"),)
    with (
        Wire(broker.host, broker.port) as wire,
        Wire(broker.host, broker.port, client_id="counted") as client,
    ):
        assert alter(wire, entry(entity, request_percentage=0.0001)) == {entity: 0}
        told_ms = client.call(ApiKey.METADATA, 9, m.MetadataRequest(None)).throttle_time_ms
        found = scrape(broker.config)
        assert found["kraftpy_quota_throttles_total", "request_percentage"] == 1
        seconds = found["kraftpy_quota_throttle_seconds_total", "request_percentage"]
        assert 0 < seconds <= told_ms / 1000
        assert found["kraftpy_quota_throttles_total", "producer_byte_rate"] == 0
        assert alter(wire, entry(entity, request_percentage=None)) == {entity: 0}


def test_both_formats_are_sound_and_only_the_catalogue_is_served(broker: Broker) -> None:
    url = metrics_url(broker.config)
    get(url)  # shares of idle time are since the last scrape
    status, content_type, plain = get(url)
    assert (status, content_type.split(";")[0]) == (200, "text/plain")
    accept = "application/openmetrics-text; version=1.0.0"
    _, content_type, opened = get(url, Accept=accept)
    assert content_type.startswith("application/openmetrics-text")
    assert opened.endswith("# EOF\n")
    served = {family.name for family in parse(plain)}
    assert served == {family.name for family in parse_openmetrics(opened)}
    assert served <= {name.removesuffix("_total") for name in CATALOG}
    of_node = [name for name, metric in CATALOG.items() if metric.family.of_node]
    missing = {name for name in of_node if name.removesuffix("_total") not in served}
    # What has samples only where there is something to say of: no errors yet, no followers, no TLS,
    # no share groups (test_share_fetch.py has some).
    unserved = missing - {
        "kraftpy_request_errors_total",
        "kraftpy_follower_lag_records",
        "kraftpy_share_group_finished_offset_sum",
        "kraftpy_share_group_lag_records",
        "kraftpy_tls_certificate_expiry_timestamp_seconds",
    }
    assert not unserved, f"the catalogue has it, and no process of a node adds it: {unserved}"


@pytest.mark.parametrize(
    "accept", ["application/openmetrics-text;version=abc", "text/plain;version=x.y;escaping=z"]
)
def test_an_unknown_format_gets_the_default_one(broker: Broker, accept: str) -> None:
    status, content_type, text = get(metrics_url(broker.config), Accept=accept)
    assert (status, content_type.split(";")[0]) == (200, "text/plain")
    assert "kraftpy_build_info" in text
    assert "Traceback" not in broker.log_path.read_text()


def test_an_answer_is_compressed_for_clients_that_accept_it(broker: Broker) -> None:
    request = urllib.request.Request(
        metrics_url(broker.config), headers={"Accept-Encoding": "gzip"}
    )
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        assert answer.headers["Content-Encoding"] == "gzip"
        assert answer.read(2) == b"\x1f\x8b"


def test_health_and_readiness(broker: Broker) -> None:
    assert get(metrics_url(broker.config, "healthz"))[0] == 200
    status, _, text = get(metrics_url(broker.config, "readyz"))
    assert status == 200, text
    assert get(metrics_url(broker.config, "nothing"))[0] == 404


def test_connections_that_say_nothing_keep_nobody_out(broker: Broker) -> None:
    """A liveness probe that got no answer would have the node killed."""
    host, _, port = metrics_address(broker.config).rpartition(":")
    with contextlib.ExitStack() as stack:
        for number in range(2 * CONNECTIONS_MAX):
            held = stack.enter_context(socket.create_connection((host, int(port)), TIMEOUT_S))
            held.sendall(b"GET /metrics HTTP/1.1\r\n" if number % 2 else b"")
        for path in ("healthz", "readyz", "metrics"):
            assert get(metrics_url(broker.config, path))[0] == 200


def test_a_stopped_broker_is_not_healthy_and_its_controller_is_still_seen() -> None:
    with Broker() as broker:
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            status, _, text = get(metrics_url(broker.config, "healthz"))
            assert status == 503
            assert "broker answers: NO" in text
            assert "controller answers: yes" in text
        finally:
            os.kill(broker.pid, signal.SIGCONT)


def test_a_scrape_that_gives_up_early_still_hears_of_the_rest() -> None:
    with Broker() as broker:
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            patience = {"X-Prometheus-Scrape-Timeout-Seconds": "1"}
            started_at = time.monotonic()
            text = get(metrics_url(broker.config), **patience)[2]
            assert time.monotonic() - started_at < 4  # of five without the header
            assert 'kraftpy_process_up{process="broker"} 0.0' in text
            assert 'kraftpy_process_up{process="controller"} 1.0' in text
        finally:
            os.kill(broker.pid, signal.SIGCONT)


def children(pid: int) -> dict[str, int]:
    """The processes that a process has started, by name; dead ones that nobody waited for too."""
    pids = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return {Path(f"/proc/{child}/comm").read_text().strip(): int(child) for child in pids}


def open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def kill_exporter(node_pid: int, times: int, log_path: Path) -> None:
    """Again and again; each time there is another one, and the node has no more than before."""
    before = children(node_pid)
    files = open_files(node_pid)
    for number in range(1, times + 1):
        victim = children(node_pid)["kraftpy-metrics"]
        os.kill(victim, signal.SIGKILL)

        def is_back(victim: int = victim, number: int = number) -> bool:
            said = log_path.read_text().count("exporter-restarted") == number
            return said and children(node_pid).get("kraftpy-metrics", victim) != victim

        wait_until(is_back, "there is another exporter")
        assert log_path.read_text().count("exporter-ended") == number
        assert f"exporter-ended pid={victim}" in log_path.read_text()
        assert children(node_pid).keys() == before.keys()
    # Either count may have caught a file that was open for a moment; four lost ones show anyway.
    wait_until(lambda: open_files(node_pid) <= files, f"the node has {files} open files at most")


def test_an_exporter_that_dies_is_replaced_and_the_node_goes_on() -> None:
    with Broker() as broker:
        # With a question under way, so that the next one finds an answer that isn't meant for it.
        os.kill(broker.pid, signal.SIGSTOP)
        with socket.create_connection(
            ("127.0.0.1", int(metrics_address(broker.config).rpartition(":")[2])), TIMEOUT_S
        ) as asking:
            asking.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            time.sleep(0.2)
        os.kill(broker.pid, signal.SIGCONT)
        kill_exporter(broker.pid, 4, broker.log_path)
        produce(broker.bootstrap, "t", acks="all")
        found = scrape(broker.config)
        assert found["kraftpy_topic_received_records_total", "t"] == RECORDS
        assert found["kraftpy_process_up", "broker"] == found["kraftpy_process_up", "controller"]
        assert get(metrics_url(broker.config, "readyz"))[0] == 200
        assert broker.running
    log = broker.log_path.read_text() if broker.log_path.exists() else ""
    assert "Traceback" not in log


def test_a_taken_port_is_reported(broker: Broker) -> None:
    taken = metrics_address(broker.config)
    with pytest.raises(BrokerError, match=f"can't serve metrics on {taken}"):
        Broker(kraftpy_metrics_listener=taken).start()


def test_a_controller_by_itself_serves_its_own(tmp_path: Path) -> None:
    config = tmp_path / "server.properties"
    port, metrics_port = free_port(), free_port()
    config.write_text(
        f"""
        process.roles=controller
        node.id=7
        controller.quorum.voters=7@127.0.0.1:{port}
        listeners=CONTROLLER://127.0.0.1:{port}
        controller.listener.names=CONTROLLER
        log.dirs={tmp_path / "data"}
        kraftpy.metrics.listener=127.0.0.1:{metrics_port}
        """
    )
    log_path = tmp_path / "log"
    with log_path.open("wb") as log:
        process = warm.popen(
            [sys.executable, "-m", "kraftpy", "server", "--config", str(config)], stderr=log
        )
    try:
        wait_until(lambda: is_ready(metrics_url(config, "readyz")), "it is ready")
        kill_exporter(process.pid, 2, log_path)
        found = scrape(config)
        assert found["kraftpy_quorum_is_leader",] == 1
        assert found["kraftpy_quorum_leader",] == 7
        assert {key[1] for key in found if key[0] == "kraftpy_process_up"} == {"controller"}
    finally:
        process.terminate()
        assert process.wait(TIMEOUT_S) == 0
    with pytest.raises(urllib.error.URLError):
        get(metrics_url(config))


def is_ready(url: str) -> bool:
    try:
        return get(url)[0] == 200
    except urllib.error.URLError:
        return False


def test_series_of_partitions_can_be_switched_off() -> None:
    with Broker(kraftpy_metrics_partitions=False, offsets_topic_num_partitions=1) as broker:
        produce(broker.bootstrap, "used", acks="1")
        commit(broker.bootstrap, "used", 40)
        found = scrape(broker.config)
        per_partition = {name for name, metric in CATALOG.items() if metric.per_partition}
        assert not per_partition & {key[0] for key in found}
        assert found["kafka_consumergroup_lag_sum", "readers", "used"] == RECORDS - 40
        assert found["kafka_topic_partitions", "used"] == 1


def test_the_nodes_of_a_cluster_add_up() -> None:
    with Cluster(3) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        admin.create_topics([NewTopic("used", 1, 3)])["used"].result()
        produce(cluster.bootstrap, "used", acks="all")
        commit(cluster.bootstrap, "used", 40)
        configs = [node.config for node in cluster.nodes.values()]

        def total(*key: str) -> float:
            return sum(scrape(config).get(key, 0) for config in configs)

        assert total("kafka_controller_kafkacontroller_activecontrollercount") == 1
        assert total("kraftpy_topic_received_records_total", "used") == RECORDS
        assert total("kafka_topic_partition_replicas", "0", "used") == 3
        assert total("kafka_topic_partition_current_offset", "0", "used") == RECORDS
        assert total("kafka_consumergroup_lag", "readers", "0", "used") == RECORDS - 40
        assert total("kraftpy_replication_sent_bytes_total") == total(
            "kraftpy_replication_received_bytes_total"
        )
        assert total("kraftpy_replication_commit_seconds_count") > 0
        leader = cluster.leader_of("used")
        other = next(number for number in cluster.nodes if number != leader)
        cluster.kill(other)
        config = cluster.nodes[leader].config
        wait_until(
            lambda: scrape(config)["kafka_topic_partition_in_sync_replica", "0", "used"] == 2,
            "the ISR has shrunk",
        )
        after = scrape(config)
        assert after["kafka_topic_partition_under_replicated_partition", "0", "used"] == 1
        assert after["kraftpy_isr_changes_total", "shrink"] >= 1
        assert after["kafka_cluster_partition_atminisr", "0", "used"] == 1
