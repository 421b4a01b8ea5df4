"""`kraftpy transaction` with a broker: what it shows of real transactions, and how it ends them."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaException, Producer

from kraftpy.protocol.errors import ErrorCode as E
from kraftpy.testing import Broker
from tests.server.test_transactional_batches import latest
from tests.server.test_transactions import Id
from tests.server.wire import Wire

from .commands import failure, output

TIMEOUT_S = 20.0


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """One that lets late batches in, as brokers before Kafka 3.6 do."""
    with Broker(
        transaction_state_log_num_partitions=3, transaction_partition_verification_enable=False
    ) as started:
        yield started


def test_a_transaction_from_its_beginning_to_its_termination(broker: Broker) -> None:
    def said(*args: str) -> str:
        return output("transaction", *args, bootstrap=broker.bootstrap)

    producer = Producer(
        {"bootstrap.servers": broker.bootstrap, "transactional.id": "billing-1", "log_level": 0}
    )
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    producer.produce("orders", b"x", partition=0)
    producer.flush(TIMEOUT_S)
    (listed,) = json.loads(said("list", "--state", "Ongoing", "-o", "json"))
    assert (listed["id"], listed["state"]) == ("billing-1", "Ongoing")
    assert json.loads(said("list", "--open-for", "600", "-o", "json")) == []
    found = json.loads(said("describe", "billing-1", "-o", "json"))
    assert found["state"] == "Ongoing"
    assert found["producer_id"] == listed["producer_id"]
    assert found["partitions"] == [{"topic": "orders", "partition": 0}]
    (active,) = json.loads(said("producers", "-t", "orders:0", "-o", "json"))
    assert (active["producer_id"], active["open_since"]) == (found["producer_id"], 0)
    assert json.loads(said("hanging", "--open-for", "0.001", "-o", "json")) == []
    said("terminate", "billing-1")
    with pytest.raises(KafkaException) as raised:
        producer.commit_transaction(TIMEOUT_S)
    assert raised.value.args[0].fatal()
    assert json.loads(said("describe", "billing-1", "-o", "json"))["state"] == "Empty"
    (active,) = json.loads(said("producers", "-t", "orders:0", "-o", "json"))
    assert active["open_since"] is None


def test_a_transaction_that_hangs_is_found_and_aborted(broker: Broker) -> None:
    output("topic", "create", "held", bootstrap=broker.bootstrap)
    with Wire(broker.host, broker.port) as wire:
        late = Id(wire, "late").begin()
        assert late.add(("held", 0)) == [E.NONE]
        assert late.write("held") is E.NONE
        assert late.end() is E.NONE
        late.wait_ended()
        assert late.write("held", 1) is E.NONE
        assert latest(wire, "held") == 2
        text = failure(
            "transaction", "hanging", "--open-for", "0.001", code=5, bootstrap=broker.bootstrap
        )
        assert "kraftpy transaction abort held 0 2" in text
        failure("transaction", "abort", "held", "0", "1", code=1, bootstrap=broker.bootstrap)
        output("transaction", "abort", "held", "0", "2", bootstrap=broker.bootstrap)
        assert latest(wire, "held") == 4
        output("transaction", "hanging", "--open-for", "0.001", bootstrap=broker.bootstrap)
