"""The metadata as a map of plain values (for msgpack, which has one kind of array), and back.

Rules: everything is sorted, so equal states give equal bytes when packed, whatever the order in
which they came about. What can be derived is left out. `version` says which shape it is; which of
them is written, the metadata level says (`levels`), so that earlier releases read what they may:

2. Of level 0.
3. With `level`, from which on it is for that to say which release can read the rest. From level 2
   on there are `features`, from level 4 on `twins`: by the name of each that of the topic that it
   follows. From level 5 on there are `scram`: user, mechanism and credential of each; `acls` and
   `acl_version`. From level 6 on there are `quotas`: of each entity its parts and its values; and
   `tokens`: all that the metadata has of each. From level 7 on there is `registry`: of each broker
   when it registered, and where its metrics are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kraftpy.core.metadata.levels import (
    LEVEL,
    QUOTAS_AND_TOKENS,
    REGISTRY,
    SECURITY,
    TRANSACTIONS,
    TWINS,
    LaterReleaseError,
)
from kraftpy.core.metadata.records import (
    Broker,
    DelegationToken,
    Endpoint,
    PartitionState,
    ScramCredential,
    ScramMechanism,
    Topic,
    TopicRules,
    common_rules,
    name_in_metrics,
)
from kraftpy.core.metadata.tables import MetadataTables
from kraftpy.core.quotas import check_key, checked_value, entity_of
from kraftpy.core.security.acls import Acl, new_acl
from kraftpy.core.security.principals import is_user
from kraftpy.protocol.errors import KafkaError

_WITHOUT_LEVEL, _WITH_LEVEL = 2, 3

_Shared = dict[tuple[Any, ...], tuple[Any, ...]]
"""Equal sets of replicas as one object: 100,000 partitions have few different ones."""


def dump(state: MetadataTables) -> dict[str, Any]:
    newer: dict[str, Any] = {}
    if state.level:
        newer["level"] = state.level
    if state.level >= TRANSACTIONS:
        newer["features"] = dict(sorted(state.features.items()))
    if state.level >= TWINS:
        newer["twins"] = dict(sorted((twin, name) for name, twin in state.twins.items()))
    if state.level >= SECURITY:
        newer["scram"] = _dump_scram(state)
        newer["acls"] = [
            [each if isinstance(each, str) else int(each) for each in acl]
            for acl in state.acls.in_order()
        ]
        newer["acl_version"] = state.acls.version
    if state.level >= QUOTAS_AND_TOKENS:
        newer["quotas"] = [
            [[list(part) for part in entity], dict(sorted(values.items()))]
            for entity, values in state.quotas.in_order()
        ]
        newer["tokens"] = [_dump_token(state.tokens[each]) for each in sorted(state.tokens)]
    if state.level >= REGISTRY:
        newer["registry"] = [
            [id_, broker.registered_ms, broker.metrics]
            for id_, broker in sorted(state.brokers.items())
        ]
    return {
        "version": _WITH_LEVEL if newer else _WITHOUT_LEVEL,
        **newer,
        "applied_index": state.applied_index,
        "cluster_id": state.cluster_id,
        "next_producer_id": state.next_producer_id,
        "brokers": [_dump_broker(state.brokers[id_]) for id_ in sorted(state.brokers)],
        "topics": [_dump_topic(topic) for topic in state.sorted_topics()],
        "configs": [
            [int(type_), name, dict(sorted(configs.items()))]
            for (type_, name), configs in sorted(state.configs.items())
        ],
    }


def load(state: MetadataTables, snapshot: Mapping[str, Any]) -> None:
    """Fills an empty state. Raises ValueError if the snapshot is damaged or of another version.

    LaterReleaseError if its metadata level is above all that this release knows.
    """
    try:
        if snapshot["version"] not in (_WITHOUT_LEVEL, _WITH_LEVEL):
            raise ValueError(
                f"the metadata snapshot has version {snapshot['version']!r}, this release reads "
                f"{_WITHOUT_LEVEL} and {_WITH_LEVEL}"
            )
        if snapshot["version"] == _WITH_LEVEL:
            state.level = int(snapshot["level"])
            if state.level > LEVEL:
                raise LaterReleaseError.met_level(state.level)
        if state.level >= TRANSACTIONS:
            state.features = {str(key): int(level) for key, level in snapshot["features"].items()}
        state.applied_index = int(snapshot["applied_index"])
        state.cluster_id = snapshot["cluster_id"]
        state.next_producer_id = int(snapshot["next_producer_id"])
        for each in snapshot["brokers"]:
            broker = _load_broker(each)
            state.brokers[broker.id] = broker
        state.common_rules = common_rules(state.brokers.values())
        shared: _Shared = {}
        for each in snapshot["topics"]:
            topic = _load_topic(each, shared)
            state.topics[topic.name] = topic
            state.topics_by_id[topic.id] = topic
            state.names_in_metrics[name_in_metrics(topic.name)] = topic.name
            state.partition_count += len(topic.partitions)
            state.replica_index.add(
                topic.name,
                ((index, partition.replicas) for index, partition in topic.partitions.items()),
            )
        if state.level >= TWINS:
            for twin, name in snapshot["twins"].items():
                state.topics[twin].twin_of = state.topics[name].name
                state.twins[name] = twin
        for type_, name, configs in snapshot["configs"]:
            state.configs[int(type_), name] = dict(configs)
        if state.level >= SECURITY:
            _load_scram(state, snapshot["scram"])
            _load_acls(state, snapshot["acls"], snapshot["acl_version"])
        if state.level >= QUOTAS_AND_TOKENS:
            _load_quotas(state, snapshot["quotas"])
            _load_tokens(state, snapshot["tokens"])
        if state.level >= REGISTRY:
            for id_, registered_ms, metrics in snapshot["registry"]:
                state.brokers[id_] = replace(
                    state.brokers[id_], registered_ms=int(registered_ms), metrics=metrics
                )
    except (AttributeError, KeyError, OverflowError, TypeError) as error:
        raise ValueError(f"the metadata snapshot is damaged: {error!r}") from error


def _dump_scram(state: MetadataTables) -> list[list[Any]]:
    return [
        [user, int(mechanism), each.iterations, each.salt, each.stored_key, each.server_key]
        for user, credentials in sorted(state.scram.items())
        for mechanism, each in credentials.items()
    ]


def _load_scram(state: MetadataTables, packed: Any) -> None:
    for user, mechanism, iterations, salt, stored_key, server_key in packed:
        credential = ScramCredential(
            int(iterations), bytes(salt), bytes(stored_key), bytes(server_key)
        )
        state.scram.setdefault(str(user), {})[ScramMechanism(mechanism)] = credential


def _load_acls(state: MetadataTables, packed: Any, version: Any) -> None:
    for each in packed:
        resource_type, name, pattern, principal, host, operation, permission = each
        acl = Acl(
            int(resource_type),
            str(name),
            int(pattern),
            str(principal),
            str(host),
            int(operation),
            int(permission),
        )
        if acl in state.acls or acl != _judged(acl):
            raise ValueError(f"the metadata snapshot is damaged: it has {each!r} for an ACL")
        state.acls.add(acl)
    state.acls.version = int(version)


def _judged(acl: Acl) -> Acl | None:
    try:
        return new_acl(acl)
    except KafkaError:
        return None


def _load_quotas(state: MetadataTables, packed: Any) -> None:
    for parts, values in packed:
        entity = entity_of((str(kind), None if name is None else str(name)) for kind, name in parts)
        if entity != tuple(map(tuple, parts)) or state.quotas.get(entity) or not values:
            raise ValueError(f"the metadata snapshot is damaged: it has {parts!r} for an entity")
        for key in values:
            check_key(entity, key)
        state.quotas.set(entity, {key: checked_value(key, values[key]) for key in values})


def _dump_token(token: DelegationToken) -> list[Any]:
    return [
        token.id,
        token.owner,
        token.requester,
        list(token.renewers),
        token.issued_ms,
        token.expires_ms,
        token.max_ms,
    ]


def _load_tokens(state: MetadataTables, packed: Any) -> None:
    for id_, owner, requester, renewers, *times in packed:
        issued_ms, expires_ms, max_ms = map(int, times)
        token = DelegationToken(
            str(id_),
            str(owner),
            str(requester),
            tuple(map(str, renewers)),
            issued_ms,
            expires_ms,
            max_ms,
        )
        if token.id in state.tokens or expires_ms > max_ms or not is_user(token.owner):
            raise ValueError(f"the metadata snapshot is damaged: it has {id_!r} for a token")
        state.tokens[token.id] = token


def _dump_broker(broker: Broker) -> list[Any]:
    return [
        broker.id,
        broker.epoch,
        broker.incarnation_id,
        [
            [each.listener, each.host, each.port, each.security_protocol]
            for each in broker.endpoints
        ],
        broker.rack,
        list(broker.directories),
        broker.fenced,
        broker.in_controlled_shutdown,
        broker.rules,
    ]


def _load_broker(packed: Any) -> Broker:
    id_, epoch, incarnation_id, endpoints, rack, directories, fenced, closing, rules = packed
    return Broker(
        id=id_,
        epoch=epoch,
        incarnation_id=incarnation_id,
        endpoints=tuple(Endpoint(*each) for each in endpoints),
        rack=rack,
        directories=tuple(directories),
        fenced=fenced,
        in_controlled_shutdown=closing,
        rules=TopicRules(*rules),
    )


def _dump_topic(topic: Topic) -> list[Any]:
    return [topic.name, topic.id, [_dump_partition(each) for each in topic.partitions.values()]]


def _load_topic(packed: Any, shared: _Shared) -> Topic:
    name, id_, partitions = packed
    return Topic(
        name, id_, {index: _load_partition(each, shared) for index, each in enumerate(partitions)}
    )


def _dump_partition(state: PartitionState) -> tuple[Any, ...]:
    return (
        state.leader,
        state.leader_epoch,
        state.partition_epoch,
        state.replicas,
        state.isr,
        state.directories,
        state.elr,
        state.last_known_elr,
        state.adding,
        state.removing,
    )


def _load_partition(packed: Any, shared: _Shared) -> PartitionState:
    leader, leader_epoch, partition_epoch, *sets = packed
    return PartitionState(
        leader,
        leader_epoch,
        partition_epoch,
        *(shared.setdefault(each, each) for each in map(tuple, sets)),
    )
