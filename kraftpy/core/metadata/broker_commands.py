"""Carries out the commands on brokers: registration, fencing, shutdown, producer ids.

Rules: the index of the registration is the broker epoch, and names one life of the broker's process
(KIP-631). While one life is not fenced, no other one may register under its id. The first
registration that names a cluster id fixes it. A new life begins fenced. `previous_broker_epoch` is
what the clean-shutdown marker says; if it is not the epoch that the broker had last, if that isn't
known, or if a directory is missing, then the broker may lack records that it had, and is eligible
nowhere (KIP-966). A fenced broker leads nothing and is in no ISR. One that shuts down hands over
what others can take; `remaining` is what it leads still. Unregistering keeps the broker in the
replica lists, as Kafka does, but it is no longer eligible: if it comes back, nobody knows its last
epoch.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kraftpy.core.fields import LONG_MAX
from kraftpy.core.metadata.commands import (
    AllocateProducerIds,
    BeginShutdown,
    FenceBroker,
    OfBroker,
    RegisterBroker,
    UnfenceBroker,
    UnregisterBroker,
)
from kraftpy.core.metadata.partition_changes import (
    broker_closing,
    broker_joined,
    broker_left,
    broker_lost_data,
    review,
)
from kraftpy.core.metadata.records import (
    Broker,
    BrokerChanged,
    Change,
    TopicRules,
    common_rules,
)
from kraftpy.core.metadata.tables import MetadataTables
from kraftpy.protocol.errors import ErrorCode, KafkaError

BROKERS_MAX = 1000
PRODUCER_IDS_PER_BLOCK = 1000


def register_broker(
    state: MetadataTables, index: int, command: RegisterBroker, changes: list[Change]
) -> dict[str, Any]:
    """Admits one life of a broker; the same life may ask again and keeps its epoch."""
    broker_id, incarnation_id = command.broker_id, command.incarnation_id
    cluster_id = command.cluster_id
    if len(set(command.directories)) < len(command.directories):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "command.directories must be different ids")
    broker = Broker(
        id=broker_id,
        epoch=index,
        incarnation_id=incarnation_id,
        endpoints=command.endpoints,
        rack=command.rack,
        directories=command.directories,
        fenced=True,
        rules=TopicRules(command.min_insync_replicas, command.unclean_leader_election),
        registered_ms=command.registered_ms,
        metrics=command.metrics,
    )
    if cluster_id is not None and state.cluster_id not in (None, cluster_id):
        raise KafkaError(
            ErrorCode.INCONSISTENT_CLUSTER_ID,
            f"broker {broker_id} belongs to cluster {cluster_id}, this is {state.cluster_id}: its "
            "data folder comes from elsewhere",
        )
    old = state.brokers.get(broker_id)
    if old is not None and old.incarnation_id == incarnation_id:
        state.cluster_id = state.cluster_id or cluster_id
        _set_broker(
            state,
            replace(
                old,
                endpoints=broker.endpoints,
                rack=broker.rack,
                rules=broker.rules,
                registered_ms=broker.registered_ms,
                metrics=broker.metrics,
            ),
            changes,
        )
        return {"broker_epoch": old.epoch}
    _check_new_life(state, broker, old)
    state.cluster_id = state.cluster_id or cluster_id
    _set_broker(state, broker, changes)
    clean = old is not None and command.previous_broker_epoch == old.epoch
    if not clean or _lacks_directories(broker, old):
        # GUARD unclean-exclusion: what it acknowledged it may not have any more (KIP-966).
        broker_lost_data(state, broker, old, changes)
    return {"broker_epoch": broker.epoch}


def _check_new_life(state: MetadataTables, broker: Broker, old: Broker | None) -> None:
    if old is None:
        if len(state.brokers) >= BROKERS_MAX:
            raise KafkaError(
                ErrorCode.INVALID_REGISTRATION,
                f"the cluster has {BROKERS_MAX} brokers, the most it can",
            )
    elif not old.fenced and _lacks_directories(broker, old):
        # Its process may be gone: only who holds the same folders' locks can know.
        raise KafkaError(
            ErrorCode.DUPLICATE_BROKER_REGISTRATION,
            f"broker {broker.id} runs with other folders, or did so last: stop that process, or "
            "put back the folders of log.dirs (each is known by the directory.id in its "
            "meta.properties)",
        )
    elif not old.fenced:
        raise KafkaError(
            ErrorCode.DUPLICATE_BROKER_REGISTRATION,
            f"another process is broker {broker.id} right now: give this one another node.id, or "
            "stop the other one",
        )


def _lacks_directories(broker: Broker, old: Broker | None) -> bool:
    return old is not None and not set(old.directories) <= set(broker.directories)


def unregister_broker(
    state: MetadataTables, _index: int, command: UnregisterBroker, changes: list[Change]
) -> dict[str, Any]:
    """Forgets a broker, as for one that won't come back."""
    broker = state.brokers.get(command.broker_id)
    if broker is None:
        raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, "no broker with this id is registered")
    del state.brokers[broker.id]
    changes.append(BrokerChanged(broker, None))
    broker_lost_data(state, broker, None, changes)
    _update_common_rules(state, changes)
    return {}


def fence_broker(
    state: MetadataTables, _index: int, command: FenceBroker, changes: list[Change]
) -> dict[str, Any]:
    """Takes a broker's leaderships from it: it is gone, or no longer heard of."""
    broker = living_broker(state, command)
    if not broker.fenced:
        _set_broker(state, replace(broker, fenced=True), changes)
        broker_left(state, broker.id, changes)
    return {}


def unfence_broker(
    state: MetadataTables, _index: int, command: UnfenceBroker, changes: list[Change]
) -> dict[str, Any]:
    """Lets a broker serve: it has caught up with the metadata and is heard of.

    One that has begun to shut down stays as it is.
    """
    broker = living_broker(state, command)
    if broker.fenced and not broker.in_controlled_shutdown:
        _set_broker(state, replace(broker, fenced=False), changes)
        broker_joined(state, broker.id, changes)
    return {}


def begin_shutdown(
    state: MetadataTables, _index: int, command: BeginShutdown, changes: list[Change]
) -> dict[str, Any]:
    """Moves what a broker leads to others before it stops. Repeating it tries again."""
    broker = living_broker(state, command)
    _set_broker(state, replace(broker, in_controlled_shutdown=True), changes)
    return {"remaining": broker_closing(state, broker.id, changes)}


def allocate_producer_ids(
    state: MetadataTables, _index: int, command: AllocateProducerIds, _changes: list[Change]
) -> dict[str, Any]:
    """Gives a broker a block of producer ids that nobody else gets, ever."""
    living_broker(state, command)
    first = state.next_producer_id
    if first > LONG_MAX - PRODUCER_IDS_PER_BLOCK:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "all producer ids are used up")
    state.next_producer_id = first + PRODUCER_IDS_PER_BLOCK
    return {"first": first, "count": PRODUCER_IDS_PER_BLOCK}


def _set_broker(state: MetadataTables, broker: Broker, changes: list[Change]) -> None:
    old = state.brokers.get(broker.id)
    if old == broker:
        return
    state.brokers[broker.id] = broker
    changes.append(BrokerChanged(old, broker))
    _update_common_rules(state, changes)


def _update_common_rules(state: MetadataTables, changes: list[Change]) -> None:
    old, new = state.common_rules, common_rules(state.brokers.values())
    state.common_rules = new
    if new.min_isr < old.min_isr or new.unclean > old.unclean:
        review(state, state.sorted_topics(), changes)


def living_broker(state: MetadataTables, command: OfBroker) -> Broker:
    """The broker that a command is about, if it is still the life that the command means."""
    broker_id, epoch = command.broker_id, command.broker_epoch
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
