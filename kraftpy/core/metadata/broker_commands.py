"""Commands on brokers: registration, fencing, producer ids.

    register_broker        broker_id, incarnation_id (16 bytes), cluster_id?, rack?, fenced?,
                           endpoints [{listener, host, port, security_protocol}],
                           directories [16 bytes]             -> {broker_epoch}
    unregister_broker      broker_id                          -> {}
    fence_broker           broker_id, broker_epoch            -> {}
    unfence_broker         broker_id, broker_epoch            -> {}
    allocate_producer_ids  broker_id, broker_epoch            -> {first, count}

Rules: the index of the registration is the broker epoch, and names one life of the broker's process
(KIP-631). While one life is not fenced, no other one may register under its id. The first
registration that names a cluster id fixes it. A fenced broker leads nothing and leaves every ISR
that has other members. Unregistering keeps the broker in the replica lists, as Kafka does.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kraftpy.core.metadata import elections, fields
from kraftpy.core.metadata.fields import Fields
from kraftpy.core.metadata.records import (
    Broker,
    BrokerChanged,
    Change,
    Endpoint,
    PartitionChanged,
    PartitionState,
    ResourceType,
    Topic,
)
from kraftpy.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kraftpy.core.metadata.state import MetadataState

BROKERS_MAX = 1000
ENDPOINTS_MAX = 16
DIRECTORIES_MAX = 64
TEXT_LENGTH_MAX = 255
PRODUCER_IDS_PER_BLOCK = 1000


def register_broker(
    state: MetadataState, index: int, command: Fields, changes: list[Change]
) -> dict[str, Any]:
    """Admits one life of a broker; the same life may ask again and keeps its epoch."""
    broker_id = command.integer("broker_id")
    incarnation_id = command.uuid("incarnation_id")
    cluster_id = command.optional_text("cluster_id", TEXT_LENGTH_MAX)
    broker = Broker(
        id=broker_id,
        epoch=index,
        incarnation_id=incarnation_id,
        endpoints=tuple(_endpoint(each) for each in command.items("endpoints", ENDPOINTS_MAX)),
        rack=command.optional_text("rack", TEXT_LENGTH_MAX),
        directories=_directories(command),
        fenced=command.flag("fenced"),
    )
    if cluster_id is not None and state.cluster_id not in (None, cluster_id):
        raise KafkaError(
            ErrorCode.INCONSISTENT_CLUSTER_ID,
            f"broker {broker_id} belongs to cluster {cluster_id}, this is {state.cluster_id}: its "
            "data folder comes from elsewhere",
        )
    old = state.brokers.get(broker_id)
    if old is not None and old.incarnation_id == incarnation_id:
        broker = replace(broker, epoch=old.epoch)
    elif old is not None and not old.fenced and set(old.directories) - set(broker.directories):
        # Its process may be gone: only who holds the same folders' locks can know.
        raise KafkaError(
            ErrorCode.DUPLICATE_BROKER_REGISTRATION,
            f"broker {broker_id} runs with other folders, or did so last: stop that process, or "
            "put back the folders of log.dirs (each is known by the directory.id in its "
            "meta.properties)",
        )
    elif old is not None and not old.fenced:
        raise KafkaError(
            ErrorCode.DUPLICATE_BROKER_REGISTRATION,
            f"another process is broker {broker_id} right now: give this one another node.id, or "
            "stop the other one",
        )
    elif old is None and len(state.brokers) >= BROKERS_MAX:
        raise KafkaError(
            ErrorCode.INVALID_REGISTRATION,
            f"the cluster has {BROKERS_MAX} brokers, the most it can",
        )
    state.cluster_id = state.cluster_id or cluster_id
    _set_broker(state, broker, changes)
    return {"broker_epoch": broker.epoch}


def unregister_broker(
    state: MetadataState, _index: int, command: Fields, changes: list[Change]
) -> dict[str, Any]:
    """Forgets a broker, as for one that won't come back."""
    broker = state.brokers.get(command.integer("broker_id"))
    if broker is None:
        raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, "no broker with this id is registered")
    del state.brokers[broker.id]
    changes.append(BrokerChanged(broker, None))
    update_partitions(state, changes, leaving=broker.id)
    return {}


def fence_broker(
    state: MetadataState, _index: int, command: Fields, changes: list[Change]
) -> dict[str, Any]:
    """Takes a broker's leaderships from it: it is gone, or no longer heard of."""
    broker = _living_broker(state, command)
    if not broker.fenced:
        _set_broker(state, replace(broker, fenced=True), changes)
    return {}


def unfence_broker(
    state: MetadataState, _index: int, command: Fields, changes: list[Change]
) -> dict[str, Any]:
    """Lets a broker serve: it has caught up with the metadata and is heard of."""
    broker = _living_broker(state, command)
    if broker.fenced:
        _set_broker(state, replace(broker, fenced=False), changes)
    return {}


def allocate_producer_ids(
    state: MetadataState, _index: int, command: Fields, _changes: list[Change]
) -> dict[str, Any]:
    """Gives a broker a block of producer ids that nobody else gets, ever."""
    _living_broker(state, command)
    first = state.next_producer_id
    if first > fields.LONG_MAX - PRODUCER_IDS_PER_BLOCK:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "all producer ids are used up")
    state.next_producer_id = first + PRODUCER_IDS_PER_BLOCK
    return {"first": first, "count": PRODUCER_IDS_PER_BLOCK}


def update_partitions(
    state: MetadataState, changes: list[Change], leaving: int | None = None
) -> None:
    """Gives every partition the leader it should have; takes the broker `leaving` out of ISRs."""
    active = frozenset(broker.id for broker in state.active_brokers())
    for topic in state.sorted_topics():
        unclean = _unclean(state, topic)
        for index, old in topic.partitions.items():
            new: PartitionState = old
            if leaving is not None and leaving in new.isr:
                new = elections.without(new, leaving) or new
            if new.leader not in active:
                new = elections.elect(new, active, unclean) or new
            if new is not old:
                new = replace(new, partition_epoch=old.partition_epoch + 1)
                topic.partitions[index] = new
                changes.append(PartitionChanged(topic, index, old, new))


def _unclean(state: MetadataState, topic: Topic) -> bool:
    """Whether the replicated configuration allows the topic an unclean election."""
    key = "unclean.leader.election.enable"
    value = state.config(ResourceType.TOPIC, topic.name).get(key)
    if value is None:
        value = state.config(ResourceType.BROKER, "").get(key, "false")
    return value.strip().lower() == "true"


def _set_broker(state: MetadataState, broker: Broker, changes: list[Change]) -> None:
    old = state.brokers.get(broker.id)
    if old == broker:
        return
    state.brokers[broker.id] = broker
    changes.append(BrokerChanged(old, broker))
    update_partitions(state, changes, leaving=broker.id if broker.fenced else None)


def _living_broker(state: MetadataState, command: Fields) -> Broker:
    """The broker that a command is about, if it is still the life that the command means."""
    broker_id = command.integer("broker_id")
    epoch = command.integer("broker_epoch", maximum=fields.LONG_MAX)
    broker = state.brokers.get(broker_id)
    if broker is None:
        raise KafkaError(
            ErrorCode.BROKER_ID_NOT_REGISTERED, f"broker {broker_id} is not registered"
        )
    if broker.epoch != epoch:
        raise KafkaError(
            ErrorCode.STALE_BROKER_EPOCH,
            f"broker {broker_id} has epoch {broker.epoch} now, not {epoch}",
        )
    return broker


def _endpoint(item: Fields) -> Endpoint:
    return Endpoint(
        listener=item.text("listener", TEXT_LENGTH_MAX),
        host=item.text("host", TEXT_LENGTH_MAX),
        port=item.integer("port", 0, 65535),
        security_protocol=item.text("security_protocol", TEXT_LENGTH_MAX),
    )


def _directories(command: Fields) -> tuple[bytes, ...]:
    ids = [
        fields.uuid(each, "command.directories")
        for each in command.array("directories", DIRECTORIES_MAX)
    ]
    if len(set(ids)) < len(ids):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "command.directories must be different ids")
    return tuple(ids)
