"""Three nodes that log in at each other, and the first users of their cluster."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kraftpy.core.security.broker_login import broker_password, broker_user
from kraftpy.protocol import messages as m
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.sasl.clients import login as sasl_login
from kraftpy.testing import Broker, Cluster
from tests.cli.commands import failure, output
from tests.clients.confluent import deliver_or_be_refused
from tests.server.wire import Wire
from tests.waiting import wait_until

TIMEOUT_S = 30.0
PASSWORD = "marker-password-5"
# Of who may fetch as this replica, and isn't in the life that it says.
OTHER_EPOCH = ErrorCode.STALE_BROKER_EPOCH
DENIED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
SETTINGS: dict[str, Any] = {
    "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
    "sasl.enabled.mechanisms": "SCRAM-SHA-512",
    # Of brokers alone: they log in by SCRAM-SHA-256.
    "listener.name.plaintext.scram-sha-256.connections.max.reauth.ms": 2000,
    "kraftpy.log.level": "debug",
}


def login(bootstrap: str, name: str = "admin", password: str = PASSWORD) -> dict[str, Any]:
    return {
        "bootstrap.servers": bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": name,
        "sasl.password": password,
    }


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    file = tmp_path_factory.mktemp("first") / "users"
    file.write_text(f"SCRAM-SHA-512=[name=admin,password={PASSWORD}]\n")
    settings = {
        **SETTINGS,
        "kraftpy.bootstrap.scram.file": file,
        "min.insync.replicas": 2,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:admin",
    }
    with Cluster(3, links=False, **settings) as started:
        yield started


def produce(cluster: Cluster, topic: str, count: int) -> None:
    producer = Producer({**login(cluster.bootstrap), "acks": "all"})
    errors: list[Any] = []
    for _ in range(count):
        producer.produce(topic, b"value", on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(TIMEOUT_S) == 0
    assert errors == [None] * count


def in_sync(admin: AdminClient, topic: str) -> set[int]:
    return set(admin.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions[0].isrs)


def test_a_cluster_replicates_and_its_groups_work(cluster: Cluster) -> None:
    """Fetchers and coordinators log in as their brokers; nobody else set them up."""
    admin = AdminClient(login(cluster.bootstrap))
    new = NewTopic("orders", 1, 3)
    admin.create_topics([new])["orders"].result(TIMEOUT_S)
    wait_until(lambda: in_sync(admin, "orders") == {1, 2, 3}, "all in sync")
    produce(cluster, "orders", 100)
    leader = admin.list_topics("orders", timeout=TIMEOUT_S).topics["orders"].partitions[0].leader
    cluster.kill(leader)
    produce(cluster, "orders", 100)
    consumer = Consumer(
        {**login(cluster.bootstrap), "group.id": "g", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["orders"])
    got: list[Any] = []

    def all_are_here() -> bool:
        got.extend(consumer.consume(200, 1.0))
        return len(got) >= 200

    wait_until(all_are_here, "all records")
    consumer.commit(asynchronous=False)
    consumer.close()
    cluster.restart(leader)
    wait_until(lambda: in_sync(admin, "orders") == {1, 2, 3}, "all in sync again")


def test_brokers_log_in_again_in_time(cluster: Cluster) -> None:
    """KIP-368: the fetchers, on whose connections replication goes on."""

    def have_come_again() -> bool:
        return all(
            re.search(r"broker-\d-fetcher .* has logged in again", node.log_path.read_text())
            for node in cluster.nodes.values()
        )

    admin = AdminClient(login(cluster.bootstrap))
    new = NewTopic("renewed", 3, 3)
    admin.create_topics([new])["renewed"].result(TIMEOUT_S)
    wait_until(have_come_again, "every broker was logged in to again")
    produce(cluster, "renewed", 100)


def test_trap_11_a_broker_fetches_as_its_own_replica_only(cluster: Cluster) -> None:
    """Though it has CLUSTER_ACTION, and is who it says."""
    node = cluster.nodes[1]
    (secret,) = (cluster.dir / "quorum.secret").read_bytes().split()
    mechanism = "SCRAM-SHA-512"
    with Wire(node.host, node.port) as wire:
        handshake = m.SaslHandshakeRequest(mechanism)
        assert wire.call(ApiKey.SASL_HANDSHAKE, 1, handshake).error_code == 0
        side = sasl_login(mechanism, broker_user(2), broker_password(secret, 2), "a-nonce")
        token: bytes | None = side.first()
        while token is not None:
            answer = wire.call(ApiKey.SASL_AUTHENTICATE, 2, m.SaslAuthenticateRequest(token))
            assert answer.error_code == 0, answer.error_message
            token = side.answer(answer.auth_bytes)
        for replica_id, error in ((2, OTHER_EPOCH), (3, DENIED), (1, DENIED)):
            state = m.FetchRequest.ReplicaState(replica_id, 0)
            request = m.FetchRequest(replica_state=state, session_epoch=-1)
            assert wire.call(ApiKey.FETCH, 16, request).error_code == error, replica_id
        answer = wire.call(ApiKey.FETCH, 12, m.FetchRequest(replica_id=-1, session_epoch=-1))
        assert answer.error_code == 0  # a consumer's, of nothing
        everything = wire.call(ApiKey.METADATA, 12, m.MetadataRequest(None))
        assert everything.topics == []


def test_a_user_is_added_from_a_nodes_configuration(cluster: Cluster) -> None:
    """Also after a lock-out: it takes no login."""
    config = str(cluster.nodes[1].config)
    said = output("user", "add", "alice", "--node", config, stdin=b"marker-password-6\n")
    assert said == "alice may log in by SCRAM-SHA-256, SCRAM-SHA-512\n"
    admin = AdminClient(login(cluster.bootstrap, "alice", "marker-password-6"))
    assert admin.list_topics(timeout=TIMEOUT_S).brokers.keys() == {1, 2, 3}
    error = failure("user", "add", "__broker_1", "--node", config, stdin=b"x\n", code=1)
    assert "stands for others" in error
    assert "the password is empty" in failure("user", "add", "a", "--node", config, code=2)
    for node in cluster.nodes.values():
        assert "marker-password" not in node.log_path.read_text()


def test_the_file_of_the_first_users_counts_once(tmp_path: Path) -> None:
    file = tmp_path / "users"
    file.write_text(f"SCRAM-SHA-512=[name=admin,password={PASSWORD}]\n")
    settings = {**SETTINGS, "kraftpy.bootstrap.scram.file": file}
    with Broker(dir=tmp_path / "node", **settings) as broker:
        admin = AdminClient(login(broker.bootstrap))
        assert len(admin.list_topics(timeout=TIMEOUT_S).brokers) == 1
        file.write_text("SCRAM-SHA-512=[name=admin,password=other]\n")
        broker.stop()
        broker.restart()
        admin = AdminClient(login(broker.bootstrap))
        assert len(admin.list_topics(timeout=TIMEOUT_S).brokers) == 1
        with pytest.raises(KafkaException):
            deliver_or_be_refused(login(broker.bootstrap, "admin", "other"), "never")
        assert PASSWORD not in broker.log_path.read_text()
