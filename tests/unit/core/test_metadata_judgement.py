"""Settings are judged by who proposes them, so that voters of two releases decide alike."""

from __future__ import annotations

import ast
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from metadata_cluster import Cluster, new_topic, packed, read, written

import kraftpy.core.metadata
from kraftpy.core import config
from kraftpy.core.config import BrokerConfig, TopicConfig, validate_topic_configs
from kraftpy.core.config.understood import understood_broker_configs, understood_topic_configs
from kraftpy.core.metadata import MetadataState, judgement
from kraftpy.core.metadata.judgement import judge
from kraftpy.core.metadata.partition_changes import rules_of
from kraftpy.protocol.errors import ErrorCode

SET, APPEND = 0, 2


def alter(*ops: list[Any], name: str = "t", type_: int = 2) -> dict[str, Any]:
    return {"type": "alter_configs", "resources": [{"type": type_, "name": name, "ops": [*ops]}]}


def create(**configs: str) -> dict[str, Any]:
    settings = {key.replace("_", "."): value for key, value in configs.items()}
    return {"type": "create_topics", "seed": 0, "topics": [new_topic("t", configs=settings)]}


def judged(state: MetadataState, command: dict[str, Any]) -> dict[str, Any] | None:
    """What is proposed of a command."""
    known = read(command)
    assert known is not None
    left = judge(state, known).command
    return None if left is None else written(left)


def test_only_the_judgement_looks_at_a_release_s_tables() -> None:
    """Whatever else of the package does would be applied differently by another release."""
    folder = Path(kraftpy.core.metadata.__file__).parent
    looking = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                named = {f"{node.module}.{each.name}" for each in node.names}
            elif isinstance(node, ast.Import):
                named = {each.name for each in node.names}
            else:
                continue
            if any(f"{each}.".startswith("kraftpy.core.config.") for each in named):
                looking.add(path.name)
    assert looking == {"judgement.py"}


def test_what_one_release_proposes_another_applies_as_it_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The other one has no such setting: it takes over what was decided, and doesn't propose it."""
    commands = [create(preallocate="true"), alter(["preallocate", SET, "false"])]
    newer = Cluster(1)
    older = MetadataState.from_snapshot(newer.state.snapshot())
    proposed = [judged(newer.state, command) for command in commands]
    table = dict(config.TOPIC_SETTINGS)
    del table["preallocate"]
    monkeypatch.setattr(judgement, "TOPIC_SETTINGS", table)
    monkeypatch.setattr("kraftpy.core.config.topic.TOPIC_SETTINGS", MappingProxyType(table))
    assert judged(older, commands[0]) is None
    for command in proposed:
        index = older.applied_index + 1
        assert older.apply(index, command) == newer.state.apply(index, command)
    assert packed(older) == packed(newer.state)
    assert older.config(2, "t") == {"preallocate": "false"}


def test_an_item_is_refused_by_itself_and_the_others_are_proposed() -> None:
    cluster = Cluster(1)
    topics = [new_topic("a"), new_topic("b", configs={"retention.ms": "x"}), new_topic("c")]
    command = {"type": "create_topics", "seed": 0, "topics": topics}
    proposed = judged(cluster.state, command)
    assert proposed is not None
    assert [each["name"] for each in proposed["topics"]] == ["a", "c"]
    assert [(each["name"], each["error"]) for each in cluster.apply(command).value["topics"]] == [
        ("a", ErrorCode.NONE),
        ("b", ErrorCode.INVALID_CONFIG),
        ("c", ErrorCode.NONE),
    ]
    assert sorted(cluster.state.topics) == ["a", "c"]


def test_what_else_is_wrong_is_said_first() -> None:
    cluster = Cluster(1)
    cluster.create(new_topic("t"))
    ((error, _),) = cluster.item_errors(create(retention_ms="x"))
    assert error is ErrorCode.TOPIC_ALREADY_EXISTS
    ((error, _),) = cluster.item_errors(alter(["retention.ms", SET, "x"], name="gone"))
    assert error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_proposer_that_lags_behind_judges_all_the_same() -> None:
    """It doesn't know the topic yet: what can't be set anywhere isn't let through for that."""
    behind = MetadataState()
    assert judged(behind, alter(["retention.ms", SET, "x"])) is None
    good = alter(["retention.ms", SET, "5"])
    assert judged(behind, good) == good


def test_what_a_list_starts_from_goes_along() -> None:
    cluster = Cluster(1)
    cluster.create(new_topic("t"))
    command = judged(cluster.state, alter(["cleanup.policy", APPEND, "compact"]))
    assert command is not None
    assert command["resources"][0]["defaults"] == {"cleanup.policy": "delete"}
    command["resources"][0]["defaults"] = {"cleanup.policy": "later"}
    cluster.state.apply(cluster.state.applied_index + 1, command)
    assert cluster.state.config(2, "t") == {"cleanup.policy": "later,compact"}


def test_of_two_faults_the_same_is_named_whatever_the_order() -> None:
    """A snapshot sorts what a voter that has lived longer has in the order of its changes."""
    faults = {"segment.ms": "soon", "max.message.bytes": "-9", "cleanup.policy": "y"}
    said = set()
    for configs in (faults, dict(sorted(faults.items())), dict(reversed(faults.items()))):
        with pytest.raises(config.ConfigError) as failure:
            validate_topic_configs(configs)
        said.add(str(failure.value))
    assert len(said) == 1


def test_what_a_later_release_has_let_in_stops_nobody() -> None:
    """A value or a key that means nothing here is as if it weren't set."""
    state = Cluster(1).state
    configs = {"min.insync.replicas": "all", "retention.ms": "5", "shelf.life": "long"}
    topic = new_topic("t", configs=configs)
    command = {"type": "create_topics", "seed": 0, "topics": [topic]}
    result = state.apply(state.applied_index + 1, command)
    assert result.value["topics"][0]["error"] == ErrorCode.NONE
    assert rules_of(state, "t").min_isr == 1
    understood = understood_topic_configs(state.config(2, "t"))
    assert understood == {"retention.ms": "5"}
    assert TopicConfig.resolve(understood, BrokerConfig()).retention_ms == 5
    sound = {"message.max.bytes": "10"}
    assert understood_broker_configs(sound) is sound
    assert understood_broker_configs({**sound, "log.dirs": "/a", "new": "1"}) == sound
