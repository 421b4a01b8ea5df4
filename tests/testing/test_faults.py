"""Requests that fail, are late, or are lost: what clients make of them, and what is seen."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Consumer, Producer, TopicPartition
from kafka import KafkaConsumer, KafkaProducer

from kraftpy.client import Cluster as OwnCluster
from kraftpy.client import Consumer as OwnConsumer
from kraftpy.client import Producer as OwnProducer
from kraftpy.protocol import codec, messages
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.testing import Broker, BrokerError, Cluster
from kraftpy.testing.view import Peer
from tests.waiting import TIMEOUT_S, until, wait_until

NOT_LEADER = "NOT_LEADER_OR_FOLLOWER"
FAR_MS = 600_000  # nothing waits for it: the fault is ended


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    folder = tmp_path_factory.mktemp("faults")
    with Broker(dir=folder, faults=True, auto_create_topics_enable=True) as started:
        yield started


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return "".join(each if each.isalnum() else "-" for each in request.node.name)


def confluent(settings: dict[str, Any], topic: str) -> None:
    producer = Producer({"retry.backoff.ms": 10, **settings})
    told: list[Any] = []
    producer.produce(topic, b"x", on_delivery=lambda error, _: told.append(error))
    assert producer.flush(TIMEOUT_S) == 0
    assert told == [None]


def kafka_python(settings: dict[str, Any], topic: str) -> None:
    producer = KafkaProducer(
        bootstrap_servers=settings["bootstrap.servers"], retry_backoff_ms=10, retries=5
    )
    producer.send(topic, b"x").get(TIMEOUT_S)
    producer.close()


def aiokafka(settings: dict[str, Any], topic: str) -> None:
    async def write() -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=settings["bootstrap.servers"], retry_backoff_ms=10
        )
        async with producer:
            await producer.send_and_wait(topic, b"x")

    asyncio.run(write())


def own(settings: dict[str, Any], topic: str) -> None:
    async def write() -> None:
        async with (
            OwnCluster(settings["bootstrap.servers"]) as cluster,
            OwnProducer(cluster) as producer,
        ):
            await producer.send_and_wait(topic, b"x")

    asyncio.run(write())


WRITERS = [confluent, kafka_python, aiokafka, own]


def at(broker: Broker) -> dict[str, Any]:
    return {"bootstrap.servers": broker.bootstrap}


def count(broker: Broker, topic: str) -> int:
    consumer = Consumer({**at(broker), "group.id": "counts"})
    try:
        return int(consumer.get_watermark_offsets(TopicPartition(topic, 0), TIMEOUT_S)[1])
    finally:
        consumer.close()


def peer(broker: Broker | Cluster) -> Peer:
    host, _, port = broker.bootstrap.partition(",")[0].rpartition(":")
    return Peer(host, int(port), TIMEOUT_S)


def produce(*topics: str, acks: int = 1) -> messages.ProduceRequest:
    kinds = messages.ProduceRequest
    parts = [kinds.PartitionProduceData(index=0, records=b"")]
    data = [kinds.TopicProduceData(name=each, partition_data=list(parts)) for each in topics]
    return kinds(acks=acks, timeout_ms=1000, topic_data=data)


# -- errors


@pytest.mark.parametrize("write", WRITERS, ids=lambda each: each.__name__)
def test_a_producer_tries_again(
    broker: Broker, topic: str, write: Callable[[dict[str, Any], str], None]
) -> None:
    with (
        broker.fault("Produce", topic=topic, error=NOT_LEADER, times=3) as fault,
        broker.observe("Produce", topic=topic) as seen,
    ):
        write(at(broker), topic)
        assert fault.hits == 3
        assert seen.hits == 4
    assert count(broker, topic) == 1


def test_a_producer_is_told_what_it_cannot_mend(broker: Broker, topic: str) -> None:
    producer = Producer(at(broker))
    told: list[Any] = []
    with broker.fault("Produce", topic=topic, error="TOPIC_AUTHORIZATION_FAILED"):
        producer.produce(topic, b"x", on_delivery=lambda error, _: told.append(error.name()))
        producer.flush(TIMEOUT_S)
    assert told == ["TOPIC_AUTHORIZATION_FAILED"]
    assert count(broker, topic) == 0


@pytest.mark.parametrize(
    ("api", "error"),
    [
        ("Fetch", NOT_LEADER),
        ("FindCoordinator", "COORDINATOR_NOT_AVAILABLE"),
        ("SyncGroup", "REBALANCE_IN_PROGRESS"),
        ("OffsetFetch", "COORDINATOR_LOAD_IN_PROGRESS"),
        ("ListOffsets", NOT_LEADER),
    ],
)
def test_a_consumer_gets_its_records_in_spite_of(
    broker: Broker, topic: str, api: str, error: str
) -> None:
    confluent(at(broker), topic)
    consumer = Consumer({
        **at(broker), "group.id": topic, "client.id": topic, "auto.offset.reset": "earliest",
        "retry.backoff.ms": 10,
    })  # fmt: skip
    with broker.fault(api, client_id=topic, error=error, times=1) as fault:
        consumer.subscribe([topic])
        record = consumer.poll(TIMEOUT_S)
        assert record is not None
        assert record.error() is None
        assert fault.hits == 1
    consumer.close()


@pytest.mark.parametrize("write", WRITERS, ids=lambda each: each.__name__)
def test_a_producer_asks_for_metadata_again(
    broker: Broker, topic: str, write: Callable[[dict[str, Any], str], None]
) -> None:
    """Where brokers are is told all the same."""
    with broker.fault("Metadata", topic=topic, error="LEADER_NOT_AVAILABLE", times=2) as fault:
        write(at(broker), topic)
        assert fault.hits == 2
    assert count(broker, topic) == 1


def test_one_topic_of_a_request_fails(broker: Broker, topic: str) -> None:
    other = f"{topic}-2"
    for each in (topic, other):
        confluent(at(broker), each)
    request = produce(topic, other)
    for each in request.topic_data:
        each.partition_data[0].records = None  # what the broker has to say something about
    with (
        broker.fault("Produce", topic=topic, error="KAFKA_STORAGE_ERROR"),
        peer(broker) as connection,
    ):
        answer = connection.ask(ApiKey.PRODUCE, 9, request)
    found = {each.name: each.partition_responses[0].error_code for each in answer.responses}
    assert found[topic] == ErrorCode.KAFKA_STORAGE_ERROR
    assert found[other] not in (0, ErrorCode.KAFKA_STORAGE_ERROR)


def test_answers_keep_the_order_of_requests(broker: Broker) -> None:
    """What is answered at once waits for what a node takes its time for."""
    group = messages.ListGroupsRequest()
    asked = [(ApiKey.METADATA, messages.MetadataRequest(topics=None)), (ApiKey.LIST_GROUPS, group)]
    with (
        broker.fault("ListGroups", error="COORDINATOR_NOT_AVAILABLE") as fault,
        socket.create_connection((broker.host, broker.port), TIMEOUT_S) as client,
    ):
        frames = b""
        for number, (key, request) in enumerate(asked * 20):
            parts = codec.encode_request(key, 4, number, "orderly", request)
            frame = b"".join(map(bytes, parts))
            frames += len(frame).to_bytes(4, "big") + frame
        client.sendall(frames)
        answers = client.makefile("rb")
        numbers = []
        for _ in range(40):
            frame = answers.read(int.from_bytes(answers.read(4), "big"))
            numbers.append(int.from_bytes(frame[:4], "big"))
        assert numbers == list(range(40))
        assert fault.hits == 20


def test_what_is_newer_than_the_broker_is_answered_by_it(broker: Broker) -> None:
    """KIP-511: a client that asks in a version of its own is told those that there are."""
    asked = b"\0\x12" + b"\0\x63" + b"\0\0\0\7" + b"\xff\xff" + b"\0"
    with (
        broker.observe(),
        socket.create_connection((broker.host, broker.port), TIMEOUT_S) as client,
    ):
        for _ in range(2):
            client.sendall(len(asked).to_bytes(4, "big") + asked)
            answers = client.makefile("rb")
            frame = answers.read(int.from_bytes(answers.read(4), "big"))
            answer = codec.decode_response(ApiKey.API_VERSIONS, 0, frame)[1]
            assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
            assert answer.api_keys


def test_a_login_of_old_is_left_alone(kraftpy_factory: Callable[..., Broker]) -> None:
    """SaslHandshake 0: what follows it are no requests, until the login is done, or ever."""
    broker = kraftpy_factory(
        faults=True,
        listener_security_protocol_map="PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
        sasl_enabled_mechanisms="PLAIN",
        listener_name_plaintext_plain_sasl_jaas_config=(
            'org.apache.kafka.common.security.plain.PlainLoginModule required user_ada="secret";'
        ),
    )
    request = messages.SaslHandshakeRequest("PLAIN")
    with broker.observe() as seen, peer(broker) as connection:
        assert connection.ask(ApiKey.SASL_HANDSHAKE, 0, request).error_code == 0
        token = b"\0ada\0secret"
        connection._sock.sendall(len(token).to_bytes(4, "big") + token)
        assert connection._sock.recv(4) == bytes(4)
        answer = connection.ask(ApiKey.METADATA, 5, messages.MetadataRequest(topics=None))
        assert answer.brokers
        assert [each.api for each in seen.requests] == ["SaslHandshake"]


def test_a_fetch_has_no_session(broker: Broker, topic: str) -> None:
    """So that each names its topics."""
    confluent(at(broker), topic)
    kinds = messages.FetchRequest
    parts = [kinds.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)]
    request = kinds(max_bytes=1000, session_epoch=0, topics=[kinds.FetchTopic(topic, b"", parts)])
    with peer(broker) as connection:
        answer = connection.ask(ApiKey.FETCH, 12, request)
    assert answer.session_id == 0
    assert answer.responses[0].partitions[0].records


def test_a_fetch_that_fails_for_a_topic_waits_for_no_other(broker: Broker, topic: str) -> None:
    other = f"{topic}-2"
    for each in (topic, other):
        confluent(at(broker), each)
    kinds = messages.FetchRequest
    parts = [kinds.FetchPartition(partition=0, fetch_offset=1, partition_max_bytes=1000)]
    asked = [kinds.FetchTopic(each, b"", list(parts)) for each in (topic, other)]
    request = kinds(max_wait_ms=FAR_MS, min_bytes=1, max_bytes=1000, topics=asked)
    with broker.fault("Fetch", topic=topic, error=NOT_LEADER), peer(broker) as connection:
        answer = connection.ask(ApiKey.FETCH, 12, request)
    found = {each.topic: each.partitions[0].error_code for each in answer.responses}
    assert found == {topic: ErrorCode.NOT_LEADER_OR_FOLLOWER, other: 0}


# -- delays


def test_a_commit_is_late(broker: Broker, topic: str) -> None:
    confluent(at(broker), topic)
    consumer = Consumer({**at(broker), "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    assert consumer.poll(TIMEOUT_S) is not None
    with broker.fault("OffsetCommit", topic=topic, delay_ms=FAR_MS) as fault:
        committing = threading.Thread(target=lambda: consumer.commit(asynchronous=False))
        committing.start()
        fault.wait()
        other = Consumer({**at(broker), "group.id": topic})
        (committed,) = other.committed([TopicPartition(topic, 0)], TIMEOUT_S)
        assert committed.offset < 0
    committing.join(TIMEOUT_S)  # it goes on when the fault ends
    (committed,) = other.committed([TopicPartition(topic, 0)], TIMEOUT_S)
    assert committed.offset == 1
    consumer.close()
    other.close()


async def test_a_commit_of_our_own_client_is_late(broker: Broker, topic: str) -> None:
    await asyncio.to_thread(confluent, at(broker), topic)
    async with (
        OwnCluster(broker.bootstrap) as cluster,
        OwnConsumer(cluster, group_id=topic, auto_offset_reset="earliest") as consumer,
    ):
        consumer.subscribe([topic])
        assert await consumer.poll(int(TIMEOUT_S * 1000))
        with broker.fault("OffsetCommit", topic=topic, delay_ms=FAR_MS, times=1) as fault:
            committing = asyncio.ensure_future(consumer.commit())
            await until(lambda: fault.hits == 1)
            assert not committing.done()
        await committing
        assert await consumer.committed([(topic, 0)]) == {(topic, 0): 1}


def test_a_delay_is_as_long_as_it_says(broker: Broker) -> None:
    with broker.fault("ListGroups", delay_ms=200), peer(broker) as connection:
        began_s = time.monotonic()
        connection.ask(ApiKey.LIST_GROUPS, 4, messages.ListGroupsRequest())
        assert time.monotonic() - began_s >= 0.2


# -- lost requests and answers


@pytest.mark.parametrize("write", WRITERS, ids=lambda each: each.__name__)
def test_a_producer_connects_again(
    broker: Broker, topic: str, write: Callable[[dict[str, Any], str], None]
) -> None:
    with broker.fault("Produce", topic=topic, drop="request", times=1) as fault:
        write(at(broker), topic)
        assert fault.hits == 1
    assert count(broker, topic) == 1


@pytest.mark.parametrize(("idempotent", "written"), [(True, 1), (False, 2)])
def test_a_lost_answer_makes_a_duplicate(
    broker: Broker, topic: str, idempotent: bool, written: int
) -> None:
    with broker.fault("Produce", topic=topic, drop="answer", times=1) as fault:
        confluent({**at(broker), "enable.idempotence": idempotent}, topic)
        assert fault.hits == 1
    assert count(broker, topic) == written


def test_who_wants_no_answer_is_cut_off(broker: Broker, topic: str) -> None:
    """As by Kafka: there is no other way to say it."""
    with (
        broker.fault("Produce", topic=topic, error=NOT_LEADER),
        peer(broker) as connection,
        pytest.raises(ConnectionError),
    ):
        connection.ask(ApiKey.PRODUCE, 9, produce(topic, acks=0))


# -- who is meant


def test_one_topic_is_meant(broker: Broker, topic: str) -> None:
    with broker.fault("Produce", topic=f"{topic}-2", error=NOT_LEADER) as fault:
        confluent(at(broker), topic)
        assert fault.hits == 0


def test_one_client_is_meant(broker: Broker, topic: str) -> None:
    with broker.fault("Produce", client_id="b", error=NOT_LEADER) as fault:
        confluent({**at(broker), "client.id": "a"}, topic)
        assert fault.hits == 0
        confluent_b = Producer({**at(broker), "client.id": "b", "message.timeout.ms": 300})
        told: list[Any] = []
        confluent_b.produce(topic, b"x", on_delivery=lambda error, _: told.append(error))
        confluent_b.flush(TIMEOUT_S)
        assert told[0] is not None
        assert fault.hits > 0


def test_the_first_fault_acts(broker: Broker) -> None:
    asked = messages.ListGroupsRequest()
    with (
        peer(broker) as connection,
        broker.fault("ListGroups", error="NOT_COORDINATOR", times=1) as first,
        broker.fault("ListGroups", error="GROUP_AUTHORIZATION_FAILED") as second,
    ):
        found = [connection.ask(ApiKey.LIST_GROUPS, 4, asked).error_code for _ in range(2)]
        assert found == [ErrorCode.NOT_COORDINATOR, ErrorCode.GROUP_AUTHORIZATION_FAILED]
        second.end()
        assert connection.ask(ApiKey.LIST_GROUPS, 4, asked).error_code == 0
        assert (first.hits, second.hits) == (1, 1)


def test_requests_are_seen(broker: Broker, topic: str) -> None:
    with broker.observe(client_id=topic) as seen:
        consumer = KafkaConsumer(
            topic, bootstrap_servers=broker.bootstrap, client_id=topic, group_id=topic
        )
        consumer.poll(100)
        seen.wait(3)
        consumer.close(autocommit=False)
        requests = seen.requests
    assert {"ApiVersions", "Metadata", "FindCoordinator"} <= {each.api for each in requests}
    assert {each.client_id for each in requests} == {topic}
    asked = [each for each in requests if each.api == "Metadata" and each.topics]
    assert asked[0].topics == (topic,)
    assert asked[0].version >= 1
    assert "observation of every API" in repr(seen)


def test_topics_have_names_where_requests_have_ids(broker: Broker, topic: str) -> None:
    """librdkafka fetches by ids."""
    confluent(at(broker), topic)
    with broker.observe("Fetch", topic=topic) as seen:
        consumer = Consumer({**at(broker), "group.id": topic, "auto.offset.reset": "earliest"})
        consumer.subscribe([topic])
        assert consumer.poll(TIMEOUT_S) is not None
        consumer.close()
        assert seen.requests[0].version >= 13
        assert seen.requests[0].topics == (topic,)


# -- what people are told


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"api": "Prodcue", "drop": "request"}, "no API 'Prodcue'; did you mean 'Produce'"),
        ({"api": "offset_commit", "drop": "request"}, "did you mean 'OffsetCommit'"),
        ({"api": "FetchRequest", "drop": "request"}, "did you mean 'Fetch'"),
        ({"api": "Fetch", "error": "NOT_LEADER"}, "did you mean 'NOT_LEADER_OR_FOLLOWER'"),
        ({"api": "Fetch", "error": "NONE"}, "no error 'NONE'"),
        ({"api": "Heartbeat", "topic": "t", "delay_ms": 1}, "Heartbeat names no topics: leave"),
        ({"error": NOT_LEADER}, "errors are those of an API"),
        ({"api": "Fetch"}, "a fault has one of"),
        ({"api": "Fetch", "delay_ms": 5, "drop": "answer"}, "a fault has one of"),
        ({"api": "Fetch", "drop": "both"}, "it is 'request' or 'answer'"),
        ({"api": "Fetch", "delay_ms": 0}, "at least 1"),
        ({"api": "Fetch", "drop": "answer", "times": 0}, "at least 1"),
    ],
)
def test_a_fault_that_there_cannot_be(broker: Broker, asked: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        broker.fault(**asked)


def test_nothing_lies_between(kraftpy: Broker) -> None:
    with pytest.raises(BrokerError, match=r"make it with Broker\(faults=True\)"):
        kraftpy.fault("Produce", drop="request")
    with pytest.raises(BrokerError, match=r"make it with Cluster\(faults=True\)"):
        Cluster(3).observe()
    with pytest.raises(ValueError, match="links=True"):
        Cluster(3, links=False, faults=True)


def test_waiting_in_vain_says_for_what(broker: Broker) -> None:
    said = r"fault of EndTxn> has met 0 requests, not 2"
    with (
        broker.fault("EndTxn", error=NOT_LEADER) as fault,
        pytest.raises(BrokerError, match=said),
    ):
        fault.wait(2, timeout_s=0.01)


# -- nodes


def test_a_broker_keeps_the_address_of_its_clients(
    kraftpy_factory: Callable[..., Broker], topic: str
) -> None:
    broker = kraftpy_factory(faults=True, auto_create_topics_enable=True)
    before = broker.bootstrap
    confluent(at(broker), topic)
    broker.kill()
    broker.restart()
    assert broker.bootstrap == before
    with broker.observe("Produce") as seen:
        confluent(at(broker), topic)
        assert seen.hits == 1
    assert count(broker, topic) == 2
    broker.close()
    plain = kraftpy_factory(dir=broker.dir)
    assert plain.bootstrap != before
    confluent(at(plain), topic)  # it isn't told to go where nobody listens


def test_a_secured_broker(kraftpy_factory: Callable[..., Broker], topic: str) -> None:
    """TLS ends in between, logins don't."""
    broker = kraftpy_factory(faults=True, secure=True, auto_create_topics_enable=True)
    assert broker.secured is not None
    settings = {**at(broker), **broker.secured.settings()}
    with (
        broker.observe("SaslAuthenticate") as logins,
        broker.fault("Produce", topic=topic, error=NOT_LEADER, times=3) as fault,
    ):
        confluent(settings, topic)
        assert fault.hits == 3
        assert logins.hits >= 2
    alice = {**at(broker), **broker.secured.settings("alice")}
    told: list[Any] = []
    producer = Producer({**alice, "message.timeout.ms": 5000})
    producer.produce(topic, b"x", on_delivery=lambda error, _: told.append(error.name()))
    producer.flush(TIMEOUT_S)
    assert told == ["TOPIC_AUTHORIZATION_FAILED"]  # the broker knows who it is


def test_a_cluster(kraftpy_cluster: Callable[..., Cluster], topic: str) -> None:
    """Faults are those of every node, and of clients alone."""
    cluster = kraftpy_cluster(3, faults=True, auto_create_topics_enable=True)
    settings = {"bootstrap.servers": cluster.bootstrap}
    with cluster.fault("Produce", topic=topic, error=NOT_LEADER, times=3) as fault:
        confluent(settings, topic)
        assert fault.hits == 3
    leader = cluster.leader_of(topic)
    assert leader is not None
    with cluster.fault("Metadata", drop="request"):
        cluster.kill(leader)
        wait_until(lambda: cluster.leader_of(topic) not in (None, leader), "a new leader")
        cluster.restart(leader)
        cluster.wait_healthy()
    confluent(settings, topic)
    assert cluster.nodes[leader].bootstrap in cluster.bootstrap.split(",")
    added = cluster.add()
    with cluster.observe("ApiVersions") as seen:
        confluent({"bootstrap.servers": cluster.nodes[added].bootstrap}, topic)
        assert seen.hits >= 1
