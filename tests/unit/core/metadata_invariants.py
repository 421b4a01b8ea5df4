"""What must hold of a metadata state after every command, whatever it was."""

from __future__ import annotations

from collections import Counter

import msgpack

from kraftpy.core.config import validate_dynamic_broker_configs, validate_topic_configs
from kraftpy.core.metadata import (
    NO_LEADER,
    MetadataState,
    PartitionChanged,
    PartitionState,
    Result,
    TopicCreated,
    TopicDeleted,
)
from kraftpy.core.metadata.elections import Electorate, settled
from kraftpy.core.metadata.limits import TOKENS_MAX
from kraftpy.core.metadata.partition_changes import electorate_of, rules_of
from kraftpy.core.metadata.records import LOST_DIRECTORY, SCRAM_KEY_BYTES, TopicRules, common_rules
from kraftpy.core.metadata.security_commands import scram_name_error
from kraftpy.core.quotas import CLIENT_KEYS, IP_KEYS, check_key, checked_value, entity_of
from kraftpy.core.security.acl_table import AclTable
from kraftpy.core.security.acls import new_acl
from kraftpy.core.security.authorizer import Authorizer
from kraftpy.core.security.principals import Principal, is_user, parsed
from kraftpy.protocol.errors import ErrorCode


def check(state: MetadataState, *, judged: bool = True) -> None:
    """The state is consistent, and every partition has what the rules give it.

    Not `judged`: commands came that no proposer had judged, so anything may be set.
    """
    assert {id(topic) for topic in state.topics.values()} == {
        id(topic) for topic in state.topics_by_id.values()
    }
    assert state.partition_count == sum(len(topic.partitions) for topic in state.topics.values())
    assert sorted(state.names_in_metrics.values()) == sorted(state.topics)
    assert state.common_rules == common_rules(state.brokers.values())
    electorate = electorate_of(state)
    for name, topic in state.topics.items():
        assert topic.name == name
        assert state.topics_by_id[topic.id] is topic
        assert list(topic.partitions) == list(range(len(topic.partitions)))
        assert topic.partitions
        for partition in topic.partitions.values():
            check_partition(partition, electorate, rules_of(state, name))
    check_index(state)
    check_twins(state)
    check_acls(state)
    check_quotas(state)
    check_scram(state)
    check_tokens(state)
    for (type_, name), configs in state.configs.items():
        assert configs
        assert type_ != 2 or name in state.topics
        if not judged:
            continue
        if type_ == 2:
            validate_topic_configs(configs)
        else:
            validate_dynamic_broker_configs(configs)


def check_partition(partition: PartitionState, electorate: Electorate, rules: TopicRules) -> None:
    replicas, isr, elr = partition.replicas, partition.isr, partition.elr
    assert replicas
    assert len(set(replicas)) == len(replicas) == len(partition.directories)
    assert isr == tuple(each for each in replicas if each in isr)
    assert elr == tuple(each for each in replicas if each in elr)
    assert not set(isr) & set(elr)
    if len(isr) >= min(rules.min_isr, len(replicas)):
        assert elr == ()
    assert set(partition.adding) | set(partition.removing) <= set(replicas)
    assert not set(partition.adding) & set(partition.removing)
    if partition.adding or partition.removing:
        assert not set(replicas) - set(partition.removing) <= set(isr)
    directories = dict(zip(replicas, partition.directories, strict=True))
    assert LOST_DIRECTORY not in {directories[each] for each in (*isr, *elr)}
    if partition.leader == NO_LEADER:
        assert isr == ()
        if electorate.removed_are_forgotten:
            assert set(partition.last_known_elr) <= set(replicas)
        assert len(partition.last_known_elr) == 1 or electorate.removed_are_forgotten
        assert not set(elr) & electorate.active
        for last in partition.last_known_elr:
            if not elr and last in replicas and directories[last] != LOST_DIRECTORY:
                assert last not in electorate.active
        if rules.unclean:
            assert not set(replicas) & electorate.active
    else:
        assert partition.leader in isr
        assert partition.last_known_elr == ()
        assert set(isr) - {partition.leader} <= electorate.active
        if partition.leader not in electorate.active:
            assert partition.leader in electorate.closing
            assert isr == (partition.leader,)
            assert not set(elr) & electorate.active
    assert settled(partition, electorate, rules) is partition, "nothing is left to do"


def check_scram(state: MetadataState) -> None:
    """Whoever has credentials could log in with them, and has no empty place."""
    for user, credentials in state.scram.items():
        assert scram_name_error(user) is None
        assert credentials
        assert list(credentials) == sorted(credentials)
        for mechanism, each in credentials.items():
            assert each.salt
            assert len(each.stored_key) == len(each.server_key) == SCRAM_KEY_BYTES[mechanism]


def check_tokens(state: MetadataState) -> None:
    """No token is anybody's but a user's, or lasts longer than it may."""
    assert len(state.tokens) <= TOKENS_MAX
    for id_, token in state.tokens.items():
        assert token.id == id_
        assert token.expires_ms <= token.max_ms
        assert is_user(token.owner)
        assert all(parsed(each).type == "User" for each in token.renewers)


def check_acls(state: MetadataState) -> None:
    """What is looked up is what a table that was made at once has."""
    fresh = AclTable()
    for acl in state.acls:
        assert new_acl(acl) == acl
        fresh.add(acl)
    assert state.acls.version <= state.applied_index
    assert len(state.acls) == 0 or state.acls.version > 0
    tables = Authorizer(state.acls), Authorizer(fresh)
    for whose in (Principal("User", "alice"), Principal("User", "bob")):
        masks = []
        for table in tables:
            view = table.view(whose, "10.0.0.1")
            names = ("a", "ab", "kafka-cluster")
            masks.append([view.mask(kind, name) for name in names for kind in (2, 3, 4)])
        assert masks[0] == masks[1]


def check_quotas(state: MetadataState) -> None:
    """All that is kept could be set again, and the counts are those of what is there."""
    counted = Counter[str]()
    for entity, values in state.quotas.items():
        assert entity_of(entity) == entity
        assert values
        for key, value in values.items():
            check_key(entity, key)
            assert checked_value(key, value) == value
            counted[key] += 1
    for key in (*CLIENT_KEYS, *IP_KEYS):
        assert state.quotas.anybody_has(key) == (counted[key] > 0)


def check_twins(state: MetadataState) -> None:
    """A twin is where its topic is."""
    twins = {each.twin_of: name for name, each in state.topics.items() if each.twin_of is not None}
    assert state.twins == twins
    assert not twins.keys() & set(twins.values())
    for name, twin in twins.items():
        followed = [_target(each) for each in state.topics[name].partitions.values()]
        assert [_target(each) for each in state.topics[twin].partitions.values()] == followed
        min_isr = "min.insync.replicas"
        assert state.config(2, twin).get(min_isr) == state.config(2, name).get(min_isr)


def check_lead_of_twins(state: MetadataState) -> None:
    """Who leads a partition leads its twin, if it could; but for one that it has given up."""
    for name, twin_name in state.twins.items():
        for index, twin in state.topics[twin_name].partitions.items():
            leader = state.topics[name].partitions[index].leader
            if leader in twin.isr and state.brokers[leader].active:
                assert twin.leader == leader


def _target(partition: PartitionState) -> list[int]:
    return [each for each in partition.replicas if each not in partition.removing]


def check_index(state: MetadataState) -> None:
    """The index of replicas is what one finds when one looks at all partitions."""
    found: dict[int, dict[str, list[int]]] = {}
    for topic in state.sorted_topics():
        for index, partition in topic.partitions.items():
            for broker_id in partition.replicas:
                found.setdefault(broker_id, {}).setdefault(topic.name, []).append(index)
    for broker_id in {*found, *state.brokers, *range(8)}:
        assert dict(state.replica_index.partitions(broker_id)) == found.get(broker_id, {})


def check_result(state: MetadataState, result: Result, command: object) -> None:
    """The answer can be sent, and its changes are what one finds in the state."""
    renewing = isinstance(command, dict) and command.get("type") == "renew_replicas"
    msgpack.packb(result.value)
    if result.error is not ErrorCode.NONE:
        assert result.value == {}
        assert result.changes == ()
        assert result.message
    last: dict[tuple[bytes, int], PartitionState] = {}
    for change in result.changes:
        match change:
            case TopicCreated(topic):
                assert state.topics[topic.name] is topic
            case TopicDeleted(topic):
                assert topic.id not in state.topics_by_id
            case PartitionChanged(topic, index, old, new):
                last[topic.id, index] = new
                if old is not None:
                    assert new.partition_epoch == old.partition_epoch + 1
                    bumped = new.leader != old.leader or not set(old.replicas) <= set(new.replicas)
                    bumped |= renewing
                    assert new.leader_epoch == old.leader_epoch + bumped
    for (topic_id, index), new in last.items():
        assert state.topics_by_id[topic_id].partitions[index] is new
