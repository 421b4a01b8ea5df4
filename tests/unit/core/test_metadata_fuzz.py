"""Whatever commands come, sound or broken: `apply` answers, and every node ends up the same."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from metadata_cluster import new_topic, packed, registration, restored
from metadata_invariants import check, check_lead_of_twins, check_result

from kraftpy.core.metadata import LEVEL, LaterReleaseError, MetadataState
from kraftpy.core.quotas import CLIENT_KEYS, CONNECTION_CREATION_RATE
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
            "min.insync.replicas",
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


_topic_ids = _uuids | st.sampled_from([new_topic(name)["topic_id"] for name in ("a", "b.c", "d")])
_epochs = st.integers(1, 3) | st.integers(1, 12)
_on_broker = {"broker_id": _broker_ids, "broker_epoch": _epochs}
_acl_fields: list[tuple[st.SearchStrategy[Any], Any]] = [
    (st.sampled_from([2, 2, 3, 4, 1, 9]), 1),
    (st.sampled_from(["a", "a", "kafka-cluster", "*", ""]), None),
    (st.sampled_from([3, 3, 4, 2, 1]), 1),
    (st.sampled_from(["User:alice", "User:*", "nobody"]), None),
    (st.sampled_from(["*", "*", "10.0.0.1", "::1", "0:0:0:0:0:0:0:1", "name"]), None),
    (st.sampled_from([2, 3, 4, 8, 1]), 1),
    (st.sampled_from([2, 3, 3, 1, 5]), 1),
]
_acls = st.tuples(*(field for field, _ in _acl_fields)).map(list)
_principals = st.sampled_from(["User:alice", "User:bob", "User:bob"]) | st.sampled_from(
    ["User:*", "User:", "Broker:1", "nobody"]
)
_on_token = {
    "token_id": st.sampled_from(["one", "two", ""]),
    "principal": _principals,
    "now_ms": st.integers(0, 30),
}
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
        min_insync_replicas=st.none() | st.integers(0, 3),
        unclean_leader_election=_maybe,
    ),
    _command("unregister_broker", broker_id=_broker_ids),
    _command("fence_broker", **_on_broker),
    _command("unfence_broker", **_on_broker),
    _command("begin_shutdown", **_on_broker),
    _command("allocate_producer_ids", **_on_broker),
    _command(
        "alter_partition",
        **_on_broker,
        topics=st.lists(
            _map(
                topic_id=_topic_ids,
                partitions=st.lists(
                    _map(
                        index=st.integers(0, 3),
                        leader_epoch=st.integers(0, 2),
                        partition_epoch=st.integers(0, 3),
                        isr=st.lists(_map(broker_id=_broker_ids, broker_epoch=_epochs), max_size=3),
                    ),
                    max_size=3,
                ),
            ),
            max_size=2,
        ),
    ),
    _command(
        "renew_replicas",
        **_on_broker,
        topics=st.lists(
            _map(
                topic_id=_topic_ids,
                partitions=st.lists(
                    _map(index=st.integers(0, 3), leader_epoch=st.integers(0, 2)), max_size=3
                ),
            ),
            max_size=2,
        ),
    ),
    _command(
        "elect_leaders",
        election_type=st.integers(0, 2),
        topics=st.none()
        | st.lists(
            _map(name=_names, partitions=st.lists(st.integers(-1, 3), max_size=3)), max_size=2
        ),
    ),
    _command(
        "alter_reassignments",
        topics=st.lists(
            _map(
                name=_names,
                partitions=st.lists(
                    _map(
                        index=st.integers(-1, 3),
                        replicas=st.none() | st.lists(st.integers(-1, 4), max_size=3),
                    ),
                    max_size=3,
                ),
            ),
            max_size=2,
        ),
        keep_replication_factor=_maybe,
    ),
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
            )
            | _map(
                name=_names,
                topic_id=_uuids,
                configs=_configs,
                twin_of=_names,
                partitions=st.integers(-1, 0),
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
    _command(
        "alter_scram",
        users=st.lists(
            _map(
                name=st.sampled_from(["alice", "bob", "*", ""]),
                upsertions=st.lists(
                    _map(
                        mechanism=st.integers(0, 3),
                        iterations=st.sampled_from([4096, 4096, 16384, 1]),
                        salt=st.sampled_from([b"salt", b"other", b""]),
                        stored_key=st.sampled_from([bytes(32), bytes(32), bytes(64)]),
                        server_key=st.sampled_from([bytes(32), bytes(32), bytes(64)]),
                    ),
                    max_size=2,
                ),
                deletions=st.lists(st.integers(0, 3), max_size=2),
            ),
            max_size=3,
        ),
        only_first=_maybe,
    ),
    _command(
        "create_acls",
        acls=st.lists(_acls, max_size=4),
        allowed_under=st.none() | st.none() | st.integers(0, 30),
    ),
    _command(
        "delete_acls",
        filters=st.lists(
            _acls | st.tuples(*(field | st.just(wild) for field, wild in _acl_fields)).map(list),
            max_size=3,
        ),
        allowed_under=st.none() | st.none() | st.integers(0, 30),
    ),
    _command(
        "alter_client_quotas",
        entities=st.lists(
            _map(
                parts=st.lists(
                    st.tuples(
                        st.sampled_from(["user", "user", "client-id", "ip"]),
                        st.sampled_from(["a", "10.0.0.1", "", None]),
                    ).map(list),
                    max_size=2,
                ),
                values=st.lists(
                    st.tuples(
                        st.sampled_from([*CLIENT_KEYS, CONNECTION_CREATION_RATE, "other"]),
                        st.sampled_from([1.0, 2.0, 5, 0.5, 0.0, math.nan, math.inf, None, None]),
                    ).map(list),
                    max_size=3,
                ),
            ),
            max_size=3,
        ),
        validate_only=_maybe,
    ),
    _command(
        "create_token",
        token_id=_on_token["token_id"],
        owner=_principals,
        requester=_principals,
        renewers=st.lists(_principals, max_size=2),
        issued_ms=st.integers(0, 10),
        expires_ms=st.integers(0, 30),
        max_ms=st.integers(0, 30),
    ),
    _command("renew_token", **_on_token, expires_ms=st.integers(0, 40)),
    _command("expire_token", **_on_token, expires_ms=st.none() | st.integers(0, 40)),
    _command("remove_expired_tokens", now_ms=st.integers(0, 30)),
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


_NEWEST: list[Any] = [
    {"type": "raise_level", "level": LEVEL},
    {
        "type": "create_topics",
        "seed": 0,
        "topics": [new_topic("d", -1, -1, twin_of="a", configs={"cleanup.policy": "compact"})],
    },
    {
        "type": "alter_scram",
        "users": [
            {
                "name": "alice",
                "upsertions": [
                    {
                        "mechanism": 1,
                        "iterations": 4096,
                        "salt": b"salt",
                        "stored_key": bytes(32),
                        "server_key": bytes(32),
                    }
                ],
            }
        ],
    },
    {"type": "create_acls", "acls": [[2, "a", 3, "User:alice", "*", 3, 3]]},
    {
        "type": "alter_client_quotas",
        "entities": [
            {"parts": [["user", "a"]], "values": [["producer_byte_rate", 2.0]]},
            {"parts": [["ip", None]], "values": [["connection_creation_rate", 2.0]]},
        ],
    },
    {
        "type": "create_token",
        "token_id": "one",
        "owner": "User:alice",
        "requester": "User:bob",
        "renewers": ["User:bob"],
        "issued_ms": 0,
        "expires_ms": 10,
        "max_ms": 20,
    },
]


@pytest.mark.parametrize("more", [[], _NEWEST], ids=["level 0", "newest level"])
@settings(max_examples=200)
@given(st.lists(_commands, min_size=5, max_size=25), st.integers(0, 25))
def test_apply_is_total_and_all_nodes_agree(
    more: list[Any], commands: list[Any], snapshot_at: int
) -> None:
    one, other, follower = MetadataState(), MetadataState(), MetadataState()
    commands = _BEGINNING + more + commands
    given_up = False
    for index, command in enumerate(commands, start=1):
        before = one.snapshot()
        try:
            result = one.apply(index, command)
        except LaterReleaseError:  # every node stops at a name that it doesn't know
            assert one.snapshot() == before
            for node in (other, follower)[: 2 if index > snapshot_at else 1]:
                with pytest.raises(LaterReleaseError):
                    node.apply(index, command)
            break
        check(one, judged=False)
        check_result(one, result, command)
        given_up |= isinstance(command, dict) and command.get("type") == "renew_replicas"
        if not given_up:
            check_lead_of_twins(one)
        assert one.applied_index == index
        if result.error is not ErrorCode.NONE or not result.changes:
            after = before | {"applied_index": index}
            if result.error is ErrorCode.NONE:
                after["next_producer_id"] = one.next_producer_id
                after["cluster_id"] = one.cluster_id
            assert one.snapshot() == after
        assert other.apply(index, command) == result
        if index == snapshot_at:
            follower = restored(one)
        elif index > snapshot_at:
            assert follower.apply(index, command) == result
    assert packed(other) == packed(one)
    assert packed(restored(one)) == packed(one)
    if snapshot_at <= one.applied_index:
        assert packed(follower) == packed(one)


@settings(max_examples=100)
@given(_plain, st.data())
def test_a_damaged_snapshot_is_a_value_error_or_a_state(junk: Any, data: st.DataObject) -> None:
    state = MetadataState()
    for index, command in enumerate([*_BEGINNING, *_NEWEST], start=1):
        state.apply(index, command)

    def choose(count: int) -> int:
        return data.draw(st.integers(0, count - 1))

    with contextlib.suppress(ValueError, LaterReleaseError):
        MetadataState.from_snapshot(_replaced(msgpack.unpackb(packed(state)), choose, junk))


def test_a_snapshot_of_another_version_is_refused() -> None:
    snapshot = MetadataState().snapshot() | {"version": 1}
    with pytest.raises(ValueError, match="has version 1, this release reads 2"):
        MetadataState.from_snapshot(snapshot)
