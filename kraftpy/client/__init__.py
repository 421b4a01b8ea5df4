"""A small asyncio client on kraftpy's own codec, for the command line, consumers and tests.

It stands on `kraftpy.protocol` alone and talks to any broker that speaks the Kafka protocol. The
parts, each usable by itself:

* `connection`: one socket; requests in flight by correlation id; versions as the broker offers them
* `cluster`: the brokers, who leads which partition, one connection each, retries with backoff
* `admin`: topics, partitions, configurations; `cluster_admin`: brokers, replicas, the quorum;
  `group_admin`: groups and their offsets, from outside; `security_admin`: ACLs, users, quotas,
  tokens
* `producer`: `batches`, partitioner, compression, idempotence (`sender`), `interceptors`;
  `blocking`: the same for plain threads
* `transactional_producer`: records and offsets that count together; `transactions` asks the
  coordinators, `transaction_state` knows how far it is. `transaction_admin` looks from outside
* `fetcher`: offsets by time, and records from given offsets on; `isolation`: which of them count
* `simple_consumer`: single answers from an offset, offsets before a time
* `consumer`: partitions shared with a group: `coordinator` (which broker, committed offsets),
  `group` (membership), `assignors` (who gets what), `commits` (when, in which order),
  `consumer_records` (what was fetched ahead), `reading` (positions); `streams` for several tasks,
  `topic_filter`
* parts of partitions: `shares` and `sharing` (who gets which), `ledger` (what is read and done of
  them), `claims` (telling the group), `consumer_shares` (those of one consumer)
* `share_group`: members of share groups, who are leased single records
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kraftpy.client.admin import BROKER_RESOURCE, GROUP_RESOURCE, Admin
    from kraftpy.client.batches import Delivery, RecordMetadata
    from kraftpy.client.blocking import BlockingProducer
    from kraftpy.client.cluster import Cluster, NoBrokerError
    from kraftpy.client.cluster_admin import (
        PREFERRED_ELECTION,
        UNCLEAN_ELECTION,
        ClusterAdmin,
        PartitionName,
    )
    from kraftpy.client.consumer import Consumer
    from kraftpy.client.consumer_records import ConsumerRecord
    from kraftpy.client.group_admin import GroupAdmin
    from kraftpy.client.interceptors import BatchInfo, ProducerInterceptor, ProducerRecord
    from kraftpy.client.offsets import (
        EARLIEST,
        LATEST,
        OffsetAndMetadata,
        Partition,
        list_offsets,
    )
    from kraftpy.client.producer import Producer, SendManyError, UnknownPartitionError
    from kraftpy.client.rebalance_listener import RebalanceListener
    from kraftpy.client.security_admin import Credential, SecurityAdmin
    from kraftpy.client.security_settings import parse_security
    from kraftpy.client.share_group.consumer import ShareConsumer
    from kraftpy.client.share_group.leased import ShareRecord
    from kraftpy.client.simple_consumer import SimpleConsumer
    from kraftpy.client.streams import RecordStream
    from kraftpy.client.topic_filter import TopicFilter
    from kraftpy.client.transaction_admin import TransactionAdmin
    from kraftpy.client.transactional_producer import TransactionalProducer
    from kraftpy.protocol.errors import ErrorCode, KafkaError

__all__ = [
    "BROKER_RESOURCE",
    "EARLIEST",
    "GROUP_RESOURCE",
    "LATEST",
    "PREFERRED_ELECTION",
    "UNCLEAN_ELECTION",
    "Admin",
    "BatchInfo",
    "BlockingProducer",
    "Cluster",
    "ClusterAdmin",
    "Consumer",
    "ConsumerRecord",
    "Credential",
    "Delivery",
    "ErrorCode",
    "GroupAdmin",
    "KafkaError",
    "NoBrokerError",
    "OffsetAndMetadata",
    "Partition",
    "PartitionName",
    "Producer",
    "ProducerInterceptor",
    "ProducerRecord",
    "RebalanceListener",
    "RecordMetadata",
    "RecordStream",
    "SecurityAdmin",
    "SendManyError",
    "ShareConsumer",
    "ShareRecord",
    "SimpleConsumer",
    "TopicFilter",
    "TransactionAdmin",
    "TransactionalProducer",
    "UnknownPartitionError",
    "list_offsets",
    "parse_security",
]

# Where each of them is: a part is loaded by whoever asks for it, and the others aren't.
_HOMES = {
    "BROKER_RESOURCE": "admin",
    "EARLIEST": "offsets",
    "GROUP_RESOURCE": "admin",
    "LATEST": "offsets",
    "PREFERRED_ELECTION": "cluster_admin",
    "UNCLEAN_ELECTION": "cluster_admin",
    "Admin": "admin",
    "BatchInfo": "interceptors",
    "BlockingProducer": "blocking",
    "Cluster": "cluster",
    "ClusterAdmin": "cluster_admin",
    "Consumer": "consumer",
    "ConsumerRecord": "consumer_records",
    "Credential": "security_admin",
    "Delivery": "batches",
    "ErrorCode": "errors",
    "GroupAdmin": "group_admin",
    "KafkaError": "errors",
    "NoBrokerError": "cluster",
    "OffsetAndMetadata": "offsets",
    "Partition": "offsets",
    "PartitionName": "cluster_admin",
    "Producer": "producer",
    "ProducerInterceptor": "interceptors",
    "ProducerRecord": "interceptors",
    "RebalanceListener": "rebalance_listener",
    "RecordMetadata": "batches",
    "RecordStream": "streams",
    "SecurityAdmin": "security_admin",
    "SendManyError": "producer",
    "ShareConsumer": "share_group.consumer",
    "ShareRecord": "share_group.leased",
    "SimpleConsumer": "simple_consumer",
    "TopicFilter": "topic_filter",
    "TransactionAdmin": "transaction_admin",
    "TransactionalProducer": "transactional_producer",
    "UnknownPartitionError": "producer",
    "list_offsets": "offsets",
    "parse_security": "security_settings",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    package = "kraftpy.protocol" if home == "errors" else __name__
    found = getattr(importlib.import_module(f"{package}.{home}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
