"""Apache Kafka reads what a transaction coordinator writes down (kafka-dump-log
--transaction-log-decoder), and a transaction coordinator takes over what Apache Kafka wrote."""

from __future__ import annotations

from pathlib import Path

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kraftpy.core.coordination import Loaded
from kraftpy.core.transactions import (
    Transaction,
    TransactionCodec,
    TransactionConfig,
    TransactionMachine,
    TransactionMemory,
    TransactionState,
)
from kraftpy.core.transactions.records import TransactionRecord, decode_record, encode_record
from kraftpy.protocol.records import iter_records, split_batches
from tests.apache_kafka import ApacheKafka
from tests.conformance.records_as_printed import as_printed
from tests.processes import running

TIMEOUT_S = 60

ONGOING = Transaction(
    TransactionState.ONGOING,
    producer_id=5,
    producer_epoch=3,
    last_producer_epoch=2,
    previous_producer_id=4,
    next_producer_id=6,
    timeout_ms=1000,
    partitions=frozenset({("a", 2), ("a", 0), ("b", 1)}),
    start_ms=7,
    update_ms=9,
    client_version=2,
)
EMPTY = ONGOING._replace(
    state=TransactionState.EMPTY,
    partitions=frozenset(),
    next_producer_id=-1,
    previous_producer_id=-1,
    last_producer_epoch=-1,
    client_version=0,
)


def test_kafka_reads_our_records(tmp_path: Path) -> None:
    records = [TransactionRecord("t", each) for each in (EMPTY, ONGOING, None)]
    pairs = as_printed(tmp_path, "--transaction-log-decoder", map(encode_record, records))
    assert [key for key, _ in pairs] == [{"type": "0", "data": {"transactionalId": "t"}}] * 3
    common = {
        "producerId": 5,
        "producerEpoch": 3,
        "transactionTimeoutMs": 1000,
        "transactionLastUpdateTimestampMs": 9,
        "transactionStartTimestampMs": 7,
    }
    assert [value for _, value in pairs] == [
        {
            "version": "1",
            "data": {**common, "transactionStatus": 0, "transactionPartitions": None},
        },
        {
            "version": "1",
            "data": {
                **common,
                "previousProducerId": 4,
                "nextProducerId": 6,
                "transactionStatus": 1,
                "transactionPartitions": [
                    {"topic": "a", "partitionIds": [0, 2]},
                    {"topic": "b", "partitionIds": [1]},
                ],
                "clientTransactionVersion": 2,
            },
        },
        None,
    ]


def producer(kafka: ApacheKafka, name: str) -> Producer:
    made = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": name})
    made.init_transactions(TIMEOUT_S)
    return made


def test_a_coordinator_takes_over_from_kafka(tmp_path: Path) -> None:
    kafka = ApacheKafka(tmp_path, transaction_state_log_num_partitions=1)
    with running(kafka):
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        admin.create_topics([NewTopic("beer", 3, 1)])["beer"].result(TIMEOUT_S)
        for name, commits in (("committed", True), ("aborted", False)):
            one = producer(kafka, name)
            one.begin_transaction()
            for partition in range(3):
                one.produce("beer", b"x", partition=partition)
            one.flush()
            if commits:
                one.commit_transaction(TIMEOUT_S)
            else:
                one.abort_transaction(TIMEOUT_S)
        fenced = producer(kafka, "fenced")
        fenced.begin_transaction()
        fenced.produce("beer", b"x", partition=0)
        fenced.flush()
        newcomer = producer(kafka, "fenced")
        try:
            fenced.commit_transaction(TIMEOUT_S)
        except KafkaException as error:
            assert error.args[0].fatal()  # noqa: PT017 - confluent-kafka's own
        open_one = producer(kafka, "open")
        open_one.begin_transaction()
        open_one.produce("beer", b"x", partition=1)
        open_one.flush()
        producer(kafka, "empty")
        kafka.kill()  # before anybody leaves
        del newcomer
    machine = TransactionMachine(
        TransactionConfig(1 << 40, 100), lambda: None, TransactionMemory(1 << 40), 0
    )
    loaded = Loaded()
    known = 0
    for segment in sorted((kafka.log_dir / "__transaction_state-0").glob("*.log")):
        data = segment.read_bytes()
        TransactionCodec().replay(data, machine, loaded)
        for position, _ in split_batches(data):
            for record in iter_records(data, position):
                decoded = decode_record(record.key, record.value)
                assert decoded is not None
                key, value = encode_record(decoded)
                assert key == record.key
                if decoded.transaction is None or len(decoded.transaction.partitions) < 2:
                    # Kafka keeps partitions in no order.
                    assert value == record.value
                known += 1
    assert (loaded.records, loaded.skipped) == (known, 0)
    found = {name: machine.find(name) for name in machine.transactional_ids()}
    states = {name: each.state.label for name, each in found.items() if each is not None}
    assert states == {
        "committed": "CompleteCommit",
        "aborted": "CompleteAbort",
        "fenced": "Empty",
        "open": "Ongoing",
        "empty": "Empty",
    }
    left_open = found["open"]
    assert left_open is not None
    assert left_open.partitions == {("beer", 1)}
    assert left_open.timeout_ms == 60_000
