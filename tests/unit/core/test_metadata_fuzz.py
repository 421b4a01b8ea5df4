"""Whatever commands come, sound or broken: `apply` answers, and every node ends up the same."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from metadata_cluster import new_topic, packed, registration, restored

from kraftpy.core.config import validate_dynamic_broker_configs, validate_topic_configs
from kraftpy.core.metadata import (
    NO_LEADER,
    MetadataState,
    PartitionChanged,
    Result,
    TopicCreated,
    TopicDeleted,
)
from kraftpy.protocol.errors import ErrorCode

# Few values, so that commands meet each other's topics, brokers and epochs.
_broker_ids = st.integers(1, 3) | st.integers(0, 4)
_names = st.sampled_from(["a", "b.c", "d"]) | st.sampled_from(
    ["b_c", "__consumer_offsets", "", "no name", "n" * 250]
)
_uuids = st.integers(0, 12).map(lambda number: number.to_bytes(16, "big"))
_seeds = st.integers(0, 2**40)
_configs = st.dictionaries(
    st.sampled_from(
        (
            "retention.ms",
            "cleanup.policy",
            "unclean.leader.election.enable",
            "log.retention.ms",
            "message.max.bytes",
            "log.dirs",
            "nonsense",
        )
    ),
    st.sampled_from(["1", "-1", "true", "false", "compact", "compact,delete", "", "x"]) | st.none(),
    max_size=3,
)
_assignments = st.none() | st.none() | st.lists(st.lists(_broker_ids, max_size=3), max_size=4)
_maybe = st.booleans() | st.none()


def _map(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(fields)


def _command(type_: str, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return _map(type=st.just(type_), **fields)


_epochs = st.integers(1, 3) | st.integers(1, 12)
_on_broker = {"broker_id": _broker_ids, "broker_epoch": _epochs}
_sound = st.one_of(
    _command("barrier"),
    _command(
        "register_broker",
        broker_id=_broker_ids,
        incarnation_id=_uuids,
        cluster_id=st.sampled_from([None, "one", "two"]),
        endpoints=st.just(
            [{"listener": "P", "host": "h", "port": 1, "security_protocol": "PLAINTEXT"}]
        ),
        rack=st.sampled_from([None, "r1", "r2"]),
        directories=st.lists(_uuids, max_size=2, unique=True),
        previous_broker_epoch=st.none() | st.integers(-1, 12),
    ),
    _command("unregister_broker", broker_id=_broker_ids),
    _command("fence_broker", **_on_broker),
    _command("unfence_broker", **_on_broker),
    _command("allocate_producer_ids", **_on_broker),
    _command(
        "create_topics",
        topics=st.lists(
            _map(
                name=_names,
                topic_id=_uuids,
                partitions=st.integers(1, 4) | st.integers(-1, 4),
                replication_factor=st.integers(1, 2) | st.integers(-1, 4),
                assignments=_assignments,
                configs=_configs,
            ),
            max_size=3,
        ),
        seed=_seeds,
        validate_only=_maybe,
    ),
    _command(
        "delete_topics",
        topics=st.lists(_map(name=_names) | _map(topic_id=_uuids), max_size=3),
    ),
    _command(
        "create_partitions",
        topics=st.lists(
            _map(name=_names, count=st.integers(-1, 6), assignments=_assignments), max_size=3
        ),
        seed=_seeds,
        validate_only=_maybe,
    ),
    _command(
        "alter_configs",
        resources=st.lists(
            _map(
                type=st.sampled_from([2, 2, 4, 4, 8]),
                name=_names | st.sampled_from(["0", "1", "01"]),
                ops=st.lists(
                    st.tuples(
                        st.sampled_from(["retention.ms", "cleanup.policy", "log.retention.ms"]),
                        st.integers(0, 4),
                        st.sampled_from(["1", "compact", "x", None]),
                    ).map(list),
                    max_size=3,
                ),
            )
            | _map(type=st.sampled_from([2, 4]), name=_names, configs=_configs),
            max_size=3,
        ),
        validate_only=_maybe,
    ),
)

_plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=17),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=5) | st.integers(-5, 5), inner, max_size=3)
    ),
    max_leaves=6,
)


def _replaced(value: Any, choose: Callable[[int], int], junk: Any) -> Any:
    """`value` with one thing in it, at any depth, replaced by `junk` or left out."""
    if isinstance(value, dict) and value:
        key = list(value)[choose(len(value))]
        what = choose(4)
        if what == 0:
            return {each: content for each, content in value.items() if each != key}
        return value | {key: junk if what == 1 else _replaced(value[key], choose, junk)}
    if isinstance(value, list) and value:
        index = choose(len(value))
        return [*value[:index], _replaced(value[index], choose, junk), *value[index + 1 :]]
    return junk


@st.composite
def _broken(draw: st.DrawFn) -> Any:
    def choose(count: int) -> int:
        return draw(st.integers(0, count - 1))

    return _replaced(draw(_sound), choose, draw(_plain))


_commands = _sound | _sound | _sound | _broken() | _plain

# Something to work on: three brokers, whose epochs are 1, 2 and 3, and two topics.
_BEGINNING: list[Any] = [
    *(registration(broker_id) for broker_id in (1, 2, 3)),
    *(
        {"type": "unfence_broker", "broker_id": broker_id, "broker_epoch": broker_id}
        for broker_id in (1, 2, 3)
    ),
    {
        "type": "create_topics",
        "seed": 0,
        "topics": [new_topic("a", 3, 2, configs={"retention.ms": "5"}), new_topic("b.c", 2, 3)],
    },
]


def check(state: MetadataState) -> None:
    """What must hold after every command."""
    assert {id(topic) for topic in state.topics.values()} == {
        id(topic) for topic in state.topics_by_id.values()
    }
    assert state.partition_count == sum(len(topic.partitions) for topic in state.topics.values())
    assert sorted(state.names_in_metrics.values()) == sorted(state.topics)
    for name, topic in state.topics.items():
        assert topic.name == name
        assert state.topics_by_id[topic.id] is topic
        assert list(topic.partitions) == list(range(len(topic.partitions)))
        assert topic.partitions
        for partition in topic.partitions.values():
            assert set(partition.isr) <= set(partition.replicas)
            assert len(partition.directories) == len(partition.replicas)
            if partition.leader != NO_LEADER:
                assert partition.leader in partition.isr
                assert not state.brokers[partition.leader].fenced
            else:
                assert partition.isr == ()
    for (type_, name), configs in state.configs.items():
        assert configs
        if type_ == 2:
            assert name in state.topics
            validate_topic_configs(configs)
        else:
            validate_dynamic_broker_configs(configs)


def check_result(state: MetadataState, result: Result) -> None:
    """The answer can be sent, and its changes are what one finds in the state."""
    msgpack.packb(result.value)
    if result.error is not ErrorCode.NONE:
        assert result.value == {}
        assert result.changes == ()
        assert result.message
    for change in result.changes:
        match change:
            case TopicCreated(topic):
                assert state.topics[topic.name] is topic
            case TopicDeleted(topic):
                assert topic.id not in state.topics_by_id
            case PartitionChanged(topic, index, old, new):
                assert topic.partitions[index] == new
                if old is not None:
                    assert new.partition_epoch == old.partition_epoch + 1
                    changed = new.leader != old.leader
                    assert new.leader_epoch == old.leader_epoch + changed


@settings(max_examples=200, deadline=None)
@given(st.lists(_commands, min_size=5, max_size=25), st.integers(0, 25))
def test_apply_is_total_and_all_nodes_agree(commands: list[Any], snapshot_at: int) -> None:
    one, other, follower = MetadataState(), MetadataState(), MetadataState()
    commands = _BEGINNING + commands
    for index, command in enumerate(commands, start=1):
        before = one.snapshot()
        result = one.apply(index, command)
        check(one)
        check_result(one, result)
        assert one.applied_index == index
        if result.error is not ErrorCode.NONE or not result.changes:
            after = before | {"applied_index": index}
            if result.error is ErrorCode.NONE:
                after["next_producer_id"] = one.next_producer_id
            assert one.snapshot() == after
        assert other.apply(index, command) == result
        if index == snapshot_at:
            follower = restored(one)
        elif index > snapshot_at:
            assert follower.apply(index, command) == result
    assert packed(other) == packed(one)
    assert packed(restored(one)) == packed(one)
    if snapshot_at <= len(commands):
        assert packed(follower) == packed(one)


@settings(max_examples=100, deadline=None)
@given(_plain, st.data())
def test_a_damaged_snapshot_is_a_value_error_or_a_state(junk: Any, data: st.DataObject) -> None:
    state = MetadataState()
    for index, command in enumerate(_BEGINNING, start=1):
        state.apply(index, command)

    def choose(count: int) -> int:
        return data.draw(st.integers(0, count - 1))

    with contextlib.suppress(ValueError):
        MetadataState.from_snapshot(_replaced(state.snapshot(), choose, junk))


def test_a_snapshot_of_another_version_is_refused() -> None:
    snapshot = MetadataState().snapshot() | {"version": 1}
    with pytest.raises(ValueError, match="has version 1, this release reads 2"):
        MetadataState.from_snapshot(snapshot)
