"""A cluster whose metadata has a level below that of transactions: none until that is raised."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError as AioKafkaError
from confluent_kafka import KafkaException, Producer
from kafka import KafkaProducer
from kafka.errors import KafkaError

from kraftpy.client.cluster import Cluster as Client
from kraftpy.client.cluster_admin import ClusterAdmin
from kraftpy.core.metadata import TRANSACTIONS
from kraftpy.protocol import messages
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.testing import Cluster
from kraftpy.testing.node import Node
from tests.clients.transactors import ConfluentTransactor
from tests.server.test_produce import batch
from tests.server.test_transaction_version import FEATURE, features
from tests.server.wire import Wire, produce, produce_request

PATIENCE_S = 20.0


class EarlierCluster(Cluster):
    """Of a release that knows no later level."""

    program = (sys.executable, "-m", "tests.level_1")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """One that was upgraded."""
    folder = tmp_path_factory.mktemp("upgraded") / "c"
    with EarlierCluster(1, links=False, ephemeral=False, dir=folder):
        pass
    with Cluster(1, links=False, ephemeral=False, dir=folder) as cluster:
        yield cluster.nodes[1]


@pytest.fixture
def wire(node: Node) -> Iterator[Wire]:
    with Wire(node.host, node.port) as connected:
        yield connected


def created(wire: Wire, topic: str) -> str:
    asked = messages.MetadataRequest.MetadataRequestTopic(name=topic)
    wire.call(ApiKey.METADATA, 9, messages.MetadataRequest([asked]))
    return topic


@pytest.mark.parametrize(
    ("transactional_id", "error"),
    [
        (None, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        ("mine", ErrorCode.INVALID_TXN_STATE),
    ],
)
def test_transactional_batches_are_refused(
    wire: Wire, transactional_id: str | None, error: ErrorCode
) -> None:
    topic = created(wire, f"for-{transactional_id}")
    sequence = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    request = produce_request(topic, batch(b"x", transactional=True, **sequence), acks=-1)
    request.transactional_id = transactional_id
    refused = wire.call(ApiKey.PRODUCE, 9, request).responses[0].partition_responses[0]
    assert refused.error_code == error
    assert "transactional.id" in refused.error_message
    assert produce(wire, topic, batch(b"x", **sequence)).base_offset == 0


def librdkafka_begins(bootstrap: str) -> Exception:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "mine"})
    with pytest.raises(KafkaException) as ended:
        producer.init_transactions(PATIENCE_S)
    assert ended.value.args[0].fatal()
    return ended.value


def kafka_python_begins(bootstrap: str) -> Exception:
    producer = KafkaProducer(bootstrap_servers=bootstrap, transactional_id="mine")
    with pytest.raises(KafkaError) as ended:
        producer.init_transactions()
    producer.close(timeout=0)
    return ended.value


def aiokafka_begins(bootstrap: str) -> Exception:
    async def begin() -> Exception:
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id="mine")
        with pytest.raises(AioKafkaError) as ended:
            await asyncio.wait_for(producer.start(), PATIENCE_S)
        await producer.stop()
        return ended.value

    return asyncio.run(begin())


@pytest.mark.parametrize("begins", [librdkafka_begins, kafka_python_begins, aiokafka_begins])
def test_a_transactional_producer_ends_at_once(
    node: Node, begins: Callable[[str], Exception]
) -> None:
    """With an error that isn't a timeout: asking again for ever helps nobody."""
    said = str(begins(node.bootstrap))
    assert "timed out" not in said.lower()


def test_a_producer_id_for_a_transaction_is_unsupported(wire: Wire) -> None:
    request = messages.InitProducerIdRequest("mine", 1000)
    answer = wire.call(ApiKey.INIT_PRODUCER_ID, 4, request)
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION


def test_the_version_of_transactions_has_no_level_yet(wire: Wire) -> None:
    assert FEATURE not in features(wire).in_use
    wanted = messages.UpdateFeaturesRequest.FeatureUpdateKey(FEATURE, 2)
    request = messages.UpdateFeaturesRequest(10_000, [wanted])
    answer = wire.call(ApiKey.UPDATE_FEATURES, 1, request)
    assert answer.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert "kraftpy cluster raise-level" in answer.error_message
    wanted.max_version_level = 0  # which it has
    assert wire.call(ApiKey.UPDATE_FEATURES, 1, request).error_code == 0


def test_they_come_with_the_level(node: Node, wire: Wire) -> None:
    async def raise_level() -> None:
        async with Client(node.bootstrap) as cluster:
            admin = ClusterAdmin(cluster)
            level = await admin.metadata_level()
            assert level is not None
            assert level.current < TRANSACTIONS
            await admin.raise_metadata_level(level.newest)

    asyncio.run(raise_level())
    assert features(wire).in_use[FEATURE] == 2
    producer = ConfluentTransactor(node.bootstrap, "mine")
    producer.begin()
    producer.produce("t", b"x")
    producer.commit()
    producer.close()
