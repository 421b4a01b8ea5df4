"""Commands of several releases: what is written, what is let in, and who stops at what."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Annotated, Any

import pytest
from metadata_cluster import Cluster, new_topic, packed, registration, restored

from kraftpy.core.fields import INT_MAX, Range
from kraftpy.core.metadata import (
    LEVEL,
    LaterReleaseError,
    LevelRaised,
    MetadataState,
)
from kraftpy.core.metadata import (
    state as state_module,
)
from kraftpy.core.metadata.commands import (
    COMMANDS,
    Barrier,
    Codec,
    Command,
    CreateTopics,
    NewTopic,
    RaiseLevel,
    RegisterBroker,
    Since,
    encode,
    level_of,
)
from kraftpy.core.metadata.commands.codec import has_newer_fields
from kraftpy.core.metadata.levels import REGISTRY, TWINS
from kraftpy.protocol.errors import ErrorCode, KafkaError

RAISE = {"type": "raise_level", "level": LEVEL}


def raised(brokers: int = 1) -> Cluster:
    cluster = Cluster(brokers, level=0)
    cluster.ok(RAISE)
    return cluster


# -- the state


def test_the_level_begins_at_0_and_rises() -> None:
    cluster = Cluster(1, level=0)
    assert cluster.state.level == 0
    result = cluster.ok(RAISE)
    assert result.value == {"level": LEVEL}
    assert result.changes[0] == LevelRaised(LEVEL)
    assert cluster.state.level == LEVEL


def test_a_level_that_has_been_reached_is_no_change() -> None:
    cluster = raised()
    result = cluster.ok(RAISE)
    assert (result.value, result.changes) == ({"level": LEVEL}, ())


def test_a_level_is_1_or_more() -> None:
    cluster = Cluster(level=0)
    error, message = cluster.error({"type": "raise_level", "level": 0})
    assert error is ErrorCode.INVALID_REQUEST
    assert message == f"command.level must be a whole number from 1 to {INT_MAX}"


def test_whoever_does_not_know_the_level_stops() -> None:
    state = Cluster(1, level=0).state
    before = packed(state)
    with pytest.raises(LaterReleaseError, match=rf"level {LEVEL + 1}, .* Upgrade this node"):
        state.apply(state.applied_index + 1, RAISE | {"level": LEVEL + 1})
    assert packed(state) == before


def test_a_snapshot_of_level_0_is_that_of_earlier_releases() -> None:
    snapshot = Cluster(1, level=0).state.snapshot()
    assert snapshot["version"] == 2
    assert "level" not in snapshot


def test_a_snapshot_names_its_level_and_earlier_releases_refuse_it() -> None:
    state = raised().state
    assert state.snapshot()["version"] == 3
    assert restored(state).level == LEVEL
    assert packed(restored(state)) == packed(state)


def test_a_snapshot_of_a_level_that_is_not_known_stops_who_gets_it() -> None:
    later = raised().state.snapshot() | {"level": LEVEL + 1, "brokers": "in another shape"}
    with pytest.raises(LaterReleaseError, match=rf"level {LEVEL + 1}, .* Upgrade this node"):
        MetadataState.from_snapshot(later)


def test_a_snapshot_has_the_registry_from_its_level_on() -> None:
    fields = {"registered_ms": 5, "metrics": "host:9300"}
    cluster = Cluster(level=REGISTRY)
    cluster.ok(registration(1, **fields))
    cluster.ok(registration(2))
    assert cluster.state.snapshot()["registry"] == [[1, 5, "host:9300"], [2, 0, None]]
    again = restored(cluster.state)
    assert again.brokers == cluster.state.brokers
    assert packed(again) == packed(cluster.state)
    below = Cluster(1, level=REGISTRY - 1).state.snapshot()
    assert "registry" not in below


# -- fields that aren't known

LATER: list[dict[str, Any]] = [
    {"type": "barrier", "since": 1},
    registration(2, colour="red"),
    {"type": "create_topics", "seed": 0, "topics": [new_topic("t", colour="red")]},
]


@pytest.mark.parametrize("command", LATER)
def test_at_level_0_they_are_passed_over_as_earlier_releases_do(command: dict[str, Any]) -> None:
    cluster = Cluster(1, level=0)
    cluster.ok(command)


@pytest.mark.parametrize("command", LATER)
def test_from_level_1_on_they_stop_whoever_meets_them(command: dict[str, Any]) -> None:
    state = raised().state
    before = packed(state)
    with pytest.raises(LaterReleaseError, match=r"a field command\.\S+ of \w+ at index 4 .*Upgrad"):
        state.apply(state.applied_index + 1, command)
    assert packed(state) == before


@pytest.mark.parametrize("of", [Cluster, raised])
def test_what_is_wrong_by_itself_is_answered_at_every_level(of: Any) -> None:
    error, _ = of(1).error({"type": "fence_broker", "broker_id": 1, "colour": "red"})
    assert error is ErrorCode.INVALID_REQUEST


# -- proposing


@dataclass(frozen=True, slots=True)
class NewItem:
    name: str
    colour: Annotated[int, Range(0, 9), Since(2)] = 0


@dataclass(frozen=True, slots=True)
class Changed(Command):
    """There before levels; two fields have come later."""

    NAME = "changed"

    items: tuple[NewItem, ...] = ()
    weight: Annotated[int, Since(1)] = 0


@dataclass(frozen=True, slots=True)
class Added(Command):
    NAME = "added"
    LEVEL = 1


def test_a_command_takes_the_level_of_what_is_in_it() -> None:
    assert level_of(Barrier()) == 0
    assert level_of(Added()) == 1
    assert level_of(Changed((NewItem("a"),))) == 0
    assert level_of(Changed((NewItem("a"),), weight=5)) == 1
    assert level_of(Changed((NewItem("a"), NewItem("b", 1)), weight=5)) == 2
    assert has_newer_fields(Changed)
    assert not has_newer_fields(Barrier)


def test_a_field_that_has_its_default_is_not_written() -> None:
    """So an earlier release reads what it knows."""
    assert encode(Changed((NewItem("a"),))) == {"type": "changed", "items": [{"name": "a"}]}
    topic = NewTopic("t", bytes(16), 1, 1)
    assert encode(CreateTopics((topic,), 5)) == {
        "type": "create_topics",
        "topics": [{"name": "t", "topic_id": bytes(16), "partitions": 1, "replication_factor": 1}],
        "seed": 5,
    }


def test_what_is_written_is_read_again() -> None:
    codec = Codec((Changed, Added))
    command = Changed((NewItem("a"), NewItem("b", 1)), weight=5)
    assert codec.decode(encode(command)) == (command, [])
    with pytest.raises(KafkaError, match=r"command\.items\.colour must be a whole number from 0"):
        codec.decode({"type": "changed", "items": [{"name": "a", "colour": 10}]})


def test_nothing_is_let_in_before_its_level(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_module, "COMMANDS", Codec((Barrier, RaiseLevel, Changed, Added)))
    state = MetadataState()
    heavy = encode(Changed(weight=5))
    assert "level 0, it takes 1" in str(state.why_not("added", dict))
    assert "level 0, it takes 1" in str(state.why_not("changed", lambda: heavy))
    assert state.why_not("changed", lambda: encode(Changed())) is None
    assert state.why_not("changed", lambda: {"type": "changed", "weight": "much"}) is None
    for each in (encode(Added()), heavy):
        with pytest.raises(LaterReleaseError, match="of level 1 at index 1, before that level"):
            state.apply(1, each)
    state.apply(1, RAISE | {"level": 1})
    assert state.why_not("added", dict) is None
    assert state.why_not("changed", lambda: heavy) is None
    colourful = encode(Changed((NewItem("b", 1),)))
    assert "level 1, it takes 2" in str(state.why_not("changed", lambda: colourful))


OF_CLIENTS = frozenset(
    (
        "unregister_broker",
        "create_topics",
        "delete_topics",
        "create_partitions",
        "elect_leaders",
        "alter_reassignments",
        "alter_configs",
        "raise_level",
        "update_features",
        "alter_scram",
        "create_acls",
        "delete_acls",
        "alter_client_quotas",
        "create_token",
    )
)
"""Since level 5 these say which ACLs allowed them."""


def test_what_clients_change_says_which_acls_allowed_it() -> None:
    assert {
        each.NAME for each in COMMANDS if "allowed_under" in each.__dataclass_fields__
    } == OF_CLIENTS


def test_every_command_that_was_there_before_levels_is_of_level_0() -> None:
    """Else it couldn't be proposed in a cluster that is being upgraded."""
    names = (
        "barrier register_broker unregister_broker fence_broker unfence_broker begin_shutdown "
        "allocate_producer_ids create_topics delete_topics create_partitions alter_partition "
        "renew_replicas elect_leaders alter_reassignments alter_configs"
    )
    for name in re.findall(r"\w+", names):
        assert COMMANDS[name].LEVEL == 0
        assert has_newer_fields(COMMANDS[name]) == (
            name in OF_CLIENTS or name == RegisterBroker.NAME
        )
    topic = NewTopic("t", bytes(16), 1, 1)
    assert level_of(CreateTopics((topic,), seed=0)) == 0
    assert level_of(CreateTopics((replace(topic, twin_of="u"),), seed=0)) == TWINS
